"""Runs dpt-trace, which DPT_TRACE names, and looks at what it says and writes."""

import csv
import gzip
import json
import os
import subprocess

import synthetic

PROGRAM = os.environ["DPT_TRACE"]
TIMEOUT_S = 60


def trace(folder, *args):
    return subprocess.run([PROGRAM, *map(str, args)], cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S)


def rows_of(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def report(folder, run, *args, command="ddp", base="reports"):
    synthetic.write(folder / "traces", run)
    done = trace(folder, command, *args)
    assert done.returncode == 0, done.stderr
    return rows_of(folder / base / run.strategy / "summary.csv"), done


def change_events(path, change):
    """Writes a trace again with other events."""
    whole = json.loads(gzip.decompress(path.read_bytes()))
    whole["traceEvents"] = change(whole["traceEvents"])
    path.write_bytes(gzip.compress(json.dumps(whole).encode()))


def near(value, expected, share=0.05):
    assert abs(float(value) - expected) <= share * abs(expected) + 1e-9, (value, expected)


def refused(done, *words, code=1):
    assert done.returncode == code, (done.returncode, done.stderr)
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("dpt-trace: "), done.stderr
    assert all(word in done.stderr for word in words), done.stderr
