/* Convolutions as products: y = windows of x times the weight, dx = windows of dy times the weight
 * with its taps reversed ("implicit GEMM", Chetlur et al. 2014, cuDNN). conv_weights.c has the
 * gradient of the weight. A tap is one position of the kernel.
 *
 * With stride s the pixels of x fall into s*s classes, by their row and column modulo s. Each class
 * meets other taps of the kernel. For each class, dx is a separate product with only these taps, so
 * no product multiplies zeros between taps. The packed form of a weight is its form for y, followed
 * by the form of each class for dx. */
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/windows.h"

#include <string.h>

/* A weight and the images that it is convolved with. */
struct layer {
    struct dpt_cpu_stream *s;
    struct dpt_windows of;
    int64_t in, out;
    enum dpt_dtype dtype;
    const void *weight; /* (out, in, kernel, kernel) */
};

/* One product: windows times the matrix b, which consists of some taps of the weight. */
struct part {
    const struct layer *layer;
    struct dpt_cpu_windows windows;
    int64_t cols;                   /* columns of b; b has one row per element of a window */
    int64_t row, col;               /* strides of the arranged b */
    int64_t tap_stride, out_stride; /* of the arranged b, per tap and per output channel */
    /* Pixel (y, x) of a window meets tap (first_y + y*spread, first_x + x*spread). */
    int64_t first_y, first_x, spread;
    int64_t class_y, class_x; /* the class of the pixels of dx that the product computes */
};

static struct part forward_part(const struct layer *l, const void *x)
{
    const int64_t width = l->of.kernel * l->of.kernel * l->in;
    return (struct part){.layer = l,
                         .windows = dpt_cpu_conv_windows(l->s, &l->of, l->in, l->dtype, x),
                         .cols = l->out,
                         .row = 1,
                         .col = width,
                         .tap_stride = l->in,
                         .out_stride = width,
                         .spread = 1};
}

/* The taps that a pixel of a class meets along one side. There are `count` taps, and each meets
 * another pixel of dy. The first meets the pixel `from` places away. The last is tap `least`. */
struct met {
    int64_t count, least, from;
};

static struct met taps_met(const struct dpt_windows *of, int64_t class)
{
    const int64_t shifted = class + (of->kernel - 1) / 2, least = shifted % of->stride;
    const int64_t count = least < of->kernel ? dpt_ceil_div(of->kernel - least, of->stride) : 0;
    return (struct met){count, least, shifted / of->stride - (count - 1)};
}

static struct part input_part(const struct layer *l, const void *dy, int64_t class)
{
    const struct dpt_windows *of = &l->of;
    const int64_t class_y = class / of->stride, class_x = class % of->stride;
    const struct met y = taps_met(of, class_y), x = taps_met(of, class_x);
    return (struct part){.layer = l,
                         .windows = {.kernels = l->s->kernels->of[l->dtype],
                                     .dtype = l->dtype,
                                     .image = dy,
                                     .b = of->b,
                                     .h = dpt_windows_along(of->h, of->stride),
                                     .w = dpt_windows_along(of->w, of->stride),
                                     .c = l->out,
                                     .grid_h = dpt_ceil_div(of->h - class_y, of->stride),
                                     .grid_w = dpt_ceil_div(of->w - class_x, of->stride),
                                     .step = 1,
                                     .top = y.from,
                                     .left = x.from,
                                     .tall = y.count,
                                     .wide = x.count},
                         .cols = l->in,
                         .row = l->in,
                         .col = 1,
                         .tap_stride = l->out * l->in,
                         .out_stride = l->in,
                         .first_y = y.least + (y.count - 1) * of->stride,
                         .first_x = x.least + (x.count - 1) * of->stride,
                         .spread = -of->stride,
                         .class_y = class_y,
                         .class_x = class_x};
}

static int64_t pixel_classes(const struct layer *l)
{
    return l->of.stride * l->of.stride;
}

/* --- the weight, copied into the order of b --- */

struct arrange_job {
    const struct part *part;
    void *to;
};

static void arrange_item(void *ctx, int64_t item, int thread)
{
    const struct arrange_job *j = ctx;
    const struct part *p = j->part;
    const struct layer *l = p->layer;
    const int64_t kernel = l->of.kernel, taps = kernel * kernel;
    (void)thread;
    for (int64_t tap = 0; tap < p->windows.tall * p->windows.wide; tap++) {
        const int64_t y = p->first_y + tap / p->windows.wide * p->spread,
                      x = p->first_x + tap % p->windows.wide * p->spread;
        const int64_t from = item * l->in * taps + y * kernel + x,
                      to = tap * p->tap_stride + item * p->out_stride;
        if (l->dtype == DPT_F32)
            for (int64_t i = 0; i < l->in; i++)
                ((float *)j->to)[to + i] = ((const float *)l->weight)[from + i * taps];
        else
            for (int64_t i = 0; i < l->in; i++)
                ((uint16_t *)j->to)[to + i] = ((const uint16_t *)l->weight)[from + i * taps];
    }
}

/* Copies the weight into the order of b, in the stream's workspace. Returns NULL while the stream
 * prepares and after an error. */
static const void *arranged_weight(const struct part *p)
{
    const struct layer *l = p->layer;
    const int64_t elements = dpt_cpu_windows_width(&p->windows) * p->cols;
    struct dpt_workspace w;
    if (!dpt_cpu_workspace(l->s, DPT_WORKSPACE_OP, (size_t)elements * dpt_dtype_bytes(l->dtype), 0,
                           &w))
        return NULL;
    struct arrange_job job = {p, w.shared};
    dpt_pool_run(l->s->pool, l->out, arrange_item, &job);
    return w.shared;
}

/* --- products --- */

static void gather_windows(const void *ctx, int64_t first, int64_t rows, enum dpt_dtype in,
                           void *to)
{
    const struct part *p = ctx;
    const struct dpt_windows_part part = {first, rows, 0, dpt_cpu_windows_width(&p->windows)};
    dpt_cpu_windows_gather(&p->windows, &part, in, to);
}

/* The row of dx that row `row` of the product belongs to, when the product computes one class. */
static int64_t place_of_row(const void *ctx, int64_t row)
{
    const struct part *p = ctx;
    const struct dpt_windows *of = &p->layer->of;
    const int64_t j = row % p->windows.grid_w, i = row / p->windows.grid_w % p->windows.grid_h;
    const int64_t n = row / p->windows.grid_w / p->windows.grid_h;
    return (n * of->h + i * of->stride + p->class_y) * of->w + j * of->stride + p->class_x;
}

/* The part's product without the operands' addresses and without the store. */
static struct dpt_gemm product_of(const struct part *p)
{
    return (struct dpt_gemm){.n = p->cols,
                             .k = dpt_cpu_windows_width(&p->windows),
                             .dtype = p->layer->dtype,
                             .a_row = dpt_cpu_windows_width(&p->windows),
                             .a_col = 1,
                             .b_row = p->row,
                             .b_col = p->col};
}

/* y (rows, cols) = or += windows times b. `packed` is b's packed form or NULL. */
static void multiply_part(const struct part *p, const void *packed, void *y, bool accumulate)
{
    const struct layer *l = p->layer;
    /* With several classes, the pixels of one class are not adjacent in dx. */
    const bool places = pixel_classes(l) > 1 && p->spread < 0;
    const struct dpt_gemm_rows rows = {
        .gather = gather_windows, .place = places ? place_of_row : NULL, .ctx = p};
    struct dpt_gemm g = product_of(p);
    g.m = dpt_cpu_windows_rows(&p->windows);
    g.a = p->windows.image;
    g.rows = places || !dpt_cpu_windows_are_pixels(&p->windows) ? &rows : NULL;
    g.b_packed = packed;
    if (!packed)
        g.b = arranged_weight(p);
    g.store = (struct dpt_gemm_store){
        .dtype = l->dtype, .c = y, .ldc = p->cols, .accumulate = accumulate};
    dpt_cpu_gemm(l->s, &g);
}

static size_t packed_bytes_of(const struct part *p)
{
    const struct dpt_gemm g = product_of(p);
    return g.k > 0 ? dpt_cpu_gemm_packed_bytes(p->layer->s, &g) : 0;
}

static size_t pack_part(const struct part *p, void *packed, size_t at)
{
    struct dpt_gemm g = product_of(p);
    if (g.k == 0)
        return at;
    g.b = arranged_weight(p);
    dpt_cpu_gemm_pack(p->layer->s, &g, packed ? (char *)packed + at : NULL);
    return at + packed_bytes_of(p);
}

static struct layer layer_to_pack(struct dpt_cpu_stream *s, const struct dpt_pack *a)
{
    return (struct layer){.s = s,
                          .of = {.kernel = a->kernel, .stride = a->stride},
                          .in = a->cols / (a->kernel * a->kernel),
                          .out = a->rows,
                          .dtype = a->dtype,
                          .weight = a->w};
}

size_t dpt_cpu_conv_packed_bytes(struct dpt_cpu_stream *s, const struct dpt_pack *a)
{
    const struct layer l = layer_to_pack(s, a);
    const struct part y = forward_part(&l, NULL);
    size_t bytes = packed_bytes_of(&y);
    for (int64_t class = 0; class < pixel_classes(&l); class ++) {
        const struct part dx = input_part(&l, NULL, class);
        bytes += packed_bytes_of(&dx);
    }
    return bytes;
}

void dpt_cpu_conv_pack(struct dpt_cpu_stream *s, const struct dpt_pack *a)
{
    const struct layer l = layer_to_pack(s, a);
    const struct part y = forward_part(&l, NULL);
    size_t at = pack_part(&y, a->packed, 0);
    for (int64_t class = 0; class < pixel_classes(&l); class ++) {
        const struct part dx = input_part(&l, NULL, class);
        at = pack_part(&dx, a->packed, at);
    }
}

void dpt_cpu_conv_forward(struct dpt_stream *stream, const struct dpt_conv_forward *a)
{
    struct dpt_cpu_stream *s = dpt_cpu_stream(stream);
    if (!dpt_stream_begin(&s->base, a->dtype, "convolution"))
        return;
    const struct layer l = {s, a->of, a->in, a->out, a->dtype, a->weight};
    const struct part y = forward_part(&l, a->x);
    multiply_part(&y, a->packed, a->y, false);
}

/* --- the gradient of the input --- */

struct clear_job {
    const struct part *part;
    char *dx;
};

/* Clears the pixels of a class in one image. No window of dy meets these pixels. */
static void clear_item(void *ctx, int64_t item, int thread)
{
    const struct clear_job *j = ctx;
    const struct part *p = j->part;
    const int64_t each = p->windows.grid_h * p->windows.grid_w;
    const size_t bytes = (size_t)p->cols * dpt_dtype_bytes(p->layer->dtype);
    (void)thread;
    for (int64_t row = item * each; row < (item + 1) * each; row++)
        memset(j->dx + (size_t)place_of_row(p, row) * bytes, 0, bytes);
}

static void conv_input_gradient(const struct layer *l, const struct dpt_conv_backward *a)
{
    const struct part y = forward_part(l, NULL);
    const char *packed = a->packed;
    if (packed)
        packed += packed_bytes_of(&y);
    for (int64_t class = 0; class < pixel_classes(l); class ++) {
        const struct part dx = input_part(l, a->dy, class);
        struct clear_job job = {&dx, a->dx};
        if (dpt_cpu_windows_width(&dx.windows) > 0)
            multiply_part(&dx, packed, a->dx, a->add_dx);
        else if (!a->add_dx && !l->s->base.preparing && l->s->base.error.status == DPT_OK)
            dpt_pool_run(l->s->pool, l->of.b, clear_item, &job);
        if (packed)
            packed += packed_bytes_of(&dx);
    }
}

void dpt_cpu_conv_backward(struct dpt_stream *stream, const struct dpt_conv_backward *a)
{
    struct dpt_cpu_stream *s = dpt_cpu_stream(stream);
    if (!dpt_stream_begin(&s->base, a->dtype, "convolution backward"))
        return;
    const struct layer l = {s, a->of, a->in, a->out, a->dtype, a->weight};
    if (a->dx || s->base.preparing)
        conv_input_gradient(&l, a);
    dpt_cpu_conv_weight_gradient(s, a);
}
