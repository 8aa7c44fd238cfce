"""Wrong command lines and configs, drawn from the real keys and options: each ends with one line and its exit code."""

import os
import random
import subprocess

import pytest

from accept.command_lines import END_S, check_lines, run_draw
from accept.draws import Draw, Drawer, Programs
from cluster import bin_dir, make_text, program

DRAWS = 50


def test_drawn_lines(tmp_path, slow):
    seed = int(os.environ.get("DPT_TEST_SEED", random.SystemRandom().randrange(10 ** 6)))
    print(f"seed {seed} (DPT_TEST_SEED)")
    failures, codes, longest_s = check_lines(DRAWS, seed, tmp_path / "lines", bin_dir().resolve())
    assert not failures, f"seed {seed}:\n" + "\n".join(failures)
    assert sum(codes.values()) == DRAWS and longest_s < END_S * slow
    assert codes["dpt-worker", 2] > 0


TWO_LINES = [
    ("dpt-worker", "--set", "train.steps=1\n2"), ("dpt-worker", "--set", "x\ny=1"), ("dpt-worker", "--set", "x\ny"),
    ("dpt-worker", "--node-id", "a\nb"), ("dpt-worker", "--config", "a\nb"), ("dpt-worker", "--rdzv-endpoint", "a\nb"),
    ("dpt-worker", "--log-level", "a\nb"), ("dpt-worker", "--allow-change", "a\nb"), ("dpt-worker", "--a\nb"),
    ("dpt-worker", "a\nb"), ("dpt-ckpt", "list", "a\nb"), ("dpt-ckpt", "a\nb"), ("dpt-ckpt", "generate", "--a\nb"),
    ("dpt-rdzv", "--port", "1\n2"), ("dpt-rdzv", "a\nb"), ("dpt-data", "a\nb"), ("dpt-data", "encode", "--a\nb"),
    ("dpt-bench", "a\nb"), ("dpt-bench", "gemm", "--a\nb"), ("dpt-plot", "a\nb"), ("dpt-plot", "--a\nb"),
    ("dpt-trace", "a\nb"), ("dpt-trace", "ddp", "--a\nb"), ("dpt-trace", "ddp", "--trace-files", "a\nb"),
    ("dpt-doctor", "a\nb"), ("dpt-doctor", "--a\nb"), ("dpt-ctl", "a\nb"), ("dpt-ctl", "--a\nb"),
    ("dpt-ctl", "save", "a\nb"), ("dpt-ctl", "evict", "a\nb"), ("dpt-ctl", "runs", "--rdzv-endpoint", "a\nb"),
]


@pytest.mark.parametrize("line", TWO_LINES, ids=lambda line: repr(" ".join(line)))
def test_value_of_two_lines_ends_with_one(tmp_path, line):
    wrong, _, _ = run_draw(Draw(line[0], list(line[1:]), {1, 2}), bin_dir().resolve(), tmp_path / "draw")
    assert not wrong


# Each prints its result to the standard output, and ends with this code if that is full.
PRINTING = [
    ("dpt-rdzv", "--help", 4), ("dpt-rdzv", "--version", 4), ("dpt-rdzv", "--new-token --key-dir KEYS", 4),
    ("dpt-rdzv", "--revoke TOKEN --key-dir KEYS", 4), ("dpt-rdzv", "--new-key --key-dir KEYS", 4),
    ("dpt-rdzv", "--deny MACHINE --key-dir KEYS", 4), ("dpt-rdzv", "history --help", 4), ("dpt-ctl", "--help", 4),
    ("dpt-doctor", "--help", 1), ("dpt-plan", "--help", 1), ("dpt-data", "--help", 1), ("dpt-ckpt", "--help", 1),
    ("dpt-plot", "--help", 2), ("dpt-trace", "--help", 1), ("dpt-bench", "--list", 1), ("dpt-bench", "gemm --help", 1),
]


@pytest.fixture
def key_words(tmp_path):
    """What the words in capitals of PRINTING stand for: a key folder with a token and a machine."""
    keys = tmp_path / "keys"
    token = subprocess.run([program("dpt-rdzv"), "--new-token", "--key-dir", keys], check=True, capture_output=True,
                           text=True, timeout=60).stdout.strip()
    machine = "ab" * 32
    (keys / "machines").write_text(f"define {machine} host\n")
    (keys / "machines").chmod(0o600)
    return {"KEYS": keys, "TOKEN": token, "MACHINE": machine[:8]}


@pytest.mark.parametrize("buffered", [True, False], ids=["last_write_fails", "each_write_fails"])
@pytest.mark.parametrize("name, words, code", PRINTING, ids=lambda value: str(value))
def test_output_to_a_full_disk(key_words, name, words, code, buffered):
    """Without a buffer, the writes fail before the end of the program."""
    argv = [program(name).resolve(), *(str(key_words.get(word, word)) for word in words.split())]
    with open("/dev/full", "w") as full:
        done = subprocess.run(argv if buffered else ["stdbuf", "-o0", *argv], stdout=full, stderr=subprocess.PIPE,
                              env={**os.environ, "ASAN_OPTIONS": "verify_asan_link_order=0"}, text=True, timeout=60)
    errors = [line for line in done.stderr.splitlines() if line.startswith(f"{name}: ")]
    assert done.returncode == code and len(errors) == 1, (argv, done)
    assert errors[0].startswith(f"{name}: write to the standard output: "), errors


@pytest.fixture(scope="module")
def drawer(tmp_path_factory):
    """Draws on a text and the checkpoints of a run."""
    folder = tmp_path_factory.mktemp("made")
    programs, text = Programs(bin_dir().resolve()), make_text(folder / "text.txt", 20_000).resolve()
    args = ["--set", "checkpoint.dir=ck", "--set", "checkpoint.every_steps=1"]
    wrong, _, _ = run_draw(Drawer(programs, random.Random(0), text).worker(args, {0}), programs.folder, folder / "run")
    assert not wrong
    return Drawer(programs, random.Random(0), text, folder / "run" / "ck")


def test_pipe_is_no_file_of_a_tokenizer(tmp_path, drawer):
    drawn = {}
    while len(drawn) < 6:  # two tokenizers for each of three programs
        draw = drawer.named_pipe()
        drawn[draw.program, tuple(draw.args)] = draw
    for i, draw in enumerate(drawn.values()):
        wrong, _, _ = run_draw(draw, bin_dir().resolve(), tmp_path / str(i))
        assert not wrong, draw.args


def test_config_may_be_a_pipe(tmp_path, drawer, slow):
    (tmp_path / "c.yaml").write_bytes(drawer.good_yaml())
    subprocess.run(["bash", "-c", f"'{bin_dir().resolve() / 'dpt-worker'}' --config <(cat c.yaml)"], cwd=tmp_path,
                   check=True, timeout=END_S * slow)
