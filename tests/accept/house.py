"""Topic house: the code base was put in order; results, speed and what its tests find are those of the commit before."""

from accept.history import programs_of
from accept.pairs import compare
from cluster import bin_dir

BASELINE, PROGRAMS_OF_IT = "26e1113", "DPT_BASELINE_BIN"
CONFIGS, HASHES_LEAST = 80, 20


def no_bit_moved(line):
    """The programs of 26e1113 (built from the history, or those of DPT_BASELINE_BIN) and the present ones end with the
    same weights_hash for 80 configs: 13 strategies x both orders x fp32, bf16 and fp16 x worlds of 1 to 4 x activation
    checkpointing, compression, SGD, shadows, families of models, resumes from the old program's checkpoints, kills.
    Where nothing happens to a run the bytes sent in each step and the memory by tag are equal, too."""
    old, new = programs_of(line, BASELINE, PROGRAMS_OF_IT), bin_dir().resolve()
    line.command(f"dpt-worker of {old} and of {new}, in turn")
    count, hashes = compare(line, old, new)
    line.show("configs", count, f"== {line.repeat(CONFIGS)}", count == line.repeat(CONFIGS))
    line.at_least("distinct weights_hash among them", hashes, line.repeat(HASHES_LEAST))


LINES = [no_bit_moved]
