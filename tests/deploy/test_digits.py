"""deploy/digits on generated images: the records, the two files and the verdict, with a program that simulates
dpt-worker. tests/deploy/test_languages.py tests the parts that both share, such as signals."""

import gzip
import importlib.util
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
RECORD_BYTES = 1 + 3 * 32 * 32
TIMEOUT_S = 60


@pytest.fixture
def digits(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(DEPLOY)
    spec = importlib.util.spec_from_file_location("digits", DEPLOY / "digits.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, value in {"ROOT": tmp_path, "DIGITS": tmp_path / "digits.csv.gz", "TABLES": tmp_path / "tables",
                        "CONFIG": tmp_path / "digits.yaml"}.items():
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(sys, "argv", ["digits"])
    return module


def write_digits(digits, lines):
    digits.DIGITS.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))


def image(number, label):
    """64 distinct pixels as scikit-learn writes them, and the label."""
    return ",".join([f"{(number >> 4 * i) % 16:.1f}" for i in range(3)] + ["16.0"] * 61 + [str(label)])


def write_images(digits, of_each=20):
    write_digits(digits, [image(i, i % 10) for i in range(10 * of_each)])


def play_worker(digits, script):
    path = digits.ROOT / "build" / "bin" / "dpt-worker"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def read_records(path):
    data = path.read_bytes()
    assert len(data) % RECORD_BYTES == 0
    return [data[at:at + RECORD_BYTES] for at in range(0, len(data), RECORD_BYTES)]


def test_record(digits):
    """Each pixel is 4 x 4 pixels of its grey, 16 is white, and the three planes are equal."""
    pixels = [i % 17 for i in range(64)]
    record = digits.record(7, pixels)
    assert len(record) == RECORD_BYTES and record[0] == 7
    for plane in range(3):
        for y in range(32):
            for x in range(32):
                assert record[1 + plane * 1024 + y * 32 + x] == pixels[y // 4 * 8 + x // 4] * 255 // 16


def test_files(digits):
    """One in five of each digit in val.bin, no image in both, in random order, and the same bytes each time."""
    write_images(digits)
    digits.make_tables()
    paths = digits.TABLES / "train.bin", digits.TABLES / "val.bin"
    train, val = map(read_records, paths)
    assert Counter(record[0] for record in train) == dict.fromkeys(range(10), 16)
    assert Counter(record[0] for record in val) == dict.fromkeys(range(10), 4)
    assert len(set(train) | set(val)) == 200
    assert [record[0] for record in train] != sorted(record[0] for record in train)
    assert (digits.TABLES / "batches.meta.txt").read_text().split() == list("0123456789")
    before = [path.read_bytes() for path in paths]
    digits.make_tables()
    assert before == [path.read_bytes() for path in paths]


@pytest.mark.parametrize("line", ["1,2,3", image(0, 10), image(0, 1).replace("16.0", "17.0"), image(0, 1) + ",0"])
def test_damaged_line(digits, capsys, line):
    write_digits(digits, [image(0, 0), line])
    assert digits.main() == 1
    assert f"{digits.DIGITS}, line 2: this is not an image" in capsys.readouterr().err
    assert not digits.TABLES.exists()


def test_no_images(digits, capsys):
    assert digits.main() == 1
    assert f"{digits.DIGITS} is missing; run: deploy/install-deps digits" in capsys.readouterr().err


@pytest.mark.parametrize("script, code, says", [
    ("echo 'Evaluation accuracy: 20.00%'; echo 'Evaluation accuracy: 98.31%'", 0, "98.31% of the digits of val.bin"),
    ("echo 'Evaluation accuracy: 97.90%'", 1, "98% at least is not reached"),
    ("exit 2", 1, "dpt-worker ended with exit code 2"),
])
def test_verdict(digits, capsys, script, code, says):
    write_images(digits)
    play_worker(digits, script)
    assert digits.main() == code
    out, err = capsys.readouterr()
    assert says in out + err


def test_model_is_kept(digits, capsys, monkeypatch):
    """The model stays in the folder that the config names."""
    write_images(digits)
    play_worker(digits, "mkdir -p runs/digits/checkpoints; echo 'Evaluation accuracy: 99.00%'")
    assert digits.main() == 0
    assert "the model is in runs/digits/checkpoints; " in capsys.readouterr().out
    # With --quiet dpt-worker prints the closing summary alone (dpt_progress_text_summary).
    (digits.ROOT / "build" / "bin" / "dpt-worker").write_text(
        "#!/bin/sh\nmkdir -p runs/digits/checkpoints\n"
        "printf 'training finished\\n  steps            3\\n  accuracy         98.31%%\\n'\n")
    monkeypatch.setattr(sys, "argv", ["digits", "--", "--quiet"])
    assert digits.main() == 0
    out = capsys.readouterr().out
    assert "98.31% of the digits of val.bin" in out and "the model is in runs/digits/checkpoints; " in out
    assert "  dir: runs/digits/checkpoints #" in (DEPLOY.parent / "configs" / "digits.yaml").read_text()


# ---------------------------------------------------------------- packages

APT_GET = """[ "$2" = download ] || exit 0
touch $3_1_all.deb"""
DPKG_DEB = """mkdir -p $(dirname {file})
echo 0 >{file}"""
FILE = "usr/lib/python3/dist-packages/sklearn/datasets/data/digits.csv.gz"


def install(folder, dpkg_deb):
    """Runs deploy/install-deps digits in a separate folder, with programs that simulate apt-get and dpkg-deb."""
    (folder / "deploy").mkdir()
    shutil.copy(DEPLOY / "install-deps", folder / "deploy")
    for name, script in {"apt-get": APT_GET, "dpkg-deb": dpkg_deb}.items():
        path = folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    environment = dict(os.environ, PATH=f"{folder / 'bin'}:{os.environ['PATH']}")
    return subprocess.run([folder / "deploy" / "install-deps", "digits"], env=environment, capture_output=True,
                          text=True, timeout=TIMEOUT_S)


def test_package(tmp_path):
    run = install(tmp_path, DPKG_DEB.format(file=FILE))
    assert (run.returncode, run.stderr) == (0, "")
    assert (tmp_path / "runs" / "packages" / FILE).exists()


def test_package_without_images(tmp_path):
    run = install(tmp_path, "exit 0")
    assert run.returncode == 1
    assert f"this distribution's python3-sklearn has no {FILE}" in run.stderr
