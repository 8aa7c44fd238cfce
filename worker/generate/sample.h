/* The choice of the next token, and probabilities. Pure: functions of the logits, the settings and
 * one number. */
#ifndef DPT_WORKER_GENERATE_SAMPLE_H
#define DPT_WORKER_GENERATE_SAMPLE_H

#include "base/err.h"

#include <stdint.h>

struct dpt_sampling {
    double temperature; /* divides the logits; 0: always the greatest */
    int top_k;          /* draws from the top_k greatest; 0: from all */
    uint64_t seed;
};

struct dpt_candidate {
    float logit;
    int32_t token;
};

/* DPT_ECORRUPT: one of the `v` logits is not finite. */
DPT_MUST_USE enum dpt_status dpt_logits_check(const float *logits, int v, struct dpt_err *err);

/* Draw `i` of the seed: a token of `v` finite logits with weights exp(logit / temperature), from
 * the top_k greatest (of equal logits the lower tokens). `scratch` [v] is overwritten. */
int32_t dpt_sample(const float *logits, int v, const struct dpt_sampling *sampling, int64_t i,
                   struct dpt_candidate *scratch);

/* Sorts the `v` logits with their tokens into ret [v], greatest first, of equal logits the lower
 * token first. */
void dpt_candidates_sort(const float *logits, int v, struct dpt_candidate *ret);

/* log(sum of exp(logit)) of `v` finite logits, in double precision: a token's logit less this is
 * the natural logarithm of its probability at temperature 1. */
double dpt_log_sum_exp(const float *logits, int v);

#endif
