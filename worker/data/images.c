/* Images as samples: the files of CIFAR-10's binary version, and pictures of either kind as views.
 *
 * A record of CIFAR-10 is a byte, the label, and 3 x 32 x 32 bytes, planes of red, green and blue
 * (https://www.cs.toronto.edu/~kriz/cifar.html, "Binary version"). */
#include "worker/data/data_source.h"

enum {
    SIDE = 32,
    PLANE_BYTES = SIDE * SIDE,
    RECORD_BYTES = 1 + DPT_PICTURE_CHANNELS * PLANE_BYTES,
    BLOCK_RECORDS = 64
};

/* ---------------------------------------------------------------- CIFAR-10 */

static enum dpt_status check_label(const struct dpt_token_shard *shard, int64_t record, int label,
                                   int labels, struct dpt_err *err)
{
    if (label < labels)
        return DPT_OK;
    return dpt_fail(err, DPT_ECONFIG,
                    "'%s', record %lld (byte %lld): label %d is not among 0 … %d; set model.labels "
                    "to what the file has, or replace the file",
                    shard->file.path, (long long)record, (long long)record * RECORD_BYTES, label,
                    labels - 1);
}

static enum dpt_status check_labels(const struct dpt_token_shard *shard, int labels,
                                    struct dpt_err *err)
{
    uint8_t block[BLOCK_RECORDS * RECORD_BYTES];
    for (int64_t first = 0; first < shard->n_samples; first += BLOCK_RECORDS) {
        const int64_t left = shard->n_samples - first;
        const int64_t n = left < BLOCK_RECORDS ? left : BLOCK_RECORDS;
        DPT_TRY(dpt_data_file_read(&shard->file, first * RECORD_BYTES, block,
                                   (size_t)n * RECORD_BYTES, err));
        for (int64_t i = 0; i < n; i++)
            DPT_TRY(check_label(shard, first + i, block[i * RECORD_BYTES], labels, err));
    }
    return DPT_OK;
}

static enum dpt_status open_cifar10(struct dpt_token_shard *shard, int labels, struct dpt_err *err)
{
    DPT_TRY(dpt_token_shard_probe_text(shard, err));
    const int64_t bytes = shard->file.bytes;
    shard->n_samples = bytes / RECORD_BYTES;
    if (bytes == 0 || bytes % RECORD_BYTES != 0)
        return dpt_fail(err, DPT_ECORRUPT,
                        "'%s' is truncated, or no file of CIFAR-10's binary version: it has %lld "
                        "bytes, %lld records of %d and %lld bytes; fetch or copy it again",
                        shard->file.path, (long long)bytes, (long long)shard->n_samples,
                        RECORD_BYTES, (long long)(bytes % RECORD_BYTES));
    return check_labels(shard, labels, err);
}

static enum dpt_status read_cifar10(const struct dpt_token_shard *shard, int64_t record, int labels,
                                    uint8_t ret_rgb[DPT_PICTURE_CHANNELS * PLANE_BYTES],
                                    int32_t *ret_label, struct dpt_err *err)
{
    uint8_t bytes[RECORD_BYTES];
    DPT_TRY(dpt_data_file_read(&shard->file, record * RECORD_BYTES, bytes, sizeof bytes, err));
    DPT_TRY(check_label(shard, record, bytes[0], labels, err));
    for (int pixel = 0; pixel < PLANE_BYTES; pixel++)
        for (int c = 0; c < DPT_PICTURE_CHANNELS; c++)
            ret_rgb[pixel * DPT_PICTURE_CHANNELS + c] = bytes[1 + c * PLANE_BYTES + pixel];
    *ret_label = bytes[0];
    return DPT_OK;
}

/* ---------------------------------------------------------------- both */

enum dpt_status dpt_images_open(const struct dpt_config *config, const char *path,
                                struct dpt_data *data, struct dpt_err *err)
{
    if (data->kind == DPT_DATA_IMAGES) {
        DPT_TRY(dpt_image_folder_open(config, data->key, path, &data->folder, err));
        data->samples = data->folder->n;
        return DPT_OK;
    }
    for (int i = 0; i < data->n_shards; i++) {
        DPT_TRY(open_cifar10(&data->shards[i], data->labels, err));
        data->shards[i].first_sample = data->samples;
        data->samples += data->shards[i].n_samples;
    }
    return DPT_OK;
}

static enum dpt_status render_view(const struct dpt_data *data, const struct dpt_picture *picture,
                                   int64_t number, float *ret, struct dpt_err *err)
{
    const struct dpt_view view = dpt_view_of(&data->view, picture->width, picture->height, number);
    return dpt_view_render(&data->view, &view, picture, ret, err);
}

enum dpt_status dpt_images_read(const struct dpt_data *data, int64_t index, int64_t number,
                                float *ret_pixels, int32_t *ret_label, struct dpt_err *err)
{
    if (data->kind == DPT_DATA_CIFAR10) {
        const struct dpt_token_shard *shard = dpt_token_shard_of(data, index);
        uint8_t rgb[DPT_PICTURE_CHANNELS * PLANE_BYTES];
        const struct dpt_picture picture = {.width = SIDE, .height = SIDE, .rgb = rgb};
        DPT_TRY(
            read_cifar10(shard, index - shard->first_sample, data->labels, rgb, ret_label, err));
        return render_view(data, &picture, number, ret_pixels, err);
    }
    struct dpt_picture picture = {.rgb = NULL};
    enum dpt_status status = dpt_image_folder_read(data->folder, index, &picture, err);
    if (status == DPT_OK)
        status = render_view(data, &picture, number, ret_pixels, err);
    dpt_picture_fini(&picture);
    if (status == DPT_OK)
        *ret_label = data->folder->images[index].label;
    return status;
}
