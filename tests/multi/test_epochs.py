"""train.epochs by real processes: one line an epoch on the terminal of rank 0, the same figure in every world and after
a stop within an epoch; nodes whose data are not the run's."""

import re

from cluster import make_text

EPOCHS, EPOCH_STEPS = 3, 9
BATCH_BYTES = 16 * 32  # global_batch x seq_len of configs/tiny.yaml

LINE = re.compile(r"^Epoch (\d+)/(\d+) \| Avg loss (\d\.\d{4})( \(of steps \d+-\d+\))? \| \d+\.\d s \| "
                  r"[\d.]+ samples/s$", re.MULTILINE)


def epoch_sets(tmp_path, **keys):
    text = make_text(tmp_path / "text.txt", EPOCH_STEPS * BATCH_BYTES + BATCH_BYTES // 2)
    return dict({"data.train": text, "train.epochs": EPOCHS, "train.steps": "auto", "train.log_every": 4,
                 "checkpoint.every_steps": 5}, **keys)


def said(workers):
    """[(epoch, average loss)] of the lines on the terminals."""
    lines = [m for worker in workers for m in LINE.finditer(worker.log())]
    assert all(m[2] == str(EPOCHS) and m[4] is None for m in lines), lines
    return [(int(m[1]), m[3]) for m in lines]


def test_one_line_an_epoch(make_cluster, tmp_path, slow):
    """In every world each epoch has one line with the mean loss of all steps, and an evaluation after it."""
    val = make_text(tmp_path / "val.txt", 3000, seed=2)
    seen, hashes = [], set()
    for nodes in (1, 2):
        cluster = make_cluster(f"w{nodes}", sets=epoch_sets(tmp_path, **{"data.val": val}))
        cluster.start_server()
        workers = [cluster.start_worker(f"n{i}", nnodes=nodes) for i in range(nodes)]
        assert set(cluster.wait_done(90 * slow).values()) == {0}, cluster.log_tails()
        seen.append(said(workers))
        hashes |= {s["weights_hash"] for s in cluster.summaries()}
        for outputs in cluster.outputs():
            assert [e["step"] for e in outputs.evaluations()] == [9, 18, 27]
            assert [(e["epoch"], e["step"], e["first_step"]) for e in outputs.epochs()] == [(1, 9, 1), (2, 18, 10),
                                                                                           (3, 27, 19)]
            assert [f"{e['avg_loss']:.4f}" for e in outputs.epochs()] == [loss for _, loss in seen[-1]]
    assert [epoch for epoch, _ in seen[0]] == [1, 2, 3] and seen[0] == seen[1] and len(hashes) == 1, (seen, hashes)


def test_losses_and_a_stop(make_cluster, tmp_path, slow):
    """A node is killed within an epoch, then all are stopped within the next: the mean losses are those of an
    undisturbed run."""
    calm = make_cluster("calm", sets=epoch_sets(tmp_path))
    calm.start_server()
    expected = [calm.start_worker("a", nnodes=1)]
    assert calm.wait_done(90 * slow) == {"a": 0}, calm.log_tails()
    cluster = make_cluster("restless", sets=epoch_sets(tmp_path), shared_dirs=True)
    cluster.start_server()
    workers = [cluster.start_worker(f"n{i}", nnodes="1:3") for i in range(3)]
    cluster.wait_step(4, 60 * slow)
    workers[0].kill_machine()
    cluster.wait_step(12, 60 * slow)
    for worker in workers[1:]:
        worker.term()
    for worker in workers[1:]:
        assert worker.wait(60 * slow) == 0, worker.log_tail()
    workers.append(cluster.start_worker("later", nnodes="1:3"))
    assert workers[-1].wait(90 * slow) == 0, workers[-1].log_tail()
    told = said(workers)
    assert set(told) == set(said(expected)), told
    assert {s["weights_hash"] for s in cluster.summaries()} == {s["weights_hash"] for s in calm.summaries()}


def test_other_data(make_cluster, tmp_path, slow):
    """A node with a shorter text is refused, with its number of steps and the run's: one that takes the run's config,
    and one that brings its own."""
    cluster = make_cluster(sets=epoch_sets(tmp_path, **{"train.epochs": 100_000}))
    cluster.start_server()
    cluster.start_worker("a", nnodes="1:2")
    cluster.wait_step(1, 60 * slow)
    short = make_text(tmp_path / "short.txt", 4 * BATCH_BYTES)
    other = cluster.start_worker("b", config=False, nnodes=None, sets={"data.train": short}, args=["--rdzv-id", "tiny"])
    assert other.wait(60 * slow) == 2, other.log_tail()
    assert "an epoch of 3 steps, and the config says train.epoch_steps 9" in other.log()
    third = cluster.start_worker("c", nnodes="1:2", sets={"data.train": short})
    assert third.wait(60 * slow) == 2, third.log_tail()
    assert ("in: train.epoch_steps (9, here 3). Use the run's values (train.epoch_steps is counted in data.train: the "
            "run has other data)") in third.log()
