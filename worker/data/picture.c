/* Memory of pictures, and bilinear resizing in two passes (picture.h). */
#include "worker/data/picture.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

enum { WEIGHT_BITS = 22, CHANNELS = DPT_PICTURE_CHANNELS };

void dpt_picture_fini(struct dpt_picture *picture)
{
    free(picture->rgb);
    *picture = (struct dpt_picture){.rgb = NULL};
}

enum dpt_status dpt_picture_set_size(struct dpt_picture *picture, int64_t width, int64_t height,
                                     struct dpt_err *err)
{
    if (width < 1 || height < 1 || width > DPT_PICTURE_SIDE_MAX || height > DPT_PICTURE_SIDE_MAX ||
        width * height > DPT_PICTURE_PIXELS_MAX)
        return dpt_fail(err, DPT_ECORRUPT,
                        "it has %lld x %lld pixels; from 1 x 1 to %d in all can be read",
                        (long long)width, (long long)height, DPT_PICTURE_PIXELS_MAX);
    const size_t bytes = (size_t)width * (size_t)height * DPT_PICTURE_CHANNELS;
    if (bytes > picture->room) {
        uint8_t *rgb = malloc(bytes);
        if (!rgb)
            return dpt_fail_nomem(err, "its %zu bytes of pixels", bytes);
        free(picture->rgb);
        picture->rgb = rgb;
        picture->room = bytes;
    }
    picture->width = (int)width;
    picture->height = (int)height;
    return DPT_OK;
}

/* ---------------------------------------------------------------- resizing */

/* The weights of one pass with `n` results: result i is the weighted sum of count[i] pixels of the
 * source, from pixel begin[i] on. */
struct weights {
    int n, width;       /* width: count[i] at most */
    int size;           /* pixels of the source */
    double scale;       /* pixels of the source for one pixel of the result */
    int *begin, *count; /* (n) */
    int32_t *weight;    /* (n, width) */
};

static void weights_fini(struct weights *w)
{
    free(w->begin);
    free(w->count);
    free(w->weight);
}

/* Computes the weights of result number `i` into entry `at`; `share` has room for w->width
 * numbers. */
static void weigh_result(struct weights *w, int i, int at, double *share)
{
    const double scale = w->scale, reach = scale < 1 ? 1 : scale;
    const double centre = (i + 0.5) * scale;
    int begin = (int)(centre - reach + 0.5), end = (int)(centre + reach + 0.5);
    double sum = 0;
    begin = begin < 0 ? 0 : begin;
    end = end > w->size ? w->size : end;
    for (int j = begin; j < end; j++) {
        const double distance = fabs((j - centre + 0.5) * (1.0 / reach));
        share[j - begin] = distance < 1 ? 1 - distance : 0;
        sum += share[j - begin];
    }
    for (int j = 0; j < end - begin; j++)
        w->weight[at * w->width + j] =
            (int32_t)(0.5 + (sum != 0 ? share[j] / sum : share[j]) * (1 << WEIGHT_BITS));
    w->begin[at] = begin;
    w->count[at] = end - begin;
}

/* Prepares a pass from `size` pixels to `length` pixels, of which the `n` from `first` on are
 * wanted. False: no memory. */
static bool weights_init(struct weights *w, int size, int length, int first, int n)
{
    const double scale = (double)size / length, reach = scale < 1 ? 1 : scale;
    const int width = (int)ceil(reach) * 2 + 1;
    double *share = calloc((size_t)width, sizeof *share);
    *w = (struct weights){.n = n,
                          .width = width,
                          .size = size,
                          .scale = scale,
                          .begin = calloc((size_t)n, sizeof *w->begin),
                          .count = calloc((size_t)n, sizeof *w->count),
                          .weight = calloc((size_t)n * (size_t)width, sizeof *w->weight)};
    const bool fits = share && w->begin && w->count && w->weight;
    for (int i = 0; fits && i < n; i++)
        weigh_result(w, first + i, i, share);
    free(share);
    return fits;
}

/* The weighted sum of `count` pixels that are `step` bytes apart. */
static uint8_t weighted_sum(const uint8_t *pixel, size_t step, const int32_t *weight, int count)
{
    int32_t sum = 1 << (WEIGHT_BITS - 1);
    for (int j = 0; j < count; j++)
        sum += pixel[(size_t)j * step] * weight[j];
    sum >>= WEIGHT_BITS;
    return (uint8_t)(sum < 0 ? 0 : sum > UINT8_MAX ? UINT8_MAX : sum);
}

/* Resizes each row: rows of `source` from `top` on, as many as `ret` has. */
static void resize_across(const struct dpt_picture *source, int left, int top,
                          const struct weights *w, struct dpt_picture *ret)
{
    for (int y = 0; y < ret->height; y++) {
        const uint8_t *row =
            source->rgb + ((size_t)(top + y) * (size_t)source->width + (size_t)left) * CHANNELS;
        uint8_t *to = ret->rgb + (size_t)y * (size_t)ret->width * CHANNELS;
        for (int x = 0; x < w->n; x++)
            for (int c = 0; c < CHANNELS; c++)
                *to++ = weighted_sum(row + (size_t)w->begin[x] * CHANNELS + c, CHANNELS,
                                     w->weight + (size_t)x * (size_t)w->width, w->count[x]);
    }
}

/* Resizes each column. `top`: the row of the source from which the first row of `middle` was made.
 */
static void resize_down(const struct dpt_picture *middle, int top, const struct weights *w,
                        struct dpt_picture *ret)
{
    const size_t row_bytes = (size_t)middle->width * CHANNELS;
    for (int y = 0; y < w->n; y++) {
        const uint8_t *from = middle->rgb + (size_t)(w->begin[y] - top) * row_bytes;
        uint8_t *to = ret->rgb + (size_t)y * row_bytes;
        for (size_t k = 0; k < row_bytes; k++)
            to[k] = weighted_sum(from + k, row_bytes, w->weight + (size_t)y * (size_t)w->width,
                                 w->count[y]);
    }
}

enum dpt_status dpt_picture_scale(const struct dpt_picture *source,
                                  const struct dpt_scaling *scaling, struct dpt_picture *ret,
                                  struct dpt_err *err)
{
    const struct dpt_area from = scaling->from, cut = scaling->cut;
    const int width = scaling->width, height = scaling->height;
    DPT_ASSERT(from.x >= 0 && from.y >= 0 && from.width >= 1 && from.height >= 1 &&
               from.x + from.width <= source->width && from.y + from.height <= source->height);
    DPT_ASSERT(cut.x >= 0 && cut.y >= 0 && cut.width >= 1 && cut.height >= 1 &&
               cut.x + cut.width <= width && cut.y + cut.height <= height);
    struct weights across = {.n = 0}, down = {.n = 0};
    struct dpt_picture middle = {.rgb = NULL};
    enum dpt_status status = DPT_OK;
    if (!weights_init(&across, from.width, width, cut.x, cut.width) ||
        !weights_init(&down, from.height, height, cut.y, cut.height))
        status = dpt_fail_nomem(err, "resize an image");
    const int top = status == DPT_OK ? down.begin[0] : 0;
    if (status == DPT_OK)
        status = dpt_picture_set_size(&middle, cut.width,
                                      down.begin[down.n - 1] + down.count[down.n - 1] - top, err);
    if (status == DPT_OK)
        status = dpt_picture_set_size(ret, cut.width, cut.height, err);
    if (status == DPT_OK) {
        resize_across(source, from.x, from.y + top, &across, &middle);
        resize_down(&middle, top, &down, ret);
    }
    dpt_picture_fini(&middle);
    weights_fini(&across);
    weights_fini(&down);
    return status;
}
