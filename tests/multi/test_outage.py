"""The server is away for longer than every deadline: a state that only workers have waits for it, or is rescued."""

import os
import re
import signal
import time

import pytest

from calm import calm_hash, last_step_without_server
from cluster import checkpoint_hash, wait_until
from processes import proc_alive, send_signal

TIMEOUT_S = 1.5  # the join time is 12 times that
DRAIN_S = 8      # cluster.drain_s where it is not given
MORE_STEPS = 20  # made after a restart, before the weights are compared


def make_sets(slow, **more):
    return {"train.steps": 100_000, "checkpoint.every_steps": 0, "train.log_every": 1, "cluster.nnodes": "2",
            "cluster.timeout_s": TIMEOUT_S * slow, **more}


def rescued_step(cluster):
    names = [p.name for p in (cluster.root / "checkpoints").glob("rescue-step-*")]
    assert len(names) == 1, names
    return int(names[0].rpartition("-")[2])


def ends_with_a_rescue(workers, slow):
    """Tells the workers to end once: each ends within the drain time, with a message that names the step. Returns the
    steps."""
    began = time.monotonic()
    for worker in workers:
        worker.term()
    assert [worker.wait(30 * slow) for worker in workers] == [0] * len(workers), workers[0].log_tail()
    assert time.monotonic() - began < DRAIN_S * slow
    assert not any("NOT SAVED" in worker.log() for worker in workers)
    said = r"step (\d+) is saved: the run goes on from there when it is started again$"
    return [int(step) for worker in workers for step in re.findall(said, worker.log(), re.M)]


def goes_on(cluster, tmp_path, slow, step):
    """Starts everything again: the run continues from that step with the weights of an undisturbed run, and the next
    checkpoint replaces the rescue."""
    later = step + MORE_STEPS
    cluster.restart_server()
    workers = [cluster.start_worker(node, sets={"checkpoint.every_steps": later}) for node in "ab"]
    wait_until(f"a checkpoint of step {later}", lambda: later in cluster.checkpoints(), 60 * slow, cluster.log_tails)
    wait_until("the rescue is removed", lambda: not list((cluster.root / "checkpoints").glob("rescue-*")), 60 * slow,
               cluster.log_tails)
    for worker in workers:
        worker.term()
    assert [worker.wait(30 * slow) for worker in workers] == [0, 0], cluster.log_tails()
    found = checkpoint_hash(cluster.checkpoints()[later])
    assert found == calm_hash(tmp_path / "calm", cluster.sets, later, 120 * slow)
    starts = [event for event in cluster.outputs()[0].events() if event["kind"] == "start"]
    assert (starts[-1]["resume_step"], starts[-1]["steps_lost"]) == (step, 0)
    steps = [line["step"] for line in cluster.outputs()[0].metrics()]
    assert steps == list(range(1, len(steps) + 1)) and len(steps) >= later  # none is missing, none comes twice


def test_rescue_in_a_formation(make_cluster, tmp_path, slow):
    """A rank and the server die together. Both nodes wait, and the one with the steps rescues them when both are told
    to end."""
    cluster = make_cluster(sets=make_sets(slow), shared_dirs=True)
    cluster.start_server()
    a, b = (cluster.start_worker(n) for n in "ab")
    cluster.wait_step(20, 60 * slow)
    rank, = b.rank_pids()
    cluster.server.kill()
    os.kill(rank, signal.SIGKILL)
    a.wait_log(r"this node keeps step \d+, no checkpoint has the last \d+ steps, and it waits without limit",
               30 * slow)
    b.wait_log("other nodes keep them, and this node waits without limit", 30 * slow)
    step, = ends_with_a_rescue([a, b], slow)
    assert step == rescued_step(cluster) and step >= 20
    goes_on(cluster, tmp_path, slow, step)


def test_rescue_without_the_writer_of_the_log(make_cluster, tmp_path, slow):
    """The server dies, and later the node of rank 0, with log lines in its memory. The other node rescues the steps and
    has these lines, too."""
    cluster = make_cluster(sets=make_sets(slow), shared_dirs=True)
    cluster.start_server()
    workers = [cluster.start_worker(n) for n in "ab"]
    cluster.wait_step(20, 60 * slow)
    cluster.server.kill()
    wait_until("lines wait", lambda: printed_step(*workers) >= cluster.step() + 20, 60 * slow, cluster.log_tails)
    writer = max(workers, key=printed_step)
    workers.remove(writer)
    writer.kill_machine()
    step, = ends_with_a_rescue(workers, slow)
    assert step == rescued_step(cluster) and step >= printed_step(writer)
    assert re.search(r"\d+ lines for '[^']*' are in '[^']*/rank-0\.unconfirmed\.jsonl'", workers[0].log())
    goes_on(cluster, tmp_path, slow, step)


def test_server_is_back_after_the_join_time(make_cluster, tmp_path, slow):
    """The server comes back after the join time: the run continues in the same processes."""
    cluster = make_cluster(sets=make_sets(slow), shared_dirs=True)
    cluster.start_server()
    a, b = (cluster.start_worker(n) for n in "ab")
    cluster.wait_step(20, 60 * slow)
    rank, = a.rank_pids()
    b.kill_machine()
    cluster.server.wait_log("waiting for more, state is kept", 30 * slow)
    cluster.server.kill()
    late = cluster.start_worker("late")
    assert late.wait(60 * slow) == 3, late.log_tail()
    assert a.alive() and a.rank_pids() == [rank] and proc_alive(rank)
    stood_at = cluster.step()
    cluster.restart_server()
    b = cluster.start_worker("b")
    cluster.wait_step(stood_at + MORE_STEPS, 60 * slow)
    assert a.rank_pids() == [rank]
    for worker in (a, b):
        worker.term()
    assert [worker.wait(30 * slow) for worker in (a, b)] == [0, 0], cluster.log_tails()
    step, found = cluster.newest_checkpoint()
    assert [line["step"] for line in cluster.outputs()[0].metrics()] == list(range(1, step + 1))
    assert found == calm_hash(tmp_path / "calm", cluster.sets, step, 120 * slow)


def test_worker_without_a_rank_outlasts_the_join_time(make_cluster, slow):
    """The only rank of node b dies while no server is there. Node a keeps the steps and needs b, so both outlast the
    join time, and the run continues with them."""
    cluster = make_cluster(sets=make_sets(slow), shared_dirs=True)
    cluster.start_server()
    a, b = (cluster.start_worker(n) for n in "ab")
    cluster.wait_step(20, 60 * slow)
    cluster.server.kill()
    os.kill(b.rank_pids()[0], signal.SIGKILL)
    b.wait_log("died with rank processes here, no checkpoint has them, other nodes keep them", 30 * slow)
    late = cluster.start_worker("late")  # started later than that, so the join time of b ends before its own
    assert late.wait(60 * slow) == 3, late.log_tail()
    assert a.alive() and b.alive(), cluster.log_tails()
    stood_at = cluster.step()
    cluster.restart_server()
    cluster.wait_step(stood_at + MORE_STEPS, 60 * slow)
    for worker in (a, b):
        worker.term()
    assert [worker.wait(30 * slow) for worker in (a, b)] == [0, 0], cluster.log_tails()
    assert sum(event["steps_lost"] for event in cluster.events()) == 0


@pytest.mark.parametrize("sharding", ["", "full_shard"])
def test_all_are_told_without_a_server(make_cluster, tmp_path, slow, sharding):
    """All nodes are told to end during training without a server; with sharded state each node writes its part of the
    rescue."""
    sets = make_sets(slow)
    if sharding:
        sets.update({"strategy.name": "fsdp", "strategy.sharding": sharding})
    cluster = make_cluster(sets=sets, shared_dirs=True)
    cluster.start_server()
    workers = [cluster.start_worker(n) for n in "ab"]
    cluster.wait_step(20, 60 * slow)
    cluster.server.kill()
    said = ends_with_a_rescue(workers, slow)
    assert said == [rescued_step(cluster)] * 2
    goes_on(cluster, tmp_path, slow, said[0])


def lost_steps(worker):
    """(number, newest saved step, newest step) of the line NOT SAVED."""
    found = re.findall(r"NOT SAVED: the last (\d+) steps \(after step (\d+), up to (\d+)\) (?:are in memory only and "
                       r"go with this node|died with rank processes here)", worker.log())
    assert len(found) == 1, worker.log_tail()
    return tuple(map(int, found[0]))


STEPS_OF_A_MESSAGE = 50  # a step takes a millisecond, and a rank tells its agent several at once


def printed_step(*workers):
    return max((int(step) for w in workers for step in re.findall(r"^step (\d+)/", w.log(), re.M)), default=0)


def test_nowhere_to_save(make_cluster, slow):
    """Without a server and a checkpoint.dir a message counts the lost steps."""
    cluster = make_cluster(sets=make_sets(slow))
    cluster.start_server()
    a, b = (cluster.start_worker(n, sets={"checkpoint.dir": "null"}) for n in "ab")
    cluster.wait_step(20, 60 * slow)
    cluster.server.kill()
    b.kill_machine()
    a.wait_log("it waits without limit", 30 * slow)
    a.term()
    assert a.wait(30 * slow) == 0, a.log_tail()
    number, saved, newest = lost_steps(a)
    assert saved == 0 and number == newest
    assert newest >= max(20, printed_step(a, b))  # the node that prints may be the one that died


def died_with_the_rank(worker, saved, newest, how="was killed by signal 9"):
    """Waits for the line about the rank's death, which must come at once."""
    worker.wait_log(rf"rank process 0 \(spawn 1\) {how}; the steps after {saved}, up to {newest}, are lost with it", 10)


def test_rank_dies_without_a_server(make_cluster, slow):
    """A rank dies without a server: its death is reported at once, and the steps lost with it at the end."""
    cluster = make_cluster(sets=make_sets(slow, **{"cluster.nnodes": "1"}), shared_dirs=True)
    cluster.start_server()
    worker = cluster.start_worker("a", sets={"checkpoint.every_steps": 20})
    wait_until("a checkpoint", cluster.checkpoints, 60 * slow, cluster.log_tails)
    cluster.server.kill()
    worker.wait_log(r"the server at .* is gone", 20 * slow)
    at = printed_step(worker)
    wait_until("more steps", lambda: printed_step(worker) > at + 40, 60 * slow, worker.log_tail)
    rank, = worker.rank_pids()
    os.kill(rank, signal.SIGKILL)
    saved = max(cluster.checkpoints())
    died_with_the_rank(worker, saved, r"\d+")
    worker.term()
    assert worker.wait(30 * slow) == 75, worker.log_tail()
    number, after, newest = lost_steps(worker)
    assert after == saved and newest >= printed_step(worker) and number == newest - saved
    died_with_the_rank(worker, saved, newest)
    assert worker.log().splitlines()[-1] == f"dpt-worker: left the run, but its last {number} steps are not saved"


def test_told_twice_counts_what_is_lost(make_cluster, slow):
    """A second signal leaves no time for a rescue: the steps after the newest checkpoint are lost, as the worker
    reports and the next start shows."""
    cluster = make_cluster(sets=make_sets(slow, **{"cluster.nnodes": "1", "cluster.drain_s": 3600}), shared_dirs=True)
    cluster.start_server()
    worker = cluster.start_worker("a", sets={"checkpoint.every_steps": 20})
    wait_until("a checkpoint", cluster.checkpoints, 60 * slow, cluster.log_tails)
    cluster.server.kill()
    at = printed_step(worker)
    wait_until("more steps", lambda: printed_step(worker) > at + 40, 60 * slow, worker.log_tail)
    send_signal(worker.rank_pids()[0], signal.SIGSTOP)  # a rank that runs may be faster than the second signal
    worker.term()
    worker.wait_log("a second signal ends at once", 20 * slow)
    taken = time.monotonic()
    wait_until("a second one is no echo of it", lambda: time.monotonic() > taken + 0.1, 5)
    worker.term()
    assert worker.wait(10 * slow) == 75, worker.log_tail()
    assert "dpt-worker: told twice to end: left at once" in worker.log()
    number, saved, newest = lost_steps(worker)
    printed = printed_step(worker)  # the signal may have stopped the rank before it told the lines of its newest steps
    assert saved == max(cluster.checkpoints()) and number == newest - saved
    assert printed <= newest <= printed + STEPS_OF_A_MESSAGE
    cluster.restart_server()
    again = cluster.start_worker("a")
    wait_until("it goes on", lambda: len(cluster.outputs()[0].events()) == 2, 60 * slow, cluster.log_tails)
    assert cluster.outputs()[0].events()[1]["resume_step"] == saved
    again.term()
    assert again.wait(30 * slow) == 0


def test_end_without_a_server(make_cluster, tmp_path, slow):
    """All steps are done, and no server grants the last checkpoint: a worker that is told to end writes a rescue, and
    the next run makes it the last checkpoint."""
    sets = {"cluster.timeout_s": TIMEOUT_S * slow}
    cluster, worker, steps = last_step_without_server(make_cluster, sets, slow)
    worker.wait_log("all steps are done, but the last checkpoint and the end need the server", 60 * slow)
    assert ends_with_a_rescue([worker], slow) == [steps]
    assert [p.name for p in worker.checkpoint_dir.glob("*step-*")] == [f"rescue-step-{steps:08}"]
    cluster.restart_server()
    assert cluster.start_worker("a", nnodes=1).wait(60 * slow) == 0
    assert [p.name for p in worker.checkpoint_dir.glob("*step-*")] == [f"step-{steps:08}"]
    assert cluster.summaries()[0]["weights_hash"] == calm_hash(tmp_path / "calm", cluster.sets, steps, 120 * slow)
