/* Folders of images as data: order, labels and digest, damaged images, and refusals with their
 * places. */
#include "worker/data/image_folder.h"

#include "base/fs.h"
#include "tests/logged.h"
#include "tests/worker/data/images_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

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

static void test_class_folders(void **state)
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

static void names_of_classes(void **state)
{
    (void)state;
    static const char *const names[] = {"B", "a", "\xc3\xa4"};
    char from[DPT_CONFIG_PATH_BYTES], to[DPT_CONFIG_PATH_BYTES];
    use_folder("t", "train");
    expect_names(names, 3);
    name(from, "t/\xc3\xa4");
    name(to, "t/\xe4");
    assert_int_equal(rename(from, to), 0);
    test_log_begin();
    expect_names(NULL, 0);
    test_log_end();
    assert_int_equal(
        test_log_count("data.train: the name of the sub-folder of class 2 is not UTF-8: "), 1);
}

static void make_link(const char *target, const char *path)
{
    char whole[DPT_CONFIG_PATH_BYTES];
    name(whole, path);
    assert_int_equal(symlink(target, whole), 0);
}

/* In the order of torchvision's ImageFolder: whole paths of folders, so that "s" and "s-t" come
 * before "s/u", and names in each. */
static void folders_below_a_class(void **state)
{
    (void)state;
    static const char *const made[] = {"t/B/s/u", "t/B/s-t", "t/B/.hidden", "t/a/x/y", "more"};
    static const char *const copies[] = {"t/B/s/u/1.png", "t/B/s/z.jpg",       "t/B/s-t/1.png",
                                         "t/B/z.png",     "t/B/.hidden/1.png", "t/a/x/y/1.png",
                                         "more/1.png"};
    static const struct {
        const char *path;
        int label;
    } expected[] = {{"B/10.PNG", 0},
                    {"B/2.jpg", 0},
                    {"B/z.png", 0},
                    {"B/s/z.jpg", 0},
                    {"B/s-t/1.png", 0},
                    {"B/s/u/1.png", 0},
                    {"a/x.JPEG", 1},
                    {"a/x/y/1.png", 1},
                    {"\xc3\xa4/y.png", 2},
                    {"\xc3\xa4/z.png", 2},
                    {"\xc3\xa4/link/1.png", 2}};
    struct dpt_image_folder *folder = NULL;
    use_folder("t", "train");
    for (size_t i = 0; i < sizeof made / sizeof *made; i++)
        make_folder(made[i]);
    for (size_t i = 0; i < sizeof copies / sizeof *copies; i++)
        copy_image("rgb.png", copies[i]);
    make_link("../../more", "t/\xc3\xa4/link");
    make_link("none", "t/B/nowhere");
    if (dpt_image_folder_open(&config, "data.train", config.data.train, &folder, &err) != DPT_OK)
        fail_msg("%s", err.text);
    assert_int_equal(folder->n, sizeof expected / sizeof *expected);
    for (int64_t i = 0; i < folder->n; i++) {
        const char *path = folder->images[i].file.path + strlen(config.data.train) + 1;
        assert_string_equal(path, expected[i].path);
        assert_int_equal(folder->images[i].label, expected[i].label);
    }
    dpt_image_folder_close(&folder);
}

static void folders_in_a_loop(void **state)
{
    (void)state;
    use_folder("t", "train");
    make_link(".", "t/a/l");
    refused(DPT_ECONFIG,
            "data.train: 'ROOT/t/a/l/l/l/l/l/l/l/l/l/l/l/l/l/l/l/l/l' is more than 16 folders "
            "below its class; is a symbolic link in it a loop? Remove it, or put the images "
            "higher");
    make_link("itself", "t/B/itself");
    refused(DPT_EIO, "data.train: look at 'ROOT/t/B/itself': Too many levels of symbolic links");
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

/* One warning, which --quiet shows, has the count and the first names; level debug has each. */
static void damaged_images_are_named(void **state)
{
    (void)state;
    char warning[512];
    use_folder("t", "train");
    for (int i = 0; i < 14; i++) {
        char path[32];
        (void)snprintf(path, sizeof path, "t/B/damaged%02d.png", i);
        cut_image("rgb.png", path);
    }
    config.data.damaged_images = DPT_DAMAGED_IMAGES_SKIP;
    test_log_begin();
    dpt_log_set_level(DPT_LOG_DEBUG);
    struct dpt_data *data = open_data();
    dpt_log_set_level(DPT_LOG_INFO);
    test_log_end();
    assert_int_equal(dpt_data_samples(data), 5);
    dpt_data_close(&data);
    (void)snprintf(warning, sizeof warning,
                   "data.train: 14 of the 19 images in '%s/t' left out as damaged: "
                   "'B/damaged00.png', 'B/damaged01.png', 'B/damaged02.png', 'B/damaged03.png', "
                   "'B/damaged04.png', 'B/damaged05.png', 'B/damaged06.png', 'B/damaged07.png', "
                   "'B/damaged08.png', 'B/damaged09.png' and 4 more\n",
                   root);
    assert_int_equal(test_log_count(warning), 1);
    assert_int_equal(test_log_count("W: "), 1);
    assert_int_equal(test_log_count("left out: '"), 14);
    assert_int_equal(test_log_count("damaged13.png' is damaged: PNG: the file ends too early\n"),
                     1);
}

/* Names that are too long for the warning are counted. */
static void damaged_images_of_long_names(void **state)
{
    (void)state;
    char name_of[256];
    use_folder("t", "train");
    memset(name_of, 'n', sizeof name_of);
    for (int i = 0; i < 6; i++) {
        char path[300];
        (void)snprintf(path, sizeof path, "t/B/%d%.200s.png", i, name_of);
        cut_image("rgb.png", path);
    }
    config.data.damaged_images = DPT_DAMAGED_IMAGES_SKIP;
    test_log_begin();
    struct dpt_data *data = open_data();
    test_log_end();
    dpt_data_close(&data);
    assert_int_equal(test_log_count(".png'"), 4);
    assert_int_equal(test_log_count(".png' and 2 more\n"), 1);
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
    expect_text("data.train: 'ROOT/t/B/2.jpg' was changed while in use; put the former "
                "file back and start again");
    dpt_data_close(&data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_class_folders, setup, teardown),
        cmocka_unit_test_setup_teardown(names_of_classes, setup, teardown),
        cmocka_unit_test_setup_teardown(folders_below_a_class, setup, teardown),
        cmocka_unit_test_setup_teardown(folders_in_a_loop, setup, teardown),
        cmocka_unit_test_setup_teardown(folders_that_cannot_be, setup, teardown),
        cmocka_unit_test_setup_teardown(damaged_images, setup, teardown),
        cmocka_unit_test_setup_teardown(damaged_images_are_named, setup, teardown),
        cmocka_unit_test_setup_teardown(damaged_images_of_long_names, setup, teardown),
        cmocka_unit_test_setup_teardown(digest_of_folders, setup, teardown),
        cmocka_unit_test_setup_teardown(images_that_change, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
