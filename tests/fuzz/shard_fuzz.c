/* Fuzz target: any bytes as a file of tokens. The first byte chooses the sample's length and the
 * vocabulary. What opens has the samples it says, each token of them is in the vocabulary, or
 * reading it says that it is not. */
#include "tests/fuzz/fuzz.h"
#include "worker/data/data.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SEQ_MAX = 8, FILE_BYTES_MAX = 8 * 1024 };

/* A file in memory, and a config that names it. */
static int prepare_shard_config(struct dpt_config *ret)
{
    const int fd = memfd_create("shard", MFD_CLOEXEC);
    DPT_ASSERT(fd >= 0);
    dpt_config_defaults(ret);
    (void)snprintf(ret->data.train, sizeof ret->data.train, "/proc/self/fd/%d", fd);
    ret->data.kind = DPT_DATA_TOKENS;
    return fd;
}

static void read_samples(const struct dpt_data *data, int seq_len, int vocab)
{
    int32_t tokens[SEQ_MAX], targets[SEQ_MAX];
    const struct dpt_batch one = {.part = {tokens, targets}};
    struct dpt_err err;
    const int64_t n = dpt_data_samples(data);
    DPT_ASSERT(n > 0);
    for (int64_t i = 0; i < n; i++) {
        const enum dpt_status status = dpt_data_read(data, i, i, &one, 0, &err);
        DPT_ASSERT(status == DPT_OK || status == DPT_ECORRUPT);
        for (int k = 0; status == DPT_OK && k < seq_len; k++)
            DPT_ASSERT(tokens[k] >= 0 && tokens[k] < vocab && targets[k] < vocab &&
                       (k == 0 || targets[k - 1] == tokens[k]));
    }
    DPT_ASSERT(dpt_data_read(data, n, n, &one, 0, &err) == DPT_EINVAL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct dpt_config config;
    static int fd = -1;
    if (fd < 0)
        fd = prepare_shard_config(&config);
    struct feed feed = feed_from(data, bytes);
    const uint8_t choice = feed_u8(&feed);
    config.train.seq_len = 1 + choice % SEQ_MAX;
    config.model.vocab = (choice & 0x80) != 0 ? 100 : 50257;
    size_t n;
    const uint8_t *rest = feed_rest(&feed, &n);
    if (n > FILE_BYTES_MAX)
        return 0;
    DPT_ASSERT(ftruncate(fd, (off_t)n) == 0 && pwrite(fd, rest, n, 0) == (ssize_t)n);
    struct dpt_data *source = NULL;
    struct dpt_err err = {.status = DPT_OK};
    const enum dpt_status status = dpt_data_open(&config, &source, &err);
    DPT_ASSERT((status == DPT_OK) == (source != NULL));
    if (status == DPT_OK)
        read_samples(source, config.train.seq_len, config.model.vocab);
    else
        DPT_ASSERT(status == DPT_ECORRUPT || status == DPT_EVERSION || status == DPT_ECONFIG);
    dpt_data_close(&source);
    return 0;
}
