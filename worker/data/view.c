/* Views of pictures (view.h). */
#include "worker/data/view.h"

#include "base/rng.h"
#include "worker/data/data.h"

#include <math.h>

enum {
    TRIES = 10, /* as in torchvision's RandomResizedCrop */
    EXP_TERMS = 16,
    CHANNELS = DPT_PICTURE_CHANNELS
};
static const double AREA_MIN = 0.08, SIDES_MIN = 3.0 / 4.0, SIDES_MAX = 4.0 / 3.0,
                    LOG_SIDES_MAX = 0.28768207245178092; /* ln(4/3) */

struct dpt_view_rule dpt_view_rule(const struct dpt_config *config)
{
    return (struct dpt_view_rule){.kind = config->data.kind,
                                  .augment = config->data.augment,
                                  .size = config->data.image_size,
                                  .resize = config->data.resize,
                                  .padding = config->data.crop_padding,
                                  .seed = config->seed};
}

/* ---------------------------------------------------------------- drawing */

/* A number in 0 … n - 1. */
static int draw_below(uint32_t bits, int n)
{
    return (int)((uint64_t)bits * (uint64_t)n >> 32);
}

static double draw_unit(uint32_t bits)
{
    return (double)bits * 0x1p-32;
}

/* e^x for |x| < 0.3, by its series. The exp of libm differs from one machine to another. */
static double exp_of_small(double x)
{
    double sum = 1;
    for (int i = EXP_TERMS; i >= 1; i--)
        sum = 1 + sum * x / i;
    return sum;
}

/* Rounds half to even, as Python does. x >= 0. */
static int round_half_even(double x)
{
    const double down = floor(x);
    const bool up = x - down > 0.5 || (x - down == 0.5 && fmod(down, 2) == 1);
    return (int)down + up;
}

/* ---------------------------------------------------------------- views */

static int middle_offset(int whole, int part)
{
    return round_half_even((whole - part) / 2.0);
}

static struct dpt_view plain_view(const struct dpt_view_rule *rule, int width, int height)
{
    struct dpt_view view = {.from = {0, 0, width, height}, .width = width, .height = height};
    if (rule->kind == DPT_DATA_CIFAR10)
        return view;
    const int64_t shorter = width < height ? width : height;
    view.width = (int)((int64_t)rule->resize * width / shorter);
    view.height = (int)((int64_t)rule->resize * height / shorter);
    view.x = middle_offset(view.width, rule->size);
    view.y = middle_offset(view.height, rule->size);
    return view;
}

/* The largest part in the middle with an allowed ratio of its sides. */
static struct dpt_area middle_part(int width, int height)
{
    const double sides = (double)width / height;
    struct dpt_area part = {0, 0, width, height};
    if (sides < SIDES_MIN)
        part.height = round_half_even(width / SIDES_MIN);
    else if (sides > SIDES_MAX)
        part.width = round_half_even(height * SIDES_MAX);
    part.x = (width - part.width) / 2;
    part.y = (height - part.height) / 2;
    return part;
}

static struct dpt_area drawn_part(struct dpt_rng_key key, int width, int height)
{
    const double area = (double)width * height;
    for (uint64_t i = 1; i <= TRIES; i++) {
        uint32_t bits[4];
        dpt_philox(key, i, bits);
        const double share = area * (AREA_MIN + (1 - AREA_MIN) * draw_unit(bits[0]));
        const double sides = exp_of_small(LOG_SIDES_MAX * (2 * draw_unit(bits[1]) - 1));
        const int w = round_half_even(sqrt(share * sides)),
                  h = round_half_even(sqrt(share / sides));
        if (w >= 1 && w <= width && h >= 1 && h <= height)
            return (struct dpt_area){draw_below(bits[2], width - w + 1),
                                     draw_below(bits[3], height - h + 1), w, h};
    }
    return middle_part(width, height);
}

struct dpt_view dpt_view_of(const struct dpt_view_rule *rule, int width, int height, int64_t number)
{
    struct dpt_view view = plain_view(rule, width, height);
    if (number == DPT_DATA_NOT_VARIED || rule->augment == DPT_AUGMENT_NONE)
        return view;
    const struct dpt_rng_key key = dpt_rng_key(rule->seed, DPT_RNG_AUGMENT, (uint64_t)number, 0, 0);
    uint32_t bits[4];
    dpt_philox(key, 0, bits);
    if (rule->augment == DPT_AUGMENT_CROP_FLIP) {
        view.x += draw_below(bits[1], 2 * rule->padding + 1) - rule->padding;
        view.y += draw_below(bits[2], 2 * rule->padding + 1) - rule->padding;
    } else {
        view = (struct dpt_view){
            .from = drawn_part(key, width, height), .width = rule->size, .height = rule->size};
    }
    view.mirrored = bits[0] >> 31 != 0;
    return view;
}

/* ---------------------------------------------------------------- numbers */

/* The model's number for each byte of a channel. */
static void fill_value_table(enum dpt_data_kind kind, int channel, float ret[UINT8_MAX + 1])
{
    static const struct {
        float mean[CHANNELS], std[CHANNELS];
    } cifar10 = {{0.4914f, 0.4822f, 0.4465f}, {0.2023f, 0.1994f, 0.2010f}},
      imagenet = {{0.485f, 0.456f, 0.406f}, {0.229f, 0.224f, 0.225f}};
    const float mean = kind == DPT_DATA_CIFAR10 ? cifar10.mean[channel] : imagenet.mean[channel];
    const float std = kind == DPT_DATA_CIFAR10 ? cifar10.std[channel] : imagenet.std[channel];
    for (int value = 0; value <= UINT8_MAX; value++)
        ret[value] = ((float)value / 255.0f - mean) / std;
}

/* The part of the sample that the resized picture covers: (height, width) pixels, rows `row_bytes`
 * apart. It begins at row `top` and column `left` of the sample. */
struct window {
    const uint8_t *rgb;
    size_t row_bytes;
    int left, top, width, height;
};

static void write_numbers(const struct dpt_view_rule *rule, const struct dpt_view *view,
                          const struct window *window, float *ret)
{
    static const uint8_t black[CHANNELS] = {0};
    float table[CHANNELS][UINT8_MAX + 1];
    for (int c = 0; c < CHANNELS; c++)
        fill_value_table(rule->kind, c, table[c]);
    for (int y = 0; y < rule->size; y++)
        for (int i = 0; i < rule->size; i++) {
            const int x = (view->mirrored ? rule->size - 1 - i : i) - window->left,
                      row = y - window->top;
            const bool inside = x >= 0 && x < window->width && row >= 0 && row < window->height;
            const uint8_t *pixel =
                inside ? window->rgb + (size_t)row * window->row_bytes + (size_t)x * CHANNELS
                       : black;
            for (int c = 0; c < CHANNELS; c++)
                *ret++ = table[c][pixel[c]];
        }
}

/* The part of [at, at + size) that lies in [0, whole): its first position and its length. */
static void crop_overlap(int whole, int at, int size, int *ret_first, int *ret_n)
{
    const int first = at > 0 ? at : 0, end = at + size < whole ? at + size : whole;
    *ret_first = first;
    *ret_n = end > first ? end - first : 0;
}

enum dpt_status dpt_view_render(const struct dpt_view_rule *rule, const struct dpt_view *view,
                                const struct dpt_picture *picture, float *ret, struct dpt_err *err)
{
    const bool same = view->width == view->from.width && view->height == view->from.height;
    struct dpt_area cut;
    struct dpt_picture scaled = {.width = 0};
    crop_overlap(view->width, view->x, rule->size, &cut.x, &cut.width);
    crop_overlap(view->height, view->y, rule->size, &cut.y, &cut.height);
    struct window window = {
        .left = cut.x - view->x, .top = cut.y - view->y, .width = cut.width, .height = cut.height};
    if (same && cut.width > 0 && cut.height > 0) {
        window.row_bytes = (size_t)picture->width * CHANNELS;
        window.rgb = picture->rgb + (size_t)(view->from.y + cut.y) * window.row_bytes +
                     (size_t)(view->from.x + cut.x) * CHANNELS;
    } else if (cut.width > 0 && cut.height > 0) {
        const struct dpt_scaling scaling = {view->from, view->width, view->height, cut};
        DPT_TRY(dpt_picture_scale(picture, &scaling, &scaled, err));
        window.row_bytes = (size_t)cut.width * CHANNELS;
        window.rgb = scaled.rgb;
    }
    write_numbers(rule, view, &window, ret);
    dpt_picture_fini(&scaled);
    return DPT_OK;
}
