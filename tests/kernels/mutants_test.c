/* The comparison with the reference notices every wrong op of mutants.c; on the CPU device here, on
 * a CUDA device in tests/gpu. */
#include "tests/kernels/mutants.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void every_mutant_is_caught(void **state)
{
    (void)state;
    static const double tolerance[DPT_DTYPE_COUNT] = {5e-6, 4e-3, 5e-4}; /* as ops_test.c */
    struct test_stream t = test_stream_open(1);
    int missed = 0;
    for (int i = 0; i < op_mutant_count; i++)
        if (!mutant_is_caught(&op_mutants[i], &t, tolerance)) {
            print_error("%s: not noticed by '%s'\n", op_mutants[i].name, op_mutants[i].of);
            missed++;
        }
    test_stream_close(&t);
    assert_int_equal(missed, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_mutant_is_caught)};
    return cmocka_run_group_tests_name("mutants", tests, NULL, NULL);
}
