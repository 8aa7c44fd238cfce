"""model.init_from: a run begins from a folder with torchvision's state dict of a ResNet."""

import array
import random

import pytest

import hf_folder

LABELS = 3
NUMBERS = {f"{norm}.num_batches_tracked": ("I64", [], bytes(8)) for norm in ("bn1", "layer1.0.bn1")}


@pytest.fixture
def config(tmp_path):
    """Images of random pixels, and nothing of the model; a step that moves nothing, running statistics included."""
    draw, images, path = random.Random(1), tmp_path / "images.bin", tmp_path / "images.yaml"
    images.write_bytes(b"".join(bytes([i % LABELS]) + draw.randbytes(3 * 32 * 32) for i in range(16)))
    path.write_text(f"""run: resnet
cluster: {{device: cpu, threads: 1, timeout_s: 2}}
model: {{labels: {LABELS}, batch_norm_momentum: 1.0e-30}}
data: {{kind: cifar10, train: {images}}}
train: {{steps: 1, global_batch: 4, micro_batch: 2}}
optimizer: {{lr: 0, min_lr: 0, warmup_steps: 0}}
checkpoint: {{every_steps: 1}}
""")
    return path


@pytest.fixture
def start(make_cluster, config):
    def run(folder, name="run", **sets):
        cluster = make_cluster(name, sets={"data.train": config.parent / "images.bin"})
        return cluster.start_worker("a", config=config, nnodes=1, endpoint=False,
                                    sets={"model.init_from": folder, **sets})
    return run


def drawn(labels=LABELS, seed=1):
    """A variance is not negative."""
    tensors = hf_folder.draw(hf_folder.resnet_shapes(labels), "F32", seed)
    for name, (dtype, shape, _) in tensors.items():
        if name.endswith("running_var"):
            tensors[name] = dtype, shape, array.array("f", [1.0] * shape[0]).tobytes()
    return tensors


def saved_by(worker):
    return hf_folder.read(next(worker.checkpoint_dir.glob("step-*")))


def test_begins_from_these_weights(start, slow, tmp_path):
    """Head and running statistics included; counts of batches in no line."""
    tensors = drawn()
    worker = start(hf_folder.write(tmp_path / "hf", hf_folder.RESNET, {**tensors, **NUMBERS}, shards=2))
    assert worker.wait(60 * slow) == 0, worker.log_tail()
    assert "has tensors" not in worker.log() and "random weights" not in worker.log()
    assert saved_by(worker) == tensors


@pytest.mark.parametrize("labels, left_out", [(10, "fc.bias [10], fc.weight [10, 16]"), (None, None)])
def test_a_fresh_head(start, slow, tmp_path, labels, left_out):
    """Of a folder with another number of labels, whose head is left out, and of one without a head."""
    tensors = drawn(labels or LABELS)
    head = {"fc.weight": [LABELS, 16], "fc.bias": [LABELS]}
    body = {name: tensor for name, tensor in tensors.items() if name not in head}
    worker = start(hf_folder.write(tmp_path / "hf", hf_folder.RESNET, tensors if labels else body))
    assert worker.wait(60 * slow) == 0, worker.log_tail()
    if labels:
        assert worker.log().count(f"has tensors that the model has not: {left_out}; they are left out") == 1
    else:
        assert "has tensors" not in worker.log()
    for name in head:
        assert worker.log().count(f"has no {name} of {LABELS} labels: the head begins with random weights") == 1
    saved = saved_by(worker)
    for name, shape in head.items():
        assert saved[name][1] == shape and any(saved.pop(name)[2])
    assert saved == body
