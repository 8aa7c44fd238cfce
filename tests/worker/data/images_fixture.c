/* What the tests of images share (images_fixture.h). */
#include "tests/worker/data/images_fixture.h"

#include "base/fs.h"
#include "tests/tmp.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { FILE_BYTES_MAX = 1 << 16 };

char root[128];
struct dpt_err err;
struct dpt_config config;

int setup(void **state)
{
    (void)state;
    dpt_config_defaults(&config);
    config.model.vocab = DPT_AUTO; /* as of every network of images */
    config.model.labels = 10;
    config.data.kind = DPT_DATA_CIFAR10;
    config.data.image_size = 32;
    config.data.resize = 32;
    config.data.augment = DPT_AUGMENT_CROP_FLIP;
    config.train.seq_len = 1;
    config.train.micro_batch = MICRO;
    config.train.global_batch = MICRO * SLOTS;
    return test_make_dir(root, sizeof root, "images-test") ? 0 : -1;
}

int teardown(void **state)
{
    (void)state;
    return dpt_fs_remove_tree(root, NULL) == DPT_OK ? 0 : -1;
}

void name(char ret[DPT_CONFIG_PATH_BYTES], const char *path)
{
    (void)snprintf(ret, DPT_CONFIG_PATH_BYTES, "%s/%s", root, path);
}

void write_file(const char *path, const void *bytes, size_t n)
{
    char whole[DPT_CONFIG_PATH_BYTES];
    name(whole, path);
    assert_int_equal(dpt_fs_write_file_atomic(whole, bytes, n, &err), DPT_OK);
}

struct dpt_data *open_data(void)
{
    struct dpt_data *data = NULL;
    if (dpt_data_open(&config, &data, &err) != DPT_OK)
        fail_msg("%s", err.text);
    return data;
}

void expect_names(const char *const *names, int n)
{
    char **found = NULL;
    struct dpt_data *data = open_data();
    if (dpt_data_class_names(data, &found, &err) != DPT_OK)
        fail_msg("%s", err.text);
    dpt_data_close(&data);
    assert_int_equal(names != NULL, found != NULL);
    for (int i = 0; found && i < n; i++)
        assert_string_equal(found[i], names[i]);
    if (found)
        dpt_fs_list_free(&found, (size_t)n);
}

/* What begins with the root begins with "ROOT" in `why`. */
void expect_text(const char *why)
{
    char text[2048];
    size_t n = 0;
    for (const char *at = err.text; *at && n + 1 < sizeof text;) {
        const bool is_root = strncmp(at, root, strlen(root)) == 0;
        n += (size_t)snprintf(text + n, sizeof text - n, is_root ? "ROOT" : "%c", *at);
        at += is_root ? strlen(root) : 1;
    }
    assert_string_equal(text, why);
    assert_null(strchr(err.text, '\n'));
}

void refused(enum dpt_status status, const char *why)
{
    struct dpt_data *data = NULL;
    struct dpt_data_digest digest;
    assert_int_equal(dpt_data_open(&config, &data, &err), status);
    assert_null(data);
    expect_text(why);
    assert_int_equal(dpt_data_digest(&config, &digest, &err), status);
    expect_text(why);
}

void read_sample(const struct dpt_data *data, int64_t index, int64_t number, struct sample *ret)
{
    const struct dpt_batch one = {.part = {ret->pixels, &ret->label}};
    memset(ret, 0xff, sizeof *ret);
    if (dpt_data_read(data, index, number, &one, 0, &err) != DPT_OK)
        fail_msg("%s", err.text);
}

struct dpt_data_digest digest_of(void)
{
    struct dpt_data_digest digest;
    if (dpt_data_digest(&config, &digest, &err) != DPT_OK)
        fail_msg("%s", err.text);
    return digest;
}

void make_folder(const char *path)
{
    char whole[DPT_CONFIG_PATH_BYTES];
    name(whole, path);
    assert_int_equal(dpt_fs_mkdirs(whole, &err), DPT_OK);
}

/* A recorded file under another name. */
void copy_image(const char *recorded, const char *path)
{
    char from[512], *bytes = NULL;
    size_t n = 0;
    (void)snprintf(from, sizeof from, "%s/images/%s", DPT_RECORDED, recorded);
    assert_int_equal(dpt_fs_read_file(from, FILE_BYTES_MAX, &bytes, &n, &err), DPT_OK);
    write_file(path, bytes, n);
    free(bytes);
}

void cut_image(const char *recorded, const char *path)
{
    char whole[DPT_CONFIG_PATH_BYTES];
    copy_image(recorded, path);
    name(whole, path);
    assert_int_equal(truncate(whole, 300), 0);
}

/* Three classes, "B", "a" and "ä" in bytewise order. */
void use_folder(const char *path, const char *key)
{
    static const char *const files[][2] = {
        {"420.jpg", "B/2.jpg"},
        {"rgb.png", "B/10.PNG"},
        {"grey.jpg", "a/x.JPEG"},
        {"alpha.png", "\xc3\xa4/y.png"},
        {"cmyk.jpg", "\xc3\xa4/z.png"} /* by its bytes a JPEG */};
    char folder[256];
    config.data.kind = DPT_DATA_IMAGES;
    config.data.image_size = 16;
    config.data.resize = 18;
    config.data.augment = DPT_AUGMENT_RESIZED_CROP_FLIP;
    config.model.labels = 3;
    for (size_t i = 0; i < 3; i++) {
        static const char *const classes[] = {"a", "B", "\xc3\xa4"};
        (void)snprintf(folder, sizeof folder, "%s/%s", path, classes[i]);
        make_folder(folder);
    }
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        (void)snprintf(folder, sizeof folder, "%s/%s", path, files[i][1]);
        copy_image(files[i][0], folder);
    }
    name(strcmp(key, "val") == 0 ? config.data.val : config.data.train, path);
}
