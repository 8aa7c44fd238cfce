/* Images as data: CIFAR-10's binary version and folders of images; their order, labels and digest,
 * what training draws through the loader, and what is refused and where. */
#include "worker/data/data.h"

#include "base/fs.h"
#include "tests/tmp.h"
#include "worker/plan/sampler.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { RECORD = 3073, PLANE = 1024, MICRO = 2, SLOTS = 3, FILE_BYTES_MAX = 1 << 16 };

static char root[128];
static struct dpt_err err;
static struct dpt_config config;

static int setup(void **state)
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

static int teardown(void **state)
{
    (void)state;
    return dpt_fs_remove_tree(root, NULL) == DPT_OK ? 0 : -1;
}

static void name(char ret[DPT_CONFIG_PATH_BYTES], const char *path)
{
    (void)snprintf(ret, DPT_CONFIG_PATH_BYTES, "%s/%s", root, path);
}

static void write_file(const char *path, const void *bytes, size_t n)
{
    char whole[DPT_CONFIG_PATH_BYTES];
    name(whole, path);
    assert_int_equal(dpt_fs_write_file_atomic(whole, bytes, n, &err), DPT_OK);
}

static struct dpt_data *open_data(void)
{
    struct dpt_data *data = NULL;
    if (dpt_data_open(&config, &data, &err) != DPT_OK)
        fail_msg("%s", err.text);
    return data;
}

/* What begins with the root begins with "ROOT" in `why`. */
static void expect_text(const char *why)
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

static void refused(enum dpt_status status, const char *why)
{
    struct dpt_data *data = NULL;
    struct dpt_data_digest digest;
    assert_int_equal(dpt_data_open(&config, &data, &err), status);
    assert_null(data);
    expect_text(why);
    assert_int_equal(dpt_data_digest(&config, &digest, &err), status);
    expect_text(why);
}

/* ---------------------------------------------------------------- CIFAR-10 */

/* The byte of a pixel; `id` tells records apart. */
static uint8_t byte_of(int id, int channel, int pixel)
{
    return (uint8_t)(id * 41 + channel * 83 + pixel * 7 + pixel / 32);
}

/* Records id … id + n - 1, with labels id % 10. */
static void write_records(const char *path, int id, int n)
{
    uint8_t *bytes = malloc((size_t)n * RECORD);
    assert_non_null(bytes);
    for (int i = 0; i < n; i++) {
        uint8_t *record = bytes + (size_t)i * RECORD;
        record[0] = (uint8_t)((id + i) % 10);
        for (int k = 0; k < 3 * PLANE; k++)
            record[1 + k] = byte_of(id + i, k / PLANE, k % PLANE);
    }
    write_file(path, bytes, (size_t)n * RECORD);
    free(bytes);
}

struct sample {
    float pixels[3 * PLANE];
    int32_t label;
};

static void read_sample(const struct dpt_data *data, int64_t index, int64_t number,
                        struct sample *ret)
{
    const struct dpt_batch one = {.part = {ret->pixels, &ret->label}};
    memset(ret, 0xff, sizeof *ret);
    if (dpt_data_read(data, index, number, &one, 0, &err) != DPT_OK)
        fail_msg("%s", err.text);
}

static void expect_record(const struct dpt_data *data, int64_t index, int id)
{
    static const float mean[] = {.4914f, .4822f, .4465f}, std[] = {.2023f, .1994f, .2010f};
    static struct sample s;
    read_sample(data, index, DPT_DATA_NOT_VARIED, &s);
    assert_int_equal(s.label, id % 10);
    for (int k = 0; k < 3 * PLANE; k++) {
        const float byte = (float)byte_of(id, k % 3, k / 3);
        const float expected = (byte / 255.0f - mean[k % 3]) / std[k % 3];
        assert_memory_equal(&s.pixels[k], &expected, sizeof expected);
    }
}

static void records(void **state)
{
    (void)state;
    write_records("data_batch_2.bin", 4, 3);
    write_records("data_batch_1.bin", 0, 4);
    write_records("test_batch.bin", 7, 1);
    name(config.data.train, "data_batch_*.bin");
    name(config.data.val, "test_batch.bin");
    struct dpt_data *data = open_data(), *val = NULL;
    assert_int_equal(dpt_data_samples(data), 7);
    assert_int_equal(dpt_data_tokens(data), 0);
    assert_int_equal(dpt_data_form(data)->part_bytes[DPT_SAMPLE_INPUT], 3 * PLANE * sizeof(float));
    for (int id = 0; id < 7; id++)
        expect_record(data, id, id);
    assert_int_equal(dpt_data_open_val(&config, &val, &err), DPT_OK);
    assert_int_equal(dpt_data_samples(val), 1);
    expect_record(val, 0, 7);
    static struct sample s;
    const struct dpt_batch one = {.part = {s.pixels, &s.label}};
    assert_int_equal(dpt_data_read(data, 7, 0, &one, 0, &err), DPT_EINVAL);
    dpt_data_close(&data);
    dpt_data_close(&val);
}

static void records_that_cannot_be(void **state)
{
    (void)state;
    name(config.data.train, "c.bin");
    refused(DPT_ENOENT, "data.train: no file matches 'ROOT/c.bin'");
    write_file("c.bin", "", 0);
    refused(DPT_ECORRUPT, "data.train: 'ROOT/c.bin' is truncated, or no file of CIFAR-10's binary "
                          "version: it has 0 bytes, 0 records of 3073 and 0 bytes; fetch or copy "
                          "it again");
    write_records("c.bin", 0, 3);
    assert_int_equal(truncate(config.data.train, 2 * RECORD + 100), 0);
    refused(DPT_ECORRUPT, "data.train: 'ROOT/c.bin' is truncated, or no file of CIFAR-10's binary "
                          "version: it has 6246 bytes, 2 records of 3073 and 100 bytes; fetch or "
                          "copy it again");
    write_records("c.bin", 0, 100);
    config.model.labels = 9;
    refused(DPT_ECONFIG,
            "data.train: 'ROOT/c.bin', record 9 (byte 27657): label 9 is not among 0 … "
            "8; set model.labels to what the file has, or replace the file");
    config.model.labels = 10;
    name(config.data.train, "d");
    assert_int_equal(mkdir(config.data.train, 0700), 0);
    refused(DPT_EIO, "data.train: 'ROOT/d' is no regular file");
    config.data.train[0] = '\0';
    refused(DPT_ECONFIG, "data.train is empty: name the .bin files of CIFAR-10's binary version");
}

/* Overwritten in place under a run. */
static void records_that_change(void **state)
{
    (void)state;
    static struct sample s;
    const struct dpt_batch one = {.part = {s.pixels, &s.label}};
    write_records("c.bin", 0, 3);
    name(config.data.train, "c.bin");
    struct dpt_data *data = open_data();
    write_records("c.bin", 1, 3);
    assert_int_equal(dpt_data_read(data, 0, 0, &one, 0, &err), DPT_ECORRUPT);
    expect_text("data.train: 'ROOT/c.bin' was changed while the run reads it; put the former file "
                "back and start again");
    dpt_data_close(&data);
}

static struct dpt_data_digest digest_of(void)
{
    struct dpt_data_digest digest;
    if (dpt_data_digest(&config, &digest, &err) != DPT_OK)
        fail_msg("%s", err.text);
    return digest;
}

static void digest_of_records(void **state)
{
    (void)state;
    write_records("a.bin", 0, 3);
    name(config.data.train, "a.bin");
    const struct dpt_data_digest first = digest_of();
    assert_int_equal(first.train_samples, 3);
    write_records("b.bin", 0, 3);
    name(config.data.train, "b.bin");
    const struct dpt_data_digest copy = digest_of();
    assert_string_equal(copy.used, first.used);
    assert_string_not_equal(copy.train.stamp, first.train.stamp);
    uint8_t label = 7;
    FILE *f = fopen(config.data.train, "r+b");
    assert_non_null(f);
    assert_int_equal(fwrite(&label, 1, 1, f), 1);
    assert_int_equal(fclose(f), 0);
    assert_string_not_equal(digest_of().used, first.used);
    struct dpt_data *data = open_data();
    assert_int_equal(dpt_data_check(data, &first.train, &err), DPT_ECORRUPT);
    expect_text("data.train was changed since this worker began: 'ROOT/b.bin' is not what the run "
                "trains on; put the former file back and start this worker again");
    dpt_data_close(&data);
}

/* ---------------------------------------------------------------- the loader */

/* Micro-batches of `steps` steps as a world of so many ranks reads them, in the order of the run.
 */
static void load_all(int world, int steps, struct sample *ret)
{
    struct dpt_data *data = open_data();
    for (int rank = 0; rank < world; rank++) {
        struct dpt_loader *loader = NULL;
        struct dpt_batch batch;
        assert_int_equal(dpt_loader_create(&config, data, &loader, &err), DPT_OK);
        dpt_loader_start(loader, 0, rank, SLOTS, world);
        for (int step = 0; step < steps; step++)
            for (int slot = rank; slot < SLOTS; slot += world) {
                if (dpt_loader_next(loader, step, slot, &batch, &err) != DPT_OK)
                    fail_msg("%s", err.text);
                for (int j = 0; j < MICRO; j++) {
                    struct sample *s = &ret[(step * SLOTS + slot) * MICRO + j];
                    memcpy(s->pixels,
                           dpt_batch_part(dpt_data_form(data), &batch, DPT_SAMPLE_INPUT, j),
                           sizeof s->pixels);
                    s->label = *(const int32_t *)dpt_batch_part(dpt_data_form(data), &batch,
                                                                DPT_SAMPLE_TARGET, j);
                }
            }
        dpt_loader_destroy(&loader);
    }
    dpt_data_close(&data);
}

/* Every world reads the same bits; sample i of the run is varied by i; an image looks otherwise in
 * the next epoch. */
static void loaders_agree(void **state)
{
    (void)state;
    enum { STEPS = 5, ALL = STEPS * SLOTS * MICRO, RECORDS = 7 };
    struct sample *one = calloc(ALL, sizeof *one), *other = calloc(ALL, sizeof *other);
    static struct sample s;
    assert_non_null(one);
    assert_non_null(other);
    write_records("c.bin", 0, RECORDS);
    name(config.data.train, "c.bin");
    config.train.epoch_steps = 1; /* 6 of the 7: the rest of an epoch is dropped */
    load_all(1, STEPS, one);
    for (int world = 2; world <= SLOTS; world++) {
        load_all(world, STEPS, other);
        assert_memory_equal(one, other, ALL * sizeof *one);
    }
    struct dpt_data *data = open_data();
    int varied = 0;
    for (int i = 0; i < ALL; i++) {
        const int64_t number =
            dpt_sample_number(RECORDS, 1, MICRO * SLOTS, i / (MICRO * SLOTS), i % (MICRO * SLOTS));
        const int64_t index = dpt_sample_index(config.seed, RECORDS, number);
        read_sample(data, index, number, &s);
        assert_memory_equal(&s, &one[i], sizeof s);
        read_sample(data, index, number + RECORDS, &s);
        varied += memcmp(&s, &one[i], sizeof s) != 0;
    }
    assert_true(varied > ALL * 3 / 4);
    config.data.augment = DPT_AUGMENT_NONE;
    dpt_data_close(&data);
    load_all(2, STEPS, other);
    assert_true(memcmp(one, other, ALL * sizeof *one) != 0);
    data = open_data();
    expect_record(data, other[0].label, other[0].label); /* id, index and label are one here */
    dpt_data_close(&data);
    free(one);
    free(other);
}

/* ---------------------------------------------------------------- folders */

static void make_folder(const char *path)
{
    char whole[DPT_CONFIG_PATH_BYTES];
    name(whole, path);
    assert_int_equal(dpt_fs_mkdirs(whole, &err), DPT_OK);
}

/* A recorded file under another name. */
static void copy_image(const char *recorded, const char *path)
{
    char from[512], *bytes = NULL;
    size_t n = 0;
    (void)snprintf(from, sizeof from, "%s/images/%s", DPT_RECORDED, recorded);
    assert_int_equal(dpt_fs_read_file(from, FILE_BYTES_MAX, &bytes, &n, &err), DPT_OK);
    write_file(path, bytes, n);
    free(bytes);
}

static void cut_image(const char *recorded, const char *path)
{
    char whole[DPT_CONFIG_PATH_BYTES];
    copy_image(recorded, path);
    name(whole, path);
    assert_int_equal(truncate(whole, 300), 0);
}

/* Three classes, "B", "a" and "ä" in bytewise order. */
static void use_folder(const char *path, const char *key)
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

static void expect_labels(const char *expected)
{
    static struct sample s;
    char found[64];
    size_t n = 0;
    struct dpt_data *data = open_data();
    for (int64_t i = 0; i < dpt_data_samples(data); i++) {
        read_sample(data, i, i, &s);
        found[n++] = (char)('0' + s.label);
    }
    found[n] = '\0';
    dpt_data_close(&data);
    assert_string_equal(found, expected);
}

static void folders(void **state)
{
    (void)state;
    use_folder("t", "train");
    write_file("t/README.txt", "x", 1);
    write_file("t/B/list.txt", "x", 1);
    write_file("t/B/.hidden.png", "x", 1);
    make_folder("t/.cache");
    expect_labels("00122");
    static struct sample jpeg, png;
    struct dpt_data *data = open_data();
    read_sample(data, 0, DPT_DATA_NOT_VARIED, &png); /* 10.PNG before 2.jpg */
    read_sample(data, 1, DPT_DATA_NOT_VARIED, &jpeg);
    float difference = 0;
    for (int k = 0; k < 16 * 16 * 3; k++) {
        const float d = jpeg.pixels[k] - png.pixels[k];
        difference += d * d / (16 * 16 * 3);
    }
    assert_true(difference > 0 && difference < 0.3); /* one picture, two codings */
    dpt_data_close(&data);
}

static void folders_that_cannot_be(void **state)
{
    (void)state;
    use_folder("t", "train");
    config.model.labels = 2;
    refused(DPT_ECONFIG,
            "data.train: 'ROOT/t' has 3 sub-folders, a class each, and model.labels is "
            "2; set it to 3, or name the folder of 2 classes");
    config.model.labels = 4;
    make_folder("t/c");
    write_file("t/c/notes.txt", "x", 1);
    refused(DPT_ECONFIG, "data.train: the folder 'ROOT/t/c' of class 2 has no image; put .jpg or "
                         ".png files there, or remove the folder and set model.labels: 3");
    write_file("t/c/a.WebP", "x", 1);
    refused(DPT_ECONFIG, "data.train: 'ROOT/t/c/a.WebP' is an image of another kind; convert it to "
                         ".png or .jpg, or move it out of the folder");
    make_folder("empty");
    name(config.data.train, "empty");
    refused(DPT_ECONFIG,
            "data.train: 'ROOT/empty' has no sub-folders; put the images of each class "
            "into one");
    name(config.data.train, "none");
    refused(DPT_ENOENT, "data.train: open folder 'ROOT/none': No such file or directory");
    make_folder("p/a/b.png");
    config.model.labels = 1;
    name(config.data.train, "p");
    refused(DPT_EIO, "data.train: 'ROOT/p/a/b.png' is no regular file");
    config.data.train[0] = '\0';
    refused(DPT_ECONFIG,
            "data.train is empty: name a folder with a sub-folder of images for each class");
}

static void damaged_images(void **state)
{
    (void)state;
    struct dpt_data_digest digest;
    use_folder("t", "train");
    const struct dpt_data_digest sound = digest_of();
    cut_image("rgb.png", "t/B/5.png");
    assert_int_equal(dpt_data_digest(&config, &digest, &err), DPT_ECORRUPT);
    expect_text("data.train: 'ROOT/t/B/5.png' is damaged: PNG: the file ends too early; replace "
                "it, or set data.damaged_images: skip");
    config.data.damaged_images = DPT_DAMAGED_IMAGES_SKIP;
    expect_labels("00122");
    const struct dpt_data_digest skipped = digest_of();
    assert_string_equal(skipped.used, sound.used);
    assert_int_equal(skipped.train_samples, 5);
    cut_image("420.jpg", "t/a/x.JPEG");
    refused(DPT_ECONFIG,
            "data.train: the folder 'ROOT/t/a' of class 1 has no sound image; put .jpg "
            "or .png files there, or remove the folder and set model.labels: 2");
    config.data.damaged_images = DPT_DAMAGED_IMAGES_REFUSE;
    char damaged[DPT_CONFIG_PATH_BYTES];
    name(damaged, "t/B/5.png");
    assert_int_equal(unlink(damaged), 0);
    struct dpt_data *data = open_data();
    static struct sample s;
    const struct dpt_batch one = {.part = {s.pixels, &s.label}};
    assert_int_equal(dpt_data_read(data, 2, 0, &one, 0, &err), DPT_ECORRUPT);
    expect_text("data.train: 'ROOT/t/a/x.JPEG' is damaged: JPEG: Premature end of JPEG file");
    dpt_data_close(&data);
}

static void digest_of_folders(void **state)
{
    (void)state;
    use_folder("t", "train");
    use_folder("v", "val");
    config.train.eval_every = 1;
    const struct dpt_data_digest first = digest_of();
    assert_string_equal(first.train.hash, first.val.hash); /* the same images in both */
    assert_string_not_equal(first.train.stamp, first.val.stamp);
    struct dpt_data *data = open_data();
    assert_int_equal(dpt_data_check(data, &first.train, &err), DPT_OK);
    dpt_data_close(&data);
    copy_image("444.jpg", "t/B/2.jpg");
    assert_string_not_equal(digest_of().train.hash, first.train.hash);
    data = open_data();
    assert_int_equal(dpt_data_check(data, &first.train, &err), DPT_ECORRUPT);
    expect_text("data.train was changed since this worker began: 'ROOT/t' is not what the run "
                "trains on; put the former file back and start this worker again");
    dpt_data_close(&data);
    /* One more image, another label of an image, and other names of classes. */
    copy_image("420.jpg", "t/B/2.jpg");
    assert_string_equal(digest_of().train.hash, first.train.hash);
    copy_image("420.jpg", "t/B/3.jpg");
    assert_string_not_equal(digest_of().train.hash, first.train.hash);
    char from[256], to[256];
    (void)snprintf(from, sizeof from, "%s/v/a", root);
    (void)snprintf(to, sizeof to, "%s/v/aa", root);
    assert_int_equal(rename(from, to), 0);
    struct dpt_data_digest digest;
    assert_int_equal(dpt_data_digest(&config, &digest, &err), DPT_ECONFIG);
    expect_text(
        "data.train and data.val have sub-folders of other names, which number the classes; "
        "give both the same");
}

static void images_that_change(void **state)
{
    (void)state;
    static struct sample s;
    const struct dpt_batch one = {.part = {s.pixels, &s.label}};
    use_folder("t", "train");
    struct dpt_data *data = open_data();
    copy_image("444.jpg", "t/B/2.jpg");
    assert_int_equal(dpt_data_read(data, 1, 0, &one, 0, &err), DPT_ECORRUPT);
    expect_text("data.train: 'ROOT/t/B/2.jpg' was changed while the run reads it; put the former "
                "file back and start again");
    dpt_data_close(&data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(records, setup, teardown),
        cmocka_unit_test_setup_teardown(records_that_cannot_be, setup, teardown),
        cmocka_unit_test_setup_teardown(records_that_change, setup, teardown),
        cmocka_unit_test_setup_teardown(digest_of_records, setup, teardown),
        cmocka_unit_test_setup_teardown(loaders_agree, setup, teardown),
        cmocka_unit_test_setup_teardown(folders, setup, teardown),
        cmocka_unit_test_setup_teardown(folders_that_cannot_be, setup, teardown),
        cmocka_unit_test_setup_teardown(damaged_images, setup, teardown),
        cmocka_unit_test_setup_teardown(digest_of_folders, setup, teardown),
        cmocka_unit_test_setup_teardown(images_that_change, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
