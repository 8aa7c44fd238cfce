#!/usr/bin/env python3
"""Adapters that dpt saved and exported, in PEFT's hands.

    python3 peer_peft.py BASE CHECKPOINT ADAPTERS MERGED SPEC      (needs torch, transformers and peft)

Opens ADAPTERS and CHECKPOINT with PeftModel.from_pretrained over the model of BASE, CHECKPOINT with transformers alone,
which finds BASE by its adapter_config.json, and MERGED with from_pretrained. SPEC is JSON:
{"text": FILE, "seq_len": T}, or of a classifier, whose head BASE need not have, {"table": FILE, "seq_len": T, "labels":
N}, as peer_transformers.py reads them. Prints, as one line of JSON, {"model": the base's class, "tensors": n of the
adapters and the head, "trainable": how many numbers they have, "logits": the largest difference of logits on the text
or the table between ADAPTERS and MERGED, "checkpoint": the same between both ways to open CHECKPOINT and ADAPTERS,
"merged": the largest difference of a weight between MERGED and what PEFT merges, "loss": the mean loss of the adapters'
model}.
"""

import json
import sys

import peft
import torch
from peer_transformers import batch_of, load, logits_of, mean_loss


def compare(base, checkpoint, adapters, merged, spec):
    torch.set_num_threads(2)
    head = {"num_labels": spec["labels"], "pad_token_id": 0} if "table" in spec else {}
    model, saved = (peft.PeftModel.from_pretrained(load(base, spec, **head), f).eval() for f in (adapters, checkpoint))
    whole, found = load(merged, spec).eval(), load(checkpoint, spec, **head).eval()
    state, batch = peft.get_peft_model_state_dict(model), batch_of(spec)
    with torch.no_grad():
        logits = [logits_of(m, batch) for m in (model, whole, saved, found)]
        theirs = model.merge_and_unload().state_dict()
        ours = whole.state_dict()
        weights = max(float((theirs[name] - ours[name]).abs().max()) for name in ours)
    print(json.dumps({"model": type(whole).__name__, "tensors": len(state),
                      "trainable": sum(t.numel() for t in state.values()), "loss": float(mean_loss(logits[0], batch)),
                      "logits": float((logits[0] - logits[1]).abs().max()), "merged": weights,
                      "checkpoint": max(float((logits[0] - other).abs().max()) for other in logits[2:])}))


if __name__ == "__main__":
    if len(sys.argv) != 6:
        sys.exit(__doc__)
    compare(*sys.argv[1:5], json.loads(sys.argv[5]))
