/* Temperature and top-k (Fan et al. 2018, "Hierarchical Neural Story Generation", section 5). */
#include "worker/generate/token_choice.h"

#include "base/rng.h"

#include <math.h>
#include <stdlib.h>

/* Orders the greatest logit first, and of equal logits the lower token first. */
static int by_logit(const void *a, const void *b)
{
    const struct dpt_token_candidate *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit > y->logit ? -1 : 1;
    return x->token < y->token ? -1 : 1;
}

/* Draw `i` of the seed: a number in [0, 1) with 53 random bits. */
static double uniform_draw(uint64_t seed, int64_t i)
{
    uint32_t block[4];
    dpt_philox(dpt_rng_key(seed, DPT_RNG_GENERATE, (uint64_t)i, 0, 0), 0, block);
    const uint64_t bits = ((uint64_t)block[0] << 32 | block[1]) >> 11;
    return (double)bits * 0x1p-53;
}

enum dpt_status dpt_token_choice_check_logits(const float *logits, int v, struct dpt_err *err)
{
    for (int t = 0; t < v; t++)
        if (!isfinite(logits[t]))
            return dpt_fail(err, DPT_ECORRUPT,
                            "the model gives token %d no finite probability: its training has "
                            "diverged; take an earlier checkpoint",
                            t);
    return DPT_OK;
}

static int32_t greatest_logit(const float *logits, int v)
{
    int best = 0;
    for (int t = 1; t < v; t++)
        if (logits[t] > logits[best])
            best = t;
    return best;
}

void dpt_token_choice_sort(const float *logits, int v, struct dpt_token_candidate *ret)
{
    for (int t = 0; t < v; t++)
        ret[t] = (struct dpt_token_candidate){logits[t], t};
    qsort(ret, (size_t)v, sizeof *ret, by_logit);
}

double dpt_token_choice_log_sum_exp(const float *logits, int v)
{
    const double most = (double)logits[greatest_logit(logits, v)];
    double sum = 0; /* relative to the greatest weight, so that no term overflows */
    for (int t = 0; t < v; t++)
        sum += exp((double)logits[t] - most);
    return most + log(sum);
}

int32_t dpt_token_choice(const float *logits, int v,
                         const struct dpt_token_choice_settings *sampling, int64_t i,
                         struct dpt_token_candidate *scratch)
{
    DPT_ASSERT(v > 0 && sampling->temperature >= 0 && sampling->top_k >= 0);
    if (sampling->temperature == 0 || sampling->top_k == 1)
        return greatest_logit(logits, v);
    dpt_token_choice_sort(logits, v, scratch);
    const int n = sampling->top_k > 0 && sampling->top_k < v ? sampling->top_k : v;
    double total = 0;
    for (int k = 0; k < n; k++)
        total += exp(((double)scratch[k].logit - (double)scratch[0].logit) / sampling->temperature);
    const double drawn = uniform_draw(sampling->seed, i) * total;
    double sum = 0;
    int k = 0;
    for (; k < n - 1; k++) {
        sum += exp(((double)scratch[k].logit - (double)scratch[0].logit) / sampling->temperature);
        if (sum > drawn)
            break;
    }
    return scratch[k].token;
}
