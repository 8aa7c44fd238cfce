"""deploy/languages on generated manual pages: the text that it takes of a page, the tables, the verdict and signals,
with programs that simulate dpt-worker, deploy/build and apt."""

import csv
import gzip
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
TIMEOUT_S = 60


@pytest.fixture
def languages(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(DEPLOY)
    spec = importlib.util.spec_from_file_location("languages", DEPLOY / "languages.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, value in {"ROOT": tmp_path, "PAGES": tmp_path / "man", "TABLES": tmp_path / "tables",
                        "CONFIG": tmp_path / "languages.yaml", "TRAIN_PIECES": 30, "VAL_PIECES": 3}.items():
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(sys, "argv", ["languages"])
    return module


PAGE = r""".\" a comment
.TH LS 1
.SH NAME
ls \- short
.SH DESCRIPTION
Sorts \fBwhat it lists\fP by name,
.\" which ends no paragraph
.I "if nothing"
else is said\(aqs order, and goes on for long enough.
.PP
.nf
while (this is a program that nobody takes for a sentence) { go_on(with_it); }
.fi
.TP
\-\-option
0 1 2 3 4 5 6 7 8 9 10 11 12 13 a table of numbers is long enough but has not many letters in it 14 15 16 17 18 19 20
"""


def test_running_text(languages):
    assert [p for p in languages.paragraphs(PAGE) if languages.is_sentence(p)] == [
        "Sorts what it lists by name, if nothing else is said's order, and goes on for long enough."]


def spell(number):
    return "".join("abcdefghij"[int(digit)] for digit in f"{number:03}")


def test_pieces(languages):
    words = " ".join(f"wort{spell(i)}ä" for i in range(60))
    found = list(languages.pieces(f".SH TEXT\n{words}\n", english=False))
    assert len(found) == 3 and all(140 < len(piece.encode()) <= languages.PIECE_BYTES for piece in found)
    assert words.startswith(" ".join(found))
    assert not list(languages.pieces(f".SH TEXT\n{'x' * 500}\n", english=False))


def test_paragraphs_left_in_english(languages):
    text = "The order of the files is that of the folder, and is not changed by this option of the program. " * 3
    assert list(languages.pieces(f".SH TEXT\n{text}\n", english=True))
    assert not list(languages.pieces(f".SH TEXT\n{text}\n", english=False))


def write_pages(languages, pages=60):
    for label, folder in enumerate(languages.LANGUAGES.values()):
        section = languages.PAGES / folder / "man1"
        section.mkdir(parents=True)
        for page in range(pages):
            words = " ".join(f"{'qwxyz'[label]}ort{spell(page)}k{spell(i)}" for i in range(40))
            (section / f"page{page}.1.gz").write_bytes(gzip.compress(f".SH TEXT\n{words}\n".encode()))
        (section / "other-name.1.gz").symlink_to("page0.1.gz")
        (section / "refers.1.gz").write_bytes(gzip.compress(b".so man1/page0.1\n"))


def read_table(path):
    with open(path, encoding="utf-8", newline="") as file:
        return [(row["text"], int(row["label"])) for row in csv.DictReader(file)]


def test_tables(languages):
    """Both tables have equally many texts of each language in random order, no page is in both, and the bytes are the
    same each time."""
    write_pages(languages)
    languages.make_tables()
    paths = languages.TABLES / "train.csv", languages.TABLES / "val.csv"
    train, val = map(read_table, paths)
    assert Counter(label for _, label in train) == dict.fromkeys(range(5), 30)
    assert Counter(label for _, label in val) == dict.fromkeys(range(5), 3)
    assert all(text[0] == "qwxyz"[label] for text, label in train + val)
    assert [label for _, label in train] != sorted(label for _, label in train)
    pages = [{text.split("ort")[1].split("k")[0] for text, _ in table} for table in (train, val)]
    assert pages[0] and pages[1] and not pages[0] & pages[1]
    before = [path.read_bytes() for path in paths]
    languages.make_tables()
    assert before == [path.read_bytes() for path in paths]


def play(path, script):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def play_worker(languages, script):
    play(languages.ROOT / "build" / "bin" / "dpt-worker", script)


@pytest.mark.parametrize("script, code, says", [
    ("echo 'Evaluation accuracy: 20.00%'; echo 'Evaluation accuracy: 97.10%'", 0, "97.10% of the texts"),
    ("echo 'Evaluation accuracy: 98.00%'; echo 'Evaluation accuracy: 96.90%'", 1, "97% at least is not reached"),
    ("echo step 1", 1, "dpt-worker printed no accuracy"),
    ("echo 'Evaluation accuracy: 99.00%'; exit 4", 1, "dpt-worker ended with exit code 4"),
])
def test_verdict(languages, capsys, script, code, says):
    write_pages(languages)
    play_worker(languages, script)
    assert languages.main() == code
    out, err = capsys.readouterr()
    assert says in out + err


def test_arguments_of_the_worker(languages, monkeypatch, capsys):
    write_pages(languages)
    play_worker(languages, 'echo "given: $*"; echo "Evaluation accuracy: 99.00%"')
    monkeypatch.setattr(sys, "argv", ["languages", "--", "--set", "train.epochs=1"])
    assert languages.main() == 0
    assert f"given: --config {languages.CONFIG} --nnodes 1 --set train.epochs=1" in capsys.readouterr().out


def test_model_is_kept(languages, capsys):
    """Each run removes the model of the run before; the last line has the place of the model and the command that uses
    it."""
    write_pages(languages)
    model = languages.ROOT / "runs" / "languages" / "checkpoints"
    config = (DEPLOY.parent / "configs" / "languages.yaml").read_text()
    assert f"  dir: {model.relative_to(languages.ROOT)} #" in config
    for was in "first", "second":
        play_worker(languages, f"""[ ! -e runs/languages/checkpoints ] || exit 9
mkdir -p runs/languages/checkpoints; touch runs/languages/checkpoints/{was}
echo 'Evaluation accuracy: 99.00%'""")
        assert languages.main() == 0
        assert [path.name for path in model.iterdir()] == [was]
        assert capsys.readouterr().out.splitlines()[-1] == (
            "languages: the model is in runs/languages/checkpoints; to evaluate it, also with --set data.val=FILE: "
            "build/bin/dpt-worker --config configs/languages.yaml --nnodes 1 --eval")
    play_worker(languages, "echo 'Evaluation accuracy: 99.00%'")
    assert languages.main() == 0
    assert "the model is in" not in capsys.readouterr().out


def test_tables_alone(languages, monkeypatch):
    write_pages(languages)
    monkeypatch.setattr(sys, "argv", ["languages", "--tables"])
    assert languages.main() == 0
    assert sorted(path.name for path in languages.TABLES.iterdir()) == ["train.csv", "val.csv"]


def test_too_few_pages(languages, capsys):
    write_pages(languages, pages=3)
    assert languages.main() == 1
    assert "English has " in capsys.readouterr().err
    assert not languages.TABLES.exists()


# ---------------------------------------------------------------- signals

# Each says its process id and goes on until it gets SIGTERM. A worker ends at the end of its step, with its own code.
WORKER = """trap 'echo "left at a step"; exit 0' TERM
echo "worker $$"
while :; do sleep 0.05; done"""
DEAF_WORKER = """trap 'trap "exit 5" TERM; echo "one signal"' TERM
echo "worker $$"
while :; do sleep 0.05; done"""
BUILD = """echo "build $$"
while :; do sleep 0.05; done"""


@pytest.fixture
def checkout(languages, monkeypatch):
    """A copy of deploy/ in a separate folder, with few texts in the tables; nothing is installed or built."""
    deploy = languages.ROOT / "deploy"
    monkeypatch.setattr(languages, "PAGES", languages.ROOT / "runs" / "packages" / "usr" / "share" / "man")
    for name in ("install-deps", "build"):
        play(deploy / name, "exit 0")
    for name in ("languages", "example.sh", "example.py"):
        shutil.copy(DEPLOY / name, deploy)
    script, n = re.subn("= 3000, 200 ", "= 30, 3 ", (DEPLOY / "languages.py").read_text())
    assert n == 1
    (deploy / "languages.py").write_text(script)
    write_pages(languages)
    return languages


@pytest.mark.parametrize("args, unknown", [
    (["--table"], "--table"), (["--nonsense"], "--nonsense"), (["more texts"], "more\\ texts"),
    (["--tables", "train.epochs=2"], "train.epochs=2"), (["--tables=yes", "--"], "--tables=yes")])
def test_unknown_arguments(checkout, args, unknown):
    """Unknown arguments are refused in one line before anything is installed or built."""
    for name in ("install-deps", "build"):
        play(checkout.ROOT / "deploy" / name, f"touch {checkout.ROOT}/{name}-ran")
    done = subprocess.run([checkout.ROOT / "deploy" / "languages", *args], capture_output=True, text=True,
                          timeout=TIMEOUT_S)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"languages: unknown argument {unknown}; ") and done.stderr.count("\n") == 1
    assert not list(checkout.ROOT.glob("*-ran")) and not checkout.TABLES.exists()


def test_arguments_behind_the_dashes(checkout):
    """Arguments after -- go to dpt-worker, also --tables and --help."""
    play_worker(checkout, 'echo "given: $*"; echo "Evaluation accuracy: 99.00%"')
    done = subprocess.run([checkout.ROOT / "deploy" / "languages", "--", "--tables", "--help"], capture_output=True,
                          text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    assert "--nnodes 1 --tables --help\n" in done.stdout


def until_says(process, name):
    """Waits for the line of this name and returns the process id in it."""
    for line in process.stdout:
        if line.startswith(name):
            return int(line.split()[1])
    raise AssertionError(process.stderr.read())


def start(checkout):
    # A shell without job control has its children in the background ignore SIGINT; bash cannot trap it then.
    return subprocess.Popen([checkout.ROOT / "deploy" / "languages"], text=True, stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))


def check_stopped(process, pid, number):
    process.wait(timeout=TIMEOUT_S)
    alive = Path(f"/proc/{pid}").exists()
    if alive:
        os.kill(pid, signal.SIGKILL)
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert not alive
    assert process.returncode == 128 + number
    assert err == f"languages: stopped by {number.name}\n"
    return out


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_in_the_run(checkout, number):
    """A signal ends dpt-worker and then the program, which shows dpt-worker's last lines."""
    play_worker(checkout, WORKER)
    process = start(checkout)
    pid = until_says(process, "worker")
    process.send_signal(number)
    assert "left at a step\n" in check_stopped(process, pid, number)


def test_second_signal_in_the_run(checkout):
    """A second signal reaches dpt-worker, too; the first one decides the exit code."""
    play_worker(checkout, DEAF_WORKER)
    process = start(checkout)
    pid = until_says(process, "worker")
    process.send_signal(signal.SIGINT)
    for line in process.stdout:
        if line == "one signal\n":
            process.send_signal(signal.SIGTERM)
            break
    check_stopped(process, pid, signal.SIGINT)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_in_the_build(checkout, number):
    play(checkout.ROOT / "deploy" / "build", BUILD)
    process = start(checkout)
    pid = until_says(process, "build")
    process.send_signal(number)
    check_stopped(process, pid, number)


def test_signal_before_the_run(checkout):
    """A signal while the tables are made, which a page without an end keeps busy, ends the program."""
    page = checkout.PAGES / "man1" / "page0.1.gz"
    page.unlink()
    os.mkfifo(page)
    process = start(checkout)
    with open(page, "wb"):  # opened when it reads there
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, out, err) == (143, "", "languages: stopped by SIGTERM\n")


# ---------------------------------------------------------------- packages

PACKAGES = {"manpages": "man7", "manpages-de": "de/man1", "manpages-es": "es/man1", "manpages-fr": "fr/man1",
            "manpages-pl": "pl/man1"}
APT_GET = """[ "$2" = download ] || exit 0
echo "$3" >>{log}
touch $3_1_all.deb"""
DPKG_DEB = """case $2 in
{cases}
esac
mkdir -p usr/share/man/$folder
touch usr/share/man/$folder/page.gz"""


@pytest.fixture
def install(tmp_path):
    """Runs deploy/install-deps languages in a separate folder; returns its exit code and the packages that it requested
    of apt."""
    (tmp_path / "deploy").mkdir()
    shutil.copy(DEPLOY / "install-deps", tmp_path / "deploy")
    log = tmp_path / "asked"
    play(tmp_path / "bin" / "apt-get", APT_GET.format(log=log))
    cases = "\n".join(f"{name}_*) folder={folder} ;;" for name, folder in PACKAGES.items())
    play(tmp_path / "bin" / "dpkg-deb", DPKG_DEB.format(cases=cases))

    def run(*args):
        log.write_text("")
        argv = [tmp_path / "deploy" / "install-deps", "languages", *args]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=TIMEOUT_S,
                              env=dict(os.environ, PATH=f"{tmp_path}/bin:{os.environ['PATH']}"))
        return done.returncode, log.read_text().split(), done.stdout + done.stderr

    return run


def test_packages(install):
    code, asked, said = install("--check")
    assert (code, asked) == (1, []) and "manpages is not here" in said
    code, asked, _ = install()
    assert (code, asked) == (0, list(PACKAGES))
    for args in [], ["--check"]:
        code, asked, said = install(*args)
        assert (code, asked) == (0, []) and "manual pages in five languages" in said


@pytest.mark.parametrize("package, folder", PACKAGES.items())
def test_packages_without_their_pages(install, tmp_path, package, folder):
    """A package whose pages were deleted is fetched again although its mark exists; pages without the mark are fetched
    again, too, because some may be missing."""
    install()
    packages = tmp_path / "runs" / "packages"
    for damage in lambda: shutil.rmtree(packages / "usr/share/man" / folder), (packages / f".{package}").unlink:
        damage()
        code, asked, said = install("--check")
        assert (code, asked) == (1, []) and f"languages: {package} is not here" in said
        assert install()[:2] == (0, [package])
        assert install("--check")[0] == 0
