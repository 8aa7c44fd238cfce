/* Products of matrices on a CPU stream, c (m,n) = a (m,k) b (k,n), summed in f32. Operands of 16
 * bits are multiplied as they are where the machine can do so, else widened when they are packed.
 *
 * A product is cut by shape into tiles of the result, each one single-threaded call over the whole
 * of k, so its bits depend neither on the number of threads nor on how a library would share the
 * work. Operands are copied tile by tile into the dense or blocked forms that are multiplied
 * fastest, and each finished tile is stored while it is still in the cache: bias, activation and
 * accumulation happen there.
 *
 * From AVX-512 on oneDNN multiplies the tiles (onednn.h), below it our own kernel does
 * (kernels.h: panel_product). The library has no blocked product there: each of its calls copies
 * both operands into memory that it allocates, and a row's bits change with the number of rows. */
#ifndef DPT_KERNELS_CPU_GEMM_H
#define DPT_KERNELS_CPU_GEMM_H

#include "kernels/cpu/stream.h"

/* How a finished tile reaches the result; see dpt_cpu_kernels.tile_store. */
struct dpt_gemm_store {
    enum dpt_dtype dtype; /* of c, bias, gelu */
    void *c;              /* (m, n), row stride ldc */
    int64_t ldc;
    const void *bias; /* (n) or NULL */
    void *gelu;       /* (m, n), row stride ldc, or NULL */
    bool accumulate;  /* c += product instead of c = product */
    bool stream;      /* c is not read again soon: it may go past the caches */
};

/* Rows of a and c without a stride, for convolutions: the rows of a are gathered tile by tile
 * during the product. The whole of a is never in memory. */
struct dpt_gemm_rows {
    /* to (rows, k) dense = rows first ... first + rows - 1 of a, as elements of `in`, which is the
     * product's dtype or f32. By any thread of the pool. */
    void (*gather)(const void *ctx, int64_t first, int64_t rows, enum dpt_dtype in, void *to);
    /* Which row of c row `row` of the product is; NULL: the same. */
    int64_t (*place)(const void *ctx, int64_t row);
    const void *ctx;
};

struct dpt_gemm {
    int64_t m, n, k;
    enum dpt_dtype dtype; /* of a and b */
    const void *a;
    int64_t a_row, a_col; /* element (i,j) of a is a[i*a_row + j*a_col]; one of the two is 1 */
    const struct dpt_gemm_rows *rows; /* or NULL; then a and its strides are not read */
    const void *b;
    int64_t b_row, b_col; /* likewise */
    const void *b_packed; /* or NULL; b as dpt_cpu_gemm_pack made it: then b itself is not read */
    struct dpt_gemm_store store;
};

/* b packed once for many products: `g` is the product it is for (its m and a do not matter, b's
 * strides do). The packed form belongs to this build and this machine; never store it.
 * packed_bytes makes the primitives it asks, so it allocates; 0 with the stream's error set when
 * that fails. */
size_t dpt_cpu_gemm_packed_bytes(struct dpt_cpu_stream *s, const struct dpt_gemm *g);
void dpt_cpu_gemm_pack(struct dpt_cpu_stream *s, const struct dpt_gemm *g, void *ret_packed);

/* The packed forms of weights (packed.c), each defined by the file of the op that reads it. */
size_t dpt_cpu_linear_packed_bytes(struct dpt_cpu_stream *s, const struct dpt_pack *a);
void dpt_cpu_linear_pack(struct dpt_cpu_stream *s, const struct dpt_pack *a);
size_t dpt_cpu_head_packed_bytes(struct dpt_cpu_stream *s, const struct dpt_pack *a);
void dpt_cpu_head_pack(struct dpt_cpu_stream *s, const struct dpt_pack *a);
size_t dpt_cpu_conv_packed_bytes(struct dpt_cpu_stream *s, const struct dpt_pack *a);
void dpt_cpu_conv_pack(struct dpt_cpu_stream *s, const struct dpt_pack *a);

/* A hash of the bits of products on this machine; see probe.c. Takes a few milliseconds. */
DPT_MUST_USE enum dpt_status dpt_cpu_probe(struct dpt_device *dev, uint32_t *ret_hash,
                                           struct dpt_err *err);

/* oneDNN's primitive of this shape; NULL with the stream's error set when there is none. */
struct dpt_primitive_shape;
struct dpt_primitive *dpt_gemm_primitive(struct dpt_cpu_stream *s,
                                         const struct dpt_primitive_shape *shape);

/* Keeps the first status of the library that is not 0, among the items of a loop; and makes it the
 * stream's error, as a failure of `what`. */
void dpt_gemm_note(_Atomic int *failed, int status);
void dpt_gemm_report(struct dpt_cpu_stream *s, int failed, const char *what);

/* Runs (or, while the stream prepares, only prepares) a product. Errors stick to the stream. */
void dpt_cpu_gemm(struct dpt_cpu_stream *s, const struct dpt_gemm *g);

#endif
