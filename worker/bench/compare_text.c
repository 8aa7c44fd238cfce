/* Sentences that compare two methods (compare_text.h). */
#include "worker/bench/compare_text.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { PART_BYTES = 192, CHANGE_BYTES = 32 };

static const double same_memory = 0.005; /* ratios closer to 1 are equal */

/* "41 % less", "7 % more": the part by which `ratio` differs from 1. */
static void more_or_less(double ratio, char ret[CHANGE_BYTES])
{
    const double percent = 100 * fabs(ratio - 1);
    (void)snprintf(ret, CHANGE_BYTES, "%.*f %% %s", percent < 9.95 ? 1 : 0, percent,
                   ratio < 1 ? "less" : "more");
}

static void memory_part(const struct compare_figures *a, const struct compare_figures *b,
                        char ret[PART_BYTES])
{
    const struct paired_ratio r = paired_ratio_of(a->memory, b->memory, a->n);
    char part[CHANGE_BYTES];
    if (fabs(r.ratio - 1) < same_memory || (r.has_interval && !r.differs)) {
        (void)snprintf(ret, PART_BYTES, "%s needs as much memory as %s", b->name, a->name);
        return;
    }
    more_or_less(r.ratio, part);
    (void)snprintf(ret, PART_BYTES, "%s needs %s memory than %s", b->name, part, a->name);
}

/* Follows memory_part in one sentence, whose subject is b. */
static void time_part(const struct compare_figures *a, const struct compare_figures *b,
                      char ret[PART_BYTES])
{
    const struct paired_ratio r = paired_ratio_of(a->step_s, b->step_s, a->n);
    char part[CHANGE_BYTES];
    const double low = 100 * (r.low - 1), high = 100 * (r.high - 1);
    more_or_less(r.ratio, part);
    if (!r.has_interval)
        (void)snprintf(ret, PART_BYTES,
                       "takes %s time a step; one repeat does not tell a difference from noise",
                       part);
    else if (r.differs)
        (void)snprintf(ret, PART_BYTES,
                       "takes %s time a step (95 %% interval %+.1f to %+.1f %%, %d pairs)", part,
                       low, high, a->n);
    else
        (void)snprintf(ret, PART_BYTES,
                       "shows no difference in time beyond the noise of %d pairs (95 %% interval "
                       "%+.1f to %+.1f %%)",
                       a->n, low, high);
}

static void weights_sentence(const struct compare_figures *a, const struct compare_figures *b,
                             const char *keys, char ret[COMPARE_SENTENCE_BYTES])
{
    if (!a->hash[0] || !b->hash[0])
        (void)snprintf(ret, COMPARE_SENTENCE_BYTES,
                       "The weights of %s depend on the run: its order of addition is open.",
                       a->hash[0] ? b->name : a->name);
    else if (strcmp(a->hash, b->hash) == 0)
        (void)snprintf(ret, COMPARE_SENTENCE_BYTES,
                       "%s and %s end with the same weights, bit for "
                       "bit.",
                       a->name, b->name);
    else if (keys[0])
        (void)snprintf(ret, COMPARE_SENTENCE_BYTES,
                       "%s and %s end with different weights, because the configs differ in keys "
                       "of the trajectory: %.300s.",
                       a->name, b->name, keys);
    else
        (void)snprintf(ret, COMPARE_SENTENCE_BYTES,
                       "%s and %s end with different weights, because they add gradients in "
                       "different orders (train.accumulate: local or reduce makes them equal).",
                       a->name, b->name);
}

int compare_sentences(const struct compare_figures *a, const struct compare_figures *b,
                      const char *keys, char ret[COMPARE_SENTENCES_MAX][COMPARE_SENTENCE_BYTES])
{
    char memory[PART_BYTES], time[PART_BYTES], part[CHANGE_BYTES];
    int n = 0;
    memory_part(a, b, memory);
    time_part(a, b, time);
    (void)snprintf(ret[n++], COMPARE_SENTENCE_BYTES, "%s, and %s.", memory, time);
    (void)snprintf(ret[n++], COMPARE_SENTENCE_BYTES,
                   "%s waits for communication in %.1f %% of a step, %s in %.1f %%.", b->name,
                   100 * spread_of(b->wait_share, b->n).mean, a->name,
                   100 * spread_of(a->wait_share, a->n).mean);
    if (a->sent_bytes > 0 && b->sent_bytes > 0) {
        const double ratio = (double)b->sent_bytes / (double)a->sent_bytes;
        more_or_less(ratio, part);
        if (fabs(ratio - 1) < same_memory)
            (void)snprintf(ret[n++], COMPARE_SENTENCE_BYTES,
                           "A rank of %s sends as much as one of "
                           "%s.",
                           b->name, a->name);
        else
            (void)snprintf(ret[n++], COMPARE_SENTENCE_BYTES,
                           "A rank of %s sends %s bytes a step than one of %s.", b->name, part,
                           a->name);
    }
    weights_sentence(a, b, keys, ret[n++]);
    return n;
}
