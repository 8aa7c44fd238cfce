#!/usr/bin/env python3
"""PyTorch's training steps beside dpt's: prints, as one line of JSON, the seconds of each.

    python3 peer_speed.py SPEC        (needs torch; transformers or torchvision)

SPEC is JSON: {"network": "gpt2", "llama" or a name of torchvision, "config": {…} of transformers, "labels": N or 0,
"batch": B, "length": T (of tokens; else the side of an image), "steps": N, "compile": BOOL, "threads": N}. A step is as
in dpt: forward, backward, the gradients' norm and clipping, AdamW; fp32, random weights and data. Prints {"seconds":
[N], "flops": of the products and convolutions of a step, counted by PyTorch}.
"""

import json
import sys
import time

import torch
from torch.utils.flop_counter import FlopCounterMode


def build(spec):
    """The model, its inputs, and the loss of both."""
    batch, length = spec["batch"], spec["length"]
    if spec["network"] not in ("gpt2", "llama"):
        import torchvision
        model = getattr(torchvision.models, spec["network"])(num_classes=spec["labels"])
        if length < 64:  # the stem for small images
            model.conv1 = torch.nn.Conv2d(3, 64, 3, padding=1, bias=False)
            model.maxpool = torch.nn.Identity()
        images, labels = torch.randn(batch, 3, length, length), torch.randint(spec["labels"], (batch,))
        images = images.contiguous(memory_format=torch.channels_last)
        return (model.to(memory_format=torch.channels_last),
                lambda m: torch.nn.functional.cross_entropy(m(images), labels))
    import transformers
    kind = {"gpt2": "GPT2", "llama": "Llama"}[spec["network"]]
    config = getattr(transformers, f"{kind}Config")(**spec["config"], use_cache=False, pad_token_id=0)
    tokens = torch.randint(1, 256, (batch, length))
    if spec["labels"]:
        config.num_labels = spec["labels"]
        labels = torch.randint(spec["labels"], (batch,))
        model = getattr(transformers, f"{kind}ForSequenceClassification")(config)
        return model, lambda m: torch.nn.functional.cross_entropy(m(tokens).logits, labels)
    model = getattr(transformers, f"{kind}ForCausalLM" if kind == "Llama" else "GPT2LMHeadModel")(config)
    targets = torch.randint(256, (batch * length,))
    return model, lambda m: torch.nn.functional.cross_entropy(m(tokens).logits.view(batch * length, -1), targets)


def main(spec):
    torch.set_num_threads(spec["threads"])
    model, loss_of = build(spec)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    with FlopCounterMode(display=False) as counter:
        loss_of(model).backward()
    called = torch.compile(model) if spec["compile"] else model
    seconds = []
    for _ in range(spec["steps"]):
        began = time.monotonic()
        optimizer.zero_grad()
        loss_of(called).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        seconds.append(time.monotonic() - began)
    print(json.dumps({"seconds": seconds, "flops": counter.get_total_flops()}))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(json.loads(sys.argv[1]))
