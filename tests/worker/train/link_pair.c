/* The pair of a link and a test that simulates its agent. */
#include "tests/worker/train/link_pair.h"

#include "base/clock.h"
#include "worker/agent/rank_protocol.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <unistd.h>

static void on_interrupt(void *ctx, uint64_t generation)
{
    struct link_pair *p = ctx;
    atomic_store(&p->prepared, generation);
    atomic_fetch_add(&p->prepares, 1);
}

static void on_closed(void *ctx)
{
    struct link_pair *p = ctx;
    atomic_fetch_add(&p->closes, 1);
}

void link_pair_begin(struct link_pair *p, int heartbeat_ms)
{
    struct dpt_err err;
    int fds[2];
    *p = (struct link_pair){.agent = -1};
    assert_int_equal(dpt_rank_link_pair(fds, &err), DPT_OK);
    p->agent = fds[0];
    const struct dpt_link_options options = {.fd = fds[1],
                                             .heartbeat_ms = heartbeat_ms,
                                             .on_interrupt = on_interrupt,
                                             .on_closed = on_closed,
                                             .ctx = p,
                                             .spawn = 1,
                                             .shm_addr = "@shm",
                                             .tcp_addr = "127.0.0.1:1"};
    if (dpt_link_create(&options, &p->link, &err) != DPT_OK)
        fail_msg("%s", err.text);
}

void link_pair_end(struct link_pair *p)
{
    dpt_link_destroy(&p->link);
    assert_null(p->link);
    if (p->agent >= 0)
        assert_int_equal(close(p->agent), 0);
}

Dpt__RankToAgent *link_pair_hear(struct link_pair *p)
{
    Dpt__RankToAgent *said = agent_end_receive(p->agent, AGENT_END_DEADLINE_MS);
    assert_non_null(said);
    return said;
}

void link_pair_hear_step(struct link_pair *p, int64_t step)
{
    int64_t deadline = dpt_now_ms() + AGENT_END_DEADLINE_MS;
    int64_t heard = -2;
    while (heard != step) {
        assert_true(dpt_now_ms() < deadline);
        Dpt__RankToAgent *said = link_pair_hear(p);
        heard = said->state->step_applied;
        dpt_message_free_rank_to_agent(&said);
    }
}

void link_pair_publish(struct link_pair *p)
{
    (void)dpt_link_edit(p->link);
    dpt_link_publish(p->link, true);
}
