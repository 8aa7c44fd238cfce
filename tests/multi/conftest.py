"""What the stories of many processes share: clusters in folders of their own, stopped at the end."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from cluster import Cluster  # noqa: E402

# Sanitizers slow every process down several times.
SLOW = float(os.environ.get("DPT_TEST_SLOW", "1"))


@pytest.fixture
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
