/* The cutter: reads the next block of the inputs and decides its split. */
#include "worker/data/prepare/cutter.h"

#include "base/array.h"
#include "worker/data/split.h"
#include "worker/plan/sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

bool dpt_line_is_blank(const uint8_t *line, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (line[i] != ' ' && line[i] != '\t' && line[i] != '\r')
            return false;
    return true;
}

/* Adds the number of lines in .jsonl text to *lines, and of those that are not blank to
 * *documents. */
static void count_lines(const uint8_t *text, size_t bytes, int64_t *lines, int64_t *documents)
{
    for (size_t at = 0; at < bytes; (*lines)++) {
        const uint8_t *end = memchr(text + at, '\n', bytes - at);
        const size_t n = end ? (size_t)(end - text) - at : bytes - at;
        *documents += !dpt_line_is_blank(text + at, n);
        at += n + 1;
    }
}

/* ---------------------------------------------------------------- blocks */

/* The position after the last line end in the first `bytes` bytes; 0: there is none. */
static size_t end_of_last_line(const struct dpt_block *block, size_t bytes)
{
    const uint8_t *end = memrchr(block->text, '\n', bytes);
    return end ? (size_t)(end - block->text) + 1 : 0;
}

/* Reads a block from at.offset on, up to `end` at most. If the block has no place to cut, reads
 * more until there is one. */
static enum dpt_status read_block(struct dpt_cutter *cutter, struct dpt_block *block, int64_t end,
                                  struct dpt_err *err)
{
    const struct dpt_input *input = block->input;
    const int64_t left = end - cutter->at.offset;
    size_t have = 0;
    for (size_t want = cutter->options.block_bytes;; want *= 2) {
        want = want < DPT_BLOCK_BYTES_MAX ? want : DPT_BLOCK_BYTES_MAX;
        want = (int64_t)want < left ? want : (size_t)left;
        if (!dpt_array_reserve(&block->text, &block->room, want, 1))
            return dpt_fail_nomem(err, "encode");
        DPT_TRY(dpt_data_file_read(&input->file, cutter->at.offset + (int64_t)have,
                                   block->text + have, want - have, err));
        have = want;
        const enum dpt_cuts cuts = cutter->options.cuts;
        if ((int64_t)want == left || (cuts == DPT_CUTS_ANYWHERE && !input->jsonl))
            block->bytes = want;
        else
            block->bytes = input->jsonl ? end_of_last_line(block, want)
                                        : dpt_split_cut(block->text, want, cuts);
        if (block->bytes > 0)
            return DPT_OK;
        if (want == DPT_BLOCK_BYTES_MAX)
            return dpt_fail(err, DPT_EOVERFLOW, "'%s' has %d bytes from byte %lld on without %s",
                            input->file.path, DPT_BLOCK_BYTES_MAX, (long long)cutter->at.offset,
                            input->jsonl ? "the end of a line; is it text?"
                            : cuts == DPT_CUTS_NONE
                                ? "its end, and the tokenizer's pattern may match across any "
                                  "place to cut it; make several documents of it"
                                : "white space between words; is it text?");
    }
}

/* ---------------------------------------------------------------- the split */

static bool is_by_lot(const struct dpt_cutter *cutter, const struct dpt_input *input)
{
    return !input->val && cutter->options.val_fraction > 0;
}

enum dpt_split dpt_cutter_split(const struct dpt_cutter *cutter, const struct dpt_input *input,
                                int64_t unit)
{
    if (!is_by_lot(cutter, input))
        return input->val ? DPT_SPLIT_VAL : DPT_SPLIT_TRAIN;
    const int64_t drawn = dpt_sampler_index(cutter->options.seed, cutter->units, unit);
    return drawn < cutter->val_units ? DPT_SPLIT_VAL : DPT_SPLIT_TRAIN;
}

static bool is_in_stretches(const struct dpt_cutter *cutter, const struct dpt_input *input)
{
    return is_by_lot(cutter, input) && cutter->options.unit == DPT_UNIT_LINES;
}

static int64_t stretches_of(const struct dpt_cutter *cutter, const struct dpt_input *input)
{
    return (input->file.bytes + cutter->stretch_bytes - 1) / cutter->stretch_bytes;
}

/* The position of the first line that begins at byte `at` or later; else the end of the file. */
static enum dpt_status first_line_from(const struct dpt_input *input, int64_t at, int64_t *ret,
                                       struct dpt_err *err)
{
    uint8_t scan[4096];
    if (at == 0) {
        *ret = 0;
        return DPT_OK;
    }
    for (at--; at < input->file.bytes; at += (int64_t)sizeof scan) {
        const int64_t left = input->file.bytes - at;
        const size_t n = left < (int64_t)sizeof scan ? (size_t)left : sizeof scan;
        DPT_TRY(dpt_data_file_read(&input->file, at, scan, n, err));
        const uint8_t *end = memchr(scan, '\n', n);
        if (end) {
            *ret = at + (end - scan) + 1;
            return DPT_OK;
        }
    }
    *ret = input->file.bytes;
    return DPT_OK;
}

/* Finds the runs of the file. A stretch begins at the first line that begins in it or after it. */
static enum dpt_status find_runs(struct dpt_cutter *cutter, const struct dpt_input *input,
                                 struct dpt_err *err)
{
    const int64_t n = is_in_stretches(cutter, input) ? stretches_of(cutter, input) : 1;
    struct dpt_cut_run *runs = realloc(cutter->runs, (size_t)n * sizeof *runs);
    if (!runs)
        return dpt_fail_nomem(err, "encode");
    cutter->runs = runs;
    cutter->n_runs = 0;
    int64_t begin = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t end = input->file.bytes;
        const enum dpt_split split = dpt_cutter_split(cutter, input, cutter->at.unit + i);
        struct dpt_cut_run *last = cutter->n_runs > 0 ? &runs[cutter->n_runs - 1] : NULL;
        if (i + 1 < n)
            DPT_TRY(first_line_from(input, (i + 1) * cutter->stretch_bytes, &end, err));
        if (end == begin) /* a line is longer than a stretch */
            continue;
        if (last && last->split == split)
            last->end = end;
        else
            runs[cutter->n_runs++] = (struct dpt_cut_run){begin, end, split};
        begin = end;
    }
    return DPT_OK;
}

static enum dpt_status count_documents(struct dpt_cutter *cutter, struct dpt_err *err)
{
    struct dpt_block block = {0};
    enum dpt_status status = DPT_OK;
    for (int i = 0; status == DPT_OK && i < cutter->inputs->n; i++) {
        const struct dpt_input *input = &cutter->inputs->files[i];
        if (!is_by_lot(cutter, input))
            continue;
        if (!input->jsonl) {
            cutter->units++;
            continue;
        }
        int64_t lines = 0;
        block.input = input;
        cutter->at = (struct dpt_cut_position){.file = i};
        while (status == DPT_OK && cutter->at.offset < input->file.bytes) {
            status = read_block(cutter, &block, input->file.bytes, err);
            if (status == DPT_OK)
                count_lines(block.text, block.bytes, &lines, &cutter->units);
            cutter->at.offset += (int64_t)block.bytes;
        }
    }
    cutter->at = (struct dpt_cut_position){0};
    free(block.text);
    return status;
}

static enum dpt_status count_stretches(struct dpt_cutter *cutter, struct dpt_err *err)
{
    int64_t bytes = 0;
    for (int i = 0; i < cutter->inputs->n; i++) {
        const struct dpt_input *input = &cutter->inputs->files[i];
        if (is_by_lot(cutter, input) && input->jsonl)
            return dpt_fail(err, DPT_EINVAL,
                            "'%s' is split by its documents, not at lines of their text: set "
                            "--split document",
                            input->file.path);
        bytes += is_by_lot(cutter, input) ? input->file.bytes : 0;
    }
    cutter->stretch_bytes = bytes / DPT_STRETCHES;
    if (cutter->stretch_bytes < DPT_STRETCH_BYTES_MIN)
        cutter->stretch_bytes = DPT_STRETCH_BYTES_MIN;
    if (cutter->stretch_bytes > DPT_STRETCH_BYTES_MAX)
        cutter->stretch_bytes = DPT_STRETCH_BYTES_MAX;
    for (int i = 0; i < cutter->inputs->n; i++)
        if (is_by_lot(cutter, &cutter->inputs->files[i]))
            cutter->units += stretches_of(cutter, &cutter->inputs->files[i]);
    return DPT_OK;
}

enum dpt_status dpt_cutter_init(struct dpt_cutter *cutter, const struct dpt_cut_options *options,
                                const struct dpt_inputs *inputs, struct dpt_err *err)
{
    *cutter = (struct dpt_cutter){.options = *options, .inputs = inputs};
    if (options->val_fraction <= 0)
        return DPT_OK;
    enum dpt_status status = options->unit == DPT_UNIT_LINES ? count_stretches(cutter, err)
                                                             : count_documents(cutter, err);
    if (status == DPT_OK && cutter->units < 2)
        status = dpt_fail(err, DPT_EINVAL, "there is nothing to split: %lld %s%s",
                          (long long)cutter->units,
                          options->unit == DPT_UNIT_LINES ? "KiB of text" : "document",
                          options->unit == DPT_UNIT_LINES ? "" : "; --split line splits a text");
    if (status != DPT_OK) {
        dpt_cutter_fini(cutter);
        return status;
    }
    cutter->val_units = llround(options->val_fraction * (double)cutter->units);
    if (cutter->val_units < 1)
        cutter->val_units = 1;
    if (cutter->val_units > cutter->units - 1)
        cutter->val_units = cutter->units - 1;
    return DPT_OK;
}

void dpt_cutter_fini(struct dpt_cutter *cutter)
{
    free(cutter->runs);
    *cutter = (struct dpt_cutter){.inputs = NULL};
}

void dpt_cutter_seek(struct dpt_cutter *cutter, struct dpt_cut_position at)
{
    cutter->at = at;
    cutter->n_runs = 0;
}

bool dpt_cutter_at_end(const struct dpt_cutter *cutter)
{
    return cutter->at.file >= cutter->inputs->n;
}

/* ---------------------------------------------------------------- the next block */

static enum dpt_status next_lines(struct dpt_cutter *cutter, struct dpt_block *block,
                                  struct dpt_err *err)
{
    DPT_TRY(read_block(cutter, block, block->input->file.bytes, err));
    block->unit = cutter->at.unit;
    block->line = cutter->at.line;
    block->begins = false;
    int64_t documents = 0;
    count_lines(block->text, block->bytes, &cutter->at.line, &documents);
    if (is_by_lot(cutter, block->input))
        cutter->at.unit += documents;
    cutter->at.offset += (int64_t)block->bytes;
    if (cutter->at.offset == block->input->file.bytes)
        cutter->at =
            (struct dpt_cut_position){.file = cutter->at.file + 1, .unit = cutter->at.unit};
    return DPT_OK;
}

static enum dpt_status next_text(struct dpt_cutter *cutter, struct dpt_block *block,
                                 struct dpt_err *err)
{
    const struct dpt_input *input = block->input;
    if (cutter->n_runs == 0)
        DPT_TRY(find_runs(cutter, input, err));
    const struct dpt_cut_run *run = cutter->runs;
    while (run + 1 < cutter->runs + cutter->n_runs && cutter->at.offset >= run->end)
        run++;
    DPT_TRY(read_block(cutter, block, run->end, err));
    block->begins = cutter->at.offset == run->begin;
    block->split = run->split;
    cutter->at.offset += (int64_t)block->bytes;
    if (cutter->at.offset == input->file.bytes) {
        const int64_t units = !is_by_lot(cutter, input)        ? 0
                              : is_in_stretches(cutter, input) ? stretches_of(cutter, input)
                                                               : 1;
        dpt_cutter_seek(cutter, (struct dpt_cut_position){.file = cutter->at.file + 1,
                                                          .unit = cutter->at.unit + units});
    }
    return DPT_OK;
}

enum dpt_status dpt_cutter_next(struct dpt_cutter *cutter, struct dpt_block *block,
                                struct dpt_err *err)
{
    DPT_ASSERT(!dpt_cutter_at_end(cutter));
    block->input = &cutter->inputs->files[cutter->at.file];
    DPT_TRY(block->input->jsonl ? next_lines(cutter, block, err) : next_text(cutter, block, err));
    block->after = cutter->at;
    return DPT_OK;
}
