"""The cost of traces: functions of the topic `measure`. Off, a span is a load and a branch, and its share of a step is
counted; on, a step takes at most 2 % longer and has the same bits. The file of a window is written between two steps,
in at most the time of one step."""

import gzip
import json
import re
import statistics
from pathlib import Path

from accept.history import programs, programs_of
from accept.speed import bench
from cluster import Cluster, ClusterError, bin_dir, make_text

# The commit before traces and the folder of its programs, beside which runs without traces are measured.
BASELINE, PROGRAMS_OF_IT = "dfd2fca9", "DPT_UNTRACED_BIN"
SIZES = {"model.preset": "gpt2-124m", "cluster.device": "cpu", "data.tokenizer": "bytes", "train.micro_batch": 4,
         "train.seq_len": 64, "train.precision": "fp32", "train.log_every": 1, "train.eval_every": 0,
         "checkpoint.every_steps": 0, "optimizer.warmup_steps": 1}
# World and strategy; each rank has an equal share of two threads.
WORLDS = (("one rank of 2 threads", 1, {}), ("two ranks, ddp", 2, {}),
          ("two ranks, full_shard", 2, {"strategy.name": "fsdp", "strategy.sharding": "full_shard"}))
SMALL = {"model.preset": "null", "model.n_layer": 4, "model.n_head": 4, "model.n_embd": 64, "model.context": 64,
         "model.vocab": 256, "train.steps": 400}
# A step as short as GPT-2 124M has one: the same events, of which a trace takes a larger share than of a longer step.
SHORT_STEP = {"train.micro_batch": 1, "train.global_batch": 2, "train.seq_len": 32}
PAIRS, PAIRS_ON, RUN_TIMEOUT_S = 20, 24, 1200
GROUP = 3  # steps in turn without a trace and with one; the first of a group is not counted, because it pays the change
OFF_MAX, ON_MAX, NOISE_MAX = 1e-4, 0.02, 0.02
WRITE_STEPS_MAX = 1.0  # steps that the pause for a window's file may take
WRITTEN = re.compile(r"the trace of steps \d+ to \d+ is in '.*': ([\d.]+) MB, written in ([\d.]+) s$", re.M)


def run(line, name, ranks, sets, trace=None):
    """A run of one node; returns its summary and the milliseconds of its steps, and leaves its folder."""
    root, config = line.folder / name, line.folder / "config.yaml"
    config.write_text("run: cost\n")
    all_sets = {**SIZES, "train.global_batch": 4 * 2, "data.train": make_text(line.folder / "text.txt"), **sets,
                **(trace or {})}
    with Cluster(root, config, all_sets, threads=2 // ranks) as cluster:
        worker = cluster.start_worker("a", nnodes=1, endpoint=False, ranks=ranks)
        if worker.wait(RUN_TIMEOUT_S) != 0:
            raise ClusterError(f"{name}: {worker.log_tail()}")
        return worker.outputs.summary(), {m["step"]: m["step_ms"] for m in worker.outputs.metrics()}


def traces(folder):
    return [json.loads(gzip.open(path).read()) for path in sorted(Path(folder).rglob("*.pt.trace.json.gz"))]


def written(root):
    """The MB and the seconds of each window's file, as the ranks of a run say them."""
    return [(float(mb), float(seconds)) for path in sorted(Path(root).rglob("rank-*.log"))
            for mb, seconds in WRITTEN.findall(path.read_text(errors="replace"))]


def show_writing(line, name, step_ms, files):
    """The pause between two steps in which a rank writes its file. metrics.jsonl has it in no step."""
    found = written(line.folder / name)
    line.show(f"files whose writing was timed, {name}", len(found), f"== {files}", len(found) == files)
    if found:
        mb, seconds = (statistics.median(column) for column in zip(*found))
        line.note(f"{name}: the file of {GROUP} steps has {mb:.3f} MB and takes {seconds:.3f} s, medians of "
                  f"{len(found)}; {max(seconds for _, seconds in found):.3f} s at most")
        line.at_most(f"writing a window's file, in steps, {name}", round(1000 * seconds / step_ms, 4), WRITE_STEPS_MAX)


def spans(trace):
    """Spans of a step: annotations, ops and collectives. Without a trace ops have no spans, so this is more than what
    such a step has."""
    events = trace["traceEvents"]
    steps = sum(e["name"].startswith("ProfilerStep#") for e in events)
    made = sum(e.get("cat") in ("user_annotation", "cpu_op") or
               e.get("cat") == "kernel" and e["name"].startswith("nccl") for e in events)
    return made / steps


def tracing_off_costs_nothing(line):
    """GPT-2 124M, B=4 T=64, 2 slots a step: the spans of a step (counted in a trace) times the cost of a span without
    trace.dir (dpt-bench spans) are less than 0.01 % of the step, in a world of one and of two ranks. 20 interleaved
    pairs of runs without a trace, with the programs of dfd2fca9 (the commit before traces, or those of
    DPT_UNTRACED_BIN) and with the present ones: the model has steps of a few milliseconds, of which spans take a larger
    share than of a step of GPT-2, and the median ratio of step times is at most 1 plus the median difference of two
    runs of the earlier programs."""
    cost = bench(line, "spans")
    line.note(f"a span without trace.dir takes {cost['off_ns']:.2f} ns, in a window {cost['inside_ns']:.1f} ns")
    for name, ranks, sets in WORLDS:
        folder = line.folder / f"traces {name}"
        _, step_ms = run(line, name, ranks, {"train.steps": 4, **sets}, {"trace.dir": folder})
        most = max(spans(trace) for trace in traces(folder))
        share = most * cost["off_ns"] * 1e-6 / statistics.median(step_ms.values())
        line.show(f"share of a step, {name}, {most:.0f} spans", f"{100 * share:.6f} %", f"< {100 * OFF_MAX:g} %",
                  share < OFF_MAX)
    pairs_beside(line, programs_of(line, BASELINE, PROGRAMS_OF_IT))


def pairs_beside(line, before):
    """The earlier programs run before and after the present ones in each pair, so a machine that becomes slower
    changes no ratio."""
    def step_ms(name, folder):
        with programs(folder):
            return statistics.median(run(line, name, 1, SMALL)[1].values())
    line.command(f"dpt-worker of {before} and of {bin_dir()}, in turn: {SMALL}")
    now, ratios, control, ms = bin_dir(), [], [], []
    for pair in range(line.repeat(PAIRS)):
        first, middle, last = (step_ms(f"pair-{pair}-{turn}", folder)
                               for turn, folder in enumerate((before, now, before)))
        ratios.append(2 * middle / (first + last))
        control.append(abs(last / first - 1))
        ms.append(middle)
    noise = min(statistics.median(control), NOISE_MAX)
    line.note(f"steps of {statistics.median(ms):.2f} ms; two runs of the earlier programs differ by {noise:.4f}")
    line.at_most(f"step time beside the earlier programs, median of {len(ratios)}",
                 round(statistics.median(ratios), 4), round(1 + noise, 4))


def neighbour_ratios(step_ms, pairs):
    """The time of each group with a trace over the mean of the groups without one before and after it."""
    groups = [statistics.median(step_ms[first + i] for i in range(2, GROUP + 1))
              for first in range(0, GROUP * (2 * pairs + 1), GROUP)]
    off, on = groups[::2], groups[1::2]
    return [2 * middle / (before + after) for before, middle, after in zip(off, on, off[1:])], statistics.median(off)


def tracing_on_costs_little(line):
    """GPT-2 124M, B=1 T=32, 2 slots a step: in one run, groups of 3 steps without a trace and with one take turns, so
    that a machine that becomes slower changes no ratio; the median of the times of groups with a trace over the mean of
    their neighbours is at most 1.02. The events of a step times the cost of one (dpt-bench spans) are at most 2 % of a
    step, too. After each group a rank writes its file before the next step begins: the median time is at most that of
    one step. The run's hash is that of a run that is not traced, and no event had no room."""
    cost = bench(line, "spans")
    for name, ranks, sets in WORLDS:
        cost_in_turn(line, name, ranks, {**SHORT_STEP, **sets}, cost["inside_ns"])


def cost_in_turn(line, name, ranks, sets, event_ns=None):
    """Groups of steps of one run take turns without a trace and with one. event_ns: the time of an event, if the share
    of a step's events is a figure, too."""
    pairs = line.repeat(PAIRS_ON)
    sets = {"train.steps": GROUP * (2 * pairs + 1), **sets}
    folder = line.folder / f"traces {name}"
    line.command(f"dpt-worker: {name}, trace.wait {GROUP}, trace.active {GROUP}, trace.repeat 0, {pairs} windows")
    plain, plain_ms = run(line, f"{name}, plain", ranks, sets)
    traced, step_ms = run(line, name, ranks, sets, {"trace.dir": folder, "trace.wait": GROUP, "trace.warmup": 0,
                                                    "trace.active": GROUP, "trace.repeat": 0})
    ratios, off_ms = neighbour_ratios(step_ms, pairs)
    found = traces(folder)
    line.note(f"{name}: steps of {off_ms:.1f} ms without a trace; ratios " +
              ", ".join(f"{ratio:.4f}" for ratio in ratios))
    line.note(f"{name}: the same median of the run without a trace, 1 but for the machine's noise: "
              f"{statistics.median(neighbour_ratios(plain_ms, pairs)[0]):.4f}")
    line.at_most(f"step time with a trace, {name}, median of {len(ratios)}", round(statistics.median(ratios), 4),
                 1 + ON_MAX)
    if event_ns is not None:
        events = max(spans(trace) for trace in found)
        line.at_most(f"{events:.0f} events of {event_ns:.1f} ns, of a step, {name}",
                     round(events * event_ns * 1e-6 / off_ms, 6), ON_MAX)
    show_writing(line, name, off_ms, ranks * pairs)
    line.show(f"weights_hash, {name}", traced["weights_hash"], plain["weights_hash"],
              traced["weights_hash"] == plain["weights_hash"])
    dropped = sum(trace["dpt"]["dropped_events"] for trace in found)
    line.show(f"files and dropped events, {name}", (len(found), dropped), (ranks * pairs, 0),
              (len(found), dropped) == (ranks * pairs, 0))


LINES_OF_MEASURE = [tracing_off_costs_nothing, tracing_on_costs_little]
