/* A hash of the library's products on this machine; the device's fingerprint shows its digits.
 *
 * oneDNN sums a long k in blocks. It chooses the block size by the machine's caches as well as by
 * its version and instruction set. Two nodes compute the same bits only if the library chooses the
 * same sizes on both. Therefore, when the device is opened, it multiplies operands of several k, in
 * f32 and bf16, and hashes the bits of the results. Our own products (gemm.h) have the same bits in
 * every row and on every machine, so a few rows are enough to tell them from the library's. */
#include "base/hash.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/onednn.h"

#include <stdlib.h>

/* ROWS and COLUMNS are a whole tile. The depths reach from one block of the library's to the widest
 * layers of GPT-2. */
enum { ROWS = 128, OWN_ROWS = 4, COLUMNS = 192, DEPTH_MAX = 3072 };
static const int64_t depths[] = {64, 256, 768, 1024, 1600, DEPTH_MAX};

/* x (n) = numbers in [-1, 1) that use all bits of an f32. */
static void fill_drawn(float *x, int64_t n, uint32_t which)
{
    const struct dpt_rng_key key = {{which, 0}};
    for (int64_t i = 0; i < n; i += 4) {
        uint32_t words[4];
        dpt_philox(key, (uint64_t)i, words);
        for (int64_t k = 0; k < 4; k++)
            x[i + k] = (float)(int32_t)words[k] * 0x1p-31f;
    }
}

/* Returns a hash of the bits of products of a and b, for all depths. */
static uint64_t hash_products(struct dpt_cpu_stream *s, enum dpt_dtype dtype, const void *a,
                              const void *b, float *c)
{
    const int64_t rows = dpt_onednn_multiplies(s->gemm) ? ROWS : OWN_ROWS;
    uint64_t hash = 0;
    for (size_t i = 0; i < sizeof depths / sizeof *depths; i++) {
        const struct dpt_gemm g = {.m = rows,
                                   .n = COLUMNS,
                                   .k = depths[i],
                                   .dtype = dtype,
                                   .a = a,
                                   .a_row = depths[i],
                                   .a_col = 1,
                                   .b = b,
                                   .b_row = COLUMNS,
                                   .b_col = 1,
                                   .store = {.c = c, .ldc = COLUMNS}};
        dpt_cpu_gemm(s, &g);
        hash = hash * 31 + dpt_hash128(c, (size_t)(rows * COLUMNS) * sizeof *c).lo;
    }
    return hash;
}

enum dpt_status dpt_cpu_probe(struct dpt_device *dev, uint32_t *ret_hash, struct dpt_err *err)
{
    const int64_t a_floats = ROWS * DEPTH_MAX, b_floats = DEPTH_MAX * COLUMNS;
    float *a = calloc((size_t)(a_floats + b_floats + ROWS * COLUMNS), sizeof *a);
    uint16_t *half = calloc((size_t)(a_floats + b_floats), sizeof *half);
    struct dpt_stream *stream = NULL;
    uint64_t hash = 0;
    enum dpt_status status = DPT_OK;
    if (!a || !half) {
        free(a);
        free(half);
        return dpt_fail_nomem(err, "probe of the CPU device");
    }
    float *b = a + a_floats, *c = b + b_floats;
    fill_drawn(a, a_floats, 1);
    fill_drawn(b, b_floats, 2);
    status = dpt_stream_create(dev, 1, &stream, err);
    if (status == DPT_OK) {
        struct dpt_cpu_stream *s = dpt_cpu_stream(stream);
        hash = hash_products(s, DPT_F32, a, b, c);
        dpt_cpu_cast(stream, a_floats + b_floats, a, DPT_BF16, half);
        hash = hash * 31 + hash_products(s, DPT_BF16, half, half + a_floats, c);
        status = dpt_stream_sync(stream, err);
    }
    dpt_stream_destroy(&stream);
    free(a);
    free(half);
    if (status == DPT_OK)
        *ret_hash = (uint32_t)(hash ^ hash >> 32);
    return status;
}
