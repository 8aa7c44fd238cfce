"""One curve: every data-parallel strategy trains the same bits at any world size, and none loses a step."""

import collections
import json
import os
import signal
import subprocess

from accept.bad_input import EXIT_CONFIG, run_worker, show_complaint
from accept.memory import peak_bytes
from accept.shadow import shadow_cost
from accept.speed import bench
from accept.stories import (RUN_TIMEOUT_S, STEP_TIMEOUT_S, check_run, settings, skipped_steps, undisturbed,
                            undisturbed_run)
from cluster import ROOT, Cluster, ClusterError, program, wait_until

MATRIX_STEPS = 40
RESIZED_STEPS = 2000  # enough that all four worlds come to pass before the end
SLOTS, LANES = 10, 4  # lanes of two and of three slots: a rank adds some slots before it sends
TRIALS = 300
COMMIT_TRIALS, COMMIT_ROUNDS = 20, 3
HURT = ("ddp", "full_shard+shadow", "zero2+shadow", "hybrid_shard")
SHADOWED = tuple(name for name in HURT if "+" in name)

# What a user names → keys. Sharded strategies keep each shard twice where there is a second node to keep it on.
STRATEGIES = {
    "ddp": {},
    "simple": {"strategy.name": "simple"},
    "simple_ga": {"strategy.name": "simple_ga"},
    "hook": {"strategy.name": "hook"},
    "async": {"strategy.name": "async"},
    "bucket_async": {"strategy.name": "bucket_async"},
    "zero1": {"strategy.name": "zero1"},
    "zero2": {"strategy.name": "zero2"},
    "zero3": {"strategy.name": "zero3"},
    "no_shard": {"strategy.name": "fsdp", "strategy.sharding": "no_shard"},
    "full_shard": {"strategy.name": "fsdp", "strategy.sharding": "full_shard"},
    "shard_grad_op": {"strategy.name": "fsdp", "strategy.sharding": "shard_grad_op"},
    "hybrid_shard": {"strategy.name": "fsdp", "strategy.sharding": "hybrid_shard"},
}
# Survive the loss of a node without shadows; of the others every rank's shard is its own alone.
WHOLE = ("ddp", "simple", "simple_ga", "hook", "async", "bucket_async", "no_shard", "hybrid_shard")
CURVES = [(accumulate, precision) for accumulate in ("local", "reduce") for precision in ("fp32", "bf16", "fp16")]
GPT2_124M = {"model.n_layer": 12, "model.n_head": 12, "model.n_embd": 768, "model.context": 1024, "model.vocab": 50257,
             "train.seq_len": 64, "cluster.timeout_s": 20, "optimizer.warmup_steps": 0, "optimizer.lr": 6e-4}
RECORDED = ROOT / "tests/worker/train/recorded"
CHECKPOINTING = ("none", "selective", "full")
# fp16 begins with a scale at which gradients overflow, and later grows until they do so again.
OVERFLOWS = {"fp16": {"train.loss_scale": 2**28, "train.loss_scale_interval": 10}}
COST_BAR = 3  # %, of canonical beside fast


def keys_of(name, **more):
    return dict({"train.log_every": 1, "checkpoint.every_steps": 0}, **STRATEGIES[name], **more)


def curve_of(accumulate, precision):
    return {"train.accumulate": accumulate, "train.precision": precision, "train.lanes": LANES,
            **OVERFLOWS.get(precision, {})}


def held(root):
    """{tag: peak bytes of the rank that holds most} of a finished run."""
    accounts = [json.loads(path.read_text()) for path in root.rglob("rank-*.memory.json")]
    if not accounts:
        raise ClusterError(f"no account of memory in {root}")
    return {tag: max(a["tags"][tag]["peak"] for a in accounts) for tag in accounts[0]["tags"]}


def show_settings_take_effect(line, curve, runs):
    """{(strategy, world, checkpointing): held}: runs with one hash must differ in memory, as their settings do."""
    kept = {run: tags["activations"] for run, tags in runs.items()}
    wrong = [run[:2] for run in kept if run[2] == "none"
             and not kept[run] > kept[(*run[:2], "selective")] > kept[(*run[:2], "full")]]
    line.show(f"runs whose activations do not shrink from none to selective to full, {curve}", len(wrong), "== 0",
              not wrong)
    whole = runs["ddp", 4, "none"]["moments"]
    for name in ("zero1", "zero2", "zero3", "full_shard", "shard_grad_op", "hybrid_shard"):
        share = runs[name, 4, "none"]["moments"] / whole
        bar = 0.6 if name == "hybrid_shard" else 0.35  # a half, a quarter; in whole blocks of each unit
        line.at_most(f"moments of {name}, world 4, beside ddp's, {curve}", round(share, 3), bar)


def show_skipped(line, curve, skipped):
    """{run: number of skipped steps}: overflows belong to the trajectory, so all runs must skip equally many."""
    least, most = min(skipped.values()), max(skipped.values())
    for run, count in skipped.items():
        if least != most:
            line.note(f"{count} steps skipped  {run}")
    line.at_least(f"steps skipped in each of {len(skipped)} runs, {curve}", least, 1)
    line.show(f"most steps skipped in one of {len(skipped)} runs, {curve}", most, f"== {least}", most == least)


def show_curves_differ(line, curves):
    """{(accumulate, precision): hash}: the hashes must differ; a run that ignores a setting passes all other checks."""
    line.show("distinct weights_hash over all accumulate and precision", len(set(curves.values())), f"== {len(CURVES)}",
              len(set(curves.values())) == len(CURVES))


def one_hash(line):
    """At tiny size: one hash for each (accumulate, precision) over all strategies x worlds 1 to 4 x activation
    checkpointing none, selective, full; each (accumulate, precision) has another hash. In fp16 gradients overflow, and
    all runs skip equally many steps. Each run holds the memory of its strategy and its checkpointing."""
    curves = {}
    for accumulate, precision in CURVES:
        hashes, skipped, holds = {}, {}, {}
        for name in STRATEGIES:
            for world in (1, 2, 3, 4):
                if name == "hybrid_shard" and world == 1:
                    continue  # it needs a second node, and is refused without one
                nodes = 2 if name == "hybrid_shard" else None
                for checkpointing in CHECKPOINTING:
                    keys = keys_of(name, **curve_of(accumulate, precision),
                                   **{"train.activation_checkpointing": checkpointing})
                    run = f"{name}, world {world}, checkpointing {checkpointing}"
                    folder = line.folder / f"{accumulate}-{precision}-{name}-{world}-{checkpointing}"
                    hashes[run], skipped[run] = undisturbed_run(
                        folder, world, one_node=True, nodes=nodes, shared_dirs=True,
                        sets=dict(settings(SLOTS, MATRIX_STEPS), **keys))
                    holds[name, world, checkpointing] = held(folder)
        line.command(f"dpt-worker with train.accumulate={accumulate}, train.precision={precision}: {len(hashes)} runs")
        common = max(set(hashes.values()), key=list(hashes.values()).count)
        line.note(f"{common}  {accumulate}, {precision}")
        for run, value in hashes.items():
            if value != common:
                line.note(f"{value}  {run}")
        line.show(f"distinct weights_hash in {len(hashes)} runs, {accumulate}, {precision}", len(set(hashes.values())),
                  "== 1", len(set(hashes.values())) == 1)
        if precision in OVERFLOWS:
            show_skipped(line, f"{accumulate}, {precision}", skipped)
        show_settings_take_effect(line, f"{accumulate}, {precision}", holds)
        curves[accumulate, precision] = common
    show_curves_differ(line, curves)


def one_hash_124m(line):
    """GPT-2 124M, three steps: ddp, zero3 and full_shard in worlds of 1, 2 and 4 have one hash for each accumulate, and
    the two hashes differ."""
    curves = set()
    for accumulate in ("local", "reduce"):
        hashes = {}
        for name in ("ddp", "zero3", "full_shard"):
            for world in (1, 2, 4):
                line.command(f"dpt-worker, GPT-2 124M, {name}, train.accumulate={accumulate}, world {world}")
                keys = keys_of(name, **GPT2_124M, **{"train.accumulate": accumulate})
                hashes[f"{name}, world {world}"] = undisturbed(line.folder / f"{accumulate}-{name}-{world}", world,
                                                               one_node=True, shared_dirs=True,
                                                               sets=dict(settings(4, 3), **keys))
        for run, value in hashes.items():
            line.note(f"{value}  {run}, {accumulate}")
        line.show(f"distinct weights_hash in {len(hashes)} runs, {accumulate}", len(set(hashes.values())), "== 1",
                  len(set(hashes.values())) == 1)
        curves |= set(hashes.values())
    line.show("distinct weights_hash over both accumulate", len(curves), "== 2", len(curves) == 2)


def resized(root, sets, pairs, kills=True):
    """A run through worlds of 1, 3, 2 and 4 ranks: ranks join, a machine is killed, ranks join, and a rank is killed.
    Each node has one rank, or with `pairs` two, except the first node, which is the machine that is killed then. Every
    second node shares no memory with the others, as on another machine. Without `kills` nodes drain instead. Returns
    the run's hash and the number of skipped steps."""
    sets = dict(sets, **{"cluster.nnodes": "1:4"})
    with Cluster(root, sets=sets, shared_dirs=True) as cluster:
        cluster.start_server()

        def machine(name, ranks=1):
            elsewhere = {"cluster.host_group": "other"}
            return cluster.start_worker(name, ranks=ranks, sets=elsewhere if name in ("n2", "n4") else None)

        def reach(world):
            def steady():
                worlds = [m["world_size"] for m in cluster.metrics()[-3:]]
                return worlds == [world] * 3
            wait_until(f"three steps in a row in a world of {world}", steady, STEP_TIMEOUT_S, cluster.log_tails)

        nodes = [machine("n1")]
        reach(1)
        nodes += [machine("n2", 2)] if pairs else [machine("n2"), machine("n3")]
        reach(3)
        gone = nodes.pop(0 if pairs else 1)
        gone.kill_machine() if kills else gone.term()
        reach(2)
        nodes += [machine("n4", 2)] if pairs else [machine("n4"), machine("n5")]
        reach(4)
        generation = cluster.metrics()[-1]["generation"]
        os.kill(nodes[-1].rank_pids()[0], signal.SIGKILL) if kills else nodes[-1].term()
        wait_until("a generation after the second loss", lambda: cluster.metrics()[-1]["generation"] > generation,
                   STEP_TIMEOUT_S, cluster.log_tails)
        wait_until("the run ends", lambda: not any(n.alive() for n in nodes), RUN_TIMEOUT_S, cluster.log_tails)
        codes = {n.name: n.returncode() for n in nodes}
        if any(codes.values()):
            raise ClusterError(f"exit codes {codes}\n" + cluster.log_tails())
        steps = [m["step"] for outputs in cluster.outputs() for m in outputs.metrics()]
        if steps != list(range(1, sets["train.steps"] + 1)):
            raise ClusterError(f"{len(steps)} steps are logged, not each of {sets['train.steps']} once")
        metrics = cluster.metrics()
        return check_run(cluster.summaries(), metrics, sets["train.steps"]), skipped_steps(metrics)


def one_hash_resized(line):
    """Through 1 → 3 → 2 → 4 ranks with the kill of a machine and of a rank: the hash of the undisturbed run, no step
    lost and none logged twice, for every strategy in each (accumulate, precision). In fp32 sharded strategies without
    shadows run as well, with drains in place of the kills. In fp16 gradients overflow, and all runs skip as many steps
    as the undisturbed run. Activation checkpointing differs from run to run."""
    curves = {}
    for accumulate, precision in CURVES:
        curve, skipped = curve_of(accumulate, precision), {}
        calm, skipped["undisturbed"] = undisturbed_run(
            line.folder / f"{accumulate}-{precision}", 2, one_node=True,
            sets=dict(settings(SLOTS, RESIZED_STEPS), **keys_of("ddp", **curve)))
        line.note(f"{calm}  {accumulate}, {precision}, undisturbed")
        curves[accumulate, precision] = calm
        forms = ("+shadow", "") if precision == "fp32" else ("+shadow",)
        runs = [(name, "") for name in WHOLE] + [(name, form) for name in STRATEGIES if name not in WHOLE
                                                 for form in forms]
        for i, (name, more) in enumerate(runs):
            redundancy = {"strategy.redundancy": "shadow"} if more else {}
            keys = keys_of(name, **curve, **redundancy,
                           **{"train.activation_checkpointing": CHECKPOINTING[i % len(CHECKPOINTING)]})
            kills = name in WHOLE or bool(more)
            line.command(f"dpt-worker with {keys}: 1, 3, 2, 4 ranks, two {'kills' if kills else 'leave'}")
            run = name + more
            value, skipped[run] = resized(line.folder / f"{accumulate}-{precision}-{run}",
                                          dict(settings(SLOTS, RESIZED_STEPS), **keys), name == "hybrid_shard", kills)
            line.show(f"{run}, {accumulate}, {precision}: weights_hash", value, f"== {calm}", value == calm)
        if precision in OVERFLOWS:
            show_skipped(line, f"{accumulate}, {precision}", skipped)
    show_curves_differ(line, curves)


def canonical_cost(line):
    """Canonical costs <= 3% of step time at 2 and 4 ranks beside fast, GPT-2 124M fp32 B=4 T=64, 8 slots a step, one
    thread a rank: steps of both alternate in the same processes, medians."""
    report = bench(line, "canonical", "--ranks", "2,4", "--pairs", str(line.repeat(5)))
    for row in report["rows"]:
        canonical, fast = row["canonical"], row["fast"]
        line.note(f"{row['ranks']} ranks, {row['pairs']} pairs: canonical {canonical['median_ms']:.0f} ms, fast "
                  f"{fast['median_ms']:.0f} ms; of CPU time {row['cpu_cost_percent']:.2f}%; sent "
                  f"{canonical['bytes_sent']} and {fast['bytes_sent']} bytes")
        line.at_most(f"{row['ranks']} ranks, cost of canonical", round(row["cost_percent"], 2), COST_BAR, "%")


def refused(line):
    """Bad settings are refused at start with the reason and the nearest legal setting: hybrid on one node, shadow
    without a second node, a micro_batch that does not divide, lanes above G; exit 2."""
    hybrid = {"strategy.name": "fsdp", "strategy.sharding": "hybrid_shard", "cluster.nnodes": 1}
    shadow = {"strategy.name": "zero3", "strategy.redundancy": "shadow", "cluster.nnodes": 1}
    cases = [
        ("hybrid on one node", hybrid, [r"hybrid_shard", r"nnodes|node", r"full_shard"]),
        ("shadow without a second node", shadow, [r"shadow", r"nnodes|node", r"none"]),
        ("micro_batch that does not divide", {"train.global_batch": 16, "train.micro_batch": 3},
         [r"micro_batch", r"global_batch of 15 or 18\b", r"micro_batch of 2 or 4\b"]),
        ("lanes above G", {"train.lanes": 9, "train.global_batch": 16, "train.micro_batch": 2}, [r"lanes", r"\b8\b"]),
    ]
    for name, keys, patterns in cases:
        code, output, _ = run_worker(line, name.replace(" ", "-"), sets=keys)
        line.command(f"dpt-worker with {keys}")
        show_complaint(line, name, code, (EXIT_CONFIG,), output, patterns)


def recover(line, name, trials, *options, seed=None):
    """The results of `dpt-bench recover`, the end of its output, and its exit status."""
    record, log = line.folder / f"{name}.json", line.folder / f"{name}.log"
    argv = [program("dpt-bench"), "recover", "--trials", trials, "--seed", seed or line.seed, "--ranks", 4, "--json",
            record, *options]
    line.command(argv)
    with open(log, "w", encoding="utf-8") as out:
        run = subprocess.run([str(a) for a in argv], stdout=out, stderr=subprocess.STDOUT)
    told = log.read_text()[-4000:]
    if not record.exists():
        raise ClusterError(f"dpt-bench recover: exit {run.returncode}\n{told}")
    return json.loads(record.read_text()), told, run.returncode


def show_landings(line, found):
    """Shows that each kind of fault has hit each strategy, and that second faults have hit the run in each phase."""
    landings = collections.Counter(trial["landing"] for trial in found["all"])
    for landing in ("steps", "prepare", "build"):
        line.at_least(f"trials whose last fault found the run in: {landing}", landings[landing], 1)
    faults = collections.Counter((trial["strategy"], trial["fault"]) for trial in found["all"])
    for strategy in HURT:
        for fault in {fault for _, fault in faults}:
            line.at_least(f"{strategy}: trials of fault {fault}", faults[strategy, fault], 1)


def show_recovered(line, found):
    for what in ("hangs", "steps_lost", "steps_logged_wrong", "hash_differences", "survivors_restarted"):
        line.show(what, found[what], "== 0", found[what] == 0)
    for one in found["strategies"]:
        line.show(f"{one['strategy']}, step {one['steps']}: weights_hash", one["weights_hash"],
                  f"== {one['calm_hash']}",
                  one["weights_hash"] == one["calm_hash"] != "")


def outcomes_told(found, group):
    return sum(one["outcomes_told"] for one in found["strategies"] if one["strategy"] in group)


def aimed_rounds(line, group, applied, *options):
    """Kills in a commit which one survivor has completed and others have not, until a survivor received the outcome
    from another; `applied` is the number of earlier ones. At least one round. Returns the last round's findings and the
    number of outcomes received."""
    for attempt in range(COMMIT_ROUNDS):
        trials = max(len(group), line.repeat(COMMIT_TRIALS))
        aimed, told, code = recover(line, f"recover-commit-{group[0]}-{attempt}", trials, "--strategy", ",".join(group),
                                    "--kills", "--at-commit", *options, seed=line.seed + attempt)
        show_recovered(line, aimed)
        if code:
            raise ClusterError(f"dpt-bench recover: exit {code}\n{told}")
        applied += outcomes_told(aimed, group)
        if applied:
            break
    return aimed, applied


def show_commits(line, found):
    """Under ddp, and with sharded state and shadows, a rank received the outcome of a step that others had committed.
    The shadows of the aimed rounds are rebuilt during steps, and are complete before the next fault."""
    applied = outcomes_told(found, ("ddp",))
    if not applied:
        _, applied = aimed_rounds(line, ("ddp",), applied)
    line.at_least("ddp: steps applied by ranks that others told the outcome", applied, 1)
    aimed, applied = aimed_rounds(line, SHADOWED, outcomes_told(found, SHADOWED), "--rebuild-mib", 0)
    line.at_least(f"{', '.join(SHADOWED)}: steps applied by ranks that others told the outcome", applied, 1)
    for one in aimed["strategies"]:
        line.at_least(f"{one['strategy']}: times that shadows were rebuilt beside the steps", one["shadows_rebuilt"], 1)


def recovery_trials(line):
    """300 recovery trials over ddp, full_shard+shadow, zero2+shadow, hybrid_shard with 4 ranks: 0 hangs, 0 steps lost,
    0 hash differences, p99 total <= 3 s + one step for process death, from a trial's first fault on. More kills are
    aimed at a moment when only some ranks have completed a commit: with sharded state whose shadows are rebuilt during
    steps, and with ddp if none of the 300 kills came at that moment."""
    trials = max(len(HURT), line.repeat(TRIALS))
    found, told, code = recover(line, "recover", trials, "--strategy", ",".join(HURT))
    for row in found["faults"]:
        totals = ", ".join(f"{q} {row['total_ms'][q]:.0f} ms" for q in ("p50", "p99") if row["total_ms"][q] is not None)
        line.note(f"{row['fault']}: {row['trials']} trials, total {totals}")
    line.at_least("trials", found["trials"], trials)
    if line.scale >= 1:  # of a few trials some land nowhere
        show_landings(line, found)
    show_recovered(line, found)
    line.at_most("p99 beyond one step, first fault to the first step after the last, process death",
                 found["death_p99_ms"], 3000, "ms")
    if code:
        raise ClusterError(f"dpt-bench recover: exit {code}\n{told}")
    show_commits(line, found)


def losses_of(root, nodes, ranks, sets):
    """The losses of all steps of the recorded run on `nodes` machines (by host_group) of `ranks` ranks each."""
    sets = dict(sets, **{"data.train": RECORDED / "words.txt", "cluster.nnodes": nodes})
    with Cluster(root, config=RECORDED / "pytorch_run.yaml", sets=sets, shared_dirs=True) as cluster:
        cluster.start_server()
        for i in range(nodes):
            cluster.start_worker(f"n{i}", ranks=ranks, sets={"cluster.host_group": f"n{i}"})
        codes = cluster.wait_done(RUN_TIMEOUT_S)
        if any(codes.values()):
            raise ClusterError(f"exit codes {codes}\n" + cluster.log_tails())
        metrics = cluster.metrics()
        if {m["world_size"] for m in metrics} != {nodes * ranks}:
            raise ClusterError(f"ran at world sizes {sorted({m['world_size'] for m in metrics})}")
        return [m["loss"] for m in metrics]


def pytorch_losses(line):
    """Tiny GPT-2's losses equal PyTorch DDP's and FSDP's (recorded by tests/worker/train/record_pytorch.py) to 1e-4 in
    fp32, at every step, with every strategy."""
    record = json.loads((RECORDED / "pytorch_losses.json").read_text())
    line.note(f"recorded with torch {record['torch']}, {record['backend']}, {record['processes']} processes")
    peers = {}
    for run in record["runs"]:
        peers.setdefault((run["optimizer"], run["nesterov"], run["lr"]), {})[run["peer"]] = run["losses"]
    for (optimizer, nesterov, lr), recorded in peers.items():
        how = {"optimizer.name": optimizer, "optimizer.nesterov": str(nesterov).lower(), "optimizer.lr": lr,
               "optimizer.min_lr": lr / 10}
        for name in STRATEGIES:
            sets = dict(how, **STRATEGIES[name])
            ranks = 2 if name == "hybrid_shard" else 1  # it shards inside a node
            line.command(f"dpt-worker --config tests/worker/train/recorded/pytorch_run.yaml, 2 nodes, ranks of each: "
                         f"{ranks}, {sets}")
            losses = losses_of(line.folder / f"{optimizer}-{nesterov}-{name}", 2, ranks, sets)
            worst = {peer: max(abs(a - b) for a, b in zip(losses, theirs, strict=True))
                     for peer, theirs in recorded.items()}
            peer = max(worst, key=worst.get)
            line.at_most(f"{name}, {optimizer}{' nesterov' if nesterov else ''}: worst difference of {len(losses)} "
                         f"losses from {len(recorded)} peers ({peer})", worst[peer], 1e-4)


LINES = [one_hash, one_hash_124m, one_hash_resized, pytorch_losses, recovery_trials, canonical_cost,
         refused, peak_bytes, shadow_cost]
