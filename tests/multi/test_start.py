"""Ways to start a run: two commands, one command, without a config, several runs at once."""

import json
import os
import subprocess

from cluster import make_text, program, wait_until


def run_program(name, *args, env=None, timeout=60, cwd=None):
    done = subprocess.run([str(program(name)), *map(str, args)], stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=timeout, env=env, cwd=cwd)
    return done.returncode, done.stdout, done.stderr


def hashes(cluster):
    return {s["weights_hash"] for s in cluster.summaries()}


def test_two_workers(make_cluster, slow):
    cluster = make_cluster(sets={"train.steps": 12})
    server = cluster.start_server()
    for node in ("a", "b"):  # of a run that was cut short; only one of the two folders is written to
        (cluster.dirs(node)[1] / ".tmp-step-00000005-g3-0af1").mkdir(parents=True)
    a = cluster.start_worker("a", nnodes=2)
    a.wait_log(r"waiting for nodes: 1 of 2 at 127\.0\.0\.1", 20 * slow)
    b = cluster.start_worker("b", nnodes=2)
    assert cluster.wait_done(60 * slow) == {"a": 0, "b": 0}
    for worker in (a, b):
        assert "training on 2 ranks" in worker.log()
        assert "done: run tiny, step 12, generation 1" in worker.log()
        summary = worker.outputs.summary()
        assert (summary["start_step"], summary["steps"], summary["world_size"]) == (0, 12, 2)
    assert len(hashes(cluster)) == 1
    assert "checkpoint of step 10" in (a.outputs.dir / "node-a" / "rank-0.log").read_text()
    server.term()
    assert server.wait(10 * slow) == 0
    cluster.check_nothing_left()


def test_worlds_have_one_hash(make_cluster, slow):
    """One node with the server in it; one node of three ranks; two nodes of one and two ranks."""
    found = set()
    sets = {"train.steps": 6}
    alone = make_cluster("alone", sets=sets)
    worker = alone.start_worker("a", nnodes=1, endpoint=False)
    assert worker.wait(60 * slow) == 0
    assert "the embedded server" in worker.log()
    found |= hashes(alone)
    alone.check_nothing_left()

    three = make_cluster("three", sets=sets)
    assert three.start_worker("a", nnodes=1, endpoint=False, ranks=3).wait(60 * slow) == 0
    assert three.summaries()[0]["world_size"] == 3
    found |= hashes(three)

    uneven = make_cluster("uneven", sets=sets)
    uneven.start_server()
    uneven.start_worker("a", nnodes=2, ranks=1)
    uneven.start_worker("b", nnodes=2, ranks=2)
    assert uneven.wait_done(60 * slow) == {"a": 0, "b": 0}
    assert {s["world_size"] for s in uneven.summaries()} == {3}
    found |= hashes(uneven)
    assert len(found) == 1, found


def test_config_comes_from_the_server(make_cluster, slow):
    """The second worker has no --config: it takes the run's, with folders of its own."""
    cluster = make_cluster(sets={"train.steps": 8})
    cluster.start_server()
    a = cluster.start_worker("a", nnodes=2)
    a.wait_log("waiting for nodes", 20 * slow)
    b = cluster.start_worker("b", config=False, sets={"run": "tiny"})
    assert cluster.wait_done(60 * slow) == {"a": 0, "b": 0}
    assert b.outputs.summary()["weights_hash"] == a.outputs.summary()["weights_hash"]
    cluster.server.term()
    assert cluster.server.wait(10 * slow) == 0
    cluster.check_nothing_left()


def test_named_run_waits_for_its_config(make_cluster, slow):
    """A worker that knows only the run's name may come first: it waits for the one that brings the config."""
    cluster = make_cluster(sets={"train.steps": 8})
    cluster.start_server()
    early = cluster.start_worker("early", config=False, args=["--rdzv-id", "tiny"])
    early.wait_log(f"no config given and no run 'tiny' at {cluster.endpoint()} yet: waiting for a worker", 20 * slow)
    a = cluster.start_worker("a", nnodes=2)
    assert cluster.wait_done(60 * slow) == {"early": 0, "a": 0}
    assert early.outputs.summary()["weights_hash"] == a.outputs.summary()["weights_hash"]


def test_demo_without_any_config(tmp_path, slow):
    """dpt-worker --nnodes 1 in an empty folder trains the built-in demo on the built-in text."""
    env = {k: v for k, v in os.environ.items() if k != "DPT_RDZV_ENDPOINT"}
    code, out, err = run_program("dpt-worker", "--nnodes", "1", "--set", "train.steps=2", "--set",
                                 "optimizer.warmup_steps=1", "--set", "cluster.threads=1",
                                 cwd=tmp_path, env=env, timeout=120 * slow)
    assert code == 0, out + err
    assert "done: run demo, step 2" in out
    assert "no config given: running the built-in demo" in out
    summary = json.loads((tmp_path / "runs" / "demo" / "summary.json").read_text())
    assert summary["steps"] == 2
    assert (tmp_path / "runs" / "demo" / "demo-text.txt").exists()


def test_demo_through_a_server(make_cluster, slow):
    """Two workers that know nothing but the server: both get the demo."""
    cluster = make_cluster()
    cluster.start_server()
    common = {"train.steps": 2, "optimizer.warmup_steps": 1, "cluster.nnodes": 2}
    a = cluster.start_worker("a", config=False, sets=common)
    b = cluster.start_worker("b", config=False, sets=common)
    assert cluster.wait_done(120 * slow) == {"a": 0, "b": 0}
    assert a.outputs.summary()["weights_hash"] == b.outputs.summary()["weights_hash"]
    assert f"none at {cluster.endpoint()}: running the built-in demo" in a.log() + b.log()


def test_several_runs_on_one_server(make_cluster, slow):
    cluster = make_cluster(sets={"train.steps": 30})
    cluster.start_server()
    for run in ("one", "two"):
        for node in ("a", "b"):
            cluster.start_worker(f"{run}-{node}", nnodes=2, args=["--rdzv-id", run])
    assert set(cluster.wait_done(90 * slow).values()) == {0}
    assert len(hashes(cluster)) == 1  # the name of the run is not part of the trajectory
    for worker in cluster.workers:
        assert f"done: run {worker.node.split('-')[0]}, step 30" in worker.log()


def test_endpoint_from_the_environment(make_cluster, slow):
    cluster = make_cluster(sets={"train.steps": 5})
    cluster.start_server()
    worker = cluster.start_worker("a", nnodes=1, endpoint=False, env={"DPT_RDZV_ENDPOINT": cluster.endpoint()})
    assert worker.wait(60 * slow) == 0
    assert f"at {cluster.endpoint()} (from DPT_RDZV_ENDPOINT)" in worker.log()


def test_tcp_between_host_groups(make_cluster, slow):
    """cluster.host_group takes shared memory away: the same run over TCP has the same weights."""
    found = set()
    for name, group in (("shm", "null"), ("tcp", "other")):
        cluster = make_cluster(name, sets={"train.steps": 10})
        cluster.start_server()
        cluster.start_worker("a", nnodes=2)
        cluster.start_worker("b", nnodes=2, sets={"cluster.host_group": group})
        assert cluster.wait_done(60 * slow) == {"a": 0, "b": 0}
        found |= hashes(cluster)
    assert len(found) == 1, found


def test_resume_after_all_died(make_cluster, slow):
    """All machines die at once, then the same commands again: goes on from the checkpoint, to the undisturbed hash."""
    sets = {"train.steps": 300, "checkpoint.every_steps": 5}
    calm = make_cluster("calm", sets=sets)
    assert calm.start_worker("a", nnodes=1, endpoint=False).wait(90 * slow) == 0
    cluster = make_cluster("stopped", sets=sets, shared_dirs=True)
    cluster.start_server()
    workers = [cluster.start_worker(node, nnodes=2) for node in "ab"]
    wait_until("a whole checkpoint", lambda: list(workers[0].checkpoint_dir.glob("step-*")), 60 * slow)
    for worker in workers:
        worker.kill_machine()
    cluster.server.kill()
    cluster.restart_server()
    again = [cluster.start_worker(node, nnodes=2) for node in "ab"]
    assert [w.wait(90 * slow) for w in again] == [0, 0]
    assert cluster.summaries()[0]["start_step"] > 0
    assert hashes(cluster) == hashes(calm)


def test_changed_keys_at_resume(make_cluster, slow):
    """Resume refuses a changed key of the trajectory by name, unless it is allowed."""
    cluster = make_cluster(sets={"train.steps": 10})
    assert cluster.start_worker("a", nnodes=1, endpoint=False).wait(60 * slow) == 0
    longer = {"train.steps": 20, "optimizer.lr": 0.001}
    refused = cluster.start_worker("a", nnodes=1, endpoint=False, sets=longer)
    assert refused.wait(60 * slow) == 2, refused.log()
    assert "optimizer.lr" in refused.log()
    allow = ["--allow-change", "optimizer.lr", "--allow-change", "train.steps"]
    allowed = cluster.start_worker("a", nnodes=1, endpoint=False, sets=longer, args=allow)
    assert allowed.wait(60 * slow) == 0, allowed.log()
    assert cluster.summaries()[0]["start_step"] == 10
    cluster.check_nothing_left()


def test_other_data_at_resume(make_cluster, tmp_path, slow):
    """A run goes on with the data that it was trained on, wherever they lie, and with no others unless it is said."""
    cluster = make_cluster(sets={"train.steps": 10})
    assert cluster.start_worker("a", nnodes=1, endpoint=False).wait(60 * slow) == 0
    longer, allow = {"train.steps": 20}, ["--allow-change", "train.steps"]
    other = dict(longer, **{"data.train": make_text(tmp_path / "other.txt", seed=9)})
    refused = cluster.start_worker("a", nnodes=1, endpoint=False, sets=other, args=allow)
    assert refused.wait(60 * slow) == 2, refused.log()
    assert "other data" in refused.log() and "--allow-change data.train" in refused.log()
    moved = dict(longer, **{"data.train": make_text(tmp_path / "moved.txt")})
    assert cluster.start_worker("a", nnodes=1, endpoint=False, sets=moved, args=allow).wait(60 * slow) == 0
    assert cluster.summaries()[0]["start_step"] == 10
    other["train.steps"] = 30
    allowed = cluster.start_worker("a", nnodes=1, endpoint=False, sets=other,
                                   args=[*allow, "--allow-change", "data.train"])
    assert allowed.wait(60 * slow) == 0, allowed.log()
    assert cluster.summaries()[0]["start_step"] == 20


def test_other_kind_of_machine_at_resume(make_cluster, slow):
    """Another instruction set computes other bits: a run goes on there only if that is said."""
    cluster = make_cluster(sets={"train.steps": 10})
    assert cluster.start_worker("a", nnodes=1, endpoint=False).wait(60 * slow) == 0
    older = {"ONEDNN_MAX_CPU_ISA": "SSE41"}
    longer, allow = {"train.steps": 20}, ["--allow-change", "train.steps"]
    refused = cluster.start_worker("a", nnodes=1, endpoint=False, sets=longer, args=allow, env=older)
    assert refused.wait(60 * slow) == 2, refused.log()
    assert "another kind of machine" in refused.log() and "--allow-change cluster.device" in refused.log()
    allowed = cluster.start_worker("a", nnodes=1, endpoint=False, sets=longer, env=older,
                                   args=[*allow, "--allow-change", "cluster.device"])
    assert allowed.wait(60 * slow) == 0, allowed.log()
    assert cluster.summaries()[0]["start_step"] == 10


def test_finished_run_is_started_again(make_cluster, slow):
    """Nothing is left to do: the results stay as they are."""
    cluster = make_cluster(sets={"train.steps": 10})
    assert cluster.start_worker("a", nnodes=1, endpoint=False).wait(60 * slow) == 0
    first = cluster.summaries()
    assert cluster.start_worker("a", nnodes=1, endpoint=False).wait(60 * slow) == 0
    assert cluster.summaries() == first


def test_divergence_is_said(make_cluster, slow):
    cluster = make_cluster(sets={"train.steps": 40, "train.grad_clip": 0, "optimizer.lr": 1000,
                                 "optimizer.min_lr": 1000, "optimizer.warmup_steps": 0,
                                 "cluster.timeout_s": 20})  # a rank that is started again says it again
    worker = cluster.start_worker("a", nnodes=1, endpoint=False)
    assert worker.wait(60 * slow) == 0
    assert worker.log().count("the run has diverged") == 1, worker.log()
