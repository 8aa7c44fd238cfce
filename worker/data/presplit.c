/* The steps, each on every piece of the one before it: depth first, so that pieces come in order
 * and none is stored. */
#include "worker/data/presplit.h"

#include "base/array.h"
#include "worker/data/pattern.h"
#include "worker/data/split.h"

#include <stdlib.h>
#include <string.h>

struct cut {
    struct dpt_presplit *split;
    const struct dpt_vocab *vocab;
};

void dpt_presplit_fini(struct dpt_presplit *split)
{
    dpt_matcher_destroy(&split->matcher);
    free(split->prefixed);
    *split = (struct dpt_presplit){0};
}

/* Step `i` and those after it. */
static enum dpt_status take_steps(const struct cut *cut, int i, const uint8_t *text, size_t bytes,
                                  size_t room, struct dpt_err *err);

static size_t after_character(const uint8_t *text, size_t bytes, size_t at)
{
    for (at++; at < bytes && (text[at] & 0xc0) == 0x80;)
        at++;
    return at;
}

/* Matches and what lies between them; an empty match cuts, too. */
static enum dpt_status take_pattern(const struct cut *cut, int i, const uint8_t *text, size_t bytes,
                                    size_t room, struct dpt_err *err)
{
    const struct dpt_pattern *pattern = cut->vocab->steps[i].pattern;
    size_t done = 0;
    if (!cut->split->matcher)
        DPT_TRY(dpt_matcher_create(&cut->split->matcher, err));
    for (struct dpt_match match = {.from = 0}; match.from < bytes;) {
        DPT_TRY(dpt_pattern_next(pattern, cut->split->matcher, text, bytes, &match, err));
        const size_t begin = match.begin;
        DPT_TRY(take_steps(cut, i + 1, text + done, begin - done, room - done, err));
        DPT_TRY(take_steps(cut, i + 1, text + begin, match.end - begin, room - begin, err));
        done = match.end;
        match.from = done > begin ? done : after_character(text, bytes, done);
    }
    return take_steps(cut, i + 1, text + done, bytes - done, room - done, err);
}

static enum dpt_status put_prefix(const struct cut *cut, int i, const uint8_t *text, size_t bytes,
                                  size_t room, struct dpt_err *err)
{
    struct dpt_presplit *split = cut->split;
    DPT_ASSERT(text != split->prefixed); /* of the steps one is this */
    if (text[0] == ' ')
        return take_steps(cut, i + 1, text, bytes, room, err);
    if (!dpt_array_reserve(&split->prefixed, &split->prefixed_bytes, bytes + 1, 1))
        return dpt_fail_nomem(err, "tokenizer: %zu bytes of text", bytes);
    split->prefixed[0] = ' ';
    memcpy(split->prefixed + 1, text, bytes);
    return take_steps(cut, i + 1, split->prefixed, bytes + 1, bytes + 1, err);
}

static enum dpt_status take_steps(const struct cut *cut, int i, const uint8_t *text, size_t bytes,
                                  size_t room, struct dpt_err *err)
{
    if (bytes == 0)
        return DPT_OK;
    if (i == cut->vocab->n_steps)
        return cut->split->piece(cut->split->ctx, text, bytes, room, err);
    const struct dpt_step *step = &cut->vocab->steps[i];
    if (step->kind == DPT_STEP_PATTERN)
        return take_pattern(cut, i, text, bytes, room, err);
    if (step->kind == DPT_STEP_PREFIX)
        return put_prefix(cut, i, text, bytes, room, err);
    for (size_t at = 0, n; at < bytes; at += n) {
        n = step->kind == DPT_STEP_GPT2 ? dpt_split_next(text + at, bytes - at)
                                        : dpt_split_digits_next(text + at, bytes - at, step->each);
        DPT_TRY(take_steps(cut, i + 1, text + at, n, room - at, err));
    }
    return DPT_OK;
}

enum dpt_status dpt_presplit_text(struct dpt_presplit *split, const struct dpt_vocab *vocab,
                                  const uint8_t *text, size_t bytes, size_t room,
                                  struct dpt_err *err)
{
    const struct cut cut = {.split = split, .vocab = vocab};
    return take_steps(&cut, 0, text, bytes, room, err);
}
