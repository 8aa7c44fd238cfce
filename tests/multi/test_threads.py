"""`cluster.threads: auto`: the ranks of a host divide its cores, also ranks of several nodes."""

import os
import re

import pytest

from calm import calm_hash
from cluster import Worker, wait_until

FEW_STEPS = 20  # as many as a hash needs


def told(worker, rank=0):
    """[(threads, cores, ranks that share them)] in the rank's log, one entry for each change."""
    path = worker.outputs.dir / f"node-{worker.node}" / f"rank-{rank}.log"
    text = path.read_text() if path.exists() else ""
    return [tuple(map(int, found)) for found in
            re.findall(r"computes with (\d+) threads?: (\d+) cores? for (\d+) ranks? of this host", text)]


def wait_told(worker, expected, timeout):
    """Waits for the log line, which the agent writes a moment after the step."""
    wait_until(f"{worker.name} tells {expected}", lambda: told(worker) == expected, timeout, worker.log_tail)


def hash_of_one_thread(make_cluster, slow):
    """The weights hash of the same run on one rank with one thread."""
    cluster = make_cluster("calm", sets={"train.steps": FEW_STEPS})
    assert cluster.start_worker("calm", nnodes=1, endpoint=False).wait(120 * slow) == 0
    return cluster.summaries()[0]["weights_hash"]


def hashes(cluster):
    return {s["weights_hash"] for s in cluster.summaries()}


def test_a_second_node_of_the_host_takes_half(make_cluster, tmp_path, slow):
    """A lone node has all cores. It shares them when another node of the host joins, and has all again when that node
    leaves."""
    cluster = make_cluster(sets={"train.steps": 100000, "checkpoint.every_steps": 0}, threads="auto")
    cluster.start_server()
    a = cluster.start_worker("a", nnodes="1:2")
    cluster.wait_step(2, 30 * slow)
    wait_until("a tells its threads", lambda: told(a), 5 * slow, a.log_tail)
    cores = told(a)[0][0]
    assert told(a) == [(cores, cores, 1)]
    b = cluster.start_worker("b", nnodes="1:2")
    cluster.wait_world(2, 30 * slow)
    shares = [max(1, cores - cores // 2), max(1, cores // 2)]
    wait_told(b, [(shares[1], cores, 2)], 5 * slow)
    grown = [(cores, cores, 1)] + ([(shares[0], cores, 2)] if shares[0] != cores else [])
    wait_told(a, grown, 5 * slow)
    b.term()
    assert b.wait(30 * slow) == 0
    cluster.wait_world(1, 30 * slow)
    wait_told(a, grown + ([(cores, cores, 1)] if shares[0] != cores else []), 5 * slow)
    a.term()
    assert a.wait(30 * slow) == 0
    step, found = cluster.newest_checkpoint()
    assert step == cluster.step() and found == calm_hash(tmp_path / "calm", cluster.sets, step, 120 * slow)


def test_nodes_with_cores_of_their_own_keep_them(make_cluster, slow):
    """Two nodes of one host that were started on different cores keep their cores."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("one core")
    cluster = make_cluster(sets={"train.steps": FEW_STEPS}, threads="auto")
    cluster.start_server()
    for node, core in zip("ab", cores):
        argv = ["taskset", "-c", core] + cluster.worker_argv(node, nnodes=2)
        log_dir, checkpoint_dir = cluster.dirs(node)
        cluster.workers.append(Worker(node, argv, cluster.root / f"worker-{node}.log", log_dir, checkpoint_dir,
                                      cluster.env))
    assert cluster.wait_done(120 * slow) == {"a": 0, "b": 0}
    for worker in cluster.workers:
        assert told(worker) == [(1, 1, 1)]
    assert hashes(cluster) == {hash_of_one_thread(make_cluster, slow)}


def test_a_count_of_its_own_stays(make_cluster, slow):
    """`cluster.threads: 3` means three threads for any number of ranks and cores."""
    cluster = make_cluster(sets={"train.steps": FEW_STEPS}, threads=3)
    cluster.start_server()
    workers = [cluster.start_worker(node, nnodes=2) for node in "ab"]
    assert cluster.wait_done(240 * slow) == {"a": 0, "b": 0}
    for worker in workers:
        log = (worker.outputs.dir / f"node-{worker.node}" / "rank-0.log").read_text()
        assert log.count("computes with") == 1 and "computes with 3 threads (cluster.threads)" in log
    assert hashes(cluster) == {hash_of_one_thread(make_cluster, slow)}
