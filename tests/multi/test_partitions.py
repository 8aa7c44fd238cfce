"""Parts of a network that fail: the head, one direction, the peers' side or the server's, a link that flaps. However it
ends, there is one generation. Hosts are network namespaces; needs root and ip(8), else skipped."""

import random

import pytest

from netns import Star, Unavailable
from network_stories import (FROM_PEER, FROM_SERVER, TO_SERVER, cut_from_one_another, cut_from_the_peer,
                             cut_from_the_server, flapping_link, head_is_cut_off, settings)


@pytest.fixture
def star():
    try:
        with Star(3) as network:
            yield network
    except Unavailable as reason:
        pytest.skip(str(reason))


def test_the_head_is_cut_off(make_cluster, star, slow):
    head_is_cut_off(make_cluster(sets=settings(2 * slow)), star, slow)


@pytest.mark.parametrize("lost", [[TO_SERVER], [FROM_SERVER], [TO_SERVER, FROM_SERVER]],
                         ids=["to-server", "from-server", "both"])
def test_a_node_is_cut_from_the_server(make_cluster, star, slow, lost):
    cut_from_the_server(make_cluster(sets=settings(2 * slow)), star, slow, lost)


def test_a_node_is_cut_from_its_peers(make_cluster, star, slow):
    cut_from_the_peer(make_cluster(sets=settings(1 * slow)), star, slow, [FROM_PEER])


def test_two_nodes_are_cut_from_one_another(make_cluster, star, slow):
    assert cut_from_one_another(make_cluster(sets=settings(1 * slow)), star, slow) < 10


def test_a_flapping_link(make_cluster, star, slow):
    flapping_link(make_cluster(sets=settings(2 * slow)), star, slow, random.Random(20))
