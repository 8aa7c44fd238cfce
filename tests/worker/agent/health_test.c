/* The health check: a sound machine passes, and a core with wrong products is named. The linker
 * puts __wrap_dpt_health_multiply before the product (CMakeLists.txt). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "worker/agent/health.h"
#include "worker/agent/health_product.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

void __real_dpt_health_multiply(const struct dpt_ops *ops, struct dpt_stream *stream,
                                const struct dpt_health_operands *operands, float *y);
void __wrap_dpt_health_multiply(const struct dpt_ops *ops, struct dpt_stream *stream,
                                const struct dpt_health_operands *operands, float *y);

/* A core that computes wrongly. */
static struct {
    int core;        /* -1: none */
    int element;     /* of y */
    int from;        /* number of its products that are right first */
    atomic_int done; /* its products */
} broken;
static atomic_int products;

void __wrap_dpt_health_multiply(const struct dpt_ops *ops, struct dpt_stream *stream,
                                const struct dpt_health_operands *operands, float *y)
{
    __real_dpt_health_multiply(ops, stream, operands, y);
    (void)atomic_fetch_add(&products, 1);
    if (sched_getcpu() != broken.core || atomic_fetch_add(&broken.done, 1) < broken.from)
        return;
    uint32_t bits;
    memcpy(&bits, &y[broken.element], sizeof bits);
    bits ^= 1;
    memcpy(&y[broken.element], &bits, sizeof bits);
}

/* The n-th core on which this process may run; -1: there are fewer. */
static int core_at(int n)
{
    cpu_set_t set;
    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    for (int i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET((size_t)i, &set) && n-- == 0)
            return i;
    return -1;
}

static struct dpt_health check_with(int core, int element, int from, const char *fault)
{
    struct dpt_health health;
    struct dpt_err err;
    char text[DPT_HEALTH_FAULT_BYTES], name[32] = "";
    broken.core = core;
    broken.element = element;
    broken.from = from;
    atomic_store(&broken.done, 0);
    atomic_store(&products, 0);
    if (dpt_health_check(&health, text, &err) != DPT_OK)
        fail_msg("%s", err.text);
    if (fault[0] == '\0')
        assert_string_equal(text, "");
    else
        (void)snprintf(name, sizeof name, "core %d ", core);
    if (strstr(text, fault) == NULL || strncmp(text, name, strlen(name)) != 0)
        fail_msg("wanted '%s%s' in: '%s'", name, fault, text);
    return health;
}

enum { OUTSIDE = DPT_HEALTH_Y_FLOATS - 1 }; /* not in the corner that integers give */

static void sound_machine_passes(void **state)
{
    (void)state;
    const struct dpt_health health = check_with(-1, 0, 0, "");
    assert_true(health.checked);
    assert_true(health.cores > 0 && core_at((int)health.cores) == -1);
    assert_true(core_at((int)health.cores - 1) >= 0);
    assert_true(health.mflops > 0);
    assert_true(health.memory_bytes > 0);
    assert_true(health.check_us > 0);
    assert_true(atomic_load(&products) > (int)health.cores * DPT_HEALTH_ROUNDS_MIN);
}

static void wrong_value_is_named(void **state)
{
    (void)state;
    (void)check_with(core_at(0), 0, 0, "computes wrong values of a matrix product");
    (void)check_with(core_at(0), 0, 2, "computes wrong values of a matrix product");
}

static void unsteady_core_is_named(void **state)
{
    (void)state;
    (void)check_with(core_at(0), OUTSIDE, 1, "computes the same matrix product with different");
}

/* With two cores nobody can tell which one is wrong: the second one is named. */
static void core_with_other_bits_is_named(void **state)
{
    (void)state;
    const int other = core_at(1);
    if (other < 0)
        skip();
    (void)check_with(other, OUTSIDE, 0, "computes other bits of a matrix product than another");
    if (core_at(2) >= 0)
        (void)check_with(core_at(0), OUTSIDE, 0, "computes other bits of a matrix product");
}

/* The corner of y is exact: the ops of every instruction set give it (the test runs at each). */
static void corner_is_compared_by_value(void **state)
{
    (void)state;
    static struct dpt_health_operands operands;
    static float y[DPT_HEALTH_Y_FLOATS];
    dpt_health_draw_operands(&operands);
    for (int r = 0; r < DPT_HEALTH_ROWS; r++)
        for (int c = 0; c < DPT_HEALTH_COLUMNS; c++) {
            float sum = 0;
            for (int k = DPT_HEALTH_DEPTH - 1; k >= 0; k--) /* another order of additions */
                sum +=
                    operands.x[r * DPT_HEALTH_DEPTH + k] * operands.w[k * DPT_HEALTH_COLUMNS + c];
            y[r * DPT_HEALTH_COLUMNS + c] = sum;
        }
    assert_true(dpt_health_corner_is_right(&operands, y));
    y[OUTSIDE] += 1;
    assert_true(dpt_health_corner_is_right(&operands, y));
    const int last = (DPT_HEALTH_ROWS / 2 - 1) * DPT_HEALTH_COLUMNS + DPT_HEALTH_COLUMNS / 2 - 1;
    y[last] += 1;
    assert_false(dpt_health_corner_is_right(&operands, y));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sound_machine_passes),
        cmocka_unit_test(wrong_value_is_named),
        cmocka_unit_test(unsteady_core_is_named),
        cmocka_unit_test(core_with_other_bits_is_named),
        cmocka_unit_test(corner_is_compared_by_value),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
