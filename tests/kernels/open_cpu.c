/* The tests' stream on the CPU device: apart, so that tests of other devices need not link it. */
#include "kernels/cpu/kernels.h"
#include "tests/kernels/harness.h"

#include <stdio.h>
#include <stdlib.h>

struct test_stream test_stream_open(int threads)
{
    return test_stream_open_with(NULL, threads);
}

struct test_stream test_stream_open_with(const struct dpt_cpu_kernels *kernels, int threads)
{
    struct test_stream t = {.errors = 0};
    struct dpt_err err;
    if ((kernels ? dpt_device_cpu_create_with(kernels, &t.device, &err)
                 : dpt_device_cpu_create(&t.device, &err)) != DPT_OK ||
        dpt_stream_create(t.device, threads, &t.stream, &err) != DPT_OK) {
        (void)fprintf(stderr, "%s\n", err.text);
        abort();
    }
    t.ops = dpt_device_ops(t.device);
    return t;
}
