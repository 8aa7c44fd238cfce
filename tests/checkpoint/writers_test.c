/* Writers that are cancelled, missing, of several generations, or run at the same time. */
#include "tests/checkpoint/checkpoint_fixture.h"

#include "base/clock.h"
#include "base/fs.h"
#include "base/log.h"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static struct dpt_err err;

static bool yes(void *ctx)
{
    int *left = ctx;
    return (*left)-- <= 0;
}

/* Cancelled at each poll in turn: no checkpoint appears, and the next attempt succeeds. */
static void cancelled_at_each_poll(void **state)
{
    (void)state;
    struct model model;
    model_init(&model, 20, 1);
    int polls = 0;
    for (;; polls++) {
        assert_true(polls < 100);
        struct dpt_checkpoint_spec spec = model_spec(&model, root, 20, 0, 1);
        int left = polls;
        spec.cancelled = yes;
        spec.ctx = &left;
        enum dpt_status status = model_write_part(&spec, &err);
        if (status == DPT_OK)
            status = dpt_checkpoint_collect(&spec, 1000, &err);
        if (status == DPT_OK)
            status = dpt_checkpoint_commit(&spec, &err);
        if (status == DPT_OK)
            break;
        assert_int_equal(status, DPT_EABORTED);
        dpt_checkpoint_abandon(&spec);
        int64_t step;
        OK(dpt_checkpoint_newest(root, &step, &err));
        assert_int_equal(step, -1);
    }
    assert_true(polls >= 6); /* before, each block, both sides of the manifest */
    OK(model_check(root, 20, 1, &err));
    model_fini(&model);
}

static bool is_set(void *ctx)
{
    return *(const bool *)ctx;
}

static void set(void *ctx)
{
    *(bool *)ctx = true;
}

/* Cancelled after the last write, and after all parts are there: no further sync is waited for. */
static void cancelled_before_the_syncs(void **state)
{
    (void)state;
    struct model model;
    model_init(&model, 20, 1);
    bool given_up = false;
    struct dpt_checkpoint_spec spec = model_spec(&model, root, 20, 0, 1);
    spec.cancelled = is_set;
    spec.taken = set;
    spec.ctx = &given_up;
    assert_int_equal(model_write_part(&spec, &err), DPT_EABORTED);
    dpt_checkpoint_abandon(&spec);
    given_up = false;
    spec.taken = NULL;
    OK(model_write_part(&spec, &err));
    given_up = true;
    assert_int_equal(dpt_checkpoint_collect(&spec, 1000, &err), DPT_EABORTED);
    dpt_checkpoint_abandon(&spec);
    model_fini(&model);
}

static void a_writer_is_missing(void **state)
{
    (void)state;
    struct model model;
    model_init(&model, 20, 1);
    const struct dpt_checkpoint_spec spec = model_spec(&model, root, 20, 0, 3);
    OK(model_write_part(&spec, &err));
    assert_int_equal(dpt_checkpoint_collect(&spec, 20, &err), DPT_ETIMEOUT);
    assert_non_null(strstr(err.text, "writer 1 of 3"));
    assert_int_not_equal(dpt_checkpoint_commit(&spec, &err), DPT_OK);
    dpt_checkpoint_abandon(&spec);
    int64_t step;
    OK(dpt_checkpoint_newest(root, &step, &err));
    assert_int_equal(step, -1);
    model_fini(&model);
}

/* Interleaved attempts of two generations at one step; then the leftovers are cleaned. */
static void two_generations(void **state)
{
    (void)state;
    struct model model;
    model_init(&model, 20, 1);
    struct dpt_checkpoint_spec old = model_spec(&model, root, 20, 0, 1), new = old;
    old.generation = 3;
    old.attempt = "old";
    new.attempt = "new";
    OK(model_write_part(&old, &err));
    OK(model_write_part(&new, &err));
    OK(dpt_checkpoint_collect(&old, 1000, &err));
    OK(dpt_checkpoint_collect(&new, 1000, &err));
    OK(dpt_checkpoint_commit(&new, &err));
    OK(model_check(root, 20, 1, &err));
    /* The server refuses this; the checkpoint stays complete even so. */
    OK(dpt_checkpoint_commit(&old, &err));
    OK(model_check(root, 20, 1, &err));
    OK(model_write_part(&old, &err));
    OK(model_write_part(&new, &err));
    dpt_checkpoint_abandon(&old);
    OK(model_write_part(&old, &err));
    OK(dpt_checkpoint_clean(root, 7, "new", &err));
    assert_false(dpt_fs_exists(in_root(".tmp-step-00000020-g3-old")));
    OK(dpt_checkpoint_collect(&new, 1000, &err));
    OK(dpt_checkpoint_commit(&new, &err));
    OK(model_check(root, 20, 1, &err));
    OK(dpt_checkpoint_clean(in_root("absent"), 7, "new", &err));
    model_fini(&model);
}

/* A restarted server counts generations from the beginning: leftovers of an attempt with the same
 * step and generation are removed, and the current attempt stays. */
static void same_generation_number(void **state)
{
    (void)state;
    struct model model;
    model_init(&model, 20, 1);
    struct dpt_checkpoint_spec killed = model_spec(&model, root, 20, 0, 1), now = killed;
    killed.attempt = "killed";
    now.attempt = "now";
    OK(model_write_part(&killed, &err));
    OK(model_write_part(&now, &err));
    OK(dpt_checkpoint_clean(root, now.generation, "now", &err));
    char **names;
    size_t n;
    OK(dpt_fs_list(root, &names, &n, &err));
    assert_int_equal(n, 1);
    assert_non_null(strstr(names[0], "-now"));
    dpt_fs_list_free(&names, n);
    OK(dpt_checkpoint_collect(&now, 1000, &err));
    OK(dpt_checkpoint_commit(&now, &err));
    OK(model_check(root, 20, 1, &err));
    model_fini(&model);
}

/* Threads of one process write step after step while another thread searches for the newest: it
 * finds complete checkpoints only, and never an older one than before. */
enum { THREADS = 4, ROUNDS = 6 };

struct rank_thread {
    pthread_t thread;
    const struct model *models; /* [ROUNDS] */
    int writer;
    enum dpt_status status;
    pthread_barrier_t *barrier;
};

static void *write_as_rank(void *ctx)
{
    struct rank_thread *rank = ctx;
    struct dpt_err why;
    for (int round = 0; round < ROUNDS; round++) {
        const struct dpt_checkpoint_spec spec =
            model_spec(&rank->models[round], root, round + 1, rank->writer, THREADS);
        enum dpt_status status = model_write_part(&spec, &why);
        if (status == DPT_OK && rank->writer == 0)
            status = dpt_checkpoint_collect(&spec, 20000, &why);
        if (status == DPT_OK && rank->writer == 0)
            status = dpt_checkpoint_commit(&spec, &why);
        rank->status = rank->status == DPT_OK ? status : rank->status;
        (void)pthread_barrier_wait(rank->barrier);
    }
    return NULL;
}

static void ranks_as_threads(void **state)
{
    (void)state;
    struct model models[ROUNDS];
    struct rank_thread ranks[THREADS];
    pthread_barrier_t barrier;
    for (int round = 0; round < ROUNDS; round++)
        model_init(&models[round], round + 1, 1);
    assert_int_equal(pthread_barrier_init(&barrier, NULL, THREADS), 0);
    for (int i = 0; i < THREADS; i++) {
        ranks[i] = (struct rank_thread){.models = models, .writer = i, .barrier = &barrier};
        assert_int_equal(pthread_create(&ranks[i].thread, NULL, write_as_rank, &ranks[i]), 0);
    }
    int64_t newest = -1, seen = -1;
    const int64_t deadline_ms = dpt_now_ms() + 30000;
    while (newest < ROUNDS && dpt_now_ms() < deadline_ms) {
        enum dpt_status status = dpt_checkpoint_newest(root, &newest, &err);
        if (status != DPT_OK || newest < seen)
            fail_msg("%d after %d: %s", (int)newest, (int)seen, err.text);
        seen = newest > seen ? newest : seen;
    }
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(ranks[i].thread, NULL), 0);
        assert_int_equal(ranks[i].status, DPT_OK);
    }
    assert_int_equal(newest, ROUNDS);
    OK(model_check(root, ROUNDS, 1, &err));
    for (int round = 0; round < ROUNDS; round++)
        model_fini(&models[round]);
    assert_int_equal(pthread_barrier_destroy(&barrier), 0);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make_root, remove_root)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(cancelled_at_each_poll), TEST(cancelled_before_the_syncs), TEST(a_writer_is_missing),
        TEST(two_generations),        TEST(same_generation_number),     TEST(ranks_as_threads)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
