"""Two hosts, played by two network namespaces with a wire between them. Needs root and ip(8), else skipped."""

import os
import shutil
import subprocess
import uuid

import pytest

from cluster import Process, Worker, program, wait_until

NET = "192.0.2."  # TEST-NET-1: nobody's


def ip(*args):
    return subprocess.run(["ip", *args], capture_output=True, text=True)


@pytest.fixture
def hosts():
    """Names of two namespaces, at NET.1 and NET.2."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("needs root and ip(8)")
    mark = uuid.uuid4().hex[:6]
    names = [f"dpt-{mark}-{i}" for i in (1, 2)]
    try:
        for name in names:
            done = ip("netns", "add", name)
            if done.returncode != 0:
                pytest.skip(f"no network namespaces here: {done.stderr.strip()}")
        wires = [f"dpt{mark}{i}" for i in (1, 2)]
        done = ip("link", "add", wires[0], "type", "veth", "peer", "name", wires[1])
        if done.returncode != 0:
            pytest.skip(f"no wires between namespaces here: {done.stderr.strip()}")
        for i, (name, wire) in enumerate(zip(names, wires), start=1):
            for args in (["link", "set", wire, "netns", name], ["-n", name, "addr", "add", f"{NET}{i}/24", "dev", wire],
                         ["-n", name, "link", "set", wire, "up"], ["-n", name, "link", "set", "lo", "up"],
                         ["-n", name, "route", "add", "default", "dev", wire]):
                done = ip(*args)
                assert done.returncode == 0, (args, done.stderr)
        yield names
    finally:
        for name in names:
            ip("netns", "del", name)


def start_worker(cluster, host, node, endpoint, **options):
    argv = ["ip", "netns", "exec", host] + cluster.worker_argv(node, endpoint=endpoint, **options)
    log_dir, checkpoint_dir = cluster.dirs(node)
    worker = Worker(node, argv, cluster.root / f"worker-{node}.log", log_dir, checkpoint_dir, cluster.env)
    cluster.workers.append(worker)
    return worker


def start_server(cluster, host, slow, *args):
    port_file = cluster.root / "port"
    cluster.server = Process("dpt-rdzv", ["ip", "netns", "exec", host, program("dpt-rdzv"), "--port", 0, "--port-file",
                                          port_file, *args], cluster.root / "rdzv.log", cluster.env)
    text = wait_until("the server listens", lambda: port_file.exists() and port_file.read_text(), 10 * slow,
                      cluster.server.log_tail)
    return int(text)


def test_worker_beside_the_server_and_one_elsewhere(make_cluster, hosts, slow):
    """The worker on the head node reaches the server at 127.0.0.1, and yet gives its peers an address that they can
    reach."""
    sets = {"train.steps": 60}
    calm = make_cluster("calm", sets=sets)
    assert calm.start_worker("calm", nnodes=1, endpoint=False).wait(60 * slow) == 0
    cluster = make_cluster(sets=sets)
    port = start_server(cluster, hosts[0], slow, "--insecure")
    assert "without keys" in cluster.server.log()
    start_worker(cluster, hosts[0], "a", f"127.0.0.1:{port}", nnodes=2)
    start_worker(cluster, hosts[1], "b", f"{NET}1:{port}", nnodes=2)
    assert cluster.wait_done(60 * slow) == {"a": 0, "b": 0}
    assert {s["weights_hash"] for s in cluster.summaries()} == {calm.summaries()[0]["weights_hash"]}
    assert {s["world_size"] for s in cluster.summaries()} == {2}


def test_wire_is_cut(make_cluster, hosts, slow):
    """No packet says so: the lease does. The node beside the server goes on; the other comes back with the wire."""
    cluster = make_cluster(sets={"train.steps": 100000})
    port = start_server(cluster, hosts[0], slow, "--insecure")
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
    port = start_server(cluster, hosts[0], slow)
    worker = start_worker(cluster, hosts[1], "b", f"{NET}1:{port}")
    assert worker.wait(30 * slow) == 3
    assert f"{NET}1:{port}" in worker.log()
