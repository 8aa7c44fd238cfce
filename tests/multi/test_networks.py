"""Networks other than the one on which all was written: IPv6 only, no name server, a machine that is cut off. Hosts are
network namespaces; needs root and ip(8), else skipped."""

import time
from pathlib import Path

import pytest

from netns import NET, NET6, Star, Unavailable, Wire, Wire6, names_in, start_server, start_worker
from network_stories import GONE, LATEST, LEASE, settings, silent_node, slow_links, translator_forgets


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
    port = start_server(cluster, wire.names[0], 10 * slow)
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
        port = start_server(cluster, wire.names[0], 10 * slow)
        start_worker(cluster, wire.names[0], "a", f"{NET}1:{port}", nnodes=2)
        start_worker(cluster, wire.names[1], "b", f"head:{port}", nnodes=2)
        cluster.wait_world(2, 20 * slow)
        took = time.monotonic() - began
        assert cluster.wait_done(60 * slow) == {"a": 0, "b": 0}, cluster.log_tails()
    assert took < 5 * slow  # the first question to a name server that does not answer takes 5 s
    assert {s["world_size"] for s in cluster.summaries()} == {2}


def test_the_head_gets_another_address(make_cluster, made, slow):
    """A worker that was given the head's name looks it up again at each try, and finds a server that is started again
    at another address."""
    host = made(Wire()).names[0]
    cluster = make_cluster(sets=settings(2 * slow))
    hosts = "127.0.0.1 localhost\n{} head\n"
    with names_in(host, {"hosts": hosts.format("127.0.0.1")}):
        port = start_server(cluster, host, 10 * slow, "--bind", "127.0.0.1", "--fresh")
        worker = start_worker(cluster, host, "a", f"head:{port}")
        cluster.wait_step(3, 30 * slow)
        cluster.server.kill()
        worker.wait_log(GONE, 20 * slow)
        (Path("/etc/netns") / host / "hosts").write_text(hosts.format("127.0.0.2"))
        start_server(cluster, host, 10 * slow, "--bind", "127.0.0.2", "--port", port)
        worker.wait_log(r"the server at \S+ is back", 30 * slow)


def test_a_silent_node_is_found_in_time(make_cluster, made, slow):
    """A node whose link is gone ends no connection: the lease finds it. It counts from its last message."""
    timeout_s = 3 * slow
    found_s = silent_node(make_cluster(sets=settings(timeout_s)), made(Star(3)), slow)
    assert LEASE * timeout_s <= found_s <= LATEST * timeout_s


def test_a_translator_forgets_its_connections(make_cluster, made, slow):
    translator_forgets(make_cluster(sets=settings(4 * slow)), made(Star(3)), slow)


def test_slow_links(make_cluster, made, slow):
    slow_links(make_cluster(sets=settings(3 * slow)), made(Star(3)), slow)
