/* A wait may spin if the cores suffice for all compute threads that are known. */
#include "base/cores.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void demand_against_cores(void **state)
{
    (void)state;
    const int cores = dpt_cores();
    assert_true(cores >= 1);
    assert_false(dpt_cores_known_spare()); /* nothing is known yet */
    assert_true(dpt_cores_spare(cores));
    assert_false(dpt_cores_spare(cores + 1));
    dpt_cores_set_demand(cores);
    assert_true(dpt_cores_known_spare() && dpt_cores_spare(1));
    dpt_cores_set_demand(cores + 1); /* others of this host compute too */
    assert_false(dpt_cores_known_spare());
    assert_false(dpt_cores_spare(1));
    dpt_cores_set_demand(0);
    assert_false(dpt_cores_known_spare());
    assert_true(dpt_cores_spare(cores));
}

/* Fewer cores than the machine has: the cores that this process may use count. */
static void affinity_counts(void **state)
{
    (void)state;
    cpu_set_t all, one;
    uint64_t of_all = 0, of_one = 0, again = 0;
    const int cores = dpt_cores_identified(&of_all);
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    size_t first = 0;
    while (!CPU_ISSET(first, &all))
        first++;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(dpt_cores_identified(&of_one), 1);
    assert_true(CPU_COUNT(&all) == 1 || of_one != of_all);
    dpt_cores_set_demand(2);
    assert_false(dpt_cores_known_spare());
    dpt_cores_set_demand(0);
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
    assert_int_equal(dpt_cores_identified(&again), cores);
    assert_true(again == of_all && cores <= CPU_COUNT(&all));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(demand_against_cores),
                                       cmocka_unit_test(affinity_counts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
