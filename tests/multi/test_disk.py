"""Full disks: the first failure is reported, later ones are counted, and training continues."""

import json
import re
import subprocess

import pytest

from cluster import Process, wait_until
from test_ctl import ctl, ctl_json


UNSHARE = ["unshare", "-rm"]  # a mount namespace of our own


def needs_mounts():
    if subprocess.run([*UNSHARE, "true"], capture_output=True).returncode != 0:
        pytest.skip("no mount namespace of our own: unshare is not allowed here")


def full(path):
    """Makes the path a file that accepts no byte."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to("/dev/full")


def test_logs(make_cluster, slow):
    """metrics.jsonl, events.jsonl and a rank's log cannot be written; the summary can."""
    cluster = make_cluster(sets={"train.steps": 40, "train.log_every": 1})
    log, _ = cluster.dirs("a")
    for name in ("metrics.jsonl", "events.jsonl", "node-a/rank-0.log"):
        full(log / name)
    worker = cluster.start_worker("a", nnodes=1, endpoint=False)
    assert worker.wait(60 * slow) == 0, worker.log_tail()
    said = worker.log()
    assert said.count("a record of the run's log is lost") == 1 and "No space left on device" in said, said
    assert re.search(r"40 more records of the run's log in '\S+' are lost", said), said  # 1 event, 40 steps
    assert said.count(f"cannot write '{log}/node-a/rank-0.log': No space left on device") == 1, said
    assert re.search(r"\d+ bytes of '\S+/node-a/rank-0\.log' were dropped", said), said
    assert worker.outputs.summary()["steps"] == 40


def test_log_folder_that_is_full(make_cluster, slow, tmp_path):
    """Not even the summary can be written: the run completes and prints its weights hash."""
    needs_mounts()
    cluster = make_cluster(sets={"train.steps": 40, "train.log_every": 1})
    disk = tmp_path / "disk"
    disk.mkdir()
    argv = cluster.worker_argv("a", nnodes=1, endpoint=False, sets={"log.dir": disk / "log"})
    kept = tmp_path / "metrics.jsonl"
    script = (f'mount -t tmpfs -o size=28k none "{disk}" && "$@"; code=$?; cp "{disk}/log/metrics.jsonl" "{kept}"; '
              'exit $code')
    worker = Process("worker", [*UNSHARE, "sh", "-c", script, "sh", *argv], cluster.root / "worker.log", cluster.env)
    assert worker.wait(60 * slow) == 0, worker.log_tail()
    said = worker.log()
    assert said.count("a record of the run's log is lost") == 1 and "No space left on device" in said, said
    assert re.search(r"weights hash +[0-9a-f]{32}", said), said
    lines = kept.read_text().splitlines()
    assert lines and all(json.loads(line)["step"] for line in lines if line)  # none is torn


def test_traces(make_cluster, slow, tmp_path):
    """The disk has no room for a trace of any step: one warning, no file, and the run completes."""
    needs_mounts()
    disk, kept = tmp_path / "disk", tmp_path / "files"
    disk.mkdir()
    cluster = make_cluster(sets={"train.steps": 12, "trace.dir": disk / "t", "trace.wait": 0, "trace.warmup": 0,
                                 "trace.active": 2, "trace.repeat": 0})
    argv = cluster.worker_argv("a", nnodes=1, endpoint=False)
    script = (f'mount -t tmpfs -o size=8k none "{disk}" && "$@"; code=$?; find "{disk}" -type f >"{kept}"; exit $code')
    worker = Process("worker", [*UNSHARE, "sh", "-c", script, "sh", *argv], cluster.root / "worker.log", cluster.env)
    assert worker.wait(60 * slow) == 0, worker.log_tail()
    said = worker.log()
    assert len(re.findall(r"the trace of steps 1 to 2 is lost: .*No space left on device; training continues", said)) \
        == 1, said
    assert said.count("is lost") == 1 and kept.read_text() == "", said


def test_log_that_is_written_again(make_cluster, slow):
    """When the log can be written again, one line counts the records lost until then."""
    cluster = make_cluster(sets={"train.steps": 100000, "train.log_every": 1})
    log, _ = cluster.dirs("a")
    full(log / "metrics.jsonl")
    worker = cluster.start_worker("a", nnodes=1, endpoint=False)
    worker.wait_log("a record of the run's log is lost", 30 * slow)
    worker.wait_log(r"(?m)^step \d{2}/", 30 * slow)  # more of them are lost
    (log / "metrics.jsonl").unlink()
    worker.wait_log(r"\d+ more records of the run's log in '\S+' are lost", 30 * slow)
    cluster.wait_step(3, 30 * slow)
    worker.term()
    assert worker.wait(30 * slow) == 0, worker.log_tail()


def test_checkpoints(make_cluster, slow, tmp_path):
    """The disk has room for one checkpoint and not for a second one beside it."""
    needs_mounts()
    cluster = make_cluster(sets={"train.steps": 40, "checkpoint.every_steps": 10})
    disk = tmp_path / "disk"
    disk.mkdir()
    argv = cluster.worker_argv("a", nnodes=1, endpoint=False, sets={"checkpoint.dir": disk / "c"})
    script = f'mount -t tmpfs -o size=2m none "{disk}" && exec "$@"'
    worker = Process("worker", [*UNSHARE, "sh", "-c", script, "sh", *argv], cluster.root / "worker.log", cluster.env)
    assert worker.wait(60 * slow) == 4, worker.log_tail()  # the last one is the run's result
    said = worker.log()
    assert said.count("a checkpoint was not written") == 1, said
    assert re.search(r"1 more checkpoints? found no room in '\S+/disk/c'", said), said
    assert "No space left on device" in [line for line in said.splitlines() if line.startswith("dpt-worker: ")][0]


def trains_on_a_small_disk(make_cluster, slow, tmp_path):
    """(cluster, worker, its disk): the worker trains, and a checkpoint does not fit on its disk."""
    needs_mounts()
    cluster = make_cluster(sets={"train.steps": 100000, "checkpoint.every_steps": 0, "train.log_every": 1})
    cluster.start_server()
    disk = tmp_path / "disk"
    disk.mkdir()
    argv = cluster.worker_argv("a", nnodes=1, sets={"checkpoint.dir": disk / "c"})
    script = f'mount -t tmpfs -o size=100k none "{disk}" && exec "$@"'
    worker = Process("worker", [*UNSHARE, "sh", "-c", script, "sh", *argv], cluster.root / "worker.log", cluster.env)
    worker.wait_log(r"(?m)^step +3/", 30 * slow)
    return cluster, worker, disk


def test_leaving(make_cluster, slow, tmp_path):
    """A node is told to end, and its last steps do not fit on the disk: one line reports the error, one counts the
    steps, and the exit code is 75."""
    _, worker, _ = trains_on_a_small_disk(make_cluster, slow, tmp_path)
    worker.term()
    assert worker.wait(30 * slow) == 75, worker.log_tail()
    said = worker.log()
    assert re.findall(r"leaving, but step (\d+) could not be saved: .*: No space left on device$", said, re.M) == \
        re.findall(r"NOT SAVED: the last (\d+) steps", said), said
    assert said.count("No space left on device") == 1 and "training resumed" not in said, said
    assert re.search(r"^dpt-worker: left the run, but its last \d+ steps are not saved$", said, re.M), said


def test_all_leave_and_one_folder_is_full(make_cluster, slow, tmp_path):
    """All nodes leave, and the first writer's folder is full: a node with a folder that has room saves the steps, and
    the run resumes from there."""
    needs_mounts()
    cluster = make_cluster(sets={"train.steps": 100000, "checkpoint.every_steps": 0, "train.log_every": 1})
    cluster.start_server()
    disk = tmp_path / "disk"
    disk.mkdir()
    argv = cluster.worker_argv("a", sets={"checkpoint.dir": disk / "c"})
    script = f'mount -t tmpfs -o size=100k none "{disk}" && exec "$@"'
    a = Process("worker", [*UNSHARE, "sh", "-c", script, "sh", *argv], cluster.root / "worker.log", cluster.env)
    a.wait_log(r"(?m)^step +3/", 30 * slow)  # it has rank 0, whose folder is all the world's
    b = cluster.start_worker("b")
    cluster.wait_world(2, 30 * slow)
    a.term()
    b.term()
    assert a.wait(30 * slow) == 75 and b.wait(30 * slow) == 0, a.log_tail() + b.log_tail()
    lost, step = re.search(r"NOT SAVED: the last (\d+) steps \(after step 0, up to (\d+)\) are in memory only and go "
                           r"with this node unless another node has them", a.log()).groups()
    assert lost == step and f"step {step} is saved: the run goes on from there" in b.log(), a.log_tail() + b.log_tail()
    assert "NOT SAVED" not in b.log()
    assert [p.name for p in cluster.dirs("b")[1].glob("*step-*")] == [f"rescue-step-{int(step):08}"]
    again = cluster.start_worker("b", nnodes=1, endpoint=False)
    again.wait_log(rf"(?m)^step +{int(step) + 2}/", 30 * slow)
    assert not re.search(rf"(?m)^step +{step}/", again.log()), again.log()


def test_rescue_without_room(make_cluster, slow, tmp_path):
    """Without a server the rescue does not fit on the full disk either: the reason is reported once."""
    needs_mounts()
    cluster = make_cluster(sets={"train.steps": 100000, "checkpoint.every_steps": 2, "train.log_every": 1})
    server = cluster.start_server()
    disk = tmp_path / "disk"
    disk.mkdir()
    argv = cluster.worker_argv("a", nnodes=1, sets={"checkpoint.dir": disk / "c"})
    script = f'mount -t tmpfs -o size=100k none "{disk}" && exec "$@"'
    worker = Process("worker", [*UNSHARE, "sh", "-c", script, "sh", *argv], cluster.root / "worker.log", cluster.env)
    worker.wait_log("a checkpoint was not written", 30 * slow)
    server.kill()
    worker.term()
    assert worker.wait(30 * slow) == 75, worker.log_tail()
    said = worker.log()
    assert said.count("No space left on device") == 1, said
    step, = re.findall(r"step (\d+) is not rescued, for the reason logged before$", said, re.M)
    assert re.search(rf"^dpt-worker: left without a server: step {step} is not rescued$", said, re.M), said


def test_folder_that_is_none(make_cluster, slow, tmp_path):
    """checkpoint.dir becomes a file, a folder and a file again: each change of the reason gives one line, later
    failures are counted."""
    cluster = make_cluster(sets={"train.steps": 100000, "checkpoint.every_steps": 2, "train.log_every": 1})
    folder, file, link, draft = (tmp_path / name for name in ("folder", "file", "link", "draft"))
    folder.mkdir()
    file.write_text("a file")

    def become(what):
        draft.symlink_to(what)
        draft.replace(link)

    become(folder)
    worker = cluster.start_worker("a", nnodes=1, endpoint=False, sets={"checkpoint.dir": link})

    def reasons():
        return re.findall(r"^\[local rank 0\] .*: Not a directory", worker.log(), re.M)

    for times in (1, 2):
        cluster.wait_step(cluster.step() + 4, 30 * slow)
        become(file)
        wait_until("the reason", lambda: len(reasons()) == times, 30 * slow, worker.log_tail)
        cluster.wait_step(cluster.step() + 8, 30 * slow)
        assert len(reasons()) == times, worker.log()
        if times == 1:
            become(folder)
            worker.wait_log(rf"\d+ more checkpoints could not be written to '{link}'", 30 * slow)
    worker.term()
    assert worker.wait(30 * slow) == 75, worker.log_tail()
    assert len(reasons()) == 2, worker.log()
    said = r"leaving, but step \d+ could not be saved, for the reason logged before$"
    assert len(re.findall(said, worker.log(), re.M)) == 1, worker.log()
    assert worker.log().count("more checkpoints could not be written to") == 2, worker.log()


def test_operator_hears_of_a_full_disk(make_cluster, slow, tmp_path):
    """`dpt-ctl save` ends with the reason as soon as the rank knows it, and training goes on."""
    cluster, worker, disk = trains_on_a_small_disk(make_cluster, slow, tmp_path)
    _, err = ctl(cluster, "save", code=4, timeout=60 * slow)  # without an end by the rank it waits for 300 s
    said = (r"dpt-ctl: run tiny could not save step \d+, and goes on as before: rank 0 \(node a, host \S+\): "
            rf"checkpoint of step \d+ in '{disk}/c' dropped: .*: No space left on device\. Make room in "
            r"checkpoint\.dir there, .*")
    assert re.fullmatch(said, err.splitlines()[-1]), err
    run, = ctl_json(cluster, "runs")["runs"]
    assert (run["state"], run["generation"], run["saved_step"]) == ("trains", 1, None), run
    worker.wait_log(rf"(?m)^step +{run['step'] + 3}/", 30 * slow)
    worker.kill()


def test_operator_mends_the_folder(make_cluster, slow, tmp_path):
    """checkpoint.dir of one node is no folder: `save` and `stop` say so, in training and in a pause, and do their work
    when it is a folder again."""
    cluster = make_cluster(sets={"train.steps": 100000, "checkpoint.every_steps": 0, "train.log_every": 1,
                                 "cluster.nnodes": 2, "cluster.timeout_s": 10 * slow})
    cluster.start_server()
    folder, file, link, draft = (tmp_path / name for name in ("folder", "file", "link", "draft"))
    folder.mkdir()
    file.write_text("a file")

    def become(what):
        draft.symlink_to(what)
        draft.replace(link)

    become(folder)
    workers = [cluster.start_worker(node, sets={"checkpoint.dir": link}) for node in "ab"]
    cluster.wait_step(3, 60 * slow)
    become(file)
    why = rf"rank \d \(node [ab], host \S+\): checkpoint of step \d+ in '{link}' dropped: .*Not a directory"

    def is_refused(*words):
        _, err = ctl(cluster, *words, code=4, timeout=60 * slow)
        assert re.search(why, err.splitlines()[-1]), err

    is_refused("save")
    is_refused("save")
    become(folder)
    saved = ctl_json(cluster, "save")
    assert (folder / f"step-{saved['step']:08}" / "MANIFEST.json").exists(), saved
    cluster.wait_step(saved["step"] + 3, 30 * slow)
    ctl(cluster, "pause")
    become(file)
    is_refused("save")
    become(folder)
    assert ctl_json(cluster, "save")["step"] > saved["step"]
    ctl(cluster, "resume")
    cluster.wait_step(cluster.step() + 3, 30 * slow)
    become(file)
    is_refused("stop")
    become(folder)
    ctl(cluster, "stop")
    assert [worker.wait(30 * slow) for worker in workers] == [0, 0], cluster.log_tails()


@pytest.mark.parametrize("limit, said", [
    ("-f 300", r"rank process 0: .*: File too large \(ulimit -f is the limit of a process\)"),
    ("-n 32", r"rank process 0: start a rank process: all 32 files that this process may have open are in use; raise "
              r"the limit \(ulimit -n\)"),
])
def test_limits_of_the_worker(make_cluster, slow, limit, said):
    """A limit that no retry can change is reported once, with its value."""
    cluster = make_cluster(sets={"train.steps": 40})
    argv = cluster.worker_argv("a", nnodes=1, endpoint=False)
    worker = Process("worker", ["sh", "-c", f'ulimit {limit} && exec "$@"', "sh", *argv], cluster.root / "worker.log",
                     cluster.env)
    assert worker.wait(30 * slow) == 4, worker.log_tail()
    line, = [line for line in worker.log().splitlines() if line.startswith("dpt-worker: ")]
    assert re.search(said + "$", line), line
    assert "again" not in worker.log(), worker.log()


@pytest.mark.parametrize("disk, reason", [("full", "No space left on device"), ("no folder", "Not a directory")])
def test_newcomer_with_a_broken_disk(make_cluster, slow, tmp_path, disk, reason):
    """A joining node with a broken disk ends with one line before it joins; the run, which has its minimum of nodes, is
    not disturbed."""
    cluster = make_cluster(sets={"train.steps": 100000, "cluster.nnodes": "1:2"})
    cluster.start_server()
    a = cluster.start_worker("a")
    cluster.wait_step(3, 30 * slow)
    path = tmp_path / "disk"
    argv = cluster.worker_argv("b", sets={"checkpoint.dir": path / "c"})
    if disk == "full":
        needs_mounts()
        path.mkdir()
        script = f'mount -t tmpfs -o size=64k none "{path}" && head -c 65536 /dev/zero >"{path}/f"; exec "$@"'
        argv = [*UNSHARE, "sh", "-c", script, "sh", *argv]
    else:
        path.write_text("a file")
    newcomer = Process("newcomer", argv, cluster.root / "newcomer.log", cluster.env)
    assert newcomer.wait(30 * slow) == 2, newcomer.log_tail()
    said = rf"dpt-worker: checkpoint\.dir: .*: {reason}; give another with --set checkpoint\.dir=PATH\n"
    assert re.fullmatch(said, newcomer.log()), newcomer.log()
    cluster.wait_step(cluster.step() + 5, 30 * slow)
    assert {line["generation"] for line in cluster.metrics()} == {1}
    a.term()
    assert a.wait(20 * slow) == 0, a.log_tail()
