"""Line of daily-bread about epochs: passes over the data, each with a line that is a function of the config."""

import re

from accept.stories import RUN_TIMEOUT_S, STEP_TIMEOUT_S, settings
from cluster import Cluster, ClusterError, make_text

EPOCHS, EPOCH_STEPS = 4, 100
SAMPLE_BYTES = 32  # seq_len of configs/tiny.yaml
KILL_AT = EPOCH_STEPS + EPOCH_STEPS // 2
SAID = re.compile(rf"^Epoch (\d+)/{EPOCHS} \| Avg loss (\d+\.\d{{4}}) \| \d+\.\d s \| [\d.]+ samples/s$", re.MULTILINE)


def _run(line, name, nodes, sets, kill=False):
    """[(epoch, mean loss)] from terminals, {epoch: mean loss} from files, {step: rate}, weights hashes."""
    with Cluster(line.folder / name, sets=sets) as cluster:
        cluster.start_server()
        nnodes = f"1:{nodes}" if kill else nodes
        workers = [cluster.start_worker(f"n{i}", nnodes=nnodes) for i in range(nodes)]
        if kill:
            cluster.wait_step(KILL_AT, STEP_TIMEOUT_S)
            line.command(f"kill -9 of the worker n0 after step {KILL_AT}, within an epoch")
            workers[0].kill_machine()
        cluster.wait_done(RUN_TIMEOUT_S)
        bad = [w.log_tail() for w in workers[kill:] if w.returncode() != 0]
        if bad:
            raise ClusterError("\n".join(bad))
        said = sorted((int(m[1]), m[2]) for w in workers for m in SAID.finditer(w.log()))
        outputs = workers[-1].outputs
        return (said, {e["epoch"]: e["avg_loss"] for e in outputs.epochs()},
                {m["step"]: m["lr"] for m in outputs.metrics()}, {s["weights_hash"] for s in cluster.summaries()})


def epoch_lines(line):
    """Each epoch ends with one line on the terminal of rank 0 and one in metrics.jsonl, with the same mean loss in
    worlds of 1 and 2 and after a kill within an epoch; a cosine of T_max 20 has PyTorch's rates."""
    plain = settings(8)
    text = make_text(line.folder / "text.txt", EPOCH_STEPS * plain["train.global_batch"] * SAMPLE_BYTES + 100)
    sets = dict(plain, **{"data.train": text, "train.steps": "auto", "train.epochs": EPOCHS, "train.log_every": 1,
                          "optimizer.lr": 3e-4, "optimizer.min_lr": 3e-5, "optimizer.warmup_steps": 0,
                          "optimizer.schedule_steps": 20})
    line.command(f"runs of train.epochs={EPOCHS} on 1 node, on 2, and on 3 of which one is killed")
    runs = {"world 1": _run(line, "world1", 1, sets), "world 2": _run(line, "world2", 2, sets),
            "after a kill": _run(line, "kill", 3, sets, kill=True)}
    first = runs["world 1"]
    for name, (said, told, _, _) in runs.items():
        line.show(f"{name}: lines of epochs", said, "each epoch once, with the mean losses of world 1",
                  said == first[0] and [epoch for epoch, _ in said] == list(range(1, EPOCHS + 1)))
        line.show(f"{name}: avg_loss in metrics.jsonl", told, "the same bits", told == first[1])
    hashes = set().union(*(seen for _, _, _, seen in runs.values()))
    line.show("weights_hash of all", sorted(hashes), "one value", len(hashes) == 1)
    rates = [f"{first[2][steps_done + 1]:.2e}" for steps_done in (1, 11)]
    line.show("rates after 1 and 11 steps, on the lines of steps 2 and 12", rates, "2.98e-04, 1.44e-04",
              rates == ["2.98e-04", "1.44e-04"])
