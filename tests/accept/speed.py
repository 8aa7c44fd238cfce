"""Lines about speed: GPT-2 124M on two cores, and the time of the tests."""

import json
import os
import re
import shutil
import subprocess
import time

from accept.told import cpu_flags
from cluster import ROOT, ClusterError, program

SHARE_BAR = 0.50
SHARES = (  # precision, batch, sequence length, bar
    ("fp32", 4, 64, 0.55),
    ("fp32", 1, 1024, 0.65),
    ("bf16", 4, 64, 0.45),
    ("bf16", 1, 1024, 0.55),
)
RUN_BAR_S, FULL_BAR_S = 15 * 60, 40 * 60  # of tests/run and of tests/run --full, cold, on 2 cores
BENCH_TIMEOUT_S = 900


def bench(line, name, *flags, env=None, programs=None):
    """Runs dpt-bench NAME (of the folder `programs`) and returns its JSON."""
    path = line.folder / f"{name}.json"
    argv = [programs / "dpt-bench" if programs else program("dpt-bench"), name, *flags, "--json", path]
    line.command(argv)
    run = subprocess.run([str(a) for a in argv], capture_output=True, text=True, timeout=BENCH_TIMEOUT_S, env=env)
    if run.returncode != 0:
        raise ClusterError(f"dpt-bench {name}: exit {run.returncode}\n{run.stdout[-2000:]}{run.stderr[-2000:]}")
    return json.loads(path.read_text())


def best_rate(line, measured, train):
    """The reference rate for a training's share: the best of the rate measured alone and the rate that `dpt-bench
    train` measured right before and after. A disturbance makes a measurement slower, and too low a reference makes the
    share too large."""
    line.note(f"gemm {measured:.1f} GFLOP/s by itself, {train['gemm_gflops']:.1f} beside the training")
    return max(measured, train["gemm_gflops"])


def speed_124m(line):
    """GPT-2 124M, B=4 T=64 fp32, 2 threads: products and all at >= 50% of the `dpt-bench gemm` rate (best median of
    2048^3, 4096^3 and GPT-2's shapes, prepacked, before and beside it) at 6N flops a token; no allocation inside the
    step (malloc and mmap interposed, libraries included)."""
    gemm = bench(line, "gemm", "--threads", "2")
    train = bench(line, "train", "--preset", "gpt2-124m", "--batch", "4", "--seq", "64", "--threads", "2",
                  "--steps", "12")
    rate = best_rate(line, max(shape["gflops_median"] for shape in gemm["shapes"] if shape["prepacked"]), train)
    flops = 6 * train["parameters"] * train["tokens_per_s"]
    line.note(f"train {train['tokens_per_s']:.1f} tokens/s, {flops / 1e9:.0f} GFLOP/s at 6N")
    line.show("parameters", train["parameters"], "== 124439808", train["parameters"] == 124_439_808)
    line.at_least("share of the gemm rate", round(flops / 1e9 / rate, 4), SHARE_BAR)
    line.show("allocations inside the step", train["allocations_in_step"], "== 0", train["allocations_in_step"] == 0)


def gemm_rate(line, precision):
    """Reference rate, GFLOP/s: the best median of 2048^3, 4096^3 and GPT-2's shapes, prepacked, in this precision."""
    gemm = bench(line, "gemm", "--precision", precision, "--threads", "2")
    return max(shape["gflops_median"] for shape in gemm["shapes"] if shape["prepacked"])


def shares_124m(line):
    """GPT-2 124M, 2 threads, share of the `gemm` rate of that precision (the best measured before and beside it) at 6N
    flops a token: fp32 B=4 T=64 >= 55%, B=1 T=1024 >= 65%; bf16 >= 45% and >= 55%; no allocation inside the step."""
    rates = {precision: gemm_rate(line, precision) for precision in ("fp32", "bf16")}
    for precision, batch, seq, bar in SHARES:
        train = bench(line, "train", "--preset", "gpt2-124m", "--precision", precision, "--batch", str(batch), "--seq",
                      str(seq), "--threads", "2", "--steps", "12")
        flops = 6 * train["parameters"] * train["tokens_per_s"]
        name = f"{precision} B={batch} T={seq}"
        line.note(f"{name}: {train['step_ms']:.0f} ms a step, {train['tokens_per_s']:.1f} tokens/s, "
                  f"{flops / 1e9:.0f} GFLOP/s")
        share = flops / 1e9 / best_rate(line, rates[precision], train)
        line.at_least(f"{name}, share of the gemm rate", round(share, 4), bar)
        line.show(f"{name}, allocations inside the step", train["allocations_in_step"], "== 0",
                  train["allocations_in_step"] == 0)


def suite(line, isa="", root=ROOT, args=(), bar_s=RUN_BAR_S, env=None):
    """Runs tests/run of the tree `root` at the instruction set `isa` or the machine's best, with additional environment
    variables; shows its time and its exit code."""
    env = {k: v for k, v in os.environ.items() if k != "DPT_TEST_ISA"} | ({"DPT_TEST_ISA": isa} if isa else {}) | (
        env or {})
    at = " ".join(["", *args]) + (f" at ISA {isa}" if isa else "")
    log = line.folder / f"run{at.replace(' ', '-')}.log"
    there = [name for name in ("build", "build-asan", "build-tsan") if (root / name / "build.ninja").exists()]
    line.command(" ".join([*([f"DPT_TEST_ISA={isa}"] if isa else []), "tests/run", *args]))
    started = time.monotonic()
    with open(log, "wb") as out:
        code = subprocess.run([root / "tests" / "run", *args], stdout=out, stderr=subprocess.STDOUT, cwd=root,
                              env=env).returncode
    seconds = time.monotonic() - started
    text = log.read_text(errors="replace")
    line.at_most(f"wall time{at}", round(seconds), bar_s, "s")
    line.show(f"exit code{at}", code, "== 0", code == 0)
    for preset in ("release", "asan", "tsan"):
        count = len(re.findall(rf"Test +#\d+: {preset}/", text))
        line.at_least(f"tests run in preset {preset}{at}", count, 1)
    line.note("\n             ".join(text.splitlines()[-8:]))
    tested = re.search(r"Total Test time \(real\) = +([\d.]+)", text)
    cached = shutil.which("ccache") and "CCACHE_DISABLE" not in env
    cache = "ccache has what was compiled before" if cached else "no ccache"
    line.note(f"tests {tested[1] if tested else '?'} s, the rest is building; folders that were there before: "
              f"{', '.join(there) or 'none'}; {cache}")


def suite_in_time(line):
    """`tests/run` takes at most 15 minutes on 2 cores; ASan+UBSan on the CPU tests; TSan on unit and sim tests and on
    comm, prefetch and checkpoint threads with ranks as threads."""
    suite(line)


def suite_at_every_isa(line):
    """`tests/run` passes in at most 15 minutes on 2 cores, at ISA avx2 and at the machine's best."""
    if "avx512bw" not in cpu_flags():
        line.note("this machine's best is avx2: one run is both")
    for isa in ["", "avx2"] if "avx512bw" in cpu_flags() else [""]:
        suite(line, isa)
