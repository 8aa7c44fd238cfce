"""Loss and gain of nodes during training: the survivors keep their processes, and the curve stays the same."""

import os
import re
import signal

import pytest

from cluster import ROOT, Worker, checkpoint_hash, make_text, wait_until
from processes import proc_alive, proc_children, proc_fds, proc_threads, send_signal

RECORDED = ROOT / "tests" / "worker" / "data" / "recorded"  # a small vocabulary in OpenAI's form
ENDLESS = {"train.steps": 100_000, "checkpoint.every_steps": 20, "checkpoint.keep": 1_000_000}


@pytest.fixture
def start_calm(make_cluster, slow):
    """Returns a function that starts an undisturbed run of the same config, one of ENDLESS, beside the story. The
    result of that function waits until the cluster and the undisturbed run both have a checkpoint of one step beyond
    `after`, and compares the weights."""
    def start(sets):
        calm = make_cluster("calm", sets=sets)
        worker = calm.start_worker("calm", nnodes=1, endpoint=False)

        def compare(cluster, after):
            def common():
                mine, theirs = cluster.checkpoints(), calm.checkpoints()
                return [(mine[step], theirs[step]) for step in sorted(mine) if step > after and step in theirs]
            found = wait_until(f"a checkpoint of one step beyond {after} here and in the undisturbed run", common,
                               120 * slow, lambda: cluster.log_tails() + "\n" + worker.log_tail())
            assert checkpoint_hash(found[0][0]) == checkpoint_hash(found[0][1]), found[0]
            worker.kill_machine()
        return compare
    return start


def generation(cluster):
    """The generation of the newest logged step, 0 if there is none."""
    line = cluster.newest()
    return line["generation"] if line else 0


def wait_reformed(cluster, after, world, timeout):
    """Waits for a step of a generation later than `after` at this world size. (A quick successor is in the very next
    generation, so a smaller world may never appear.)"""
    def reformed():
        line = cluster.newest()
        return line is not None and line["generation"] > after and line["world_size"] == world
    wait_until(f"world {world} after generation {after}", reformed, timeout, cluster.log_tails)


def test_text_changes_under_a_run(make_cluster, tmp_path, slow):
    """A text changes after its nodes have encoded it: they train on with the former text. A rank that starts later
    notices the change, and its node ends."""
    text = make_text(tmp_path / "text.txt", 20_000)
    cluster = make_cluster(sets={"train.steps": 100_000, "cluster.timeout_s": 5,
                                 "checkpoint.every_steps": 1,  # so the end cuts one short
                                 "data.train": text, "data.tokenizer": "gpt2", "data.any_vocab": "true",
                                 "data.vocab_bpe": RECORDED / "tiny.bpe", "data.encoder_json": RECORDED / "tiny.json",
                                 "model.vocab": 700})
    server = cluster.start_server()
    a, b = cluster.start_worker("a"), cluster.start_worker("b")
    cluster.wait_world(2, 30 * slow)
    make_text(tmp_path / "text.txt", 20_000, seed=9)
    os.kill(b.rank_pids()[0], signal.SIGKILL)
    assert b.wait(30 * slow) == 2, b.log()
    assert "data.train was changed since this worker began" in b.log() and "text.txt" in b.log()
    step = cluster.step()
    cluster.wait_step(step + 5, 30 * slow)
    assert "it cannot take part" in server.log() and a.alive()
    make_text(tmp_path / "text.txt", 20_000)
    cluster.start_worker("b")
    cluster.wait_world(2, 30 * slow)


def test_data_of_one_node_end(make_cluster, tmp_path, slow):
    """A node can no longer read its data and ends. The other node holds its steps, and no message claims a loss."""
    text = make_text(tmp_path / "text.txt", 20_000)
    copy = make_text(tmp_path / "copy.txt", 20_000)
    cluster = make_cluster(sets={"train.steps": 100_000, "checkpoint.every_steps": 0, "data.train": text})
    cluster.start_server()
    a, b = cluster.start_worker("a"), cluster.start_worker("b", sets={"data.train": copy})
    cluster.wait_world(2, 30 * slow)
    os.truncate(copy, 100)
    assert b.wait(30 * slow) == 4, b.log()
    line, = [line for line in b.log().splitlines() if line.startswith("dpt-worker: ")]
    assert f"'{copy}' was changed while in use" in line, line
    assert "NOT SAVED" not in b.log(), b.log()
    cluster.wait_step(cluster.step() + 5, 30 * slow)
    assert re.search(r"node b .* lost: .*, 0 steps lost, world 2 -> 1", a.log()), a.log()


@pytest.mark.parametrize("strategy", ["ddp", "zero3"])
def test_data_of_the_last_node_end(make_cluster, tmp_path, slow, strategy):
    """The last node can no longer read its data: its ranks' state is saved before the run ends. A start with the former
    file continues from there."""
    text = make_text(tmp_path / "text.txt", 20_000)
    whole = text.read_bytes()
    cluster = make_cluster(sets={"train.steps": 100_000, "checkpoint.every_steps": 0, "data.train": text,
                                 "strategy.name": strategy})
    worker = cluster.start_worker("a", nnodes=1, ranks=2, endpoint=False)
    cluster.wait_step(5, 30 * slow)
    text.write_bytes(whole[:100])
    assert worker.wait(30 * slow) == 4, worker.log_tail()
    step, = re.findall(r"step (\d+) is saved: the run goes on from there", worker.log())
    assert "NOT SAVED" not in worker.log(), worker.log_tail()
    assert worker.log().count("was changed while in use") == 1, worker.log()
    text.write_bytes(whole)
    again = cluster.start_worker("a", nnodes=1, ranks=2, endpoint=False)
    again.wait_log(rf"(?m)^step +{int(step) + 2}/", 30 * slow)
    assert cluster.metrics()[-1]["step"] > int(step)
    again.term()
    assert again.wait(30 * slow) == 0, again.log_tail()


def test_kill_replace_leave_stop(make_cluster, start_calm, slow):
    """One long story: a machine dies, another takes its place, a rank dies, a node leaves, one is stopped and
    continues, the server dies and comes back. The weights are those of an undisturbed run."""
    # A node that stands still for a lease while it alone has the state costs steps, and rightly.
    sets = dict(ENDLESS, **{"cluster.timeout_s": 2 * slow})
    compare_with_calm = start_calm(sets)
    cluster = make_cluster(sets=sets)
    cluster.start_server()
    a, b = cluster.start_worker("a"), cluster.start_worker("b")
    cluster.wait_world(2, 30 * slow)
    rank_of_a = a.rank_pids()

    b.kill_machine()
    cluster.wait_world(1, 10 * slow)
    b = cluster.start_worker("b")
    cluster.wait_world(2, 20 * slow)
    assert a.rank_pids() == rank_of_a  # the survivor never restarted

    rank_of_b, before = b.rank_pids()[0], generation(cluster)
    os.kill(rank_of_b, signal.SIGKILL)
    wait_reformed(cluster, before, 2, 30 * slow)
    assert b.alive() and b.rank_pids() != [rank_of_b]
    assert "killed by signal 9" in b.log()

    b.term()
    assert b.wait(12 * slow) == 0
    assert "left the run as asked" in b.log()
    cluster.wait_world(1, 10 * slow)

    c = cluster.start_worker("c")
    cluster.wait_world(2, 20 * slow)
    stopped = c.freeze()
    cluster.wait_world(1, 10 * slow)
    seen, without_it = len(c.outputs.metrics()), generation(cluster)
    Worker.thaw(stopped)
    c.wait_log("expelled", 10 * slow)
    wait_until("its old rank is gone", lambda: not any(proc_alive(p) for p in stopped[1:]), 10 * slow)
    cluster.wait_world(2, 20 * slow)
    written = c.outputs.metrics()[seen:]  # by its new rank alone
    assert not [line for line in written if line["generation"] <= without_it], written

    cluster.server.kill()
    step = cluster.step()
    a.wait_log(rf"step +{step + 10}/", 20 * slow)  # training needs no server; lines of the log wait for it
    a.wait_log(r"the server at .* is gone; training goes on", 10 * slow)
    cluster.restart_server()
    cluster.server.wait_log("adopted generation", 20 * slow)
    compare_with_calm(cluster, cluster.step())
    for worker in (a, c):
        worker.term()
    assert (a.wait(12 * slow), c.wait(12 * slow)) == (0, 0)
    assert a.rank_pids() == []
    assert [line["step"] for line in cluster.metrics()] == list(range(1, cluster.step() + 1))
    assert sum(e["steps_lost"] for e in cluster.events()) == 0
    kinds = [e["kind"] for e in cluster.events()]
    assert kinds[0] == "start" and {"node_lost", "joined", "rank_lost", "left"} <= set(kinds), kinds
    cluster.server.term()
    assert cluster.server.wait(10 * slow) == 0
    cluster.check_nothing_left()


def test_below_min_nodes_waits(make_cluster, start_calm, slow):
    """With --nnodes 2 a single survivor keeps its state and waits for a second node."""
    compare_with_calm = start_calm(ENDLESS)
    cluster = make_cluster(sets=ENDLESS)
    cluster.start_server()
    a, b = (cluster.start_worker(n, nnodes=2) for n in "ab")
    cluster.wait_world(2, 30 * slow)
    pids = a.rank_pids()
    b.kill_machine()
    a.wait_log(r"waiting for nodes: 1 of 2", 10 * slow)
    stood_at = cluster.step()
    c = cluster.start_worker("c", nnodes=2)
    compare_with_calm(cluster, stood_at)
    assert a.rank_pids() == pids
    for worker in (a, c):
        worker.term()
    assert (a.wait(12 * slow), c.wait(12 * slow)) == (0, 0)
    assert [line["step"] for line in cluster.metrics()] == list(range(1, cluster.step() + 1))
    assert sum(e["steps_lost"] for e in cluster.events()) == 0
    assert len(a.log().split("world of at most")) == 2  # one start only


def test_agent_killed_alone(make_cluster, slow):
    """kill -9 of the agent ends its ranks, too; no process of the node is left."""
    cluster = make_cluster(sets={"train.steps": 100000})
    cluster.start_server()
    a = cluster.start_worker("a", ranks=2)
    cluster.wait_world(2, 30 * slow)
    family = a.kill_machine()
    assert len(family) == 3
    cluster.server.term()
    assert cluster.server.wait(10 * slow) == 0
    cluster.check_nothing_left()


def test_one_rank_of_two_dies(make_cluster, slow):
    """One of two ranks of a node dies: the other keeps its process, and the agent keeps no descriptor, thread or zombie
    of the dead one."""
    cluster = make_cluster(sets={"train.steps": 100000})
    cluster.start_server()
    a = cluster.start_worker("a", ranks=2, nnodes=1)
    cluster.wait_world(2, 30 * slow)
    first, second = a.rank_pids()

    def kinds():
        """Kinds of the agent's descriptors, without its ranks' log files, which are opened when something is logged."""
        return sorted(re.sub(r"\d", "", t) for t in proc_fds(a.pid).values() if not t.endswith(".log"))
    before, threads = kinds(), proc_threads(a.pid)
    for _ in range(3):
        number = generation(cluster)
        os.kill(second, signal.SIGKILL)
        wait_until("a successor", lambda: len(a.rank_pids()) == 2 and second not in a.rank_pids(), 20 * slow)
        wait_reformed(cluster, number, 2, 30 * slow)
        assert first in a.rank_pids()
        second = next(pid for pid in a.rank_pids() if pid != first)
    wait_until("no more descriptors than before", lambda: kinds() == before, 5 * slow, lambda: str(proc_fds(a.pid)))
    assert proc_threads(a.pid) == threads
    assert not [pid for pid in proc_children(a.pid) if not proc_alive(pid)]  # no zombies
    a.term()
    assert a.wait(12 * slow) == 0


def test_steps_lost_with_the_whole_world(make_cluster, slow):
    """The only rank dies again and again: the summary counts all steps lost, from the checkpoint's history and the log
    after it."""
    cluster = make_cluster(sets={"train.steps": 400, "train.log_every": 1, "checkpoint.every_steps": 100,
                                 "cluster.max_restarts": 10})
    a = cluster.start_worker("a", nnodes=1, endpoint=False)
    kills = (20, 20, 120, 120, 220)  # two of them before the first checkpoint, two after the same one
    for step in kills:
        cluster.wait_step(step, 60 * slow)
        number = generation(cluster)
        os.kill(a.rank_pids()[0], signal.SIGKILL)
        wait_reformed(cluster, number, 1, 30 * slow)
    assert a.wait(120 * slow) == 0, a.log_tail()
    lost = [event["steps_lost"] for event in cluster.outputs()[0].events() if event["kind"] == "rank_lost"]
    assert len(lost) == len(kills) and min(lost) > 0, lost
    summary, = cluster.summaries()
    assert (summary["recoveries"], summary["steps_lost"]) == (len(kills), sum(lost))
    assert f"{len(kills)}, {sum(lost)} steps lost" in a.log(), a.log_tail()


def test_dp_loses_steps_with_its_first_rank_only(make_cluster, slow):
    """strategy.name: dp. The loss of a rank costs no step. The loss of the rank with the state goes back to the
    checkpoint. The weights are those of an undisturbed run of ddp."""
    sets = {"train.steps": 300, "train.log_every": 1, "checkpoint.every_steps": 100}
    calm = make_cluster("calm", sets=sets)
    undisturbed = calm.start_worker("calm", nnodes=1, endpoint=False)
    cluster = make_cluster(sets={**sets, "strategy.name": "dp"})
    a = cluster.start_worker("a", nnodes=1, ranks=3, endpoint=False)
    cluster.wait_step(110, 60 * slow)
    first, second, _ = a.rank_pids()  # in the order of their starts
    for pid in (second, first):
        number = generation(cluster)
        os.kill(pid, signal.SIGKILL)
        wait_reformed(cluster, number, 3, 30 * slow)
    assert a.wait(120 * slow) == 0 and undisturbed.wait(60 * slow) == 0, a.log_tail()
    lost = [event["steps_lost"] for event in cluster.outputs()[0].events() if event["kind"] == "rank_lost"]
    assert len(lost) == 2 and lost[0] == 0 < lost[1], lost
    assert "shard 0 of 1 is lost with node" in a.log(), a.log_tail()
    hashes = {summary["weights_hash"] for summary in cluster.summaries() + calm.summaries()}
    assert len(hashes) == 1, hashes


def test_crash_loop_ends_the_run(make_cluster, slow):
    """Ranks that crash again and again use up the budget: exit 4 on every node, with the first error."""
    # Ten steps between two kills give a restart back: there are seldom so many, as they are long.
    cluster = make_cluster(sets={"train.steps": 100000, "train.global_batch": 512, "cluster.max_restarts": 3})
    cluster.start_server()
    a, b = (cluster.start_worker(n, nnodes=2) for n in "ab")
    cluster.wait_world(2, 30 * slow)
    killed, before = 0, 0

    def kill_each():
        """Kills the rank of b once in each generation that makes steps; returns True when both nodes have ended."""
        nonlocal killed, before
        pids = b.rank_pids()
        if pids and generation(cluster) > before and cluster.newest()["world_size"] == 2:
            before = generation(cluster)
            send_signal(pids[0], signal.SIGKILL)
            killed += 1
        return not a.alive() and not b.alive()
    wait_until("the restarts are used up", kill_each, 120 * slow, cluster.log_tails)
    assert (a.returncode(), b.returncode()) == (4, 4) and killed >= 4
    assert "4 crashes without enough progress" in a.log()
    assert "node b" in a.log() and "killed by signal 9" in a.log()
    cluster.server.term()
    assert cluster.server.wait(10 * slow) == 0
    cluster.check_nothing_left(unreplaced=[b])


def test_one_incident_costs_one_restart(make_cluster, slow):
    """Three of four machines lose power at once; all are stopped first, so that none sends a message in between. A
    budget of one restart is enough."""
    cluster = make_cluster(sets={"train.steps": 100000, "cluster.max_restarts": 1, "cluster.timeout_s": 20})
    cluster.start_server()
    a, *others = (cluster.start_worker(node) for node in "abcd")
    cluster.wait_world(4, 60 * slow)
    stopped = [worker.freeze() for worker in (a, *others)]
    for worker in others:
        worker.kill_machine()
    a.thaw(stopped[0])
    cluster.wait_world(1, 60 * slow)
    cluster.wait_step(cluster.step() + 5, 30 * slow)
    lost = re.findall(r" W dpt-rdzv: .*: node (\w) \(host [^)]*\) lost: ", cluster.server.log())
    assert sorted(lost) == ["b", "c", "d"] and "run failed" not in cluster.server.log()
    a.term()
    assert a.wait(12 * slow) == 0


def test_nothing_starts_on_a_node(make_cluster, slow):
    """A node whose rank processes end as soon as they start ends; the others train on."""
    cluster = make_cluster(sets={"train.steps": 100000})
    server = cluster.start_server()
    a, b = (cluster.start_worker(n) for n in "ab")
    cluster.wait_world(2, 30 * slow)
    killed = set()

    def hunt():
        for pid in b.rank_pids():
            if pid not in killed:
                killed.add(pid)
                os.kill(pid, signal.SIGKILL)
        return not b.alive()
    wait_until("the node ends", hunt, 60 * slow, cluster.log_tails, poll_s=0.001)  # before they stand by
    assert b.returncode() == 4 and "10 processes in a row ended before they were ready" in b.log()
    assert re.search(r"node b \(host .*\) lost: it cannot take part", server.log())
    step = cluster.step()
    cluster.wait_step(step + 5, 30 * slow)
    cluster.start_worker("b")
    cluster.wait_world(2, 30 * slow)
    assert a.alive()


def test_only_the_agent_is_stopped(make_cluster, slow):
    """An agent is stopped while its ranks run: its node is lost, and joins with a new incarnation when the agent
    continues."""
    cluster = make_cluster(sets={"train.steps": 100000})
    cluster.start_server()
    a, b = cluster.start_worker("a"), cluster.start_worker("b")
    cluster.wait_world(2, 30 * slow)
    old = b.rank_pids()
    b.signal(signal.SIGSTOP)
    cluster.wait_world(1, 15 * slow)
    b.signal(signal.SIGCONT)
    cluster.wait_world(2, 30 * slow)
    assert b.rank_pids() != old and not any(proc_alive(pid) for pid in old)
    for worker in (a, b):
        worker.term()
    assert cluster.wait_done(15 * slow) == {"a": 0, "b": 0}


def test_only_a_rank_is_stopped(make_cluster, slow):
    """A rank is stopped: its agent notices the silence, kills it and starts another."""
    cluster = make_cluster(sets={"train.steps": 100000})
    cluster.start_server()
    a, b = cluster.start_worker("a"), cluster.start_worker("b")
    cluster.wait_world(2, 30 * slow)
    old, before = b.rank_pids(), generation(cluster)
    os.kill(old[0], signal.SIGSTOP)
    wait_reformed(cluster, before, 2, 45 * slow)
    assert b.rank_pids() != old and not proc_alive(old[0])
    assert "silent" in b.log()
    for worker in (a, b):
        worker.term()
    assert cluster.wait_done(15 * slow) == {"a": 0, "b": 0}


def test_server_and_a_worker_die_together(make_cluster, slow):
    """The server and a worker die together: the survivor waits, and the next server adopts it with its state."""
    cluster = make_cluster(sets={"train.steps": 100000})
    cluster.start_server()
    a, b = cluster.start_worker("a"), cluster.start_worker("b")
    cluster.wait_world(2, 30 * slow)
    pids = a.rank_pids()
    cluster.server.kill()
    b.kill_machine()
    cluster.restart_server()
    cluster.wait_world(1, 20 * slow)
    assert a.rank_pids() == pids
    cluster.start_worker("b")
    cluster.wait_world(2, 20 * slow)
    assert a.rank_pids() == pids
    a.term()
    assert a.wait(12 * slow) == 0


def test_newcomer_cannot_use_its_folder(make_cluster, slow):
    """A node whose checkpoint.dir this run cannot resume from ends with an error. The run has its minimum of nodes and
    continues, whether the node comes at the start or later."""
    cluster = make_cluster(sets={"train.steps": 100_000, "cluster.nnodes": "1:3"})
    for node in "bc":
        other = cluster.start_worker(node, nnodes=1, endpoint=False, sets={"optimizer.lr": 0.001, "train.steps": 12})
        assert other.wait(60 * slow) == 0
    server = cluster.start_server()
    a, b = (cluster.start_worker(node) for node in "ab")
    assert b.wait(60 * slow) == 2, b.log()
    assert "optimizer.lr" in b.log()
    cluster.wait_step(5, 60 * slow)
    c = cluster.start_worker("c")
    assert c.wait(60 * slow) == 2, c.log()
    assert server.log().count("it cannot take part") == 2
    cluster.wait_step(cluster.step() + 5, 60 * slow)
    a.term()
    assert a.wait(12 * slow) == 0
