"""TensorBoard's own reader has the values of metrics.jsonl, each step once, also after a kill and a step back.

Run by ctest: pytest test_tensorboard_peer.py. tests/run installs tensorboard by pip.
"""

import pytest

import event_files

event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator",
                                        reason="tensorboard is not installed: tests/run installs it by pip")
ALL = {"scalars": 0}  # no sampling


def read(folder):
    reader = event_accumulator.EventAccumulator(str(folder), size_guidance=ALL)
    reader.Reload()
    return {tag: [(e.step, e.value, e.wall_time) for e in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}


def test_kill_and_step_back(make_cluster, slow):
    cluster = make_cluster(sets={"train.steps": 100_000, "train.log_every": 1, "checkpoint.every_steps": 20})
    first = cluster.start_worker("a", nnodes=1, endpoint=False)
    cluster.wait_step(50, 60 * slow)
    first.kill_machine()  # the next start goes back to the newest checkpoint
    died_at = first.outputs.metrics()[-1]["step"]
    second = cluster.start_worker("a", nnodes=1, endpoint=False)
    cluster.wait_step(died_at + 10, 60 * slow)
    second.term()
    assert second.wait(60 * slow) == 0, second.log_tail()
    assert len(event_files.files(second.outputs.dir)) == 2
    found = read(second.outputs.dir)
    event_files.check_equal(second.outputs, found)
    assert found == event_files.read(second.outputs.dir)
