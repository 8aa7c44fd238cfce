/* How long a fenced rank waits before it leaves a record out. */
#include "tests/worker/train/agent_end.h"
#include "worker/train/link/link.h"
#include "worker/train/log/rank_log.h"

#include "base/clock.h"
#include "worker/agent/rank_protocol.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <unistd.h>

static struct dpt_config config;
static struct dpt_rank rank;
static int agent;

static void ignore_interrupt(void *ctx, uint64_t generation)
{
    (void)ctx;
    (void)generation;
}

static void ignore_close(void *ctx)
{
    (void)ctx;
}

static int setup(void **state)
{
    (void)state;
    struct dpt_err err;
    int fds[2];
    assert_int_equal(dpt_rank_link_pair(fds, &err), DPT_OK);
    agent = fds[0];
    const struct dpt_link_options options = {.fd = fds[1],
                                             .heartbeat_ms = 10,
                                             .on_interrupt = ignore_interrupt,
                                             .on_closed = ignore_close,
                                             .spawn = 1,
                                             .shm_addr = "",
                                             .tcp_addr = ""};
    dpt_config_defaults(&config);
    rank = (struct dpt_rank){.config = &config};
    rank.gen.number = 1;
    assert_int_equal(dpt_link_create(&options, &rank.link, &err), DPT_OK);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    dpt_link_destroy(&rank.link);
    return close(agent);
}

static void tell_rank(Dpt__RankCommand command, uint64_t generation, int64_t lease_until_ms)
{
    assert_true(agent_end_send(agent, command, generation, -1, lease_until_ms, false));
}

static void test_leave_comes(void **state)
{
    (void)state;
    config.log.wait_s = 600;
    tell_rank(DPT__RANK_COMMAND__COMMAND_GO, 1, dpt_now_ms() + AGENT_END_LEASE_MS);
    assert_true(rank_may_record(&rank, "a record is"));
}

static void test_leave_never_comes(void **state)
{
    (void)state;
    config.log.wait_s = 0.1;
    tell_rank(DPT__RANK_COMMAND__COMMAND_GO, 1, 0);
    const int64_t before_ms = dpt_now_ms();
    assert_false(rank_may_record(&rank, "a record is"));
    assert_true(dpt_now_ms() - before_ms >= 100);
}

/* The generation ends: the wait ends at once. */
static void test_generation_ends(void **state)
{
    (void)state;
    config.log.wait_s = 600;
    tell_rank(DPT__RANK_COMMAND__COMMAND_PREPARE, 2, 0);
    const int64_t before_ms = dpt_now_ms();
    assert_false(rank_may_record(&rank, "a record is"));
    assert_true(dpt_now_ms() - before_ms < 60 * 1000);
}

int main(void)
{
#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_leave_comes),
        T(test_leave_never_comes),
        T(test_generation_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
