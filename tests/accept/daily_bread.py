"""Topic daily-bread: what first light built becomes something one would use every day and trust."""

from accept.fuzz import fuzzed
from accept.soak import soak
from accept.tokens import bpe_ids, bpe_speed
from accept.validation import one_val_loss

LINES = [
    bpe_ids,
    bpe_speed,
    one_val_loss,
    fuzzed,
    soak,
]
