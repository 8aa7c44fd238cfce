/* train.verify_every stops a run whose ranks differ before the step is logged or saved. */
#include "tests/worker/train/rank_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STEPS = 9 };

static struct dpt_config make_verify_config(int64_t every)
{
    struct dpt_config config = rig_make_config(14, STEPS, "");
    config.train.verify_every = every;
    return config;
}

/* The last line of metrics.jsonl. */
static int last_logged_step(const char *dir)
{
    char path[192], line[1024];
    int step = 0;
    (void)snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        assert_int_equal(sscanf(line, "{\"step\": %d,", &step), 1);
    assert_int_equal(fclose(f), 0);
    return step;
}

/* Rank 1 computes wrong weights in the fourth step, after which they are compared and saved. */
static void a_rank_that_differs_is_named(void **state)
{
    (void)state;
    for (int world = 2; world <= 3; world++) {
        char name[32], dir[128], saved[192];
        const struct dpt_config config = make_verify_config(2);
        (void)snprintf(name, sizeof name, "damaged-%d", world);
        assert_int_equal(setenv("DPT_TEST_FLIP_WEIGHT_BIT", "1:3", 1), 0);
        struct director *d = rig_begin(&config, name, dir);
        for (int rank = 0; rank < world; rank++)
            (void)director_start(d, rank % 2);
        assert_int_equal(unsetenv("DPT_TEST_FLIP_WEIGHT_BIT"), 0);
        assert_true(director_form(d, false));
        const char *text = director_await_fatal(d);
        assert_non_null(
            strstr(text, "rank 1 holds other weights or moments after step 4 than rank 0"));
        assert_non_null(strstr(text, world == 2 ? "too few" : "2 of the 3"));
        director_destroy(&d);
        assert_int_equal(last_logged_step(dir), 3);
        (void)snprintf(saved, sizeof saved, "%s/checkpoints/step-00000004", dir);
        assert_int_not_equal(access(saved, F_OK), 0);
    }
}

/* A rank's own part goes wrong, and its replica's or shadow's does not: ranks 0 and 1 are of one
 * node, 2 and 3 of the other, and shard 3 of 4 is on 3 and 1, as half 1 of 2 is. */
static void a_replica_or_shadow_that_differs_is_found(void **state)
{
    (void)state;
    for (int i = 0; i < RIG_COVERED; i++) {
        char name[48], dir[128];
        struct dpt_config config = make_verify_config(2);
        rig_choose(&config, rig_covered[i]);
        (void)snprintf(name, sizeof name, "apart-%s", rig_covered[i]);
        assert_int_equal(setenv("DPT_TEST_FLIP_WEIGHT_BIT", "3:3", 1), 0);
        struct director *d = rig_begin(&config, name, dir);
        for (int rank = 0; rank < 4; rank++)
            (void)director_start(d, rank % 2);
        assert_int_equal(unsetenv("DPT_TEST_FLIP_WEIGHT_BIT"), 0);
        assert_true(director_form(d, false));
        const char *text = director_await_fatal(d);
        if (!strstr(text, "rank 3 holds other weights or moments after step 4 than rank 1"))
            fail_msg("%s: %s", name, text);
        director_destroy(&d);
        assert_int_equal(last_logged_step(dir), 3);
    }
}

/* Also with 16-bit weights, whose masters are compared, and with a later comparison: the damage
 * stays and is found then. */
static void damage_is_found_later(void **state)
{
    (void)state;
    char dir[128];
    struct dpt_config config = make_verify_config(3);
    config.train.precision = DPT_PRECISION_BF16;
    assert_int_equal(setenv("DPT_TEST_FLIP_WEIGHT_BIT", "2:0", 1), 0);
    struct director *d = rig_begin(&config, "later", dir);
    for (int rank = 0; rank < 3; rank++)
        (void)director_start(d, 0);
    assert_int_equal(unsetenv("DPT_TEST_FLIP_WEIGHT_BIT"), 0);
    assert_true(director_form(d, false));
    assert_non_null(
        strstr(director_await_fatal(d), "rank 2 holds other weights or moments after step 3"));
    director_destroy(&d);
    assert_int_equal(last_logged_step(dir), 2);
}

/* Runs a strategy on nodes with the given number of ranks, and counts the lines that contain these
 * words. */
static int said_of(const char *strategy, int first_node, int second_node, const char *words)
{
    char name[48], dir[128], path[160];
    struct dpt_config config = make_verify_config(2);
    rig_choose(&config, strategy);
    config.train.steps = 2;
    (void)snprintf(name, sizeof name, "said-%s-%d", strategy, second_node);
    struct director *d = rig_begin(&config, name, dir);
    const int fd = rig_log_to(dir, path);
    for (int i = 0; i < first_node + second_node; i++)
        (void)director_start(d, i >= first_node);
    assert_true(director_form(d, false));
    (void)director_finish(d);
    director_destroy(&d);
    rig_log_back(fd);
    return rig_said(path, words);
}

/* A rank with the only copy of a part compares nothing and warns, as on nodes of hybrid_shard with
 * different numbers of ranks. */
static void verify_warns_of_shards_without_replica(void **state)
{
    (void)state;
    static const char nothing[] = "train.verify_every compares nothing: no two of the 2 ranks";
    static const char some[] = "train.verify_every compares nothing of";
    assert_int_equal(said_of("zero2", 1, 1, nothing), 1);
    assert_int_equal(said_of("dp", 3, 0, "compares nothing: no two of the 3 ranks"), 1);
    assert_int_equal(said_of("full_shard", 1, 1, nothing), 1);
    assert_int_equal(said_of("zero2+shadow", 1, 1, "verify_every"), 0);
    assert_int_equal(said_of("ddp", 1, 1, "verify_every"), 0);
    assert_int_equal(said_of("hybrid_shard", 2, 1, "compares nothing: no two of the 3 ranks"), 1);
    assert_int_equal(said_of("hybrid_shard", 2, 2, "verify_every"), 0);
    assert_int_equal(said_of("hybrid_shard", 1, 1, some), 0);
}

/* zero1 gives up its sums of lanes for shadows, and zero2 has none to give up. */
static void slots_sent_for_shadows_are_told(void **state)
{
    (void)state;
    static const char words[] = "makes zero1 send the gradient of every slot";
    assert_int_equal(said_of("zero1+shadow", 1, 1, words), 1);
    assert_int_equal(said_of("zero2+shadow", 1, 2, words), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_that_differs_is_named),
        cmocka_unit_test(a_replica_or_shadow_that_differs_is_found),
        cmocka_unit_test(verify_warns_of_shards_without_replica),
        cmocka_unit_test(slots_sent_for_shadows_are_told),
        cmocka_unit_test(damage_is_found_later),
    };
    return cmocka_run_group_tests_name("rank_verify", tests, rig_setup, rig_teardown);
}
