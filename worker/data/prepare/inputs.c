/* Listing the files to encode. */
#include "worker/data/prepare/inputs.h"

#include "base/array.h"
#include "base/cursor.h"
#include "base/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const char *const dpt_split_names[DPT_SPLIT_COUNT] = {"train", "val"};

enum { MAGIC_BYTES = 4 };

void dpt_inputs_fini(struct dpt_inputs *inputs)
{
    for (int i = 0; i < inputs->n; i++)
        free(inputs->files[i].path);
    free(inputs->files);
    *inputs = (struct dpt_inputs){0};
}

/* Refuses, by their first bytes, files whose bytes are no text but hold one. */
static enum dpt_status check_text(const char *path, int64_t bytes, struct dpt_err *err)
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
    const size_t n = bytes < MAGIC_BYTES ? (size_t)bytes : MAGIC_BYTES;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0)
        return dpt_fail_errno(err, errno, "open '%s'", path);
    const enum dpt_status status = dpt_fs_pread_all(fd, first, n, 0, path, err);
    (void)close(fd); /* opened for reading */
    if (status != DPT_OK)
        return status;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (n >= kinds[i].n && memcmp(first, kinds[i].magic, kinds[i].n) == 0)
            return dpt_fail(err, DPT_EREFUSED, "'%s' %s", path, kinds[i].why);
    return DPT_OK;
}

static enum dpt_status add_file(struct dpt_inputs *inputs, const char *path, const struct stat *st,
                                bool val, struct dpt_err *err)
{
    if (st->st_size == 0)
        return DPT_OK;
    if (inputs->n == DPT_INPUTS_MAX)
        return dpt_fail(err, DPT_EOVERFLOW, "more than %d files; join small ones into .jsonl",
                        DPT_INPUTS_MAX);
    DPT_TRY(check_text(path, st->st_size, err));
    char *copy = strdup(path);
    if (!copy || !dpt_array_reserve(&inputs->files, &inputs->room, (size_t)inputs->n + 1,
                                    sizeof *inputs->files)) {
        free(copy);
        return dpt_fail_nomem(err, "list of inputs");
    }
    inputs->files[inputs->n++] =
        (struct dpt_input){.path = copy,
                           .jsonl = dpt_fs_has_ending(path, "jsonl,ndjson"),
                           .val = val,
                           .bytes = st->st_size,
                           .changed_s = st->st_mtim.tv_sec,
                           .changed_ns = st->st_mtim.tv_nsec};
    inputs->bytes += st->st_size;
    return DPT_OK;
}

static enum dpt_status add_folder(struct dpt_inputs *inputs, const char *path, const char *endings,
                                  bool val, int depth, struct dpt_err *err);

static enum dpt_status add_below(struct dpt_inputs *inputs, const char *path, const char *endings,
                                 bool val, int depth, struct dpt_err *err)
{
    struct stat st;
    if (stat(path, &st) != 0)
        return dpt_fail_errno(err, errno, "look at '%s'", path);
    if (S_ISDIR(st.st_mode))
        return add_folder(inputs, path, endings, val, depth + 1, err);
    if (S_ISREG(st.st_mode) && dpt_fs_has_ending(path, endings))
        return add_file(inputs, path, &st, val, err);
    inputs->left_out++;
    return DPT_OK;
}

static enum dpt_status add_folder(struct dpt_inputs *inputs, const char *path, const char *endings,
                                  bool val, int depth, struct dpt_err *err)
{
    char **names, below[PATH_MAX];
    size_t n;
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
            status = add_below(inputs, below, endings, val, depth, err);
    }
    dpt_fs_list_free(&names, n);
    return status;
}

enum dpt_status dpt_inputs_add(struct dpt_inputs *inputs, const char *path, const char *endings,
                               bool val, struct dpt_err *err)
{
    struct stat st;
    if (stat(path, &st) != 0)
        return dpt_fail_errno(err, errno, "look at '%s'", path);
    if (S_ISDIR(st.st_mode))
        return add_folder(inputs, path, endings, val, 0, err);
    if (!S_ISREG(st.st_mode))
        return dpt_fail(err, DPT_EINVAL, "'%s' is neither a file nor a folder", path);
    return add_file(inputs, path, &st, val, err);
}

void dpt_inputs_hash(const struct dpt_inputs *inputs, bool times, char ret_hex[DPT_HASH_HEX_BYTES])
{
    struct dpt_hash128 h = {0, 0};
    for (int i = 0; i < inputs->n; i++) {
        const struct dpt_input *f = &inputs->files[i];
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
        dpt_writer_u8(&writer, f->jsonl);
        dpt_writer_u8(&writer, f->val);
        h = dpt_hash128(joined, writer.at);
    }
    dpt_hash128_hex(h, ret_hex);
}

enum dpt_status dpt_input_open(const struct dpt_input *input, int *ret_fd, struct dpt_err *err)
{
    struct stat st;
    int fd = open(input->path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0)
        return dpt_fail_errno(err, errno, "open '%s'", input->path);
    if (fstat(fd, &st) != 0 || st.st_size != input->bytes ||
        st.st_mtim.tv_sec != input->changed_s || st.st_mtim.tv_nsec != input->changed_ns) {
        (void)close(fd); /* opened for reading */
        return dpt_fail(err, DPT_ECORRUPT,
                        "'%s' was changed while it is encoded; start again with a new --out",
                        input->path);
    }
    *ret_fd = fd;
    return DPT_OK;
}
