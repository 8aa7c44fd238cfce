"""Model families over strategies, worlds, kills and joins: one hash each, and with labels one accuracy."""

import json
import random

from accept.one_curve import STRATEGIES
from accept.stories import RUN_TIMEOUT_S, STEP_TIMEOUT_S, disturbed, settings, undisturbed
from cluster import TINY, Cluster, ClusterError

SLOTS, STEPS = 6, 40  # of the matrix
LONG_STEPS, MISHAPS = 1500, 5  # of a disturbed run: enough for its kills and joins
MATRIX_WORLDS, DISTURBED_WORLDS = (1, 2, 3, 4), (1, 2, 3)
LLAMA = {"model.name": "llama", "model.n_layer": 2, "model.n_head": 4, "model.n_kv_head": 2, "model.n_embd": 64,
         "model.n_inner": 128}
SHADOWED = ("full_shard",)  # with a second copy of each shard where there is another node
UNSHADOWED = ("zero1", "zero2", "zero3", "full_shard")  # whoever is lost takes its shard along
MATRIX = ("ddp", "zero1", "zero2", "zero3", "shard_grad_op", "full_shard", "hybrid_shard")
WORDS = ("never cold dear slow", "as is ever what it", "good best near warm cheap")  # of each label


def labels(root):
    """Settings of a classification, trained and evaluated on texts of different lengths."""
    table = root / "reviews.tsv"
    root.mkdir(parents=True, exist_ok=True)
    rows = []
    for i in range(60):
        words = WORDS[i % 3].split()
        rows.append(f"{i % 3}\t{' '.join(words[(i + j) % len(words)] for j in range(1 + i // 3 % 5))}\n")
    table.write_text("label\ttext\n" + "".join(rows))
    return {"model.labels": 3, "data.kind": "classification", "data.train": table, "data.val": table}


def resnet(root):
    """Config of a residual network, trained and evaluated on images of random pixels, cropped and flipped."""
    draw, images, config = random.Random(1), root / "images.bin", root / "resnet.yaml"
    images.write_bytes(b"".join(bytes([i % 3]) + draw.randbytes(3 * 32 * 32) for i in range(60)))
    config.write_text(f"""run: resnet
cluster: {{device: cpu, threads: 1, timeout_s: 2}}
model: {{name: resnet, n_layer: 3, width: 8, labels: 3}}
data: {{kind: cifar10, train: {images}, val: {images}}}
train: {{global_batch: 8, micro_batch: 2}}
""")
    return config


def families(root):
    """{name: (config, changed keys, whether the model is a classifier)}."""
    of_labels = labels(root)
    return {"gpt2": (TINY, {}, False), "llama": (TINY, LLAMA, False), "gpt2 over labels": (TINY, of_labels, True),
            "llama over labels": (TINY, {**LLAMA, **of_labels}, True), "resnet": (resnet(root), {}, True)}


def run_of(family, name, steps, shadows=True):
    """Config and settings of a run with a strategy; `shadows`: with shadows if the strategy supports them."""
    config, sets, classes = family
    evaluates = {"train.eval_every": steps // 2} if classes else {}
    return {"config": config, "sets": {**settings(SLOTS, steps), **sets, **evaluates, **keys_of(name, shadows)}}


def keys_of(name, shadows):
    keys = {"train.accumulate": "reduce", "train.log_every": 1, **STRATEGIES[name]}
    if shadows and name in SHADOWED:
        keys["strategy.redundancy"] = "shadow"
    return keys


def result(folder, steps):
    """The result of a run in `folder`, the same in all its summaries: the hash and, with labels, loss and accuracy of
    the validation."""
    summaries = [json.loads(path.read_text()) for path in folder.rglob("summary.json")]
    found = {(s["weights_hash"], s["val_loss"], s.get("val_accuracy")) for s in summaries if s["steps"] == steps}
    if len(found) != 1:
        raise ClusterError(f"{folder.name}: nodes of one run disagree, or none completed it: {summaries}")
    return found.pop()


def to_the_end(cluster, workers):
    """Waits until `workers` complete a run; returns (first step, steps lost)."""
    cluster.wait_done(RUN_TIMEOUT_S)
    codes = {worker.node: worker.returncode() for worker in workers}
    if any(codes.values()):
        raise ClusterError(f"exit codes {codes}\n" + cluster.log_tails())
    (start,) = {s["start_step"] for s in cluster.summaries() if s["steps"] == LONG_STEPS}
    return start, max(s["steps_lost"] for s in cluster.summaries())


def resumed(root, run, first, second):
    """A run of `first` nodes for a third of its steps. Then all are told to leave, and `second` other nodes resume from
    the checkpoint; returns the result."""
    with Cluster(root, shared_dirs=True, **run) as cluster:
        cluster.start_server()
        workers = [cluster.start_worker(f"n{i}") for i in range(first)]
        cluster.wait_step(LONG_STEPS // 3, STEP_TIMEOUT_S)
        for worker in workers:
            worker.term()
        cluster.wait_done(RUN_TIMEOUT_S)
        workers += [cluster.start_worker(f"m{i}") for i in range(second)]
        start, lost = to_the_end(cluster, workers)
        if start == 0 or lost > 0:
            raise ClusterError(f"began at step {start}, {lost} steps lost\n" + cluster.log_tails())
    return result(root, LONG_STEPS)


def killed(root, run, nodes, ranks=1, kept=True):
    """A run of `nodes` nodes of `ranks` ranks; one node is killed after a third of the steps. The others hold its
    state, too (`kept`), or all go back to a checkpoint; returns the result."""
    with Cluster(root, shared_dirs=True, **run) as cluster:
        cluster.start_server()
        workers = [cluster.start_worker(f"n{i}", ranks=ranks) for i in range(nodes)]
        cluster.wait_step(LONG_STEPS // 3, STEP_TIMEOUT_S)
        workers.pop().kill_machine()
        start, lost = to_the_end(cluster, workers)
        (event,) = [e for e in cluster.events() if e["kind"] != "start"]
        back = f"back to the checkpoint of step {event['resume_step']}" in event["cause"]
        if start != 0 or back == kept or (kept and lost > 0):
            raise ClusterError(f"began at step {start}, {lost} steps lost, {event}\n" + cluster.log_tails())
    return result(root, LONG_STEPS)


def matrix(root, family):
    """{description: result} of undisturbed runs."""
    found = {}
    for name in MATRIX:
        for world in MATRIX_WORLDS:
            if world == 1 and (name in SHADOWED or name == "hybrid_shard"):
                continue  # refused without a second node
            folder = root / f"{name}-{world}"
            undisturbed(folder, world, nodes=min(world, 2), shared_dirs=True, **run_of(family, name, STEPS))
            found[f"{name}, world {world}"] = result(folder, STEPS)
    return found


def mishaps(root, family, seed):
    """{description: result} of a longer undisturbed run, and of disturbed ones."""
    ddp, shadowed = (run_of(family, name, LONG_STEPS) for name in ("ddp", "full_shard"))
    undisturbed(root / "calm", 1, **ddp)
    found = {"ddp, world 1": result(root / "calm", LONG_STEPS)}
    for world in DISTURBED_WORLDS:
        folder = root / f"disturbed-{world}"
        story = disturbed(folder, seed * 100 + world, world, MISHAPS, must=("join", "kill machine", "kill rank"),
                          **ddp)
        found[f"ddp, world {world}, {', '.join(story.told)}"] = result(folder, LONG_STEPS)
    found["full_shard with shadows, world 3, one killed"] = killed(root / "killed-shadows", shadowed, 3)
    for name in UNSHADOWED:
        alone = run_of(family, name, LONG_STEPS, shadows=False)
        found[f"{name}, world 3, one killed, from a checkpoint"] = killed(root / f"killed-{name}", alone, 3, kept=False)
    hybrid = run_of(family, "hybrid_shard", LONG_STEPS)
    found["hybrid_shard, 2 nodes of 2 ranks, one killed"] = killed(root / "killed-hybrid_shard", hybrid, 2, ranks=2)
    found["ddp, world 2, and from its checkpoint world 3"] = resumed(root / "resumed", ddp, 2, 3)
    return found


def families_one_hash(line):
    """GPT-2, Llama, both over labels, and ResNet: one weights_hash each, and with classes one validation loss and
    accuracy. The runs use ddp, zero1 to zero3, shard_grad_op, full_shard with shadows and hybrid_shard in worlds of 1
    to 4. Longer runs have kills and joins; the loss of a shard with its node under zero1 to zero3 and full_shard
    (restored from its shadow, or without one from a checkpoint) and hybrid_shard; and a resume in another world."""
    for name, family in families(line.folder).items():
        line.command(f"dpt-worker, {name}: {family[1] or family[0].name}")
        root = line.folder / name.replace(" ", "-")
        for what, found in (("undisturbed", matrix(root, family)), ("longer", mishaps(root, family, line.seed))):
            common = max(set(found.values()), key=list(found.values()).count)
            for run, value in found.items():
                if value != common or what == "longer":
                    line.note(f"{value}  {run}")
            line.show(f"{name}, {what}: distinct results of {len(found)} runs", len(set(found.values())), "== 1",
                      len(set(found.values())) == 1)
            line.show(f"{name}, {what}: accuracy", common[2], "a number, with classes alone",
                      (common[2] is not None) == family[2])
