"""The cost of shadows over slow links. Nodes of one rank are in network namespaces: two with a wire between them, or
four, each with a wire to a switch. tc(8) limits the wires."""

import os
import statistics

from cluster import Cluster, ClusterError
from netns import NET, Star, Unavailable, Wire, start_server, start_worker

STRATEGIES = {"full_shard": {"strategy.name": "fsdp", "strategy.sharding": "full_shard"},
              "zero2": {"strategy.name": "zero2"}}
MODEL = {"model.n_layer": 6, "model.n_head": 4, "model.n_embd": 256, "model.context": 64, "train.seq_len": 64,
         "train.micro_batch": 2, "train.precision": "fp32"}
SLOTS_PER_RANK = 4
EXPOSED = (0.30, 0.50)  # share of the step without shadows
AIM = 0.40
NEAR = 0.05
SEARCHES_MAX, SEARCH_STEPS = 6, 4
WARM_STEPS, STEPS = 2, 8  # of a measured run
PAIRS = {2: 5, 4: 3}  # by ranks: four take two to three times as long on two cores
FREE_MBIT = 40000
TIMEOUT_S = 180


class Steps:
    """A run in progress, with one node in each namespace."""

    def __init__(self, folder, wire, keys):
        ranks = len(wire.names)
        sets = dict(MODEL, **keys, **{"train.global_batch": MODEL["train.micro_batch"] * SLOTS_PER_RANK * ranks,
                                      "train.steps": 100000, "train.log_every": 1, "checkpoint.every_steps": 0,
                                      "cluster.timeout_s": 20, "cluster.nnodes": ranks})
        self.cluster = Cluster(folder, sets=sets, shared_dirs=True)
        self.wire = wire

    def __enter__(self):
        self.cluster.__enter__()
        port = start_server(self.cluster, self.wire.names[0], 10)
        for i, name in enumerate(self.wire.names):
            start_worker(self.cluster, name, f"n{i}", f"{NET}1:{port}", nnodes=len(self.wire.names))
        return self

    def __exit__(self, kind, value, trace):
        self.cluster.__exit__(kind, value, trace)

    def medians(self, count):
        """Medians over `count` steps, after WARM_STEPS steps: (ms of a step, share in which the rank waited for
        communication)."""
        first = self.cluster.step() + WARM_STEPS
        self.cluster.wait_step(first + count, TIMEOUT_S)
        steps = [m for m in self.cluster.metrics() if first < m["step"] <= first + count]
        return (statistics.median(m["step_ms"] for m in steps),
                statistics.median(m["wait_ms"] / m["step_ms"] for m in steps))

    def exposed(self, medians, mbit):
        """The share of a step that is exposed communication: the time that a rank waits. Ranks that share cores also
        wait for each other's computation; then it is the time beyond that of a step on unlimited wires."""
        step_ms, waited = medians
        if len(self.wire.names) <= len(os.sched_getaffinity(0)):
            return waited
        self.wire.limit(FREE_MBIT)
        free_ms, _ = self.medians(SEARCH_STEPS)
        self.wire.limit(mbit)
        return 1 - free_ms / step_ms


def find_rate(line, wire, name):
    """The rate in Mbit/s at which exposed communication is about AIM of a step without shadows."""
    ranks = len(wire.names)
    with Steps(line.folder / f"{name}-{ranks}-search", wire, STRATEGIES[name]) as run:
        wire.limit(FREE_MBIT)
        free_ms, waited = run.medians(SEARCH_STEPS)
        line.note(f"{name} of {ranks} ranks on free wires: {free_ms:.0f} ms a step, {100 * waited:.0f} % waited")
        sent = statistics.median(m["sent_bytes"] for m in run.cluster.metrics())
        mbit = sent * 8 / (free_ms / (1 - AIM) / 1000) / 1e6
        for _ in range(SEARCHES_MAX):
            mbit = round(mbit)
            wire.limit(mbit)
            step_ms, waited = run.medians(SEARCH_STEPS)
            exposed = run.exposed((step_ms, waited), mbit)
            line.note(f"{name} of {ranks} ranks at {mbit} Mbit/s: {step_ms:.0f} ms a step, {100 * waited:.0f} % "
                      f"waited, {100 * exposed:.0f} % exposed")
            if abs(exposed - AIM) < NEAR:
                return mbit
            # Exposed time is about the time of the bytes less the time that computation hides.
            hidden_ms = sent * 8 / mbit / 1000 - exposed * step_ms
            mbit = sent * 8 / 1000 / (hidden_ms + AIM / (1 - AIM) * (1 - exposed) * step_ms)
    raise ClusterError(f"{name} of {ranks} ranks: no rate leaves {AIM} of a step exposed")


def measure(line, wire, name):
    """Shows the cost of shadows under a strategy, and the exposed communication without them."""
    ranks = len(wire.names)
    mbit = find_rate(line, wire, name)
    found, shares = {"none": [], "shadow": []}, []
    line.command(f"dpt-worker, {ranks} nodes of one rank, {name}, {SLOTS_PER_RANK} slots a rank, tc qdisc … tbf rate "
                 f"{mbit}mbit, strategy.redundancy none and shadow in turn")
    for pair in range(line.repeat(PAIRS[ranks])):
        for redundancy in found:
            keys = dict(STRATEGIES[name], **{"strategy.redundancy": redundancy})
            with Steps(line.folder / f"{name}-{ranks}-{pair}-{redundancy}", wire, keys) as run:
                found[redundancy].append(run.medians(STEPS))
                if redundancy == "none":
                    shares.append(run.exposed(found[redundancy][-1], mbit))
    none, shadow = (statistics.median(ms for ms, _ in found[r]) for r in ("none", "shadow"))
    ratio = statistics.median(b / a for (a, _), (b, _) in zip(found["none"], found["shadow"], strict=True))
    exposed = statistics.median(shares)
    runs = {redundancy: [round(ms) for ms, _ in found[redundancy]] for redundancy in found}
    line.note(f"{name} of {ranks} ranks at {mbit} Mbit/s: {none:.0f} ms a step, {100 * exposed:.0f} % exposed; with "
              f"shadows {shadow:.0f} ms; medians of {runs['none']}, {runs['shadow']}; the median pair's ratio counts")
    return ratio - 1, exposed


def shadow_cost(line):
    """Shadows cost <= 10% of step time at 4 slots a rank over links limited by `tc tbf` so that 30 to 50% of the step
    is exposed communication without them: full_shard and zero2, of two ranks and of four."""
    try:
        for wires in (Wire(2), Star(4)):
            with wires as wire:
                for name in STRATEGIES:
                    what = f"{name} of {len(wire.names)} ranks"
                    cost, exposed = measure(line, wire, name)
                    line.show(f"{what}: exposed communication without shadows, of the step", round(exposed, 3),
                              f"{EXPOSED[0]} to {EXPOSED[1]}", EXPOSED[0] <= exposed <= EXPOSED[1])
                    line.at_most(f"{what}: cost of shadows, of the step", round(cost, 4), 0.10)
    except Unavailable as reason:
        line.show("not run", str(reason), "needs namespaces and tbf", False)
