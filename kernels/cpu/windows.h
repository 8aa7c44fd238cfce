/* Windows of images as rows of a matrix ("im2col"), gathered in pieces where they are multiplied.
 * Only kernels/cpu includes this. */
#ifndef DPT_KERNELS_CPU_WINDOWS_H
#define DPT_KERNELS_CPU_WINDOWS_H

#include "kernels/cpu/stream.h"

/* Each of `b` images of h x w pixels has a grid of grid_h x grid_w windows of tall x wide pixels.
 * The window of grid point (i, j) begins at pixel (top + i*step, left + j*step). Its row of the
 * matrix has tall * wide * c elements, pixel by pixel. Pixels outside of the image are zero. */
struct dpt_cpu_windows {
    const struct dpt_elem_kernels *kernels; /* of dtype */
    enum dpt_dtype dtype;
    const void *image; /* (b, h, w, c) */
    int64_t b, h, w, c;
    int64_t grid_h, grid_w, step, top, left, tall, wide;
};

/* Returns the windows of a convolution on images (b, h, w, c). */
struct dpt_cpu_windows dpt_cpu_conv_windows(const struct dpt_cpu_stream *s,
                                            const struct dpt_windows *of, int64_t c,
                                            enum dpt_dtype dtype, const void *image);

/* The number of all windows, and the elements of one window. */
static inline int64_t dpt_cpu_windows_rows(const struct dpt_cpu_windows *a)
{
    return a->b * a->grid_h * a->grid_w;
}

static inline int64_t dpt_cpu_windows_width(const struct dpt_cpu_windows *a)
{
    return a->tall * a->wide * a->c;
}

/* Whether the matrix is the image itself, because each window is one pixel. */
static inline bool dpt_cpu_windows_are_pixels(const struct dpt_cpu_windows *a)
{
    return a->tall == 1 && a->wide == 1 && a->step == 1 && a->top == 0 && a->left == 0 &&
           a->grid_h == a->h && a->grid_w == a->w;
}

/* to (rows, cols) dense = elements [col, col + cols) of rows [first, first + rows), as elements of
 * `in`: dtype or f32. */
struct dpt_windows_part {
    int64_t first, rows, col, cols;
};
void dpt_cpu_windows_gather(const struct dpt_cpu_windows *a, const struct dpt_windows_part *part,
                            enum dpt_dtype in, void *to);

/* Posts the gradient a->dw, or only prepares it (conv_weights.c). */
void dpt_cpu_conv_weight_gradient(struct dpt_cpu_stream *s, const struct dpt_conv_backward *a);

#endif
