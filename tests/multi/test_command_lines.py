"""Wrong command lines and configs, drawn from the real keys and options: each ends with one line and its exit code."""

import os
import random

import pytest

from accept.command_lines import END_S, check_lines, run_draw
from accept.draws import Draw
from cluster import bin_dir

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
    ("dpt-bench", "a\nb"), ("dpt-bench", "gemm", "--a\nb"),
]


@pytest.mark.parametrize("line", TWO_LINES, ids=lambda line: repr(" ".join(line)))
def test_value_of_two_lines_ends_with_one(tmp_path, line):
    wrong, _, _ = run_draw(Draw(line[0], list(line[1:]), {1, 2}), bin_dir().resolve(), tmp_path / "draw")
    assert not wrong
