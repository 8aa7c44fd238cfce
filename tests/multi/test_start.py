"""Ways to start a run: two commands, one command, no config, several runs at once."""

import json
import os
import re
import signal
import subprocess
import time

from calm import calm_hash
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
    """One hash for one node with the server in it, one node of three ranks, and two nodes of one and two ranks."""
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
    """The second worker has no --config: it takes the run's config, with its own folders."""
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
    """A worker with only the run's name may come first: it waits for the worker that brings the config."""
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
    """Two workers with only a server's address train the built-in demo."""
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


def test_which_of_several_runs_must_be_said(make_cluster, slow):
    """A worker that names neither a config nor a run begins no demo on a server with two runs, even if one of them has
    the demo's name. With --rdzv-id it takes part in that run."""
    cluster = make_cluster(sets={"train.steps": 6})
    cluster.start_server()
    for run, named in (("rq1", "rq1"), ("demo", "rq1, demo")):
        worker = cluster.start_worker(f"{run}-a", nnodes=2, args=["--rdzv-id", run])
        worker.wait_log("waiting for nodes: 1 of 2", 20 * slow)
    late = cluster.start_worker("late", config=False)
    assert late.wait(30 * slow) == 2
    said = f"the server at {cluster.endpoint()} has the runs {named}"
    assert late.log().splitlines()[-1] == (f"dpt-worker: no config given, and {said}: name one with --rdzv-id, or give "
                                           "--config FILE")
    assert not (cluster.root / "late").exists() and cluster.server.log().count(": new run of") == 2
    for run in ("rq1", "demo"):
        cluster.start_worker(f"{run}-b", config=False, args=["--rdzv-id", run])
    assert [worker.wait(60 * slow) for worker in cluster.workers if worker is not late] == [0] * 4
    assert not any(said in worker.log() for worker in cluster.workers if worker is not late)


def test_server_names_its_limit_of_ranks(make_cluster, slow):
    """A rank more than the server takes is left out, and the server's log says why."""
    cluster = make_cluster(sets={"train.steps": 6})
    server = cluster.start_server(args=["--max-ranks", 1])
    worker = cluster.start_worker("a", nnodes=1, ranks=2)
    assert worker.wait(60 * slow) == 0
    assert "training on 1 rank" in worker.log()
    assert re.search(r"its nodes may bring \d+ ranks, and this server takes 1 in a run \(dpt-rdzv --max-ranks\): "
                     "further ranks are left out", server.log())


def test_endpoint_from_the_environment(make_cluster, slow):
    cluster = make_cluster(sets={"train.steps": 5})
    cluster.start_server()
    worker = cluster.start_worker("a", nnodes=1, endpoint=False, env={"DPT_RDZV_ENDPOINT": cluster.endpoint()})
    assert worker.wait(60 * slow) == 0
    assert f"at {cluster.endpoint()} (from DPT_RDZV_ENDPOINT)" in worker.log()


def test_tcp_between_host_groups(make_cluster, slow):
    """cluster.host_group disables shared memory: the same run over TCP has the same weights, also if the connections
    are protected."""
    found = set()
    for name, group, encrypt in (("shm", "null", "none"), ("tcp", "other", "none"), ("mac", "other", "mac"),
                                 ("data", "other", "data")):
        cluster = make_cluster(name, sets={"train.steps": 10, "cluster.encrypt": encrypt})
        cluster.start_server()
        cluster.start_worker("a", nnodes=2)
        cluster.start_worker("b", nnodes=2, sets={"cluster.host_group": group})
        assert cluster.wait_done(60 * slow) == {"a": 0, "b": 0}
        found |= hashes(cluster)
    assert len(found) == 1, found


def test_resume_after_all_died(make_cluster, tmp_path, slow):
    """All machines die at once, and the same commands are started again: the run continues from the checkpoint, with
    the weights of an undisturbed run."""
    sets = {"train.steps": 100000, "checkpoint.every_steps": 5}
    cluster = make_cluster("stopped", sets=sets, shared_dirs=True)
    cluster.start_server()
    workers = [cluster.start_worker(node, nnodes=2) for node in "ab"]
    wait_until("a complete checkpoint", cluster.checkpoints, 60 * slow, cluster.log_tails)
    for worker in workers:
        worker.kill_machine()
    newest = max(cluster.checkpoints())
    cluster.server.kill()
    cluster.restart_server()
    again = [cluster.start_worker(node, nnodes=2) for node in "ab"]
    wait_until("a later checkpoint", lambda: max(cluster.checkpoints()) > newest, 60 * slow, cluster.log_tails)
    for worker in again:
        worker.term()
    assert [w.wait(30 * slow) for w in again] == [0, 0]
    starts = [event["resume_step"] for event in cluster.outputs()[0].events() if event["kind"] == "start"]
    assert starts == [0, newest]
    step, found = cluster.newest_checkpoint()
    assert found == calm_hash(tmp_path / "calm", sets, step, 120 * slow)


def test_changed_keys_at_resume(make_cluster, slow):
    """A resume with a changed trajectory key is refused by name, unless the change is allowed."""
    cluster = make_cluster(sets={"train.steps": 10})
    assert cluster.start_worker("a", nnodes=1, endpoint=False).wait(60 * slow) == 0
    longer = {"train.steps": 20, "optimizer.lr": 0.001}
    refused = cluster.start_worker("a", nnodes=1, endpoint=False, sets=longer)
    assert refused.wait(60 * slow) == 2, refused.log()
    assert "optimizer.lr" in refused.log() and "--allow-change KEY" in refused.log()
    other = make_cluster("other", sets={"train.steps": 10, "model.n_layer": 1})
    deeper = other.start_worker("a", nnodes=1, endpoint=False, sets={"checkpoint.dir": refused.checkpoint_dir})
    assert deeper.wait(60 * slow) == 2, deeper.log()
    assert "model.n_layer (" in deeper.log() and "other tensors than that step" in deeper.log()
    assert "--allow-change" not in deeper.log()
    allow = ["--allow-change", "optimizer.lr", "--allow-change", "train.steps"]
    allowed = cluster.start_worker("a", nnodes=1, endpoint=False, sets=longer, args=allow)
    assert allowed.wait(60 * slow) == 0, allowed.log()
    assert cluster.summaries()[0]["start_step"] == 10
    cluster.check_nothing_left()


def test_other_data_at_resume(make_cluster, tmp_path, slow):
    """A resume accepts the same data at another path, and other data only with --allow-change."""
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
    """Another instruction set computes other bits: a resume there needs --allow-change."""
    cluster = make_cluster(sets={"train.steps": 10})
    assert cluster.start_worker("a", nnodes=1, endpoint=False).wait(60 * slow) == 0
    older = {"DPT_TEST_ISA": "avx2" if os.environ.get("DPT_TEST_ISA") == "plain" else "plain"}
    longer, allow = {"train.steps": 12}, ["--allow-change", "train.steps"]
    refused = cluster.start_worker("a", nnodes=1, endpoint=False, sets=longer, args=allow, env=older)
    assert refused.wait(60 * slow) == 2, refused.log()
    assert "another kind of machine" in refused.log() and "--allow-change cluster.device" in refused.log()
    allowed = cluster.start_worker("a", nnodes=1, endpoint=False, sets=longer, env=older,
                                   args=[*allow, "--allow-change", "cluster.device"])
    assert allowed.wait(60 * slow) == 0, allowed.log()
    assert cluster.summaries()[0]["start_step"] == 10


def test_finished_run_is_started_again(make_cluster, slow):
    """A finished run that is started again has nothing to do: its results stay unchanged."""
    cluster = make_cluster(sets={"train.steps": 10})
    assert cluster.start_worker("a", nnodes=1, endpoint=False).wait(60 * slow) == 0
    first = cluster.summaries()
    assert cluster.start_worker("a", nnodes=1, endpoint=False).wait(60 * slow) == 0
    assert cluster.summaries() == first


def test_divergence_is_said(make_cluster, slow):
    """A diverging run that continues says so once; its last checkpoint, which is not finite, is not written."""
    cluster = make_cluster(sets={"train.steps": 40, "train.grad_clip": 0, "optimizer.lr": 1000,
                                 "optimizer.min_lr": 1000, "optimizer.warmup_steps": 0,
                                 "train.on_divergence": "continue",
                                 "cluster.timeout_s": 20})  # a rank that is started again says it again
    worker = cluster.start_worker("a", nnodes=1, endpoint=False)
    assert worker.wait(60 * slow) == 4
    assert worker.outputs.step() == 40 and "holds a value that is not finite" in worker.log()
    assert worker.log().count("the run has diverged") == 1, worker.log()


def test_lone_node_of_two(make_cluster, slow):
    """A restarted server without a journal gives nodes of an earlier server a lease, and the worker says so. Without an
    earlier server a single node of 1:2 waits only for the last call."""
    timeout_s = 5 * slow
    lease_s, last_call_s = 0.9 * timeout_s, 0.2 * timeout_s
    cluster = make_cluster(sets={"train.steps": 12, "cluster.timeout_s": timeout_s})
    for node, args in ("b", None), ("c", []), ("d", ["--fresh"]):  # of a new port nobody knows an earlier server
        began = time.time()
        server = cluster.start_server() if args is None else cluster.restart_server(args=args)
        worker = cluster.start_worker(node, nnodes="1:2")
        assert worker.wait(60 * slow) == 0
        first_step_s = worker.outputs.metrics()[0]["time"] - began
        print(f"node {node}, server {args}: {first_step_s:.2f} s to the first step")
        if node == "c":
            worker.wait_log(r"1 node is here; last call for more, \d+\.\d s: the server has just been started, and "
                            r"nodes that train by an earlier one may come back \(dpt-rdzv --fresh: there was none\)",
                            0.1)
            assert first_step_s >= lease_s
        else:
            worker.wait_log(r"1 node is here; last call for more, \d\.\d s\n", 0.1)
            assert last_call_s <= first_step_s < lease_s
        server.wait_log("run is over, its name is free", 20 * slow)
        server.term()
        assert server.wait(10 * slow) == 0


def test_name_that_is_used_again(make_cluster, slow):
    """The next run of the same name, with other folders, begins above all generations of the finished run."""
    cluster = make_cluster(sets={"train.steps": 12})
    cluster.start_server()
    newest = 0
    for node in "abc":
        worker = cluster.start_worker(node, nnodes=1)
        assert worker.wait(60 * slow) == 0
        assert worker.outputs.summary()["start_step"] == 0
        generations = {line["generation"] for line in worker.outputs.metrics()}
        assert min(generations) > newest, (generations, newest)
        newest = max(generations)
        cluster.server.wait_log(rf"gen={newest}: run is over, its name is free", 20 * slow)


def test_clock_that_was_set_back(make_cluster, slow):
    """A node's incarnation is above the one in its folder, also if that is far in the future; the server recognises the
    node."""
    cluster = make_cluster(sets={"train.steps": 100000})
    cluster.start_server()
    folder = cluster.dirs("a")[0] / "node-a"
    folder.mkdir(parents=True)
    future = int((time.time() + 10 * 365 * 86400) * 1000)
    (folder / "identity").write_text(f"{'5a' * 16} {future:020} 1 on elsewhere\n")
    seen = [future]
    for _ in range(2):
        a = cluster.start_worker("a")
        before = cluster.step()
        cluster.wait_step(before + 3, 30 * slow)
        secret, incarnation = (folder / "identity").read_text().split()[:2]
        assert secret == "5a" * 16 and int(incarnation) > seen[-1]
        seen.append(int(incarnation))
        a.kill_machine()
    last = cluster.start_worker("a")
    cluster.wait_step(cluster.step() + 3, 30 * slow)
    last.term()
    assert last.wait(20 * slow) == 0
    assert "refused" not in cluster.server.log() and "expelled" not in last.log()


def test_too_few_nodes_come(make_cluster, slow):
    cluster = make_cluster(sets={"cluster.wait_s": 2})
    cluster.start_server()
    worker = cluster.start_worker("a", nnodes=2)
    assert worker.wait(30 * slow) == 4
    assert "it waited 2 s (cluster.wait_s) for 2 nodes (cluster.nnodes), and 1 of the 1 here was ready" in worker.log()


def test_first_step_takes_too_long(make_cluster, slow):
    """A first step is too long for cluster.first_step_s on any machine: the generation is formed again twice, then each
    attempt costs a restart."""
    cluster = make_cluster(sets={"train.steps": 100000, "train.global_batch": 1 << 19, "train.micro_batch": 128,
                                 "cluster.first_step_s": 0.5, "cluster.max_restarts": 1})
    worker = cluster.start_worker("a", nnodes=1, endpoint=False)
    assert worker.wait(60 * slow) == 4, worker.log_tail()
    assert re.search(r"^dpt-worker: the run failed: 2 crashes without enough progress between; the first: no first "
                     r"step for \d\.\d s: a rank hangs, or a step takes longer than cluster\.first_step_s$",
                     worker.log(), re.M), worker.log_tail()
    assert worker.outputs.step() == -1


def test_rank_hangs_in_the_first_step(make_cluster, slow):
    """A rank hangs in the first step, which cluster.first_step_s finds: its agent kills the rank, which does not stop,
    and starts another."""
    cluster = make_cluster(sets={"train.steps": 100000, "train.global_batch": 1 << 19, "train.micro_batch": 128,
                                 "cluster.first_step_s": 0.5, "cluster.max_restarts": 1,
                                 "cluster.timeout_s": 2 * slow})
    cluster.start_server()
    workers = [cluster.start_worker(node, nnodes=2) for node in "ab"]
    cluster.server.wait_log("generation 1 runs, world 2", 30 * slow)
    os.kill(workers[1].rank_pids()[0], signal.SIGSTOP)
    assert [worker.wait(60 * slow) for worker in workers] == [4, 4]
    assert re.search(r"forming generation 2: no first step for \d\.\d s: a rank hangs, or a step takes longer than "
                     r"cluster\.first_step_s", cluster.server.log())
    for worker in workers:
        assert ("dpt-worker: the run failed: 2 crashes without enough progress between; the first: node b: rank "
                "process 0: was silent too long and is killed\n") in worker.log()
