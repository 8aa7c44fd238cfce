"""The same runs with the programs of an earlier commit and with the present ones: a fixed table of 80 configs."""

import json
import os
import random
import shutil
import signal
from dataclasses import dataclass, field
from pathlib import Path

from accept import one_curve
from accept.families import families, run_of
from accept.history import programs
from accept.one_curve import CHECKPOINTING, STRATEGIES
from accept.stories import RUN_TIMEOUT_S, STEP_TIMEOUT_S, settings
from cluster import TINY, Cluster, ClusterError

SLOTS, STEPS = 10, 12
KILL_STEP, KILLED_STEPS = 40, 400  # for a run with a kill
PRECISIONS = ("fp32", "bf16", "fp16")
ORDERS = ("local", "reduce")
LANES = (7, 5)  # of 10 slots: lanes of one and of two slots, and trees that are not symmetric
# By world: nodes and ranks of each node; on one host, and on separate hosts that are connected by TCP.
TOGETHER = {1: (1, 1), 2: (1, 2), 3: (1, 3), 4: (1, 4)}
APART = {1: (1, 1), 2: (2, 1), 3: (3, 1), 4: (2, 2)}
SHADOW = {"strategy.redundancy": "shadow"}
UNUSED = {"bytes": 0, "peak": 0, "formula": 0}  # of a kind of memory that a program does not have


@dataclass
class Config:
    """One row of the table: the settings of a run, and its faults."""
    name: str
    sets: dict
    nodes: int
    ranks: int = 1
    steps: int = STEPS
    config: Path = TINY
    after: tuple = ()  # nodes and ranks of the new program, which resumes from the old one's checkpoint
    killed: str = ""   # "node" or "rank", of the last node

    def settings(self):
        every = self.steps // 2 if self.after else 0
        return {**settings(SLOTS, self.steps), "train.log_every": 1, "checkpoint.every_steps": every, **self.sets}


@dataclass
class Result:
    """The results of a run; bytes sent and memory by tag only for a run without a fault."""
    weights_hash: str
    sent: list = field(default_factory=list)
    memory: dict = field(default_factory=dict)


def curve_of(order, precision, lanes=LANES[0]):
    return {**one_curve.curve_of(order, precision), "train.lanes": lanes}


def matrix():
    """Each strategy under both orders, twice. The table as a whole covers four worlds, three precisions and three
    settings of activation checkpointing, on one host and on several."""
    for again in range(2):
        for j, order in enumerate(ORDERS):
            for i, name in enumerate(STRATEGIES):
                precision, world = PRECISIONS[(i + j + 2 * again) % 3], 1 + (i + 2 * j + again) % 4
                checkpointing = CHECKPOINTING[(2 * i + j) % 3]
                if name == "hybrid_shard":
                    world = max(world, 2)  # refused without a second node
                nodes, ranks = (APART if (i + again) % 2 or name == "hybrid_shard" else TOGETHER)[world]
                yield Config(f"{name} {order} {precision} world {world} checkpointing {checkpointing}",
                             {**STRATEGIES[name], **curve_of(order, precision, LANES[again]),
                              "train.activation_checkpointing": checkpointing}, nodes, ranks)


def compressed():
    start = {"strategy.powersgd_start_step": 3, "strategy.powersgd_rank": 2}
    for name, order, compression, world, more in (
            ("ddp", "local", "bf16", 2, {}), ("ddp", "reduce", "fp16", 3, {}), ("ddp", "local", "powersgd", 2, start),
            ("zero1", "local", "bf16", 3, {}), ("zero2", "reduce", "bf16", 2, {}),
            ("full_shard", "reduce", "fp16", 4, {})):
        yield Config(f"{name} {order} compression {compression} world {world}",
                     {**STRATEGIES[name], **curve_of(order, "fp32"), "strategy.compression": compression, **more},
                     *APART[world])


def optimizers():
    sgd = {"optimizer.name": "sgd", "optimizer.lr": 0.1, "optimizer.min_lr": 0}
    for name, what, world, more in (
            ("ddp", "sgd", 2, sgd), ("zero3", "sgd, nesterov", 3, {**sgd, "optimizer.nesterov": "true"}),
            ("zero1", "sgd without momentum", 4, {**sgd, "optimizer.momentum": 0}),
            ("full_shard", "adam", 2, {"optimizer.name": "adam"})):
        yield Config(f"{name} {what} world {world}", {**STRATEGIES[name], **more}, *APART[world])


def shadowed():
    for name, precision, world in (("zero1", "fp32", 2), ("zero2", "bf16", 3), ("full_shard", "fp16", 4)):
        yield Config(f"{name} with shadows {precision} world {world}",
                     {**STRATEGIES[name], **curve_of("reduce", precision), **SHADOW}, *APART[world])


def models(root):
    known = families(root)
    for model, name, world in (("llama", "ddp", 2), ("llama", "full_shard", 3), ("gpt2 over labels", "zero3", 2),
                               ("llama over labels", "zero1", 4), ("resnet", "zero2", 3)):
        run = run_of(known[model], name, STEPS)
        yield Config(f"{model} {name} world {world}", run["sets"], *APART[world], config=run["config"])


def resumed():
    """The old program's run, and the new program's run from its checkpoint in another world."""
    for name, order, precision, first, second in (
            ("ddp", "local", "bf16", 2, 3), ("zero1", "local", "fp32", 1, 2), ("zero3", "reduce", "fp16", 3, 2),
            ("full_shard", "reduce", "bf16", 2, 4), ("hybrid_shard", "local", "fp32", 4, 2)):
        yield Config(f"{name} {order} {precision} resumed, world {first} to {second}",
                     {**STRATEGIES[name], **curve_of(order, precision)}, *APART[first], steps=2 * STEPS,
                     after=APART[second])


def killed():
    for name, more, what, nodes, ranks in (
            ("ddp", {}, "node", 3, 1), ("ddp", {}, "rank", 2, 1), ("zero2", SHADOW, "node", 3, 1),
            ("full_shard", SHADOW, "rank", 3, 1), ("hybrid_shard", {}, "node", 2, 2)):
        yield Config(f"{name}, a {what} killed, world {nodes * ranks}",
                     {**STRATEGIES[name], **curve_of("reduce", "fp32"), **more}, nodes, ranks, KILLED_STEPS,
                     killed=what)


def table(root):
    """All configs; `root` is a folder for the data of some."""
    return [*matrix(), *compressed(), *optimizers(), *shadowed(), *models(root), *resumed(), *killed()]


def kill(cluster, what):
    cluster.wait_step(KILL_STEP, STEP_TIMEOUT_S)
    if what == "node":
        cluster.workers.pop().kill_machine()
    else:
        os.kill(cluster.workers[-1].rank_pids()[0], signal.SIGKILL)


def run(config, root, nodes, ranks, start=0):
    """One run to its end, which begins at step `start`; returns its Result."""
    sets = {**config.settings(), "cluster.nnodes": f"1:{nodes}" if config.killed else str(nodes)}
    with Cluster(root, config.config, sets, shared_dirs=True) as cluster:
        cluster.start_server()
        for i in range(nodes):
            cluster.start_worker(f"n{i}", ranks=ranks, sets={"cluster.host_group": f"host{i}"})
        if config.killed:
            cluster.wait_world(nodes * ranks, STEP_TIMEOUT_S)
            kill(cluster, config.killed)
        codes, summaries, metrics = cluster.wait_done(RUN_TIMEOUT_S), cluster.summaries(), cluster.metrics()
        if any(codes.values()) or len(summaries) != 1:
            raise ClusterError(f"exit codes {codes}, {len(summaries)} summaries\n" + cluster.log_tails())
        (told,) = summaries
        if (told["start_step"], told["steps"], told["steps_lost"]) != (start, config.steps, 0):
            raise ClusterError(f"not from step {start} to {config.steps} without loss: {told}")
        if (told["generations"] > 1) != bool(config.killed):
            raise ClusterError(f"{told['generations']} generations: {cluster.events()}")
    accounts = [json.loads(path.read_text()) for path in root.rglob("rank-*.memory.json")]
    return Result(told["weights_hash"], [m["sent_bytes"] for m in metrics],
                  {f"rank {a['rank']}, {tag}": use for a in accounts for tag, use in a["tags"].items()})


def pair(config, root, old, new):
    """Results of the old program's run and of the new one's."""
    with programs(old):
        before = run(config, root / "old", config.nodes, config.ranks)
    start = 0
    if config.after:
        start = config.steps // 2
        step = f"step-{start:08}"
        shutil.copytree(root / "old" / "checkpoints" / step, root / "new" / "checkpoints" / step)
    with programs(new):
        now = run(config, root / "new", *(config.after or (config.nodes, config.ranks)), start)
    return before, now


def differing(config, before, now):
    """The differences of two results, in words. The lifetime of ranks, and so their peak memory, depends on the moment
    of a kill; a resume has another world."""
    if before.weights_hash != now.weights_hash:
        yield "weights_hash", f"{before.weights_hash} and {now.weights_hash}"
    if config.after or config.killed:
        return
    if before.sent != now.sent:
        yield "bytes sent", f"{before.sent} and {now.sent}"
    tags = [tag for tag in {**before.memory, **now.memory}
            if before.memory.get(tag, UNUSED) != now.memory.get(tag, UNUSED)]
    if tags:
        yield "memory", "; ".join(f"{t}: {before.memory.get(t)} and {now.memory.get(t)}" for t in tags[:4])


def compare(line, old, new):
    """Runs the table, or a sample of it at a smaller scale, and shows the differences."""
    configs = table(line.folder / "data")
    count = line.repeat(len(configs))
    if count < len(configs):
        configs = random.Random(line.seed).sample(configs, count)
    found, hashes, compared = {"weights_hash": [], "bytes sent": [], "memory": [], "run": []}, set(), 0
    for i, config in enumerate(configs):
        root = line.folder / f"{i:02}"
        try:
            before, now = pair(config, root, old, new)
        except ClusterError as failure:
            found["run"].append(config.name)
            line.note(f"{config.name}: {failure}")
            continue
        hashes.add(before.weights_hash)
        compared += not (config.after or config.killed)
        for what, difference in differing(config, before, now):
            found[what].append(config.name)
            line.note(f"{config.name}, {what}: {difference}")
        shutil.rmtree(root)
    line.note(f"{len(hashes)} distinct weights_hash; bytes and memory of {compared} pairs compared")
    for what, names in found.items():
        line.show(f"of {len(configs)} configs, those that differ in {what}" if what != "run" else
                  f"runs of {len(configs)} configs that failed", ", ".join(names) or "none", "none", not names)
    return len(configs), len(hashes)
