/* Text that is encoded when a run opens it. */
#include "worker/data/data_source.h"

#include "base/fs.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>

void dpt_data_source_warn_of_replaced(const char *path, int64_t line, int64_t replaced)
{
    char at[48] = "";
    if (replaced == 0)
        return;
    if (line > 0)
        (void)snprintf(at, sizeof at, " from line %lld on", (long long)line);
    dpt_log(DPT_LOG_WARN,
            "'%s' is not UTF-8: %lld sequence%s of bytes%s became U+FFFD; save the file as UTF-8",
            path, (long long)replaced, replaced == 1 ? "" : "s", at);
}

/* With published weights the vocabulary's size is fixed, so the tokenizer is the wrong one. */
static enum dpt_status refuse_vocab_size(const struct dpt_config *config, const char *file,
                                         int size, struct dpt_err *err)
{
    const char *folder = config->model.init_from;
    if (folder[0] != '\0')
        return dpt_fail(err, DPT_ECONFIG,
                        "'%s' has %d tokens, and the weights of model.init_from ('%s') a "
                        "vocabulary of %d: it is not their tokenizer; set data.tokenizer: hf and "
                        "data.tokenizer_json: %s/" DPT_TOKENIZER_JSON,
                        file, size, folder, config->model.vocab, folder);
    return dpt_fail(err, DPT_ECONFIG,
                    "model.vocab is %d, the tokens of '%s' need %d at least; set model.vocab: %d",
                    config->model.vocab, file, size, size);
}

enum dpt_status dpt_data_source_open_vocab(const struct dpt_config *config, struct dpt_vocab **ret,
                                           struct dpt_err *err)
{
    const struct dpt_vocab_options options = {.kind = config->data.tokenizer,
                                              .vocab_bpe = config->data.vocab_bpe,
                                              .encoder_json = config->data.encoder_json,
                                              .any_vocab = config->data.any_vocab,
                                              .tokenizer_json = config->data.tokenizer_json};
    const char *file = config->data.tokenizer == DPT_TOKENIZER_HF ? config->data.tokenizer_json
                                                                  : config->data.encoder_json;
    struct dpt_vocab *vocab = NULL;
    DPT_TRY(dpt_vocab_open(&options, &vocab, err));
    const int size = dpt_vocab_size(vocab);
    if (config->model.vocab < size) {
        dpt_vocab_close(&vocab);
        return refuse_vocab_size(config, file, size, err);
    }
    *ret = vocab;
    return DPT_OK;
}

enum dpt_status dpt_token_shard_encode_text(struct dpt_token_shard *shard,
                                            const struct dpt_vocab *vocab, struct dpt_err *err)
{
    struct dpt_tokens tokens = {0};
    struct dpt_encoder *encoder = NULL;
    char *text;
    size_t bytes;
    if (shard->file.bytes > DPT_ENCODE_BYTES_MAX)
        return dpt_fail(err, DPT_EOVERFLOW,
                        "'%s' has %lld bytes, at most %d are encoded as a run starts; make token "
                        "shards of it with dpt-data encode and set data.kind: tokens",
                        shard->file.path, (long long)shard->file.bytes, DPT_ENCODE_BYTES_MAX);
    DPT_TRY(dpt_fs_read_file(shard->file.path, DPT_ENCODE_BYTES_MAX, &text, &bytes, err));
    enum dpt_status status = dpt_encoder_create(vocab, &encoder, err);
    if (status == DPT_OK)
        status = dpt_encoder_encode(encoder, text, bytes, &tokens, err);
    if (status == DPT_OK) {
        dpt_data_source_warn_of_replaced(shard->file.path, 0, dpt_encoder_replaced(encoder));
        shard->width = dpt_vocab_token_bytes(vocab);
        shard->tokens = (int64_t)tokens.n;
        shard->encoded = tokens.ids; /* takes them */
    } else {
        dpt_tokens_fini(&tokens);
    }
    dpt_encoder_destroy(&encoder);
    free(text);
    return status;
}
