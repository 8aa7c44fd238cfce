/* Sizes, values and rates of dpt-bench collectives (collective_math.h). */
#include "worker/bench/collective_math.h"

#include "base/parse.h"

#include <stdio.h>
#include <string.h>

/* A prime period: a chunk at a wrong place has wrong values. The largest sum is an integer below
 * 2^24, so floats hold it exactly. */
enum { RANKS_MAX = 64, PERIOD = 1021, SHARE_ELEMENTS = 16 / sizeof(float), DIGITS_MAX = 20 };
_Static_assert(RANKS_MAX *(RANKS_MAX + 1) / 2 * PERIOD < 1 << 24, "sums are exact");

static int has_shares(enum dpt_collective collective)
{
    return collective == DPT_COLLECTIVE_ALL_GATHER || collective == DPT_COLLECTIVE_REDUCE_SCATTER;
}

double collective_bus_factor(enum dpt_collective collective, int n_ranks)
{
    const double others = (double)(n_ranks - 1) / (double)n_ranks;
    if (collective == DPT_COLLECTIVE_ALL_REDUCE)
        return 2 * others;
    return has_shares(collective) ? others : 1;
}

enum dpt_status collective_parse_size(const char *text, int64_t min, int64_t max,
                                      int64_t *ret_bytes, struct dpt_err *err)
{
    static const char units[] = "KMG";
    const size_t length = strlen(text);
    const char *unit = length > 0 ? strchr(units, text[length - 1]) : NULL;
    char digits[DIGITS_MAX];
    int64_t number = 0, scale = 1;
    if (unit)
        for (const char *at = units; at <= unit; at++)
            scale *= 1024;
    (void)snprintf(digits, sizeof digits, "%.*s", (int)(length - (unit ? 1 : 0)), text);
    if (length >= sizeof digits || dpt_parse_i64(digits, 0, max / scale, &number, NULL) != DPT_OK ||
        number * scale < min)
        return dpt_fail(err, DPT_EINVAL,
                        "expected bytes from %lld to %lld such as 4096, 1K, 26M or 1G, got '%.40s'",
                        (long long)min, (long long)max, text);
    *ret_bytes = number * scale;
    return DPT_OK;
}

int collective_sizes(int64_t begin, int64_t end, int64_t factor, int64_t *ret, int max)
{
    int n = 0;
    for (int64_t size = begin; size <= end && n < max; size *= factor)
        ret[n++] = size;
    return n;
}

int64_t collective_numel(enum dpt_collective collective, int n_ranks, int64_t bytes)
{
    const int64_t numel = bytes / (int64_t)sizeof(float);
    const int64_t grid = has_shares(collective) ? (int64_t)SHARE_ELEMENTS * n_ranks : 1;
    return numel / grid * grid;
}

int64_t collective_count(enum dpt_collective collective, int n_ranks, int64_t numel)
{
    return has_shares(collective) ? numel / n_ranks : numel;
}

void collective_fill(float *vector, int64_t numel, int rank)
{
    int phase = 0;
    for (int64_t i = 0; i < numel; i++) {
        vector[i] = (float)((rank + 1) * (1 + phase));
        phase = phase == PERIOD - 1 ? 0 : phase + 1;
    }
}

/* The result's value over 1 + i mod PERIOD in chunk `chunk`; 0: not defined. */
static int result_factor(const struct collective_result *result, int chunk)
{
    const int n = result->n_ranks, sum = n * (n + 1) / 2;
    switch (result->collective) {
    case DPT_COLLECTIVE_ALL_REDUCE:
        return sum;
    case DPT_COLLECTIVE_REDUCE_SCATTER:
        return chunk == result->rank ? sum : 0;
    case DPT_COLLECTIVE_ALL_GATHER:
        return chunk + 1;
    case DPT_COLLECTIVE_BROADCAST:
        return result->root + 1;
    case DPT_COLLECTIVE_SEND_RECV:
        return (result->rank + n - 1) % n + 1;
    case DPT_COLLECTIVE_COUNT:
        break;
    }
    return 0;
}

int64_t collective_wrong(const struct collective_result *result)
{
    int64_t wrong = 0;
    for (int chunk = 0; chunk < result->n_ranks; chunk++) {
        const struct dpt_interval x = dpt_pattern_part(result->numel, result->n_ranks, chunk, 1, 0);
        const int factor = result_factor(result, chunk);
        int phase = (int)(x.first % PERIOD);
        for (int64_t i = x.first; factor > 0 && i < x.end; i++) {
            wrong += result->vector[i] != (float)(factor * (1 + phase));
            phase = phase == PERIOD - 1 ? 0 : phase + 1;
        }
    }
    return wrong;
}
