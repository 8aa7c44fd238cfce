"""One curve: every data-parallel strategy trains the same bits at any world size, and none loses a step."""

from accept.bad_input import EXIT_CONFIG, run_worker, show_complaint
from accept.stories import RUN_TIMEOUT_S, STEP_TIMEOUT_S, check_run, settings, undisturbed
from cluster import Cluster, wait_until

MATRIX_STEPS = 40
RESIZED_STEPS = 2000  # enough that all four worlds come to pass before the end
SLOTS = 8

# What a user names → keys. Sharded strategies keep each shard twice where there is a second node to keep it on.
STRATEGIES = {
    "ddp": {},
    "zero1": {"strategy.name": "zero1"},
    "zero2": {"strategy.name": "zero2"},
    "zero3": {"strategy.name": "zero3"},
    "no_shard": {"strategy.name": "fsdp", "strategy.sharding": "no_shard"},
    "full_shard": {"strategy.name": "fsdp", "strategy.sharding": "full_shard"},
    "shard_grad_op": {"strategy.name": "fsdp", "strategy.sharding": "shard_grad_op"},
    "hybrid_shard": {"strategy.name": "fsdp", "strategy.sharding": "hybrid_shard"},
}
WHOLE = ("ddp", "no_shard", "hybrid_shard")  # survive the loss of a node without shadows
CURVES = [(accumulate, precision) for accumulate in ("local", "reduce") for precision in ("fp32", "bf16")]
GPT2_124M = {"model.n_layer": 12, "model.n_head": 12, "model.n_embd": 768, "model.context": 1024, "model.vocab": 50257,
             "train.seq_len": 64, "cluster.timeout_s": 20, "optimizer.warmup_steps": 0, "optimizer.lr": 6e-4}
CHECKPOINTING = ("none", "selective", "full")


def keys_of(name, **more):
    return dict({"train.log_every": 1, "checkpoint.every_steps": 0}, **STRATEGIES[name], **more)


def one_hash(line):
    """At tiny size: one hash for each (accumulate, precision) over all strategies x worlds 1 to 4 x activation
    checkpointing none, selective, full."""
    for accumulate, precision in CURVES:
        hashes = {}
        for name in STRATEGIES:
            for world in (1, 2, 3, 4):
                if name == "hybrid_shard" and world == 1:
                    continue  # it needs a second node, and is refused without one
                nodes = 2 if name == "hybrid_shard" else None
                for checkpointing in CHECKPOINTING:
                    keys = keys_of(name, **{"train.accumulate": accumulate, "train.precision": precision,
                                            "train.activation_checkpointing": checkpointing})
                    run = f"{name}, world {world}, checkpointing {checkpointing}"
                    hashes[run] = undisturbed(line.folder / f"{accumulate}-{precision}-{name}-{world}-{checkpointing}",
                                              world, one_node=True, nodes=nodes, shared_dirs=True,
                                              sets=dict(settings(SLOTS, MATRIX_STEPS), **keys))
        line.command(f"dpt-worker with train.accumulate={accumulate}, train.precision={precision}: {len(hashes)} runs")
        common = max(set(hashes.values()), key=list(hashes.values()).count)
        line.note(f"{common}  {accumulate}, {precision}")
        for run, value in hashes.items():
            if value != common:
                line.note(f"{value}  {run}")
        line.show(f"distinct weights_hash in {len(hashes)} runs, {accumulate}, {precision}", len(set(hashes.values())),
                  "== 1", len(set(hashes.values())) == 1)


def one_hash_124m(line):
    """GPT-2 124M, three steps: ddp, zero3 and full_shard in worlds of 1, 2 and 4 have one hash for each accumulate."""
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


def resized(root, sets):
    """A run through 1 → 3 → 2 → 4 machines of one rank each (by host_group: they share no memory): two join, one is
    killed, two join. Returns its hash."""
    sets = dict(sets, **{"cluster.nnodes": "1:4"})
    with Cluster(root, sets=sets, shared_dirs=True) as cluster:
        cluster.start_server()

        def machine(name):
            return cluster.start_worker(name, sets={"cluster.host_group": name})

        def reach(world):
            def steady():
                worlds = [m["world_size"] for m in cluster.metrics()[-3:]]
                return worlds == [world] * 3
            wait_until(f"three steps in a row in a world of {world}", steady, STEP_TIMEOUT_S, cluster.log_tails)

        nodes = [machine("n1")]
        reach(1)
        nodes += [machine("n2"), machine("n3")]
        reach(3)
        nodes[1].kill_machine()
        reach(2)
        nodes += [machine("n4"), machine("n5")]
        reach(4)
        left = [n for n in nodes if n is not nodes[1]]
        wait_until("the run ends", lambda: not any(n.alive() for n in left), RUN_TIMEOUT_S, cluster.log_tails)
        return check_run(cluster.summaries(), cluster.metrics(), sets["train.steps"])


def one_hash_resized(line):
    """Through 1 → 3 → 2 → 4 ranks with a kill: the hash of the undisturbed run, no step lost, for every strategy in
    each (accumulate, precision)."""
    for accumulate, precision in CURVES:
        curve = {"train.accumulate": accumulate, "train.precision": precision}
        calm = undisturbed(line.folder / f"{accumulate}-{precision}", 2, one_node=True,
                           sets=dict(settings(SLOTS, RESIZED_STEPS), **keys_of("ddp", **curve)))
        line.note(f"{calm}  {accumulate}, {precision}, undisturbed")
        for name in STRATEGIES:
            redundancy = {} if name in WHOLE else {"strategy.redundancy": "shadow"}
            keys = keys_of(name, **curve, **redundancy)
            line.command(f"dpt-worker with {keys}: 1, 3, 2, 4 nodes")
            value = resized(line.folder / f"{accumulate}-{precision}-{name}",
                            dict(settings(SLOTS, RESIZED_STEPS), **keys))
            line.show(f"{name}, {accumulate}, {precision}: weights_hash", value, f"== {calm}", value == calm)


def refused(line):
    """Bad settings are refused at start with the reason and the nearest legal setting: hybrid on one node, shadow
    without a second node, a micro_batch that does not divide, lanes above G; exit 2."""
    hybrid = {"strategy.name": "fsdp", "strategy.sharding": "hybrid_shard", "cluster.nnodes": 1}
    shadow = {"strategy.name": "zero3", "strategy.redundancy": "shadow", "cluster.nnodes": 1}
    cases = [
        ("hybrid on one node", hybrid, [r"hybrid_shard", r"nnodes|node", r"full_shard"]),
        ("shadow without a second node", shadow, [r"shadow", r"nnodes|node", r"none"]),
        ("micro_batch that does not divide", {"train.global_batch": 16, "train.micro_batch": 3},
         [r"micro_batch", r"global_batch", r"\b15\b.*\b18\b"]),
        ("lanes above G", {"train.lanes": 9, "train.global_batch": 16, "train.micro_batch": 2}, [r"lanes", r"\b8\b"]),
    ]
    for name, keys, patterns in cases:
        code, output, _ = run_worker(line, name.replace(" ", "-"), sets=keys)
        line.command(f"dpt-worker with {keys}")
        show_complaint(line, name, code, (EXIT_CONFIG,), output, patterns)


LINES = [one_hash, one_hash_124m, one_hash_resized, refused]
