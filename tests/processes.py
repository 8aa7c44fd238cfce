"""Processes as /proc shows them: state, threads, files and children, and which ones a cluster started."""

import os
import tempfile
from pathlib import Path

MARK = "DPT_TEST_CLUSTER"  # in the environment of every process of a cluster (cluster.py)
# Keys of the programs that this process starts, in place of the user's own; removed at its end.
KEYS = tempfile.TemporaryDirectory(prefix="dpt-keys-")
os.environ["DPT_KEY_DIR"] = KEYS.name
os.environ.pop("DPT_RDZV_TOKEN", None)


def proc_read(pid, name):
    """Bytes of /proc/PID/NAME, b"" when the process is gone or not ours."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def proc_state(pid):
    """One letter (R S D T Z …), "" when the process is gone."""
    stat = proc_read(pid, "stat")
    return stat[stat.rindex(b")") + 2:][:1].decode() if b")" in stat else ""


def proc_alive(pid):
    """True while the process runs (a zombie does not)."""
    return proc_state(pid) not in ("", "Z", "X")


def proc_threads(pid):
    try:
        return len(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return 0


def proc_fds(pid):
    """{fd: target of its link}."""
    fds = {}
    try:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            try:
                fds[int(fd)] = os.readlink(f"/proc/{pid}/fd/{fd}")
            except OSError:
                pass
    except OSError:
        pass
    return fds


def proc_children(pid):
    children = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            children += [int(c) for c in proc_read(pid, f"task/{task}/children").split()]
    except OSError:
        pass
    return children


def marked_pids(mark):
    """Processes that run with this mark in their environment (zombies have none)."""
    needle = f"{MARK}={mark}".encode()
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and needle in proc_read(entry, "environ").split(b"\0"):
            found.append(int(entry))
    return sorted(found)


def send_signal(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
