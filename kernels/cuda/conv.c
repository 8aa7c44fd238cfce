/* Convolutions, with the weight as (out, kernel, kernel, in). cuDNN computes y and dx
 * (cudnn_ops.h). Shapes that it does not take, and dw, are products with windows of the images,
 * which a kernel writes to memory for some images at a time ("im2col"). dx is then summed from the
 * windows' gradients in f32, pixel by pixel, in the windows' order. The images' parts of dw are
 * added in the images' order. */
#include "kernels/cuda/cudnn_ops.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/launch.h"

/* The most bytes of windows in memory at once, unless one image has more. */
enum { WINDOWS_BYTES_MAX = 256 << 20, ALIGN_BYTES = 256 };

/* A convolution, which is computed for `each` images at a time. */
struct conv {
    struct dpt_cuda_stream *s;
    const char *name;
    struct dpt_windows of;
    int64_t in, out;
    enum dpt_dtype dtype;
    int64_t per_image, width, each; /* windows of an image, elements of one */
    bool pixels;                    /* the windows are the image itself */
};

/* The parts of the workspace, as offsets in bytes. */
struct layout {
    size_t weight, windows, sums, end;
};

static size_t align_up(size_t bytes)
{
    return (bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
}

/* `element` is the bytes of one element of the windows. */
static struct conv conv_of(struct dpt_cuda_stream *s, const struct dpt_windows *of, int64_t in,
                           int64_t out, enum dpt_dtype dtype, size_t element)
{
    struct conv c = {.s = s,
                     .of = *of,
                     .in = in,
                     .out = out,
                     .dtype = dtype,
                     .per_image = dpt_windows_along(of->h, of->stride) *
                                  dpt_windows_along(of->w, of->stride),
                     .width = of->kernel * of->kernel * in,
                     .pixels = of->kernel == 1 && of->stride == 1};
    DPT_ASSERT(dpt_windows_are_valid(of));
    const int64_t bytes = c.per_image * c.width * (int64_t)element;
    c.each = bytes > 0 && !c.pixels ? WINDOWS_BYTES_MAX / bytes : of->b;
    c.each = c.each < 1 ? 1 : c.each < of->b ? c.each : of->b;
    return c;
}

/* Whether our kernels are posted. False while the stream prepares and after an error. */
static bool posts_conv(const struct conv *c)
{
    return !c->s->base.preparing && c->s->base.error.status == DPT_OK;
}

static struct dpt_launch_conv_weight weight_of(const struct conv *c)
{
    return (struct dpt_launch_conv_weight){c->out, c->in, c->of.kernel * c->of.kernel, c->dtype};
}

/* The next images, from `first` on: `each`, or the rest. */
static struct dpt_windows images_at(const struct conv *c, int64_t first)
{
    struct dpt_windows of = c->of;
    of.b = c->of.b - first < c->each ? c->of.b - first : c->each;
    return of;
}

static const void *weight_in(const struct conv *c, const void *weight, void *to)
{
    const struct dpt_launch_conv_weight a = weight_of(c);
    DPT_CUDA_LAUNCH(c->s, c->name, conv_arrange, &a, weight, to);
    return to;
}

static const void *windows_in(const struct conv *c, const struct dpt_windows *images, int64_t first,
                              const void *x, void *to)
{
    const void *at = dpt_at(x, c->dtype, first * c->of.h * c->of.w * c->in);
    if (c->pixels)
        return at;
    DPT_CUDA_LAUNCH(c->s, c->name, windows, images, c->in, c->dtype, at, to);
    return to;
}

/* Gives the op its workspace. False when the op ends here. While the stream prepares it returns
 * true without memory, so that the products are prepared. */
static bool conv_workspace(const struct conv *c, const struct layout *at, char **ret)
{
    void *memory = NULL;
    const bool is_there = dpt_cuda_workspace(c->s, at->end, &memory);
    *ret = is_there ? memory : NULL;
    return is_there || (c->s->base.preparing && c->s->base.error.status == DPT_OK);
}

static void *workspace_part(char *memory, size_t at)
{
    return memory ? memory + at : NULL;
}

static size_t weight_bytes(const struct conv *c)
{
    return (size_t)(c->out * c->width) * dpt_dtype_bytes(c->dtype);
}

static struct layout layout_of(const struct conv *c, size_t element, size_t sums)
{
    struct layout at = {.weight = 0};
    at.windows = align_up(weight_bytes(c));
    at.sums = at.windows + align_up((size_t)(c->each * c->per_image * c->width) * element);
    at.end = at.sums + align_up(sums);
    return at;
}

/* --- by cuDNN --- */

static struct dpt_conv_shape shape_of(const struct conv *c, bool back)
{
    return (struct dpt_conv_shape){c->of, c->in, c->out, c->dtype, back};
}

static void cudnn_forward(const struct conv *c, const struct dpt_conv_forward *a)
{
    const struct dpt_conv_shape y = shape_of(c, false);
    struct layout at = {.windows = align_up(weight_bytes(c))};
    size_t scratch;
    char *memory;
    struct dpt_cudnn_entry *plan = dpt_cudnn_conv_plan(c->s, &y, &scratch);
    if (!plan)
        return;
    at.end = at.windows + scratch;
    if (!conv_workspace(c, &at, &memory) || !posts_conv(c))
        return;
    const void *weight = weight_in(c, a->weight, memory);
    dpt_cudnn_conv_run(c->s, plan, a->x, weight, a->y, memory + at.windows);
}

/* With add_dx, the gradient is computed in the workspace first and then added to dx. */
static void cudnn_input_gradient(const struct conv *c, const struct dpt_conv_backward *a)
{
    const struct dpt_conv_shape product = shape_of(c, true);
    const int64_t n = c->of.b * c->of.h * c->of.w * c->in;
    struct layout at = {.windows = align_up(weight_bytes(c))};
    size_t scratch;
    char *memory;
    struct dpt_cudnn_entry *plan = dpt_cudnn_conv_plan(c->s, &product, &scratch);
    if (!plan)
        return;
    at.sums = at.windows + align_up(scratch);
    at.end = at.sums + (size_t)n * dpt_dtype_bytes(c->dtype);
    if (!conv_workspace(c, &at, &memory) || !posts_conv(c))
        return;
    const void *weight = weight_in(c, a->weight, memory);
    void *const dx = a->add_dx ? memory + at.sums : a->dx;
    const struct dpt_residual sum = {.n = n, .dtype = c->dtype, .a = a->dx, .b = dx, .y = a->dx};
    dpt_cudnn_conv_run(c->s, plan, dx, weight, a->dy, memory + at.windows);
    if (a->add_dx)
        DPT_CUDA_LAUNCH(c->s, c->name, residual, &sum);
}

/* --- the ops --- */

void dpt_cuda_conv_forward(struct dpt_stream *stream, const struct dpt_conv_forward *a)
{
    struct dpt_cuda_stream *s = dpt_cuda_stream(stream);
    const size_t element = dpt_dtype_bytes(a->dtype);
    struct conv c = conv_of(s, &a->of, a->in, a->out, a->dtype, element);
    const struct layout at = layout_of(&c, c.pixels ? 0 : element, 0);
    char *memory;
    DPT_ASSERT(!a->packed);
    c.name = "convolution";
    if (!dpt_cuda_begin(s, a->dtype, c.name))
        return;
    if (dpt_cudnn_conv_takes(a->in, a->out, a->dtype)) {
        cudnn_forward(&c, a);
        return;
    }
    if (!conv_workspace(&c, &at, &memory))
        return;
    const void *weight = weight_in(&c, a->weight, workspace_part(memory, at.weight));
    for (int64_t first = 0; first < c.of.b; first += c.each) {
        const struct dpt_windows images = images_at(&c, first);
        const struct dpt_cuda_gemm y = {
            .of.m = images.b * c.per_image,
            .of.n = c.out,
            .of.k = c.width,
            .of.dtype = c.dtype,
            .a = windows_in(&c, &images, first, a->x, workspace_part(memory, at.windows)),
            .of.lda = c.width,
            .b = weight,
            .of.ldb = c.width,
            .of.b_transposed = true,
            .of.out = c.dtype,
            .c = dpt_at_out(a->y, c.dtype, first * c.per_image * c.out),
            .of.ldc = c.out};
        dpt_cuda_gemm(s, &y);
    }
}

static void conv_input_gradient(const struct conv *c, const struct dpt_conv_backward *a)
{
    const struct layout at = layout_of(c, c->pixels ? 0 : sizeof(float), 0);
    char *memory;
    if (!conv_workspace(c, &at, &memory))
        return;
    const void *weight = weight_in(c, a->weight, workspace_part(memory, at.weight));
    void *const windows = workspace_part(memory, at.windows);
    for (int64_t first = 0; first < c->of.b; first += c->each) {
        const struct dpt_windows images = images_at(c, first);
        void *const dx = dpt_at_out(a->dx, c->dtype, first * c->of.h * c->of.w * c->in);
        const struct dpt_cuda_gemm product = {
            .of.m = images.b * c->per_image,
            .of.n = c->width,
            .of.k = c->out,
            .of.dtype = c->dtype,
            .a = dpt_at(a->dy, c->dtype, first * c->per_image * c->out),
            .of.lda = c->out,
            .b = weight,
            .of.ldb = c->width,
            .of.out = c->pixels ? c->dtype : DPT_F32,
            .c = c->pixels ? dx : windows,
            .of.ldc = c->width,
            .accumulate = c->pixels && a->add_dx};
        dpt_cuda_gemm(c->s, &product);
        const struct dpt_launch_pixels pixels = {images, c->in, c->dtype, windows, a->add_dx, dx};
        if (!c->pixels)
            DPT_CUDA_LAUNCH(c->s, c->name, pixels, &pixels);
    }
}

static void weight_gradient(const struct conv *c, const struct dpt_conv_backward *a)
{
    const struct layout at = layout_of(c, c->pixels ? 0 : dpt_dtype_bytes(c->dtype),
                                       (size_t)(c->out * c->width) * sizeof(float));
    const struct dpt_launch_conv_weight weight = weight_of(c);
    char *memory;
    if (!conv_workspace(c, &at, &memory))
        return;
    void *const sums = workspace_part(memory, at.sums);
    for (int64_t first = 0; first < c->of.b; first += c->each) {
        const struct dpt_windows images = images_at(c, first);
        const struct dpt_cuda_gemm dw = {
            .of.m = c->out,
            .of.n = c->width,
            .of.k = images.b * c->per_image,
            .of.dtype = c->dtype,
            .a = dpt_at(a->dy, c->dtype, first * c->per_image * c->out),
            .of.lda = c->out,
            .of.a_transposed = true,
            .b = windows_in(c, &images, first, a->x, workspace_part(memory, at.windows)),
            .of.ldb = c->width,
            .of.out = DPT_F32,
            .c = sums,
            .of.ldc = c->width,
            .accumulate = first > 0};
        dpt_cuda_gemm(c->s, &dw);
    }
    DPT_CUDA_LAUNCH(c->s, c->name, conv_restore, &weight, sums, a->accumulate, a->dw);
}

void dpt_cuda_conv_backward(struct dpt_stream *stream, const struct dpt_conv_backward *a)
{
    struct dpt_cuda_stream *s = dpt_cuda_stream(stream);
    struct conv c = conv_of(s, &a->of, a->in, a->out, a->dtype, sizeof(float));
    DPT_ASSERT(!a->packed);
    c.name = "convolution backward";
    if (!dpt_cuda_begin(s, a->dtype, c.name))
        return;
    if (a->dx || s->base.preparing) {
        if (dpt_cudnn_conv_takes(a->in, a->out, a->dtype))
            cudnn_input_gradient(&c, a);
        else
            conv_input_gradient(&c, a);
    }
    if (s->base.error.status == DPT_OK)
        weight_gradient(&c, a);
}
