"""Networks of images beside torchvision, and scikit-learn's digits in one command."""

import random
import struct
import zlib

from accept.beside import (PLAIN, STEPS, ask, evaluate, example, losses_of, make_folders, peer_python,
                           run_alone)
from cluster import ROOT, ClusterError

PEER = ROOT / "tests" / "accept" / "peer_torchvision.py"
IMAGES, LABELS = 16, 10

# AdamW's first steps make of a gradient that is zero but for rounding as much as of any other.
OPTIM = {"lr": 0.02, "min_lr": 0.002, "momentum": 0.9, "weight_decay": 5e-4, "grad_clip": 5.0}
SGD = {"optimizer.name": "sgd", "optimizer.lr": OPTIM["lr"], "optimizer.min_lr": OPTIM["min_lr"],
       "optimizer.schedule": "cosine", "optimizer.momentum": OPTIM["momentum"],
       "optimizer.weight_decay": OPTIM["weight_decay"], "train.grad_clip": OPTIM["grad_clip"], "train.steps": STEPS}

# dpt's settings, and what the peer builds: a network of torchvision by name, or layers and width of a small one;
# the side of the images, which are files of CIFAR-10 or a folder.
NETWORKS = {
    "small resnet": ({"model.preset": "small_resnet", "model.n_layer": 6, "model.width": 16}, [6, 16], 32),
    "resnet18": ({"model.preset": "resnet18"}, "resnet18", 64),
    "resnet50": ({"model.preset": "resnet50"}, "resnet50", 64),
}


CONFIG = f"""run: images
cluster: {{nnodes: 1, device: cpu, timeout_s: 5}}
model: {{name: resnet, labels: {LABELS}}}
data: {{kind: cifar10, augment: none}}
train: {{steps: 1, global_batch: {IMAGES}, micro_batch: {IMAGES}}}
"""


def write_config(folder):
    path = folder / "images.yaml"
    path.write_text(CONFIG)
    return path


def write_png(path, side, planes):
    """Red, green and blue of each pixel, in rows without a filter."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + bytes(planes[c * side * side + y * side + x] for x in range(side) for c in range(3))
                    for y in range(side))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
                     + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def write_images(folder, side, seed):
    """Writes random pixels: as records of CIFAR-10's binary version, also of another size, and as a folder of PNG
    files."""
    draw = random.Random(seed)
    records = b""
    for i in range(IMAGES):
        planes = draw.randbytes(3 * side * side)
        records += bytes([i % LABELS]) + planes
        label = folder / f"png-{side}" / f"{i % LABELS}"
        label.mkdir(parents=True, exist_ok=True)
        write_png(label / f"{i}.png", side, planes)
    (folder / f"images-{side}.bin").write_bytes(records)


def compare_with_double(line, name, losses, found):
    """Compares with double precision. The gradient of a loss jumps where ReLU's input passes zero, so single precision
    may differ as much as PyTorch's own: the bars are 1e-4, or twice PyTorch's difference."""
    line.note(f"{name}: {found['model']}, {found['parameters']:,} parameters; PyTorch's fp32 differs from double by "
              f"{found['gradients']['own']:.2g} in a tensor's gradient, by {found['own']:.2g} in a loss")
    line.at_most(f"{name}: worst relative L2 of a tensor's first gradient ({found['gradients']['tensor']})",
                 found["gradients"]["worst"], max(1e-4, 2 * found["gradients"]["own"]))
    line.show(f"{name}: losses compared", min(len(losses), len(found["losses"])), f"== {STEPS}",
              len(losses) == len(found["losses"]) == STEPS)
    line.at_most(f"{name}: worst difference of {STEPS} losses",
                 max(abs(a - b) for a, b in zip(losses, found["losses"])), max(1e-4, 2 * found["own"]))


def beside_torchvision(line, name, sets, network, side):
    folders = make_folders(line, name, "start", "plain", "trained", "logits")
    write_images(line.folder, side, line.seed)
    images, config = line.folder / f"images-{side}.bin", write_config(line.folder)
    data = images if side == 32 else line.folder / f"png-{side}"
    sets = {"data.train": data, "data.val": data, **sets}
    if side != 32:
        sets |= {"data.kind": "images", "data.image_size": side, "data.resize": side}
    _, start = run_alone(folders["start"], {**sets, **PLAIN, "optimizer.lr": 0}, config)
    _, after = run_alone(folders["plain"], {**sets, **PLAIN, "optimizer.lr": 1}, config)
    outputs, trained = run_alone(folders["trained"], {**sets, **SGD}, config)
    spec = {"images": str(images), "side": side, "network": network, "labels": LABELS, "steps": STEPS,
            "after": str(after), **OPTIM}
    compare_with_double(line, name, losses_of(outputs), ask(PEER, start, spec))
    found = ask(PEER, trained, {**spec, "steps": 0, "after": None})
    code, text, told = evaluate(folders["trained"], sets, trained.parent, config)
    line.show(f"{name}: --eval of the last weights", (code, [t for t in text.splitlines() if "accuracy" in t]),
              f"Evaluation accuracy: {100 * found['accuracy']:.2f}%",
              code == 0 and f"Evaluation accuracy: {100 * found['accuracy']:.2f}%" in text.splitlines())
    if side == 32:
        worst = max(abs(found["logprobs"][label] + loss_with_label(folders["logits"], images, sets, trained, label,
                                                                   config)) for label in range(LABELS))
        line.at_most(f"{name}: largest difference of {LABELS} logits, as log-probabilities", worst, 1e-4)
    line.at_most(f"{name}: difference of the validation loss (PyTorch's fp32: {found['own_loss']:.2g})",
                 abs(told["val_loss"] - found["loss"]), max(1e-4, 2 * found["own_loss"]))


def loss_with_label(root, images, sets, trained, label, config):
    """The loss of --eval for the first image with this label: minus the logarithm of its probability."""
    folder, record = root / str(label), images.read_bytes()[1:1 + 3 * 32 * 32]
    folder.mkdir()
    (folder / "one.bin").write_bytes(bytes([label]) + record)
    code, text, told = evaluate(folder, {**sets, "data.val": folder / "one.bin"}, trained.parent, config)
    if code != 0:
        raise ClusterError(f"--eval: exit code {code}\n{text}")
    return told["val_loss"]


def resnet_beside_torchvision(line):
    """dpt's checkpoints of a small ResNet, of ResNet-18 and ResNet-50 open in torchvision (load_state_dict), and from
    them PyTorch has, in double precision, the same first gradients and running statistics (relative L2 1e-4), the same
    20 losses (1e-4) and, in evaluation mode, the same loss (1e-4), accuracy and, of the
    small one, logits of an image (1e-4); each at most twice as far as PyTorch's
    fp32."""
    peer_python("torchvision")
    line.command(f"dpt-worker, then $DPT_TORCH_PYTHON {PEER.relative_to(ROOT)} CHECKPOINT SPEC")
    for name, (sets, network, side) in NETWORKS.items():
        beside_torchvision(line, name, sets, network, side)


def digits(line):
    """deploy/digits, one command on a bare machine: a small ResNet recognises at least 98 of 100 handwritten digits of
    the validation set, within minutes."""
    example(line, "digits", "digits of val.bin, %", 98)
