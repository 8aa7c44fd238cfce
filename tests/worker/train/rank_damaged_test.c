/* Checkpoints with right sizes and wrong bytes, newer than the intact one: no world continues from
 * them, and they do not count as saved. */
#include "tests/worker/train/rank_rig.h"

#include "base/fs.h"
#include "checkpoint/checkpoint.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

enum { STEPS = 200, SOUND = 4, DAMAGED = 12, MANY_DAMAGED = 40, SOON_MS = 10000 };

static struct dpt_config make_damaged_config(int every_steps)
{
    struct dpt_config config = rig_make_config(14, STEPS, "");
    config.checkpoint.every_steps = every_steps;
    config.checkpoint.keep = 100;
    return config;
}

static const char *calm_hash(void)
{
    static char hash[64];
    const struct dpt_config config = make_damaged_config(SOUND);
    if (!hash[0])
        rig_undisturbed(&config, "calm", 1, false, hash);
    return hash;
}

static void flip_byte(const char *path)
{
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, -5, SEEK_END), 0);
    const int byte = fgetc(f);
    assert_int_equal(fseek(f, -5, SEEK_END), 0);
    assert_int_equal(fputc(byte ^ 1, f), byte ^ 1);
    assert_int_equal(fclose(f), 0);
}

/* Complete by its sizes, and damaged; its other files are not read. */
static void write_damaged(const char *checkpoints, int64_t step)
{
    float value[4] = {1, 2, 3, 4};
    char path[256];
    struct dpt_err err;
    const struct dpt_checkpoint_tensor tensor = {
        .name = "x", .ndim = 1, .dim = {4}, .param = value};
    const struct dpt_checkpoint_piece piece = {.end = 4, .param = value};
    const struct dpt_checkpoint_spec spec = {
        .dir = checkpoints,
        .n_writers = 1,
        .generation = 1,
        .attempt = "damaged",
        .tensors = &tensor,
        .n_tensors = 1,
        .pieces = &piece,
        .n_pieces = 1,
        .hf_config_json = "{}",
        .state = {.step = step, .config_yaml = "run: other\n", .history_json = "[]"},
        .keep = 1000};
    assert_int_equal(dpt_checkpoint_write_part(&spec, &err), DPT_OK);
    assert_int_equal(dpt_checkpoint_collect(&spec, 1000, &err), DPT_OK);
    assert_int_equal(dpt_checkpoint_commit(&spec, &err), DPT_OK);
    (void)snprintf(path, sizeof path, "%s/step-%08lld/model-00001-of-00001.safetensors",
                   checkpoints, (long long)step);
    flip_byte(path);
}

/* A run that was stopped after its checkpoint of step SOUND; those of the `n` steps after it are
 * damaged. */
static void make_damaged(const char *name, int n, char dir[128])
{
    const struct dpt_config config = make_damaged_config(SOUND);
    struct director *d = rig_begin(&config, name, dir);
    char checkpoints[160];
    (void)snprintf(checkpoints, sizeof checkpoints, "%s/checkpoints", dir);
    (void)director_start(d, 0);
    assert_true(director_form(d, false));
    director_await_checkpoint(d, SOUND);
    director_destroy(&d);
    for (int64_t step = SOUND + 1; step <= STEPS; step++) {
        char path[224];
        struct dpt_err err;
        (void)snprintf(path, sizeof path, "%s/step-%08lld", checkpoints, (long long)step);
        if (dpt_fs_exists(path))
            assert_int_equal(dpt_fs_remove_tree(path, &err), DPT_OK);
    }
    for (int i = 1; i <= n; i++)
        write_damaged(checkpoints, SOUND + i);
}

/* The newest below `below`, by its sizes. */
static int64_t newest_below(const char *dir, int64_t below)
{
    char path[160];
    struct dpt_err err;
    int64_t step = -7;
    (void)snprintf(path, sizeof path, "%s/checkpoints", dir);
    assert_int_equal(dpt_checkpoint_newest_below(path, below, &step, &err), DPT_OK);
    return step;
}

static void finish_as_calm(const char *name, int64_t from)
{
    char dir[128];
    const struct dpt_config config = make_damaged_config(SOUND);
    struct director *d = rig_begin(&config, name, dir);
    (void)director_start(d, 0);
    director_prepare(d, false);
    assert_int_equal(director_checkpoint_step(d, 0), from);
    assert_true(director_form(d, false));
    assert_string_equal(director_finish(d), calm_hash());
    director_destroy(&d);
}

/* The server is gone and the node leaves, at a step that a damaged checkpoint has, too. */
static void rescue_is_written_beside_damaged_checkpoint(void **state)
{
    (void)state;
    const struct dpt_config config = make_damaged_config(0); /* nothing is saved on the way */
    char dir[128], path[192];
    make_damaged("rescued", MANY_DAMAGED, dir);
    struct director *d = rig_begin(&config, "rescued", dir);
    for (int i = 0; i < 2; i++)
        (void)director_start(d, i);
    assert_true(director_form(d, false));
    director_await_step(d, SOUND + 2);
    director_prepare(d, true);
    const int64_t step = director_best_step(d);
    assert_true(step < STEPS);
    assert_int_equal(director_rescue(d, SOON_MS), 2);
    director_destroy(&d);
    (void)snprintf(path, sizeof path, "%s/checkpoints/rescue-step-%08lld", dir, (long long)step);
    assert_true(dpt_fs_exists(path));
    finish_as_calm("rescued", step);
}

/* A second node joins: no plan continues from a checkpoint that a node has not verified. */
static void no_plan_resumes_from_unverified_checkpoint(void **state)
{
    (void)state;
    const struct dpt_config config = make_damaged_config(0);
    char dir[128], said[160];
    make_damaged("joined", DAMAGED, dir);
    const int fd = rig_log_to(dir, said);
    struct director *d = rig_begin(&config, "joined", dir);
    (void)director_start(d, 0);
    assert_true(director_form(d, false));
    director_await_step(d, SOUND + 1);
    (void)director_start(d, 1);
    director_prepare(d, true);
    for (int i = 0; i < 2; i++)
        assert_int_equal(director_checkpoint_step(d, i), SOUND);
    assert_true(director_form(d, false));
    assert_string_equal(director_finish(d), calm_hash());
    director_destroy(&d);
    rig_log_back(fd);
    assert_int_equal(rig_said(said, "is skipped: "), 2 * DAMAGED); /* each once, by each rank */
}

/* Both ranks have written their parts of the step that a damaged checkpoint has, and the server is
 * gone: no commit has taken that one's place. */
static void a_part_that_is_written_is_no_checkpoint(void **state)
{
    (void)state;
    const struct dpt_config config = make_damaged_config(SOUND);
    char dir[128];
    make_damaged("uncommitted", 2 * SOUND, dir);
    struct director *d = rig_begin(&config, "uncommitted", dir);
    for (int i = 0; i < 2; i++)
        (void)director_start(d, i);
    director_withhold_grants(d);
    assert_true(director_form(d, false));
    director_await_step(d, 2 * SOUND + 60); /* the second has its part on disk */
    director_prepare(d, false);
    for (int i = 0; i < 2; i++)
        assert_int_equal(director_checkpoint_step(d, i), SOUND);
    assert_true(director_best_step(d) < STEPS);
    assert_int_equal(director_rescue(d, SOON_MS), 2);
    const int64_t step = director_best_step(d);
    director_destroy(&d);
    finish_as_calm("uncommitted", step);
}

/* The run reaches the step again, and its last checkpoint replaces the damaged one. */
static void a_damaged_last_checkpoint_is_written_again(void **state)
{
    (void)state;
    struct dpt_config config = make_damaged_config(SOUND);
    char dir[128], path[256], hash[64];
    rig_undisturbed(&config, "last", 1, false, hash);
    (void)snprintf(dir, sizeof dir, "%s", rig_dir("last"));
    (void)snprintf(path, sizeof path, "%s/checkpoints/step-%08d/config.json", dir, STEPS);
    flip_byte(path);
    finish_as_calm("last", newest_below(dir, STEPS));
    struct dpt_err err;
    struct dpt_checkpoint *checkpoint = NULL;
    (void)snprintf(path, sizeof path, "%s/checkpoints", dir);
    assert_int_equal(dpt_checkpoint_open(path, STEPS, &checkpoint, &err), DPT_OK);
    assert_int_equal(dpt_checkpoint_verify(checkpoint, &err), DPT_OK);
    dpt_checkpoint_close(&checkpoint);
}

/* Damage that is known counts as no checkpoint when older ones are removed, and stays. */
static void damaged_checkpoint_does_not_count_as_kept(void **state)
{
    (void)state;
    struct dpt_config config = make_damaged_config(0);
    char dir[128];
    make_damaged("pruned", DAMAGED, dir);
    config.checkpoint.keep = 2;
    struct director *d = rig_begin(&config, "pruned", dir);
    (void)director_start(d, 0);
    assert_true(director_form(d, false));
    assert_string_equal(director_finish(d), calm_hash());
    director_destroy(&d);
    assert_int_equal(newest_below(dir, STEPS + 1), STEPS);
    int n = 0;
    for (int64_t step = newest_below(dir, STEPS); step > SOUND; step = newest_below(dir, step))
        n++;
    assert_int_equal(n, DAMAGED);
    assert_int_equal(newest_below(dir, SOUND + 1), SOUND); /* the second of those that count */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rescue_is_written_beside_damaged_checkpoint),
        cmocka_unit_test(no_plan_resumes_from_unverified_checkpoint),
        cmocka_unit_test(a_part_that_is_written_is_no_checkpoint),
        cmocka_unit_test(a_damaged_last_checkpoint_is_written_again),
        cmocka_unit_test(damaged_checkpoint_does_not_count_as_kept),
    };
    return cmocka_run_group_tests_name("rank_damaged", tests, rig_setup, rig_teardown);
}
