"""Runs the lines of a topic, prints and records their figures. A line is a function that takes a Line and calls its
`show` once for every figure; a line passes if it showed at least one figure, every figure met its bar and no exception
was raised."""

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
import traceback
from pathlib import Path

from cluster import ROOT, ClusterError

COLOUR = sys.stdout.isatty() and "NO_COLOR" not in os.environ


class NotRun(Exception):
    """This machine lacks something that a line needs; the text names it."""


class Line:
    """One line of "must show" while it runs."""

    def __init__(self, topic, number, function, options):
        self.number, self.name = number, function.__name__
        self.title = " ".join(function.__doc__.split())
        self.scale, self.seed = options.scale, options.seed
        self.folder = ROOT / "runs" / "acceptance" / topic / f"{number:02}-{self.name}"
        self.figures, self.commands = [], []

    def repeat(self, count):
        """`count` repetitions times the requested scale, at least one."""
        return max(1, round(count * self.scale))

    def command(self, text):
        """Prints and records the command; a list is a command line."""
        text = text if isinstance(text, str) else " ".join(str(a) for a in text)
        self.commands.append(text)
        print(f"    command  {text}", flush=True)

    def show(self, what, value, bar, ok, unit=""):
        """Prints and records one figure beside its bar."""
        ok = bool(ok)
        self.figures.append({"what": what, "value": value, "unit": unit, "bar": bar, "ok": ok})
        shown = f"{value:.4g}" if isinstance(value, float) else str(value)
        mark = paint("32", "ok") if ok else paint("31", "MISSED")
        print(f"    figure   {what}: {shown}{' ' + unit if unit else ''}   bar: {bar}   {mark}", flush=True)
        return ok

    def at_most(self, what, value, bar, unit=""):
        return self.show(what, value, f"<= {bar:g}{' ' + unit if unit else ''}", value <= bar, unit)

    def at_least(self, what, value, bar, unit=""):
        return self.show(what, value, f">= {bar:g}{' ' + unit if unit else ''}", value >= bar, unit)

    def note(self, text):
        print(f"    note     {text}", flush=True)


def paint(code, text):
    return f"\033[{code}m{text}\033[0m" if COLOUR else text


def list_lines(topic, lines):
    print(topic)
    for number, function in enumerate(lines, 1):
        print(f"  {number:>2}  {function.__name__:<22} {' '.join(function.__doc__.split())}")


def host():
    """The machine on which the figures are measured."""
    model = ""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        for text in file:
            if text.startswith("model name"):
                model = text.split(":", 1)[1].strip()
                break
    return {"cpu": model, "cores": len(os.sched_getaffinity(0)), "kernel": platform.release(),
            "machine": platform.machine()}


def commit():
    """The commit of this checkout, followed by -dirty if tracked files are changed."""
    run = subprocess.run(["git", "-C", str(ROOT), "describe", "--always", "--exclude=*", "--dirty", "--abbrev=40"],
                         capture_output=True, text=True)
    return run.stdout.strip() if run.returncode == 0 else ""


def run_line(line, function):
    """Runs one line; returns its record."""
    shutil.rmtree(line.folder, ignore_errors=True)
    line.folder.mkdir(parents=True)
    print(paint("1", f"{line.number:>2}  {line.name}") + f": {line.title}", flush=True)
    started, error = time.monotonic(), ""
    try:
        function(line)
    except NotRun as reason:
        print(f"    verdict  not run: {reason}\n", flush=True)
        return {"number": line.number, "name": line.name, "title": line.title, "verdict": "not run", "why": str(reason)}
    except ClusterError as failure:
        error = str(failure)
    except Exception:  # a line that breaks is a line that failed; its trace is part of the record
        error = traceback.format_exc()
    seconds = time.monotonic() - started
    passed = not error and bool(line.figures) and all(figure["ok"] for figure in line.figures)
    if error:
        print("    " + error.rstrip().replace("\n", "\n    "))
    if passed:
        shutil.rmtree(line.folder, ignore_errors=True)
    else:
        print(f"    files    {line.folder.relative_to(ROOT)}   seed {line.seed}")
    print(f"    verdict  {paint('32', 'PASS') if passed else paint('31', 'FAIL')}   ({seconds:.1f} s)\n", flush=True)
    return {"number": line.number, "name": line.name, "title": line.title, "commands": line.commands,
            "figures": line.figures, "error": error, "verdict": "pass" if passed else "fail",
            "seconds": round(seconds, 1)}


def run_topic(topic, lines, only, options):
    """Runs the lines (all, or those with the numbers in `only`); returns the exit code. The record's verdict is fail if
    a line failed, else partial if a line was not run or the scale is below 1, else pass."""
    started = time.monotonic()
    records = []
    for number, function in enumerate(lines, 1):
        if only and number not in only:
            continue
        records.append(run_line(Line(topic, number, function, options), function))
    failed = [record for record in records if record["verdict"] == "fail"]
    not_run = [{"number": number, "name": function.__name__} for number, function in enumerate(lines, 1)
               if only and number not in only]
    not_run += [{key: record[key] for key in ("number", "name", "why")} for record in records
                if record["verdict"] == "not run"]
    records = [record for record in records if record["verdict"] != "not run"]
    partial = not_run or options.scale < 1
    folder = Path(os.environ.get("DPT_BIN") or ROOT / "build" / "bin")
    programs = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.glob("dpt-*"))}
    result = {"topic": topic, "verdict": "fail" if failed else "partial" if partial else "pass", "not_run": not_run,
              "commit": commit(), "bin": str(folder), "programs_sha256": programs, "host": host(),
              "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "scale": options.scale, "seed": options.seed,
              "seconds": round(time.monotonic() - started, 1), "lines": records}
    path = options.json or ROOT / "runs" / "acceptance" / f"{topic}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    for record in records:
        verdict = paint("32", "pass") if record["verdict"] == "pass" else paint("31", "FAIL")
        print(f"  {record['number']:>2}  {record['name']:<22} {verdict}   {record['seconds']:.1f} s")
    rest = f", {len(not_run)} not run" if not_run else ""
    print(f"{topic}: {len(records) - len(failed)} of {len(records)} lines pass{rest}, {result['seconds']:.0f} s; "
          f"{path}")
    return 1 if failed else 0
