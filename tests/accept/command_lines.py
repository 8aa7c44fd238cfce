"""Runs command lines with wrong values (draws.py): each ends with one line and its exit code.

    check_lines(number, seed, folder, bin_dir)   draws and runs them; returns what was wrong, as text
"""

import ctypes
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import time
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from accept.draws import CODES, Draw, Drawer, Programs, SLOW
from cluster import ClusterError, bin_dir, make_text, wait_until
from processes import MARK, marked_pids, send_signal

# A program that takes longer hangs. The longest draws of dpt-worker wait for a server for 2.4 s; no other waits.
HANG_S = {"dpt-worker": 10, "dpt-rdzv": 5, "dpt-ckpt": 5, "dpt-data": 5, "dpt-plan": 10, "dpt-plot": 5,
          "dpt-trace": 5, "dpt-doctor": 5, "dpt-ctl": 5, "dpt-bench": 5}
END_S = max(HANG_S.values())
LINE_BYTES_MAX = 1200  # DPT_ERR_TEXT_BYTES, and the prefix of the program
LOGGED = re.compile(r"^(?:\[local rank \d+\] )?\S+Z ([DIWE]) ")
RATE = re.compile(r"^dpt-ckpt: step \d+, \d+ tokens in ")  # beside a generated text
PR_SET_CHILD_SUBREAPER = 36


def error_lines(draw, err):
    """(error lines, lines that are neither an error nor a line of the log)."""
    errors, strange = [], []
    for line in err.splitlines():
        logged = LOGGED.match(line)
        if RATE.match(line):
            continue
        if line.startswith(f"{draw.program}: ") or line.startswith(f"{draw.program} ") and draw.program == "dpt-bench":
            errors.append(line)
        elif logged:
            errors += [line] if logged[1] == "E" else []
        else:
            strange.append(line)
    return errors, strange


def judge(draw, code, err, out=""):
    """What is wrong with the end of the program, from what it printed to stderr and stdout; "": nothing."""
    errors, strange = error_lines(draw, err)
    if code < 0:
        return f"ended by signal {-code}"
    if code not in draw.codes:
        return f"exit code {code}, wanted one of {sorted(draw.codes)}"
    reports = draw.program == "dpt-doctor" and code == 1 and out != ""  # its report says what is wrong
    if len(errors) != (code != 0 and not reports):
        return f"{len(errors)} error lines with exit code {code}"
    if strange:
        return f"neither an error nor a line of the log: {strange[0][:200]!r}"
    if errors and len(errors[0].encode()) > LINE_BYTES_MAX:
        return f"a line of {len(errors[0].encode())} bytes"
    if "killed by signal" in err:
        return "a rank process died of a signal"
    missing = [name for name in draw.names if errors and not re.search(name, errors[0])]
    return f"the line lacks {missing}" if missing else ""


def listens(folder):
    return "listening on" in (folder / "out").read_text(errors="replace")


def flip_byte(folder, share):
    """Flips one bit in the files below `folder`; `share` (0 to 1) chooses the byte among all their bytes."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    at = int(share * sum(path.stat().st_size for path in files))
    for path in files:
        size = path.stat().st_size
        if at < size:
            data = bytearray(path.read_bytes())
            data[at] ^= 1
            path.write_bytes(data)
            return
        at -= size


def run_draw(draw, programs, folder):
    """Runs a draw with the programs of the folder `programs` in the new folder `folder`; returns (what is wrong or "",
    seconds, exit code)."""
    folder.mkdir(parents=True)
    for name, content in draw.files.items():
        (folder / name).write_bytes(content)
    if draw.pipe:
        os.mkfifo(folder / "pipe")
    if draw.checkpoints is not None:
        shutil.copytree(draw.checkpoints, folder / "ck")
    if draw.damage is not None:
        flip_byte(folder / "ck", draw.damage)
    mark = uuid.uuid4().hex
    env = {k: v for k, v in os.environ.items() if k != "DPT_RDZV_ENDPOINT"} | {MARK: mark}
    env["DPT_KEY_DIR"] = str((folder / "keys").resolve())
    env["XDG_STATE_HOME"] = str(folder / "state")  # of journals
    argv = [str(programs / draw.program), *draw.args]
    began = time.monotonic()
    with open(folder / "out", "wb") as out, open(folder / "err", "wb") as err:
        run = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=folder, env=env,
                               start_new_session=True)
    limit_s, wrong = HANG_S[draw.program] * SLOW, ""
    try:
        if draw.program == "dpt-rdzv":  # if the draw is valid, the server runs until a signal
            wait_until("it listens or ends", lambda: run.poll() is not None or listens(folder), limit_s)
            run.send_signal(signal.SIGTERM)
        run.wait(limit_s)
    except (ClusterError, subprocess.TimeoutExpired):
        wrong = f"did not {'listen or ' if draw.program == 'dpt-rdzv' else ''}end within {limit_s:g} s"
    seconds = time.monotonic() - began
    left = marked_pids(mark)
    for pid in left:
        send_signal(pid, signal.SIGKILL)
    run.wait()
    wrong = wrong or judge(draw, run.returncode, *((folder / name).read_text(errors="replace")
                                                   for name in ("err", "out")))
    if not wrong and left:
        wrong = f"left processes behind: {left}"
    if not wrong and any(folder.glob("core*")):
        wrong = "dumped core"
    return wrong, seconds, run.returncode


def run_lines(number, seed, folder, bin_dir, jobs=None):
    """Draws `number` command lines from `seed`, runs them with the programs in `bin_dir` below the new `folder`.
    Returns [(what is wrong as text, program, exit code, seconds)]."""
    folder, programs = Path(folder), Programs(bin_dir)
    folder.mkdir(parents=True, exist_ok=True)
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (resource.getrlimit(resource.RLIMIT_CORE)[1],) * 2)
    text = make_text(folder / "text.txt", 20_000).resolve()
    made = Drawer(programs, random.Random(seed), text).worker(
        ["--set", "checkpoint.dir=ck", "--set", "checkpoint.every_steps=1", "--set", "checkpoint.keep=9"], {0})
    wrong, _, _ = run_draw(made, programs.folder, folder / "made")
    if wrong:
        raise AssertionError(f"the run that makes checkpoints: {wrong}: {(folder / 'made' / 'err').read_text()}")
    draws = [Drawer(programs, random.Random(f"{seed}:{i}"), text, folder / "made" / "ck").draw()
             for i in range(number)]

    def run(numbered):
        i, draw = numbered
        wrong, seconds, code = run_draw(draw, programs.folder, folder / str(i))
        why = ""
        if wrong:
            argv = json.dumps([draw.program, *draw.args])
            err = (folder / str(i) / "err").read_text(errors="replace")
            why = f"draw {i} of seed {seed}: {wrong}\n  {argv[:700]}\n  {draw.note}\n  {err[-1200:]}"
        return why, draw.program, code, seconds

    with ThreadPoolExecutor(jobs or len(os.sched_getaffinity(0))) as pool:
        return list(pool.map(run, enumerate(draws)))


def check_lines(number, seed, folder, bin_dir):
    """As run_lines; returns (failures as text, Counter of (program, exit code), the longest time in seconds)."""
    results = run_lines(number, seed, folder, bin_dir)
    return ([why for why, _, _, _ in results if why], Counter((program, code) for _, program, code, _ in results),
            max(seconds for _, _, _, seconds in results))


# Fake programs: name of the fault, program, shell script, and the complaint that run_draw must return.
FAKES = [
    ("leaves a child", "dpt-data", "sleep 300 & exit 0", "left processes behind"),
    ("complains twice", "dpt-data", "echo dpt-data: one >&2; echo dpt-data: two >&2; exit 2", "2 error lines"),
    ("dies of a signal", "dpt-data", "kill -SEGV $$", "ended by signal 11"),
    ("never listens", "dpt-rdzv", "trap '' TERM; while :; do sleep 0.1; done", "did not listen or end"),
    ("ignores SIGTERM", "dpt-rdzv", "trap '' TERM; echo listening on x; while :; do sleep 0.1; done",
     "did not listen or end"),
]


def unnoticed(folder):
    """The faults of fake programs that run_draw does not find. Checks that no process is left each time."""
    missed = []
    for what, program, script, expected in FAKES:
        place = folder / what.replace(" ", "-")
        place.mkdir(parents=True)
        fake = place / program
        fake.write_text(f"#!/bin/sh\n{script}\n")
        fake.chmod(0o755)
        wrong, _, _ = run_draw(Draw(program, [], {0, 2}), place, place / "run")
        if not wrong.startswith(expected):
            missed.append(f"{what}: {wrong or 'nothing found'}")
    return missed


def command_lines(line):
    """1,000 random command lines and configs made of real keys and options with wrong values: each ends with one line
    and its exit code; none hangs or leaves a process behind. Fake programs with each of these faults run first: all
    faults are found."""
    missed = unnoticed(line.folder / "fakes")
    line.show(f"faults of {len(FAKES)} fake programs that are not found", ", ".join(missed) or "none", "none",
              not missed)
    number = line.repeat(1000)
    line.command(f"{number} command lines of {', '.join(CODES)}")
    results = run_lines(number, line.seed, line.folder / "lines", bin_dir().resolve())
    failures = [why for why, _, _, _ in results if why]
    for why in failures:
        line.note(why)
    for (program, code), count in sorted(Counter((program, code) for _, program, code, _ in results).items()):
        line.note(f"{count:5} of {program} ended with {code}")
    line.show("command lines with a wrong end", len(failures), "== 0", not failures)
    for name in HANG_S:
        longest_s = max((seconds for _, program, _, seconds in results if program == name), default=0)
        line.show(f"the longest of {name} took, s", round(longest_s, 1), f"< {HANG_S[name]}", longest_s < HANG_S[name])
