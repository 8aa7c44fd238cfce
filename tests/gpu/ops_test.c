/* Each op of the model on the CUDA device, on fresh random inputs with poisoned outputs: against
 * the double-precision reference; against the CPU device, where that is built; twice with the same
 * bits; accumulating. And the comparison notices what is wrong (tests/kernels/mutants.c). With an
 * argument: the cases whose names begin so. */
#include "tests/gpu/gpu.h"
#include "tests/kernels/mutants.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *only = "";

static bool is_wanted(const char *name)
{
    return strncmp(name, only, strlen(only)) == 0;
}

static bool has(const struct op_case *c, int dtype)
{
    return is_wanted(c->name) && case_has(c, (enum dpt_dtype)dtype);
}

/* Fresh inputs, but for cases of a few elements: there one unlucky value (where GELU is near zero,
 * say) is off by more than any tolerance that means something. Those keep the seed they have with
 * the CPU. */
static void seed_for(const struct op_case *c)
{
    static uint64_t fresh;
    const uint64_t kept = 11;
    if (fresh == 0)
        fresh = fill_random_seed;
    fill_random_seed = c->fd ? kept : fresh;
}

/* The largest relative error of an output against the CPU device's. */
static double against_cpu(const struct op_case *c, enum dpt_dtype dtype, struct test_stream *gpu,
                          struct test_stream *cpu)
{
    struct case_buffers a, b;
    double most = 0;
    case_buffers_init(c, dtype, &a);
    case_buffers_init(c, dtype, &b);
    case_run(c, gpu, &a, false);
    case_run(c, cpu, &b, false);
    for (int k = 0; k < a.layout.outputs; k++) {
        double *want = malloc((size_t)b.layout.out[k] * sizeof *want);
        for (int64_t e = 0; e < b.layout.out[k]; e++)
            want[e] = (double)b.out[k][e];
        const double error = relative_error(a.out[k], want, b.layout.out[k]);
        most = error <= most ? most : error; /* NaN is the most */
        free(want);
    }
    case_buffers_fini(&a);
    case_buffers_fini(&b);
    return most;
}

static void check_against_cpu(struct test_stream *gpu)
{
    struct test_stream cpu = test_stream_open(2);
    for (int dtype = 0; dtype < DPT_DTYPE_COUNT; dtype++)
        for (int i = 0; i < op_case_count; i++) {
            if (!has(&op_cases[i], dtype))
                continue;
            seed_for(&op_cases[i]);
            const double error = against_cpu(&op_cases[i], dtype, gpu, &cpu);
            if (!(error <= 2 * gpu_tolerance[dtype])) { /* both are off the truth */
                (void)fprintf(stderr, "%s %s: %.3g from the CPU device\n", dtype_name(dtype),
                              op_cases[i].name, error);
                gpu_failures++;
            }
        }
    test_stream_close(&cpu);
}

/* Leaves other numbers in the stream's workspace: those of a head's logits. */
static void poison_workspace(struct test_stream *t)
{
    static const char *const name = "head 65x48x3333";
    for (int i = 0; i < op_case_count; i++)
        if (strcmp(op_cases[i].name, name) == 0) {
            struct case_buffers b;
            case_buffers_init(&op_cases[i], DPT_BF16, &b);
            case_run(&op_cases[i], t, &b, false);
            case_buffers_fini(&b);
            return;
        }
    gpu_check(false, name, __FILE__, __LINE__);
}

/* Twice the same bits, whatever ran in between. */
static void check_bits(struct test_stream *t)
{
    for (int dtype = 0; dtype < DPT_DTYPE_COUNT; dtype++)
        for (int i = 0; i < op_case_count; i++) {
            struct case_buffers a, b;
            if (!has(&op_cases[i], dtype))
                continue;
            case_buffers_init(&op_cases[i], dtype, &a);
            case_buffers_init(&op_cases[i], dtype, &b);
            case_run(&op_cases[i], t, &a, false);
            poison_workspace(t);
            case_run(&op_cases[i], t, &b, false);
            for (int k = 0; k < a.layout.outputs; k++)
                if (memcmp(a.out[k], b.out[k], (size_t)a.layout.out[k] * sizeof(float)) != 0) {
                    (void)fprintf(stderr, "%s %s: output %d has other bits the second time\n",
                                  dtype_name(dtype), op_cases[i].name, k);
                    gpu_failures++;
                }
            case_buffers_fini(&a);
            case_buffers_fini(&b);
        }
}

int main(int argc, char **argv)
{
    if (argc > 1)
        only = argv[1];
    struct test_stream t = gpu_open();
    gpu_seed();
    (void)fprintf(stderr, "%s\n", dpt_device_fingerprint(t.device));
    for (int dtype = 0; dtype < DPT_DTYPE_COUNT; dtype++)
        for (int i = 0; i < op_case_count; i++)
            if (has(&op_cases[i], dtype)) {
                seed_for(&op_cases[i]);
                gpu_failures += case_compare(&op_cases[i], dtype, &t, gpu_tolerance, false);
                gpu_failures += case_accumulates(&op_cases[i], dtype, &t);
            }
    check_bits(&t);
    check_against_cpu(&t);
    for (int i = 0; i < op_mutant_count; i++)
        if (is_wanted(op_mutants[i].of) && !mutant_is_caught(&op_mutants[i], &t, gpu_tolerance)) {
            (void)fprintf(stderr, "%s: not noticed by '%s'\n", op_mutants[i].name,
                          op_mutants[i].of);
            gpu_failures++;
        }
    test_stream_close(&t);
    return gpu_verdict("ops");
}
