"""Lines of first-light about speed: GPT-2 124M on two cores, and the time of the tests."""

import json
import re
import subprocess
import time

from cluster import ROOT, ClusterError, program

SHARE_BAR = 0.50
SUITE_BAR_S = 20 * 60
BENCH_TIMEOUT_S = 900


def bench(line, name, *flags):
    """Runs dpt-bench NAME and returns its JSON."""
    path = line.folder / f"{name}.json"
    argv = [program("dpt-bench"), name, *flags, "--json", path]
    line.command(argv)
    run = subprocess.run([str(a) for a in argv], capture_output=True, text=True, timeout=BENCH_TIMEOUT_S)
    if run.returncode != 0:
        raise ClusterError(f"dpt-bench {name}: exit {run.returncode}\n{run.stdout[-2000:]}{run.stderr[-2000:]}")
    return json.loads(path.read_text())


def speed_124m(line):
    """GPT-2 124M, B=4 T=64 fp32, 2 threads: products and all at >= 50% of the `dpt-bench gemm` rate (best median of
    2048^3, 4096^3 and GPT-2's shapes, prepacked) at 6N flops a token; no allocation inside the step (malloc and mmap
    interposed, libraries included)."""
    gemm = bench(line, "gemm", "--threads", "2")
    train = bench(line, "train", "--preset", "gpt2-124m", "--batch", "4", "--seq", "64", "--threads", "2")
    rate = max(shape["gflops_median"] for shape in gemm["shapes"] if shape["prepacked"])
    flops = 6 * train["parameters"] * train["tokens_per_s"]
    line.note(f"gemm {rate:.0f} GFLOP/s; train {train['tokens_per_s']:.1f} tokens/s, {flops / 1e9:.0f} GFLOP/s at 6N")
    line.show("parameters", train["parameters"], "== 124439808", train["parameters"] == 124_439_808)
    line.at_least("share of the gemm rate", round(flops / 1e9 / rate, 4), SHARE_BAR)
    line.show("allocations inside the step", train["allocations_in_step"], "== 0", train["allocations_in_step"] == 0)


def suite_in_time(line):
    """`tests/run` under 20 minutes on 2 cores; ASan+UBSan on the CPU tests; TSan on unit and sim tests and on comm,
    prefetch and checkpoint threads with ranks as threads."""
    line.command("tests/run")
    started = time.monotonic()
    log = line.folder / "run.log"
    with open(log, "wb") as out:
        code = subprocess.run([ROOT / "tests" / "run"], stdout=out, stderr=subprocess.STDOUT, cwd=ROOT).returncode
    seconds = time.monotonic() - started
    text = log.read_text(errors="replace")
    line.at_most("wall time", round(seconds), SUITE_BAR_S, "s")
    line.show("exit code", code, "== 0", code == 0)
    for preset in ("release", "asan", "tsan"):
        count = len(re.findall(rf"Test +#\d+: {preset}/", text))
        line.at_least(f"tests run in preset {preset}", count, 1)
    line.note("\n             ".join(text.splitlines()[-8:]))
