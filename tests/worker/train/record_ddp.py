#!/usr/bin/env python3
"""Records the losses of PyTorch's DistributedDataParallel for test_rank_pytorch.c to be held against.

    test_rank_pytorch --dump /tmp/run.bin
    python3 record_ddp.py /tmp/run.bin > ddp_losses.inc      (needs torch with gloo, any version from 1.13)

Two processes of one thread train in fp32 from the dumped weights on the dumped samples: each takes half of a step's
micro-batches, all but the last of them under no_sync(), clips by the global norm and steps. The model is the one of
tests/worker/model/reference.py.
"""

import math
import os
import struct
import sys
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

WORLD = 2
RUNS = [("adamw", False, 1e-2), ("sgd", False, 1e-1), ("sgd", True, 1e-1)]  # optimizer, nesterov, lr; min_lr a tenth
FIELDS = "layer head embd context vocab b t slots steps warmup".split()


class Run:
    """What `test_rank_pytorch --dump` wrote."""

    def __init__(self, path):
        self.data, self.at = open(path, "rb").read(), 0
        for name, value in zip(FIELDS, self.take("10I")):
            setattr(self, name, value)
        self.beta1, self.beta2, self.eps, self.decay, self.momentum, self.clip = self.take("6d")
        self.weights = {}
        for _ in range(self.take("I")[0]):
            name = self.take(f"{self.take('H')[0]}s")[0].decode()
            n = self.take("I")[0]
            self.weights[name] = torch.tensor(self.take(f"{n}f"))
        shape = (self.steps, self.slots, 2, self.b, self.t)
        self.samples = torch.tensor(self.take(f"{math.prod(shape)}i"), dtype=torch.long).reshape(shape)
        assert self.at == len(self.data)

    def take(self, form):
        values = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return values

    def shape(self, name):
        c = self.embd
        rows = {"wte": (self.vocab, c), "wpe": (self.context, c), "c_attn": (c, 3 * c), "c_fc": (c, 4 * c)}
        kind = name.split(".")[-2]
        if name.endswith("bias") or kind.startswith("ln_"):
            return (-1,)
        return (4 * c, c) if name.endswith("mlp.c_proj.weight") else rows.get(kind, (c, c))


class Gpt2(torch.nn.Module):
    def __init__(self, run):
        super().__init__()
        self.run = run
        self.p = torch.nn.ParameterDict(
            {n.replace(".", "/"): torch.nn.Parameter(w.reshape(run.shape(n)).clone()) for n, w in run.weights.items()})

    def __getitem__(self, name):
        return self.p[("transformer." + name).replace(".", "/")]

    def norm(self, x, name):
        return torch.nn.functional.layer_norm(x, (self.run.embd,), self[name + ".weight"], self[name + ".bias"], 1e-5)

    def linear(self, x, name):
        return x @ self[name + ".weight"] + self[name + ".bias"]

    def attention(self, x, h):
        heads, size = self.run.head, self.run.embd // self.run.head
        q, k, v = (z.view(*z.shape[:2], heads, size).transpose(1, 2)
                   for z in self.linear(x, h + "attn.c_attn").split(self.run.embd, dim=2))
        future = torch.triu(torch.ones(x.shape[1], x.shape[1], dtype=torch.bool), 1)
        scores = (q @ k.transpose(2, 3) / math.sqrt(size)).masked_fill(future, -math.inf)
        return self.linear((torch.softmax(scores, dim=3) @ v).transpose(1, 2).reshape(x.shape), h + "attn.c_proj")

    def forward(self, tokens, targets):
        x = self["wte.weight"][tokens] + self["wpe.weight"][: tokens.shape[1]]
        for i in range(self.run.layer):
            h = f"h.{i}."
            x = x + self.attention(self.norm(x, h + "ln_1"), h)
            y = self.linear(self.norm(x, h + "ln_2"), h + "mlp.c_fc")
            y = 0.5 * y * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (y + 0.044715 * y**3)))
            x = x + self.linear(y, h + "mlp.c_proj")
        logits = self.norm(x, "ln_f") @ self["wte.weight"].T
        return torch.nn.functional.cross_entropy(logits.reshape(-1, self.run.vocab), targets.reshape(-1))


def rate(run, step, lr):
    if step < run.warmup:
        return lr * (step + 1) / run.warmup
    part = (step - run.warmup) / (run.steps - 1 - run.warmup)
    return lr / 10 + (lr - lr / 10) * 0.5 * (1.0 + math.cos(math.pi * part))


def train(run, rank, name, nesterov, lr):
    model = DistributedDataParallel(Gpt2(run))
    groups = [{"params": [p for p in model.parameters() if (p.dim() == 2) == matrix],
               "weight_decay": run.decay if matrix else 0.0} for matrix in (True, False)]
    if name == "adamw":
        optimizer = torch.optim.AdamW(groups, lr=lr, betas=(run.beta1, run.beta2), eps=run.eps)
    else:
        optimizer = torch.optim.SGD(groups, lr=lr, momentum=run.momentum, nesterov=nesterov)
    mine, losses = run.slots // WORLD, []
    for step in range(run.steps):
        optimizer.zero_grad()
        total = torch.zeros(1)
        for i in range(mine):
            tokens, targets = run.samples[step, rank * mine + i]
            with nullcontext() if i == mine - 1 else model.no_sync():
                loss = model(tokens, targets)
                (loss / mine).backward()
            total += loss.detach() / run.slots
        torch.nn.utils.clip_grad_norm_(model.parameters(), run.clip)
        for group in optimizer.param_groups:
            group["lr"] = rate(run, step, lr)
        optimizer.step()
        dist.all_reduce(total)
        losses.append(float(total))
    return losses


def main(rank, path):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=WORLD)
    run = Run(path)
    results = [train(run, rank, *settings) for settings in RUNS]
    if rank == 0:
        print(f"/* Made by record_ddp.py with torch {torch.__version__}, gloo, {WORLD} processes. */")
        for (name, nesterov, lr), losses in zip(RUNS, results):
            print(f'{{"{name}", {int(nesterov)}, {lr},')
            for at in range(0, len(losses), 6):
                print("  " + ("{" if at == 0 else " ") + ", ".join(f"{x:.9g}" for x in losses[at:at + 6])
                      + ("}}," if at + 6 >= len(losses) else ","))
    dist.destroy_process_group()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    mp.spawn(main, args=(sys.argv[1],), nprocs=WORLD)
