/* Decoding against the forward pass of training: the same probabilities, position after position,
 * with the cache and without; the same bits with any number of threads and any instruction set. */
#include "tests/worker/model/model_rig.h"

#include "kernels/cpu/kernels.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { VOCAB = 48, CONTEXT = 70 };

static struct dpt_err err;

/* A rig, and the memory that decoding needs. */
struct decoder {
    struct rig rig;
    const void *weights[DPT_UNITS_MAX];
    void *cache, *scratch;
    float logits[VOCAB];
};

static void open(struct decoder *d, int b, int t, int threads)
{
    const struct rig_size size = {.n_layer = 2,
                                  .n_head = 4,
                                  .n_embd = 36, /* heads of 9: no multiple of anything */
                                  .context = CONTEXT,
                                  .vocab = VOCAB,
                                  .b = b,
                                  .t = t,
                                  .threads = threads,
                                  .dropout = 0.5}; /* of which decoding knows nothing */
    rig_open(&d->rig, &size);
    for (int u = 0; u < dpt_model_n_units(d->rig.model); u++)
        d->weights[u] = d->rig.flat + dpt_model_unit(d->rig.model, u)->offset;
    d->cache = rig_memory(dpt_model_cache_bytes(d->rig.model));
    d->scratch = rig_memory(dpt_model_decode_bytes(d->rig.model, CONTEXT));
    memset(d->cache, 0xff,
           dpt_model_cache_bytes(d->rig.model)); /* NaN: nothing is read unwritten */
}

static void close(struct decoder *d)
{
    free(d->cache);
    free(d->scratch);
    rig_close(&d->rig);
}

static void decode_positions(struct decoder *d, int64_t first, int64_t n)
{
    const struct dpt_decode decode = {.weights = d->weights,
                                      .first = first,
                                      .n = n,
                                      .tokens = d->rig.tokens + first,
                                      .cache = d->cache,
                                      .scratch = d->scratch,
                                      .logits = d->logits};
    dpt_model_decode(d->rig.model, d->rig.ops, d->rig.stream, &decode);
    assert_int_equal(dpt_stream_sync(d->rig.stream, &err), DPT_OK);
}

static double log_sum(const float *logits)
{
    double max = (double)logits[0], sum = 0;
    for (int v = 1; v < VOCAB; v++)
        max = fmax(max, (double)logits[v]);
    for (int v = 0; v < VOCAB; v++)
        sum += exp((double)logits[v] - max);
    return max + log(sum);
}

/* One sample for each token that could follow: its loss at the end is that token's. */
static void probabilities_of_the_forward_pass(void **state)
{
    (void)state;
    static const int lengths[] = {1, 2, 16, 64, 65, CONTEXT};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        const int t = lengths[i];
        struct decoder d;
        open(&d, VOCAB, t, 1);
        for (int v = 0; v < VOCAB; v++) {
            memcpy(d.rig.tokens + v * t, d.rig.tokens, (size_t)t * sizeof *d.rig.tokens);
            d.rig.targets[v * t + t - 1] = v;
        }
        d.rig.slot.mode = DPT_MODE_EVAL;
        (void)rig_run(&d.rig);
        decode_positions(&d, 0, t);
        const double total = log_sum(d.logits);
        for (int v = 0; v < VOCAB; v++)
            if (!(fabs((double)d.rig.slot.losses[v * t + t - 1] + (double)d.logits[v] - total) <
                  2e-5))
                fail_msg("length %d, token %d: loss %g, from the logits %g", t, v,
                         (double)d.rig.slot.losses[v * t + t - 1], total - (double)d.logits[v]);
        close(&d);
    }
}

static int greatest(const float *logits)
{
    int best = 0;
    for (int v = 1; v < VOCAB; v++)
        best = logits[v] > logits[best] ? v : best;
    return best;
}

/* For every cut of the positions into calls, with the cache of the calls before. */
static void the_cache_changes_nothing(void **state)
{
    (void)state;
    static const int steps[] = {1, 2, 7, 64, CONTEXT - 1};
    struct decoder whole, cut;
    open(&whole, 1, CONTEXT, 1);
    open(&cut, 1, CONTEXT, 1);
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++)
        for (int64_t at = 0; at < CONTEXT; at += steps[i]) {
            const int64_t n = at + steps[i] < CONTEXT ? steps[i] : CONTEXT - at;
            decode_positions(&cut, at, n);
            decode_positions(&whole, 0, at + n);
            assert_int_equal(greatest(cut.logits), greatest(whole.logits));
            for (int v = 0; v < VOCAB; v++)
                assert_true(fabsf(cut.logits[v] - whole.logits[v]) < 1e-4f);
        }
    close(&whole);
    close(&cut);
}

/* All logits of a text, token by token after a beginning of 5. */
static void run_whole_text(int threads, float ret[CONTEXT][VOCAB])
{
    struct decoder d;
    open(&d, 1, CONTEXT, threads);
    decode_positions(&d, 0, 5);
    memcpy(ret[4], d.logits, sizeof d.logits);
    for (int64_t at = 5; at < CONTEXT; at++) {
        decode_positions(&d, at, 1);
        memcpy(ret[at], d.logits, sizeof d.logits);
    }
    close(&d);
}

static void one_result_for_all_threads_and_machines(void **state)
{
    (void)state;
    static float first[CONTEXT][VOCAB], other[CONTEXT][VOCAB];
    run_whole_text(1, first);
    for (int threads = 2; threads <= 5; threads++) {
        run_whole_text(threads, other);
        assert_memory_equal(first + 4, other + 4, sizeof first - 4 * sizeof first[0]);
    }
    for (int i = 0; dpt_cpu_kernels_at(i); i++) {
        rig_kernels = dpt_cpu_kernels_at(i);
        run_whole_text(2, other);
        assert_memory_equal(first + 4, other + 4, sizeof first - 4 * sizeof first[0]);
    }
    rig_kernels = NULL;
}

int main(int argc, char **argv)
{
    rig_choose(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(probabilities_of_the_forward_pass),
        cmocka_unit_test(the_cache_changes_nothing),
        cmocka_unit_test(one_result_for_all_threads_and_machines),
    };
    return cmocka_run_group_tests_name("decode", tests, NULL, NULL);
}
