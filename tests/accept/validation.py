"""Line of daily-bread about evaluation: the validation loss is a function of the config, like the weights."""

from accept.stories import RUN_TIMEOUT_S, STEP_TIMEOUT_S, settings
from cluster import Cluster, ClusterError, make_text

STEPS = 300
EVERY = 20
KILL_AT = (60, 140)


def _losses(cluster):
    """{step: val_loss} of all nodes' logs; ClusterError if two differ or one logs a step twice."""
    told = {}
    for outputs in cluster.outputs():
        lines = outputs.evaluations()
        if len({e["step"] for e in lines}) != len(lines):
            raise ClusterError(f"{outputs.dir}: an evaluation is logged twice")
        for e in lines:
            if told.setdefault(e["step"], e["val_loss"]) != e["val_loss"]:
                raise ClusterError(f"step {e['step']}: {e['val_loss']!r} and {told[e['step']]!r}")
    return told


def _run(line, name, nodes, sets, kills=()):
    """A run of `nodes` workers, one of which is killed, and replaced, at each of the steps `kills`; its losses, its
    hash, and the folder of the checkpoints."""
    with Cluster(line.folder / name, sets=sets) as cluster:
        cluster.start_server()
        nnodes = f"1:{nodes + 1}" if kills else nodes
        workers = [cluster.start_worker(f"n{i}", nnodes=nnodes) for i in range(nodes)]
        for number, step in enumerate(kills):
            cluster.wait_step(step, STEP_TIMEOUT_S)
            line.command(f"kill -9 of the worker {workers[-1].node} after step {step}; another joins")
            workers.pop().kill_machine()
            workers.insert(0, cluster.start_worker(f"r{number}", nnodes=nnodes))
        cluster.wait_done(RUN_TIMEOUT_S)
        bad = [w.log_tail() for w in workers if w.returncode() != 0]
        if bad:
            raise ClusterError("\n".join(bad))
        hashes = {s["weights_hash"] for s in cluster.summaries()}
        return _losses(cluster), hashes, cluster.checkpoint_dirs()[-1]


def one_val_loss(line):
    """The validation losses of every evaluation have equal bits in worlds of 1 to 3 and after kills; the weights are
    those of a run without evaluation; dpt-worker --eval gives the last loss from the checkpoint."""
    val = make_text(line.folder / "val.txt", 40_000, seed=line.seed + 100)
    plain = settings(8, STEPS)
    sets = dict(plain, **{"data.val": val, "train.eval_every": EVERY})
    line.command("a run without evaluation, on 1 node")
    _, hashes, _ = _run(line, "without", 1, plain)
    runs = {}
    for nodes in (1, 2, 3):
        line.command(f"the run with train.eval_every={EVERY}, on {nodes} node{'s' if nodes > 1 else ''}")
        runs[f"world {nodes}"] = _run(line, f"world{nodes}", nodes, sets)
    runs["after two kills"] = _run(line, "kills", 2, sets, KILL_AT)
    first = runs["world 1"][0]
    line.show("evaluated steps", sorted(first), f"every {EVERY} of {STEPS}",
              sorted(first) == list(range(EVERY, STEPS + 1, EVERY)))
    line.show("val_loss falls", (first[EVERY], first[STEPS]), "the last below the first", first[STEPS] < first[EVERY])
    for name, (losses, _, _) in runs.items():
        differ = [step for step in first if losses.get(step) != first[step]]
        line.show(f"{name}: val_loss at the end", repr(losses.get(STEPS)), f"{first[STEPS]!r}, and all others equal",
                  losses == first and not differ)
    hashes |= {h for _, seen, _ in runs.values() for h in seen}
    line.show("weights_hash of all and of the run without evaluation", sorted(hashes), "one value", len(hashes) == 1)
    with Cluster(line.folder / "alone", sets=sets) as cluster:
        cluster.start_server()
        line.command("dpt-worker --eval, on 2 nodes, one of which has the checkpoints of the run on 3")
        for i, folder in enumerate((runs["world 3"][2], line.folder / "none")):
            cluster.start_worker(f"n{i}", nnodes=2, args=["--eval"], sets={"checkpoint.dir": folder})
        cluster.wait_done(RUN_TIMEOUT_S)
        told = [o.evaluation() for o in cluster.outputs()]
        line.show("--eval: val_loss", [t and t["val_loss"] for t in told], f"{first[STEPS]!r} on both",
                  all(t and t["val_loss"] == first[STEPS] for t in told))
