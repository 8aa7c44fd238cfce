/* Names of the classes of images, for config.json (data.h). */
#include "worker/data/data_source.h"

#include "base/fs.h"
#include "base/log.h"
#include "worker/data/utf8.h"

#include <stdlib.h>
#include <string.h>

enum { META_BYTES_MAX = 1 << 20 };

struct names {
    char **name; /* (labels) */
    size_t n;
};

static enum dpt_status add_name(struct names *names, const char *name, size_t bytes,
                                struct dpt_err *err)
{
    names->name[names->n] = strndup(name, bytes);
    if (!names->name[names->n])
        return dpt_fail_nomem(err, "names of classes");
    names->n++;
    return DPT_OK;
}

static bool is_text(const char *name, size_t bytes)
{
    return strlen(name) == bytes && dpt_utf8_valid((const uint8_t *)name, bytes) == bytes;
}

/* The next line from *at on, without white space at its end; NULL: there is none. Skips empty
 * lines, such as the last one of CIFAR-10's file. */
static const char *next_line(const char **at, size_t *ret_bytes)
{
    while (**at) {
        const char *line = *at;
        size_t n = strcspn(line, "\n");
        *at = line + n + (line[n] == '\n');
        while (n > 0 && (line[n - 1] == '\r' || line[n - 1] == ' '))
            n--;
        *ret_bytes = n;
        if (n > 0)
            return line;
    }
    return NULL;
}

static enum dpt_status read_lines(const struct dpt_data *data, const char *path, const char *text,
                                  struct names *names, struct dpt_err *err)
{
    int lines = 0;
    size_t bytes;
    for (const char *at = text; next_line(&at, &bytes);)
        lines++;
    if (lines != data->labels) {
        dpt_log(DPT_LOG_WARN,
                "'%s' has %d names and model.labels is %d: the classes in config.json are "
                "LABEL_0, …; correct the file, or remove it",
                path, lines, data->labels);
        return DPT_OK;
    }
    for (const char *at = text, *line; (line = next_line(&at, &bytes));)
        DPT_TRY(add_name(names, line, bytes, err));
    return DPT_OK;
}

/* Reads the names from batches.meta.txt, which CIFAR-10's binary version has beside its batches. */
static enum dpt_status read_meta(const struct dpt_data *data, struct names *names,
                                 struct dpt_err *err)
{
    char folder[PATH_MAX], path[PATH_MAX], *text;
    size_t bytes;
    if (dpt_fs_folder(data->shards[0].file.path, folder, NULL) != DPT_OK ||
        dpt_fs_join(folder, "batches.meta.txt", path, sizeof path, NULL) != DPT_OK ||
        !dpt_fs_exists(path))
        return DPT_OK;
    DPT_TRY(dpt_fs_read_file(path, META_BYTES_MAX, &text, &bytes, err));
    enum dpt_status status = DPT_OK;
    if (is_text(text, bytes))
        status = read_lines(data, path, text, names, err);
    else
        dpt_log(DPT_LOG_WARN,
                "'%s' is not UTF-8: the classes in config.json are LABEL_0, …; correct the file, "
                "or remove it",
                path);
    free(text);
    return status;
}

static enum dpt_status copy_folder_names(const struct dpt_data *data, struct names *names,
                                         struct dpt_err *err)
{
    char *const *name = data->folder->class_names;
    for (int i = 0; i < data->labels; i++)
        if (!is_text(name[i], strlen(name[i]))) {
            dpt_log(DPT_LOG_WARN,
                    "%s: the name of the sub-folder of class %d is not UTF-8: the classes in "
                    "config.json are LABEL_0, …; rename the folder",
                    data->key, i);
            return DPT_OK;
        }
    for (int i = 0; i < data->labels; i++)
        DPT_TRY(add_name(names, name[i], strlen(name[i]), err));
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
    const enum dpt_status status =
        data->folder ? copy_folder_names(data, &names, err) : read_meta(data, &names, err);
    if (status == DPT_OK && names.n > 0)
        *ret = names.name;
    else
        dpt_fs_list_free(&names.name, names.n);
    return status;
}
