#!/usr/bin/env python3
"""torchvision beside dpt: opens a checkpoint of dpt and prints, as one line of JSON, what PyTorch computes from it.

    python3 peer_torchvision.py CHECKPOINT SPEC        (needs torch, torchvision and safetensors)

SPEC is JSON: {"images": FILE, "side": S, "network": NAME or [LAYERS, WIDTH], "labels": N, "steps": N, "lr": …,
"min_lr": …, "momentum": …, "weight_decay": …, "grad_clip": …, "after": CHECKPOINT or null}. The file has records as
CIFAR-10's of S x S pixels, normalised as CIFAR-10 if S is 32, else as ImageNet; every step trains on all of them in one
micro-batch. NAME is torchvision's; [LAYERS, WIDTH] is the small ResNet of three stages. PyTorch computes in double
precision, and in single precision how far that is from it ("own"). Prints {"model", "parameters", "losses": [N], "own",
"gradients": {"worst", "tensor", "own"} (relative L2 of the first step's against weights before - after, where dpt made
one step of plain SGD with a rate of one to "after"; of the running statistics after that step, too); and of
the weights of CHECKPOINT in evaluation mode "loss", "own_loss", "accuracy" and "logprobs" (of the first image, by
label)}.
"""

import json
import math
import sys
from pathlib import Path

import torch
import torchvision
from safetensors.torch import load_file
from torchvision.models.resnet import BasicBlock

CIFAR10 = (.4914, .4822, .4465), (.2023, .1994, .2010)
IMAGENET = (.485, .456, .406), (.229, .224, .225)


class SmallResNet(torch.nn.Module):
    """A stem of 3 x 3, three stages of layers / 3 basic blocks with one, two and four times the width."""

    def __init__(self, layers, width, labels):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.bn1 = torch.nn.BatchNorm2d(width)
        before = width
        for stage in range(3):
            blocks = []
            for i in range(layers // 3):
                stride = 2 if stage and not i else 1
                after = width << stage
                shortcut = None
                if stride != 1 or before != after:
                    shortcut = torch.nn.Sequential(torch.nn.Conv2d(before, after, 1, stride, bias=False),
                                                   torch.nn.BatchNorm2d(after))
                blocks.append(BasicBlock(before, after, stride, shortcut))
                before = after
            setattr(self, f"layer{stage + 1}", torch.nn.Sequential(*blocks))
        self.fc = torch.nn.Linear(before, labels)

    def forward(self, x):
        x = torch.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.fc(x.mean((2, 3)))


def build(spec):
    if isinstance(spec["network"], list):
        return SmallResNet(*spec["network"], spec["labels"])
    return getattr(torchvision.models, spec["network"])(num_classes=spec["labels"])


def load(folder, spec):
    tensors = {}
    for path in Path(folder).glob("*.safetensors"):
        tensors.update(load_file(path))
    model = build(spec)
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    # PyTorch counts the batches that a running mean has seen, and does not use the count.
    if unexpected or any(not name.endswith("num_batches_tracked") for name in missing):
        sys.exit(f"missing tensors {missing}, unexpected {unexpected}")
    return model


def batch_of(spec):
    side = spec["side"]
    data = torch.frombuffer(bytearray(Path(spec["images"]).read_bytes()), dtype=torch.uint8).view(-1, 1 + 3 * side**2)
    images = data[:, 1:].reshape(-1, 3, side, side).float() / 255
    mean, std = (torch.tensor(each).view(3, 1, 1) for each in (CIFAR10 if side == 32 else IMAGENET))
    return (images - mean) / std, data[:, 0].long()


def loss_of(model, batch):
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])


def losses(folder, spec, dtype):
    model = load(folder, spec).train().to(dtype)
    groups = [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": spec["weight_decay"]},
              {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0}]
    optimizer = torch.optim.SGD(groups, lr=spec["lr"], momentum=spec["momentum"])
    (images, labels), found = batch_of(spec), []
    for step in range(spec["steps"]):
        optimizer.zero_grad()
        loss = loss_of(model, (images.to(dtype), labels))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), spec["grad_clip"])
        part = step / (spec["steps"] - 1)
        for group in optimizer.param_groups:
            group["lr"] = spec["min_lr"] + (spec["lr"] - spec["min_lr"]) * 0.5 * (1.0 + math.cos(math.pi * part))
        optimizer.step()
        found.append(float(loss.detach()))
    return found


def first_step(folder, spec, dtype):
    """Gradients and running statistics of a step."""
    model = load(folder, spec).train().to(dtype)
    for module in model.modules():  # the step changed them, although it left the weights unchanged
        if isinstance(module, torch.nn.BatchNorm2d):
            module.reset_running_stats()
    images, labels = batch_of(spec)
    loss_of(model, (images.to(dtype), labels)).backward()
    return {**{name: p.grad.double() for name, p in model.named_parameters()},
            **{name: t.double() for name, t in model.named_buffers() if not name.endswith("num_batches_tracked")}}


def worst_of(found, exact):
    relative = {name: float((found[name] - each).norm() / each.norm()) for name, each in exact.items()}
    worst = max(relative, key=relative.get)
    return {"worst": relative[worst], "tensor": worst}


def gradients(folder, spec):
    """Compares the weights' change in dpt's step and its running statistics with double precision; PyTorch's, too."""
    before, after = load(folder, spec), load(spec["after"], spec)
    weights, left = dict(before.named_parameters()), dict(after.named_parameters())
    taken = {name: (p.detach() - left[name].detach()).double() for name, p in weights.items()}
    ours = {**taken, **{name: t.double() for name, t in after.named_buffers()}}
    exact = first_step(folder, spec, torch.float64)
    return {**worst_of(ours, exact), "own": worst_of(first_step(folder, spec, torch.float32), exact)["worst"]}


def main(folder, spec):
    torch.set_num_threads(2)
    model = load(folder, spec).eval()
    images, labels = batch_of(spec)
    with torch.no_grad():
        own = float(loss_of(model, (images, labels)))
        logits = model.double()(images.double())
    loss = float(torch.nn.functional.cross_entropy(logits, labels))
    found = {"model": type(model).__name__, "parameters": sum(p.numel() for p in model.parameters()), "loss": loss,
             "own_loss": abs(own - loss), "accuracy": float((logits.argmax(1) == labels).double().mean()),
             "logprobs": torch.log_softmax(logits[0], 0).tolist()}
    if spec["steps"]:
        found["losses"] = losses(folder, spec, torch.float64)
        own = losses(folder, spec, torch.float32)
        found["own"] = max(abs(a - b) for a, b in zip(found["losses"], own))
    if spec["after"]:
        found["gradients"] = gradients(folder, spec)
    print(json.dumps(found))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(sys.argv[1], json.loads(sys.argv[2]))
