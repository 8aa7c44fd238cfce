"""Networks other than the one on which all was written: IPv6 only, no name server, a machine that is cut off. Hosts are
network namespaces; needs root and ip(8), else skipped."""

import time

import pytest

from cluster import wait_until
from netns import NET, NET6, Star, Unavailable, Wire, Wire6, names_in, start_server, start_worker

LEASE, LATEST = 0.9, 1.2  # of cluster.timeout_s: a silent node is found in between
ENDLESS = {"train.steps": 100_000, "train.log_every": 1, "checkpoint.every_steps": 0}


@pytest.fixture
def made():
    """made(network) enters the network's `with` block until the end of the test."""
    entered = []

    def enter(network):
        try:
            entered.append(network.__enter__())
        except Unavailable as reason:
            pytest.skip(str(reason))
        return entered[-1]

    yield enter
    for network in entered:
        network.__exit__(None, None, None)


def test_ipv6_only(make_cluster, made, slow):
    """Server, control and data connections use IPv6, and the server prints its IPv6 address."""
    wire = made(Wire6())
    cluster = make_cluster(sets={"train.steps": 30})
    port = start_server(cluster, wire.names[0], 10 * slow, "--insecure")
    assert f"[{NET6}1]:{port}" in cluster.server.log()
    start_worker(cluster, wire.names[0], "a", f"[::1]:{port}", nnodes=2)
    start_worker(cluster, wire.names[1], "b", f"[{NET6}1]:{port}", nnodes=2)
    assert cluster.wait_done(60 * slow) == {"a": 0, "b": 0}, cluster.log_tails()
    assert {s["world_size"] for s in cluster.summaries()} == {2}


def test_no_name_server(make_cluster, made, slow):
    """Nothing waits for names: numbers work at once, and so does a name in /etc/hosts."""
    wire = made(Wire())
    cluster = make_cluster(sets={"train.steps": 30})
    silent = {"resolv.conf": f"nameserver {NET}99\n", "hosts": f"127.0.0.1 localhost\n{NET}1 head\n"}
    with names_in(wire.names[0], silent), names_in(wire.names[1], silent):
        began = time.monotonic()
        port = start_server(cluster, wire.names[0], 10 * slow, "--insecure")
        start_worker(cluster, wire.names[0], "a", f"{NET}1:{port}", nnodes=2)
        start_worker(cluster, wire.names[1], "b", f"head:{port}", nnodes=2)
        cluster.wait_world(2, 20 * slow)
        took = time.monotonic() - began
        assert cluster.wait_done(60 * slow) == {"a": 0, "b": 0}, cluster.log_tails()
    assert took < 5 * slow  # the first question to a name server that does not answer takes 5 s
    assert {s["world_size"] for s in cluster.summaries()} == {2}


def test_a_silent_node_is_found_in_time(make_cluster, made, slow):
    """A node whose link is gone ends no connection: the lease finds it. It counts from its last message."""
    timeout_s = 3 * slow
    star = made(Star(3))
    cluster = make_cluster(sets={**ENDLESS, "cluster.timeout_s": timeout_s})
    port = start_server(cluster, star.names[0], 10 * slow, "--insecure", "--fresh")
    a = start_worker(cluster, star.names[1], "a", f"{NET}1:{port}")
    start_worker(cluster, star.names[2], "b", f"{NET}1:{port}")
    cluster.wait_world(2, 30 * slow)
    star.cut(3)
    cut = time.monotonic()
    cluster.server.wait_log(r"node b .*lost: silent for", LATEST * timeout_s + 1)
    assert time.monotonic() - cut < LATEST * timeout_s
    lost = wait_until("the next generation", lambda: [e for e in a.outputs.events() if e["kind"] == "node_lost"],
                      30 * slow, cluster.log_tails)[0]
    assert LEASE * timeout_s <= lost["detect_ms"] / 1000 <= LATEST * timeout_s, lost
    assert "peers reach it" not in lost["cause"] and lost["world_size"] == 1, lost
