/* Listing the files to encode. */
#include "worker/data/prepare/inputs.h"

#include "base/array.h"
#include "base/cursor.h"
#include "base/fs.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

const char *const dpt_split_names[DPT_SPLIT_COUNT] = {"train", "val"};

enum { MAGIC_BYTES = 4 };

void dpt_inputs_fini(struct dpt_inputs *inputs)
{
    for (int i = 0; i < inputs->n; i++)
        free(inputs->files[i].file.path);
    free(inputs->files);
    *inputs = (struct dpt_inputs){0};
}

/* Refuses a file whose first bytes show that its text is compressed or in a Parquet file. */
static enum dpt_status check_is_text(const struct dpt_data_file *file, struct dpt_err *err)
{
    static const struct {
        uint8_t magic[MAGIC_BYTES];
        size_t n;
        const char *why;
    } kinds[] = {
        {{0x1f, 0x8b}, 2, "is compressed with gzip; decompress it first: gzip -dk"},
        {{0x28, 0xb5, 0x2f, 0xfd}, 4, "is compressed with zstd; decompress it first: zstd -dk"},
        {{'P', 'A', 'R', '1'}, 4, "is a Parquet file; write its text to .jsonl first"},
    };
    uint8_t first[MAGIC_BYTES] = {0};
    const size_t n = file->bytes < MAGIC_BYTES ? (size_t)file->bytes : MAGIC_BYTES;
    DPT_TRY(dpt_data_file_read(file, 0, first, n, err));
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (n >= kinds[i].n && memcmp(first, kinds[i].magic, kinds[i].n) == 0)
            return dpt_fail(err, DPT_EREFUSED, "'%s' %s", file->path, kinds[i].why);
    return DPT_OK;
}

static enum dpt_status add_file(struct dpt_inputs *inputs, const char *path, bool val,
                                struct dpt_err *err)
{
    struct dpt_input input = {
        .file.path = (char *)path, .jsonl = dpt_fs_has_ending(path, "jsonl,ndjson"), .val = val};
    if (inputs->n == DPT_INPUTS_MAX)
        return dpt_fail(err, DPT_EOVERFLOW, "more than %d files; join small ones into .jsonl",
                        DPT_INPUTS_MAX);
    DPT_TRY(dpt_data_file_identify(&input.file, err));
    if (input.file.bytes == 0)
        return DPT_OK;
    DPT_TRY(check_is_text(&input.file, err));
    input.file.path = strdup(path);
    if (!input.file.path || !dpt_array_reserve(&inputs->files, &inputs->room, (size_t)inputs->n + 1,
                                               sizeof *inputs->files)) {
        free(input.file.path);
        return dpt_fail_nomem(err, "list of inputs");
    }
    inputs->files[inputs->n++] = input;
    inputs->bytes += input.file.bytes;
    return DPT_OK;
}

/* `depth`: folders between the path that the user gave and this one; 0: the path itself. */
static enum dpt_status add_path(struct dpt_inputs *inputs, const char *path, const char *endings,
                                bool val, int depth, struct dpt_err *err)
{
    struct stat st;
    char **names, below[PATH_MAX];
    size_t n;
    if (stat(path, &st) != 0)
        return dpt_fail_errno(err, errno, "look at '%s'", path);
    if (!S_ISDIR(st.st_mode)) {
        if (S_ISREG(st.st_mode) && (depth == 0 || dpt_fs_has_ending(path, endings)))
            return st.st_size == 0 ? DPT_OK : add_file(inputs, path, val, err);
        if (depth == 0)
            return dpt_fail(err, DPT_EINVAL, "'%s' is neither a file nor a folder", path);
        inputs->left_out++;
        return DPT_OK;
    }
    if (depth > DPT_INPUT_DEPTH_MAX)
        return dpt_fail(err, DPT_EOVERFLOW, "'%s' is more than %d folders deep", path,
                        DPT_INPUT_DEPTH_MAX);
    DPT_TRY(dpt_fs_list(path, &names, &n, err));
    enum dpt_status status = DPT_OK;
    for (size_t i = 0; status == DPT_OK && i < n; i++) {
        if (names[i][0] == '.')
            continue;
        status = dpt_fs_join(path, names[i], below, sizeof below, err);
        if (status == DPT_OK)
            status = add_path(inputs, below, endings, val, depth + 1, err);
    }
    dpt_fs_list_free(&names, n);
    return status;
}

enum dpt_status dpt_inputs_add(struct dpt_inputs *inputs, const char *path, const char *endings,
                               bool val, struct dpt_err *err)
{
    return add_path(inputs, path, endings, val, 0, err);
}

void dpt_inputs_hash(const struct dpt_inputs *inputs, bool times, char ret_hex[DPT_HASH_HEX_BYTES])
{
    struct dpt_hash128 h = {0, 0};
    for (int i = 0; i < inputs->n; i++) {
        const struct dpt_input *input = &inputs->files[i];
        const struct dpt_data_file *f = &input->file;
        const struct dpt_hash128 path = dpt_hash128(f->path, strlen(f->path));
        uint8_t joined[66];
        struct dpt_writer writer;
        dpt_writer_init(&writer, joined, sizeof joined);
        dpt_writer_u64(&writer, h.hi);
        dpt_writer_u64(&writer, h.lo);
        dpt_writer_u64(&writer, path.hi);
        dpt_writer_u64(&writer, path.lo);
        dpt_writer_u64(&writer, (uint64_t)f->bytes);
        dpt_writer_u64(&writer, times ? (uint64_t)f->changed_s : 0);
        dpt_writer_u64(&writer, times ? (uint64_t)f->changed_ns : 0);
        dpt_writer_u8(&writer, input->jsonl);
        dpt_writer_u8(&writer, input->val);
        h = dpt_hash128(joined, writer.at);
    }
    dpt_hash128_hex(h, ret_hex);
}
