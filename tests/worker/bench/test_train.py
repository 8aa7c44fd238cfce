"""dpt-bench train at tiny size: the figures of each micro-batch, the memory and the kernels' times that the rank
recorded, and the reason of a rank that refuses. Standard library only.

    python3 test_train.py build/bin/dpt-bench
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

# Steps are so short that the count of allocations may reach into the end of the run.
STEPS, SEQ, TIMEOUT_S = 100, 64, 100


def train(program, folder, *flags):
    argv = [program, "train", "--preset", "tiny", "--seq", str(SEQ), "--steps", str(STEPS), "--threads", "1"]
    return subprocess.run([*argv, "--no-gemm", *flags], env=dict(os.environ, TMPDIR=str(folder)), capture_output=True,
                          text=True, timeout=TIMEOUT_S)


def main(program):
    with tempfile.TemporaryDirectory() as folder:
        report, temporary = Path(folder) / "r.json", Path(folder) / "tmp"
        temporary.mkdir()
        done = train(program, temporary, "--batch", "4,8", "--slots", "2", "--op-times", "on", "--json", str(report))
        assert done.returncode == 0, done
        runs = json.loads(report.read_text())["runs"]
        assert [run["batch"] for run in runs] == [4, 8], runs
        for run in runs:
            assert run["step_ms"] > 0 and 0 < run["steps_counted"] <= STEPS - 3, run
            assert abs(run["tokens_per_s"] * run["step_ms"] / (run["batch"] * 2 * SEQ * 1000) - 1) < 1e-6, run
            assert run["allocations_in_step"] >= 0 and "share" not in run, run
            assert run["op_times"]["steps"] == STEPS - 1 and run["op_times"]["host"]["classes"], run
        assert "kernels of the host" in done.stdout, done.stdout

        one = train(program, temporary, "--json", str(report))
        assert one.returncode == 0 and json.loads(report.read_text())["batch"] == 4, one
        refused = train(program, temporary, "--seq", "2048")
        assert refused.returncode == 2 and "seq_len" in refused.stderr, refused
        assert train(program, temporary, "--steps", "4").returncode == 2
        unknown = train(program, temporary, "--precision", "fp8")
        assert unknown.returncode == 2 and "precision" in unknown.stderr, unknown
        assert not list(temporary.iterdir()), list(temporary.iterdir())


if __name__ == "__main__":
    main(sys.argv[1])
