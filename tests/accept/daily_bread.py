"""Topic daily-bread: what first light built becomes something one would use every day and trust."""

from accept.first_light import one_hash
from accept.fuzz import fuzzed
from accept.scaling import allreduce_beside_gloo, weak_scaling
from accept.soak import soak
from accept.speed import shares_124m
from accept.tokens import bpe_ids, bpe_speed
from accept.validation import one_val_loss


def one_hash_bf16(line):
    """First-light's hash matrix in bf16: worlds 1 to 4, undisturbed and with kills and joins, one weights_hash."""
    one_hash(line, train__precision="bf16")


LINES = [
    one_hash_bf16,
    shares_124m,
    weak_scaling,
    allreduce_beside_gloo,
    bpe_ids,
    bpe_speed,
    one_val_loss,
    fuzzed,
    soak,
]
