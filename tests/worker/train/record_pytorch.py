#!/usr/bin/env python3
"""Records the losses of PyTorch's DDP and FSDP for rank_pytorch_test.c and the acceptance line to be held against.

    test_worker_train_rank_pytorch --dump /tmp/run.bin
    python3 record_pytorch.py /tmp/run.bin recorded/pytorch_losses.json     (a torch with gloo whose FSDP runs on CPUs)

Two processes of one thread train in fp32 from the dumped weights on the dumped samples: each takes half of a step's
micro-batches, clips by the global norm and steps. DDP keeps gradients back with no_sync() but for the last micro-batch;
FSDP, both FullyShardedDataParallel and fully_shard, with blocks as its units, scatters those of every micro-batch. The
model computes what tests/worker/model/reference.py does.
"""

import json
import math
import os
import struct
import sys
import tempfile
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.nn.parallel import DistributedDataParallel

WORLD = 2
OPTIMIZERS = [("adamw", False, 1e-2), ("sgd", False, 1e-1), ("sgd", True, 1e-1)]  # name, nesterov, lr; min_lr a tenth
FIELDS = "layer head embd context vocab b t slots steps warmup".split()


class Run:
    """The run that `test_worker_train_rank_pytorch --dump` wrote."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self.data, self.at = file.read(), 0
        for name, value in zip(FIELDS, self.take("10I")):
            setattr(self, name, value)
        self.beta1, self.beta2, self.eps, self.decay, self.momentum, self.clip = self.take("6d")
        self.weights = {}
        for _ in range(self.take("I")[0]):
            name = self.take(f"{self.take('H')[0]}s")[0].decode()
            n = self.take("I")[0]
            self.weights[name.removeprefix("transformer.")] = torch.tensor(self.take(f"{n}f"))
        shape = (self.steps, self.slots, 2, self.b, self.t)
        self.samples = torch.tensor(self.take(f"{math.prod(shape)}i"), dtype=torch.long).reshape(shape)
        assert self.at == len(self.data)

    def take(self, form):
        values = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return values


def is_matrix(name):
    """Whether a parameter is a matrix, by its name, which a wrapper may have given a prefix: biases and norms are
    none."""
    last = name.split(".")[-1]
    return not last.endswith("_bias") and not last.startswith("ln_")


class Part(torch.nn.Module):
    """Some of the run's parameters, under their names with _ in place of dots."""

    def __init__(self, run, prefix, shapes):
        super().__init__()
        self.run = run
        for name, shape in shapes.items():
            weight = run.weights[prefix + name].reshape(shape).clone()
            self.register_parameter(name.replace(".", "_"), torch.nn.Parameter(weight))

    def norm(self, x, name):
        return torch.nn.functional.layer_norm(x, (self.run.embd,), getattr(self, name + "_weight"),
                                              getattr(self, name + "_bias"), 1e-5)

    def linear(self, x, name):
        return x @ getattr(self, name + "_weight") + getattr(self, name + "_bias")


class Block(Part):
    def __init__(self, run, i):
        c = run.embd
        matrices = {"attn.c_attn": (c, 3 * c), "attn.c_proj": (c, c), "mlp.c_fc": (c, 4 * c), "mlp.c_proj": (4 * c, c)}
        shapes = {f"{name}.weight": shape for name, shape in matrices.items()}
        shapes.update({f"{name}.bias": shape[1:] for name, shape in matrices.items()})
        shapes.update({f"{ln}.{kind}": (c,) for ln in ("ln_1", "ln_2") for kind in ("weight", "bias")})
        super().__init__(run, f"h.{i}.", shapes)

    def attention(self, x):
        heads, size = self.run.head, self.run.embd // self.run.head
        q, k, v = (z.view(*z.shape[:2], heads, size).transpose(1, 2)
                   for z in self.linear(x, "attn_c_attn").split(self.run.embd, dim=2))
        future = torch.triu(torch.ones(x.shape[1], x.shape[1], dtype=torch.bool), 1)
        scores = (q @ k.transpose(2, 3) / math.sqrt(size)).masked_fill(future, -math.inf)
        return self.linear((torch.softmax(scores, dim=3) @ v).transpose(1, 2).reshape(x.shape), "attn_c_proj")

    def forward(self, x):
        x = x + self.attention(self.norm(x, "ln_1"))
        y = self.linear(self.norm(x, "ln_2"), "mlp_c_fc")
        y = 0.5 * y * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (y + 0.044715 * y**3)))
        return x + self.linear(y, "mlp_c_proj")


class Gpt2(Part):
    def __init__(self, run):
        c = run.embd
        super().__init__(run, "", {"wte.weight": (run.vocab, c), "wpe.weight": (run.context, c), "ln_f.weight": (c,),
                                   "ln_f.bias": (c,)})
        self.h = torch.nn.ModuleList(Block(run, i) for i in range(run.layer))
        assert sum(1 for _ in self.parameters()) == len(run.weights)

    def forward(self, tokens, targets):
        x = self.wte_weight[tokens] + self.wpe_weight[: tokens.shape[1]]
        for block in self.h:
            x = block(x)
        logits = self.norm(x, "ln_f") @ self.wte_weight.T
        return torch.nn.functional.cross_entropy(logits.reshape(-1, self.run.vocab), targets.reshape(-1))


# What each peer makes of a model: the model, and what goes round a micro-batch that is not the step's last.

def ddp(model):
    model = DistributedDataParallel(model)
    return model, model.no_sync


def fsdp1(sharding):
    def wrap(model):
        options = {"sharding_strategy": sharding, "use_orig_params": True, "device_id": torch.device("cpu")}
        for i, block in enumerate(model.h):
            model.h[i] = FullyShardedDataParallel(block, **options)
        return FullyShardedDataParallel(model, **options), nullcontext
    return wrap


def fsdp2(reshard_after_forward):
    def wrap(model):
        mesh = init_device_mesh("cpu", (WORLD,))
        for unit in [*model.h, model]:
            fully_shard(unit, mesh=mesh, reshard_after_forward=reshard_after_forward)
        return model, nullcontext
    return wrap


PEERS = {
    "DistributedDataParallel": ddp,
    "FullyShardedDataParallel FULL_SHARD": fsdp1(ShardingStrategy.FULL_SHARD),
    "FullyShardedDataParallel SHARD_GRAD_OP": fsdp1(ShardingStrategy.SHARD_GRAD_OP),
    "fully_shard": fsdp2(True),
    "fully_shard reshard_after_forward=False": fsdp2(False),
}


def clip(model, bound):
    if isinstance(model, FullyShardedDataParallel):
        model.clip_grad_norm_(bound)
    else:
        torch.nn.utils.clip_grad_norm_(model.parameters(), bound)


def rate(run, step, lr):
    if step < run.warmup:
        return lr * (step + 1) / run.warmup
    part = (step - run.warmup) / (run.steps - 1 - run.warmup)
    return lr / 10 + (lr - lr / 10) * 0.5 * (1.0 + math.cos(math.pi * part))


def train(run, rank, wrap, name, nesterov, lr):
    model, kept_back = wrap(Gpt2(run))
    groups = [{"params": [p for n, p in model.named_parameters() if is_matrix(n) == matrix],
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
            with nullcontext() if i == mine - 1 else kept_back():
                loss = model(tokens, targets)
                (loss / mine).backward()
            total += loss.detach() / run.slots
        clip(model, run.clip)
        for group in optimizer.param_groups:
            group["lr"] = rate(run, step, lr)
        optimizer.step()
        dist.all_reduce(total)
        losses.append(float(total))
    return losses


def main(rank, meeting, dumped, target):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=WORLD)
    run = Run(dumped)
    runs = [{"peer": peer, "optimizer": name, "nesterov": nesterov, "lr": lr,
             "losses": train(run, rank, wrap, name, nesterov, lr)}
            for name, nesterov, lr in OPTIMIZERS for peer, wrap in PEERS.items()]
    if rank == 0:
        record = {"made_by": "record_pytorch.py of pytorch_run.yaml", "torch": torch.__version__, "backend": "gloo",
                  "device": "cpu", "processes": WORLD, "slots": run.slots, "micro_batch": run.b, "steps": run.steps,
                  "runs": runs}
        text = json.dumps(record, indent=1)
        with open(target, "w") as file:
            file.write(text + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(main, args=(os.path.join(folder, "meeting"), *sys.argv[1:]), nprocs=WORLD)
