"""The output of a worker, on a pseudo terminal with a small model of its screen, and without a terminal."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time

import pytest

from cluster import program

STEP = re.compile(r"step (\d+)/(\d+)  loss \d+\.\d{4}  lr \d\.\d\de-\d\d  norm \d+\.\d\d  [\d,]+ tokens/s  "
                  r"(\d+) ranks?  [\d.]+ (?:s|min \d\d s)  ETA [\d.]+ (?:s|min \d\d s)")
DEMO = ["--set", "optimizer.warmup_steps=1", "--set", "cluster.threads=1"]


class Screen:
    """Rows of a terminal with `columns`: supports carriage return, newline, erase below and cursor up. Any other
    sequence is an error, and so is a character beyond the last column."""

    def __init__(self, columns):
        self.columns, self.rows, self.row, self.column = columns, [""], 0, 0

    def feed(self, text):
        at = 0
        while at < len(text):
            found = re.compile(r"\x1b\[(\d*)([A-Za-z])").match(text, at)
            if found:
                self.escape(int(found[1] or 1), found[2])
                at = found.end()
                continue
            self.character(text[at])
            at += 1

    def escape(self, number, letter):
        assert letter in "JA", letter
        if letter == "A":
            self.row -= number
            return
        self.rows[self.row] = self.rows[self.row][:self.column]
        del self.rows[self.row + 1:]

    def character(self, c):
        if c == "\r":
            self.column = 0
        elif c == "\n":
            self.row += 1
            self.rows += [""] * (self.row + 1 - len(self.rows))
        else:
            assert c.isprintable(), repr(c)
            row = self.rows[self.row].ljust(self.column)
            self.rows[self.row] = row[:self.column] + c + row[self.column + 1:]
            self.column += 1


def on_terminal(argv, cwd, env, columns, act=None, timeout=60):
    """Runs a program on a pseudo terminal, with standard error in a file; returns exit code, screen and all bytes.
    Calls `act` with the process and the text so far whenever there is new text."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with open(cwd / "stderr.log", "wb") as err:
        process = subprocess.Popen([str(a) for a in argv], cwd=cwd, env=env, stdin=slave, stdout=slave, stderr=err,
                                   start_new_session=True)
    os.close(slave)
    data, deadline = b"", time.monotonic() + timeout
    while time.monotonic() < deadline:
        if not select.select([master], [], [], 0.1)[0]:
            continue
        try:
            more = os.read(master, 65536)
        except OSError:  # the last writer is gone
            break
        if not more:
            break
        data += more
        if act:
            act(process, data.decode(errors="replace"))
    else:
        process.kill()
    os.close(master)
    code = process.wait()
    screen = Screen(columns)
    screen.feed(data.decode())
    return code, screen, data


@pytest.fixture
def environment():
    env = {k: v for k, v in os.environ.items() if k not in ("DPT_RDZV_ENDPOINT", "NO_COLOR")}
    return dict(env, TERM="xterm", LC_ALL="C.UTF-8")


@pytest.fixture
def worker():
    return program("dpt-worker")


def lines_of(screen):
    return [row for row in screen.rows if row]


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_live_line_below_events(tmp_path, worker, environment, slow, columns):
    """Events scroll, and the live line is redrawn below them and removed at the end."""
    argv = [worker, "--nnodes", 1, "--set", "train.steps=30", *DEMO]
    code, screen, data = on_terminal(argv, tmp_path, environment, columns, timeout=120 * slow)
    assert code == 0, (tmp_path / "stderr.log").read_text()
    drawn = re.findall(r"\r(?:\x1b\[J)?([^\r\n\x1b]*step \d+/30[^\r\n\x1b]*)", data.decode())
    assert len(drawn) >= 2, data
    assert all(len(line) < columns for line in drawn), drawn
    assert columns < 60 or any("█" in line or "░" in line for line in drawn)
    rows = lines_of(screen)
    assert not any("step 30/30" in row and "loss" in row for row in rows), rows  # the live line is gone
    assert any(row.startswith("generation 1: training on 1 rank") for row in rows), rows
    assert any(row.startswith("done: run demo, step 30, generation 1") for row in rows), rows
    assert rows[-1].startswith("  weights hash     "), rows


def test_events_scroll_above_a_live_line(tmp_path, worker, environment, slow):
    """A rank is killed while the live line is shown: the event gets a separate row, and the live line returns below
    it."""
    killed = []  # the rank, then that the worker was told to leave

    def kill_rank(process, text):
        if not killed and re.search(r"step \d+/", text):
            found = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split()
            if found:
                os.kill(int(found[0]), signal.SIGKILL)
                killed.append(found[0])
        if len(killed) == 1 and re.search(r"training resumed[^\x1b]*\n[^\n]*step \d+/", text):
            process.send_signal(signal.SIGTERM)
            killed.append("the worker leaves")

    argv = [worker, "--nnodes", 1, "--node-id", "me", "--set", "train.steps=100000", "--set",
            "checkpoint.every_steps=1", *DEMO]
    code, screen, _ = on_terminal(argv, tmp_path, environment, 120, kill_rank, 120 * slow)
    assert code == 0 and killed
    rows = lines_of(screen)
    events = [row for row in rows if "training resumed after" in row]
    text = "".join(rows)  # a long line goes on in the next row of a real terminal; the model's rows have no end
    assert len(events) == 1, rows
    assert re.match(r"rank 0 \(node me, host \S+\) died: signal 9", events[0]), events
    assert "step" not in events[0].split("training resumed")[0], events
    assert "left the run as asked" in text


def test_signal_leaves_a_clean_screen(tmp_path, worker, environment, slow):
    told = []

    def stop(process, text):
        if not told and re.search(r"step \d+/", text):
            process.send_signal(signal.SIGTERM)
            told.append(True)

    argv = [worker, "--nnodes", 1, "--set", "train.steps=100000", *DEMO]
    code, screen, _ = on_terminal(argv, tmp_path, environment, 80, stop, 60 * slow)
    assert code == 0
    assert lines_of(screen)[-1].startswith("left the run as asked"), screen.rows


@pytest.mark.parametrize("extra", [{"TERM": "dumb"}, {"NO_COLOR": "1"}])
def test_terminal_without_live_line(tmp_path, worker, environment, slow, extra):
    argv = [worker, "--nnodes", 1, "--set", "train.steps=4", *DEMO]
    code, screen, data = on_terminal(argv, tmp_path, dict(environment, **extra), 80, timeout=60 * slow)
    assert code == 0 and b"\x1b" not in data
    assert sum(bool(STEP.fullmatch(row)) for row in lines_of(screen)) == 4, screen.rows


def test_ascii_where_the_locale_is(tmp_path, worker, environment, slow):
    argv = [worker, "--nnodes", 1, "--set", "train.steps=8", *DEMO]
    code, _, data = on_terminal(argv, tmp_path, dict(environment, LC_ALL="C"), 80, timeout=60 * slow)
    assert code == 0 and data.isascii() and b"\x1b" in data


def run_demo(tmp_path, environment, slow, *args):
    done = subprocess.run([str(program("dpt-worker")), "--nnodes", "1", *DEMO, *args], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=120 * slow, env=environment, cwd=tmp_path)
    return done.returncode, done.stdout, done.stderr


def test_without_terminal(tmp_path, environment, slow):
    """Without a terminal there is a line of one form every log_every steps and no escape code; the closing block has
    the values of summary.json."""
    code, out, err = run_demo(tmp_path, environment, slow, "--set", "train.steps=14", "--set", "train.log_every=4",
                              "--set", "checkpoint.every_steps=5", "--set", "checkpoint.dir=ck")
    assert code == 0, out + err
    assert "\x1b" not in out + err
    lines = [line for line in out.splitlines() if line.startswith("step ")]
    assert all(STEP.fullmatch(line) for line in lines), lines
    assert [int(STEP.fullmatch(line)[1]) for line in lines] == [4, 8, 12, 14]
    summary = json.loads((tmp_path / "runs" / "demo" / "summary.json").read_text())
    block = dict(re.findall(r"^  (\S[^\n]*?)  +(.*)$", out.split("done: ")[1], re.M))
    assert block["steps"] == "14" and summary["steps"] == 14
    assert block["last loss"] == f"{summary['loss']:.4f}"
    assert block["time of a step"] == f"{summary['step_ms']:.1f} ms on average"
    assert block["samples/s"] == f"{summary['samples_per_s']:.1f}"
    assert block["tokens/s"] == f"{round(summary['tokens_per_s']):,}"
    assert block["peak memory"] == f"{summary['peak_bytes_per_rank'] / 2**20:.0f} MiB a rank"
    assert block["checkpoints"] == "3 saved, the last of step 14" and summary["checkpoints_saved"] == 3
    assert block["recoveries"] == "0, 0 steps lost" and summary["recoveries"] == 0
    assert block["weights hash"] == summary["weights_hash"]
    assert summary["total_s"] > 0 and re.fullmatch(r"[\d.]+ s", block["total time"])


def test_quiet_and_verbose(tmp_path, environment, slow):
    code, out, err = run_demo(tmp_path, environment, slow, "--set", "train.steps=3", "--quiet", "--set",
                              "checkpoint.dir=null")
    assert code == 0 and err == "", err
    assert out.startswith("done: run demo, step 3, generation 1\n  steps "), out
    code, out, err = run_demo(tmp_path, environment, slow, "--set", "train.steps=3", "--verbose", "--set",
                              "checkpoint.dir=null")
    assert code == 0 and "Z D dpt-worker" in err and "step 3/3" in out, out + err


def test_recovery_is_one_line_on_every_node(make_cluster, slow):
    """A worker is killed and another joins: each survivor prints one line, and only rank 0's node prints steps, each
    once. The closing block counts the recoveries before a restart, too."""
    cluster = make_cluster(sets={"train.steps": 100000, "train.log_every": 1, "checkpoint.every_steps": 0})
    cluster.start_server()
    a = cluster.start_worker("a")
    a.wait_log("training on 1 rank", 30 * slow)
    b = cluster.start_worker("b")
    joined = r"^node b \(host \S+, rank 1\) joined; training resumed after \d+ ms, 0 steps lost, world 1 -> 2$"
    a.wait_log("(?m)" + joined, 30 * slow)
    cluster.wait_world(2, 30 * slow)
    b.kill_machine()
    lost = (r"^node b \(host \S+, rank 1\) lost: control and data connections broken; "
            r"training resumed after \d+ ms, 0 steps lost, ")
    a.wait_log("(?m)" + lost + "world 2 -> 1$", 30 * slow)
    cluster.wait_world(1, 30 * slow)
    a.term()
    assert a.wait(20 * slow) == 0
    step, = cluster.checkpoints()
    shown = [int(number) for number in re.findall(r"^step (\d+)/100000 ", a.log(), re.M)]
    assert shown == list(range(1, step + 1))
    assert not re.search(r"^step ", b.log(), re.M)
    end = cluster.start_worker("a", nnodes=1, endpoint=False, sets={"train.steps": step + 2},
                               args=["--allow-change", "train.steps"])
    assert end.wait(60 * slow) == 0, end.log_tail()
    assert re.search(rf"^  steps            {step + 2:,}, from {step} on$", end.log(), re.M), end.log()
    assert re.search(r"^  recoveries       1, 0 steps lost$", end.log(), re.M), end.log()
