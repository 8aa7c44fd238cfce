/* Products of matrices on a CPU stream, c (m,n) = a (m,k) b (k,n), summed in f32. Operands of 16
 * bits are multiplied as they are if the machine can; otherwise they are widened when they are
 * packed.
 *
 * A product is cut by shape into tiles of the result. Each tile is one single-threaded call over
 * the whole of k, so its bits depend neither on the number of threads nor on how a library would
 * divide the work. Operands are copied tile by tile into the dense or blocked forms that are
 * multiplied fastest. A finished tile is stored while it is still in the cache; the store also
 * applies bias, activation and accumulation.
 *
 * On AVX-512 and later oneDNN multiplies the tiles (onednn.h). On older machines our own kernel
 * does (kernels.h: panel_product), because the library has no blocked product there: each of its
 * calls copies both operands into memory that it allocates, and the bits of a row change with the
 * number of rows. */
#ifndef DPT_KERNELS_CPU_GEMM_H
#define DPT_KERNELS_CPU_GEMM_H

#include "kernels/cpu/stream.h"

/* How a finished tile is stored in the result (dpt_cpu_kernels.tile_store). */
struct dpt_gemm_store {
    enum dpt_dtype dtype; /* of c, bias, gelu */
    void *c;              /* (m, n), row stride ldc */
    int64_t ldc;
    const void *bias; /* (n) or NULL */
    void *gelu;       /* (m, n), row stride ldc, or NULL */
    bool accumulate;  /* c += product instead of c = product */
    bool stream;      /* c is not read again soon: the store may bypass the caches */
};

/* Rows of a and c without a fixed stride, for convolutions. The product gathers the rows of one
 * tile at a time, so the whole of a is never in memory. */
struct dpt_gemm_rows {
    /* to (rows, k) dense = rows first ... first + rows - 1 of a, as elements of `in`, which is the
     * product's dtype or f32. Any thread of the pool may call it. */
    void (*gather)(const void *ctx, int64_t first, int64_t rows, enum dpt_dtype in, void *to);
    /* The row of c in which row `row` of the product is stored. NULL: row `row`. */
    int64_t (*place)(const void *ctx, int64_t row);
    const void *ctx;
};

struct dpt_gemm {
    int64_t m, n, k;
    enum dpt_dtype dtype; /* of a and b */
    const void *a;
    int64_t a_row, a_col; /* element (i,j) of a is a[i*a_row + j*a_col]; one of the two is 1 */
    const struct dpt_gemm_rows *rows; /* or NULL; if set, a and its strides are not read */
    const void *b;
    int64_t b_row, b_col; /* as a_row, a_col, for b */
    const void *b_packed; /* or NULL; b as dpt_cpu_gemm_pack packed it: then b itself is not read */
    struct dpt_gemm_store store;
};

/* Packs b once for many products. `g` describes these products: its m and a do not matter, b's
 * strides do. The packed form is valid only for this build on this machine, so it must not be
 * stored. packed_bytes creates the primitives that it asks for the size, so it allocates; it
 * returns 0 and sets the stream's error when that fails. */
size_t dpt_cpu_gemm_packed_bytes(struct dpt_cpu_stream *s, const struct dpt_gemm *g);
void dpt_cpu_gemm_pack(struct dpt_cpu_stream *s, const struct dpt_gemm *g, void *ret_packed);

/* The packed forms of weights (packed.c). The file of the op that reads a form defines it. */
size_t dpt_cpu_linear_packed_bytes(struct dpt_cpu_stream *s, const struct dpt_pack *a);
void dpt_cpu_linear_pack(struct dpt_cpu_stream *s, const struct dpt_pack *a);
size_t dpt_cpu_head_packed_bytes(struct dpt_cpu_stream *s, const struct dpt_pack *a);
void dpt_cpu_head_pack(struct dpt_cpu_stream *s, const struct dpt_pack *a);
size_t dpt_cpu_conv_packed_bytes(struct dpt_cpu_stream *s, const struct dpt_pack *a);
void dpt_cpu_conv_pack(struct dpt_cpu_stream *s, const struct dpt_pack *a);

/* Returns a hash of the bits of products on this machine (probe.c). Takes a few milliseconds. */
DPT_MUST_USE enum dpt_status dpt_cpu_probe(struct dpt_device *dev, uint32_t *ret_hash,
                                           struct dpt_err *err);

/* Returns oneDNN's primitive of this shape, or NULL with the stream's error set. */
struct dpt_primitive_shape;
struct dpt_primitive *dpt_gemm_primitive(struct dpt_cpu_stream *s,
                                         const struct dpt_primitive_shape *shape);

/* dpt_gemm_note keeps the library's first status that is not 0 among the items of a loop.
 * dpt_gemm_report makes it the stream's error, as a failure of `what`. */
void dpt_gemm_note(_Atomic int *failed, int status);
void dpt_gemm_report(struct dpt_cpu_stream *s, int failed, const char *what);

/* Runs (or, while the stream prepares, only prepares) a product. Errors stick to the stream. */
void dpt_cpu_gemm(struct dpt_cpu_stream *s, const struct dpt_gemm *g);

#endif
