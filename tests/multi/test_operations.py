"""docs/operations.md and docs/journal.md: each command and each query of their examples runs on a real run that has
lost a rank and a node, and on its journal."""

import os
import re
import shlex
import shutil
import signal
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

from cluster import program

DOCS = Path(__file__).resolve().parents[2] / "docs"
PLACES = ("~/.local/state/dpt-rdzv/29500/journal.sqlite", "$db")


def examples(page):
    """The commands of the page's examples, without those that start a server and those that are a form ([…])."""
    text = (DOCS / page).read_text()
    blocks = "".join(re.findall(r"^```\n(.*?)^```", text, re.M | re.S)).replace("\\\n", " ")
    commands = [shlex.split(line, comments=True) for line in blocks.splitlines()]
    return [each for each in commands if each and each[0] in ("dpt-ctl", "dpt-doctor", "sqlite3") or
            each[:2] == ["dpt-rdzv", "history"] and not any("[" in word for word in each)]


def run_sql(words, journal, backup):
    """As the program sqlite3, which may be missing here. Returns the rows."""
    words = [str(journal) if word in PLACES else word.replace("/backup/journal.sqlite", str(backup)) for word in words]
    if shutil.which("sqlite3"):
        done = subprocess.run(words, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and done.stderr == "", (words, done)
    with closing(sqlite3.connect(f"file:{journal}?mode=ro", uri=True)) as database:
        if not words[-1].startswith(".backup "):
            return database.execute(words[-1]).fetchall()
        with closing(sqlite3.connect(backup)) as copy:
            database.backup(copy)
        return [("copied",)]


def run_program(words, cluster):
    places = {"head:29500": cluster.endpoint(), "my-run": "tiny"}
    if "--log" in words:
        places["my-run"] = str(cluster.dirs("a")[0])
    argv = [program(words[0]), *(places.get(word, word) for word in words[1:])]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120,
                          env={**os.environ, "DPT_RDZV_ENDPOINT": cluster.endpoint()})
    assert done.returncode == 0 and done.stdout, (argv, done)


def test_examples_run(make_cluster, tmp_path, slow):
    sets = {"train.steps": 1000000, "checkpoint.every_steps": 20, "train.log_every": 1, "cluster.nnodes": "1:2",
            "cluster.timeout_s": 5 * slow}
    cluster = make_cluster(sets=sets, shared_dirs=True, journal=True)
    cluster.start_server()
    a, b = (cluster.start_worker(node, sets={"cluster.rack": f"rack-{node}"}) for node in "ab")
    cluster.wait_world(2, 60 * slow)
    rank, = b.rank_pids()
    os.kill(rank, signal.SIGKILL)
    cluster.server.wait_log("generation [2-9] runs, world 2", 60 * slow)
    cluster.wait_world(2, 60 * slow)
    b.kill()
    cluster.wait_world(1, 60 * slow)

    journal, backup = cluster.state_dir / "journal.sqlite", tmp_path / "backup.sqlite"
    commands = examples("operations.md") + examples("journal.md")
    assert len(commands) >= 16, commands
    found = {}
    for words in sorted(commands, key=lambda each: each[:2] == ["dpt-ctl", "stop"]):  # in their order, the end at last
        if words[0] == "sqlite3":
            found[words[-1].split(" FROM ")[0]] = rows = run_sql(words, journal, backup)
            assert rows, words
        else:
            run_program(words, cluster)
    assert a.wait(30 * slow) == 0, a.log_tail()
    assert [row[:2] for row in found["SELECT node, count(*) AS times, max(at) AS newest"]] == [("b", 1)]
    assert found["SELECT rack, count(*) AS losses"] == [("rack-b", 1)]
    recoveries, = (rows for query, rows in found.items() if query.startswith("SELECT cause, count"))
    assert {row[0] for row in recoveries} >= {"rank_lost", "node_lost"}

    for state_dir in (cluster.state_dir, tmp_path / "restored"):
        if state_dir != cluster.state_dir:  # a back-up, shortened as the page says
            shorter, = re.findall(r"`(DELETE FROM record [^`]+)`", (DOCS / "journal.md").read_text())
            state_dir.mkdir(mode=0o700)
            shutil.copy(backup, state_dir / "journal.sqlite")
            with closing(sqlite3.connect(state_dir / "journal.sqlite")) as database:
                database.execute(shorter)
                database.commit()
        for option, rack in ([], "rack-a"), (["--json"], "rack-b"):  # the text has the racks of the newest plan
            done = subprocess.run([program("dpt-rdzv"), "history", "--state-dir", state_dir, *option],
                                  capture_output=True, text=True, timeout=60)
            assert done.returncode == 0 and "tiny" in done.stdout and rack in done.stdout, done
