"""Two hosts, played by two network namespaces with a wire between them. Needs root and ip(8), else skipped."""

import pytest

from netns import NET, Unavailable, Wire, ip, start_server, start_worker


@pytest.fixture
def hosts():
    """Names of two namespaces, at NET1 and NET2."""
    try:
        with Wire() as wire:
            yield wire.names
    except Unavailable as reason:
        pytest.skip(str(reason))


def test_worker_beside_the_server_and_one_elsewhere(make_cluster, hosts, slow):
    """The worker on the head node reaches the server at 127.0.0.1, and yet gives its peers an address that they can
    reach."""
    sets = {"train.steps": 60}
    calm = make_cluster("calm", sets=sets)
    assert calm.start_worker("calm", nnodes=1, endpoint=False).wait(60 * slow) == 0
    cluster = make_cluster(sets=sets)
    port = start_server(cluster, hosts[0], 10 * slow, "--insecure")
    assert "without keys" in cluster.server.log()
    start_worker(cluster, hosts[0], "a", f"127.0.0.1:{port}", nnodes=2)
    start_worker(cluster, hosts[1], "b", f"{NET}1:{port}", nnodes=2)
    assert cluster.wait_done(60 * slow) == {"a": 0, "b": 0}
    assert {s["weights_hash"] for s in cluster.summaries()} == {calm.summaries()[0]["weights_hash"]}
    assert {s["world_size"] for s in cluster.summaries()} == {2}


def test_wire_is_cut(make_cluster, hosts, slow):
    """No packet says so: the lease does. The node beside the server goes on; the other comes back with the wire."""
    cluster = make_cluster(sets={"train.steps": 100000})
    port = start_server(cluster, hosts[0], 10 * slow, "--insecure")
    start_worker(cluster, hosts[0], "a", f"127.0.0.1:{port}")
    b = start_worker(cluster, hosts[1], "b", f"{NET}1:{port}")
    cluster.wait_world(2, 30 * slow)
    wire = ip("-n", hosts[1], "-o", "link", "show", "type", "veth").stdout.split(":")[1].split("@")[0].strip()
    assert ip("-n", hosts[1], "link", "set", wire, "down").returncode == 0
    cluster.wait_world(1, 15 * slow)
    before = b.outputs.step()
    assert ip("-n", hosts[1], "link", "set", wire, "up").returncode == 0
    ip("-n", hosts[1], "route", "add", "default", "dev", wire)
    cluster.wait_world(2, 30 * slow)
    assert b.outputs.step() >= before
    for worker in cluster.workers:
        worker.term()
    assert cluster.wait_done(15 * slow) == {"a": 0, "b": 0}


def test_server_on_loopback_is_not_reached_from_elsewhere(make_cluster, hosts, slow):
    cluster = make_cluster(sets={"cluster.timeout_s": 0.3})
    port = start_server(cluster, hosts[0], 10 * slow)
    worker = start_worker(cluster, hosts[1], "b", f"{NET}1:{port}")
    assert worker.wait(30 * slow) == 3
    assert f"{NET}1:{port}" in worker.log()
