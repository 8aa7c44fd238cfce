/* Headers of safetensors files (safetensors.h). */
#include "checkpoint/safetensors.h"

#include "base/cursor.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES_MAX = 512 };

void dpt_safetensors_fini(struct dpt_safetensors *header)
{
    for (int i = 0; i < header->n; i++)
        free(header->entries[i].name);
    free(header->entries);
    *header = (struct dpt_safetensors){0};
}

static const struct dtype {
    const char *name;
    int64_t width;
} dtypes[] = {[DPT_SAFETENSORS_F32] = {"F32", 4},
              [DPT_SAFETENSORS_BF16] = {"BF16", 2},
              [DPT_SAFETENSORS_F16] = {"F16", 2},
              [DPT_SAFETENSORS_OTHER] = {"", 0}};

int64_t dpt_safetensors_width(enum dpt_safetensors_dtype dtype)
{
    return dtypes[dtype].width;
}

static enum dpt_safetensors_dtype dtype_of(const char *name)
{
    int i = 0;
    while (i < DPT_SAFETENSORS_OTHER && strcmp(dtypes[i].name, name) != 0)
        i++;
    return (enum dpt_safetensors_dtype)i;
}

/* `width` times the dimensions; false: a dimension is negative or the product overflows. */
static bool shape_bytes(const int64_t *dim, int ndim, int64_t width, int64_t *ret)
{
    int64_t bytes = width;
    for (int d = 0; d < ndim; d++)
        if (dim[d] < 0 || __builtin_mul_overflow(bytes, dim[d], &bytes))
            return false;
    *ret = bytes;
    return true;
}

enum dpt_status dpt_safetensors_tensor_bytes(const struct dpt_checkpoint_tensor *tensor,
                                             int64_t *ret_bytes, struct dpt_err *err)
{
    if (!tensor->name || !tensor->name[0] || strlen(tensor->name) > NAME_BYTES_MAX ||
        strcmp(tensor->name, "__metadata__") == 0)
        return dpt_fail(err, DPT_EINVAL, "tensor name '%.60s' is not allowed",
                        tensor->name ? tensor->name : "");
    if (tensor->ndim < 0 || tensor->ndim > DPT_CHECKPOINT_NDIM_MAX ||
        !shape_bytes(tensor->dim, tensor->ndim, (int64_t)sizeof(float), ret_bytes))
        return dpt_fail(err, DPT_EINVAL, "tensor '%s' has an impossible shape", tensor->name);
    return DPT_OK;
}

/* Adds one tensor to the header's object; *at becomes the end of its data. */
static enum dpt_status print_entry(json_t *root, const struct dpt_checkpoint_tensor *tensor,
                                   enum dpt_safetensors_dtype dtype, int64_t *at,
                                   struct dpt_err *err)
{
    int64_t bytes = 0;
    DPT_TRY(dpt_safetensors_tensor_bytes(tensor, &bytes, err));
    bytes = bytes / (int64_t)sizeof(float) * dpt_safetensors_width(dtype);
    const json_int_t begin = *at, end = *at + bytes;
    if (json_object_get(root, tensor->name))
        return dpt_fail(err, DPT_EINVAL, "tensor '%s' is given twice", tensor->name);
    json_t *shape = json_array();
    for (int d = 0; d < tensor->ndim; d++)
        if (json_array_append_new(shape, json_integer(tensor->dim[d])) != 0)
            goto no_memory;
    json_t *entry = json_pack("{s:s, s:O, s:[I, I]}", "dtype", dtypes[dtype].name, "shape", shape,
                              "data_offsets", begin, end);
    if (!entry)
        goto no_memory;
    json_decref(shape);
    /* Out of memory, or the name is not UTF-8. */
    if (json_object_set_new(root, tensor->name, entry) != 0)
        return dpt_fail(err, DPT_EINVAL, "tensor '%s' does not fit a JSON header", tensor->name);
    *at += bytes;
    return DPT_OK;
no_memory:
    json_decref(shape);
    return dpt_fail_nomem(err, "header of tensor files");
}

/* Joins the length, the JSON, and blanks up to the alignment. */
static enum dpt_status frame_header(const char *json, char **ret_head, size_t *ret_bytes,
                                    struct dpt_err *err)
{
    const size_t n = strlen(json);
    const size_t total = (DPT_SAFETENSORS_LENGTH_BYTES + n + DPT_SAFETENSORS_ALIGN - 1) /
                         DPT_SAFETENSORS_ALIGN * DPT_SAFETENSORS_ALIGN;
    if (total - DPT_SAFETENSORS_LENGTH_BYTES > DPT_SAFETENSORS_HEADER_BYTES_MAX)
        return dpt_fail(err, DPT_EOVERFLOW, "header of tensor files: %zu bytes are too many", n);
    char *head = malloc(total);
    if (!head)
        return dpt_fail_nomem(err, "header of tensor files");
    struct dpt_writer writer;
    dpt_writer_init(&writer, head, total);
    dpt_writer_u64(&writer, total - DPT_SAFETENSORS_LENGTH_BYTES);
    dpt_writer_bytes(&writer, json, n);
    memset(head + DPT_SAFETENSORS_LENGTH_BYTES + n, ' ', total - DPT_SAFETENSORS_LENGTH_BYTES - n);
    *ret_head = head;
    *ret_bytes = total;
    return DPT_OK;
}

enum dpt_status dpt_safetensors_print(const struct dpt_checkpoint_tensor *tensors, int n_tensors,
                                      enum dpt_safetensors_dtype dtype, char **ret_head,
                                      size_t *ret_bytes, struct dpt_err *err)
{
    enum dpt_status status = DPT_OK;
    int64_t at = 0;
    char *json = NULL;
    json_t *root = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    for (int i = 0; root && status == DPT_OK && i < n_tensors; i++)
        status = print_entry(root, &tensors[i], dtype, &at, err);
    if (status == DPT_OK) {
        json = root ? json_dumps(root, JSON_COMPACT) : NULL;
        status = json ? frame_header(json, ret_head, ret_bytes, err)
                      : dpt_fail_nomem(err, "header of tensor files");
    }
    free(json);
    json_decref(root);
    return status;
}

enum dpt_status dpt_safetensors_parse_length(const uint8_t head[DPT_SAFETENSORS_LENGTH_BYTES],
                                             int64_t file_bytes, const char *what,
                                             size_t *ret_json_bytes, struct dpt_err *err)
{
    struct dpt_reader reader;
    dpt_reader_init(&reader, head, DPT_SAFETENSORS_LENGTH_BYTES);
    uint64_t n = dpt_reader_u64(&reader);
    if (n < 2 || n > DPT_SAFETENSORS_HEADER_BYTES_MAX ||
        (int64_t)n > file_bytes - DPT_SAFETENSORS_LENGTH_BYTES)
        return dpt_fail(err, DPT_ECORRUPT,
                        "'%s': a header of %llu bytes does not fit a file of %lld", what,
                        (unsigned long long)n, (long long)file_bytes);
    *ret_json_bytes = (size_t)n;
    return DPT_OK;
}

/* The file whose header is parsed. */
struct source {
    const char *what;         /* its name, for errors */
    int64_t data, data_bytes; /* byte at which the data begins, and its length */
};

static enum dpt_status parse_shape(json_t *shape, struct dpt_safetensors_entry *entry,
                                   const char *what, struct dpt_err *err)
{
    if (!json_is_array(shape) || json_array_size(shape) > DPT_CHECKPOINT_NDIM_MAX)
        return dpt_fail(err, DPT_ECORRUPT,
                        "'%s': tensor '%.100s': the shape is no list of at most "
                        "%d numbers",
                        what, entry->name, DPT_CHECKPOINT_NDIM_MAX);
    entry->ndim = (int)json_array_size(shape);
    for (int d = 0; d < entry->ndim; d++) {
        json_t *dim = json_array_get(shape, (size_t)d);
        entry->dim[d] = json_is_integer(dim) ? json_integer_value(dim) : -1;
    }
    int64_t bytes;
    const int64_t width = dpt_safetensors_width(entry->dtype);
    if (!shape_bytes(entry->dim, entry->ndim, width, &bytes) ||
        (width > 0 && bytes != entry->end - entry->begin))
        return dpt_fail(err, DPT_ECORRUPT,
                        "'%s': tensor '%.100s': the shape does not fit its %lld bytes", what,
                        entry->name, (long long)(entry->end - entry->begin));
    return DPT_OK;
}

static enum dpt_status parse_entry(const struct source *source, const char *name, json_t *value,
                                   struct dpt_safetensors_entry *entry, struct dpt_err *err)
{
    const char *what = source->what;
    const char *dtype;
    json_t *shape;
    json_int_t begin, end;
    json_error_t why;
    if (!name[0] || strlen(name) > NAME_BYTES_MAX)
        return dpt_fail(err, DPT_ECORRUPT, "'%s': a tensor's name is empty or too long", what);
    /* Strict: these three members and no others. */
    if (json_unpack_ex(value, &why, JSON_STRICT, "{s:s, s:o, s:[I, I]}", "dtype", &dtype, "shape",
                       &shape, "data_offsets", &begin, &end) != 0)
        return dpt_fail(err, DPT_ECORRUPT, "'%s': tensor '%.100s': %s", what, name, why.text);
    if (begin < 0 || end < begin || end > source->data_bytes)
        return dpt_fail(err, DPT_ECORRUPT,
                        "'%s': tensor '%.100s' lies at [%lld, %lld) of %lld "
                        "bytes of data",
                        what, name, (long long)begin, (long long)end,
                        (long long)source->data_bytes);
    entry->dtype = dtype_of(dtype);
    (void)snprintf(entry->dtype_name, sizeof entry->dtype_name, "%s", dtype);
    entry->begin = source->data + begin;
    entry->end = source->data + end;
    entry->name = strdup(name);
    if (!entry->name)
        return dpt_fail_nomem(err, "'%s'", what);
    return parse_shape(shape, entry, what, err);
}

/* By offset. At equal offsets an empty tensor comes first. */
static int by_offset(const void *a, const void *b)
{
    const struct dpt_safetensors_entry *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

/* The tensors must be contiguous from the start of the data to the end of the file. */
static enum dpt_status check_cover(const struct dpt_safetensors *header,
                                   const struct source *source, struct dpt_err *err)
{
    const char *what = source->what;
    const int64_t file_bytes = source->data + source->data_bytes;
    int64_t at = source->data;
    for (int i = 0; i < header->n; i++) {
        const struct dpt_safetensors_entry *entry = &header->entries[i];
        if (entry->begin != at)
            return dpt_fail(err, DPT_ECORRUPT, "'%s': %s before tensor '%.100s'", what,
                            entry->begin > at ? "a hole" : "an overlap", entry->name);
        at = entry->end;
    }
    if (at != file_bytes)
        return dpt_fail(err, DPT_ECORRUPT, "'%s': the tensors end at byte %lld, the file at %lld",
                        what, (long long)at, (long long)file_bytes);
    return DPT_OK;
}

static enum dpt_status parse_header(json_t *root, const struct source *source,
                                    struct dpt_safetensors *header, struct dpt_err *err)
{
    const char *what = source->what;
    const size_t n = json_object_size(root);
    if (n > DPT_CHECKPOINT_TENSORS_MAX + 1)
        return dpt_fail(err, DPT_ECORRUPT, "'%s': more than %d tensors", what,
                        DPT_CHECKPOINT_TENSORS_MAX);
    header->entries = calloc(n + 1, sizeof *header->entries);
    if (!header->entries)
        return dpt_fail_nomem(err, "'%s'", what);
    for (void *it = json_object_iter(root); it; it = json_object_iter_next(root, it)) {
        const char *name = json_object_iter_key(it);
        json_t *value = json_object_iter_value(it);
        if (strcmp(name, "__metadata__") == 0) {
            if (!json_is_object(value))
                return dpt_fail(err, DPT_ECORRUPT, "'%s': __metadata__ is no object", what);
            continue;
        }
        DPT_TRY(parse_entry(source, name, value, &header->entries[header->n++], err));
    }
    qsort(header->entries, (size_t)header->n, sizeof *header->entries, by_offset);
    return check_cover(header, source, err);
}

enum dpt_status dpt_safetensors_parse(const char *json, size_t json_bytes, int64_t file_bytes,
                                      const char *what, struct dpt_safetensors *ret,
                                      struct dpt_err *err)
{
    if (json_bytes > DPT_SAFETENSORS_HEADER_BYTES_MAX || json_bytes == 0 || json[0] != '{')
        return dpt_fail(err, DPT_ECORRUPT, "'%s': the header does not begin with '{'", what);
    json_error_t why;
    json_t *root = json_loadb(json, json_bytes, JSON_REJECT_DUPLICATES, &why);
    if (!root)
        return dpt_fail(err, DPT_ECORRUPT, "'%s': header: line %d: %s", what, why.line, why.text);
    struct dpt_safetensors header = {0};
    const int64_t data = DPT_SAFETENSORS_LENGTH_BYTES + (int64_t)json_bytes;
    const struct source source = {.what = what, .data = data, .data_bytes = file_bytes - data};
    enum dpt_status status = parse_header(root, &source, &header, err);
    json_decref(root);
    if (status != DPT_OK)
        dpt_safetensors_fini(&header);
    else
        *ret = header;
    return status;
}

enum dpt_status dpt_safetensors_check_f32(const struct dpt_safetensors *header, const char *what,
                                          struct dpt_err *err)
{
    for (int i = 0; i < header->n; i++)
        if (header->entries[i].dtype != DPT_SAFETENSORS_F32)
            return dpt_fail(err, DPT_EUNSUPPORTED,
                            "'%s': tensor '%.100s' has dtype %s, only F32 is read", what,
                            header->entries[i].name, header->entries[i].dtype_name);
    return DPT_OK;
}
