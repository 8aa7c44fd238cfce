"""The journal of the server: its history, its folder, journals that are refused."""

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
from contextlib import closing

import pytest

from cluster import Process, program, quiet_port
from test_ctl import ctl
from test_refused import one_line, run_program


def make_sets(slow):
    return {"train.steps": 60, "checkpoint.every_steps": 10, "train.log_every": 1, "cluster.nnodes": 2,
            "cluster.timeout_s": 5 * slow}


def kill_a_rank(worker):
    rank, = worker.rank_pids()
    os.kill(rank, signal.SIGKILL)


def test_history(make_cluster, slow):
    cluster = make_cluster(sets=make_sets(slow), shared_dirs=True, journal=True)
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


@pytest.mark.parametrize("later", [1, 3])
def test_older_copy_loses_no_step(make_cluster, slow, later):
    """A server gets a copy of the journal from the middle of a formation. It forms at once, under a number that the
    nodes have already, or that is below theirs."""
    cluster = make_cluster(sets={**make_sets(slow), "train.steps": 10**6, "checkpoint.every_steps": 10**6},
                           shared_dirs=True, journal=True)
    cluster.start_server()
    a, b = (cluster.start_worker(node) for node in "ab")
    cluster.wait_step(5, 60 * slow)
    b.kill_machine()
    cluster.server.wait_log("fewer than 2 nodes", 30 * slow)
    journal = cluster.state_dir / "journal.sqlite"
    with closing(sqlite3.connect(journal)) as source, closing(sqlite3.connect(cluster.root / "copy")) as copy:
        source.backup(copy)
    b = cluster.start_worker("b")
    cluster.server.wait_log("generation [2-9] runs, world 2", 60 * slow)
    for _ in range(1, later):
        step = cluster.step()
        kill_a_rank(b)
        cluster.wait_step(step + 5, 60 * slow)
    cluster.server.kill()
    for file in cluster.state_dir.iterdir():
        file.unlink()
    shutil.copy(cluster.root / "copy", journal)
    journal.chmod(0o600)
    step = cluster.step()
    server = cluster.restart_server()
    newest = r"node \w is in generation \d+ of another server, .*: forming generation \d+ in place"
    server.wait_log(rf"(?s){newest}.*generation \d+ runs, world 2", 60 * slow)
    cluster.wait_step(step + 5, 60 * slow)
    ctl(cluster, "stop", "tiny")
    assert [worker.wait(60 * slow) for worker in (a, b)] == [0, 0], cluster.log_tails()
    after = server.log()[server.log().rindex("the journal knows this run"):]
    assert not re.search(r"\) lost: |expelled", after), after


def refused(folder, words):
    code, _, err = run_program("dpt-rdzv", "--port", quiet_port(), "--state-dir", folder)
    assert code == 2 and re.search(words, one_line(err)), err
    assert str(folder) in one_line(err)


def test_journals_that_are_refused(make_cluster, tmp_path, slow):
    """Each ends with one line that names the file and the remedy, and with code 2; no byte is changed."""
    cluster = make_cluster(journal=True)
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
