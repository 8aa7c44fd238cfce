"""The journal of the server: kill -9 at any moment, journals that are refused, a full disk, the history."""

import json
import os
import re
import resource
import signal
import sqlite3
import subprocess

import pytest

from calm import calm_hash
from cluster import Process, program, quiet_port, wait_until
from test_refused import one_line, run_program

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


def printed_step(worker):
    """The newest step on the worker's screen: without a server lines of the log wait."""
    return max(map(int, re.findall(r"step (\d+)/", worker.log())), default=0)


def kill_a_rank(worker):
    rank, = worker.rank_pids()
    os.kill(rank, signal.SIGKILL)


def check_undisturbed(cluster, tmp_path, slow):
    """Every step came once, no step was lost, and the weights are those of an undisturbed run."""
    assert [line["step"] for line in cluster.metrics()] == list(range(1, STEPS + 1))
    assert sum(event["steps_lost"] for event in cluster.events()) == 0
    generations = [event["generation"] for event in cluster.events()]
    assert len(set(generations)) == len(generations)
    step, found = cluster.newest_checkpoint()
    assert step == STEPS and found == calm_hash(tmp_path / "calm", cluster.sets, STEPS, 120 * slow)


def test_kill_9_in_every_phase(make_cluster, tmp_path, slow):
    """The server is killed in a formation, while it grants checkpoints, and at the end. Each next one goes on at once:
    it does not wait for a lease, and no step is lost."""
    cluster = make_cluster(sets=make_sets(slow), shared_dirs=True)
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
    cluster = make_cluster(sets=make_sets(slow, **{"cluster.timeout_s": timeout_s}), shared_dirs=True)
    cluster.start_server()
    a, b = (cluster.start_worker(node) for node in "ab")
    cluster.wait_step(10, 60 * slow)
    cluster.server.kill()
    cluster.restart_server(args=["--state-dir", "none"])
    cluster.server.wait_log("adopted generation 1 of an earlier server", 20 * slow)
    kill_a_rank(b)
    newest = cluster.server.wait_log(r"generation ([2-9]) runs", 30 * slow)[1]
    cluster.server.kill()
    cluster.restart_server()
    cluster.server.wait_log(f"adopted generation {newest} of an earlier server", 20 * slow)
    assert [worker.wait(120 * slow) for worker in (a, b)] == [0, 0], cluster.log_tails()
    check_undisturbed(cluster, tmp_path, slow)


def test_history(make_cluster, slow):
    cluster = make_cluster(sets=make_sets(slow, **{"train.steps": 60}), shared_dirs=True)
    cluster.start_server()
    a, b = (cluster.start_worker(node) for node in "ab")
    cluster.wait_step(15, 60 * slow)
    kill_a_rank(b)
    cluster.server.wait_log("generation [2-9] runs", 30 * slow)
    folder = ["--state-dir", cluster.state_dir]
    code, out, err = run_program("dpt-rdzv", "history", *folder)  # while it runs
    assert code == 0 and re.search(r"^run \S+ of \S+: open, ", out), err
    assert [worker.wait(60 * slow) for worker in (a, b)] == [0, 0], cluster.log_tails()
    cluster.server.term()
    assert cluster.server.wait(20 * slow) == 0
    code, out, err = run_program("dpt-rdzv", "history", *folder, "--json")
    assert code == 0, err
    run, = json.loads(out)["runs"]
    assert run["state"] == "done" and run["step"] == run["saved_step"] == 60
    ran = [generation for generation in run["generations"] if generation["ran"]]  # below two nodes none runs
    assert [generation["cause"] for generation in ran] == ["start", "rank_lost"]
    lost = ran[1]
    assert lost["steps_lost"] == 0 and lost["world"] == 2 and re.search(r"rank \d .*died: signal 9", lost["text"])
    assert lost["report_ms"] >= 0 and lost["rebuild_ms"] >= 0 and lost["last_step"] == 60
    assert {each["step"] for each in run["checkpoints"]} >= {60}
    code, out, _ = run_program("dpt-rdzv", "history", *folder, "--run", run["run"])
    assert code == 0 and "died: signal 9" in out and f"run {run['run']} of" in out
    for args, words in ((["--run", "nobody"], "knows no run 'nobody'"), (["x"], "unexpected argument 'x'")):
        code, _, err = run_program("dpt-rdzv", "history", *folder, *args)
        assert code == 2 and words in one_line(err)


def refused(folder, words):
    code, _, err = run_program("dpt-rdzv", "--port", quiet_port(), "--state-dir", folder)
    assert code == 2 and re.search(words, one_line(err)), err
    assert str(folder) in one_line(err)


def test_journals_that_are_refused(make_cluster, tmp_path, slow):
    """Each ends with one line that names the file and the remedy, and with code 2; no byte is changed."""
    cluster = make_cluster()
    cluster.start_server()
    refused(cluster.state_dir, rf"in use by another dpt-rdzv \(process {cluster.server.pid}\): name another")
    cluster.server.term()
    assert cluster.server.wait(20 * slow) == 0
    journal = cluster.state_dir / "journal.sqlite"
    assert journal.stat().st_mode & 0o777 == 0o600
    whole = journal.read_bytes()
    damaged = bytearray(whole)
    damaged[5000:9000] = b"\xa5" * 4000
    with sqlite3.connect(tmp_path / "foreign") as database:
        database.execute("CREATE TABLE prices(a)")
    database.close()
    with sqlite3.connect(journal) as database:
        database.execute("PRAGMA user_version=99")
    database.close()
    for content, words in ((journal.read_bytes(), "version 99, and this dpt-rdzv writes version"),
                           (bytes(damaged), "is damaged"), ((tmp_path / "foreign").read_bytes(), "another program"),
                           (b"x" * 5000, "no journal of dpt-rdzv")):
        journal.write_bytes(content)
        refused(cluster.state_dir, words)
        assert journal.read_bytes() == content
    refused("/proc/nowhere", "--state-dir")
    journal.write_bytes(whole)
    cluster.restart_server()


def test_default_folder_is_of_the_port(tmp_path, slow):
    """Two servers of one machine have a folder each."""
    servers = []
    for _ in range(2):
        port = quiet_port()
        server = Process("server", [program("dpt-rdzv"), "--port", port], tmp_path / f"{port}.log",
                         dict(os.environ, XDG_STATE_HOME=str(tmp_path)))
        server.wait_log("listening on", 20 * slow)
        assert (tmp_path / "dpt-rdzv" / str(port) / "journal.sqlite").exists()
        servers.append(server)
    for server in servers:
        server.term()
        assert server.wait(20 * slow) == 0


def test_full_disk(make_cluster, tmp_path, slow):
    """The server cannot write its journal: it answers nobody, training goes on, and a lost rank is replaced when there
    is room again."""
    cluster = make_cluster(sets=make_sets(slow, **{"cluster.timeout_s": 3 * slow}), shared_dirs=True)
    cluster.start_server()
    a, b = (cluster.start_worker(node) for node in "ab")
    cluster.wait_step(10, 60 * slow)
    log = cluster.state_dir / "journal.sqlite-wal"
    soft, hard = resource.prlimit(cluster.server.pid, resource.RLIMIT_FSIZE)
    assert cluster.server.log_path.stat().st_size < log.stat().st_size / 2  # its log can still be written
    resource.prlimit(cluster.server.pid, resource.RLIMIT_FSIZE, (log.stat().st_size, hard))
    # The next grant is not written, so it is not given.
    cluster.server.wait_log("write the journal .*the server answers nobody until its decisions are written", 30 * slow)
    saved, step = max(cluster.checkpoints(), default=0), printed_step(a)
    wait_until("training goes on", lambda: printed_step(a) >= step + 15, 30 * slow, cluster.log_tails)
    kill_a_rank(b)
    cluster.server.wait_log("forming generation 2", 30 * slow)
    assert max(cluster.checkpoints(), default=0) == saved and not said(cluster, "plan of generation [2-9]")
    resource.prlimit(cluster.server.pid, resource.RLIMIT_FSIZE, (soft, hard))
    cluster.server.wait_log("the journal can be written again", 30 * slow)
    assert [worker.wait(120 * slow) for worker in (a, b)] == [0, 0], cluster.log_tails()
    check_undisturbed(cluster, tmp_path, slow)


@pytest.mark.parametrize("args, words", [
    (["--state-dir", ""], "--state-dir: expected a folder or 'none'"),
    (["--state-dir"], "--state-dir"),
    (["--state-dir", "/dev/null"], "--state-dir: .*/dev/null"),
])
def test_options(args, words):
    code, _, err = run_program("dpt-rdzv", "--port", quiet_port(), *args)
    assert code == 2 and re.search(words, one_line(err)), err


def test_port_0_has_no_journal(tmp_path, slow):
    """A server that listens anywhere is found by no node of an earlier one."""
    port_file = tmp_path / "port"
    server = Process("server", [program("dpt-rdzv"), "--port", 0, "--port-file", port_file], tmp_path / "log",
                     dict(os.environ, XDG_STATE_HOME=str(tmp_path)))
    server.wait_log("listening on", 20 * slow)
    assert not (tmp_path / "dpt-rdzv").exists()
    server.term()
    assert server.wait(20 * slow) == 0
    assert subprocess.run([program("dpt-rdzv"), "history", "--state-dir", tmp_path], capture_output=True,
                          timeout=20 * slow).returncode == 2
