"""Other commits of this repository: scratch clones, and programs built from them."""

import os
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path

from accept.harness import NotRun
from cluster import ROOT, ClusterError

BUILD_TIMEOUT_S = 3600
PROGRAMS = ("dpt-bench", "dpt-ckpt", "dpt-rdzv", "dpt-worker")


def git(*argv, root=ROOT):
    """The output of git; NotRun if the checkout has no history or lacks the part that is needed."""
    run = subprocess.run(["git", "-C", str(root), *argv], capture_output=True, text=True)
    if run.returncode != 0:
        raise NotRun(f"git {' '.join(argv)}: {run.stderr.strip()}")
    return run.stdout


def clone(folder, commit="HEAD"):
    """A clone of the commit in a new folder; shares the objects of this repository."""
    commit = git("rev-parse", "--verify", f"{commit}^{{commit}}").strip()
    folder.parent.mkdir(parents=True, exist_ok=True)
    git("clone", "--quiet", "--shared", "--no-checkout", str(ROOT), str(folder))
    git("checkout", "--quiet", "--detach", commit, root=folder)
    return folder


def lines_of(commit, wanted):
    """The number of lines of a commit in the files whose name satisfies `wanted`."""
    names = [name for name in git("ls-tree", "-r", "--name-only", "-z", commit).split("\0") if name and wanted(name)]
    asked = "".join(f"{commit}:{name}\n" for name in names)
    shown = subprocess.run(["git", "-C", str(ROOT), "cat-file", "--batch"], input=asked.encode(), capture_output=True,
                           check=True).stdout
    return shown.count(b"\n") - 2 * len(names)  # git adds a line before each file and one after it


def build(folder, *targets, definitions=()):
    """Builds targets of the clone's preset release. Returns the compiler's output; raises with the end of it on
    failure."""
    log, env = "", {"DPT_COMPILER_LAUNCHER": shutil.which("ccache") or "", **os.environ}
    for argv in (["cmake", "--preset", "release", *definitions],
                 ["cmake", "--build", "--preset", "release", "--target", *targets]):
        run = subprocess.run(argv, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                             timeout=BUILD_TIMEOUT_S, env=env)
        log += run.stdout
        if run.returncode != 0:
            raise ClusterError(f"{folder}: {' '.join(argv)}: exit {run.returncode}\n{log[-3000:]}")
    return log


def programs_of(line, commit, variable):
    """Folder of the programs of a commit: that of the environment variable `variable`, else a folder below
    runs/history, where they are built once."""
    if os.environ.get(variable):
        return Path(os.environ[variable]).resolve()
    folder = ROOT / "runs" / "history" / commit
    if not all((folder / "build" / "bin" / name).exists() for name in PROGRAMS):
        line.command(f"git clone … && git checkout {commit}, cmake --build --preset release, in {folder}")
        if not folder.exists():
            clone(folder, commit)
        build(folder, *PROGRAMS)
    return folder / "build" / "bin"


@contextmanager
def programs(folder):
    """Clusters that are started in this context use the programs of `folder`."""
    before = os.environ.get("DPT_BIN")
    os.environ["DPT_BIN"] = str(folder)
    try:
        yield
    finally:
        os.environ.pop("DPT_BIN")
        if before is not None:
            os.environ["DPT_BIN"] = before
