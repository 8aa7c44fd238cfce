/* Each op of the model on the CUDA device, on fresh random inputs with poisoned outputs: against
 * the double-precision reference; against the CPU device, if that is built; twice with the same
 * bits; accumulating. The comparison must also notice wrong ops (tests/kernels/mutants.c). With an
 * argument: the cases whose names begin with it. */
#include "tests/every.h"
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

/* A head of more than 4,096 rows takes seconds on the emulated device. kernels/cuda/head.c cuts
 * the rows into pieces alike for each dtype, so one dtype tests the pieces. */
static bool is_left_out(const struct op_case *c, int dtype)
{
#ifdef DPT_TEST_EMULATED
    return c->shape[0] > 4096 && dtype != DPT_BF16;
#else
    (void)c;
    (void)dtype;
    return false;
#endif
}

static bool case_has_dtype(const struct op_case *c, int dtype)
{
    const int every = is_left_out(c, DPT_F32) ? 1 : dpt_test_asked_every();
    return is_wanted(c->name) && case_is_taken(c, (enum dpt_dtype)dtype, every) &&
           !is_left_out(c, dtype);
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

static void complain(const struct op_case *c, enum dpt_dtype dtype, const char *what, double by)
{
    (void)fprintf(stderr, "%s %s: %s %.3g\n", dtype_name(dtype), c->name, what, by);
    gpu_failures++;
}

/* The largest relative error of an output against the CPU device's. */
static void check_against_cpu(const struct op_case *c, const struct case_buffers *on_gpu,
                              struct test_stream *cpu)
{
    struct case_buffers b;
    double most = 0;
    case_buffers_init(c, on_gpu->dtype, &b);
    case_run(c, cpu, &b, false);
    for (int k = 0; k < b.layout.outputs; k++) {
        double *want = malloc((size_t)b.layout.out[k] * sizeof *want);
        for (int64_t e = 0; e < b.layout.out[k]; e++)
            want[e] = (double)b.out[k][e];
        const double error = relative_error(on_gpu->out[k], want, b.layout.out[k]);
        most = error <= most ? most : error; /* NaN is the most */
        free(want);
    }
    case_buffers_fini(&b);
    if (!(most <= 2 * gpu_tolerance[on_gpu->dtype])) /* both are off the truth */
        complain(c, on_gpu->dtype, "from the CPU device by", most);
}

/* Leaves other numbers in the stream's workspace: those of a head's logits. */
static void poison_workspace(struct test_stream *t)
{
    static const char *const name = "head 65x48x3333";
    static struct case_buffers poison;
    static const struct op_case *head;
    for (int i = 0; i < op_case_count && !head; i++)
        if (strcmp(op_cases[i].name, name) == 0) {
            head = &op_cases[i];
            case_buffers_init(head, DPT_BF16, &poison);
        }
    gpu_check(head != NULL, name, __FILE__, __LINE__);
    if (head)
        case_run(head, t, &poison, false);
}

/* The same bits again, after any other work. */
static void check_bits(const struct op_case *c, const struct case_buffers *first,
                       struct test_stream *t)
{
    struct case_buffers b;
    case_buffers_init(c, first->dtype, &b);
    poison_workspace(t);
    case_run(c, t, &b, false);
    for (int k = 0; k < b.layout.outputs; k++)
        if (memcmp(first->out[k], b.out[k], (size_t)b.layout.out[k] * sizeof(float)) != 0)
            complain(c, b.dtype, "has other bits the second time, output", k);
    case_buffers_fini(&b);
}

static void check_case(const struct op_case *c, enum dpt_dtype dtype, struct test_stream *gpu,
                       struct test_stream *cpu)
{
    struct case_buffers b;
    seed_for(c);
    case_buffers_init(c, dtype, &b);
    case_run(c, gpu, &b, false);
    gpu_failures += case_judge(c, &b, gpu_tolerance, false);
    check_against_cpu(c, &b, cpu);
    check_bits(c, &b, gpu);
    gpu_failures += case_adds(c, gpu, &b);
    case_buffers_fini(&b);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        only = argv[1];
    struct test_stream t = gpu_open(), cpu = test_stream_open(2);
    gpu_seed();
    (void)fprintf(stderr, "%s\n", dpt_device_fingerprint(t.device));
    for (int dtype = 0; dtype < DPT_DTYPE_COUNT; dtype++)
        for (int i = 0; i < op_case_count; i++)
            if (case_has_dtype(&op_cases[i], dtype))
                check_case(&op_cases[i], dtype, &t, &cpu);
    for (int i = 0; i < op_mutant_count; i++)
        if (is_wanted(op_mutants[i].of) && !mutant_is_caught(&op_mutants[i], &t, gpu_tolerance)) {
            (void)fprintf(stderr, "%s: not noticed by '%s'\n", op_mutants[i].name,
                          op_mutants[i].of);
            gpu_failures++;
        }
    test_stream_close(&cpu);
    test_stream_close(&t);
    return gpu_verdict("ops");
}
