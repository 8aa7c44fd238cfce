"""Ends: after a signal that ends it, every program exits soon, in every state, and its exit code has the result."""

import os
import re
import shutil
import signal
import time

import pytest

from calm import last_step_without_server
from cluster import Outputs, Process, Worker, program, wait_until
from processes import proc_alive

EXIT_S = 10
DRAIN_S = 8  # cluster.drain_s where it is not given
ECHO_S = 0.1  # DPT_LOOP_ECHO_MS
ENDS = [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP]


def end_in_time(process, number, slow):
    start = time.monotonic()
    process.signal(number)
    code = process.wait(EXIT_S * slow)
    assert time.monotonic() - start < EXIT_S * slow
    return code


@pytest.mark.parametrize("number", ENDS)
def test_server(make_cluster, slow, number):
    cluster = make_cluster()
    server = cluster.start_server()
    assert end_in_time(server, number, slow) == 0
    cluster.check_nothing_left()


@pytest.mark.parametrize("number", ENDS)
def test_worker_without_server(make_cluster, slow, number):
    cluster = make_cluster()
    worker = cluster.start_worker("a", endpoint="127.0.0.1:1")
    worker.wait_log(r"waiting for a server at 127\.0\.0\.1:1 \(from --rdzv-endpoint; --rdzv-endpoint HOST:PORT changes",
                    20 * slow)
    assert end_in_time(worker, number, slow) == 0
    assert "left the run as asked" in worker.log()
    cluster.check_nothing_left()


def test_workers_that_read_their_data(make_cluster, tmp_path, slow):
    """A worker that brings the run, and a worker that joins it, end while they still read data.train."""
    cluster = make_cluster()
    cluster.start_server()
    data = tmp_path / "large.txt"
    with open(data, "wb") as file:
        file.truncate(64 << 30)  # a hole: takes no room, and longer to read than anybody waits here
    first = cluster.start_worker("first", nnodes=2)
    first.wait_log("waiting for nodes: 1 of 2", 20 * slow)
    sets = {"data.train": data}
    for worker in (cluster.start_worker("a", nnodes=1, endpoint=False, sets=sets),
                   cluster.start_worker("b", config=False, args=["--rdzv-id", "tiny"], sets=sets)):
        worker.wait_log("data.train: reading 68.7 GB once", 20 * slow)
        assert end_in_time(worker, signal.SIGTERM, slow) == 0
        assert worker.log().endswith("left as asked while it was starting: nothing was trained\n")
    assert end_in_time(first, signal.SIGTERM, slow) == 0


def test_worker_waiting_for_nodes(make_cluster, slow):
    cluster = make_cluster()
    cluster.start_server()
    worker = cluster.start_worker("a", nnodes=2)
    worker.wait_log("waiting for nodes: 1 of 2", 20 * slow)
    worker.wait_ranks(1, 20 * slow)
    assert end_in_time(worker, signal.SIGTERM, slow) == 0
    assert not worker.rank_pids()


@pytest.mark.parametrize("number", ENDS)
def test_all_workers_leave(make_cluster, slow, number):
    """All workers are told to leave at once: none waits for another."""
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


def test_nohup(make_cluster, slow):
    """A closed terminal does not end a server or a worker that was started with nohup."""
    cluster = make_cluster(sets={"train.steps": 100000, "checkpoint.every_steps": 0})
    port, log, checkpoints = cluster.root / "port", *cluster.dirs("a")
    server = Process("server", ["nohup", program("dpt-rdzv"), "--port", "0", "--port-file", port],
                     cluster.root / "nohup-server.log", cluster.env)
    cluster.port = int(wait_until("the server listens", lambda: port.exists() and port.read_text(), 20 * slow,
                                  server.log_tail))
    worker = Process("worker", ["nohup", *cluster.worker_argv("a", nnodes=1)], cluster.root / "nohup-worker.log",
                     cluster.env)
    outputs = Outputs(log)
    wait_until("steps are made", lambda: outputs.step() >= 3, 30 * slow, worker.log_tail)
    server.signal(signal.SIGHUP)
    worker.signal(signal.SIGHUP)
    more = outputs.step() + 100
    wait_until("steps are made still", lambda: outputs.step() >= more, 60 * slow, worker.log_tail)
    assert end_in_time(worker, signal.SIGTERM, slow) == 0
    assert list(checkpoints.glob("step-*")), worker.log_tail()  # with the server's grant
    assert end_in_time(server, signal.SIGTERM, slow) == 0


def saved_step(worker):
    return max((int(p.name.rpartition("-")[2]) for p in worker.checkpoint_dir.glob("step-*")), default=0)


def gone_with_all_saved(cluster, workers, slow):
    """Waits until the workers have ended, and checks that every step is saved."""
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
    """The second node is told to leave while the first one leaves: during a step, or during a formation that must be
    given up."""
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
    """A node that waits for a second node, after its peer's machine died, saves its steps when it is told to end."""
    cluster = make_cluster(sets={"train.steps": 100000, "checkpoint.every_steps": 0, "train.log_every": 1,
                                 "cluster.nnodes": "2"}, shared_dirs=True)
    cluster.start_server()
    a, b = (cluster.start_worker(n) for n in "ab")
    cluster.wait_step(3, 30 * slow)
    a.kill_machine()
    cluster.server.wait_log("waiting for more, state is kept", 20 * slow)
    b.term()
    gone_with_all_saved(cluster, [b], slow)


def left_with_a_loss(worker, slow, how):
    """Returns (newest saved step, newest step) after a node has ended with steps that are not saved; checks the
    messages."""
    assert worker.wait(EXIT_S * slow) == 75, worker.log_tail()
    said, = re.findall(r"NOT SAVED: the last (\d+) steps \(after step (\d+), up to (\d+)\) died with rank processes "
                       r"here; the run will compute them again$", worker.log(), re.M)
    number, saved, newest = map(int, said)
    assert number == newest - saved and saved == saved_step(worker)
    assert f"rank process 0 (spawn 1) {how}; the steps after {saved}, up to {newest}, are lost with it" in worker.log()
    assert worker.log().splitlines()[-1] == f"dpt-worker: left the run, but its last {number} steps are not saved"
    return saved, newest


def test_who_waits_for_another_loses_its_rank(make_cluster, slow):
    """A node waits for a second node, after its peer's machine died; then its rank dies, the only process with the
    steps."""
    cluster = make_cluster(sets={"train.steps": 100000, "checkpoint.every_steps": 0, "train.log_every": 1,
                                 "cluster.nnodes": "2"}, shared_dirs=True)
    cluster.start_server()
    a, b = (cluster.start_worker(n) for n in "ab")
    cluster.wait_step(3, 30 * slow)
    a.kill_machine()
    cluster.server.wait_log("waiting for more, state is kept", 20 * slow)
    rank, = b.rank_pids()
    os.kill(rank, signal.SIGKILL)
    b.wait_log("are lost with it; starting it again", 10 * slow)
    b.term()
    saved, newest = left_with_a_loss(b, slow, "was killed by signal 9")
    assert saved == 0 and newest >= 3


def test_frozen_rank_of_a_node_that_leaves(make_cluster, slow):
    """A node leaves while its rank is stopped: after a lease the agent kills the rank and reports the steps that are
    lost with it."""
    cluster = make_cluster(sets={"train.steps": 100000, "checkpoint.every_steps": 20, "train.log_every": 1,
                                 "cluster.timeout_s": 2 * slow})
    cluster.start_server()
    worker = cluster.start_worker("a", nnodes=1)
    wait_until("a checkpoint", lambda: saved_step(worker) > 0, 30 * slow, worker.log_tail)
    at = cluster.step()
    wait_until("a step that no checkpoint has", lambda: cluster.step() > at and cluster.step() % 20 in range(5, 15),
               60 * slow, worker.log_tail)
    rank, = worker.rank_pids()
    os.kill(rank, signal.SIGSTOP)
    worker.term()
    left_with_a_loss(worker, slow, "was silent too long and is killed")


def test_two_signals_at_once_are_one(make_cluster, slow):
    """Two signals at once, as timeout(1) sends them to the process and to its group, count as one: the node drains and
    saves."""
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
    """A node that cannot drain, because its peer is stopped, leaves at once at the second signal."""
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
    """A node that cannot drain, because its peer is stopped, leaves within the deadline."""
    cluster = make_cluster(sets={"train.steps": 100000, "cluster.timeout_s": 30})
    cluster.start_server()
    a, b = (cluster.start_worker(n, nnodes=2) for n in "ab")
    cluster.wait_world(2, 40 * slow)
    b.freeze()
    end_in_time(a, signal.SIGTERM, slow)
    assert not a.rank_pids()


def test_drain_time_is_a_key(make_cluster, slow):
    """Two runs each have a stopped node. With a short cluster.drain_s a node gives up before the default of 8 s; with a
    long one it waits longer, and drains when its peer continues."""
    told, peers = {}, {}
    for drain_s in (2.5, 30):
        cluster = make_cluster(f"drain-{drain_s}", sets={"train.steps": 100000, "cluster.timeout_s": 60,
                                                         "cluster.drain_s": drain_s})
        cluster.start_server()
        told[drain_s], peers[drain_s] = (cluster.start_worker(n, nnodes=2) for n in "ab")
        cluster.wait_world(2, 40 * slow)
    stopped = {drain_s: peer.freeze() for drain_s, peer in peers.items()}
    began = time.monotonic()
    for drain_s, worker in told.items():
        worker.term()
        worker.wait_log(f"within {drain_s} s; a second signal ends at once", 5 * slow)
    short, long = told.values()
    assert short.wait(DRAIN_S) == 75
    assert 2.5 <= time.monotonic() - began < DRAIN_S
    assert "did not drain within 2.5 s: what was not handed over is lost" in short.log(), short.log_tail()
    wait_until("the default is over", lambda: time.monotonic() > began + DRAIN_S + 1, DRAIN_S + 5)
    assert long.alive()
    Worker.thaw(stopped[30])
    assert long.wait(20 * slow) == 0, long.log_tail()
    assert "left the run as asked" in long.log() and "did not drain" not in long.log()


def test_last_node_saves_what_it_has(make_cluster, slow):
    """The last node, with the server in its process, saves its steps when it is told to end."""
    cluster = make_cluster(sets={"train.steps": 100000, "checkpoint.every_steps": 100000})
    worker = cluster.start_worker("a", nnodes=1, endpoint=False)
    cluster.wait_step(3, 30 * slow)
    assert end_in_time(worker, signal.SIGTERM, slow) == 0
    assert list(worker.checkpoint_dir.glob("step-*")), worker.log_tail()
    cluster.check_nothing_left()


def test_stopped_server_is_worked_around(make_cluster, slow):
    """A server is stopped and continues: it expels no node for the time in which it was stopped."""
    cluster = make_cluster(sets={"train.steps": 100000})
    server = cluster.start_server()
    a, b = (cluster.start_worker(n, nnodes=2) for n in "ab")
    cluster.wait_world(2, 30 * slow)
    server.signal(signal.SIGSTOP)
    a.wait_log(r"the server at .* is gone", 10 * slow)
    server.signal(signal.SIGCONT)
    a.wait_log(r"the server at .* is back", 20 * slow)
    cluster.wait_step(cluster.step() + 5, 20 * slow)
    assert {line["generation"] for line in cluster.metrics()} == {1}
    a.term()
    b.term()
    assert cluster.wait_done(20 * slow) == {"a": 0, "b": 0}
    assert "expelled" not in a.log() + b.log()


def test_failed_checkpoint_is_told_at_once(make_cluster, slow):
    """A failed checkpoint is reported at once, and not when the next one is due, which may be hours later."""
    every = 200
    cluster = make_cluster(sets={"train.steps": 100000, "checkpoint.every_steps": every})
    cluster.start_server()
    worker = cluster.start_worker("a")
    cluster.wait_step(3, 30 * slow)
    shutil.rmtree(worker.checkpoint_dir)
    worker.checkpoint_dir.write_text("no folder")
    told = worker.wait_log(r"step=(\d+): a checkpoint was not written: checkpoint of step (\d+) ", 60 * slow)
    in_step, of_step = int(told[1]), int(told[2])  # steps are logged from 0, checkpoints count those that are made
    assert of_step % every == 0 and (in_step + 1) % every != 0, told[0]


def test_end_waits_for_a_server(make_cluster, slow):
    """Without a server the last checkpoint has no grant: the worker says that it waits for a server, and ends with the
    next one."""
    cluster, worker, steps = last_step_without_server(make_cluster, {"cluster.timeout_s": 5}, slow)
    worker.wait_log(rf"need the server at {cluster.endpoint()}, which is gone: start dpt-rdzv there", 60 * slow)
    worker.wait_log(rf"step +{steps}/{steps}", 1 * slow)  # lines of the log wait for the server
    assert not list(worker.checkpoint_dir.glob("step-*"))
    cluster.restart_server()
    assert worker.wait(60 * slow) == 0, worker.log_tail()
    assert [p.name for p in worker.checkpoint_dir.glob("step-*")] == [f"step-{steps:08}"]
