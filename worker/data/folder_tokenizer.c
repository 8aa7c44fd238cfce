/* Whether a config's tokens are those of a Hugging Face folder (tokenizer.h). */
#include "worker/data/tokenizer.h"

#include "base/fs.h"

#include <stdlib.h>
#include <string.h>

static enum dpt_status same_file(const char *a, const char *b, bool *ret, struct dpt_err *err)
{
    char *text[2];
    size_t bytes[2];
    DPT_TRY(dpt_fs_read_file(a, DPT_TOKENIZER_JSON_BYTES_MAX, &text[0], &bytes[0], err));
    enum dpt_status status =
        dpt_fs_read_file(b, DPT_TOKENIZER_JSON_BYTES_MAX, &text[1], &bytes[1], err);
    if (status == DPT_OK) {
        *ret = bytes[0] == bytes[1] && memcmp(text[0], text[1], bytes[0]) == 0;
        free(text[1]);
    }
    free(text[0]);
    return status;
}

enum dpt_status dpt_tokenizer_is_of_folder(const struct dpt_config *config, const char *folder,
                                           bool *ret, struct dpt_err *err)
{
    char path[DPT_CONFIG_PATH_BYTES];
    DPT_TRY(dpt_fs_join(folder, DPT_TOKENIZER_JSON, path, sizeof path, err));
    *ret = true;
    if (!dpt_fs_exists(path))
        return DPT_OK;
    if (config->data.tokenizer == DPT_TOKENIZER_BYTES)
        *ret = config->data.kind == DPT_DATA_TOKENS;
    else if (config->data.tokenizer == DPT_TOKENIZER_GPT2)
        *ret = !config->data.any_vocab;
    else if (dpt_fs_exists(config->data.tokenizer_json))
        return same_file(config->data.tokenizer_json, path, ret, err);
    return DPT_OK;
}
