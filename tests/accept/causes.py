"""Runs whose bottleneck is known, and what dpt-trace says of them. The program with faults slows slots and reads, and
logs each delay (tests/worker/train/delays.h); tc(8) slows a link."""

import csv
import gzip
import json
import random
import re
import statistics
import struct
import subprocess
from contextlib import ExitStack

from accept.gpu import write_tokens
from cluster import Cluster, ClusterError, program
from netns import Wire, start_server, start_worker

CAUSES = ("straggler", "imbalance", "data", "communication", "compute")
STRATEGIES = {"ddp": {"strategy.name": "ddp"}, "zero1": {"strategy.name": "zero1"}, "zero2": {"strategy.name": "zero2"},
              "full_shard": {"strategy.name": "fsdp", "strategy.sharding": "full_shard"}}
NODES = ("a", "b")
RUN_TIMEOUT_S = 120
WAIT_STEPS, WARMUP_STEPS, TRACED_STEPS = 2, 2, 5
MICRO_BATCH = 2
# us: a step of some 5 ms without delays takes more than 150 ms with them.
DELAY_US = {"SLOTS": (80_000, 160_000), "READS": (40_000, 80_000)}
LINK_MBIT, LINK_WIDTH = (40, 80), 256
LINK_HEADERS = 1514 / 1448  # bytes on an Ethernet for each byte of a TCP stream
LINK_WINDOW_BYTES = 128 << 10  # in flight: some 20 ms of the link, so it is never idle and drops nothing


class Case:
    """A run of two ranks with one known cause, drawn from a seed."""

    def __init__(self, seed):
        draw = random.Random(seed)
        self.seed, self.cause = seed, CAUSES[seed % len(CAUSES)]
        self.strategy = draw.choice(list(STRATEGIES))
        self.mbit = round(draw.uniform(*LINK_MBIT)) if self.cause == "communication" else None
        call = {"data": "READS", "communication": None}.get(self.cause, "SLOTS")
        nodes = {"straggler": [draw.choice(NODES)], "communication": []}.get(self.cause, NODES)
        delay_us = round(draw.uniform(*DELAY_US[call])) if call else 0
        self.slow = {node: (call, delay_us) for node in nodes}
        self.slots = 3 if self.cause == "imbalance" else 4

    def __str__(self):
        return f"{self.seed:02}-{self.cause}-{self.strategy}"

    def sets(self, folder):
        steps = WAIT_STEPS + WARMUP_STEPS + TRACED_STEPS
        sets = dict(STRATEGIES[self.strategy], **{
            "trace.dir": folder / "traces", "trace.wait": WAIT_STEPS, "trace.warmup": WARMUP_STEPS,
            "trace.active": TRACED_STEPS, "trace.repeat": 1, "train.steps": steps, "data.kind": "tokens",
            "data.train": folder / "tokens.bin", "train.global_batch": self.slots * MICRO_BATCH,
            "train.micro_batch": MICRO_BATCH, "cluster.timeout_s": 10, "optimizer.warmup_steps": 0,
            "checkpoint.every_steps": 0})
        if self.cause == "communication":
            sets.update({"model.n_embd": LINK_WIDTH, "train.micro_batch": 1, "train.global_batch": self.slots,
                         "train.seq_len": 8})
        return sets

    def env(self, node, folder):
        if node not in self.slow:
            return {}
        call, delay_us = self.slow[node]
        return {f"DPT_TEST_SLOW_{call}": f"{delay_us}:{folder / f'delays-{node}'}"}

    def run(self, folder):
        """Trains; returns {rank: node}."""
        folder.mkdir(parents=True)
        write_tokens(folder / "tokens.bin", 400, 33, 256, self.seed)
        with ExitStack() as stack:
            cluster = stack.enter_context(Cluster(folder / "run", sets=self.sets(folder), shared_dirs=True))
            if self.mbit:
                wire = stack.enter_context(Wire())
                wire.bound_windows(LINK_WINDOW_BYTES)
                wire.limit(self.mbit)
                endpoint = f"192.0.2.1:{start_server(cluster, wire.names[0], RUN_TIMEOUT_S, '--fresh')}"
                workers = [start_worker(cluster, host, node, endpoint, nnodes=2)
                           for host, node in zip(wire.names, NODES, strict=True)]
            else:
                cluster.start_server()
                workers = [cluster.start_worker(node, env=self.env(node, folder), nnodes=2) for node in NODES]
            for worker in workers:
                if worker.wait(RUN_TIMEOUT_S) != 0:
                    raise ClusterError(cluster.log_tails())
            self.sent_bytes = statistics.median(m["sent_bytes"] for m in cluster.metrics()[-TRACED_STEPS:])
            return self.ranks(workers)

    def ranks(self, workers):
        found = {}
        for worker in workers:
            text = worker.log_tail(10_000)
            rank = re.search(r"rank=(\d+)", text)
            if not rank:
                raise ClusterError(f"no rank of node {worker.node}\n{text}")
            found[int(rank[1])] = worker.node
        return found


def read_trace(path):
    """(begin, end) of the traced steps in ns since 1970."""
    trace = json.loads(gzip.decompress(path.read_bytes()))
    steps = [e for e in trace["traceEvents"] if e.get("name", "").startswith("ProfilerStep#")]
    base = trace["baseTimeNanoseconds"]
    return (base + 1000 * min(e["ts"] for e in steps), base + 1000 * max(e["ts"] + e["dur"] for e in steps))


def delays_ms(folder, node, begin, end):
    """The sum of the logged delays of a node within a time."""
    path = folder / f"delays-{node}"
    if not path.exists():
        return 0
    times = struct.iter_unpack("<qq", path.read_bytes())
    return sum(max(0, min(end, b) - max(begin, a)) for a, b in times) / 1e6


def report(folder):
    """The rows of summary.csv, and the terminal's text."""
    traces, out = folder / "traces", folder / "reports"
    command = "ddp" if list(traces.glob("profile/ddp")) else "sharding"
    done = subprocess.run([program("dpt-trace"), command, "--trace-dir", traces, "--include-last-step", "--out", out],
                          capture_output=True, text=True, timeout=RUN_TIMEOUT_S)
    if done.returncode != 0:
        raise ClusterError(f"dpt-trace: exit {done.returncode}\n{done.stdout}{done.stderr}")
    found, = out.glob("*/summary.csv")
    with open(found, newline="") as file:
        return list(csv.DictReader(file)), done.stdout


def truths(case, folder, ranks, bare_ms):
    """[(what, true ms, reported ms)] of a case. `bare_ms`: {strategy: a step without delays}."""
    rows, text = report(folder)
    rows = {int(row["rank"]): row for row in rows}
    found = []
    for rank, node in ranks.items():
        path, = (folder / "traces").glob(f"profile/*/rank_{rank}/*.json.gz")
        begin, end = read_trace(path)
        row = {name: float(value) for name, value in rows[rank].items() if re.fullmatch(r"-?[\d.]+", value)}
        here = delays_ms(folder, node, begin, end)
        other = delays_ms(folder, next(n for n in NODES if n != node), begin, end)
        if case.cause in ("straggler", "imbalance") and other > here:
            # Without delays, a step has two slots of each rank. So the third slot takes half of it beside its delay.
            slot_ms = TRACED_STEPS * bare_ms[case.strategy] / 2 if case.cause == "imbalance" else 0
            found.append((f"rank {rank} waits for the other", other - here + slot_ms, row["peer_wait_ms"]))
        if case.cause == "data":
            true = here - TRACED_STEPS * bare_ms[case.strategy]
            found.append((f"rank {rank} waits for data", true, row["data_wait_ms"]))
        if case.cause == "communication":
            true = TRACED_STEPS * case.sent_bytes * LINK_HEADERS * 8 / case.mbit / 1000
            found.append((f"rank {rank}, exposed transfers", true, row["exposed_percent"] * row["window_ms"] / 100))
        if case.cause == "compute":
            found.append((f"rank {rank}'s backward passes", here, row["backward_ms"]))
    return found, text


# What the paragraph says of a cause.
PARAGRAPH = {"straggler": r"The bottleneck is rank {late}, a straggler", "imbalance": r"The bottleneck is imbalance",
             "data": r"The bottleneck is data", "communication": r"The bottleneck is communication",
             "compute": r"The bottleneck is computation"}


def bare_step_ms(folder):
    """{strategy: the median step of the tiny model without delays}"""
    found = {}
    for strategy in STRATEGIES:
        case = Case(CAUSES.index("compute"))
        case.strategy, case.slow = strategy, {}
        case.run(folder / strategy)
        rows, _ = report(folder / strategy)
        found[strategy] = statistics.median(float(row["step_ms"]) for row in rows)
    return found


def known_cause(case, folder, bare_ms):
    """(whether the paragraph names the cause, [(what, true ms, reported ms)])"""
    ranks = case.run(folder)
    found, text = truths(case, folder, ranks, bare_ms)
    late = next((rank for rank, node in ranks.items() if node in case.slow), None)
    return bool(re.search(PARAGRAPH[case.cause].format(late=late), text)), found, text
