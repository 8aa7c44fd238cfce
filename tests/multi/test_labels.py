"""data.kind: classification by real processes: one hash and one accuracy over worlds and losses, the line of an
evaluation, and a head of labels on published weights."""

import re
import subprocess

import pytest

import hf_folder
from cluster import TINY, program, wait_until

STEPS, SAMPLES = 12, 24
WORDS = ("good", "bad", "no")


def make_table(path, rows, seed):
    """Writes texts of different lengths, some longer than seq_len; each contains the word of its label."""
    lines = ["label,text"]
    for i in range(rows):
        label = (i * 7 + seed) % len(WORDS)
        ends = ("", " it is", ", and nothing that I saw in all of these years was as " + WORDS[label])
        lines.append(f'{label},"{WORDS[label]}{ends[(i + seed) % 3]}"')
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def sets(tmp_path):
    return {"data.kind": "classification", "model.labels": len(WORDS), "train.steps": STEPS, "train.eval_every": 3,
            "data.train": make_table(tmp_path / "train.csv", 90, 1), "checkpoint.every_steps": 6,
            "data.val": make_table(tmp_path / "val.csv", SAMPLES, 2)}


def evaluations(cluster):
    """{step: (val_loss, val_accuracy)}; the nodes agree, and no node logs one twice."""
    told = {}
    for outputs in cluster.outputs():
        lines = outputs.evaluations()
        assert len({e["step"] for e in lines}) == len(lines), lines
        for e in lines:
            assert e["val_samples"] == SAMPLES and "val_tokens" not in e
            found = e["val_loss"], e["val_accuracy"]
            assert told.setdefault(e["step"], found) == found
    return told


def accuracies(text):
    return re.findall(r"^Evaluation accuracy: (\d+\.\d\d)%$", text, re.MULTILINE)


def test_one_accuracy_in_every_world(make_cluster, sets, slow):
    seen, hashes = [], set()
    for nodes in (1, 2):
        cluster = make_cluster(f"w{nodes}", sets=sets)
        cluster.start_server()
        workers = [cluster.start_worker(f"n{i}", nnodes=nodes) for i in range(nodes)]
        if nodes == 2:  # it dies, and another joins
            wait_until("steps are made", lambda: max(len(o.metrics()) for o in cluster.outputs()) > 2, 60 * slow)
            workers[1].kill_machine()
            workers[1] = cluster.start_worker("n1", nnodes=nodes)
        codes = cluster.wait_done(90 * slow)
        assert codes["n0"] == 0 and codes["n1" if nodes == 2 else "n0"] == 0, cluster.log_tails()
        seen.append(evaluations(cluster))
        hashes |= {s["weights_hash"] for s in cluster.summaries()}
        assert {s["val_accuracy"] for s in cluster.summaries()} == {seen[-1][STEPS][1]}
        said = [line for w in workers for line in accuracies(w.log())]
        assert f"{100 * seen[-1][STEPS][1]:.2f}" in said, cluster.log_tails()
    assert sorted(seen[0]) == [3, 6, 9, 12]
    assert seen[0] == seen[1] and len(hashes) == 1
    # What a checkpoint on the disk predicts is what its step predicted.
    folder = cluster.checkpoint_dirs()[0]
    worker = cluster.start_worker("eval", endpoint=False, nnodes=1, args=["--eval", "--step", "6"],
                                  sets={"checkpoint.dir": folder})
    assert worker.wait(60 * slow) == 0, worker.log_tail()
    evaluation = worker.outputs.evaluation()
    assert (evaluation["val_loss"], evaluation["val_accuracy"]) == seen[0][6]
    assert evaluation["val_samples"] == SAMPLES and "perplexity" not in evaluation
    assert accuracies(worker.log()) == [f"{100 * seen[0][6][1]:.2f}"]
    # There is no text in it.
    run = subprocess.run([program("dpt-ckpt"), "generate", folder, "--prompt", "good"], capture_output=True, text=True)
    assert run.returncode == 2 and "predicts labels, not tokens: there is no text" in run.stderr, run


def test_labels_on_published_weights(make_cluster, sets, slow, tmp_path):
    """Labels on published weights: a next-token model gets a fresh head, a classifier keeps its head."""
    still = {**sets, "train.steps": 1, "optimizer.lr": 0, "optimizer.min_lr": 0, "optimizer.warmup_steps": 0,
             "train.eval_every": 0, "train.seq_len": 32}
    config = tmp_path / "labels.yaml"
    lines, inside = [], False
    for line in TINY.read_text().splitlines():
        inside = line == "model:" or (inside and line.startswith(" "))
        if not inside:
            lines.append(line)
    config.write_text("\n".join(lines) + "\n")
    tensors = hf_folder.draw({**hf_folder.llama_shapes(), "lm_head.weight": [256, 64]}, "F32")
    folder = hf_folder.write(tmp_path / "hf", hf_folder.LLAMA, tensors)
    cluster = make_cluster(sets=still)
    worker = cluster.start_worker("a", config=config, nnodes=1, endpoint=False, sets={"model.init_from": folder})
    assert worker.wait(60 * slow) == 0, worker.log_tail()
    assert worker.log().count("tensors that are not in the model: lm_head.weight; they are left out") == 1
    assert worker.log().count("has no score.weight of 3 labels: the head begins with random weights") == 1
    saved = hf_folder.read(next(worker.checkpoint_dir.glob("step-*")))
    score = saved.pop("score.weight")
    assert score[1] == [3, 64] and any(score[2])
    assert saved == {name: t for name, t in tensors.items() if name != "lm_head.weight"}
    # With a head of three labels in the folder it is that.
    mine = hf_folder.draw({**hf_folder.llama_shapes(), "score.weight": [3, 64]}, "F32", seed=2)
    folder = hf_folder.write(tmp_path / "classifier", hf_folder.LLAMA, mine)
    cluster = make_cluster("own", sets=still)
    worker = cluster.start_worker("a", config=config, nnodes=1, endpoint=False, sets={"model.init_from": folder})
    assert worker.wait(60 * slow) == 0, worker.log_tail()
    assert hf_folder.read(next(worker.checkpoint_dir.glob("step-*"))) == mine
    assert "score.weight" not in worker.log()
    # One of another number is left out, and the head begins fresh, of adapters, too.
    other = hf_folder.draw({**hf_folder.llama_shapes(), "score.weight": [4, 64]}, "F32")
    folder = hf_folder.write(tmp_path / "other", hf_folder.LLAMA, other)
    for name, more in (("other", {}), ("adapters", {"train.lora.rank": 2})):
        cluster = make_cluster(name, sets={**still, **more})
        worker = cluster.start_worker("a", config=config, nnodes=1, endpoint=False, sets={"model.init_from": folder})
        assert worker.wait(60 * slow) == 0, worker.log_tail()
        assert worker.log().count("tensors that are not in the model: score.weight [4, 64]; they are left out") == 1
        assert worker.log().count("has no score.weight of 3 labels: the head begins with random weights") == 1
