"""Memory of ranks: counted bytes beside the formulas, the kernel's peak beside both, and no growth over time."""

import json
import re
import subprocess

from accept.stories import RUN_TIMEOUT_S, STEP_TIMEOUT_S, settings
from cluster import Cluster, ClusterError, program, wait_until
from processes import proc_fds, proc_read, proc_threads

BENCH_TIMEOUT_S = 1500
TAGS_OFF = 0.02  # of counted bytes from the formula
PEAK_OFF = 0.10  # of the process's own peak from formula and base
STEPS_BETWEEN, WARM_STEPS, STEPS_AFTER = 1000, 50, 150
GROWTH_BYTES = 128 << 10  # of a process's resident memory: pages of the C library's heap come and go
TAG_OFF_BYTES = 1 << 20  # of one tag: what links and threads take beside the formula

PEAKS = [  # strategies, worlds, further flags
    ("ddp,ddp+packed,zero1,zero2,zero3,no_shard,full_shard,shard_grad_op,hybrid_shard,full_shard+shadow,zero2+shadow",
     "2", []),
    ("full_shard,hybrid_shard,full_shard+shadow", "4", []),
    ("ddp,zero2,full_shard", "2", ["--precision", "bf16", "--accumulate", "reduce"]),
    ("ddp+packed", "2", ["--precision", "bf16"]),
]
GROWTH = {
    "ddp": {},
    "zero1": {"strategy.name": "zero1"},
    "zero2": {"strategy.name": "zero2"},
    "full_shard": {"strategy.name": "fsdp", "strategy.sharding": "full_shard"},
    "shard_grad_op": {"strategy.name": "fsdp", "strategy.sharding": "shard_grad_op"},
    "hybrid_shard": {"strategy.name": "fsdp", "strategy.sharding": "hybrid_shard"},
    "full_shard+shadow": {"strategy.name": "fsdp", "strategy.sharding": "full_shard", "strategy.redundancy": "shadow"},
}
STATE_TAGS = {"model": ("weights", "masters"), "gradients": ("gradient",), "optimizer": ("moments",)}
STATE = {  # keys; what is to be found of model, gradients, optimizer and sum, or of the sum alone
    "ddp": ({}, (1380.26, 1380.26, 2760.51, 5521.03)),
    "zero1": ({"strategy.name": "zero1"}, (4140.78,)),
    "zero2": ({"strategy.name": "zero2"}, (3450.65,)),
    "zero3": ({"strategy.name": "zero3"}, (2760.51,)),
}
STATE_OFF = 0.001  # units begin at whole blocks, and shards are of whole blocks


def own_peak(rank):
    """VmHWM without the pages of other ranks' shared memory, which are counted at the rank that made them."""
    return rank["process_peak"] - max(0, rank["shared"] - rank["shared_own"])


def show_run(line, run, base):
    name, ranks = run["strategy"], run["ranks"]
    what = f"{name}, world {len(ranks)}"
    off = max(abs(r["counted"]["peak"] / r["formula"] - 1) for r in ranks)
    peak_off = max((own_peak(r) / (r["formula"] + base) - 1 for r in ranks), key=abs)
    mib = [round(x / 2**20, 1) for x in (ranks[0]["bound"], ranks[0]["formula"], ranks[0]["counted"]["peak"],
                                         own_peak(ranks[0]), base)]
    line.note(f"{what}, rank 0, MiB: bound {mib[0]}, formula {mib[1]}, counted {mib[2]}, own peak {mib[3]}, "
              f"base {mib[4]}")
    below = max(r["counted"]["peak"] / r["bound"] - 1 for r in ranks)
    line.note(f"{what}: counted beside the bound {100 * below:+.1f} %")
    line.at_most(f"{what}: counted beside the formula, off by", 100 * off, 100 * TAGS_OFF, "%")
    wrong = {tag: (use["peak"], use["formula"]) for r in ranks for tag, use in r["tags"].items() if tag != "checkpoint"
             and abs(use["peak"] - use["formula"]) > max(TAG_OFF_BYTES, TAGS_OFF * use["formula"])}
    line.show(f"{what}: tags off by more than {100 * TAGS_OFF:.0f} % and {TAG_OFF_BYTES} bytes", wrong or 0, "== 0",
              not wrong)
    packed, packs = max(r["tags"]["packed"]["peak"] for r in ranks), name.endswith("+packed")
    line.show(f"{what}: bytes of packed weights", packed, "> 0" if packs else "== 0", (packed > 0) == packs)
    line.at_most(f"{what}: counted beside the bound", max(r["counted"]["peak"] / r["bound"] for r in ranks), 1.0)
    line.show(f"{what}: own VmHWM beside formula + base, off by", 100 * peak_off, "within 10 %",
              abs(peak_off) <= PEAK_OFF, "%")


def peaks_124m(line):
    for i, (strategies, worlds, more) in enumerate(PEAKS):
        path = line.folder / f"memory-{i}.json"
        argv = [program("dpt-bench"), "memory", "--strategies", strategies, "--worlds", worlds, "--json", path, *more]
        line.command(argv)
        done = subprocess.run([str(a) for a in argv], capture_output=True, text=True, timeout=BENCH_TIMEOUT_S)
        if done.returncode != 0:
            raise ClusterError(done.stdout + done.stderr)
        report = json.loads(path.read_text())
        for run in report["runs"]:
            show_run(line, run, report["base_bytes"])


def look(pid):
    """(resident bytes, descriptors, threads) of a process."""
    resident = re.search(rb"VmRSS:\s+(\d+) kB", proc_read(pid, "status"))
    found = (int(resident[1]) * 1024 if resident else 0, len(proc_fds(pid)), proc_threads(pid))
    if 0 in found:
        raise ClusterError(f"rank {pid} ended before it was measured: {found}")
    return found


def grown(root, keys):
    """Trains a small model; returns the largest growth of the ranks' resident memory, descriptors, threads and counted
    bytes over the steps."""
    steps = WARM_STEPS + STEPS_BETWEEN + STEPS_AFTER
    more = {"train.log_every": 1, "checkpoint.every_steps": 0, "cluster.nnodes": "2", "cluster.timeout_s": 20}
    sets = dict(settings(8, steps), **more, **keys)
    with Cluster(root, sets=sets, shared_dirs=True) as cluster:
        cluster.start_server()
        workers = [cluster.start_worker(f"n{i}", ranks=1) for i in range(2)]
        outputs = workers[0].outputs

        def at_step(step):
            wait_until(f"step {step}", lambda: outputs.step() >= step, RUN_TIMEOUT_S, cluster.log_tails, poll_s=0.05)
            return {pid: look(pid) for w in workers for pid in w.rank_pids()}
        for worker in workers:
            worker.wait_ranks(1, STEP_TIMEOUT_S)
        before = at_step(WARM_STEPS)
        after = at_step(WARM_STEPS + STEPS_BETWEEN)
        if len(before) != 2 or before.keys() != after.keys():
            raise ClusterError(f"ranks ended before they were measured: {before} {after}\n" + cluster.log_tails())
        codes = cluster.wait_done(RUN_TIMEOUT_S)
        if any(codes.values()):
            raise ClusterError(f"exit codes {codes}\n" + cluster.log_tails())
        accounts = [json.loads(p.read_text()) for p in sorted(outputs.dir.glob("node-*/rank-*.memory.json"))]
        if len(accounts) != 2:
            raise ClusterError(f"{len(accounts)} accounts of memory, not 2")
        counted = max(a["counted"]["bytes"] - a["after_first_step"] for a in accounts)
        rest = [max(after[pid][i] - before[pid][i] for pid in before) for i in range(3)]
        return rest[0], rest[1], rest[2], counted


def state_of(root, keys):
    """State of a rank after one step of SmolLM2-360M with a head over five labels on 2 nodes: the bytes of model,
    gradients and optimizer, of the rank that holds most."""
    table, config = root / "texts.tsv", root / "config.yaml"
    root.mkdir(parents=True)
    config.write_text("run: state\n")
    table.write_text("label\ttext\n" + "".join(f"{i % 5}\ttext {i}\n" for i in range(8)))
    sets = {"model.preset": "smollm2-360m", "model.labels": 5, "data.kind": "classification", "data.train": table,
            "train.seq_len": 8, "train.steps": 1, "train.global_batch": 2, "train.micro_batch": 1,
            "cluster.nnodes": "2", "cluster.timeout_s": 60, "checkpoint.every_steps": 0, **keys}
    with Cluster(root / "run", sets=sets, shared_dirs=True) as cluster:
        cluster.start_server()
        outputs = [cluster.start_worker(f"n{i}", ranks=1, config=config) for i in range(2)][0].outputs
        codes = cluster.wait_done(RUN_TIMEOUT_S)
        if any(codes.values()):
            raise ClusterError(f"exit codes {codes}\n" + cluster.log_tails())
        accounts = [json.loads(p.read_text()) for p in sorted(outputs.dir.glob("node-*/rank-*.memory.json"))]
    if len(accounts) != 2:
        raise ClusterError(f"{len(accounts)} accounts of memory, not 2")
    of_rank = [[sum(a["tags"][tag]["bytes"] for tag in tags) for tags in STATE_TAGS.values()] for a in accounts]
    return max(of_rank, key=sum)


def state_bytes(line):
    """State of SmolLM2-360M with a head over five labels (361,825,920 parameters) at two ranks, counted after a step,
    in MiB: model, gradients, optimizer and their sum with ddp; the sums with zero1, zero2 and zero3."""
    for name, (keys, wanted) in STATE.items():
        line.command(f"dpt-worker with {keys}, 1 step, 2 nodes")
        found = [round(b / 2**20, 2) for b in state_of(line.folder / name, keys)]
        wanted = [*[None] * (4 - len(wanted)), *wanted]
        for what, mib, bar in zip((*STATE_TAGS, "sum"), (*found, round(sum(found), 2)), wanted):
            if bar is None:
                line.note(f"{name}: {what} {mib} MiB")
            else:
                line.show(f"{name}: {what}, MiB", mib, f"{bar}, within {STATE_OFF:.1%}",
                          abs(mib / bar - 1) <= STATE_OFF)


def peak_bytes(line):
    """Peak bytes, GPT-2 124M, of ddp, zero1 to zero3, the four shardings of fsdp, and full_shard and zero2 with shadows
    (not of ddp's teaching variants) in worlds of 2, of some in worlds of 4 and in bf16: dpt's tagged allocations within
    2% of the formula and not above the bound, the process's own VmHWM within 10% of formula and base. Weights are
    not packed; ddp is measured once more with packed weights, whose formula is added to its bound. Ranks of a small
    model do not grow over 1,000 steps of ddp, zero1, zero2, full_shard (with shadows, too), shard_grad_op and
    hybrid_shard."""
    for name, keys in GROWTH.items():
        line.command(f"dpt-worker with {keys}, {WARM_STEPS + STEPS_BETWEEN + STEPS_AFTER} steps, 2 nodes")
        resident, fds, threads, counted = grown(line.folder / f"growth-{name}", keys)
        line.at_most(f"{name}: resident memory grown over {STEPS_BETWEEN} steps", resident, GROWTH_BYTES, "bytes")
        for what, value in (("descriptors", fds), ("threads", threads), ("counted bytes", counted)):
            line.show(f"{name}: {what} grown", value, "== 0", value == 0)
    peaks_124m(line)
