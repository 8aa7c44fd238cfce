/* The choice of the next token, and probabilities. Pure: functions of the logits, the settings and
 * one number. */
#ifndef DPT_WORKER_GENERATE_SAMPLE_H
#define DPT_WORKER_GENERATE_SAMPLE_H

#include "base/err.h"

#include <stdint.h>

struct dpt_sampling {
    double temperature; /* logits are divided by it; 0: the greatest, whatever is drawn */
    int top_k;          /* only the greatest so many are drawn from; 0: all */
    uint64_t seed;
};

struct dpt_candidate {
    float logit;
    int32_t token;
};

/* Token number `i` of the seed's sequence, drawn from the `v` logits: the greatest top_k, equal
 * ones by their number, with weights exp(logit / temperature). `room` [v] is overwritten.
 * DPT_ECORRUPT: a logit is not finite. */
DPT_MUST_USE enum dpt_status dpt_sample(const float *logits, int v,
                                        const struct dpt_sampling *sampling, int64_t i,
                                        struct dpt_candidate *room, int32_t *ret_token,
                                        struct dpt_err *err);

/* The `v` logits with their tokens, the greatest first, of equal ones the lower token; ret [v]. */
void dpt_candidates_sort(const float *logits, int v, struct dpt_candidate *ret);

/* log(sum of exp(logit)) of `v` finite logits, in double precision: a token's logit less this is
 * the natural logarithm of its probability at temperature 1. */
double dpt_log_sum_exp(const float *logits, int v);

#endif
