/* JPEG and PNG files as Pillow decodes and resizes them; damage at every place; sizes. */
#include "worker/data/picture.h"

#include "base/fs.h"
#include "base/sha256.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { FILES_MAX = 64, FILE_BYTES_MAX = 1 << 16 };

static struct dpt_err err;

struct recorded {
    char name[32], pixels[DPT_SHA256_HEX_BYTES], middle[DPT_SHA256_HEX_BYTES],
        part[DPT_SHA256_HEX_BYTES];
    int width, height;
};
static struct recorded recorded[FILES_MAX];
static int n_recorded;

static int setup(void **state)
{
    (void)state;
    FILE *f = fopen(DPT_RECORDED "/images/images.txt", "r");
    struct recorded *r = recorded;
    assert_non_null(f);
    while (n_recorded < FILES_MAX && fscanf(f, "%31s %d %d %64s %64s %64s", r->name, &r->width,
                                            &r->height, r->pixels, r->middle, r->part) == 6) {
        n_recorded++;
        r++;
    }
    assert_int_equal(fclose(f), 0);
    return n_recorded >= 10 ? 0 : -1;
}

/* Owned. */
static uint8_t *read_recorded(const char *name, size_t *ret_bytes)
{
    char path[512], *text = NULL;
    (void)snprintf(path, sizeof path, "%s/images/%s", DPT_RECORDED, name);
    if (dpt_fs_read_file(path, FILE_BYTES_MAX, &text, ret_bytes, &err) != DPT_OK)
        fail_msg("%s", err.text);
    return (uint8_t *)text;
}

static void expect_pixels(const struct recorded *r, const char *what,
                          const struct dpt_picture *picture, const char *expected)
{
    struct dpt_sha256 sha;
    char hex[DPT_SHA256_HEX_BYTES];
    dpt_sha256_init(&sha);
    dpt_sha256_add(&sha, picture->rgb, (size_t)picture->width * (size_t)picture->height * 3);
    dpt_sha256_hex(&sha, hex);
    if (strcmp(hex, expected) != 0)
        fail_msg("%s: its %s are not Pillow's", r->name, what);
}

/* Resize(18) and CenterCrop(16); a part as 13 x 11. */
static void expect_resized(const struct recorded *r, const struct dpt_picture *picture)
{
    struct dpt_picture scaled = {.rgb = NULL};
    const struct dpt_area all = {0, 0, r->width, r->height}, part = {3, 2, 17, 9};
    /* 41 x 27 becomes 27 x 18; (27 - 16) / 2 = 5.5, to even: 6 */
    const struct dpt_area middle = {6, 1, 16, 16}, whole = {0, 0, 13, 11};
    assert_int_equal(
        dpt_picture_scale(picture, &(struct dpt_scaling){all, 27, 18, middle}, &scaled, &err),
        DPT_OK);
    expect_pixels(r, "resized pixels", &scaled, r->middle);
    assert_int_equal(
        dpt_picture_scale(picture, &(struct dpt_scaling){part, 13, 11, whole}, &scaled, &err),
        DPT_OK);
    expect_pixels(r, "part's pixels", &scaled, r->part);
    dpt_picture_fini(&scaled);
}

static void as_pillow_has_them(void **state)
{
    (void)state;
    struct dpt_picture picture = {.rgb = NULL};
    for (int i = 0; i < n_recorded; i++) {
        const struct recorded *r = &recorded[i];
        size_t bytes = 0;
        uint8_t *file = read_recorded(r->name, &bytes);
        if (dpt_picture_decode(file, bytes, &picture, &err) != DPT_OK)
            fail_msg("%s: %s", r->name, err.text);
        assert_int_equal(picture.width, r->width);
        assert_int_equal(picture.height, r->height);
        expect_pixels(r, "pixels", &picture, r->pixels);
        expect_resized(r, &picture);
        free(file);
    }
    dpt_picture_fini(&picture);
}

static void the_same_size_is_the_same(void **state)
{
    (void)state;
    size_t bytes = 0;
    uint8_t *file = read_recorded("rgb.png", &bytes);
    struct dpt_picture picture = {.rgb = NULL}, scaled = {.rgb = NULL};
    assert_int_equal(dpt_picture_decode(file, bytes, &picture, &err), DPT_OK);
    const struct dpt_area all = {0, 0, picture.width, picture.height};
    assert_int_equal(dpt_picture_scale(&picture,
                                       &(struct dpt_scaling){all, all.width, all.height, all},
                                       &scaled, &err),
                     DPT_OK);
    assert_memory_equal(picture.rgb, scaled.rgb, (size_t)all.width * (size_t)all.height * 3);
    dpt_picture_fini(&picture);
    dpt_picture_fini(&scaled);
    free(file);
}

/* A file that ends anywhere is damaged, in memory of exactly its size. */
static void ends_too_early(void **state)
{
    (void)state;
    struct dpt_picture picture = {.rgb = NULL};
    for (int i = 0; i < n_recorded; i++) {
        size_t bytes = 0;
        uint8_t *file = read_recorded(recorded[i].name, &bytes);
        for (size_t n = 0; n < bytes; n += n < 64 || n + 64 > bytes ? 1 : 29) {
            uint8_t *shorter = malloc(n > 0 ? n : 1);
            assert_non_null(shorter);
            memcpy(shorter, file, n);
            if (dpt_picture_decode(shorter, n, &picture, &err) != DPT_ECORRUPT)
                fail_msg("%s: its first %zu bytes pass", recorded[i].name, n);
            assert_null(strchr(err.text, '\n'));
            free(shorter);
        }
        free(file);
    }
    dpt_picture_fini(&picture);
}

/* PNG has a checksum over every byte. JPEG has none: a wrong byte is found, or gives other pixels.
 */
static void has_a_wrong_byte(void **state)
{
    (void)state;
    struct dpt_picture picture = {.rgb = NULL};
    for (int i = 0; i < n_recorded; i++) {
        size_t bytes = 0;
        uint8_t *file = read_recorded(recorded[i].name, &bytes);
        const bool png = strstr(recorded[i].name, ".png") != NULL;
        int found = 0;
        for (size_t at = 0; at < bytes; at += 7) {
            file[at] ^= 0x55;
            const enum dpt_status status = dpt_picture_decode(file, bytes, &picture, &err);
            file[at] ^= 0x55;
            assert_true(status == DPT_OK || status == DPT_ECORRUPT);
            found += status != DPT_OK;
            if (png && status == DPT_OK)
                fail_msg("%s: byte %zu is wrong and passes", recorded[i].name, at);
        }
        assert_true(found > 0);
        free(file);
    }
    dpt_picture_fini(&picture);
}

/* A text behind IHDR, as cameras and editors write it, which no pixel depends on. */
static void text_has_a_wrong_checksum(void **state)
{
    (void)state;
    enum { BEHIND_HEADER = 8 + 4 + 4 + 13 + 4 };
    static const uint8_t chunk[] = {0,   0,    0,   3,    't',  'E',  'X', 't',
                                    'k', '\0', 'v', 0xcb, 0x04, 0xf3, 0x90};
    size_t bytes = 0;
    struct dpt_picture picture = {.rgb = NULL};
    uint8_t *file = read_recorded("rgb.png", &bytes), *longer = malloc(bytes + sizeof chunk);
    assert_non_null(longer);
    memcpy(longer, file, BEHIND_HEADER);
    memcpy(longer + BEHIND_HEADER, chunk, sizeof chunk);
    memcpy(longer + BEHIND_HEADER + sizeof chunk, file + BEHIND_HEADER, bytes - BEHIND_HEADER);
    bytes += sizeof chunk;
    if (dpt_picture_decode(longer, bytes, &picture, &err) != DPT_OK)
        fail_msg("%s", err.text);
    longer[BEHIND_HEADER + sizeof chunk - 1] ^= 1;
    assert_int_equal(dpt_picture_decode(longer, bytes, &picture, &err), DPT_ECORRUPT);
    assert_string_equal(err.text, "PNG: tEXt: CRC error");
    dpt_picture_fini(&picture);
    free(longer);
    free(file);
}

static void other_files(void **state)
{
    (void)state;
    static const char *const files[] = {"",        "\xff\xd8",     "GIF89a",
                                        "\x89PNG", "\xff\xd8\xff", "\x89PNG\r\n\x1a\n"};
    struct dpt_picture picture = {.rgb = NULL};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        assert_int_equal(
            dpt_picture_decode((const uint8_t *)files[i], strlen(files[i]), &picture, &err),
            DPT_ECORRUPT);
    assert_int_equal(dpt_picture_decode((const uint8_t *)"GIF89a", 6, &picture, &err),
                     DPT_ECORRUPT);
    assert_string_equal(err.text, "its first bytes are neither a JPEG's nor a PNG's");
    assert_null(picture.rgb);
}

static void test_picture_sizes(void **state)
{
    (void)state;
    struct dpt_picture picture = {.rgb = NULL};
    assert_int_equal(dpt_picture_set_size(&picture, 0, 1, &err), DPT_ECORRUPT);
    assert_int_equal(dpt_picture_set_size(&picture, 1, 65536, &err), DPT_ECORRUPT);
    assert_int_equal(dpt_picture_set_size(&picture, 8193, 8192, &err), DPT_ECORRUPT);
    assert_string_equal(err.text, "it has 8193 x 8192 pixels; from 1 x 1 to 67108864 in all can be "
                                  "read");
    assert_int_equal(dpt_picture_set_size(&picture, 4, 3, &err), DPT_OK);
    const uint8_t *rgb = picture.rgb;
    assert_int_equal(dpt_picture_set_size(&picture, 2, 6, &err), DPT_OK);
    assert_ptr_equal(picture.rgb, rgb);
    assert_int_equal(picture.width, 2);
    assert_int_equal(picture.height, 6);
    dpt_picture_fini(&picture);
    assert_null(picture.rgb);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_pillow_has_them),
        cmocka_unit_test(the_same_size_is_the_same),
        cmocka_unit_test(ends_too_early),
        cmocka_unit_test(has_a_wrong_byte),
        cmocka_unit_test(text_has_a_wrong_checksum),
        cmocka_unit_test(other_files),
        cmocka_unit_test(test_picture_sizes),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
