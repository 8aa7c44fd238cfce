/* Reads the tokenizer from the record; a record that cannot be read counts as none. */
#include "worker/data/prepare/record.h"

#include "base/fs.h"
#include "worker/data/prepare/shards.h"

#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

enum { RECORD_BYTES_MAX = 64 << 20 };

void dpt_record_look(const char *path, struct dpt_record *ret)
{
    char dir[PATH_MAX], record[PATH_MAX], *text;
    size_t bytes;
    *ret = (struct dpt_record){.vocab = 0};
    if (dpt_fs_folder(path, dir, NULL) != DPT_OK ||
        dpt_fs_join(dir, DPT_RECORD_NAME, record, sizeof record, NULL) != DPT_OK ||
        dpt_fs_read_file(record, RECORD_BYTES_MAX, &text, &bytes, NULL) != DPT_OK)
        return;
    json_t *json = json_loadb(text, bytes, 0, NULL);
    const json_t *settings = json_object_get(json, "settings");
    const char *name = json_string_value(json_object_get(settings, "tokenizer"));
    const json_int_t vocab = json_integer_value(json_object_get(settings, "vocab_tokens"));
    (void)snprintf(ret->tokenizer, sizeof ret->tokenizer, "%s", name ? name : "");
    ret->vocab = vocab > 0 && vocab <= DPT_VOCAB_TOKENS_MAX ? (int)vocab : 0;
    json_decref(json);
    free(text);
}
