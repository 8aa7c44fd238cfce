/* Windows of images as rows of a matrix ("im2col"), made piece by piece where they are multiplied.
 * For kernels/cpu only. */
#ifndef DPT_KERNELS_CPU_WINDOWS_H
#define DPT_KERNELS_CPU_WINDOWS_H

#include "kernels/cpu/stream.h"

/* A grid of `grid_h` x `grid_w` windows on each of `b` images of h x w pixels, of `tall` x `wide`
 * pixels each: that of grid point (i, j) begins at pixel (top + i*step, left + j*step). Its row has
 * tall * wide * c elements, pixel by pixel; those outside of the image are zero. */
struct dpt_cpu_windows {
    const struct dpt_elem_kernels *kernels; /* of dtype */
    enum dpt_dtype dtype;
    const void *image; /* (b, h, w, c) */
    int64_t b, h, w, c;
    int64_t grid_h, grid_w, step, top, left, tall, wide;
};

/* The windows of a convolution on its images (b, h, w, c). */
struct dpt_cpu_windows dpt_cpu_conv_windows(const struct dpt_cpu_stream *s,
                                            const struct dpt_windows *of, int64_t c,
                                            enum dpt_dtype dtype, const void *image);

/* All windows, and the elements of one. */
static inline int64_t dpt_cpu_windows_rows(const struct dpt_cpu_windows *a)
{
    return a->b * a->grid_h * a->grid_w;
}

static inline int64_t dpt_cpu_windows_width(const struct dpt_cpu_windows *a)
{
    return a->tall * a->wide * a->c;
}

/* Whether the rows are those of the image itself. */
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

/* conv_weights.c: posts, or prepares, the gradient a->dw. */
void dpt_cpu_conv_weight_gradient(struct dpt_cpu_stream *s, const struct dpt_conv_backward *a);

#endif
