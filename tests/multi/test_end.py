"""Ends: every program is gone soon after SIGTERM or SIGINT, whatever its state, and its exit code says why."""

import shutil
import signal
import time

import pytest

from cluster import proc_alive, wait_until

EXIT_S = 10
ECHO_S = 0.1  # DPT_LOOP_ECHO_MS


def end_in_time(process, number, slow):
    start = time.monotonic()
    process.signal(number)
    code = process.wait(EXIT_S * slow)
    assert time.monotonic() - start < EXIT_S * slow
    return code


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_server(make_cluster, slow, number):
    cluster = make_cluster()
    server = cluster.start_server()
    assert end_in_time(server, number, slow) == 0
    cluster.check_nothing_left()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_worker_without_server(make_cluster, slow, number):
    cluster = make_cluster()
    worker = cluster.start_worker("a", endpoint="127.0.0.1:1")
    worker.wait_log(r"waiting for a server at 127\.0\.0\.1:1 \(from --rdzv-endpoint; --rdzv-endpoint HOST:PORT changes",
                    20 * slow)
    assert end_in_time(worker, number, slow) == 0
    assert "left the run as asked" in worker.log()
    cluster.check_nothing_left()


def test_worker_waiting_for_nodes(make_cluster, slow):
    cluster = make_cluster()
    cluster.start_server()
    worker = cluster.start_worker("a", nnodes=2)
    worker.wait_log("waiting for nodes: 1 of 2", 20 * slow)
    worker.wait_ranks(1, 20 * slow)
    assert end_in_time(worker, signal.SIGTERM, slow) == 0
    assert not worker.rank_pids()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_all_workers_leave(make_cluster, slow, number):
    """Nobody waits for anybody."""
    cluster = make_cluster(sets={"train.steps": 100000})
    cluster.start_server()
    workers = [cluster.start_worker(n) for n in "ab"]
    cluster.wait_world(2, 30 * slow)
    ranks = [pid for w in workers for pid in w.rank_pids()]
    for worker in workers:
        worker.signal(number)
    for worker in workers:
        assert worker.wait(EXIT_S * slow) == 0
    wait_until("the ranks are gone", lambda: not any(proc_alive(p) for p in ranks), 5 * slow)
    cluster.server.term()
    cluster.server.wait(EXIT_S * slow)
    cluster.check_nothing_left()


def saved_step(worker):
    return max((int(p.name.rpartition("-")[2]) for p in worker.checkpoint_dir.glob("step-*")), default=0)


def gone_with_all_saved(cluster, workers, slow):
    """Nobody takes a step along."""
    for worker in workers:
        assert worker.wait(EXIT_S * slow) == 0, worker.log_tail()
        assert "NOT SAVED" not in worker.log()
    assert max(saved_step(w) for w in workers) == cluster.metrics()[-1]["step"]
    cluster.server.term()
    cluster.server.wait(EXIT_S * slow)
    cluster.check_nothing_left()


@pytest.mark.parametrize("sharding", ["", "full_shard"])
@pytest.mark.parametrize("nnodes", ["1:2", "2"])
def test_all_leave_one_after_another(make_cluster, slow, nnodes, sharding):
    """The second is told at a moment that the first one's leaving chooses: in a step, or while a world is formed that
    is not to be."""
    sets = {"train.steps": 100000, "checkpoint.every_steps": 0, "train.log_every": 1, "cluster.nnodes": nnodes}
    if sharding:
        sets.update({"strategy.name": "fsdp", "strategy.sharding": sharding})
    cluster = make_cluster(sets=sets, shared_dirs=True)
    cluster.start_server()
    a, b = (cluster.start_worker(n) for n in "ab")
    cluster.wait_world(2, 30 * slow)
    cluster.wait_step(3, 30 * slow)
    a.term()
    cluster.server.wait_log(r"node \w+ leaves", 10 * slow)
    b.term()
    gone_with_all_saved(cluster, [a, b], slow)


def test_who_waits_for_another_saves(make_cluster, slow):
    """Its peer's machine died, and it cannot go on alone."""
    cluster = make_cluster(sets={"train.steps": 100000, "checkpoint.every_steps": 0, "train.log_every": 1,
                                 "cluster.nnodes": "2"}, shared_dirs=True)
    cluster.start_server()
    a, b = (cluster.start_worker(n) for n in "ab")
    cluster.wait_step(3, 30 * slow)
    a.kill_machine()
    cluster.server.wait_log("waiting for more, state is kept", 20 * slow)
    b.term()
    gone_with_all_saved(cluster, [b], slow)


def test_two_signals_at_once_are_one(make_cluster, slow):
    """As timeout(1) sends them, to the process and to its group: the node drains and saves."""
    cluster = make_cluster(sets={"train.steps": 100000, "checkpoint.every_steps": 0})
    cluster.start_server()
    worker = cluster.start_worker("a")
    cluster.wait_step(3, 30 * slow)
    worker.signal(signal.SIGSTOP)
    worker.signal(signal.SIGTERM)
    worker.signal(signal.SIGINT)
    worker.signal(signal.SIGCONT)
    assert worker.wait(EXIT_S * slow) == 0, worker.log_tail()
    assert len(list(worker.checkpoint_dir.glob("step-*"))) == 1
    cluster.server.term()
    cluster.server.wait(EXIT_S * slow)
    cluster.check_nothing_left()


def test_second_signal_means_now(make_cluster, slow):
    """A node that cannot drain (its peer stands still) leaves at once at the second signal."""
    cluster = make_cluster(sets={"train.steps": 100000, "cluster.timeout_s": 20})
    cluster.start_server()
    a, b = (cluster.start_worker(n, nnodes=2) for n in "ab")
    cluster.wait_world(2, 40 * slow)
    stopped = b.freeze()
    a.term()
    wait_until("the first signal is taken", lambda: "leav" in a.log(), 5 * slow, a.log_tail)
    taken = time.monotonic()
    wait_until("a second one is no echo of it", lambda: time.monotonic() > taken + ECHO_S, 5)
    start = time.monotonic()
    a.term()
    a.wait(EXIT_S * slow)
    assert time.monotonic() - start < 5 * slow
    b.thaw(stopped)


def test_leave_while_the_peer_stands_still(make_cluster, slow):
    """What cannot drain goes all the same, within the deadline."""
    cluster = make_cluster(sets={"train.steps": 100000, "cluster.timeout_s": 30})
    cluster.start_server()
    a, b = (cluster.start_worker(n, nnodes=2) for n in "ab")
    cluster.wait_world(2, 40 * slow)
    b.freeze()
    end_in_time(a, signal.SIGTERM, slow)
    assert not a.rank_pids()


def test_last_node_saves_what_it_has(make_cluster, slow):
    """And its server is in the same process."""
    cluster = make_cluster(sets={"train.steps": 100000, "checkpoint.every_steps": 100000})
    worker = cluster.start_worker("a", nnodes=1, endpoint=False)
    cluster.wait_step(3, 30 * slow)
    assert end_in_time(worker, signal.SIGTERM, slow) == 0
    assert list(worker.checkpoint_dir.glob("step-*")), worker.log_tail()
    cluster.check_nothing_left()


def test_stopped_server_is_worked_around(make_cluster, slow):
    """A server that stands still and continues: nobody is expelled for its own sleep."""
    cluster = make_cluster(sets={"train.steps": 400})
    server = cluster.start_server()
    a, b = (cluster.start_worker(n, nnodes=2) for n in "ab")
    cluster.wait_world(2, 30 * slow)
    server.signal(signal.SIGSTOP)
    a.wait_log(r"the server at .* is gone", 10 * slow)
    server.signal(signal.SIGCONT)
    assert cluster.wait_done(90 * slow) == {"a": 0, "b": 0}
    assert "expelled" not in a.log() + b.log()
    assert {s["generations"] for s in cluster.summaries()} == {1}


def test_failed_checkpoint_is_told_at_once(make_cluster, slow):
    """Not when the next one is due, which may be hours later."""
    cluster = make_cluster(sets={"train.steps": 100000, "checkpoint.every_steps": 500})
    cluster.start_server()
    worker = cluster.start_worker("a")
    cluster.wait_step(3, 30 * slow)
    shutil.rmtree(worker.checkpoint_dir)
    worker.checkpoint_dir.write_text("no folder")
    told = worker.wait_log(r"step=(\d+): a checkpoint was not written: checkpoint of step (\d+) ", 60 * slow)
    assert int(told[2]) == 500 and int(told[1]) < 900


def test_end_waits_for_a_server(make_cluster, slow):
    """Without one nobody may commit the last checkpoint: the worker says what it waits for, and ends with the next."""
    cluster = make_cluster(sets={"train.steps": 600, "checkpoint.every_steps": 0, "cluster.timeout_s": 5})
    cluster.start_server()
    worker = cluster.start_worker("a")
    cluster.wait_step(20, 30 * slow)
    cluster.server.kill()
    worker.wait_log(rf"need the server at {cluster.endpoint()}, which is gone: start dpt-rdzv there", 60 * slow)
    assert cluster.step() == 600
    assert not list(worker.checkpoint_dir.glob("step-*"))
    cluster.restart_server()
    assert worker.wait(60 * slow) == 0, worker.log_tail()
    assert [p.name for p in worker.checkpoint_dir.glob("step-*")] == ["step-00000600"]
