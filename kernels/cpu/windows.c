/* Windows of images (windows.h). The pixels of a window in one row of the image are adjacent and
 * are copied together. */
#include "kernels/cpu/windows.h"

#include <string.h>

struct dpt_cpu_windows dpt_cpu_conv_windows(const struct dpt_cpu_stream *s,
                                            const struct dpt_windows *of, int64_t c,
                                            enum dpt_dtype dtype, const void *image)
{
    const int64_t margin = (of->kernel - 1) / 2;
    DPT_ASSERT(dpt_windows_are_valid(of));
    return (struct dpt_cpu_windows){.kernels = s->kernels->of[dtype],
                                    .dtype = dtype,
                                    .image = image,
                                    .b = of->b,
                                    .h = of->h,
                                    .w = of->w,
                                    .c = c,
                                    .grid_h = dpt_windows_along(of->h, of->stride),
                                    .grid_w = dpt_windows_along(of->w, of->stride),
                                    .step = of->stride,
                                    .top = -margin,
                                    .left = -margin,
                                    .tall = of->kernel,
                                    .wide = of->kernel};
}

static int64_t clamped_coordinate(int64_t x, int64_t least, int64_t most)
{
    return x < least ? least : dpt_min64(x, most);
}

/* Appends n elements of the image, from element `from` on. Returns the new end. */
static char *append_pixels(const struct dpt_cpu_windows *a, int64_t from, int64_t n,
                           enum dpt_dtype in, char *to)
{
    const void *at = dpt_at(a->image, a->dtype, from);
    const size_t bytes = (size_t)n * dpt_dtype_bytes(in);
    if (in == a->dtype)
        memcpy(to, at, bytes);
    else
        a->kernels->widen(n, at, (float *)(void *)to);
    return to + bytes;
}

static char *append_zeros(int64_t n, enum dpt_dtype in, char *to)
{
    const size_t bytes = (size_t)n * dpt_dtype_bytes(in);
    memset(to, 0, bytes);
    return to + bytes;
}

/* Appends elements [col, end) of the window at `at`: image, grid row i, grid column j. Returns the
 * new end. */
static char *gather_row(const struct dpt_cpu_windows *a, const int64_t at[3], int64_t col,
                        int64_t end, enum dpt_dtype in, char *to)
{
    const int64_t line = a->wide * a->c; /* elements of a row of pixels */
    const int64_t y0 = a->top + at[1] * a->step, x0 = a->left + at[2] * a->step;
    const int64_t inside_from = clamped_coordinate(-x0, 0, a->wide) * a->c;
    const int64_t inside_to = clamped_coordinate(a->w - x0, 0, a->wide) * a->c;
    for (int64_t tap = col / line; tap * line < end; tap++) {
        const int64_t y = y0 + tap;
        const int64_t from = col - tap * line > 0 ? col - tap * line : 0;
        const int64_t until = dpt_min64(end - tap * line, line);
        if (y < 0 || y >= a->h) {
            to = append_zeros(until - from, in, to);
            continue;
        }
        const int64_t first = clamped_coordinate(inside_from, from, until);
        const int64_t last = clamped_coordinate(inside_to, first, until);
        to = append_zeros(first - from, in, to);
        to =
            append_pixels(a, ((at[0] * a->h + y) * a->w + x0) * a->c + first, last - first, in, to);
        to = append_zeros(until - last, in, to);
    }
    return to;
}

void dpt_cpu_windows_gather(const struct dpt_cpu_windows *a, const struct dpt_windows_part *part,
                            enum dpt_dtype in, void *to)
{
    const int64_t each = a->grid_h * a->grid_w, first = part->first;
    int64_t at[3] = {first / each, first % each / a->grid_w, first % a->grid_w};
    char *next = to;
    for (int64_t r = 0; r < part->rows; r++) {
        next = gather_row(a, at, part->col, part->col + part->cols, in, next);
        if (++at[2] == a->grid_w) {
            at[2] = 0;
            at[1]++;
        }
        if (at[1] == a->grid_h) {
            at[1] = 0;
            at[0]++;
        }
    }
}
