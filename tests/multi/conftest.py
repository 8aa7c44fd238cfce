"""Shared by the stories of many processes: clusters in separate folders, which are stopped at the end."""

import os
import shutil
import sys
import zlib
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from cluster import Cluster  # noqa: E402

# What is told apart here is not the speed of a disk: a sync that takes a second is another story's.
FAST = Path("/dev/shm")
if FAST.is_dir() and shutil.disk_usage(FAST).free > 2 << 30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(FAST))

# Sanitizers slow every process down several times.
SLOW = float(os.environ.get("DPT_TEST_SLOW", "1"))


# As tests/every.h: of the parameters of a story, only each N-th.
EVERY = int(os.environ.get("DPT_TEST_EVERY", "1")) * (2 if SLOW > 1 else 1)


def pytest_collection_modifyitems(config, items):
    stories = {}
    for item in items:
        stories.setdefault(item.nodeid.split("[")[0], []).append(item)
    kept = set()
    for story, cases in stories.items():
        kept.update(cases[zlib.crc32(story.encode()) % min(EVERY, len(cases))::EVERY])  # at least one
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


@pytest.fixture(scope="session")
def slow():
    """Factor for deadlines."""
    return SLOW


@pytest.fixture
def make_cluster(tmp_path):
    """make_cluster(NAME, **options of Cluster): stopped at the end."""
    made = []

    def make(name="cluster", **options):
        cluster = Cluster(tmp_path / name, **options)
        made.append(cluster)
        return cluster

    yield make
    for cluster in made:
        cluster.stop()
