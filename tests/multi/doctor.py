"""dpt-doctor in tests: its exit code and its JSON."""

import json
import os
import signal
import subprocess

from cluster import program, wait_until
from processes import proc_state


def doctor(*args, host=None, timeout=60):
    """(exit code, result as JSON). `host`: the namespace in which it runs."""
    inside = ["ip", "netns", "exec", host] if host else []
    argv = [*inside, program("dpt-doctor"), *map(str, args), "--json", "-"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout)
    assert done.stdout, done
    return done.returncode, json.loads(done.stdout)


def texts(result, subject):
    return [line["text"] for line in result["findings"] if line["subject"] == subject]


def rank_of(result, node):
    return next(rank for rank in result["ranks"] if rank["node"] == node)


def stop_a_rank(make_cluster, slow, keys):
    """A rank process is stopped. While its agent still waits for it, the doctor names the rank, and the collective in
    which the others wait. Before that, the run advances, and afterwards, too."""
    timeout = 40 * slow
    cluster = make_cluster(sets={"train.steps": 1000000, "cluster.timeout_s": timeout, "checkpoint.every_steps": 0,
                                 "train.log_every": 1, **keys}, shared_dirs=True)
    cluster.start_server()
    workers = {name: cluster.start_worker(name, nnodes=3) for name in ("a", "b", "c")}
    cluster.wait_world(3, 60 * slow)
    cluster.wait_step(cluster.step() + 5, 60 * slow)
    code, result = doctor("hang", "--server", cluster.endpoint(), "--seconds", 1, timeout=60 * slow)
    assert code == 0 and result["verdict"] == "advances" and result["steps_made"] > 0, result
    assert result["world_size"] == 3 and len(result["ranks"]) == 3

    pid = workers["b"].rank_pids()[0]
    os.kill(pid, signal.SIGSTOP)
    wait_until("the rank is stopped", lambda: proc_state(pid) == "T", 10 * slow)
    code, result = doctor("hang", "--server", cluster.endpoint(), "--seconds", round(3 * slow), timeout=120 * slow)
    assert code == 1 and result["hangs"] and result["verdict"] == "process silent", result
    stopped = rank_of(result, "b")
    assert result["behind"] == [stopped["rank"]], result
    assert [text for text in texts(result, "behind") if text.startswith(f"rank {stopped['rank']} (node b,")], result
    # The others wait in one collective, whose unit or bucket is told; or for the step's losses.
    assert [text for text in texts(result, "waiting") if text.startswith("2 ranks wait;")], result
    for node in "ac":
        rank = rank_of(result, node)
        where = rank["main"] + "; " + rank["communication"]
        assert any(word in where for word in ("all-reduce", "all-gather", "reduce-scatter", "sums")), rank
        assert rank["heard_ms_ago"] < stopped["heard_ms_ago"], result

    # The same process goes on, and so does the run: watching has changed nothing.
    os.kill(pid, signal.SIGCONT)
    cluster.wait_step(cluster.step() + 5, 60 * slow)
    assert workers["b"].rank_pids() == [pid]
