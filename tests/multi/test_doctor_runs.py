"""dpt-doctor beside runs: a stopped rank of a sharded run, a stopped machine, and runs that are not there."""

import subprocess

from cluster import program, wait_until
from doctor import doctor, rank_of, stop_a_rank


def test_stopped_rank_of_a_sharded_run_is_named(make_cluster, slow):
    stop_a_rank(make_cluster, slow, {"strategy.name": "fsdp", "strategy.sharding": "full_shard"})


def test_stopped_rank_of_a_ring_is_named(make_cluster, slow):
    stop_a_rank(make_cluster, slow, {"train.reduction": "ring"})


def test_stopped_machine_is_a_silent_node(make_cluster, slow):
    """Agent and rank are stopped together: the node is named, not the process. The run is found without its name."""
    cluster = make_cluster(sets={"train.steps": 1000000, "cluster.timeout_s": 40 * slow, "checkpoint.every_steps": 0},
                           shared_dirs=True)
    cluster.start_server()
    workers = {name: cluster.start_worker(name, nnodes=2) for name in ("a", "b")}
    cluster.wait_world(2, 60 * slow)
    stopped = workers["b"].freeze()
    try:
        code, result = doctor("hang", "--server", cluster.endpoint(), "--seconds", round(4 * slow), timeout=120 * slow)
    finally:
        workers["b"].thaw(stopped)
    assert code == 1 and result["verdict"] == "node silent", result
    assert result["behind"] == [rank_of(result, "b")["rank"]], result


def test_runs_that_are_not_there(make_cluster, slow):
    """A server without a run, and a wrong name on a server with two runs, which the message lists."""
    cluster = make_cluster(sets={"train.steps": 1000000})
    cluster.start_server()
    ask = [program("dpt-doctor"), "hang", "--server", cluster.endpoint(), "--seconds", "0"]
    done = subprocess.run(ask, capture_output=True, text=True, timeout=60 * slow)
    assert done.returncode == 1 and "no run '-' is here; the server has no run" in done.stderr, done
    for name in ("one", "two"):
        cluster.start_worker(name, nnodes=1, sets={"run": name})
    cluster.wait_step(1, 60 * slow)

    def lists_both():
        done = subprocess.run([*ask, "--run", "three"], capture_output=True, text=True, timeout=60 * slow)
        assert done.returncode == 1 and "no run 'three' is here" in done.stderr, done
        return "one" in done.stderr and "two" in done.stderr
    wait_until("both runs are listed", lists_both, 60 * slow)
    code, result = doctor("hang", "--server", cluster.endpoint(), "--seconds", 0, "--run", "two", timeout=60 * slow)
    assert code == 0 and result["run"] == "two", result
