"""The server is killed with -9 in every phase of a run, loses its journal, or has a full disk."""

import os
import re
import resource
import signal
import subprocess

from calm import calm_hash
from cluster import program, wait_until

# A lease of 27 s: a server that waited for one would be noticed.
TIMEOUT_S = 30
SOON_S = 12
STEPS = 400


def make_sets(slow, **more):
    return {"train.steps": STEPS, "checkpoint.every_steps": 10, "train.log_every": 1, "cluster.nnodes": 2,
            "cluster.timeout_s": TIMEOUT_S * slow, **more}


def said(cluster, pattern):
    return re.findall(pattern, cluster.server.log())


def wait_said_again(cluster, pattern, before, timeout):
    wait_until(f"the server prints /{pattern}/ again", lambda: len(said(cluster, pattern)) > before, timeout,
               cluster.log_tails)


def printed_step(*workers):
    """The newest step on the workers' screens, of which one prints steps: without a server lines of the log wait."""
    return max((int(step) for worker in workers for step in re.findall(r"step (\d+)/", worker.log())), default=0)


def kill_a_rank(worker):
    rank, = worker.rank_pids()
    os.kill(rank, signal.SIGKILL)


def check_undisturbed(cluster, tmp_path, slow, steps=STEPS):
    """Every step came once, no step was lost, and the weights are those of an undisturbed run."""
    assert [line["step"] for line in cluster.metrics()] == list(range(1, steps + 1))
    assert sum(event["steps_lost"] for event in cluster.events()) == 0
    generations = [event["generation"] for event in cluster.events()]
    assert len(set(generations)) == len(generations)
    step, found = cluster.newest_checkpoint()
    assert step == steps and found == calm_hash(tmp_path / "calm", cluster.sets, steps, 120 * slow)


def test_kill_9_in_every_phase(make_cluster, tmp_path, slow):
    """The server is killed in a formation, while it grants checkpoints, and at the end. Each next one goes on at once:
    it does not wait for a lease, and no step is lost."""
    cluster = make_cluster(sets=make_sets(slow), shared_dirs=True, journal=True)
    cluster.start_server()
    a, b = (cluster.start_worker(node) for node in "ab")
    cluster.wait_step(10, 60 * slow)
    running = r"generation \d+ runs|adopted generation \d+"
    for moment in (r"forming generation \d+", r"plan of generation \d+", "grant", "grant"):
        before, ran = len(said(cluster, moment)), len(said(cluster, running))
        if moment != "grant":
            kill_a_rank(b)
            wait_said_again(cluster, moment, before, 30 * slow)
        else:
            newest = max(cluster.checkpoints(), default=0)
            wait_until("the next checkpoint", lambda: max(cluster.checkpoints(), default=0) > newest, 30 * slow,
                       cluster.log_tails)
        cluster.server.kill()
        cluster.restart_server()
        wait_said_again(cluster, running, ran, SOON_S * slow)
        cluster.wait_step(cluster.step() + 3, 30 * slow)
    # The end: the server is gone when the last step is made, and comes back.
    cluster.wait_step(STEPS - 20, 120 * slow)
    cluster.server.kill()
    a.wait_log("all steps are done, but the last checkpoint and the end need the server", 60 * slow)
    cluster.restart_server()
    cluster.server.wait_log("run done", 60 * slow)
    cluster.server.kill()  # perhaps before the nodes were told
    cluster.restart_server()
    assert [worker.wait(60 * slow) for worker in (a, b)] == [0, 0], cluster.log_tails()
    check_undisturbed(cluster, tmp_path, slow)
    known = said(cluster, r"the journal knows this run: generation (\d+)")
    assert known and [int(each) for each in known] == sorted(map(int, known))


def test_with_and_without_the_journal(make_cluster, tmp_path, slow):
    """A server without the journal takes over, forms a generation that the journal does not know, and is followed by a
    server with the old journal: the state of the nodes rules."""
    timeout_s = 3 * slow
    cluster = make_cluster(sets=make_sets(slow, **{"cluster.timeout_s": timeout_s}), shared_dirs=True, journal=True)
    cluster.start_server()
    a, b = (cluster.start_worker(node) for node in "ab")
    cluster.wait_step(10, 60 * slow)
    cluster.server.kill()
    cluster.restart_server(args=["--state-dir", "none"])
    cluster.server.wait_log("adopted generation 1 of an earlier server", 20 * slow)
    kill_a_rank(max((a, b), key=printed_step))  # the rank that writes the log
    newest = cluster.server.wait_log(r"generation ([2-9]) runs", 30 * slow)[1]
    cluster.wait_step(cluster.step() + 3, 30 * slow)  # now the nodes know that it runs
    cluster.server.kill()
    cluster.restart_server()
    cluster.server.wait_log(f"adopted generation {newest} of an earlier server", 20 * slow)
    assert [worker.wait(120 * slow) for worker in (a, b)] == [0, 0], cluster.log_tails()
    check_undisturbed(cluster, tmp_path, slow)


def test_lines_of_a_dead_writer(make_cluster, tmp_path, slow):
    """The rank that writes the log dies without a server, with lines in its memory. The process that takes its rank has
    no copy of them, so the other rank completes the log."""
    cluster = make_cluster(sets=make_sets(slow), shared_dirs=True, journal=True)
    cluster.start_server()
    a, b = (cluster.start_worker(node) for node in "ab")
    cluster.wait_step(10, 60 * slow)
    cluster.server.kill()
    wait_until("lines wait", lambda: printed_step(a, b) >= cluster.step() + 20, 60 * slow, cluster.log_tails)
    kill_a_rank(max((a, b), key=printed_step))
    cluster.restart_server()
    cluster.server.wait_log(r"generation [2-9] runs", SOON_S * slow)
    assert [worker.wait(60 * slow) for worker in (a, b)] == [0, 0], cluster.log_tails()
    check_undisturbed(cluster, tmp_path, slow)


def test_full_disk(make_cluster, tmp_path, slow):
    """The server cannot write its journal: it answers nobody, training goes on, and a lost rank is replaced when there
    is room again."""
    cluster = make_cluster(sets=make_sets(slow, **{"cluster.timeout_s": 3 * slow, "train.steps": 5 * STEPS}),
                           shared_dirs=True, journal=True)
    cluster.start_server()
    a, b = (cluster.start_worker(node) for node in "ab")
    cluster.wait_step(10, 60 * slow)
    log = cluster.state_dir / "journal.sqlite-wal"
    soft, hard = resource.prlimit(cluster.server.pid, resource.RLIMIT_FSIZE)
    assert cluster.server.log_path.stat().st_size < log.stat().st_size / 2  # its log can still be written
    resource.prlimit(cluster.server.pid, resource.RLIMIT_FSIZE, (log.stat().st_size, hard))
    # The next grant is not written, so it is not given.
    cluster.server.wait_log("write the journal .*the server answers nobody until its decisions are written", 30 * slow)
    saved, step = max(cluster.checkpoints(), default=0), printed_step(a, b)
    wait_until("training goes on", lambda: printed_step(a, b) >= step + 15, 30 * slow, cluster.log_tails)
    kill_a_rank(b)
    cluster.server.wait_log("forming generation 2", 30 * slow)
    assert max(cluster.checkpoints(), default=0) == saved and not said(cluster, "plan of generation [2-9]")
    resource.prlimit(cluster.server.pid, resource.RLIMIT_FSIZE, (soft, hard))
    cluster.server.wait_log("the journal can be written again", 30 * slow)
    assert [worker.wait(120 * slow) for worker in (a, b)] == [0, 0], cluster.log_tails()
    check_undisturbed(cluster, tmp_path, slow, 5 * STEPS)


def test_full_disk_at_a_start(make_cluster, slow):
    """A worker and dpt-ctl find a server that takes connections and answers nobody: both say so, with what to do, and
    the worker never takes a connection for a server that is back."""
    cluster = make_cluster(sets={"cluster.timeout_s": 0.5 * slow}, journal=True)
    cluster.start_server()
    log = cluster.state_dir / "journal.sqlite-wal"
    soft, hard = resource.prlimit(cluster.server.pid, resource.RLIMIT_FSIZE)
    assert cluster.server.log_path.stat().st_size < log.stat().st_size / 2  # its log can still be written
    resource.prlimit(cluster.server.pid, resource.RLIMIT_FSIZE, (log.stat().st_size, hard))
    worker = cluster.start_worker("a", nnodes=1)
    cluster.server.wait_log("write the journal .*the server answers nobody until its decisions are written", 30 * slow)
    words = "the server there takes connections but does not answer: see its log (a full disk of its state folder"
    for timeout_s in (1, 5):
        done = subprocess.run([program("dpt-ctl"), "runs", "--rdzv-endpoint", cluster.endpoint(), "--timeout-s",
                               str(timeout_s)], capture_output=True, text=True, timeout=60 * slow, check=False,
                              env=cluster.env)
        assert done.returncode == 3 and words in done.stderr, done
    assert worker.wait(60 * slow) == 3, worker.log_tail()
    assert words in worker.log().splitlines()[-1], worker.log_tail()
    assert worker.log().count("waiting for a server at") == 1, worker.log_tail()
    assert "is back" not in worker.log() and "is gone" not in worker.log(), worker.log_tail()
    resource.prlimit(cluster.server.pid, resource.RLIMIT_FSIZE, (soft, hard))
    cluster.server.wait_log("the journal can be written again", 30 * slow)
