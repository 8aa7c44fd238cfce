/* State and record as JSON. */
#include "worker/data/prepare/encode_state.h"

#include "base/fs.h"
#include "worker/data/prepare/disk.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- writing */

static json_t *full_shards_json(const struct dpt_shard_list *list)
{
    json_t *array = json_array();
    for (int i = 0; i < list->full; i++) {
        char name[DPT_SHARD_NAME_BYTES];
        dpt_shard_list_name(list, i, name);
        if (json_array_append_new(array, json_pack("{s:s, s:I, s:s}", "file", name, "tokens",
                                                   (json_int_t)list->shards[i].tokens, "sha256",
                                                   list->shards[i].sha256)) != 0) {
            json_decref(array);
            return NULL;
        }
    }
    return array;
}

static json_t *list_json(const struct dpt_shard_list *list, bool state)
{
    json_t *json = json_pack("{s:I, s:I, s:o}", "tokens", (json_int_t)list->tokens, "documents",
                             (json_int_t)list->documents, "shards", full_shards_json(list));
    if (state && json)
        (void)json_object_set_new(json, "current", json_integer(list->current));
    return json;
}

static json_t *state_json(const struct dpt_shards *shards, bool state)
{
    const struct dpt_shards_progress *progress = &shards->progress;
    json_t *json = json_pack("{s:i, s:O, s:I}", "dpt-data", DPT_ENCODE_STATE_VERSION, "settings",
                             shards->settings, "replaced", (json_int_t)progress->replaced);
    for (int s = 0; json && s < DPT_SPLIT_COUNT; s++)
        if (json_object_set_new(json, shards->list[s].split, list_json(&shards->list[s], state)) !=
            0) {
            json_decref(json);
            return NULL;
        }
    if (json && state)
        (void)json_object_set_new(json, "inputs", json_string(progress->inputs));
    if (json && state)
        (void)json_object_set_new(
            json, "at",
            json_pack("{s:I, s:I, s:I, s:I}", "file", (json_int_t)progress->at.file, "offset",
                      (json_int_t)progress->at.offset, "unit", (json_int_t)progress->at.unit,
                      "line", (json_int_t)progress->at.line));
    return json;
}

static enum dpt_status write_text(const struct dpt_shards *shards, const char *name,
                                  const char *text, size_t bytes, struct dpt_err *err)
{
    char path[PATH_MAX];
    DPT_TRY(dpt_fs_join(shards->dir, name, path, sizeof path, err));
    return dpt_disk_write_file(path, text, bytes, err);
}

static enum dpt_status write_json(const struct dpt_shards *shards, const char *name, bool state,
                                  struct dpt_err *err)
{
    json_t *json = state_json(shards, state);
    char *text = json ? json_dumps(json, JSON_INDENT(1)) : NULL;
    json_decref(json);
    if (!text)
        return dpt_fail_nomem(err, "state");
    const enum dpt_status status = write_text(shards, name, text, strlen(text), err);
    free(text);
    return status;
}

enum dpt_status dpt_encode_state_write(const struct dpt_shards *shards, struct dpt_err *err)
{
    return write_json(shards, DPT_STATE_NAME, true, err);
}

enum dpt_status dpt_encode_state_write_record(const struct dpt_shards *shards, struct dpt_err *err)
{
    return write_json(shards, DPT_RECORD_NAME, false, err);
}

enum dpt_status dpt_encode_state_write_sums(const struct dpt_shards *shards, struct dpt_err *err)
{
    enum { LINE_BYTES = DPT_SHA256_HEX_BYTES + 2 + DPT_SHARD_NAME_BYTES };
    int n = 0;
    size_t at = 0;
    for (int s = 0; s < DPT_SPLIT_COUNT; s++)
        n += shards->list[s].full;
    char *text = malloc((size_t)n * LINE_BYTES + 1);
    if (!text)
        return dpt_fail_nomem(err, "state");
    for (int s = 0; s < DPT_SPLIT_COUNT; s++)
        for (int i = 0; i < shards->list[s].full; i++) {
            char name[DPT_SHARD_NAME_BYTES];
            dpt_shard_list_name(&shards->list[s], i, name);
            at += (size_t)snprintf(text + at, LINE_BYTES, "%s  %s\n",
                                   shards->list[s].shards[i].sha256, name);
        }
    const enum dpt_status status = write_text(shards, DPT_SUMS_NAME, text, at, err);
    free(text);
    return status;
}

enum dpt_status dpt_encode_state_remove(const struct dpt_shards *shards, struct dpt_err *err)
{
    char path[PATH_MAX];
    DPT_TRY(dpt_fs_join(shards->dir, DPT_STATE_NAME, path, sizeof path, err));
    return dpt_disk_remove(path, err);
}

/* ---------------------------------------------------------------- reading */

static enum dpt_status refuse_damaged(const char *path, struct dpt_err *err)
{
    return dpt_fail(err, DPT_ECORRUPT,
                    "'%s' cannot be understood; remove its folder and start again", path);
}

static bool read_number(const json_t *json, const char *key, int64_t *ret)
{
    const json_t *value = json_object_get(json, key);
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return false;
    *ret = json_integer_value(value);
    return true;
}

/* DPT_EREFUSED names the first setting that differs, with both values. */
static enum dpt_status compare_settings(const json_t *was, const json_t *is, const char *path,
                                        struct dpt_err *err)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)is, key, value)
    {
        const json_t *old = json_object_get(was, key);
        if (json_equal(old, value))
            continue;
        char *a = old ? json_dumps(old, JSON_ENCODE_ANY) : NULL;
        char *b = json_dumps(value, JSON_ENCODE_ANY);
        const enum dpt_status status = dpt_fail(
            err, DPT_EREFUSED,
            "'%s' is of other settings: %s was %.80s, now it is %.80s; name another --out, "
            "or remove that folder",
            path, key, a ? a : "unset", b ? b : "?");
        free(a);
        free(b);
        return status;
    }
    return DPT_OK;
}

/* Reads the file `name`. NULL in *ret: there is no such file. DPT_EREFUSED names the first setting
 * that differs. */
static enum dpt_status read_json(const struct dpt_shards *shards, const char *name,
                                 char ret_path[PATH_MAX], json_t **ret, struct dpt_err *err)
{
    char *text;
    size_t bytes;
    *ret = NULL;
    DPT_TRY(dpt_fs_join(shards->dir, name, ret_path, PATH_MAX, err));
    enum dpt_status status = dpt_fs_read_file(ret_path, DPT_STATE_BYTES_MAX, &text, &bytes, err);
    if (status != DPT_OK)
        return status == DPT_ENOENT ? DPT_OK : status;
    json_t *json = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, NULL);
    free(text);
    status =
        json_integer_value(json_object_get(json, "dpt-data")) == DPT_ENCODE_STATE_VERSION
            ? compare_settings(json_object_get(json, "settings"), shards->settings, ret_path, err)
            : refuse_damaged(ret_path, err);
    if (status == DPT_OK)
        *ret = json;
    else
        json_decref(json);
    return status;
}

static bool read_full_shards(struct dpt_shard_list *list, const json_t *array, struct dpt_err *err)
{
    size_t i;
    json_t *shard;
    if (!json_is_array(array) || json_array_size(array) > DPT_PREPARED_SHARDS_MAX ||
        dpt_shard_list_reserve(list, (int)json_array_size(array), err) != DPT_OK)
        return false;
    json_array_foreach(array, i, shard)
    {
        const char *sum = json_string_value(json_object_get(shard, "sha256"));
        if (!sum || strlen(sum) != DPT_SHA256_HEX_BYTES - 1 ||
            !read_number(shard, "tokens", &list->shards[i].tokens))
            return false;
        memcpy(list->shards[i].sha256, sum, DPT_SHA256_HEX_BYTES);
    }
    list->full = (int)json_array_size(array);
    return true;
}

static bool read_list(struct dpt_shard_list *list, const json_t *json, bool state,
                      struct dpt_err *err)
{
    return read_number(json, "tokens", &list->tokens) &&
           read_number(json, "documents", &list->documents) &&
           (!state || read_number(json, "current", &list->current)) &&
           read_full_shards(list, json_object_get(json, "shards"), err);
}

static bool read_lists(struct dpt_shards *shards, const json_t *json, bool state,
                       struct dpt_err *err)
{
    for (int s = 0; s < DPT_SPLIT_COUNT; s++)
        if (!read_list(&shards->list[s], json_object_get(json, shards->list[s].split), state,
                       err) ||
            shards->list[s].current >= shards->shard_tokens)
            return false;
    return true;
}

enum dpt_status dpt_encode_state_read(struct dpt_shards *shards, bool *ret_found,
                                      struct dpt_err *err)
{
    char path[PATH_MAX];
    json_t *json;
    struct dpt_shards_progress found = shards->progress;
    DPT_TRY(read_json(shards, DPT_STATE_NAME, path, &json, err));
    if (!json)
        return DPT_OK;
    enum dpt_status status = DPT_OK;
    const json_t *at = json_object_get(json, "at");
    const char *inputs = json_string_value(json_object_get(json, "inputs"));
    if (!inputs || strcmp(inputs, found.inputs) != 0)
        status = dpt_fail(err, DPT_EREFUSED,
                          "an input was changed since '%s' was written; name another --out, or "
                          "remove that folder",
                          path);
    else if (!(read_lists(shards, json, true, err) &&
               read_number(json, "replaced", &found.replaced) &&
               read_number(at, "file", &found.at.file) &&
               read_number(at, "offset", &found.at.offset) &&
               read_number(at, "unit", &found.at.unit) && read_number(at, "line", &found.at.line)))
        status = refuse_damaged(path, err);
    json_decref(json);
    *ret_found = status == DPT_OK;
    if (*ret_found)
        shards->progress = found;
    return status;
}

enum dpt_status dpt_encode_state_check_record(struct dpt_shards *shards, bool *ret_done,
                                              struct dpt_err *err)
{
    char path[PATH_MAX];
    json_t *json;
    DPT_TRY(read_json(shards, DPT_RECORD_NAME, path, &json, err));
    *ret_done = json && read_lists(shards, json, false, err);
    const enum dpt_status status = json && !*ret_done ? refuse_damaged(path, err) : DPT_OK;
    json_decref(json);
    return status;
}
