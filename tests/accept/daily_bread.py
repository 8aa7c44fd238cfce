"""Topic daily-bread: what first light built becomes something one would use every day and trust."""

from accept.fuzz import fuzzed
from accept.soak import soak
from accept.validation import one_val_loss

LINES = [one_val_loss, fuzzed, soak]
