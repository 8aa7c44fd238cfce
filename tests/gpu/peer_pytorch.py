#!/usr/bin/env python3
"""GPT-2 in PyTorch, with which dpt is compared: torch.compile, fused AdamW, scaled_dot_product_attention, bf16 autocast
over f32 parameters.

    peer_pytorch.py losses --weights DIR --tokens FILE.bin --steps 50 …   the loss of every step, from a checkpoint
    peer_pytorch.py speed --steps 12 …                                    tokens/s, the median step after the warm-up

Prints one line of JSON. A step takes `--slots` micro-batches of `--batch` sequences of `--seq` tokens; in `losses` it
takes all sequences of the file, so their order does not matter. Written for tests/acceptance gpu.
"""

import argparse
import json
import math
import statistics
import struct
import time
from array import array
from contextlib import nullcontext
from pathlib import Path

import torch
from torch.nn import functional as F

WARMUP_STEPS = 3
SHARD_HEADER_BYTES = 1024
BETAS, EPS, DECAY, CLIP = (0.9, 0.95), 1e-8, 0.1, 1.0


class Block(torch.nn.Module):
    def __init__(self, embd, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = torch.nn.LayerNorm(embd), torch.nn.LayerNorm(embd)
        self.c_attn, self.c_proj = torch.nn.Linear(embd, 3 * embd), torch.nn.Linear(embd, embd)
        self.c_fc, self.c_back = torch.nn.Linear(embd, 4 * embd), torch.nn.Linear(4 * embd, embd)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (z.view(b, t, self.heads, c // self.heads).transpose(1, 2)
                   for z in self.c_attn(self.ln_1(x)).split(c, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.c_back(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Gpt2(torch.nn.Module):
    def __init__(self, layers, heads, embd, context, vocab):
        super().__init__()
        self.wte, self.wpe = torch.nn.Embedding(vocab, embd), torch.nn.Embedding(context, embd)
        self.h = torch.nn.ModuleList(Block(embd, heads) for _ in range(layers))
        self.ln_f = torch.nn.LayerNorm(embd)
        torch.nn.init.normal_(self.wte.weight, std=0.02)
        torch.nn.init.normal_(self.wpe.weight, std=0.02)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.h:
            x = block(x)
        return self.loss(x, targets)

    def loss(self, x, targets):
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), targets.reshape(-1))

    def compile_parts(self):
        """Compiles a block once for all blocks, and the head: a deep model as a whole takes minutes to compile."""
        for block in self.h:
            block.compile()
        self.loss = torch.compile(self.loss)


def safetensors_in(folder):
    """{name: f32 tensor} of all safetensors files of a checkpoint."""
    found = {}
    for path in sorted(Path(folder).glob("*.safetensors")):
        data = path.read_bytes()
        size = struct.unpack_from("<Q", data)[0]
        for name, entry in json.loads(data[8:8 + size]).items():
            if name == "__metadata__" or entry["dtype"] != "F32":
                continue
            begin, end = (8 + size + offset for offset in entry["data_offsets"])
            found[name] = torch.frombuffer(bytearray(data[begin:end]), dtype=torch.float32).reshape(entry["shape"])
    return found


# Hugging Face's names after "transformer.h.N."; its matrices are (in, out).
PARTS = {"attn.c_attn": "c_attn", "attn.c_proj": "c_proj", "mlp.c_fc": "c_fc", "mlp.c_proj": "c_back", "ln_1": "ln_1",
         "ln_2": "ln_2"}


def load(model, folder):
    mine = dict(model.named_parameters())
    for name, weight in safetensors_in(folder).items():
        name = name.removeprefix("transformer.")
        part, _, kind = name.rpartition(".")
        if part.startswith("h."):
            _, layer, rest = part.split(".", 2)
            matrix = kind == "weight" and not rest.startswith("ln_")
            part, weight = f"h.{layer}.{PARTS[rest]}", weight.T if matrix else weight
        parameter = mine.pop(f"{part}.{kind}", None)
        if parameter is not None:  # a checkpoint has more than weights, and may have the tied head
            with torch.no_grad():
                parameter.copy_(weight)
    if mine:
        raise SystemExit(f"{folder} lacks {sorted(mine)}")


def optimizer_of(model, lr, fused):
    matrices = [p for p in model.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if p.dim() != 2]
    return torch.optim.AdamW([{"params": matrices, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}],
                             lr=lr, betas=BETAS, eps=EPS, fused=fused)


def read_shard(path, seq):
    """(sequences, seq + 1) tokens of a .bin shard; the last token of one is the first of the next."""
    tokens = array("H", Path(path).read_bytes()[SHARD_HEADER_BYTES:])
    n = (len(tokens) - 1) // seq
    return torch.tensor([tokens[i * seq:i * seq + seq + 1] for i in range(n)], dtype=torch.long)


def step(model, run, optimizer, batches, autocast):
    optimizer.zero_grad(set_to_none=True)
    total = 0.0
    for tokens, targets in batches:
        with autocast():
            loss = run(tokens, targets)
        (loss / len(batches)).backward()
        total = total + loss.detach() / len(batches)
    torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    optimizer.step()
    return total


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("losses", "speed"))
    sizes = {"layers": 12, "heads": 12, "embd": 768, "context": 1024, "vocab": 50257, "batch": 16, "slots": 1,
             "seq": 1024, "steps": 12}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--warmup", type=int, default=0, help="steps over which the rate rises to --lr")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="bf16")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--compile", choices=("on", "parts", "off"), default="on")
    parser.add_argument("--weights")
    parser.add_argument("--tokens")
    a = parser.parse_args()

    torch.manual_seed(1)
    model = Gpt2(a.layers, a.heads, a.embd, a.context, a.vocab).to(a.device)
    if a.weights:
        load(model, a.weights)
    run = torch.compile(model) if a.compile == "on" else model
    if a.compile == "parts":
        model.compile_parts()
    optimizer = optimizer_of(model, a.lr, a.device == "cuda")
    autocast = nullcontext if a.precision == "fp32" else lambda: torch.autocast(a.device, torch.bfloat16)
    wait = torch.cuda.synchronize if a.device == "cuda" else lambda: None
    if a.what == "losses":
        sequences = read_shard(a.tokens, a.seq)
        usable = len(sequences) // a.batch * a.batch
        sequences = sequences[:usable].to(a.device)
    else:
        sequences = torch.randint(a.vocab, (a.batch * a.slots, a.seq + 1), device=a.device)
    batches = [(part[:, :-1].contiguous(), part[:, 1:].contiguous()) for part in sequences.split(a.batch)]

    losses, seconds = [], []
    for number in range(1, a.steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = a.lr * min(1, number / max(1, a.warmup))
        wait()
        began = time.monotonic()
        losses.append(step(model, run, optimizer, batches, autocast))
        wait()
        seconds.append(time.monotonic() - began)
    report = {"torch": torch.__version__, "losses": [float(loss) for loss in losses]}
    if a.what == "speed":
        timed = statistics.median(seconds[WARMUP_STEPS:])
        report.update(step_ms=1e3 * timed, tokens_per_s=a.batch * a.slots * a.seq / timed)
    if a.device == "cuda":
        report.update(gpu=torch.cuda.get_device_name(), peak_bytes=torch.cuda.max_memory_allocated())
    if not all(math.isfinite(loss) for loss in report["losses"]):
        raise SystemExit(f"losses are not finite: {report['losses']}")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
