/* The bytes that a strategy says it sends in a step are those of the table of
 * docs/strategies.md. */
#include "tests/worker/strategy/memory_scene.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* Of all ranks together. */
static double sent(struct scene *s, const struct place *place)
{
    double bytes = 0;
    for (int rank = 0; rank < place->world.size; rank++) {
        struct part p;
        struct dpt_strategy_cost cost;
        open_part(s, &p);
        enter_world(&p, place, rank);
        dpt_strategy_cost(p.strategy, &cost);
        bytes += (double)cost.sent_bytes;
        dpt_strategy_end_generation(p.strategy);
        close_part(&p);
    }
    return bytes;
}

/* The table of docs/strategies.md, N = 4, 8 slots: of all ranks a d D + b W, W = P w. Units that
 * are gathered again are gathered between once and twice in each of two waves, the embedding
 * once. */
static void test_sent_by_the_table(void **state)
{
    (void)state;
    const double way = 3.0 / 4; /* (N-1)/N */
    const struct {
        int variant, world;
        enum dpt_accumulate accumulate;
        double d, w, w_most;
    } cases[] = {
        {0, 4, DPT_ACCUMULATE_LOCAL, 4 * 2 * way, 0, 0},
        {1, 4, DPT_ACCUMULATE_LOCAL, 4 * 2 * way, 0, 0},
        {4, 4, DPT_ACCUMULATE_LOCAL, 4 * 2 * way, 0, 0},
        {0, 7, DPT_ACCUMULATE_REDUCE, (8 + 4) * way, 0, 0},
        {4, 7, DPT_ACCUMULATE_REDUCE, (8 + 4) * way, 0, 0},
        {2, 7, DPT_ACCUMULATE_REDUCE, (8 + 4 * 2) * way, 0, 0},
        {5, 7, DPT_ACCUMULATE_LOCAL, 4 * way, 4 * way, 4 * way},
        {5, 7, DPT_ACCUMULATE_REDUCE, 8 * way, 4 * way, 4 * way},
        {6, 7, DPT_ACCUMULATE_REDUCE, 8 * way, 4 * way, 4 * way},
        {6, 7, DPT_ACCUMULATE_LOCAL, 8 * way, 4 * way, 4 * way},
        {10, 7, DPT_ACCUMULATE_REDUCE, 8 * way, 4 * way, 4 * way},
        {7, 7, DPT_ACCUMULATE_REDUCE, 8 * way, 4 * way, 4 * 4 * way},
        {9, 7, DPT_ACCUMULATE_LOCAL, 8 * way, 4 * way, 4 * 4 * way},
        {11, 5, DPT_ACCUMULATE_LOCAL, 8.0 / 2 + 4 * (1.0 / 4 + 1.0 / 4), 4.0 / 2, 4 * 4.0 / 2},
        {13, 7, DPT_ACCUMULATE_REDUCE, 8 * way + 1, 4 * way - 1, 4 * way - 1},
        {16, 4, DPT_ACCUMULATE_LOCAL, 8 * way, 4 * way, 4 * way},
        {16, 7, DPT_ACCUMULATE_REDUCE, 8 * way, 4 * way, 4 * way},
    };
    for (int half = 0; half < 2; half++)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            struct scene s;
            struct place place;
            open_scene(&s, &variants[cases[i].variant], cases[i].accumulate,
                       half ? DPT_PRECISION_BF16 : DPT_PRECISION_FP32, 1500, 8);
            s.config.train.lanes = 4;
            make_place(&s, cases[i].world, &place);
            const double p = (double)dpt_model_flat_numel(s.model), w = half ? 2 : 4,
                         least = cases[i].d * 4 * p + cases[i].w * w * p,
                         most = cases[i].d * 4 * p + cases[i].w_most * w * p,
                         bytes = sent(&s, &place);
            if (bytes < least * 0.98 || bytes > most * 1.02) /* pieces are in whole blocks */
                fail_msg("case %zu, %d bytes an element: %.0f bytes sent, not %.0f to %.0f", i,
                         (int)w, bytes, least, most);
            dpt_model_destroy(&s.model);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sent_by_the_table),
    };
    return cmocka_run_group_tests_name("bytes_sent", tests, make_device, destroy_device);
}
