"""Two hosts, simulated by two network namespaces with a wire between them. Needs root and ip(8), else skipped."""

import re
import time

import pytest

from cluster import knows_option, wait_until
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
    """The worker on the server's host connects to 127.0.0.1 and gives its peers an address that they can reach."""
    sets = {"train.steps": 60}
    calm = make_cluster("calm", sets=sets)
    assert calm.start_worker("calm", nnodes=1, endpoint=False).wait(60 * slow) == 0
    cluster = make_cluster(sets=sets)
    port = start_server(cluster, hosts[0], 10 * slow)
    assert "with keys" in cluster.server.log()
    start_worker(cluster, hosts[0], "a", f"127.0.0.1:{port}", nnodes=2)
    start_worker(cluster, hosts[1], "b", f"{NET}1:{port}", nnodes=2)
    assert cluster.wait_done(60 * slow) == {"a": 0, "b": 0}
    assert {s["weights_hash"] for s in cluster.summaries()} == {calm.summaries()[0]["weights_hash"]}
    assert {s["world_size"] for s in cluster.summaries()} == {2}


def test_wire_is_cut(make_cluster, hosts, slow):
    """A cut wire ends no connection, so the lease finds it. The node beside the server continues; the other rejoins
    when the wire is back."""
    cluster = make_cluster(sets={"train.steps": 100000})
    port = start_server(cluster, hosts[0], 10 * slow)
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


def test_two_worlds_write_one_log_in_turn(make_cluster, hosts, slow):
    """A node that trains alone is cut off and trains on, and the server continues with another node. Both have the same
    log: once the newer world writes there, the older one does not."""
    cluster = make_cluster(sets={"train.steps": 100000, "train.log_every": 1, "checkpoint.every_steps": 0,
                                 "cluster.nnodes": "1:2", "cluster.timeout_s": 2 * slow}, shared_dirs=True)
    port = start_server(cluster, hosts[0], 10 * slow)
    b = start_worker(cluster, hosts[1], "b", f"{NET}1:{port}")
    cluster.wait_step(20, 60 * slow)
    wire = ip("-n", hosts[1], "-o", "link", "show", "type", "veth").stdout.split(":")[1].split("@")[0].strip()
    assert ip("-n", hosts[1], "link", "set", wire, "down").returncode == 0
    a = start_worker(cluster, hosts[0], "a", f"127.0.0.1:{port}")
    last = b.outputs.metrics()[-1]["step"]

    def generations():
        return [line["generation"] for line in a.outputs.metrics()]
    wait_until("the newer world writes", lambda: generations()[-1] > generations()[0], 60 * slow, cluster.log_tails)
    wait_until("the older one trains on beside it",
               lambda: max([int(s) for s in re.findall(r"^step (\d+)/", b.log(), re.M)], default=0) > last + 20,
               60 * slow, cluster.log_tails)
    newer = len(generations())
    wait_until("the newer one writes more", lambda: len(generations()) > newer + 20, 60 * slow, cluster.log_tails)
    seen = generations()
    assert seen == sorted(seen)
    assert ip("-n", hosts[1], "link", "set", wire, "up").returncode == 0
    ip("-n", hosts[1], "route", "add", "default", "dev", wire)
    b.wait_log("discarding the state here", 60 * slow)
    cluster.wait_world(2, 60 * slow)
    seen = generations()
    assert seen == sorted(seen)
    steps = [(line["generation"], line["step"]) for line in a.outputs.metrics()]
    assert len(steps) == len(set(steps))


def test_server_is_cut_off_from_two_runs(make_cluster, hosts, slow):
    """The server is cut off from two runs for longer than a lease of the run with the shorter timeout. It hears no node
    and expels none, and both runs train on in their generations."""
    timeouts_s = {"short": 2 * slow, "long": 60}
    port, runs = None, {}
    for name, timeout_s in timeouts_s.items():
        runs[name] = cluster = make_cluster(name, sets={"train.steps": 100000, "cluster.timeout_s": timeout_s,
                                                        "train.log_every": 1, "checkpoint.every_steps": 0})
        if port is None:
            port = start_server(cluster, hosts[0], 10 * slow, *(["--fresh"] if knows_option("--fresh") else []))
        for node in "ab":
            start_worker(cluster, hosts[1], node, f"{NET}1:{port}", nnodes=2, args=["--rdzv-id", name])
    for cluster in runs.values():
        cluster.wait_step(3, 30 * slow)
    wire = ip("-n", hosts[1], "-o", "link", "show", "type", "veth").stdout.split(":")[1].split("@")[0].strip()
    assert ip("-n", hosts[1], "link", "set", wire, "down").returncode == 0
    cut = time.monotonic()
    wait_until("more than a lease has passed", lambda: time.monotonic() > cut + timeouts_s["short"], 60 * slow)
    steps = {name: cluster.step() for name, cluster in runs.items()}
    assert ip("-n", hosts[1], "link", "set", wire, "up").returncode == 0
    ip("-n", hosts[1], "route", "add", "default", "dev", wire)
    for name, cluster in runs.items():  # lines of the log waited for the server
        cluster.wait_step(steps[name] + 30, 60 * slow)
    server = runs["short"].server
    assert not re.search(r" lost: |expelled|forming generation [2-9]", server.log()), server.log_tail()
    for name, cluster in runs.items():
        assert {line["generation"] for line in cluster.metrics()} == {1}, name
        for worker in cluster.workers:
            assert "expelled" not in worker.log(), worker.log_tail()
            worker.term()
        assert set(cluster.wait_done(20 * slow).values()) == {0}, cluster.log_tails()


def test_server_on_loopback_is_not_reached_from_elsewhere(make_cluster, hosts, slow):
    cluster = make_cluster(sets={"cluster.timeout_s": 0.3})
    port = start_server(cluster, hosts[0], 10 * slow, "--bind", "127.0.0.1")
    worker = start_worker(cluster, hosts[1], "b", f"{NET}1:{port}")
    assert worker.wait(30 * slow) == 3
    assert f"{NET}1:{port}" in worker.log()
