/* The reference's own gradients against central differences of its forward, so that the truth is
 * not taken on trust. */
#include "tests/kernels/harness.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

static double objective(const struct op_case *c, const struct case_layout *l, double *const *in,
                        const int32_t *ints, double *const *out)
{
    double sum = 0.0;
    c->ref(c, in, ints, out);
    for (int64_t i = 0; i < l->out[l->y]; i++)
        sum += out[l->y][i] * (l->dy < 0 ? (double)CASE_DLOSS : in[l->dy][i]);
    return sum;
}

static void check_case(const struct op_case *c)
{
    struct case_buffers b;
    double *in[CASE_BUFFERS_MAX], *out[CASE_BUFFERS_MAX], *grad[CASE_BUFFERS_MAX];
    case_buffers_init(c, DPT_F32, &b);
    const struct case_layout *l = &b.layout;
    for (int k = 0; k < l->inputs; k++) {
        in[k] = malloc((size_t)l->in[k] * sizeof(double));
        for (int64_t e = 0; e < l->in[k]; e++)
            in[k][e] = (double)b.in[k][e];
    }
    for (int k = 0; k < l->outputs; k++) {
        out[k] = calloc((size_t)l->out[k], sizeof(double));
        grad[k] = calloc((size_t)l->out[k], sizeof(double));
    }
    c->ref(c, in, b.ints, grad);
    for (int pair = 0; pair < l->pairs; pair++) {
        double *x = in[l->of[pair]];
        for (int64_t e = 0; e < l->in[l->of[pair]]; e++) {
            const double step = 1e-5, kept = x[e];
            x[e] = kept + step;
            double up = objective(c, l, in, b.ints, out);
            x[e] = kept - step;
            double down = objective(c, l, in, b.ints, out);
            x[e] = kept;
            double want = (up - down) / (2.0 * step), got = grad[l->grad[pair]][e];
            if (!(fabs(want - got) <= 1e-7 * (1.0 + fabs(want))))
                fail_msg("%s: d input %d [%d]: %.12g by differences, %.12g by the reference",
                         c->name, l->of[pair], (int)e, want, got);
        }
    }
    for (int k = 0; k < l->inputs; k++)
        free(in[k]);
    for (int k = 0; k < l->outputs; k++) {
        free(out[k]);
        free(grad[k]);
    }
    case_buffers_fini(&b);
}

static void test_gradients_by_differences(void **state)
{
    (void)state;
    int checked = 0;
    for (int i = 0; i < op_case_count; i++)
        if (op_cases[i].fd) {
            check_case(&op_cases[i]);
            checked++;
        }
    assert_true(checked >= 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_gradients_by_differences)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
