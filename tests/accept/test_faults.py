"""Each deliberate fault of `tests/acceptance house` has its one place in the product."""

import pytest

from accept.faults import FAULTS, place_of, read_product
from cluster import ROOT


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="the files of the product are known by git")
def test_places():
    texts = read_product(ROOT)
    assert len({place_of(fault, texts) for fault in FAULTS}) == len(FAULTS)
