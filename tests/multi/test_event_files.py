"""TensorBoard event files beside metrics.jsonl: each step once and in order, through kills, resumes and rollbacks, with
the values of metrics.jsonl; and dpt-plot's picture of the run."""

import os
import random
import subprocess
import xml.etree.ElementTree as ElementTree

import event_files
from cluster import checkpoint_hash, make_text, program, wait_until

SVG = "{http://www.w3.org/2000/svg}"


def newest_line(cluster):
    return cluster.outputs()[0].metrics()[-1]


def wait_reformed(cluster, after, slow):
    """Waits for a step of a world of two in a generation later than `after`."""
    def reformed():
        line = newest_line(cluster)
        return line["generation"] > after and line["world_size"] == 2
    wait_until(f"two nodes after generation {after}", reformed, 60 * slow, cluster.log_tails)


def kill_and_replace(cluster, draw, slow):
    """Kills a node in a drawn step and starts it again. Half of the nodes killed have the log writer."""
    victim = draw.choice([worker for worker in cluster.workers if worker.alive()])
    cluster.wait_step(cluster.step() + draw.randint(3, 25), 60 * slow)
    generation = newest_line(cluster)["generation"]
    victim.kill_machine()
    cluster.start_worker(victim.node)
    wait_reformed(cluster, generation, slow)


def test_kills_resumes_and_rollbacks(make_cluster, slow, tmp_path):
    seed = int(os.environ.get("DPT_TEST_SEED", random.SystemRandom().randrange(10 ** 6)))
    print(f"seed {seed} (DPT_TEST_SEED)")
    draw, text = random.Random(seed), make_text(tmp_path / "text.txt")
    cluster = make_cluster(shared_dirs=True, sets={
        "train.steps": 100_000, "train.log_every": 1, "checkpoint.every_steps": 20, "train.eval_every": 10,
        "train.eval_tokens": 256, "data.train": text, "data.val": text})
    cluster.start_server()
    for node in "ab":
        cluster.start_worker(node)
    cluster.wait_world(2, 30 * slow)
    outputs = cluster.outputs()[0]
    for _ in range(3):
        kill_and_replace(cluster, draw, slow)
    cluster.wait_step(max(40, cluster.step() + draw.randint(3, 25)), 60 * slow)  # there is a checkpoint
    for worker in cluster.workers:  # all die: the next start goes back to the newest checkpoint
        if worker.alive():
            worker.kill_machine()
    check_after_all_died(outputs)
    last = newest_line(cluster)
    workers = [cluster.start_worker(node) for node in "ab"]
    wait_reformed(cluster, last["generation"], slow)
    cluster.wait_step(last["step"] + 30, 60 * slow)
    for worker in workers:
        worker.term()
    for worker in workers:
        assert worker.wait(60 * slow) == 0, worker.log_tail()
    event_files.check_equal(outputs, event_files.read(outputs.dir))
    check_picture(outputs, tmp_path)


def check_after_all_died(outputs):
    """The last line may be in metrics.jsonl alone, until the next writer adds it."""
    losses = event_files.read(outputs.dir)["train/loss"]
    steps = [line["step"] for line in event_files.newest_lines(outputs)]
    assert [step for step, _, _ in losses] in (steps, steps[:-1])


def check_picture(outputs, folder):
    svg = folder / "run.svg"
    subprocess.run([program("dpt-plot"), str(outputs.dir), "--out", str(svg)], check=True, timeout=60)
    failures = [e for e in outputs.events() if e["kind"] in ("rank_lost", "node_lost", "comm_error", "stalled")]
    loss = ElementTree.parse(svg).find(f".//{SVG}g[@id='loss']")
    assert len(loss.findall(f"{SVG}g[@class='failure']")) == len(failures) >= 3


def test_weights_do_not_depend_on_the_key(make_cluster, slow):
    hashes = []
    for name, value in (("on", "true"), ("off", "false")):
        cluster = make_cluster(name, sets={"train.steps": 10, "log.tensorboard": value})
        worker = cluster.start_worker("a", nnodes=1, endpoint=False)
        assert worker.wait(60 * slow) == 0, worker.log_tail()
        hashes.append(checkpoint_hash(worker.checkpoint_dir))
        assert bool(event_files.files(worker.outputs.dir)) == (value == "true")
    assert hashes[0] == hashes[1]
