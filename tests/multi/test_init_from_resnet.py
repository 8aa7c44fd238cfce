"""model.init_from: a run starts from a folder with torchvision's state dict of a ResNet."""

import array
import json
import random

import pytest

import hf_folder
from test_init_from import refused
from test_transfer import done

LABELS = 3
NUMBERS = {f"{norm}.num_batches_tracked": ("I64", [], bytes(8)) for norm in ("bn1", "layer1.0.bn1")}


@pytest.fixture
def config(tmp_path):
    """A config with images of random pixels and no keys of the model; a step changes nothing, running statistics
    included."""
    draw, images, path = random.Random(1), tmp_path / "images.bin", tmp_path / "images.yaml"
    images.write_bytes(b"".join(bytes([i % LABELS]) + draw.randbytes(3 * 32 * 32) for i in range(16)))
    path.write_text(f"""run: resnet
cluster: {{device: cpu, threads: 1, timeout_s: 2}}
model: {{labels: {LABELS}, batch_norm_momentum: 1.0e-30}}
data: {{kind: cifar10, train: {images}}}
train: {{steps: 1, global_batch: 4, micro_batch: 2}}
optimizer: {{lr: 0, min_lr: 0, schedule: constant, warmup_steps: 0}}
checkpoint: {{every_steps: 1}}
""")
    return path


@pytest.fixture
def start(make_cluster, config):
    cluster = make_cluster(sets={"data.train": config.parent / "images.bin"})

    def run(folder, **sets):
        return cluster.start_worker("a", config=config, nnodes=1, endpoint=False,
                                    sets={"model.init_from": folder, **sets})
    return run


def drawn(labels=LABELS, seed=1):
    """Random tensors; variances are not negative."""
    tensors = hf_folder.draw(hf_folder.resnet_shapes(labels), "F32", seed)
    for name, (dtype, shape, _) in tensors.items():
        if name.endswith("running_var"):
            tensors[name] = dtype, shape, array.array("f", [1.0] * shape[0]).tobytes()
    return tensors


def saved_by(worker):
    return hf_folder.read(next(worker.checkpoint_dir.glob("step-*")))


def test_begins_from_these_weights(start, slow, tmp_path):
    """A step that changes nothing leaves the folder's weights, head and running statistics; no line mentions the counts
    of batches."""
    tensors = drawn()
    worker = start(hf_folder.write(tmp_path / "hf", hf_folder.RESNET, {**tensors, **NUMBERS}, shards=2))
    assert worker.wait(60 * slow) == 0, worker.log_tail()
    assert "has tensors" not in worker.log() and "random weights" not in worker.log()
    assert saved_by(worker) == tensors


def test_names_of_the_classes(start, config, slow, tmp_path):
    """config.json of a checkpoint and of its export has the class names of the data, or LABEL_0 and so on."""
    folder = hf_folder.write(tmp_path / "hf", hf_folder.RESNET, drawn())
    for run, names in enumerate((["LABEL_0", "LABEL_1", "LABEL_2"], ["cat", "großer Hund", "frog"]), 1):
        if run == 2:
            (config.parent / "batches.meta.txt").write_text("\n".join(names) + "\n\n", encoding="utf-8")
        worker = start(folder, **{"train.steps": run})
        assert worker.wait(60 * slow) == 0, worker.log_tail()
        done("export", worker.checkpoint_dir, tmp_path / f"exported-{run}")
        for path in worker.checkpoint_dir / f"step-{run:08}", tmp_path / f"exported-{run}":
            said = json.loads((path / "config.json").read_text())
            assert said["id2label"] == {str(i): name for i, name in enumerate(names)}
            assert said["label2id"] == {name: i for i, name in enumerate(names)}


@pytest.mark.parametrize("labels, left_out", [(10, "fc.bias [10], fc.weight [10, 16]"), (None, None)])
def test_a_fresh_head(start, slow, tmp_path, labels, left_out):
    """The head starts fresh if the folder has a head with another number of labels, or none."""
    tensors = drawn(labels or LABELS)
    head = {"fc.weight": [LABELS, 16], "fc.bias": [LABELS]}
    body = {name: tensor for name, tensor in tensors.items() if name not in head}
    worker = start(hf_folder.write(tmp_path / "hf", hf_folder.RESNET, tensors if labels else body))
    assert worker.wait(60 * slow) == 0, worker.log_tail()
    if labels:
        assert worker.log().count(f"has tensors that are not in the model: {left_out}; they are left out") == 1
    else:
        assert "has tensors" not in worker.log()
    for name in head:
        assert worker.log().count(f"has no {name} of {LABELS} labels: the head begins with random weights") == 1
    saved = saved_by(worker)
    for name, shape in head.items():
        assert saved[name][1] == shape and any(saved.pop(name)[2])
    assert saved == body


REFUSED = {
    "a missing tensor": (lambda t: {n: v for n, v in t.items() if n != "bn1.running_mean"}, {},
                         "model.safetensors': tensor 'bn1.running_mean' is missing"),
    "a shape": (lambda t: t, {"width": 16},
                "tensor 'conv1.weight' has the shape [8, 3, 3, 3], by the model's sizes it is [16, 3, 3, 3]"),
    "a dtype": (lambda t: {**t, "bn1.bias": ("I32", [8], bytes(32))}, {},
                "tensor 'bn1.bias' has dtype I32; F32, BF16 and F16 are read"),
    "a head's dtype": (lambda t: {**t, "fc.bias": ("I32", [3], bytes(12))}, {}, "tensor 'fc.bias' has dtype I32"),
    "fewer stages than the tensors": (lambda t: t, {"layers": [1]},
                                      "by the model's sizes there is no tensor 'layer2.0.bn1.bias' and 14 more; "
                                      "config.json and the tensors must be of one model"),
    "a bias of a convolution": (lambda t: {**t, "conv1.bias": ("F32", [8], bytes(32))}, {},
                                "by the model's sizes there is no tensor 'conv1.bias'"),
    "no stem": (lambda t: t, {"stem": None}, "config.json': it has no stem"),
    "transformers' resnet": (lambda t: t, {"model_type": "resnet"},
                             "model_type is \"resnet\"; weights of gpt2 and llama are read, and of torchvision_resnet"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(start, slow, tmp_path, case):
    change, settings, said = REFUSED[case]
    refused(start(hf_folder.write(tmp_path / "hf", {**hf_folder.RESNET, **settings}, change(drawn()))), slow, said)


def test_a_run_that_goes_on_does_not_need_the_folder(start, slow, tmp_path):
    """A resumed run does not need the folder, because its checkpoint has the sizes."""
    folder = hf_folder.write(tmp_path / "hf", hf_folder.RESNET, drawn())
    first = start(folder)
    assert first.wait(60 * slow) == 0, first.log_tail()
    folder.rename(tmp_path / "elsewhere")
    again = start(folder, **{"train.steps": 2})
    assert again.wait(60 * slow) == 0, again.log_tail()
    assert again.outputs.summary()["start_step"] == 1
