"""Topic daily-bread: precision, speed, epochs, evaluation, fuzzing and a soak of GPT-2 training."""

from accept.epochs import epoch_lines
from accept.first_light import one_hash
from accept.fuzz import fuzzed
from accept.scaling import allreduce_beside_gloo, weak_scaling
from accept.soak import soak
from accept.speed import shares_124m
from accept.stories import settings, undisturbed
from accept.tokens import bpe_ids, bpe_speed
from accept.validation import one_val_loss


def one_hash_bf16(line):
    """First-light's hash matrix in bf16: worlds 1 to 4, undisturbed and with kills and joins, have one weights_hash,
    which differs from fp32's."""
    seen = one_hash(line, train__precision="bf16")
    fp32 = {undisturbed(line.folder / f"fp32-g{slots}", 1, sets=settings(slots)) for slots in (7, 8)}
    line.show("weights_hash of the same configs in fp32", sorted(fp32), f"none of {sorted(seen)}",
              len(fp32) == 2 and not fp32 & seen)


LINES = [
    one_hash_bf16,
    shares_124m,
    weak_scaling,
    allreduce_beside_gloo,
    bpe_ids,
    bpe_speed,
    one_val_loss,
    epoch_lines,
    fuzzed,
    soak,
]
