"""Evaluation by real processes: one validation loss in every world, through losses and drains; dpt-worker --eval; bad
input."""

import os
import re
import subprocess

import pytest

from cluster import TINY, checkpoint_hash, make_text, program, wait_until

STEPS = 12
VAL_TOKENS = 4096
LONG_TOKENS = 30_000_000  # nobody evaluates so many before a signal arrives


def eval_sets(tmp_path, **keys):
    sets = {"data.val": make_text(tmp_path / "val.txt", 6000, seed=2), "train.eval_every": 3, "train.steps": STEPS,
            "train.eval_tokens": VAL_TOKENS, "checkpoint.every_steps": 6}
    return dict(sets, **keys)


def long_text(tmp_path):
    """A text of LONG_TOKENS bytes."""
    block = make_text(tmp_path / "block.txt", 300_000, seed=3).read_bytes()
    path = tmp_path / "long.txt"
    path.write_bytes(block * (LONG_TOKENS // len(block)))
    return path


def losses(cluster):
    """{step: val_loss} of the nodes' logs; the losses of one step must be equal, and no node logs one twice."""
    told = {}
    for outputs in cluster.outputs():
        lines = outputs.evaluations()
        assert len({e["step"] for e in lines}) == len(lines), lines
        for e in lines:
            assert told.setdefault(e["step"], e["val_loss"]) == e["val_loss"]
    return told


def evaluate_alone(cluster, folder, slow, *args):
    """Runs dpt-worker --eval with an embedded server on the checkpoints in `folder`; returns (exit code, output,
    evaluation.json)."""
    worker = cluster.start_worker("eval", endpoint=False, nnodes=1, args=["--eval", *args],
                                  sets={"checkpoint.dir": folder})
    code = worker.wait(60 * slow)
    return code, worker.log(), worker.outputs.evaluation()


def test_one_loss_in_every_world(make_cluster, tmp_path, slow):
    seen, hashes = [], set()
    for nodes in (1, 2, 3):
        cluster = make_cluster(f"w{nodes}", sets=eval_sets(tmp_path))
        cluster.start_server()
        workers = [cluster.start_worker(f"n{i}", nnodes=nodes) for i in range(nodes)]
        assert set(cluster.wait_done(90 * slow).values()) == {0}, cluster.log_tails()
        seen.append(losses(cluster))
        assert {s["val_loss"] for s in cluster.summaries()} == {seen[-1][STEPS]}
        hashes |= {s["weights_hash"] for s in cluster.summaries()}
        said = [w for w in workers if re.search(rf"step {STEPS}  val_loss \d\.\d+  perplexity \d", w.log())]
        assert len(said) == 1, cluster.log_tails()  # the node of rank 0
    assert sorted(seen[0]) == [3, 6, 9, 12]
    assert seen[0] == seen[1] == seen[2]
    plain = make_cluster("plain", sets={"train.steps": STEPS})
    plain.start_worker("a", nnodes=1, endpoint=False)
    assert plain.wait_done(60 * slow) == {"a": 0}
    assert hashes == {plain.summaries()[0]["weights_hash"]}
    # A checkpoint on the disk gives what its step gave in memory, and the evaluation leaves the run's files alone.
    folder = cluster.checkpoint_dirs()[0]
    (folder / ".dpt-dir-id").unlink()  # as in a folder that can only be read
    before = sorted(p.name for p in folder.iterdir())
    for step, args in ((STEPS, ()), (6, ("--step", "6"))):
        code, text, evaluation = evaluate_alone(cluster, folder, slow, *args)
        assert code == 0, text
        assert evaluation["val_loss"] == seen[0][step] and evaluation["step"] == step
        assert f"step {step}  val_loss {seen[0][step]:.6f}  perplexity" in text
    assert evaluation["val_tokens"] == VAL_TOKENS
    assert sorted(p.name for p in folder.iterdir()) == before


def test_losses_meanwhile(make_cluster, tmp_path, slow):
    """Every step is evaluated while a machine dies, another joins and one leaves: the losses are those of an
    undisturbed run."""
    sets = eval_sets(tmp_path, **{"train.eval_every": 1, "train.steps": 100_000, "checkpoint.every_steps": 0})
    cluster = make_cluster("rough", sets=sets)
    cluster.start_server()
    a, b = (cluster.start_worker(n, nnodes="1:3") for n in "ab")
    cluster.wait_step(4, 30 * slow)
    b.kill_machine()
    c = cluster.start_worker("c", nnodes="1:3")
    wait_until("a step of c", lambda: c.outputs.step() > 0, 60 * slow, cluster.log_tails)
    cluster.wait_step(c.outputs.step() + 3, 60 * slow)
    c.term()
    assert c.wait(30 * slow) == 0, c.log_tail()
    cluster.wait_world(1, 60 * slow)
    a.term()
    assert a.wait(30 * slow) == 0, a.log_tail()
    step, found = cluster.newest_checkpoint()
    calm = make_cluster("calm", sets=dict(sets, **{"checkpoint.every_steps": step}))
    worker = calm.start_worker("a", nnodes=1, endpoint=False)
    wait_until(f"checkpoint of step {step}", lambda: step in calm.checkpoints(), 120 * slow, worker.log_tail)
    worker.term()
    assert worker.wait(30 * slow) == 0, worker.log_tail()
    assert found == checkpoint_hash(calm.checkpoints()[step])
    told, expected = losses(cluster), losses(calm)
    assert set(range(1, step)) <= set(told) and all(expected[at] == loss for at, loss in told.items())


def test_any_world_evaluates(make_cluster, tmp_path, slow):
    """Two nodes evaluate; one has no checkpoint and takes its whole config from the run."""
    train = make_cluster("train", sets=eval_sets(tmp_path))
    train.start_worker("a", nnodes=1, endpoint=False)
    assert train.wait_done(60 * slow) == {"a": 0}
    cluster = make_cluster("eval", sets=eval_sets(tmp_path))
    cluster.start_server()
    cluster.start_worker("a", nnodes=2, args=["--eval"], sets={"checkpoint.dir": train.dirs("a")[1]})
    cluster.start_worker("b", config=False, args=["--rdzv-id", "tiny"])
    assert cluster.wait_done(60 * slow) == {"a": 0, "b": 0}, cluster.log_tails()
    for outputs in cluster.outputs():
        assert outputs.evaluation()["val_loss"] == losses(train)[STEPS]
        assert outputs.evaluation()["world_size"] == 2
        assert not (outputs.dir / "metrics.jsonl").exists()
    assert not cluster.dirs("b")[1].exists()


def test_leaving_in_the_middle(make_cluster, tmp_path, slow):
    """SIGTERM during a long evaluation ends it at once, and the trained steps are saved."""
    sets = eval_sets(tmp_path, **{"data.val": long_text(tmp_path), "train.eval_tokens": LONG_TOKENS,
                                  "train.eval_every": 5, "checkpoint.every_steps": 1000})
    cluster = make_cluster(sets=sets)
    worker = cluster.start_worker("a", nnodes=1, endpoint=False)
    cluster.wait_step(5, 30 * slow)
    worker.term()
    assert worker.wait(10 * slow) == 0, worker.log_tail()
    assert not worker.outputs.evaluations()
    assert [p.name for p in worker.checkpoint_dir.glob("step-*")] == ["step-00000005"], worker.log_tail()


def test_long_evaluation_is_no_stall(make_cluster, tmp_path, slow):
    """An evaluation that takes longer than every deadline of a step is not treated as a hang."""
    text, tokens, val_ms = long_text(tmp_path), 1_000_000, 0
    while val_ms <= 2000 and tokens <= LONG_TOKENS:  # as many as this machine needs so long for
        sets = eval_sets(tmp_path, **{"data.val": text, "train.eval_tokens": tokens, "train.eval_every": 8,
                                      "train.steps": 8, "cluster.timeout_s": 1})
        worker = make_cluster(f"tokens-{tokens}", sets=sets).start_worker("a", nnodes=1, endpoint=False)
        assert worker.wait(120 * slow) == 0, worker.log_tail()
        assert worker.outputs.summary()["generations"] == 1
        val_ms, tokens = worker.outputs.evaluations()[0]["val_ms"], 3 * tokens
    assert val_ms > 2000, "too short to show anything"


def run_worker(tmp_path, *args, sets=None):
    values = {"data.train": make_text(tmp_path / "text.txt"), "log.dir": tmp_path / "log",
              "checkpoint.dir": tmp_path / "checkpoints", "data.val": make_text(tmp_path / "val.txt", 6000)}
    (tmp_path / "checkpoints").mkdir()
    values.update(sets or {})
    argv = [program("dpt-worker"), "--config", TINY, "--nnodes", "1"]
    argv += [a for k, v in values.items() for a in ("--set", f"{k}={v}")]
    env = {k: v for k, v in os.environ.items() if k != "DPT_RDZV_ENDPOINT"}
    done = subprocess.run([*map(str, argv), *args], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=60, env=env)
    return done.returncode, done.stderr


@pytest.mark.parametrize("args, sets, said", [
    (["--eval"], {}, "there is no complete checkpoint in '"),
    (["--eval", "--step", "7"], {}, "there is no complete checkpoint of step 7 in '"),
    (["--eval", "--step", "0"], {}, "train.eval_step"),
    (["--step", "7"], {}, "give --eval too"),
    (["--eval"], {"data.val": "null"}, "there is no data.val to evaluate on"),
    (["--eval"], {"checkpoint.dir": "/nonexistent/steps"}, "checkpoint.dir: there is no folder '/nonexistent/steps'"),
    (["--eval"], {"checkpoint.dir": TINY}, f"checkpoint.dir: open folder '{TINY}': Not a directory; give another"),
    (["--eval"], {"checkpoint.dir": "null", "checkpoint.every_steps": 0}, "there is no checkpoint.dir"),
    (["--eval"], {"data.val": "/nonexistent/val.txt"}, "data.val: open '/nonexistent/val.txt'"),
    ([], {"train.eval_every": 5, "data.val": "null"}, "train.eval_every is 5 with no data.val"),
    ([], {"train.eval_every": 5, "data.val": "/nonexistent/val.txt"}, "data.val: open '/nonexistent/val.txt'"),
])
def test_bad_input(tmp_path, args, sets, said):
    code, err = run_worker(tmp_path, *args, sets=sets)
    assert code == 2 and said in err, err
    assert len([line for line in err.splitlines() if line.startswith("dpt-worker: ")]) == 1, err
    assert not re.search(r"^\S+Z [WE] ", err, re.M), err  # it is told once


def test_mistyped_folder_is_not_made(tmp_path):
    code, err = run_worker(tmp_path, "--eval", sets={"checkpoint.dir": tmp_path / "typo" / "steps"})
    assert code == 2 and f"there is no folder '{tmp_path}/typo/steps'" in err, err
    assert not (tmp_path / "typo").exists()


def test_val_shorter_than_a_sequence(tmp_path):
    (tmp_path / "short.txt").write_text("x" * 32)
    code, err = run_worker(tmp_path, sets={"train.eval_every": 5, "data.val": tmp_path / "short.txt"})
    assert code == 2 and "one sample needs train.seq_len + 1 = 33" in err, err


def test_other_validation_data_is_refused(make_cluster, tmp_path, slow):
    cluster = make_cluster(sets=eval_sets(tmp_path, **{"train.steps": 100000}))
    cluster.start_server()
    a = cluster.start_worker("a", nnodes="1:2")
    cluster.wait_step(3, 30 * slow)
    b = cluster.start_worker("b", nnodes="1:2", sets={"data.val": make_text(tmp_path / "other.txt", 6000, seed=9)})
    assert b.wait(30 * slow) == 2 and "data" in b.log(), b.log()
    wait_until("a goes on", lambda: cluster.step() >= 8, 30 * slow, a.log_tail)
    a.term()
    assert a.wait(20 * slow) == 0


def test_evaluation_does_not_join_a_training(make_cluster, tmp_path, slow):
    """A worker with --eval that joins a training run is refused, with the key."""
    cluster = make_cluster(sets=eval_sets(tmp_path, **{"train.steps": 100000}))
    cluster.start_server()
    a = cluster.start_worker("a", nnodes="1:2")
    cluster.wait_step(3, 30 * slow)
    b = cluster.start_worker("b", nnodes="1:2", args=["--eval"])
    assert b.wait(30 * slow) == 2 and "train.eval_only" in b.log(), b.log()
    a.term()
    assert a.wait(20 * slow) == 0


def test_evaluation_writes_into_no_other_runs_log(make_cluster, tmp_path, slow):
    """An evaluation reads the checkpoints of a training run and does not write into its log.dir."""
    sets = eval_sets(tmp_path, **{"train.steps": 100_000, "checkpoint.every_steps": 3, "checkpoint.keep_steps": "[3]"})
    cluster = make_cluster(sets=sets)
    a = cluster.start_worker("a", nnodes=1, endpoint=False)
    wait_until("checkpoint of step 3", lambda: 3 in cluster.checkpoints(), 60 * slow, a.log_tail)
    log_dir, checkpoint_dir = cluster.dirs("a")

    def evaluate(node, **keys):
        worker = cluster.start_worker(node, nnodes=1, endpoint=False, args=["--eval", "--step", "3"],
                                      sets={"checkpoint.dir": checkpoint_dir, **keys})
        return worker.wait(60 * slow), worker

    code, guest = evaluate("b", **{"run": "other", "log.dir": log_dir})
    said = rf"^dpt-worker: log\.dir: '{log_dir}' belongs to run tiny \(host .*\), and this is run other; name another"
    assert code == 2 and len(re.findall(said, guest.log(), re.M)) == 1, guest.log()
    assert not (log_dir / "node-b").exists() and not (log_dir / "evaluation.json").exists()
    code, own = evaluate("c", run="other")
    assert code == 0 and own.outputs.evaluation()["run"] == "other", own.log()
    a.term()
    assert a.wait(20 * slow) == 0
    code, same = evaluate("a")
    assert code == 0 and same.outputs.evaluation()["run"] == "tiny", same.log()
