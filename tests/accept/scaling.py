"""Lines about several ranks of one host: the all-reduce beside a peer library, and weak scaling."""

import array
import random
import statistics
import subprocess

from cluster import ClusterError, Outputs, program

from accept.speed import bench

RATIOS = ((100 << 10, "100 KB", 20), (26 << 20, "26 MB", 8))  # bytes, name, bar
EFFICIENCY_BAR = 0.95
SLOTS, MICRO_BATCH, SEQ_LEN = 4, 4, 64
PAIRS, STEPS = 2, 6  # a pair of runs alternates; the first step of each is not counted
RUN_TIMEOUT_S = 900

CONFIG = """\
run: weak-scaling
cluster: {{nnodes: 1, gpus_per_node: {ranks}, threads: 1, timeout_s: 60}}
model: {{name: gpt2, preset: gpt2-124m}}
data: {{kind: tokens, train: "{tokens}"}}
train: {{steps: {steps}, global_batch: {batch}, micro_batch: {micro}, seq_len: {seq}, precision: fp32, log_every: 1}}
checkpoint: {{every_steps: 0, dir: "{folder}/checkpoints"}}
log: {{dir: "{folder}/log"}}
"""


def allreduce_beside_gloo(line):
    """shm all-reduce of 2 processes by ddp's code, beside libgloo-dev in the same run (its TCP on loopback, the best of
    six algorithms for each size): >= 20x at 100 KB, >= 8x at 26 MB; each rank sends the bytes of the formula 2(N-1)/N x
    D."""
    sizes = ",".join(str(size) for size, _, _ in RATIOS)
    report = bench(line, "allreduce", "--peer", "gloo", "--sizes", sizes, "--blocks", str(line.repeat(8)))
    rows = {row["bytes"]: row for row in report["rows"]}
    for size, name, bar in RATIOS:
        row, gloo = rows[size], rows[size]["gloo"]
        line.note(f"{name}: {row['median_us']:.1f} us (p99 {row['p99_us']:.1f}), gloo {gloo['algorithm']} "
                  f"{gloo['median_us']:.1f} us (p99 {gloo['p99_us']:.1f})")
        line.at_least(f"{name}, gloo's time over dpt's", round(gloo["ratio"], 2), bar)
        line.show(f"{name}, bytes sent by a rank", row["bytes_sent"], f"== {row['bytes_formula']:.0f}",
                  row["bytes_sent"] == row["bytes_formula"])


def write_tokens(path):
    """A shard of uniformly drawn tokens; the time of a step does not depend on the tokens."""
    rng, count = random.Random(1), 1 << 18
    header = array.array("i", [20240520, 1, count] + [0] * 253)
    path.write_bytes(header.tobytes() + array.array("H", [rng.randrange(50257) for _ in range(count)]).tobytes())


def step_times(line, ranks, run):
    """The times of a run's steps in ms, without the first step."""
    folder = line.folder / f"run-{run}-ranks-{ranks}"
    folder.mkdir(parents=True)
    config = folder / "config.yaml"
    config.write_text(CONFIG.format(ranks=ranks, tokens=line.folder / "tokens.bin", steps=STEPS, folder=folder,
                                    batch=ranks * SLOTS * MICRO_BATCH, micro=MICRO_BATCH, seq=SEQ_LEN))
    argv = [program("dpt-worker"), "--nnodes", "1", "--config", config]
    line.command(argv)
    done = subprocess.run([str(a) for a in argv], capture_output=True, text=True, timeout=RUN_TIMEOUT_S)
    if done.returncode != 0:
        raise ClusterError(f"dpt-worker: exit {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return [row["step_ms"] for row in Outputs(folder / "log").metrics() if row["step"] > 1]


def weak_scaling(line):
    """Two ranks of one thread, each with 4 slots a step, against one rank of one thread with 4 slots, GPT-2 124M fp32
    B=4 T=64: the step takes no more than 1/0.95 of the time (>= 95% weak-scaling efficiency)."""
    write_tokens(line.folder / "tokens.bin")
    times = {1: [], 2: []}
    for run in range(line.repeat(PAIRS)):
        for ranks in times:
            times[ranks] += step_times(line, ranks, run)
    one, two = (statistics.median(times[ranks]) for ranks in (1, 2))
    line.note(f"median step: one rank {one:.0f} ms, two ranks {two:.0f} ms, of {len(times[1])} and {len(times[2])}")
    line.at_least("weak-scaling efficiency of two ranks", round(one / two, 4), EFFICIENCY_BAR)
