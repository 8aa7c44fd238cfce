/* Names of the classes of images, for config.json (data.h). */
#include "worker/data/source.h"

#include "base/fs.h"
#include "base/log.h"
#include "worker/data/utf8.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { META_BYTES_MAX = 1 << 20 };

#define META_NAME "batches.meta.txt"

struct names {
    char **name; /* [labels] */
    size_t n;
};

/* Adds a copy of the name; there is room. */
static enum dpt_status add_name(struct names *names, const char *name, size_t bytes,
                                struct dpt_err *err)
{
    names->name[names->n] = strndup(name, bytes);
    if (!names->name[names->n])
        return dpt_fail_nomem(err, "names of classes");
    names->n++;
    return DPT_OK;
}

static void drop_names(struct names *names)
{
    while (names->n > 0)
        free(names->name[--names->n]);
}

static bool is_text(const char *name, size_t bytes)
{
    return strlen(name) == bytes && dpt_utf8_valid((const uint8_t *)name, bytes) == bytes;
}

/* Each line is a name; empty lines, which the file of CIFAR-10 has at its end, are passed over.
 * Counts all names and adds the first `labels` of them. */
static enum dpt_status split_lines(const char *text, size_t bytes, int labels, struct names *names,
                                   int64_t *ret_lines, struct dpt_err *err)
{
    *ret_lines = 0;
    for (const char *at = text, *end = text + bytes; at < end;) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        const char *next = stop ? stop + 1 : end;
        stop = stop ? stop : end;
        while (stop > at && (stop[-1] == '\r' || stop[-1] == ' '))
            stop--;
        if (stop > at && (*ret_lines)++ < labels)
            DPT_TRY(add_name(names, at, (size_t)(stop - at), err));
        at = next;
    }
    return DPT_OK;
}

/* The file that CIFAR-10's binary version has beside its batches. */
static enum dpt_status read_meta(const struct dpt_data *data, struct names *names,
                                 struct dpt_err *err)
{
    const char *first = data->shards[0].file.path, *slash = strrchr(first, '/');
    char path[PATH_MAX], *text;
    size_t bytes;
    int64_t lines = 0;
    const int written =
        snprintf(path, sizeof path, "%.*s" META_NAME, slash ? (int)(slash + 1 - first) : 0, first);
    if (written >= (int)sizeof path || !dpt_fs_exists(path))
        return DPT_OK;
    DPT_TRY(dpt_fs_read_file(path, META_BYTES_MAX, &text, &bytes, err));
    const bool valid = is_text(text, bytes);
    enum dpt_status status =
        valid ? split_lines(text, bytes, data->labels, names, &lines, err) : DPT_OK;
    free(text);
    if (status != DPT_OK || (valid && lines == data->labels))
        return status;
    if (valid)
        dpt_log(DPT_LOG_WARN,
                "'%s' has %lld names and model.labels is %d: the classes in config.json are "
                "LABEL_0, …; correct the file, or remove it",
                path, (long long)lines, data->labels);
    else
        dpt_log(DPT_LOG_WARN,
                "'%s' is not UTF-8: the classes in config.json are LABEL_0, …; correct the file, "
                "or remove it",
                path);
    drop_names(names);
    return DPT_OK;
}

static enum dpt_status copy_folders(const struct dpt_data *data, struct names *names,
                                    struct dpt_err *err)
{
    for (int i = 0; i < data->labels; i++) {
        const char *name = data->folder->class_names[i];
        if (is_text(name, strlen(name))) {
            DPT_TRY(add_name(names, name, strlen(name), err));
            continue;
        }
        dpt_log(DPT_LOG_WARN,
                "%s: the name of the sub-folder of class %d is not UTF-8: the classes in "
                "config.json are LABEL_0, …; rename the folder",
                data->key, i);
        drop_names(names);
        return DPT_OK;
    }
    return DPT_OK;
}

enum dpt_status dpt_data_class_names(const struct dpt_data *data, char ***ret, struct dpt_err *err)
{
    struct names names = {.n = 0};
    *ret = NULL;
    if (data->kind != DPT_DATA_IMAGES && data->kind != DPT_DATA_CIFAR10)
        return DPT_OK;
    names.name = calloc((size_t)data->labels, sizeof *names.name);
    if (!names.name)
        return dpt_fail_nomem(err, "names of classes");
    const enum dpt_status status = data->kind == DPT_DATA_IMAGES ? copy_folders(data, &names, err)
                                                                 : read_meta(data, &names, err);
    if (status == DPT_OK && names.n > 0)
        *ret = names.name;
    else
        dpt_fs_list_free(&names.name, names.n);
    return status;
}
