/* Offsets of clocks between ranks whose clocks differ by known times. */
#include "tests/worker/comm/comm_world.h"
#include "worker/comm/clock_offset.h"

#include "base/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS = 6 };

static const int64_t second_ns = 1000000000;

/* The ranks' clocks and hosts: 1 and 2 have one clock on one host, 3 and 4 are unknown, 5 has rank
 * 0's clock on another host. */
static const int hosts_of[RANKS] = {0, 1, 1, 2, 2, 3};
static const uint64_t clock_of[RANKS] = {7, 8, 8, 0, 0, 7};

static int64_t skew_of(int rank)
{
    const int64_t skews[RANKS] = {3, -5000, -5000, 86400, 40, 3};
    return skews[rank] * second_ns;
}

static struct {
    bool wanted[RANKS];
    struct dpt_clock_offset offset[RANKS];
} scene;

static int64_t read_skewed(void *ctx)
{
    return dpt_now_ns() + skew_of(*(const int *)ctx);
}

static struct dpt_clock_spec spec_of(struct rank *self)
{
    return (struct dpt_clock_spec){.clock = clock_of[self->rank],
                                   .wanted = scene.wanted[self->rank],
                                   .epoch_ns = 100 + self->rank,
                                   .now_ns = read_skewed,
                                   .ctx = &self->rank};
}

static void compare_clocks(struct rank *self)
{
    struct dpt_comm *comm = world_comm(self, 1);
    const struct dpt_clock_spec spec = spec_of(self);
    CHECK_OK(dpt_comm_clock_offset(comm, &spec, &scene.offset[self->rank], &self->err), &self->err);
    dpt_comm_destroy(&comm);
}

static void run_world(int wanting)
{
    struct world world = {.size = RANKS};
    memcpy(world.hosts, hosts_of, sizeof hosts_of);
    memset(&scene, 0, sizeof scene);
    if (wanting >= 0)
        scene.wanted[wanting] = true;
    world_run_threads(&world, compare_clocks);
}

/* Whether one rank wants it or another: all get offsets, whose errors are within the bounds. */
static void test_offset_is_within_its_error(void **state)
{
    (void)state;
    for (int wanting = 0; wanting < RANKS; wanting += 2) {
        run_world(wanting);
        for (int rank = 0; rank < RANKS; rank++) {
            const struct dpt_clock_offset *o = &scene.offset[rank];
            const int64_t wrong = o->offset_ns - (skew_of(0) - skew_of(rank));
            assert_int_equal(o->epoch_ns, 100);
            assert_true(wrong <= o->error_ns && wrong >= -o->error_ns);
            assert_true(o->error_ns < 10 * second_ns);
            assert_int_equal(o->error_ns == 0, clock_of[rank] == clock_of[0]);
        }
        assert_int_equal(scene.offset[1].offset_ns, scene.offset[2].offset_ns);
        assert_int_equal(scene.offset[1].error_ns, scene.offset[2].error_ns);
    }
}

static void test_nobody_wants_it(void **state)
{
    (void)state;
    run_world(-1);
    for (int rank = 0; rank < RANKS; rank++) {
        assert_int_equal(scene.offset[rank].offset_ns, 0);
        assert_int_equal(scene.offset[rank].error_ns, 0);
        assert_int_equal(scene.offset[rank].epoch_ns, 100 + rank);
    }
}

static void leave_without_asking(struct rank *self)
{
    struct dpt_comm *comm = world_comm(self, 1);
    const struct dpt_clock_spec spec = spec_of(self);
    pthread_barrier_wait(&self->world->barrier);
    if (self->rank != 3) {
        const struct dpt_clock_offset before = scene.offset[self->rank];
        CHECK_STATUS(DPT_EPEER,
                     dpt_comm_clock_offset(comm, &spec, &scene.offset[self->rank], &self->err),
                     &self->err);
        CHECK(memcmp(&before, &scene.offset[self->rank], sizeof before) == 0);
    }
    dpt_comm_destroy(&comm);
}

static void test_lost_rank_ends_it(void **state)
{
    (void)state;
    struct world world = {.size = RANKS};
    memcpy(world.hosts, hosts_of, sizeof hosts_of);
    world_run_threads(&world, leave_without_asking);
}

static void test_processes_of_this_host_have_one_clock(void **state)
{
    (void)state;
    assert_true(dpt_clock_identity() != 0);
    assert_int_equal(dpt_clock_identity(), dpt_clock_identity());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_offset_is_within_its_error),
        cmocka_unit_test(test_nobody_wants_it),
        cmocka_unit_test(test_lost_rank_ends_it),
        cmocka_unit_test(test_processes_of_this_host_have_one_clock),
    };
    return cmocka_run_group_tests_name("clock offsets", tests, NULL, NULL);
}
