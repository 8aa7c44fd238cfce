/* The trio of trio.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/rendezvous/core/trio.h"

struct stage stage;
struct fake a, b, c;
struct fake *const two[2] = {&a, &b};

int trio_setup(void **state)
{
    (void)state;
    stage_open(&stage);
    fake_init(&a, &stage, "a");
    fake_init(&b, &stage, "b");
    fake_init(&c, &stage, "c");
    return 0;
}

int trio_teardown(void **state)
{
    (void)state;
    stage_close(&stage);
    return 0;
}

void trio_start(void)
{
    fakes_start(&stage, two, 2);
}

void trio_step_to(int64_t step)
{
    a.ranks[0].step_applied = b.ranks[0].step_applied = step;
    fake_say(&a, &stage);
    fake_say(&b, &stage);
}

void trio_save_and_lose_b(void)
{
    trio_step_to(3);
    a.ranks[0].grant_step = 3;
    fake_say(&a, &stage);
    a.ranks[0].checkpoint_step = 3;
    fake_say(&a, &stage);
    fake_dies(&b, &a, &stage);
    stage_pass_speaking(&stage, two, 1, 600);
    fakes_settle(&stage, two, 1);
}

void trio_restart_server(void)
{
    stage_restart(&stage, 99);
    stage_tick(&stage, 0);
    a.conn += 100;
    b.conn += 100;
    a.ranks[0].plan_rank = (int32_t)fake_place(&a)->rank;
    b.ranks[0].plan_rank = (int32_t)fake_place(&b)->rank;
}
