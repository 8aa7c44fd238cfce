"""Traces of ranks whose times are known, in the form of dpt-worker (worker/trace/kineto.c) and of PyTorch's profiler.

A step of a rank is: wait for data, compute, all-reduce (which begins when the rank has computed, and ends for all ranks
`transfer_ms` after the last one has begun), optimizer, evaluation, save. All times are in milliseconds."""

import gzip
import json
from dataclasses import dataclass, field
from pathlib import Path

BASE_NS = 1_788_480_000_000_000_000  # a multiple of 90 days
BEGIN_US = 5_000_000_000.0
STREAM_COMPUTE, STREAM_COMM, MAIN, COMM = 7, 20, 1000, 1001
OPTIMIZER_MS, MESSAGE = 2.0, 1_000_000  # elements of an all-reduce


@dataclass
class Step:
    """Times of one rank."""
    compute_ms: float = 40.0
    data_ms: float = 0.5
    save_ms: float = 0.0
    work: int = 512  # positions
    evaluation_ms: float = 0.0


@dataclass
class Run:
    steps: list  # [rank][step] of Step
    transfer_ms: float = 1.0
    strategy: str = "ddp"
    form: str = "dpt"  # or "pytorch"
    annotated: bool = True  # the waits for peers
    hosts_wait: bool = False  # an annotated wait in the commit of each step, outside of the kernels of NCCL
    generation: int = 1
    generation_id: str = "00000000000000a1"  # "": an older file of dpt, which has none
    window: int = 0
    hosts: int = 2  # 0: an older file, which says neither this nor overlap
    overlap: bool = True
    facts: dict = field(default_factory=dict)  # more of the head's facts on the config
    world_size: int = 0  # 0: the ranks that there are
    first_step: int = 3
    memory: list = field(default_factory=list)  # (ms since the begin, bytes)
    compute_kernels: int = 4  # of a step
    all_reduces: int = 1  # under way at the same time, each on its stream
    shift_us: float = 0.0


class Events:
    """The events of one rank."""

    def __init__(self, run, rank):
        self.run, self.rank, self.items, self.correlation = run, rank, [], 0

    def add(self, category, name, thread, begin, end, **args):
        at = BEGIN_US + self.run.shift_us + begin * 1000
        self.items.append({"ph": "X", "cat": category, "name": name, "pid": 0 if "stream" in args else 77,
                           "tid": thread, "ts": round(at, 3), "dur": round((end - begin) * 1000, 3), "args": args})

    def annotate(self, name, begin, end, thread=MAIN, **args):
        if end > begin:
            self.add("user_annotation", name, thread, begin, end, **args)

    def kernel(self, name, thread, stream, begin, end, **args):
        self.correlation += 1
        self.add("cuda_runtime", "cudaLaunchKernel", thread, begin, begin + 0.001, correlation=self.correlation)
        self.add("kernel", name, stream, begin, end, stream=stream, correlation=self.correlation, device=0, **args)

    def compute(self, begin, step):
        """The compute kernels of a step, which leave no gap."""
        count, each = self.run.compute_kernels, step.compute_ms / self.run.compute_kernels
        for i in range(count):
            name = f"matmul_{i}"
            args = {"Input Dims": [[step.work // 64, 64], []]} if self.run.form == "pytorch" else {}
            self.add("cpu_op", name, MAIN, begin + i * each, begin + (i + 1) * each, **args)
            self.kernel(name, MAIN, STREAM_COMPUTE, begin + i * each, begin + (i + 1) * each)
        if self.run.form == "dpt":
            self.annotate("layer", begin, begin + step.compute_ms, unit=0, slot=0, batch=step.work // 64, positions=64)


def add_step(ranks, run, index, begins):
    """Adds step `index` of all ranks, which begin at `begins`; returns their ends."""
    world = run.world_size or len(ranks)
    ready = [begin + run.steps[r][index].data_ms + run.steps[r][index].compute_ms
             for r, begin in enumerate(begins)]
    latest, ends = max(ready), []
    for r, events in enumerate(ranks):
        step, done = run.steps[r][index], latest + run.transfer_ms
        computing = begins[r] + step.data_ms
        events.annotate("wait for data" if run.form == "dpt" else "enumerate(DataLoader)#_Iter.__next__", begins[r],
                        computing)
        events.annotate("forward", computing, computing + step.compute_ms / 3)
        events.annotate("backward", computing + step.compute_ms / 3, ready[r])
        events.compute(computing, step)
        for stream in range(STREAM_COMM, STREAM_COMM + run.all_reduces):
            events.kernel("ncclDevKernel_AllReduce_Sum_host", COMM, stream, ready[r], done,
                          **{"Collective name": "allreduce", "dtype": "Float", "In msg nelems": MESSAGE,
                             "Out msg nelems": MESSAGE, "Group size": world})
        if run.form == "dpt" and run.annotated:
            events.annotate("wait for peers", ready[r], latest, thread=COMM, peer=ready.index(latest))
        if run.form == "dpt":
            events.annotate("grad_sync", ready[r], done)
        if run.hosts_wait:
            events.annotate("host:_allgather_base", done + 0.1, done + 0.4, thread=COMM)
            events.annotate("wait for peers", done + 0.2, done + 0.3, thread=COMM, peer=1 - min(r, 1))
        update = "optimizer_step" if run.form == "dpt" else "Optimizer.step#AdamW.step"
        events.annotate(update, done, done + OPTIMIZER_MS)
        events.kernel("adamw", MAIN, STREAM_COMPUTE, done, done + OPTIMIZER_MS)
        evaluated = done + OPTIMIZER_MS + step.evaluation_ms
        if step.evaluation_ms > 0:
            events.annotate("evaluation", done + OPTIMIZER_MS, evaluated)
            events.kernel("matmul_of_evaluation", MAIN, STREAM_COMPUTE, done + OPTIMIZER_MS, evaluated)
        saved = evaluated + step.save_ms
        events.annotate("save", evaluated, saved)
        events.annotate(f"ProfilerStep#{run.first_step + index}", begins[r], saved)
        ends.append(saved)
    return ends


def head(run, rank):
    world = run.world_size or len(run.steps)
    top = {"schemaVersion": 1, "distributedInfo": {"backend": "host", "rank": rank, "world_size": world},
           "baseTimeNanoseconds": BASE_NS}
    if run.form == "dpt":
        top["dpt"] = {"strategy": run.strategy, "generation": run.generation, "window": run.window,
                      "dropped_events": 0}
        if run.hosts:
            top["dpt"] |= {"hosts": run.hosts, "overlap": run.overlap} | run.facts
        if run.generation_id:
            top["dpt"]["generation_id"] = run.generation_id
    return top


def traces(run):
    """The trace of each rank, as an object."""
    ranks = [Events(run, rank) for rank in range(len(run.steps))]
    ends = [0.0] * len(ranks)
    for index in range(len(run.steps[0])):
        ends = add_step(ranks, run, index, ends)
    for events in ranks:
        for at, allocated in run.memory:
            events.items.append({"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 77, "tid": MAIN,
                                 "ts": BEGIN_US + at * 1000, "s": "t",
                                 "args": {"Total Allocated": allocated, "Total Reserved": allocated, "Bytes": 0,
                                          "Device Type": 0, "Device Id": -1}})
    return [{**head(run, rank), "traceEvents": events.items} for rank, events in enumerate(ranks)]


def write(folder, run, time_ns=1_790_000_000_000_000_000):
    """Writes the files as dpt-worker does; returns their paths."""
    paths = []
    for rank, trace in enumerate(traces(run)):
        place = Path(folder) / "profile" / run.strategy / f"rank_{rank}"
        place.mkdir(parents=True, exist_ok=True)
        path = place / f"worker_{rank}.{time_ns + rank}.pt.trace.json.gz"
        path.write_bytes(gzip.compress(json.dumps(trace).encode(), 1))
        paths.append(path)
    return paths


def even(ranks=4, steps=4, **times):
    return [[Step(**times) for _ in range(steps)] for _ in range(ranks)]
