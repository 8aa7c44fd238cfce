"""Shared by the stories of many processes: clusters in separate folders, which are stopped at the end."""

import os
import shutil
import sys
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
