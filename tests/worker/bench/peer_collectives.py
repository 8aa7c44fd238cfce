#!/usr/bin/python3
"""dpt's all-reduce, direct and by a ring, beside Gloo's all-reduce of PyTorch, size by size in turn.

    peer_collectives.py DPT_BENCH [--ranks 2,4] [--sizes 102400,1048576,27262976,130023424] [--blocks 5]
                        [--rounds 20] [--json FILE]

A block runs dpt-bench collectives with each algorithm, then as many processes of torch.distributed (backend gloo, on
loopback), all in place on floats. The order within a block turns. A figure is the median of the blocks' medians. Gloo's
sums are checked. PyTorch is that of $DPT_TORCH_PYTHON, else of python3; without it the exit code is 77.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

RUN_TIMEOUT_S = 600
WARMUP = 5

RANK = """
import json, sys, time
import torch, torch.distributed as dist
rank, n, port, bytes_, rounds, warmup = map(int, sys.argv[1:])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=n)
vector = torch.zeros(bytes_ // 4)
us = []
for i in range(warmup + rounds):
    began = time.perf_counter_ns()
    dist.all_reduce(vector)
    us.append((time.perf_counter_ns() - began) * 1e-3)
values = (torch.arange(vector.numel()) % 1021 + 1).float()
vector.copy_(values * (rank + 1))
dist.all_reduce(vector)
wrong = int((vector != values * (n * (n + 1) // 2)).sum())
dist.destroy_process_group()
print(json.dumps({"us": us[warmup:], "wrong": wrong}))
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_gloo(python, ranks, size, rounds):
    """Median over rounds of the mean over ranks, us."""
    port, env = free_port(), dict(os.environ, GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1")
    argv = [str(each) for each in (ranks, port, size, rounds, WARMUP)]
    running = [subprocess.Popen([python, "-c", RANK, str(rank), *argv], stdout=subprocess.PIPE, text=True, env=env)
               for rank in range(ranks)]
    answers = [json.loads(each.communicate(timeout=RUN_TIMEOUT_S)[0]) for each in running]
    if any(answer["wrong"] for answer in answers):
        sys.exit(f"gloo: wrong sums of {size} bytes: {[answer['wrong'] for answer in answers]} elements")
    return statistics.median(statistics.mean(of_round) for of_round in zip(*(answer["us"] for answer in answers)))


def run_dpt(options, algorithm, ranks, size, hosts):
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "figures.json"
        argv = ["--algorithm", algorithm, "--ranks", ranks, "--hosts", hosts, "--begin", size, "--end", size,
                "--rounds", options.rounds, "--warmup", WARMUP, "--json", out]
        subprocess.run([options.program, "collectives", *map(str, argv)], check=True, stdout=subprocess.DEVNULL,
                       timeout=RUN_TIMEOUT_S)
        return json.loads(out.read_text())["tables"][0]["rows"][0]["in_place"]["median_us"]


def measure(options, python, ranks, size):
    sides = {"direct": lambda: run_dpt(options, "direct", ranks, size, 1),
             "ring": lambda: run_dpt(options, "ring", ranks, size, 1),
             "direct tcp": lambda: run_dpt(options, "direct", ranks, size, ranks),
             "ring tcp": lambda: run_dpt(options, "ring", ranks, size, ranks),
             "gloo": lambda: run_gloo(python, ranks, size, options.rounds)}
    names, figures = list(sides), {name: [] for name in sides}
    for block in range(options.blocks):
        turn = block % len(names)
        for name in names[turn:] + names[:turn]:
            figures[name].append(sides[name]())
    return {name: statistics.median(of_blocks) for name, of_blocks in figures.items()}


def numbers(text):
    return [int(word) for word in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--ranks", type=numbers, default=[2, 4])
    parser.add_argument("--sizes", type=numbers, default=[100 << 10, 1 << 20, 26 << 20, 124 << 20])
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json")
    options = parser.parse_args()
    python = os.environ.get("DPT_TORCH_PYTHON", "python3")
    probe = [python, "-c", "import torch.distributed as d; raise SystemExit(not d.is_gloo_available())"]
    if subprocess.run(probe, capture_output=True, check=False).returncode != 0:
        print(f"{python} has no PyTorch with gloo (DPT_TORCH_PYTHON names another)")
        sys.exit(77)
    print("all-reduce in place, us; the ratios are to direct (ranks of one host, and ranks on a host each by TCP)")
    print(f"{'ranks':>5} {'bytes':>10} {'direct':>10} {'ring':>10} {'direct tcp':>10} {'ring tcp':>10} {'gloo':>10}"
          f" {'ring/d':>7} {'gloo/d':>7} {'ring/d tcp':>10} {'gloo/d tcp':>10}")
    rows = []
    for ranks in options.ranks:
        for size in options.sizes:
            row = measure(options, python, ranks, size)
            rows.append({"ranks": ranks, "bytes": size, **row})
            near, far = row["direct"], row["direct tcp"]
            print(f"{ranks:>5} {size:>10}" + "".join(f" {us:>10.1f}" for us in row.values())
                  + f" {row['ring'] / near:>7.2f} {row['gloo'] / near:>7.1f}"
                  + f" {row['ring tcp'] / far:>10.2f} {row['gloo'] / far:>10.2f}", flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
