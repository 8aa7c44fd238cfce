/* Fuzz target: any bytes as an image, or as a file of CIFAR-10. The first byte chooses the kind and
 * the augmentation; the second one is the sample's number. A readable image becomes numbers between
 * those of black and white; any other gives an error. */
#include "tests/fuzz/fuzz.h"
#include "worker/data/data.h"
#include "worker/data/view.h"

#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SIZE = 32, NUMBERS = SIZE * SIZE * 3, FILE_BYTES_MAX = 16 * 1024, PIXELS_MAX = 1 << 20 };

static const enum dpt_augment augments[] = {DPT_AUGMENT_NONE, DPT_AUGMENT_CROP_FLIP,
                                            DPT_AUGMENT_RESIZED_CROP_FLIP, DPT_AUGMENT_CROP_FLIP};

static void check_numbers(const float *numbers)
{
    for (int i = 0; i < NUMBERS; i++)
        DPT_ASSERT(numbers[i] > -3 && numbers[i] < 3);
}

static void read_picture(const struct dpt_view_rule *rule, int64_t number, const uint8_t *file,
                         size_t bytes)
{
    static float numbers[NUMBERS];
    struct dpt_picture picture = {.rgb = NULL};
    struct dpt_err err;
    const enum dpt_status status = dpt_picture_decode(file, bytes, &picture, &err);
    DPT_ASSERT(status == DPT_OK || status == DPT_ECORRUPT);
    if (status == DPT_OK && (int64_t)picture.width * picture.height <= PIXELS_MAX) {
        const struct dpt_view view = dpt_view_of(rule, picture.width, picture.height, number);
        DPT_ASSERT(dpt_view_render(rule, &view, &picture, numbers, &err) == DPT_OK);
        check_numbers(numbers);
    }
    dpt_picture_fini(&picture);
}

/* A file in memory, and a config that names it. */
static int prepare_image_config(struct dpt_config *ret)
{
    const int fd = memfd_create("images", MFD_CLOEXEC);
    DPT_ASSERT(fd >= 0);
    dpt_config_defaults(ret);
    (void)snprintf(ret->data.train, sizeof ret->data.train, "/proc/self/fd/%d", fd);
    ret->data.kind = DPT_DATA_CIFAR10;
    ret->data.image_size = ret->data.resize = SIZE;
    ret->data.augment = DPT_AUGMENT_CROP_FLIP;
    ret->train.seq_len = 1;
    ret->model.labels = 10;
    return fd;
}

static void read_records(const uint8_t *file, size_t bytes)
{
    static struct dpt_config config;
    static int fd = -1;
    static float numbers[NUMBERS];
    int32_t label = -1;
    const struct dpt_batch one = {.part = {numbers, &label}};
    struct dpt_data *data = NULL;
    struct dpt_err err;
    if (fd < 0)
        fd = prepare_image_config(&config);
    DPT_ASSERT(ftruncate(fd, (off_t)bytes) == 0 && pwrite(fd, file, bytes, 0) == (ssize_t)bytes);
    const enum dpt_status status = dpt_data_open(&config, &data, &err);
    DPT_ASSERT(status == DPT_OK || status == DPT_ECORRUPT || status == DPT_ECONFIG);
    for (int64_t i = 0; status == DPT_OK && i < dpt_data_samples(data); i++) {
        DPT_ASSERT(dpt_data_read(data, i, i, &one, 0, &err) == DPT_OK);
        DPT_ASSERT(label >= 0 && label < config.model.labels);
        check_numbers(numbers);
    }
    dpt_data_close(&data);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct feed feed = feed_from(data, bytes);
    const uint8_t choice = feed_u8(&feed);
    const int64_t number = (int64_t)feed_u8(&feed) + DPT_DATA_NOT_VARIED;
    const struct dpt_view_rule rule = {.kind = DPT_DATA_IMAGES,
                                       .augment = augments[choice % 4],
                                       .size = SIZE,
                                       .resize = SIZE + choice / 8,
                                       .padding = choice / 16};
    size_t n;
    const uint8_t *rest = feed_rest(&feed, &n);
    if (n > FILE_BYTES_MAX)
        return 0;
    if (choice % 8 == 7)
        read_records(rest, n);
    else
        read_picture(&rule, number, rest, n);
    return 0;
}
