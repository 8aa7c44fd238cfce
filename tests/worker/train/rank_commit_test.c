/* A rank dies between its messages of a commit: one survivor has the outcome of the step, the
 * others lack it and receive it with the next plan. No step is lost, and the hash is that of the
 * undisturbed run. */
#include "tests/worker/train/trace_view.h"
#include "worker/comm/comm.h"
#include "worker/train/state/outcome.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

enum { STEPS = 12, HURT_STEP = 4, RANKS = 4 };

/* The linker sends the calls of this program's objects here (--wrap), by these names.
   NOLINTBEGIN(bugprone-reserved-identifier) */
void __real_dpt_contribution_pack(const struct dpt_contribution *contribution, int slots_max,
                                  void *buf);
enum dpt_status __real_dpt_comm_small_all_gather(struct dpt_comm *comm, const void *mine,
                                                 size_t bytes, void *ret_all, struct dpt_err *err);
void __wrap_dpt_contribution_pack(const struct dpt_contribution *contribution, int slots_max,
                                  void *buf);
enum dpt_status __wrap_dpt_comm_small_all_gather(struct dpt_comm *comm, const void *mine,
                                                 size_t bytes, void *ret_all, struct dpt_err *err);

/* The rank that is cut off in the commit of HURT_STEP, and the one rank that it has sent to by
 * then. */
static struct scene {
    atomic_int victim; /* a rank; -1: none */
    int told;          /* a rank */
    atomic_int n_packed;
    const void *_Atomic packed[RANKS]; /* the ranks' contributions to that commit */
} scene;

void __wrap_dpt_contribution_pack(const struct dpt_contribution *contribution, int slots_max,
                                  void *buf)
{
    if (scene.victim >= 0 && contribution->step == HURT_STEP) {
        const int i = atomic_fetch_add(&scene.n_packed, 1);
        if (i < RANKS)
            atomic_store(&scene.packed[i], buf);
    }
    __real_dpt_contribution_pack(contribution, slots_max, buf);
}

static bool is_hurt(const struct dpt_comm *comm, const void *mine)
{
    if (dpt_comm_rank(comm) != scene.victim)
        return false;
    for (int i = 0; i < RANKS; i++)
        if (atomic_load(&scene.packed[i]) == mine)
            return true;
    return false;
}

/* All that a small all-gather receives, and one of its sends. */
static enum dpt_status speak_to_one(struct dpt_comm *comm, const void *mine, size_t bytes,
                                    uint8_t *all, struct dpt_err *err)
{
    struct dpt_comm_xfer xfers[RANKS] = {
        {.dir = DPT_COMM_SEND, .peer = scene.told, .bytes = bytes, .buf = (void *)(uintptr_t)mine}};
    int n = 1;
    for (int r = 0; r < dpt_comm_world_size(comm); r++)
        if (r != scene.victim)
            xfers[n++] = (struct dpt_comm_xfer){
                .dir = DPT_COMM_RECV, .peer = r, .bytes = bytes, .buf = all + (size_t)r * bytes};
    struct dpt_comm_op *op;
    enum dpt_status status;
    DPT_TRY(dpt_comm_exchange(comm, xfers, n, &op, err));
    do
        status = dpt_comm_poll(comm, op, -1, err);
    while (status == DPT_INPROGRESS);
    dpt_comm_op_free(comm, &op);
    while (status == DPT_OK || status == DPT_INPROGRESS) /* until it is killed */
        status = dpt_comm_poll_woken(comm, -1, err);
    return status;
}

enum dpt_status __wrap_dpt_comm_small_all_gather(struct dpt_comm *comm, const void *mine,
                                                 size_t bytes, void *ret_all, struct dpt_err *err)
{
    if (is_hurt(comm, mine))
        return speak_to_one(comm, mine, bytes, ret_all, err);
    return __real_dpt_comm_small_all_gather(comm, mine, bytes, ret_all, err);
}

/* NOLINTEND(bugprone-reserved-identifier) */

static void calm_scene(void)
{
    scene.victim = -1;
    atomic_store(&scene.n_packed, 0);
    for (int i = 0; i < RANKS; i++)
        atomic_store(&scene.packed[i], NULL);
}

/* Ranks are on two hosts in turn; a generation numbers them host by host. */
static int handle_of(int rank)
{
    return rank < RANKS / 2 ? 2 * rank : 2 * (rank - RANKS / 2) + 1;
}

/* In the order of additions that every strategy has. */
static struct dpt_config make_commit_config(const char *strategy)
{
    struct dpt_config config = rig_make_config(14, STEPS, "");
    rig_choose(&config, strategy);
    config.train.accumulate = DPT_ACCUMULATE_REDUCE;
    config.train.lanes = RANKS;
    config.checkpoint.every_steps = 0; /* there is nothing to go back to but the beginning */
    return config;
}

static void die_in_commit(const char *strategy, int victim, int told, const char *expected)
{
    char dir[128], name[64];
    const struct dpt_config config = make_commit_config(strategy);
    (void)snprintf(name, sizeof name, "%s-%d-%d", strategy, victim, told);
    calm_scene();
    scene.victim = victim;
    scene.told = told;
    struct director *d = rig_begin(&config, name, dir);
    for (int i = 0; i < RANKS; i++)
        (void)director_start(d, i % 2);
    assert_true(director_form(d, false));
    director_await_step(d, HURT_STEP + 1); /* by the rank that it has sent to */
    for (int rank = 0; rank < RANKS; rank++)
        assert_int_equal(director_step(d, handle_of(rank)) == HURT_STEP + 1, rank == told);
    director_kill(d, handle_of(victim));
    calm_scene(); /* ranks get new numbers */
    assert_true(director_form(d, false));
    assert_int_equal(director_outcomes_handed(d), 1);
    const char *hash = director_finish(d);
    if (strcmp(hash, expected) != 0)
        fail_msg("%s: %s instead of %s", name, hash, expected);
    assert_int_equal(director_outcomes_handed(d), 1);
    assert_int_equal(director_steps_lost(d), 0);
    director_destroy(&d);
}

/* Each victim, and each survivor as the one that it has spoken to. */
static void hurt_strategy(const char *strategy)
{
    char expected[64], name[64];
    const struct dpt_config config = make_commit_config("ddp"); /* every strategy has its hash */
    (void)snprintf(name, sizeof name, "calm-%s", strategy);
    calm_scene();
    rig_undisturbed(&config, name, 1, false, expected);
    const int every = dpt_test_every();
    for (int victim = 0; victim < RANKS; victim++)
        for (int other = 0; other < RANKS; other++)
            if (victim != other && (victim + other) % every == every / 2)
                die_in_commit(strategy, victim, other, expected);
}

static void test_ddp_death_around_commit(void **state)
{
    (void)state;
    hurt_strategy("ddp");
}

/* What the dead held alone is on another node: a shadow, or the same shard. */
static void test_shards_death_around_commit(void **state)
{
    (void)state;
    for (int i = 0; i < RIG_COVERED; i++)
        hurt_strategy(rig_covered[i]);
}

/* The last step of a window is the one whose outcome survivors get from a peer: each survivor ends
 * the window and writes its file, when it begins the next step. */
static void test_window_ends_with_a_step_that_is_handed_over(void **state)
{
    (void)state;
    enum { VICTIM = 1, TOLD = 2 };
    static char paths[TRACE_FILES_MAX][PATH_MAX];
    char dir[128];
    struct dpt_config config = make_commit_config("ddp");
    (void)snprintf(config.trace.dir, sizeof config.trace.dir, "%s/traces", rig_dir("window"));
    config.trace.wait = config.trace.warmup = 0;
    config.trace.active = HURT_STEP + 1;
    calm_scene();
    scene.victim = VICTIM;
    scene.told = TOLD;
    struct director *d = rig_begin(&config, "window", dir);
    for (int i = 0; i < RANKS; i++)
        (void)director_start(d, i % 2);
    assert_true(director_form(d, false));
    director_await_step(d, HURT_STEP + 1);
    director_kill(d, handle_of(VICTIM));
    calm_scene();
    assert_true(director_form(d, false));
    (void)director_finish(d);
    director_destroy(&d);
    for (int rank = 0; rank < RANKS; rank++) { /* of the world that made the steps */
        assert_int_equal(trace_view_list("window", "ddp", rank, paths), rank == VICTIM ? 0 : 1);
        if (rank == VICTIM)
            continue;
        json_t *trace = trace_view_read(paths[0]);
        const size_t steps = trace_view_count(trace, "user_annotation", "ProfilerStep#*");
        assert_in_range(steps, HURT_STEP, HURT_STEP + 1); /* without the outcome of a peer */
        json_decref(trace);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ddp_death_around_commit),
        cmocka_unit_test(test_shards_death_around_commit),
        cmocka_unit_test(test_window_ends_with_a_step_that_is_handed_over)};
    return cmocka_run_group_tests_name("rank_commit", tests, rig_setup, rig_teardown);
}
