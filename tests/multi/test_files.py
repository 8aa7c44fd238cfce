"""Files that a run leaves: a diverging run keeps its finite checkpoints, damaged checkpoints are not trained over, and
a folder belongs to one run."""

import json
import os
import re
import struct
import subprocess

import pytest

from accept.folders import contests
from cluster import make_text, program

CKPT = program("dpt-ckpt")


def ckpt(*args):
    return subprocess.run([CKPT, *map(str, args)], capture_output=True, text=True, timeout=60, check=False)


def tensors_are_finite(folder):
    """True if all numbers of a checkpoint's safetensors are finite."""
    for path in folder.rglob("*.safetensors"):
        raw = path.read_bytes()
        head = 8 + struct.unpack("<Q", raw[:8])[0]
        words = struct.unpack(f"<{(len(raw) - head) // 4}I", raw[head:])
        if any(word & 0x7f800000 == 0x7f800000 for word in words):
            return False
    return True


def test_divergence_ends_the_run(make_cluster, slow):
    """A learning rate of 1000 ends the run with exit code 4 and a message with step and newest checkpoint; no saved
    number is infinite or NaN."""
    cluster = make_cluster(sets={"optimizer.lr": 1000, "train.steps": 100, "checkpoint.every_steps": 5})
    worker = cluster.start_worker("a", nnodes=1, endpoint=False)
    assert worker.wait(60 * slow) == 4, worker.log()
    event = [e for e in worker.outputs.events() if e["kind"] == "diverged"]
    assert len(event) == 1 and event[0]["action"] == "stop"
    saved = sorted(worker.checkpoint_dir.glob("step-*"))
    assert saved and int(saved[-1].name[5:]) == event[0]["step"] - 1
    assert all(tensors_are_finite(folder) for folder in saved)
    assert f"step {event[0]['step']}: the " in worker.log()
    assert f"newest finite checkpoint: of step {event[0]['step'] - 1}" in worker.log()
    assert ckpt("list", "--verify", worker.checkpoint_dir).returncode == 0
    again = cluster.start_worker("a", nnodes=1, endpoint=False)
    assert again.wait(60 * slow) == 4, again.log()
    assert sorted(worker.checkpoint_dir.glob("step-*")) == saved
    # From there with other settings, which stop does not make another trajectory; the rate does.
    lower = {"optimizer.lr": 0.001, "train.on_divergence": "skip", "checkpoint.keep": 1}
    refused = cluster.start_worker("a", nnodes=1, endpoint=False, sets=lower)
    assert refused.wait(60 * slow) == 2
    assert "optimizer.lr" in refused.log() and "train.on_divergence (" not in refused.log()
    cluster.check_nothing_left()


def diverging(make_cluster, name, nodes, spoilt, slow, **keys):
    """Runs 20 steps; the gradients of the steps `spoilt` (number of steps, first step from 0) are not finite. Returns
    the cluster and its exit codes."""
    sets = {"train.steps": 20, "train.on_divergence": "skip", "checkpoint.every_steps": 5, **keys}
    cluster = make_cluster(name, sets=sets, shared_dirs=True)
    cluster.start_server()
    for node in "ab"[:nodes]:
        cluster.start_worker(node, nnodes=nodes, env={"DPT_TEST_SPOIL_STEPS": "{}:{}".format(*spoilt)})
    return cluster, set(cluster.wait_done(60 * slow).values())


def test_divergence_is_left_out(make_cluster, slow):
    """on_divergence: skip leaves out three steps, and worlds of one and of two nodes end with the same weights."""
    hashes = set()
    for nodes in (1, 2):
        cluster, codes = diverging(make_cluster, f"of-{nodes}", nodes, (3, 5), slow)
        assert codes == {0}, cluster.log_tails()
        summary, = cluster.summaries()
        assert (summary["steps"], summary["skipped_steps"], summary["world_size"]) == (20, 3, nodes)
        hashes.add(summary["weights_hash"])
        told = [event for event in cluster.outputs()[0].events() if event["kind"] == "diverged"]
        assert [(e["step"], e["action"], e["in_row"]) for e in told] == [(n, "skip", n - 5) for n in (6, 7, 8)]
        assert [line["step"] for line in cluster.metrics()] == list(range(1, 21))
        assert all(tensors_are_finite(folder) for folder in cluster.checkpoints().values())
    assert len(hashes) == 1
    calm, codes = diverging(make_cluster, "calm", 1, (0, 0), slow)
    assert codes == {0} and calm.summaries()[0]["weights_hash"] not in hashes


@pytest.mark.parametrize("nodes", [1, 2])
def test_divergence_limit(make_cluster, slow, nodes):
    """One step more than train.divergence_limit ends the run, and the state before that step is saved."""
    cluster, codes = diverging(make_cluster, "limit", nodes, (20, 5), slow, **{"train.divergence_limit": 3})
    assert codes == {4}, cluster.log_tails()
    said = (r"step 9: the gradient's norm is -?nan \(loss \d\.\d+\) after 3 such steps in a row, and the step is not "
            r"applied; newest finite checkpoint: of step 8; start again with a lower learning rate, --set "
            r"optimizer\.lr=[0-9.e-]+ --allow-change optimizer\.lr, or in the same way with more "
            r"optimizer\.warmup_steps or another train\.grad_clip")
    assert all(len(re.findall(f"^dpt-worker: .*{said}$", w.log(), re.M)) == 1 for w in cluster.workers), \
        cluster.log_tails()
    told = [e for e in cluster.outputs()[0].events() if e["kind"] == "diverged"]
    assert [(e["step"], e["action"]) for e in told] == [(6, "skip"), (7, "skip"), (8, "skip"), (9, "stop")]
    assert sorted(cluster.checkpoints()) == [5, 8]
    assert ckpt("list", "--verify", cluster.checkpoint_dirs()[0]).returncode == 0


def test_what_is_kept(make_cluster, tmp_path, slow):
    """The newest checkpoints, the pinned ones and the best one by validation loss are kept; the loss rises from some
    step on. A checkpoint that is due while another is written is left out."""
    text = make_text(tmp_path / "val.txt", 6000, seed=2)
    cluster = make_cluster(sets={"train.steps": 40, "optimizer.lr": 1, "optimizer.min_lr": 1,
                                 "optimizer.warmup_steps": 40, "data.val": text,
                                 "train.eval_every": 4, "train.eval_tokens": 4096, "checkpoint.every_steps": 4,
                                 "checkpoint.keep": 2, "checkpoint.keep_steps": "[4, 16]", "checkpoint.keep_best": 2})
    worker = cluster.start_worker("a", nnodes=1, endpoint=False)
    assert worker.wait(60 * slow) == 0, worker.log_tail()
    log = (worker.outputs.dir / "node-a" / "rank-0.log").read_text()
    made = sorted({int(step) for step in re.findall(r"checkpoint of step (\d+) is complete", log)})
    losses = {e["step"]: e["val_loss"] for e in worker.outputs.evaluations()}
    best = sorted(made, key=lambda step: losses[step])[:2]
    assert sorted(cluster.checkpoints()) == sorted({*made[-2:], *({4, 16} & {*made}), *best})
    assert len(made) < 10 or not {*best} & {*made[-2:], 4, 16}, losses


def test_all_checkpoints_damaged(make_cluster, slow):
    """If all checkpoints are damaged, a run starts at step 0 only with --allow-fresh."""
    cluster = make_cluster(sets={"train.steps": 20})
    worker = cluster.start_worker("a", nnodes=1, endpoint=False)
    assert worker.wait(60 * slow) == 0, worker.log()
    calm = worker.outputs.summary()
    for path in worker.checkpoint_dir.glob("step-*/model-*.safetensors"):
        raw = bytearray(path.read_bytes())
        raw[-5] ^= 1
        path.write_bytes(raw)
    names = sorted(p.name for p in worker.checkpoint_dir.glob("step-*"))
    assert ckpt("list", worker.checkpoint_dir).returncode == 0
    listed = ckpt("list", "--verify", worker.checkpoint_dir)
    assert listed.returncode == 1 and listed.stdout.count("damaged: ") == len(names)
    refused = cluster.start_worker("a", nnodes=1, endpoint=False)
    assert refused.wait(60 * slow) == 2, refused.log()
    assert "--allow-fresh" in refused.log() and "dpt-ckpt list --verify" in refused.log()
    assert sorted(p.name for p in worker.checkpoint_dir.glob("step-*")) == names
    fresh = cluster.start_worker("a", nnodes=1, endpoint=False, args=["--allow-fresh"])
    assert fresh.wait(60 * slow) == 0, fresh.log()
    summary = fresh.outputs.summary()
    assert summary["start_step"] == 0 and summary["weights_hash"] == calm["weights_hash"]
    assert json.loads((worker.checkpoint_dir / "step-00000020" / "state.json").read_text())["step"] == 20


def test_damaged_files_are_said_once(make_cluster, slow):
    """A run with --allow-fresh over damaged checkpoints reports each of them once, although it reads them at its start
    and at its end."""
    cluster = make_cluster(sets={"train.steps": 20})
    worker = cluster.start_worker("a", nnodes=1, endpoint=False)
    assert worker.wait(60 * slow) == 0, worker.log()
    for path in worker.checkpoint_dir.glob("step-*/state.json"):
        os.truncate(path, 1)
    fresh = cluster.start_worker("a", nnodes=1, endpoint=False, args=["--allow-fresh"])
    assert fresh.wait(60 * slow) == 0, fresh.log()
    assert fresh.log().count(" is not usable: ") == 1, fresh.log()


def test_same_command_twice(make_cluster, slow):
    """While the first process runs, the second start of a command is refused with the owner's name; after kill -9 of
    the owner a new start continues the run."""
    cluster = make_cluster(sets={"train.steps": 100000, "run": "mine"}, shared_dirs=True)
    first = cluster.start_worker("a", nnodes=1, endpoint=False)
    cluster.wait_step(3, 60 * slow)
    second = cluster.start_worker("c", nnodes=1, endpoint=False)  # node ids are drawn where none is given
    assert second.wait(30 * slow) == 2, second.log()
    assert "is in use by run mine (host " in second.log() and f"pid {first.pid}, since" in second.log()
    other = cluster.start_worker("b", nnodes=1, endpoint=False, sets={"run": "other"})
    assert other.wait(30 * slow) == 2, other.log()
    assert "belongs to run mine (host " in other.log() and "and this is run other" in other.log()
    assert first.alive()
    first.kill_machine()
    at = cluster.step()
    other = cluster.start_worker("b", nnodes=1, endpoint=False, sets={"run": "other"})
    assert other.wait(30 * slow) == 2, other.log()
    again = cluster.start_worker("a", nnodes=1, endpoint=False)
    cluster.wait_step(at + 5, 60 * slow)
    again.term()
    assert again.wait(60 * slow) == 0, again.log()
    assert {line["run"] for line in again.outputs.metrics()} == {"mine"}


@pytest.mark.parametrize("nnodes", [1, "1:2"])
def test_same_command_twice_at_one_server(make_cluster, slow, nnodes):
    """The same command twice at one server, with one folder and no --node-id: the second worker joins or becomes a
    spare, and continues when the first leaves. There is one log, and no step is lost."""
    cluster = make_cluster(sets={"train.steps": 100000, "train.log_every": 1, "checkpoint.every_steps": 20})
    cluster.start_server()
    first = cluster.start_worker("a", nnodes=nnodes, node_id=False)
    cluster.wait_step(3, 60 * slow)
    second = cluster.start_worker("a", nnodes=nnodes, node_id=False)
    second.wait_log("this node is a spare" if nnodes == 1 else "world 2", 30 * slow)
    cluster.wait_step(cluster.step() + 30, 60 * slow)
    first.term()
    assert first.wait(30 * slow) == 0, first.log_tail()
    cluster.wait_step(cluster.step() + 30, 60 * slow)
    assert second.alive()
    second.term()
    assert second.wait(30 * slow) == 0, second.log_tail()
    steps = [line["step"] for line in second.outputs.metrics()]
    assert steps == list(range(1, max(cluster.checkpoints()) + 1))
    assert {event["steps_lost"] for event in second.outputs.events()} == {0}
    listed = ckpt("list", "--verify", second.checkpoint_dir)
    assert listed.returncode == 0 and listed.stdout.count("  verified") == len(cluster.checkpoints()), listed.stdout


def test_one_that_stood_still_loses_the_folder(make_cluster, slow):
    """A stopped machine whose run is started elsewhere writes nothing after it continues, and ends with 75."""
    cluster = make_cluster(sets={"train.steps": 100000, "cluster.timeout_s": 1}, shared_dirs=True)
    first = cluster.start_worker("a", nnodes=1, endpoint=False)
    cluster.wait_step(12, 60 * slow)
    stopped = first.freeze()
    for folder in cluster.dirs("a"):  # as where other hosts hold it, too: only its silence tells
        (folder / "OWNER.00000001.shared").touch()
    second = cluster.start_worker("b", nnodes=1, endpoint=False)
    second.wait_log("has not renewed its claim for", 60 * slow)
    at = cluster.step()
    cluster.wait_step(at + 3, 60 * slow)
    first.thaw(stopped)
    assert first.wait(60 * slow) == 75, first.log()
    assert "was taken over by a worker of run" in first.log()
    second.term()
    assert second.wait(60 * slow) == 0, second.log()
    lines = second.outputs.metrics()
    assert all(after["step"] <= before["step"] + 1 for before, after in zip(lines, lines[1:]))


def test_contests(tmp_path, slow):
    """Two contenders want the folders while the owner, its server or both are killed; a short form of the acceptance
    test."""
    assert contests(tmp_path, 4, 1, slow) > 0
