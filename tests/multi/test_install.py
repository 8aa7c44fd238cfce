"""The files that `cmake --install` installs, and a training with them."""

import os
import re
import shutil
import subprocess

import pytest

from cluster import ROOT, bin_dir, program

PROGRAMS = ("dpt-rdzv", "dpt-worker", "dpt-ckpt", "dpt-data", "dpt-plot", "dpt-trace", "dpt-doctor", "dpt-ctl",
            "dpt-bench")


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    build = bin_dir().parent
    if not (build / "man").is_dir():
        pytest.skip("this build makes no manual pages and is not for installing")
    folder = tmp_path_factory.mktemp("prefix")
    done = subprocess.run(["cmake", "--install", str(build), "--prefix", str(folder)], capture_output=True, text=True,
                          timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def options_of(text):
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text))


@pytest.mark.parametrize("name", PROGRAMS)
def test_page_says_what_the_program_says(prefix, name):
    text = subprocess.run([str(program(name)), "--help"], capture_output=True, text=True, timeout=20,
                          check=True).stdout
    page = (prefix / "share" / "man" / "man1" / f"{name}.1").read_text()
    assert page.startswith(f".TH {name.upper()} 1")
    shown = page.replace("\\-", "-").replace("\\e", "\\").replace("\n\\&", "\n")
    assert options_of(text) and options_of(text) <= options_of(shown)
    for line in text.splitlines():
        assert line.replace("usage: ", "").strip() in shown
    if shutil.which("groff"):
        done = subprocess.run(["groff", "-Kutf8", "-man", "-Tutf8", "-ww", "-z"], input=page, capture_output=True,
                              text=True, timeout=20, check=True)
        assert done.stderr == ""


def test_installed_programs_train(prefix, tmp_path, slow):
    """Ranks are started from the installed program, and no file refers to the build folder."""
    env = {"PATH": f"{prefix}/bin:{os.environ['PATH']}", "HOME": str(tmp_path)}
    config = prefix / "share" / "dpt" / "configs" / "tiny.yaml"
    (tmp_path / "text.txt").write_text("all that is gold does not glitter\n" * 200)
    keys = ["data.train=text.txt", "train.steps=6", "cluster.nnodes=1", "log.dir=log", "checkpoint.dir=checkpoints"]
    done = subprocess.run(["dpt-worker", "--config", str(config), *(a for k in keys for a in ("--set", k))],
                          cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60 * slow, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    shown = subprocess.run(["dpt-ckpt", "list", "checkpoints"], cwd=tmp_path, env=env, capture_output=True, text=True,
                           timeout=20, check=True).stdout
    assert re.search(r"\b6\b", shown)
    for name in ("README.md", "LICENSE"):
        assert (prefix / "share" / "doc" / "dpt" / name).read_text() == (ROOT / name).read_text()
