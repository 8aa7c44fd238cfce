/* Views of pictures: those of evaluations, the random ones of training and their keys, and the
 * numbers. */
#include "worker/data/view.h"

#include "worker/data/data.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SIZE = 6, NUMBERS = 4000 };

static struct dpt_err err;

static struct dpt_view_rule rule_of(enum dpt_data_kind kind, enum dpt_augment augment)
{
    return (struct dpt_view_rule){
        .kind = kind, .augment = augment, .size = SIZE, .resize = SIZE, .padding = 2, .seed = 42};
}

static void expect_view(struct dpt_view view, int width, int height, int x, int y)
{
    assert_int_equal(view.width, width);
    assert_int_equal(view.height, height);
    assert_int_equal(view.x, x);
    assert_int_equal(view.y, y);
    assert_false(view.mirrored);
}

/* torchvision: Resize(256) gives int(256 * long / short), CenterCrop int(round((side - 224) / 2)).
 */
static void evaluations_see_the_middle(void **state)
{
    (void)state;
    struct dpt_view_rule rule = rule_of(DPT_DATA_IMAGES, DPT_AUGMENT_RESIZED_CROP_FLIP);
    rule.size = 224;
    rule.resize = 256;
    expect_view(dpt_view_of(&rule, 500, 375, DPT_DATA_NOT_VARIED), 341, 256, 58, 16);
    expect_view(dpt_view_of(&rule, 375, 500, DPT_DATA_NOT_VARIED), 256, 341, 16, 58);
    expect_view(dpt_view_of(&rule, 343, 341, DPT_DATA_NOT_VARIED), 257, 256, 16, 16);
    expect_view(dpt_view_of(&rule, 349, 345, DPT_DATA_NOT_VARIED), 258, 256, 17, 16);
    expect_view(dpt_view_of(&rule, 20, 10, DPT_DATA_NOT_VARIED), 512, 256, 144, 16);
    rule.augment = DPT_AUGMENT_NONE;
    expect_view(dpt_view_of(&rule, 256, 256, 7), 256, 256, 16, 16);
    rule = rule_of(DPT_DATA_CIFAR10, DPT_AUGMENT_CROP_FLIP);
    expect_view(dpt_view_of(&rule, SIZE, SIZE, DPT_DATA_NOT_VARIED), SIZE, SIZE, 0, 0);
}

static bool same_view(struct dpt_view a, struct dpt_view b)
{
    return memcmp(&a.from, &b.from, sizeof a.from) == 0 && a.width == b.width &&
           a.height == b.height && a.x == b.x && a.y == b.y && a.mirrored == b.mirrored;
}

/* By the seed and the number, and nothing else. */
static void drawn_by_number(void **state)
{
    (void)state;
    static const enum dpt_augment augments[] = {DPT_AUGMENT_CROP_FLIP,
                                                DPT_AUGMENT_RESIZED_CROP_FLIP};
    for (size_t i = 0; i < 2; i++) {
        struct dpt_view_rule rule = rule_of(DPT_DATA_IMAGES, augments[i]), other = rule;
        int by_number = 0, by_seed = 0;
        other.seed = 43;
        for (int64_t number = 0; number < 100; number++) {
            const struct dpt_view view = dpt_view_of(&rule, 40, 30, number);
            assert_true(same_view(view, dpt_view_of(&rule, 40, 30, number)));
            by_number += !same_view(view, dpt_view_of(&rule, 40, 30, number + 1));
            by_seed += !same_view(view, dpt_view_of(&other, 40, 30, number));
        }
        assert_true(by_number > 80 && by_seed > 80);
    }
}

/* Each of the 5 x 5 places, mirrored and not. */
static void crops_are_even(void **state)
{
    (void)state;
    const struct dpt_view_rule rule = rule_of(DPT_DATA_CIFAR10, DPT_AUGMENT_CROP_FLIP);
    int count[5][5][2] = {{{0}}};
    for (int64_t number = 0; number < NUMBERS; number++) {
        const struct dpt_view view = dpt_view_of(&rule, SIZE, SIZE, number);
        assert_true(view.x >= -2 && view.x <= 2 && view.y >= -2 && view.y <= 2);
        assert_int_equal(view.width, SIZE);
        count[view.x + 2][view.y + 2][view.mirrored]++;
    }
    for (int i = 0; i < 50; i++) /* 80 each, with a deviation of 8.9 */
        assert_in_range((&count[0][0][0])[i], 80 - 45, 80 + 45);
}

static void no_padding_only_mirrors(void **state)
{
    (void)state;
    struct dpt_view_rule rule = rule_of(DPT_DATA_CIFAR10, DPT_AUGMENT_CROP_FLIP);
    int mirrored = 0;
    rule.padding = 0;
    for (int64_t number = 0; number < NUMBERS; number++) {
        struct dpt_view view = dpt_view_of(&rule, SIZE, SIZE, number);
        mirrored += view.mirrored;
        view.mirrored = false;
        expect_view(view, SIZE, SIZE, 0, 0);
    }
    assert_in_range(mirrored, NUMBERS / 2 - 160, NUMBERS / 2 + 160);
}

/* Of 8 to 100 % of the area, 3:4 to 4:3, up to rounding; each half of the range as often as
 * expected. */
static void parts_are_even(void **state)
{
    (void)state;
    const struct dpt_view_rule rule = rule_of(DPT_DATA_IMAGES, DPT_AUGMENT_RESIZED_CROP_FLIP);
    int large = 0, wide = 0, mirrored = 0;
    for (int64_t number = 0; number < NUMBERS; number++) {
        const struct dpt_view view = dpt_view_of(&rule, 1000, 1000, number);
        const struct dpt_area part = view.from;
        const double area = part.width * (double)part.height / 1e6,
                     sides = (double)part.width / part.height;
        assert_true(part.x >= 0 && part.y >= 0 && part.x + part.width <= 1000 &&
                    part.y + part.height <= 1000);
        assert_true(area > 0.0795 && area <= 1 && sides > 0.745 && sides < 1.342);
        assert_int_equal(view.width, SIZE);
        assert_int_equal(view.height, SIZE);
        large += area > 0.54; /* less than half: large parts of other than 1:1 fit less often */
        wide += part.width > part.height;
        mirrored += view.mirrored;
    }
    assert_in_range(large, NUMBERS / 2 - 500, NUMBERS / 2);
    assert_in_range(wide, NUMBERS / 2 - 160, NUMBERS / 2 + 160);
    assert_in_range(mirrored, NUMBERS / 2 - 160, NUMBERS / 2 + 160);
}

/* Where ten draws do not fit: the middle, as torchvision falls back. */
static void narrow_pictures(void **state)
{
    (void)state;
    const struct dpt_view_rule rule = rule_of(DPT_DATA_IMAGES, DPT_AUGMENT_RESIZED_CROP_FLIP);
    for (int64_t number = 0; number < 50; number++) {
        const struct dpt_area wide = dpt_view_of(&rule, 3000, 3, number).from,
                              high = dpt_view_of(&rule, 3, 3000, number).from;
        assert_int_equal(wide.width, 4);
        assert_int_equal(wide.height, 3);
        assert_int_equal(wide.x, 1498);
        assert_int_equal(high.height, 4);
        assert_int_equal(high.y, 1498);
        const struct dpt_area one = dpt_view_of(&rule, 1, 1, number).from;
        assert_true(one.width == 1 && one.height == 1);
    }
}

/* ---------------------------------------------------------------- numbers */

/* Of pixel (x, y), 0 outside: all of them differ. */
static int value(int x, int y, int c)
{
    return x >= 0 && x < SIZE && y >= 0 && y < SIZE ? 10 + (y * SIZE + x) * 3 + c : 0;
}

static struct dpt_picture picture_of_values(uint8_t rgb[SIZE * SIZE * 3])
{
    for (int y = 0; y < SIZE; y++)
        for (int x = 0; x < SIZE; x++)
            for (int c = 0; c < 3; c++)
                rgb[(y * SIZE + x) * 3 + c] = (uint8_t)value(x, y, c);
    return (struct dpt_picture){.width = SIZE, .height = SIZE, .rgb = rgb};
}

static void expect_numbers(enum dpt_data_kind kind, const float *mean, const float *std)
{
    const struct dpt_view_rule rule = rule_of(kind, DPT_AUGMENT_CROP_FLIP);
    uint8_t rgb[SIZE * SIZE * 3];
    float found[SIZE * SIZE * 3];
    const struct dpt_picture picture = picture_of_values(rgb);
    for (int64_t number = DPT_DATA_NOT_VARIED; number < 40; number++) {
        const struct dpt_view view = dpt_view_of(&rule, SIZE, SIZE, number);
        assert_int_equal(dpt_view_render(&rule, &view, &picture, found, &err), DPT_OK);
        for (int y = 0; y < SIZE; y++)
            for (int i = 0; i < SIZE; i++)
                for (int c = 0; c < 3; c++) {
                    const int x = view.mirrored ? SIZE - 1 - i : i;
                    const float byte = (float)value(x + view.x, y + view.y, c);
                    const float expected = (byte / 255.0f - mean[c]) / std[c];
                    assert_memory_equal(&found[(y * SIZE + i) * 3 + c], &expected, sizeof expected);
                }
    }
}

static void test_normalisation_constants(void **state)
{
    (void)state;
    static const float cifar10[2][3] = {{.4914f, .4822f, .4465f}, {.2023f, .1994f, .2010f}},
                       imagenet[2][3] = {{.485f, .456f, .406f}, {.229f, .224f, .225f}};
    expect_numbers(DPT_DATA_CIFAR10, cifar10[0], cifar10[1]);
    expect_numbers(DPT_DATA_IMAGES, imagenet[0], imagenet[1]);
}

/* Resized, then cut and moved: black comes in, and nothing outside is read. */
static void numbers_of_a_resized_picture(void **state)
{
    (void)state;
    struct dpt_view_rule rule = rule_of(DPT_DATA_IMAGES, DPT_AUGMENT_CROP_FLIP);
    uint8_t *rgb = malloc(2 * 4 * 3);
    float found[SIZE * SIZE * 3];
    assert_non_null(rgb);
    memset(rgb, 255, 2 * 4 * 3);
    const struct dpt_picture white = {.width = 4, .height = 2, .rgb = rgb};
    rule.resize = SIZE + 1; /* 14 x 7 */
    rule.padding = 3 * SIZE;
    bool all_black = false, some_white = false;
    for (int64_t number = 0; number < 200; number++) {
        const struct dpt_view view = dpt_view_of(&rule, 4, 2, number);
        int n_white = 0;
        assert_int_equal(dpt_view_render(&rule, &view, &white, found, &err), DPT_OK);
        for (int i = 0; i < SIZE * SIZE; i++) {
            const int x = i % SIZE + view.x, y = i / SIZE + view.y;
            const bool inside = x >= 0 && x < 14 && y >= 0 && y < 7;
            const int at = view.mirrored ? i / SIZE * SIZE + SIZE - 1 - i % SIZE : i;
            assert_true((found[(size_t)at * 3] > 0) == inside);
            n_white += inside;
        }
        all_black = all_black || n_white == 0;
        some_white = some_white || n_white > 0;
    }
    assert_true(all_black && some_white);
    free(rgb);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(evaluations_see_the_middle),
        cmocka_unit_test(drawn_by_number),
        cmocka_unit_test(crops_are_even),
        cmocka_unit_test(no_padding_only_mirrors),
        cmocka_unit_test(parts_are_even),
        cmocka_unit_test(narrow_pictures),
        cmocka_unit_test(test_normalisation_constants),
        cmocka_unit_test(numbers_of_a_resized_picture),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
