/* Cutting the inputs into blocks that are encoded independently of each other.
 *
 * The tokens depend on the inputs and the split alone: a block is cut only at places where the
 * tokens are the same as without the cut, so the size of blocks changes nothing. */
#ifndef DPT_WORKER_DATA_PREPARE_CUTTER_H
#define DPT_WORKER_DATA_PREPARE_CUTTER_H

#include "worker/data/prepare/inputs.h"
#include "worker/data/tokenizer.h"

enum {
    DPT_BLOCK_BYTES_MIN = 1024,
    /* Also the limit of a .jsonl line, and of text without white space. */
    DPT_BLOCK_BYTES_MAX = 256 << 20,
    DPT_STRETCHES = 200, /* about; of a text that is split at lines */
    DPT_STRETCH_BYTES_MIN = 1 << 10,
    DPT_STRETCH_BYTES_MAX = 16 << 20
};

/* The unit that goes to one split as a whole. */
enum dpt_split_unit {
    DPT_UNIT_DOCUMENT, /* a text file, or a line of .jsonl */
    DPT_UNIT_LINES     /* a stretch of lines, about 1/200 of all the text */
};

struct dpt_cut_options {
    enum dpt_split_unit unit;
    double val_fraction; /* of the units; 0: only the inputs that are named as validation text */
    uint64_t seed;
    size_t block_bytes; /* read at a time */
    enum dpt_cuts cuts; /* places to cut; dpt_encode sets the vocabulary's */
};

/* The position of the next block; all zeros at first. The state file stores it. */
struct dpt_cut_position {
    int64_t file, offset;
    int64_t unit; /* documents or stretches before this file; in .jsonl: before this line */
    int64_t line; /* of .jsonl, from 0 */
};

/* Part of a text file in one split: whole neighbouring stretches, or the file. */
struct dpt_cut_run {
    int64_t begin, end;
    enum dpt_split split;
};

struct dpt_cutter {
    struct dpt_cut_options options;
    const struct dpt_inputs *inputs; /* borrowed */
    struct dpt_cut_position at;
    int64_t units, val_units; /* units drawn by lot; of these, units in validation */
    int64_t stretch_bytes;
    struct dpt_cut_run *runs; /* (n_runs) of the file at.file; n_runs 0: not found yet */
    int n_runs;
};

/* A block: consecutive text of one file. `text` grows as needed and is freed by the owner. */
struct dpt_block {
    uint8_t *text;
    size_t bytes, room;
    const struct dpt_input *input;
    bool begins;          /* text: a document (or a run of lines) begins here */
    enum dpt_split split; /* text */
    int64_t unit, line;   /* jsonl: of its first line */
    struct dpt_cut_position after;
};

/* Borrows the inputs. Counts the lines of .jsonl if they are to be split. DPT_EINVAL: the inputs
 * cannot be split as the options say. */
DPT_MUST_USE enum dpt_status dpt_cutter_init(struct dpt_cutter *cutter,
                                             const struct dpt_cut_options *options,
                                             const struct dpt_inputs *inputs, struct dpt_err *err);
void dpt_cutter_fini(struct dpt_cutter *cutter);

/* Continues at `at`, which is the `after` of an earlier block. */
void dpt_cutter_seek(struct dpt_cutter *cutter, struct dpt_cut_position at);

bool dpt_cutter_at_end(const struct dpt_cutter *cutter);

/* Reads the next block. The cutter must not be at the end. Blocks on the disk. */
DPT_MUST_USE enum dpt_status dpt_cutter_next(struct dpt_cutter *cutter, struct dpt_block *block,
                                             struct dpt_err *err);

/* The split of document `unit` of an input, drawn by lot; without lots, the split that was
 * named. */
enum dpt_split dpt_cutter_split(const struct dpt_cutter *cutter, const struct dpt_input *input,
                                int64_t unit);

/* Whether the .jsonl line, given without its end, has only white space. Such a line is no
 * document. */
bool dpt_line_is_blank(const uint8_t *line, size_t bytes);

#endif
