"""Runs whose bottleneck is known, and what dpt-trace says of them. The program with faults slows slots, reads and the
writes of checkpoints, and logs each delay (tests/worker/train/delays.h); tc(8) slows a link."""

import csv
import gzip
import json
import random
import re
import statistics
import struct
import subprocess
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass

from accept.gpu import write_tokens
from cluster import Cluster, ClusterError, program
from netns import Wire, start_server, start_worker

CAUSES = ("straggler", "imbalance", "data", "communication", "checkpoint", "compute")
STRATEGIES = {"ddp": {"strategy.name": "ddp"}, "zero1": {"strategy.name": "zero1"}, "zero2": {"strategy.name": "zero2"},
              "full_shard": {"strategy.name": "fsdp", "strategy.sharding": "full_shard"}}
NODES = ("a", "b")
RUN_TIMEOUT_S = 120
WAIT_STEPS, WARMUP_STEPS, TRACED_STEPS = 2, 2, 5
SAVED_STEP = 7  # the only one that is saved in the window: no save waits for the one before
MICRO_BATCH = 2
# us: a step of some 5 ms without delays takes more than 150 ms with them. A save is some 10 to 40 writes.
DELAY_US = {"SLOTS": (80_000, 160_000), "READS": (40_000, 80_000), "WRITES": (30_000, 60_000)}
LINK_MBIT, LINK_WIDTH = (40, 80), 256
LINK_HEADERS = 1514 / 1448  # bytes on an Ethernet for each byte of a TCP stream
LINK_BURST_BYTES = 80 << 10  # pass at once after the link was idle: a packet of the kernel, 1 to 2 % of a step
LINK_WINDOW_BYTES = 128 << 10  # in flight: some 20 ms of the link, so it is never idle and drops nothing
# Runs whose communication has another remedy than the strategy's own.
LINK_KEYS = ({}, {"strategy.compression": "bf16"}, {"strategy.overlap": "false"})


class Case:
    """A run of two ranks with one known cause, drawn from a seed."""

    def __init__(self, seed):
        draw = random.Random(seed)
        self.seed, self.cause = seed, CAUSES[seed % len(CAUSES)]
        self.strategy = draw.choice(list(STRATEGIES))
        self.mbit = round(draw.uniform(*LINK_MBIT)) if self.cause == "communication" else None
        call = {"data": "READS", "communication": None, "checkpoint": "WRITES"}.get(self.cause, "SLOTS")
        one = [draw.choice(NODES)]
        nodes = {"straggler": one, "communication": [], "checkpoint": draw.choice((one, NODES))}.get(self.cause, NODES)
        delay_us = round(draw.uniform(*DELAY_US[call])) if call else 0
        self.slow = {node: (call, delay_us) for node in nodes}
        self.slots = 3 if self.cause == "imbalance" else 4
        self.keys = {"communication": draw.choice(LINK_KEYS),
                     "compute": {"train.precision": draw.choice(("fp32", "bf16"))}}.get(self.cause, {})

    def __str__(self):
        return f"{self.seed:02}-{self.cause}-{self.strategy}"

    def sets(self, folder):
        steps = WAIT_STEPS + WARMUP_STEPS + TRACED_STEPS
        sets = dict(STRATEGIES[self.strategy], **{
            "trace.dir": folder / "traces", "trace.wait": WAIT_STEPS, "trace.warmup": WARMUP_STEPS,
            "trace.active": TRACED_STEPS, "trace.repeat": 1, "train.steps": steps, "data.kind": "tokens",
            "data.train": folder / "tokens.bin", "train.global_batch": self.slots * MICRO_BATCH,
            "train.micro_batch": MICRO_BATCH, "cluster.timeout_s": 10, "optimizer.warmup_steps": 0,
            "checkpoint.every_steps": SAVED_STEP if self.cause == "checkpoint" else 0}, **self.keys)
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
        """Trains; returns {rank: node}. Checkpoints are in memory, so that a write takes no time but its delay."""
        folder.mkdir(parents=True)
        write_tokens(folder / "tokens.bin", 400, 33, 256, self.seed)
        with ExitStack() as stack:
            memory = stack.enter_context(tempfile.TemporaryDirectory(prefix="dpt-causes-", dir="/dev/shm"))
            cluster = stack.enter_context(Cluster(folder / "run", sets=self.sets(folder), shared_dirs=True))
            options = {"nnodes": 2, "sets": {"checkpoint.dir": memory}}
            if self.cause == "communication":
                wire = stack.enter_context(Wire())
                wire.bound_windows(LINK_WINDOW_BYTES)
                if self.mbit:
                    wire.limit(self.mbit, burst_bytes=LINK_BURST_BYTES)
                endpoint = f"192.0.2.1:{start_server(cluster, wire.names[0], RUN_TIMEOUT_S, '--fresh')}"
                workers = [start_worker(cluster, host, node, endpoint, **options)
                           for host, node in zip(wire.names, NODES, strict=True)]
            else:
                cluster.start_server()
                workers = [cluster.start_worker(node, env=self.env(node, folder), **options) for node in NODES]
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

    def key(self):
        """The config key that the paragraph must name."""
        if self.cause != "communication":
            bf16 = self.keys.get("train.precision") == "bf16"
            return {"straggler": "cluster.threads", "imbalance": "train.global_batch", "data": "data.train",
                    "checkpoint": "checkpoint.every_steps",
                    "compute": "cluster.nnodes" if bf16 else "train.precision"}[self.cause]
        if "strategy.overlap" in self.keys:
            return "strategy.overlap"
        if self.strategy == "full_shard":
            return "strategy.sharding"
        if "strategy.compression" in self.keys:
            return "train.micro_batch" if self.strategy == "zero2" else "train.global_batch"
        return "strategy.compression"


# ---------------------------------------------------------------- what was measured, what dpt-trace says

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


@dataclass
class Said:
    """What dpt-trace says of a run."""
    rows: dict  # {rank: {column: figure}} of summary.csv
    text: str   # of the terminal
    key: str    # to change

    def lost_ms(self):
        """Of the mean step, as the paragraph says it."""
        return float(re.search(r"This takes ([\d.]+) ms of the mean step", self.text)[1])


def report(folder):
    traces, out = folder / "traces", folder / "reports"
    command = "ddp" if list(traces.glob("profile/ddp")) else "sharding"
    done = subprocess.run([program("dpt-trace"), command, "--trace-dir", traces, "--include-last-step", "--out", out],
                          capture_output=True, text=True, timeout=RUN_TIMEOUT_S)
    if done.returncode != 0:
        raise ClusterError(f"dpt-trace: exit {done.returncode}\n{done.stdout}{done.stderr}")
    found, = out.glob("*/summary.csv")
    with open(found, newline="") as file:
        rows = {int(row["rank"]): {name: float(value) for name, value in row.items()
                                   if re.fullmatch(r"-?[\d.]+", value)} for row in csv.DictReader(file)}
    key, = re.findall(r"Key to change: <code>(.*?)</code>", (found.parent / "summary.html").read_text())
    return Said(rows, done.stdout, key)


@dataclass
class Bare:
    """A run without its cause, in ms of the window: the mean of the ranks."""
    steps: float
    backward: float

    @classmethod
    def measure(cls, cause, strategy, folder):
        case = Case(CAUSES.index(cause))
        case.strategy, case.slow, case.mbit, case.keys = strategy, {}, None, {}
        case.run(folder)
        rows = report(folder).rows.values()
        return cls(TRACED_STEPS * statistics.median(row["step_ms"] for row in rows),
                   statistics.median(row["backward_ms"] for row in rows))


def measure_bare(folder):
    """{(whether over a link, strategy): Bare}, each the faster one of two runs."""
    return {(cause == "communication", strategy):
            min((Bare.measure(cause, strategy, folder / f"{cause}-{strategy}-{i}") for i in range(2)),
                key=lambda bare: bare.steps)
            for cause in ("compute", "communication") for strategy in STRATEGIES}


@dataclass
class Time:
    """A time in ms that the cause determines. `of`: its error is a share of this."""
    what: str
    true: float
    reported: float
    of: float

    def apart(self):
        return abs(self.reported - self.true) / self.of


def times_of_rank(case, bare, row, here, other):
    """Of a rank with `here` ms of delays; the other rank has `other` ms."""
    lost, steps = max(here, other), TRACED_STEPS * row["step_ms"]
    late = here > 0.9 * other  # also if both are
    if case.cause == "communication":
        link = TRACED_STEPS * case.sent_bytes * LINK_HEADERS * 8 / case.mbit / 1000
        exposed = row["exposed_percent"] * row["window_ms"] / 100
        # Between all and nothing of the computation is beside the transfer.
        return [("exposed transfers", link, exposed, link), ("steps", link + bare.steps / 2, steps, link)]
    if case.cause == "data":
        return [("wait for data", here - bare.steps, row["data_wait_ms"], here - bare.steps),
                ("steps", here, steps, here)]
    found = [("steps", bare.steps + lost, steps, bare.steps + lost)]
    # A rank with one slot in place of two computes half as long.
    slot = bare.steps / 2 if case.cause == "imbalance" and not late else 0
    waits = 0 if late else other - here + slot
    found.append(("wait for the other", waits, row["peer_wait_ms"], waits or lost))
    if case.cause == "checkpoint":
        found.append(("save", here, row["checkpoint_ms"], here or lost))
        found.append(("backward passes", bare.backward, row["backward_ms"], lost))
    elif late:
        found.append(("backward passes", bare.backward + here, row["backward_ms"], bare.backward + here))
    return found


def lost_ms(case, bare, delays):
    """The time of the mean step that the paragraph must name."""
    most, least = max(delays), min(delays)
    total = {"straggler": most - least, "imbalance": most - least + bare.steps / 2, "data": most - bare.steps,
             "checkpoint": most, "compute": bare.steps + most}
    if case.cause == "communication":
        return case.sent_bytes * LINK_HEADERS * 8 / case.mbit / 1000
    return total[case.cause] / TRACED_STEPS


def times(case, folder, ranks, bare, said):
    found, all_delays = [], []
    for rank, node in ranks.items():
        path, = (folder / "traces").glob(f"profile/*/rank_{rank}/*.json.gz")
        begin, end = read_trace(path)
        here, other = (delays_ms(folder, each, begin, end)
                       for each in (node, next(n for n in NODES if n != node)))
        all_delays.append(here)
        found += [Time(f"rank {rank}, {what}", *figures)
                  for what, *figures in times_of_rank(case, bare, said.rows[rank], here, other)]
    lost = lost_ms(case, bare, all_delays)
    return [*found, Time("the paragraph's time", lost, said.lost_ms(), lost)]


# What the paragraph says of a cause.
PARAGRAPH = {"straggler": r"The bottleneck is rank {late}, a straggler", "imbalance": r"The bottleneck is imbalance",
             "data": r"The bottleneck is data", "communication": r"The bottleneck is communication",
             "checkpoint": r"The bottleneck is the checkpoint", "compute": r"The bottleneck is computation"}


def known_cause(case, folder, bare):
    """(whether the paragraph names the cause, whether it names the key, [Time], what dpt-trace says)"""
    ranks = case.run(folder)
    said = report(folder)
    late = next((rank for rank, node in ranks.items() if node in case.slow), None)
    named = bool(re.search(PARAGRAPH[case.cause].format(late=late), said.text))
    keyed = said.key == case.key() and case.key() in said.text
    return named, keyed, times(case, folder, ranks, bare[case.cause == "communication", case.strategy], said), said
