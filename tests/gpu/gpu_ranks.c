/* See gpu_ranks.h. */
#include "tests/gpu/gpu_ranks.h"

#include "tests/worker/train/rank_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SKIPPED = 77 };

static enum dpt_status open_device(const struct dpt_rank_start *start, struct dpt_device **ret,
                                   struct dpt_err *err)
{
    (void)start;
    return dpt_device_cuda_create(0, ret, err);
}

int gpu_ranks_open(void)
{
    int count;
    char fingerprint[DPT_FINGERPRINT_BYTES];
    struct dpt_err err;
    const enum dpt_status status = dpt_device_cuda_look(&count, fingerprint, &err);
    if (status != DPT_OK) {
        const char *must = getenv("DPT_TEST_GPU");
        const bool absent = status == DPT_ENOENT || status == DPT_EVERSION; /* device, driver */
        (void)fprintf(stderr, "no CUDA device to test: %s\n", err.text);
        return absent && !(must && strcmp(must, "1") == 0) ? SKIPPED : 1;
    }
    director_open_device_with(open_device);
    return -1;
}
