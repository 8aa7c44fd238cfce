/* The ring of removed incarnations: it grows before it forgets, and counts those that may return.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "rendezvous/core/kept.h"

#include <stdlib.h>
#include <string.h>

static struct run *run;
static const uint8_t secret[DPT_PROTO_SECRET_BYTES] = {1}, other[DPT_PROTO_SECRET_BYTES] = {2};

static int setup(void **state)
{
    (void)state;
    run = calloc(1, sizeof *run);
    return run == NULL ? -1 : 0;
}

static int teardown(void **state)
{
    (void)state;
    free(run->membership.departed);
    free(run);
    return 0;
}

static void add(uint64_t id_hash, uint64_t incarnation, bool awaited)
{
    struct departed each = {.id_hash = id_hash, .incarnation = incarnation, .awaited = awaited};
    memcpy(each.secret, secret, sizeof secret);
    assert_true(dpt_rdzv_departed_add(&run->membership, &each));
}

static bool knows(uint64_t id_hash)
{
    return dpt_rdzv_departed_as(run, id_hash, 1, secret) != NULL;
}

static void test_none(void **state)
{
    (void)state;
    assert_null(dpt_rdzv_departed_newest(&run->membership));
    assert_false(knows(1));
    dpt_rdzv_departed_await_none(&run->membership);
    assert_int_equal(run->membership.n_awaited, 0);
}

static void test_newest_incarnation_with_the_secret(void **state)
{
    (void)state;
    add(7, 1, true);
    add(7, 3, true);
    add(7, 2, true);
    assert_int_equal(dpt_rdzv_departed_as(run, 7, 1, secret)->incarnation, 3);
    assert_null(dpt_rdzv_departed_as(run, 7, 4, secret));
    assert_null(dpt_rdzv_departed_as(run, 7, 1, other));
    assert_int_equal(dpt_rdzv_departed_newest(&run->membership)->incarnation, 2);
    dpt_rdzv_departed_drop(&run->membership, dpt_rdzv_departed_as(run, 7, 3, secret));
    assert_int_equal(dpt_rdzv_departed_as(run, 7, 1, secret)->incarnation, 2);
    assert_int_equal(run->membership.n_awaited, 2);
}

/* As many as a run may have nodes are remembered; then the oldest is forgotten. */
static void test_remembers_every_node_of_a_run(void **state)
{
    (void)state;
    for (uint64_t i = 1; i <= DEPARTED_MAX; i++)
        add(i, 1, true);
    assert_true(knows(1) && knows(DEPARTED_MAX));
    assert_int_equal(run->membership.n_awaited, DEPARTED_MAX);
    add(DEPARTED_MAX + 1, 1, false);
    assert_true(!knows(1) && knows(2) && knows(DEPARTED_MAX + 1));
    assert_int_equal(run->membership.n_awaited, DEPARTED_MAX - 1);
    dpt_rdzv_departed_await_none(&run->membership);
    assert_int_equal(run->membership.n_awaited, 0);
    assert_false(dpt_rdzv_departed_as(run, 2, 1, secret)->awaited);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_none, setup, teardown),
        cmocka_unit_test_setup_teardown(test_newest_incarnation_with_the_secret, setup, teardown),
        cmocka_unit_test_setup_teardown(test_remembers_every_node_of_a_run, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
