/* Fuzz target: files that are nearly a vocabulary: those of the tests with bytes overwritten, put
 * in or left out as the input says. What opens encodes every byte and decodes it again. */
#include "base/fs.h"
#include "tests/fuzz/fuzz.h"
#include "worker/data/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { EDITS_MAX = 16, PUT_IN_MAX = 32, FILE_BYTES_MAX = 64 * 1024 };

struct file {
    char *text; /* as it is right */
    size_t bytes;
    int fd; /* as it is given to be read */
    char path[64];
};

static void open_file(struct file *file, const char *path)
{
    struct dpt_err err;
    DPT_ASSERT(dpt_fs_read_file(path, FILE_BYTES_MAX, &file->text, &file->bytes, &err) == DPT_OK);
    file->fd = memfd_create("vocab", MFD_CLOEXEC);
    DPT_ASSERT(file->fd >= 0);
    (void)snprintf(file->path, sizeof file->path, "/proc/self/fd/%d", file->fd);
}

static void edit(char *text, size_t *bytes, struct feed *feed)
{
    const size_t place = feed_u8(feed) | (size_t)feed_u8(feed) << 8;
    const size_t at = place % (*bytes + 1);
    const size_t n = 1 + feed_below(feed, PUT_IN_MAX);
    const size_t left_out = n < *bytes - at ? n : *bytes - at;
    switch (feed_below(feed, 4)) {
    case 0: /* put in */
        memmove(text + at + n, text + at, *bytes - at);
        for (size_t i = 0; i < n; i++)
            text[at + i] = (char)feed_u8(feed);
        *bytes += n;
        break;
    case 1: /* left out */
        memmove(text + at, text + at + left_out, *bytes - at - left_out);
        *bytes -= left_out;
        break;
    case 2: /* cut off */
        *bytes = at;
        break;
    default:
        if (at < *bytes)
            text[at] = (char)feed_u8(feed);
    }
}

static void write_file(const struct file *file, struct feed *feed, uint32_t edits)
{
    static char text[FILE_BYTES_MAX + EDITS_MAX * PUT_IN_MAX];
    size_t bytes = file->bytes;
    memcpy(text, file->text, bytes);
    for (uint32_t i = 0; i < edits; i++)
        edit(text, &bytes, feed);
    DPT_ASSERT(ftruncate(file->fd, (off_t)bytes) == 0 &&
               pwrite(file->fd, text, bytes, 0) == (ssize_t)bytes);
}

/* The bytes one by one: each is a token, or no vocabulary would do. */
static void encode_bytes(const struct dpt_vocab *vocab)
{
    struct dpt_encoder *encoder = NULL;
    struct dpt_tokens tokens = {0};
    struct dpt_err err;
    uint8_t text[128];
    size_t at = 0;
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (uint8_t)i;
    DPT_ASSERT(dpt_encoder_create(vocab, &encoder, &err) == DPT_OK);
    DPT_ASSERT(dpt_encoder_encode(encoder, text, sizeof text, &tokens, &err) == DPT_OK);
    for (size_t i = 0; i < tokens.n; i++) {
        size_t n = 0;
        const uint8_t *piece = dpt_vocab_token(vocab, (int)tokens.ids[i], &n);
        DPT_ASSERT(piece != NULL && n <= sizeof text - at && memcmp(text + at, piece, n) == 0);
        at += n;
    }
    DPT_ASSERT(at == sizeof text);
    dpt_tokens_fini(&tokens);
    dpt_encoder_destroy(&encoder);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct file bpe = {.fd = -1}, json = {.fd = -1};
    if (bpe.fd < 0) {
        open_file(&bpe, DPT_RECORDED "/tiny.bpe");
        open_file(&json, DPT_RECORDED "/tiny.json");
    }
    struct feed feed = feed_from(data, bytes);
    const uint8_t choice = feed_u8(&feed);
    write_file(&bpe, &feed, choice % EDITS_MAX);
    write_file(&json, &feed, choice / EDITS_MAX);
    const struct dpt_vocab_options options = {.kind = DPT_TOKENIZER_GPT2,
                                              .vocab_bpe = bpe.path,
                                              .encoder_json = json.path,
                                              .any_vocab = true};
    struct dpt_vocab *vocab = NULL;
    struct dpt_err err = {.status = DPT_OK};
    const enum dpt_status status = dpt_vocab_open(&options, &vocab, &err);
    DPT_ASSERT((status == DPT_OK) == (vocab != NULL));
    if (status == DPT_OK)
        encode_bytes(vocab);
    else
        DPT_ASSERT(err.text[0] != '\0' && status != DPT_ENOMEM);
    dpt_vocab_close(&vocab);
    return 0;
}
