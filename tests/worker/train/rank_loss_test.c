/* Losses at difficult moments: during a formation, two at once, of the sender and of the receiver
 * of the state, of checkpoints. In every case the hash is that of the undisturbed run. */
#include "tests/worker/train/rank_rig.h"

#include "base/clock.h"
#include "base/fs.h"
#include "checkpoint/checkpoint.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Handles of the spares. */
enum { SUBSTITUTE = 3, OTHER = 4 };

enum { STEPS = 24 };

static char calm[64]; /* the undisturbed run of standard() */

static struct dpt_config standard(void)
{
    return rig_make_config(14, STEPS, "");
}

static int setup(void **state)
{
    if (rig_setup(state) != 0)
        return -1;
    struct dpt_config config = standard();
    rig_undisturbed(&config, "calm", 1, false, calm);
    return 0;
}

/* Faults come at different moments: this much time passes first. Nothing depends on how much. */
static void let_pass_us(int us)
{
    const struct timespec time = {.tv_nsec = us * 1000L};
    (void)nanosleep(&time, NULL); /* tidy: pause of a bounded poll (here: one turn) */
}

static struct director *begin_three(const char *name, bool two_hosts, char dir[128])
{
    struct dpt_config config = standard();
    struct director *d = rig_begin(&config, name, dir);
    for (int i = 0; i < 3; i++)
        (void)director_start(d, two_hosts ? i % 2 : 0);
    /* Two spares, which can join at once, before the end of the run. */
    for (int i = 0; i < 2; i++)
        director_bench(d, director_start(d, i), true);
    assert_true(director_form(d, false));
    return d;
}

static void finish_loss_story(struct director **d, const char *what)
{
    const char *hash = director_finish(*d);
    if (strcmp(hash, calm) != 0)
        fail_msg("%s: %s instead of %s", what, hash, calm);
    director_destroy(d);
}

/* A step that the dead saw committed, a survivor saw too. */
static void expect_none_lost(const struct director *d)
{
    assert_int_equal(director_steps_lost(d), 0);
}

/* Between PREPARE and the report. */
static void lost_before_the_report(void **state)
{
    (void)state;
    for (int victim = 0; victim < 3; victim++)
        for (int two_hosts = dpt_test_every() > 1 ? victim % 2 : 0; two_hosts < 2;
             two_hosts += dpt_test_every()) {
            char name[32], dir[128];
            (void)snprintf(name, sizeof name, "report-%d-%d", victim, two_hosts);
            struct director *d = begin_three(name, two_hosts != 0, dir);
            director_await_step(d, 3);
            director_send_prepare(d);
            director_kill(d, victim);
            assert_true(director_form(d, false));
            expect_none_lost(d);
            finish_loss_story(&d, name);
        }
}

/* Between PLAN and READY: the communicator waits for a rank that never connects. */
static void lost_after_the_plan(void **state)
{
    (void)state;
    for (int victim = 0; victim < 3; victim++)
        for (int two_hosts = dpt_test_every() > 1 ? victim % 2 : 0; two_hosts < 2;
             two_hosts += dpt_test_every()) {
            char name[32], dir[128];
            (void)snprintf(name, sizeof name, "plan-%d-%d", victim, two_hosts);
            struct director *d = begin_three(name, two_hosts != 0, dir);
            director_await_step(d, 3);
            director_prepare(d, false);
            director_plan(d);
            let_pass_us(victim * 300);
            director_kill(d, victim);
            assert_true(director_form(d, false));
            director_await_step(d, 6);
            /* The rank that replaces it dies, too. */
            director_bench(d, SUBSTITUTE, false);
            director_prepare(d, false);
            director_plan(d);
            director_kill(d, SUBSTITUTE);
            assert_true(director_form(d, false));
            expect_none_lost(d);
            finish_loss_story(&d, name);
        }
}

static void two_lost_at_once(void **state)
{
    (void)state;
    static const int pairs[][2] = {{0, 1}, {0, 2}, {1, 3}, {2, 3}};
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i += dpt_test_every()) {
        char name[32], dir[128];
        (void)snprintf(name, sizeof name, "pair-%d", (int)i);
        struct director *d = begin_three(name, i % 2 == 0, dir);
        director_bench(d, SUBSTITUTE, false);
        assert_true(director_form(d, false));
        director_await_step(d, 4);
        director_kill(d, pairs[i][0]);
        if (i >= 2) /* the second one during the recovery from the first */
            director_prepare(d, false);
        director_kill(d, pairs[i][1]);
        assert_true(director_form(d, false));
        expect_none_lost(d);
        finish_loss_story(&d, name);
    }
}

static void a_joiner_lost_while_healed(void **state)
{
    (void)state;
    for (int us = 0; us <= 4000; us += 500 * dpt_test_every()) {
        char name[32], dir[128];
        (void)snprintf(name, sizeof name, "joiner-%d", us);
        struct director *d = begin_three(name, us % 1000 == 0, dir);
        director_await_step(d, 3);
        director_bench(d, SUBSTITUTE, false);
        director_prepare(d, false);
        director_plan(d);
        let_pass_us(us);
        director_kill(d, SUBSTITUTE);
        director_bench(d, OTHER, false);
        assert_true(director_form(d, false));
        expect_none_lost(d);
        finish_loss_story(&d, name);
    }
}

/* A spare with an old state receives the new one when the sender dies, and no other rank is left:
 * the half received state must not be taken for the old one. */
static void a_healer_lost_while_healing(void **state)
{
    (void)state;
    struct dpt_config config =
        rig_make_config(14, 8, ""); /* own one: healing takes long enough to be hit */
    config.model.n_embd = 192;
    config.checkpoint.every_steps = 1000;
    char expected[64];
    rig_undisturbed(&config, "healed-calm", 2, false, expected);
    for (int us = 0; us <= 3000; us += 500 * dpt_test_every()) {
        char name[32], dir[128];
        (void)snprintf(name, sizeof name, "healer-%d", us);
        struct director *d = rig_begin(&config, name, dir);
        int healer = director_start(d, 0), spare = director_start(d, us % 1000 == 0 ? 0 : 1);
        assert_true(director_form(d, false));
        director_await_step(d, 2);
        director_bench(d, spare, true);
        assert_true(director_form(d, false));
        director_await_step(d, 5);
        director_bench(d, spare, false);
        director_prepare(d, false);
        director_plan(d);
        let_pass_us(us);
        director_kill(d, healer);
        assert_true(director_form(d, false));
        const char *hash = director_finish(d);
        if (strcmp(hash, expected) != 0)
            fail_msg("%s: %s instead of %s", name, hash, expected);
        director_destroy(&d);
    }
}

/* Changes one byte in every file of a checkpoint with `part` in its name. */
static void damage(const char *dir, int64_t step, const char *part)
{
    char path[256];
    (void)snprintf(path, sizeof path, "%s/checkpoints/step-%08lld", dir, (long long)step);
    DIR *folder = opendir(path);
    assert_non_null(folder);
    int damaged = 0;
    for (struct dirent *e; (e = readdir(folder));) {
        if (!strstr(e->d_name, part))
            continue;
        int fd = openat(dirfd(folder), e->d_name, O_RDWR);
        assert_true(fd >= 0);
        off_t at = lseek(fd, 0, SEEK_END) - 9;
        char byte;
        assert_int_equal(pread(fd, &byte, 1, at), 1);
        byte ^= 1;
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
        assert_int_equal(close(fd), 0);
        damaged++;
    }
    assert_int_equal(closedir(folder), 0);
    assert_true(damaged > 0);
}

static int64_t start_step_of(const char *dir)
{
    json_t *summary = rig_summary_of(dir);
    int64_t step = json_integer_value(json_object_get(summary, "start_step"));
    json_decref(summary);
    return step;
}

/* All die; another number of ranks continues from the checkpoint. */
static void resumed_by_another_world(void **state)
{
    (void)state;
    static const int worlds[][2] = {{3, 1}, {1, 4}, {2, 3}};
    struct dpt_config config = standard();
    for (size_t i = 0; i < sizeof worlds / sizeof worlds[0]; i += dpt_test_every()) {
        char name[32], dir[128];
        (void)snprintf(name, sizeof name, "resumed-%d", (int)i);
        struct director *d = rig_begin(&config, name, dir);
        for (int rank = 0; rank < worlds[i][0]; rank++)
            (void)director_start(d, rank % 2);
        assert_true(director_form(d, false));
        director_await_checkpoint(d, 4);
        director_destroy(&d);
        d = rig_begin(&config, name, dir);
        for (int rank = 0; rank < worlds[i][1]; rank++)
            (void)director_start(d, rank % 2);
        assert_true(director_form(d, false));
        finish_loss_story(&d, name);
        assert_true(start_step_of(dir) >= 4);
    }
}

/* The newest checkpoint is damaged: the one before it serves, and the damaged one is replaced. */
static void a_damaged_checkpoint_is_passed_over(void **state)
{
    (void)state;
    static const char *const parts[] = {"model-", "MANIFEST.json", "state.json"};
    struct dpt_config config = standard();
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i += dpt_test_every()) {
        char name[32], dir[128];
        (void)snprintf(name, sizeof name, "damaged-%d", (int)i);
        struct director *d = rig_begin(&config, name, dir);
        for (int rank = 0; rank < 2; rank++)
            (void)director_start(d, 0);
        assert_true(director_form(d, false));
        finish_loss_story(&d, name);
        damage(dir, STEPS, parts[i]);
        d = rig_begin(&config, name, dir);
        for (int rank = 0; rank < 3; rank++)
            (void)director_start(d, 0);
        assert_true(director_form(d, false));
        finish_loss_story(&d, name);
        /* Not every one was due: a save may still have been under way. */
        assert_true(start_step_of(dir) >= 4 && start_step_of(dir) < STEPS);
    }
}

/* No checkpoint is complete: the run does not restart at step 0 over them, unless that is allowed.
 */
static void all_checkpoints_damaged(void **state)
{
    (void)state;
    struct dpt_config config = standard();
    for (int nodes_max = 1; nodes_max <= 8; nodes_max += 7) {
        char name[32], dir[128], checkpoints[160];
        int64_t left = 0;
        struct dpt_err err;
        (void)snprintf(name, sizeof name, "all-damaged-%d", nodes_max);
        struct director *d = rig_begin(&config, name, dir);
        (void)director_start(d, 0);
        assert_true(director_form(d, false));
        finish_loss_story(&d, name);
        (void)snprintf(checkpoints, sizeof checkpoints, "%s/checkpoints", dir);
        for (int64_t step = STEPS; step >= 0; step--) {
            char path[192];
            (void)snprintf(path, sizeof path, "%s/step-%08lld", checkpoints, (long long)step);
            if (dpt_fs_exists(path))
                damage(dir, step, "model-");
        }
        config.cluster.nnodes_max = nodes_max;
        d = rig_begin(&config, name, dir);
        const char *text = NULL;
        if (!director_fatal(d, director_start(d, 0), &text)) { /* others might have whole ones */
            assert_int_equal(nodes_max, 8);
            director_prepare(d, false);
            director_plan(d);
            text = director_await_fatal(d);
        }
        assert_non_null(strstr(text, "none from which the run can continue"));
        assert_non_null(strstr(text, "dpt-ckpt list --verify"));
        assert_non_null(strstr(text, "--allow-fresh"));
        director_destroy(&d);
        assert_int_equal(dpt_checkpoint_count(checkpoints, &left, &err), DPT_OK);
        assert_true(left >= 1);
        d = rig_begin(&config, name, dir);
        director_allow_fresh(d);
        (void)director_start(d, 0);
        assert_true(director_form(d, false));
        finish_loss_story(&d, name);
        assert_int_equal(start_step_of(dir), 0);
    }
}

/* The folder makes place for a file; a save that is under way may put it back. */
static void put_file_for_folder(const char *path)
{
    char aside[192];
    struct dpt_err err;
    enum dpt_status status = DPT_EIO;
    for (int i = 0; status != DPT_OK && i < 100; i++) {
        (void)snprintf(aside, sizeof aside, "%s-aside-%d", path, i);
        (void)rename(path, aside);
        status = dpt_fs_write_file_atomic(path, "x", 1, &err);
    }
    assert_int_equal(status, DPT_OK);
}

/* The disk takes no checkpoint: training continues, and only the missing last checkpoint fails the
 * run. */
static void a_disk_that_takes_no_checkpoint(void **state)
{
    (void)state;
    struct dpt_config config = standard();
    for (int world = 1; world <= 2; world++) {
        char name[32], dir[128], checkpoints[160];
        (void)snprintf(name, sizeof name, "full-%d", world);
        struct director *d = rig_begin(&config, name, dir);
        for (int rank = 0; rank < world; rank++)
            (void)director_start(d, 0);
        (void)snprintf(checkpoints, sizeof checkpoints, "%s/checkpoints", dir);
        assert_true(director_form(d, false));
        director_await_checkpoint(d, 4);
        put_file_for_folder(checkpoints);
        director_await_step(d, STEPS);
        const char *text = director_await_fatal(d);
        if (!strstr(text, "the last checkpoint") || !strstr(text, checkpoints))
            fail_msg("'%s' does not say what failed", text);
        director_destroy(&d);
    }
}

/* Checkpoints in a folder that cannot be read for a while still count: else the run would restart
 * at step 0 after the next loss. */
static void checkpoints_that_cannot_be_looked_up(void **state)
{
    (void)state;
    struct dpt_config config = standard();
    char dir[128], checkpoints[160];
    config.train.steps =
        400; /* so that the last checkpoint is not due while the folder is hidden */
    struct director *d = rig_begin(&config, "hidden", dir);
    const int handle = director_start(d, 0);
    (void)director_start(d, 0);
    (void)snprintf(checkpoints, sizeof checkpoints, "%s/checkpoints", dir);
    assert_true(director_form(d, false));
    director_await_checkpoint(d, 4);
    assert_true(director_form(d, false));
    const int64_t seen = director_checkpoint_step(d, handle);
    assert_true(seen >= 4);
    put_file_for_folder(checkpoints);
    assert_true(director_form(d, false));
    assert_true(director_checkpoint_step(d, handle) >= seen);
    director_destroy(&d);
}

/* It is gone, as with its mount; or reading it fails with an error of input and output. */
static void hide(const char *path, bool gone)
{
    char aside[DPT_CONFIG_PATH_BYTES + 8];
    (void)snprintf(aside, sizeof aside, "%s-aside", path);
    assert_int_equal(rename(path, aside), 0);
    if (!gone)
        assert_int_equal(symlink(path, path), 0);
}

static void show(const char *path)
{
    char aside[DPT_CONFIG_PATH_BYTES + 8];
    (void)snprintf(aside, sizeof aside, "%s-aside", path);
    (void)unlink(path);
    assert_int_equal(rename(aside, path), 0);
}

/* Tokens that cannot be read for a while end processes, one after another, and not the run. */
static void tokens_that_cannot_be_read(void **state)
{
    (void)state;
    struct dpt_config config = standard();
    rig_evaluate(&config, 6, 4);
    const char *const paths[] = {config.data.train, config.data.val};
    for (int i = 0; i < 4; i++) {
        const char *const path = paths[i % 2];
        const bool gone = i >= 2;
        char name[32], dir[128];
        (void)snprintf(name, sizeof name, "unread-%d", i);
        struct director *d = rig_begin(&config, name, dir);
        (void)director_start(d, 0);
        hide(path, gone);
        (void)director_form(d, false);
        const char *text = director_await_broken(d);
        if (!strstr(text, path) || !strstr(text, gone ? "No such file" : "symbolic links"))
            fail_msg("'%s' does not say what failed", text);
        director_respawn(d);
        (void)director_start(d, 0); /* cannot even open them */
        assert_non_null(strstr(director_await_broken(d), path));
        show(path);
        (void)director_start(d, 0);
        assert_true(director_form(d, false));
        finish_loss_story(&d, name);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lost_before_the_report),
        cmocka_unit_test(lost_after_the_plan),
        cmocka_unit_test(two_lost_at_once),
        cmocka_unit_test(a_joiner_lost_while_healed),
        cmocka_unit_test(a_healer_lost_while_healing),
        cmocka_unit_test(resumed_by_another_world),
        cmocka_unit_test(a_damaged_checkpoint_is_passed_over),
        cmocka_unit_test(all_checkpoints_damaged),
        cmocka_unit_test(a_disk_that_takes_no_checkpoint),
        cmocka_unit_test(checkpoints_that_cannot_be_looked_up),
        cmocka_unit_test(tokens_that_cannot_be_read),
    };
    return cmocka_run_group_tests_name("rank_loss", tests, setup, rig_teardown);
}
