"""Wrong command lines and configs, drawn from the real keys and options: each ends with one line and its exit code."""

import os
import random

from accept.command_lines import END_S, check_lines
from cluster import bin_dir

DRAWS = 50


def test_drawn_lines(tmp_path, slow):
    seed = int(os.environ.get("DPT_TEST_SEED", random.SystemRandom().randrange(10 ** 6)))
    print(f"seed {seed} (DPT_TEST_SEED)")
    failures, codes, longest_s = check_lines(DRAWS, seed, tmp_path / "lines", bin_dir().resolve())
    assert not failures, f"seed {seed}:\n" + "\n".join(failures)
    assert sum(codes.values()) == DRAWS and longest_s < END_S * slow
    assert codes["dpt-worker", 2] > 0
