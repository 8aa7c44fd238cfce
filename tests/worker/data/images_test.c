/* CIFAR-10's binary version as data: order, labels and digest of its records, the samples that
 * training draws through the loader, and refusals with their places. */
#include "tests/logged.h"
#include "tests/worker/data/images_fixture.h"
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

enum { RECORD = 3073 };

/* ---------------------------------------------------------------- CIFAR-10 */

/* The byte of a pixel; `id` distinguishes records. */
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

static void test_cifar10_records(void **state)
{
    (void)state;
    write_records("data_batch_2.bin", 4, 3);
    write_records("data_batch_1.bin", 0, 4);
    write_records("test_batch.bin", 7, 1);
    name(config.data.train, "data_batch_*.bin");
    name(config.data.val, "test_batch.bin");
    struct dpt_data *data = open_data(), *val = NULL;
    assert_int_equal(dpt_data_samples(data), 7);
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

/* batches.meta.txt as CIFAR-10 has it, with an empty line at its end; and files that are of no use.
 */
static void names_of_classes(void **state)
{
    (void)state;
    static const char *const names[] = {"air plane", "\xc3\xa4", "cat"};
    static const struct {
        const char *text, *warning;
    } odd[] = {{"a\nb\n", "/batches.meta.txt' has 2 names and model.labels is 3: "},
               {"a\nb\nc\nd", "/batches.meta.txt' has 4 names and model.labels is 3: "},
               {"", "/batches.meta.txt' has 0 names and model.labels is 3: "},
               {"a\nb\n\xff\n", "/batches.meta.txt' is not UTF-8: "}};
    write_records("c.bin", 0, 3);
    name(config.data.train, "c.bin");
    config.model.labels = 3;
    expect_names(NULL, 0);
    write_file("batches.meta.txt", "air plane\r\n\xc3\xa4 \ncat\n\n", 20);
    expect_names(names, 3);
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        write_file("batches.meta.txt", odd[i].text, strlen(odd[i].text));
        test_log_begin();
        expect_names(NULL, 0);
        test_log_end();
        if (test_log_count(odd[i].warning) != 1)
            fail_msg("'%s' is not in: %s", odd[i].warning, test_logged);
    }
    write_file("batches.meta.txt", "a\nb\0\nc\n", 8);
    expect_names(NULL, 0);
    struct dpt_data *data = open_data();
    char **found = NULL;
    char path[DPT_CONFIG_PATH_BYTES];
    name(path, "batches.meta.txt");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(dpt_data_class_names(data, &found, &err), DPT_EIO);
    assert_non_null(strstr(err.text, "/batches.meta.txt'"));
    dpt_data_close(&data);
}

static void records_that_cannot_be(void **state)
{
    (void)state;
    name(config.data.train, "c.bin");
    refused(DPT_ENOENT, "data.train: no file matches 'ROOT/c.bin'; correct the path, or run "
                        "`deploy/fetch cifar10`, which makes data/cifar10");
    name(config.data.train, "absent/data_batch_*.bin");
    refused(DPT_EIO,
            "data.train: a folder of 'ROOT/absent/data_batch_*.bin' is not there or cannot "
            "be read; correct the path, or run `deploy/fetch cifar10`, which makes "
            "data/cifar10");
    name(config.data.train, "c.bin");
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
    expect_text("data.train: 'ROOT/c.bin' was changed while in use; put the former file "
                "back and start again");
    dpt_data_close(&data);
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

/* Micro-batches of `steps` steps as a world of the given number of ranks reads them, in the order
 * of the run. */
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
            dpt_sampler_number(RECORDS, 1, MICRO * SLOTS, i / (MICRO * SLOTS), i % (MICRO * SLOTS));
        const int64_t index = dpt_sampler_index(config.seed, RECORDS, number);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_cifar10_records, setup, teardown),
        cmocka_unit_test_setup_teardown(names_of_classes, setup, teardown),
        cmocka_unit_test_setup_teardown(records_that_cannot_be, setup, teardown),
        cmocka_unit_test_setup_teardown(records_that_change, setup, teardown),
        cmocka_unit_test_setup_teardown(digest_of_records, setup, teardown),
        cmocka_unit_test_setup_teardown(loaders_agree, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
