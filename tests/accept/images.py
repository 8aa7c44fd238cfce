"""Networks of images: beside torchvision, and scikit-learn's digits in one command."""

import random

from accept.beside import (ADAMW, OPTIM, PLAIN, STEPS, ask, compare, evaluate, example, losses_of, make_folders,
                           peer_python, run_alone)
from cluster import ROOT

PEER = ROOT / "tests" / "accept" / "peer_torchvision.py"
IMAGES, LABELS = 16, 10

# dpt's settings, and what the peer builds: a network of torchvision by name, or layers and width of a small one.
NETWORKS = {
    "small resnet": ({"model.preset": "small_resnet", "model.n_layer": 6, "model.width": 16}, [6, 16]),
    "resnet18": ({"model.preset": "resnet18"}, "resnet18"),
    "resnet50": ({"model.preset": "resnet50"}, "resnet50"),
}


def write_images(path, seed):
    """Records of CIFAR-10's binary version: images of random waves, so that neighbouring pixels are alike."""
    draw = random.Random(seed)
    records = b""
    for i in range(IMAGES):
        steps = [draw.uniform(0.01, 0.3) for _ in range(6)]
        records += bytes([i % LABELS]) + bytes(
            int(255 * abs((y * steps[c] + x * steps[c + 3]) % 2 - 1)) for c in range(3) for y in range(32)
            for x in range(32))
    path.write_bytes(records)


def beside_torchvision(line, name, sets, network):
    folders = make_folders(line, name, "start", "sgd", "adamw")
    images = line.folder / "images.bin"
    sets = {"model.name": "resnet", "model.labels": LABELS, "data.kind": "cifar10", "data.augment": "none",
            "data.train": images, "data.val": images, "train.global_batch": IMAGES, "train.micro_batch": IMAGES, **sets}
    _, start = run_alone(folders["start"], {**sets, **PLAIN, "optimizer.lr": 0})
    _, after = run_alone(folders["sgd"], {**sets, **PLAIN, "optimizer.lr": 1})
    outputs, trained = run_alone(folders["adamw"], {**sets, **ADAMW, "train.steps": STEPS})
    spec = {"images": str(images), "network": network, "labels": LABELS, "steps": STEPS, "after": str(after), **OPTIM}
    compare(line, name, losses_of(outputs), ask(PEER, start, spec))
    found = ask(PEER, trained, {**spec, "steps": 0, "after": None})
    code, text = evaluate(folders["adamw"], sets, trained.parent)
    line.show(f"{name}: --eval of the last weights", (code, [t for t in text.splitlines() if "accuracy" in t]),
              f"Evaluation accuracy: {100 * found['accuracy']:.2f}%",
              code == 0 and f"Evaluation accuracy: {100 * found['accuracy']:.2f}%" in text.splitlines())


def resnet_beside_torchvision(line):
    """dpt's checkpoints of a small ResNet, of ResNet-18 and ResNet-50 open in torchvision (load_state_dict), and from
    them PyTorch has the same first gradients and running statistics (relative L2 1e-4), the same 20 losses (1e-4) and,
    in evaluation mode, the same accuracy."""
    peer_python("torchvision")
    write_images(line.folder / "images.bin", line.seed)
    line.command(f"dpt-worker, then $DPT_TORCH_PYTHON {PEER.relative_to(ROOT)} CHECKPOINT SPEC")
    for name, (sets, network) in NETWORKS.items():
        beside_torchvision(line, name, sets, network)


def digits(line):
    """deploy/digits, one command on a bare machine: a small ResNet reads at least 98 of 100 handwritten digits that it
    has not seen, within minutes."""
    example(line, "digits", "digits of val.bin, %", 98)
