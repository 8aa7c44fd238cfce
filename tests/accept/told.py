"""Stories of tests/multi and tests of the pure cores as lines of acceptance: each is run again and counted. A story
starts real processes and asserts exit code, time and message; its file has the assertions."""

import os
import re
import signal
import subprocess
import uuid
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

from accept.harness import NotRun
from cluster import ROOT, bin_dir
from processes import MARK, marked_pids, send_signal

MULTI = ROOT / "tests" / "multi"
STORIES_TIMEOUT_S = 1800
CASES_TIMEOUT_S = 3600
TEARDOWN_S = 60  # for the fixtures of an interrupted story
PYTEST = ["/usr/bin/python3", "-m", "pytest", "-q", "-p", "no:cacheprovider"]


@dataclass
class Told:
    """The end of one story: passed, failed (in its body), broken (before or after it), skipped; and the reason."""
    name: str
    verdict: str
    seconds: float
    why: str = ""


def read_report(path):
    """[Told] of pytest's report; empty if pytest ended before it wrote one."""
    told = []
    for case in ElementTree.parse(path).getroot().iter("testcase") if path.exists() else []:
        if case.get("name") is None:  # interrupted
            continue
        verdict, why = "passed", ""
        for tag, name in (("skipped", "skipped"), ("failure", "failed"), ("error", "broken")):
            found = case.find(tag)
            if found is not None:
                verdict, why = name, found.get("message", "")
        told.append(Told(case.get("name"), verdict, float(case.get("time")), why))
    return told


def run_stories(folder, names, programs, timeout_s):
    """Runs stories, each named FILE or FILE::TEST, with the programs of a folder. Returns ([Told], whether they ended
    in time). Their output is appended to folder/stories.log."""
    folder.mkdir(parents=True, exist_ok=True)
    report, mark = folder / "stories.xml", uuid.uuid4().hex
    report.unlink(missing_ok=True)
    argv = [*PYTEST, f"--junitxml={report}", f"--basetemp={folder / 'stories'}", *[str(MULTI / name) for name in names]]
    env = dict(os.environ, DPT_BIN=str(programs), PYTHONDONTWRITEBYTECODE="1", **{MARK: mark})
    with open(folder / "stories.log", "ab") as log:
        run = subprocess.Popen(argv, stdout=log, stderr=subprocess.STDOUT, env=env)
    in_time = True
    try:
        run.wait(timeout_s)
    except subprocess.TimeoutExpired:
        in_time = False
        run.send_signal(signal.SIGINT)  # the fixtures end their processes
        try:
            run.wait(TEARDOWN_S)
        except subprocess.TimeoutExpired:
            run.kill()
            run.wait()
    for pid in marked_pids(mark):
        send_signal(pid, signal.SIGKILL)
    return read_report(report), in_time


def collected(names):
    """The ids FILE::TEST[CASE] of stories named FILE or FILE::TEST."""
    argv = [*PYTEST, f"--rootdir={MULTI}", "--collect-only", *[str(MULTI / name) for name in names]]
    env = dict(os.environ, PYTHONDONTWRITEBYTECODE="1")
    run = subprocess.run(argv, capture_output=True, text=True, env=env, timeout=STORIES_TIMEOUT_S, cwd=MULTI)
    if run.returncode != 0:
        raise NotRun(f"stories are not found: {run.stdout[-500:]}{run.stderr[-500:]}")
    return [text for text in run.stdout.splitlines() if "::" in text]


def stories(line, *names):
    """Runs stories with the programs under test; shows how many passed and names the others."""
    line.command("pytest " + " ".join(f"tests/multi/{name}" for name in names))
    told, in_time = run_stories(line.folder, names, bin_dir().resolve(), STORIES_TIMEOUT_S)
    bad = [one for one in told if one.verdict != "passed"]
    for one in told:
        line.note(f"{one.verdict} {one.name} ({one.seconds:.1f} s){': ' + one.why[:200] if one.why else ''}")
    line.at_least("stories that passed", len(told) - len(bad), len(names))
    line.show("stories that failed or were skipped", len(bad), "== 0", not bad)
    if not in_time:
        line.show("the stories took, s", STORIES_TIMEOUT_S, f"< {STORIES_TIMEOUT_S}", False)


def cpu_flags():
    """The flags of this machine's processor by Linux's names; empty if /proc/cpuinfo has no such line."""
    found = re.search(r"^flags\s*: (.*)", Path("/proc/cpuinfo").read_text(), re.M)
    return found[1].split() if found else []


def at_isas(*names, isas=("avx2", "avx512")):
    """The tests `names`, and their variants at those of `isas` that are weaker than this machine's best:
    tests/CMakeLists.txt adds avx2 if the machine has AVX-512, and avx512 if it has AVX512_BF16."""
    has = {"avx2": "avx512bw", "avx512": "avx512_bf16"}
    weaker = [isa for isa in isas if has[isa] in cpu_flags()]
    return [*names, *(f"{name}_{isa}" for name in names for isa in weaker)]


def build_folder():
    """The build folder that contains the programs and their tests."""
    folder = bin_dir().resolve().parent
    if not (folder / "CTestTestfile.cmake").exists():
        raise NotRun(f"{folder} is no build folder: the programs come without their tests")
    return folder


def cases(line, *names):
    """Runs the tests of these names in the build folder of the programs: each must exist and pass."""
    folder = build_folder()
    pattern = f"^({'|'.join(names)})$"
    line.command(f"ctest --test-dir {folder.name} -R '{pattern}'")
    run = subprocess.run(["ctest", "--test-dir", str(folder), "--output-on-failure", "-R", pattern],
                         capture_output=True, text=True, timeout=CASES_TIMEOUT_S)
    (line.folder / "cases.log").write_text(run.stdout + run.stderr)
    verdicts = dict(re.findall(r"^ *\d+/\d+ Test +#\d+: (\S+) \.* *(?:\*\*\*)?(\w+)", run.stdout, re.M))
    bad = [f"{name} {verdicts.get(name, 'is missing')}" for name in names if verdicts.get(name) != "Passed"]
    line.show(f"tests of {len(names)} that did not run and pass", ", ".join(bad) or "none", "none",
              not bad and run.returncode == 0)
