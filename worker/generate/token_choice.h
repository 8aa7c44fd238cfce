/* Chooses the next token, and computes probabilities. Pure: functions of the logits, the settings
 * and one number. */
#ifndef DPT_WORKER_GENERATE_TOKEN_CHOICE_H
#define DPT_WORKER_GENERATE_TOKEN_CHOICE_H

#include "base/err.h"

#include <stdint.h>

struct dpt_token_choice_settings {
    double temperature; /* divides the logits; 0: the greatest logit always wins */
    int top_k;          /* draws from the top_k greatest; 0: from all */
    uint64_t seed;
};

struct dpt_token_candidate {
    float logit;
    int32_t token;
};

/* DPT_ECORRUPT: one of the `v` logits is not finite. */
DPT_MUST_USE enum dpt_status dpt_token_choice_check_logits(const float *logits, int v,
                                                           struct dpt_err *err);

/* Draw `i` of the seed: chooses one of `v` tokens with finite logits. The weights are exp(logit /
 * temperature), of the top_k greatest logits (of equal logits the lower tokens). `scratch` [v] is
 * overwritten. */
int32_t dpt_token_choice(const float *logits, int v,
                         const struct dpt_token_choice_settings *sampling, int64_t i,
                         struct dpt_token_candidate *scratch);

/* Sorts the `v` logits with their tokens into ret [v], greatest first, of equal logits the lower
 * token first. */
void dpt_token_choice_sort(const float *logits, int v, struct dpt_token_candidate *ret);

/* log(sum of exp(logit)) of `v` finite logits, in double precision. A token's logit minus this
 * value is the natural logarithm of its probability at temperature 1. */
double dpt_token_choice_log_sum_exp(const float *logits, int v);

#endif
