/* Generation: the cache gives the results of training's forward pass, beyond the context too; bits
 * do not depend on threads. */
#include "worker/generate/generator.h"

#include "tests/worker/model/model_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <string.h>

enum { CONTEXT = 24, VOCAB = 40, TOKENS = 40 };

static struct dpt_err err;

static void open(struct rig *rig, int b, int t, int threads)
{
    const struct rig_size size = {.n_layer = 2,
                                  .n_head = 2,
                                  .n_embd = 32,
                                  .context = CONTEXT,
                                  .vocab = VOCAB,
                                  .b = b,
                                  .t = t,
                                  .threads = threads};
    rig_open(rig, &size);
}

static struct dpt_generator *begin_generator(const struct rig *rig,
                                             struct dpt_token_choice_settings sampling)
{
    const struct dpt_generator_options options = {.model = rig->model,
                                                  .device = rig->dev,
                                                  .stream = rig->stream,
                                                  .flat = rig->flat,
                                                  .tokens = VOCAB,
                                                  .sampling = sampling};
    struct dpt_generator *g = NULL;
    assert_int_equal(dpt_generator_create(&options, &g, &err), DPT_OK);
    return g;
}

/* The likeliest token after `n` tokens, by the forward pass of training and nothing kept: of one
 * sample for each token that could follow, the one with the least loss at the end. */
static int32_t likeliest(struct rig rigs[CONTEXT + 1], const int32_t *tokens, int n)
{
    struct rig *rig = &rigs[n];
    int32_t best = 0;
    if (!rig->model)
        open(rig, VOCAB, n, 1);
    for (int v = 0; v < VOCAB; v++) {
        memcpy(rig->tokens + v * n, tokens, (size_t)n * sizeof *tokens);
        rig->targets[v * n + n - 1] = v;
    }
    rig->slot.mode = DPT_MODE_EVAL;
    (void)rig_run(rig);
    for (int32_t v = 1; v < VOCAB; v++)
        if (rig->slot.losses[v * n + n - 1] < rig->slot.losses[best * n + n - 1])
            best = v;
    return best;
}

/* The window that the model sees, as generator.h says it: its last half when it is full. */
static int append_token(int32_t *window, int n, int32_t token)
{
    if (n == CONTEXT) {
        memmove(window, window + CONTEXT / 2, (CONTEXT - CONTEXT / 2) * sizeof *window);
        n = CONTEXT / 2;
    }
    window[n] = token;
    return n + 1;
}

static void the_tokens_of_the_forward_pass(void **state)
{
    (void)state;
    static const int prompts[] = {1, CONTEXT - 1, CONTEXT, 3 * CONTEXT + 1};
    static struct rig rig, rigs[CONTEXT + 1]; /* by length */
    open(&rig, 1, CONTEXT, 2);
    for (size_t i = 0; i < sizeof prompts / sizeof prompts[0]; i++) {
        struct dpt_generator *g =
            begin_generator(&rig, (struct dpt_token_choice_settings){0.0, 0, 0});
        int32_t window[CONTEXT], token;
        int n = 0;
        for (int k = 0; k < prompts[i]; k++) {
            token = (int32_t)((7 * k + (int)i) % VOCAB);
            dpt_generator_feed(g, token);
            n = append_token(window, n, token);
        }
        for (int k = 0; k < TOKENS; k++) { /* beyond the context */
            assert_int_equal(dpt_generator_seen(g), n);
            const int32_t expected = likeliest(rigs, window, n);
            assert_int_equal(dpt_generator_next(g, &token, &err), DPT_OK);
            if (token != expected)
                fail_msg("prompt %d, token %d: %d, not %d", prompts[i], k, token, expected);
            n = append_token(window, n, token);
        }
        dpt_generator_destroy(&g);
    }
    rig_close(&rig);
    for (int n = 0; n <= CONTEXT; n++)
        if (rigs[n].model)
            rig_close(&rigs[n]);
}

static void draw_text(int threads, uint64_t seed, int32_t ret[TOKENS], float last[VOCAB])
{
    struct rig rig;
    open(&rig, 1, CONTEXT, threads);
    struct dpt_generator *g =
        begin_generator(&rig, (struct dpt_token_choice_settings){1.5, 20, seed});
    for (int32_t k = 0; k < 6; k++)
        dpt_generator_feed(g, k);
    for (int k = 0; k < TOKENS; k++)
        assert_int_equal(dpt_generator_next(g, &ret[k], &err), DPT_OK);
    memcpy(last, dpt_generator_logits(g), VOCAB * sizeof *last);
    dpt_generator_destroy(&g);
    rig_close(&rig);
}

static void one_text_for_a_seed(void **state)
{
    (void)state;
    int32_t first[TOKENS], other[TOKENS];
    float first_last[VOCAB], other_last[VOCAB];
    draw_text(1, 1, first, first_last);
    for (int threads = 1; threads <= 4; threads++) {
        draw_text(threads, 1, other, other_last);
        assert_memory_equal(first, other, sizeof first);
        assert_memory_equal(first_last, other_last, sizeof first_last);
    }
    draw_text(1, 2, other, other_last);
    assert_memory_not_equal(first, other, sizeof first);
}

/* A tokenizer may have fewer tokens than the model has room for: those beyond are never drawn. */
static void only_tokens_that_there_are(void **state)
{
    (void)state;
    struct rig rig;
    open(&rig, 1, CONTEXT, 1);
    const struct dpt_generator_options options = {.model = rig.model,
                                                  .device = rig.dev,
                                                  .stream = rig.stream,
                                                  .flat = rig.flat,
                                                  .tokens = 5,
                                                  .sampling = {50.0, 0, 3}};
    struct dpt_generator *g = NULL;
    assert_int_equal(dpt_generator_create(&options, &g, &err), DPT_OK);
    dpt_generator_feed(g, 1);
    int seen = 0;
    for (int k = 0; k < 200; k++) {
        int32_t token;
        assert_int_equal(dpt_generator_next(g, &token, &err), DPT_OK);
        assert_in_range(token, 0, 4);
        seen |= 1 << token;
    }
    assert_int_equal(seen, 31);
    dpt_generator_destroy(&g);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_tokens_of_the_forward_pass),
        cmocka_unit_test(one_text_for_a_seed),
        cmocka_unit_test(only_tokens_that_there_are),
    };
    return cmocka_run_group_tests_name("generator", tests, NULL, NULL);
}
