/* See gpu.h. */
#include "tests/gpu/gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

const double gpu_tolerance[DPT_DTYPE_COUNT] = {5e-6, 4e-3, 5e-4};
int gpu_failures;

void gpu_check(bool ok, const char *what, const char *file, int line)
{
    if (ok)
        return;
    gpu_failures++;
    (void)fprintf(stderr, "%s:%d: not so: %s\n", file, line, what);
}

void gpu_seed(void)
{
    const char *given = getenv("DPT_TEST_SEED");
    fill_random_seed = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    (void)fprintf(stderr, "DPT_TEST_SEED=%llu\n", (unsigned long long)fill_random_seed);
}

struct test_stream gpu_open(void)
{
    struct test_stream t = {.errors = 0};
    struct dpt_err err;
    const char *must = getenv("DPT_TEST_GPU");
    const enum dpt_status status = dpt_device_cuda_create(0, &t.device, &err);
    if (status == DPT_ENOENT || status == DPT_EVERSION) {
        (void)fprintf(stderr, "%s\n", err.text);
        if (!strstr(err.text, "cluster.device")) { /* the remedy */
            (void)fprintf(stderr, "that does not say what to do\n");
            exit(1);
        }
        exit(must && strcmp(must, "1") == 0 ? 1 : GPU_SKIPPED);
    }
    if (status != DPT_OK || dpt_stream_create(t.device, 1, &t.stream, &err) != DPT_OK) {
        (void)fprintf(stderr, "%s\n", err.text);
        exit(1);
    }
    t.ops = dpt_device_ops(t.device);
    return t;
}

int gpu_verdict(const char *name)
{
    (void)fprintf(stderr, "%s: %s\n", name, gpu_failures ? "FAILED" : "passed");
    return gpu_failures ? 1 : 0;
}
