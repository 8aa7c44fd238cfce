/* Sentences about measured methods, derived from their figures. Pure. */
#ifndef DPT_WORKER_BENCH_COMPARE_TEXT_H
#define DPT_WORKER_BENCH_COMPARE_TEXT_H

#include "worker/bench/spread.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The figures of a method; repeat i of all methods ran in turn. */
struct compare_figures {
    const char *name;
    int n; /* repeats, 1 to SPREAD_REPEATS_MAX */
    double step_s[SPREAD_REPEATS_MAX];
    double memory[SPREAD_REPEATS_MAX];     /* peak of the rank that holds most, bytes */
    double wait_share[SPREAD_REPEATS_MAX]; /* of a step */
    int64_t sent_bytes;                    /* of a rank and step */
    const char *hash;                      /* of the weights; "": its repeats differ */
};

enum { COMPARE_SENTENCE_BYTES = 512, COMPARE_SENTENCES_MAX = 4 };

/* Writes sentences that compare `b` with `a`: time and memory of a step, waits, bytes sent,
 * weights. A difference within the noise of the repeats is called none. `keys`: the keys of the
 * trajectory in which the configs differ; "": none. Returns their number. */
int compare_sentences(const struct compare_figures *a, const struct compare_figures *b,
                      const char *keys, char ret[COMPARE_SENTENCES_MAX][COMPARE_SENTENCE_BYTES]);

#endif
