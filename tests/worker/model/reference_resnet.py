"""Residual networks of torch's tensor operations, beside torchvision's blocks: a part of reference.py."""

import numpy as np
import torch
import torchvision


class Resnet:
    """A residual network; with `deep` it has bottlenecks and the stem for large images."""

    spread, pace, clip = 0.3, 0.2, 1.0  # as Gpt2's; of convolutions times 1/sqrt(fan in)

    def __init__(self, width, stages, side, deep, labels=5):
        self.width, self.stages, self.side, self.deep, self.labels = width, stages, side, deep, labels
        self.batch_stats, self.evaluates = {}, False
        if deep:
            self.pace, self.clip = 0.05, 10.5

    def config(self):
        return (f"model: {{name: resnet, width: {self.width}, stages: {self.stages}, labels: {self.labels}, "
                f"stem: {'imagenet' if self.deep else 'cifar'}, block: {'bottleneck' if self.deep else 'basic'}}}")

    def blocks(self):
        """Name, input channels, width and stride of each block."""
        channels = self.width
        for stage, count in enumerate(self.stages):
            for i in range(count):
                width = self.width << stage
                yield f"layer{stage + 1}.{i}.", channels, width, 2 if stage and not i else 1
                channels = width * (4 if self.deep else 1)

    def layers(self, channels, width, stride):
        """Channels in and out, kernel and stride of a block's convolutions."""
        if self.deep:
            return [(channels, width, 1, 1), (width, width, 3, stride), (width, 4 * width, 1, 1)]
        return [(channels, width, 3, stride), (width, width, 3, 1)]

    def shapes(self):
        """Names and shapes in the order of dpt's flat vector."""
        def layer(conv, norm, size_in, out, kernel):
            yield conv + ".weight", (out, size_in, kernel, kernel)
            for name in ("weight", "bias", "running_mean", "running_var"):
                yield f"{norm}.{name}", (out,)

        yield from layer("conv1", "bn1", 3, self.width, 7 if self.deep else 3)
        out = self.width
        for name, channels, width, stride in self.blocks():
            for i, (size_in, out, kernel, _) in enumerate(self.layers(channels, width, stride)):
                yield from layer(f"{name}conv{i + 1}", f"{name}bn{i + 1}", size_in, out, kernel)
            if stride > 1 or channels != out:
                yield from layer(name + "downsample.0", name + "downsample.1", channels, out, 1)
        yield "fc.weight", (self.labels, out)
        yield "fc.bias", (self.labels,)

    def norm(self, x, p, name):
        mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3), unbiased=False)
        n = x.numel() // x.shape[1]
        self.batch_stats[name + ".running_mean"] = mean.detach()
        self.batch_stats[name + ".running_var"] = var.detach() * n / (n - 1)
        if self.evaluates:
            mean, var = p[name + ".running_mean"], p[name + ".running_var"]
        mean, scale = mean[:, None, None], p[name + ".weight"] / torch.sqrt(var + 1e-5)
        return (x - mean) * scale[:, None, None] + p[name + ".bias"][:, None, None]

    def conv(self, x, p, name, stride):
        weight = p[name + ".weight"]
        return torch.nn.functional.conv2d(x, weight, stride=stride, padding=weight.shape[2] // 2)

    def logits(self, p, images):
        """Logits of images (B, S, S, 3)."""
        x = self.conv(images.permute(0, 3, 1, 2), p, "conv1", 2 if self.deep else 1)
        x = self.norm(x, p, "bn1").relu()
        if self.deep:
            x = torch.nn.functional.max_pool2d(x, 3, stride=2, padding=1)
        for name, channels, width, stride in self.blocks():
            y, layers = x, self.layers(channels, width, stride)
            for i, (_, _, _, step) in enumerate(layers):
                y = self.norm(self.conv(y, p, f"{name}conv{i + 1}", step), p, f"{name}bn{i + 1}")
                y = y.relu() if i + 1 < len(layers) else y
            if name + "downsample.0.weight" in p:
                x = self.norm(self.conv(x, p, name + "downsample.0", stride), p, name + "downsample.1")
            x = (x + y).relu()
        return x.mean((2, 3)) @ p["fc.weight"].T + p["fc.bias"]

    def losses(self, p, slots):
        """The mean loss of the slots (G, B, columns), each computed separately, and the number of correct samples."""
        loss, right, stats = 0.0, 0, {}
        for slot in slots:
            images, targets = slot[:, :-1].reshape(-1, self.side, self.side, 3), slot[:, -1].long()
            logits = self.logits(p, images)
            loss = loss + torch.nn.functional.cross_entropy(logits, targets) / len(slots)
            right += int((logits.argmax(1) == targets).sum())
            for name, value in self.batch_stats.items():
                stats[name] = stats.get(name, 0.0) + value / len(slots)
        self.batch_stats = stats
        return loss, right

    def evaluation(self, p, slots):
        self.evaluates = True
        with torch.no_grad():
            result = self.losses(p, slots)
        self.evaluates = False
        return result

    def torchvision(self):
        """The same network of torchvision's blocks."""
        kind = torchvision.models.resnet.Bottleneck if self.deep else torchvision.models.resnet.BasicBlock
        net = torch.nn.Module()
        net.conv1 = torch.nn.Conv2d(3, self.width, 7 if self.deep else 3, 2 if self.deep else 1, 3 if self.deep else 1,
                                    bias=False)
        net.bn1, stages, out = torch.nn.BatchNorm2d(self.width), {}, 0
        for name, channels, width, stride in self.blocks():
            out = width * kind.expansion
            shortcut = None
            if stride > 1 or channels != out:
                shortcut = torch.nn.Sequential(torch.nn.Conv2d(channels, out, 1, stride, bias=False),
                                               torch.nn.BatchNorm2d(out))
            stages.setdefault(name.split(".")[0], []).append(kind(channels, width, stride, shortcut))
        for name, blocks in stages.items():
            setattr(net, name, torch.nn.Sequential(*blocks))
        net.pool = torch.nn.MaxPool2d(3, 2, 1) if self.deep else torch.nn.Identity()
        net.fc = torch.nn.Linear(out, self.labels)

        def forward(x):
            x = net.pool(net.bn1(net.conv1(x)).relu())
            for name in stages:
                x = getattr(net, name)(x)
            return net.fc(x.mean((2, 3)))

        return net, forward


def check_torchvision(model, weights, slots):
    """torchvision's blocks have the same losses in training and in evaluation from the same weights."""
    theirs, forward = model.torchvision()
    theirs.double()
    state = {n: torch.tensor(w.astype(np.float64)) for n, w in weights.items()}
    theirs.load_state_dict(state)
    images = slots[..., :-1].reshape(*slots.shape[:2], model.side, model.side, 3).permute(0, 1, 4, 2, 3)
    targets = slots[..., -1].long()
    with torch.no_grad():
        theirs.eval()
        evaluated = torch.nn.functional.cross_entropy(forward(images.flatten(0, 1)), targets.flatten())
        theirs.train()
        trained = sum(torch.nn.functional.cross_entropy(forward(x), y) for x, y in zip(images, targets)) / len(slots)
        ours = float(model.losses(state, slots)[0]), float(model.evaluation(state, slots)[0])
    print(f"torchvision: losses {float(trained):.9f}, {float(evaluated):.9f}, here {ours[0]:.9f}, {ours[1]:.9f}")
    assert abs(float(trained) - ours[0]) < 1e-9 and abs(float(evaluated) - ours[1]) < 1e-9
