/* Sealed lists of files (manifest.h). */
#include "checkpoint/manifest.h"

#include "base/hash.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/names.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEAL_BEFORE "\"crc32c\": \""
#define SEAL_ZEROS  "00000000"
#define SEAL_AFTER  "\"\n}\n"

enum { SEAL_DIGITS = 8, SEAL_TAIL = SEAL_DIGITS + sizeof SEAL_AFTER - 1 };

static void file_fini(struct dpt_manifest_file *file)
{
    free(file->name);
    free(file->crc);
    *file = (struct dpt_manifest_file){0};
}

void dpt_manifest_fini(struct dpt_manifest *manifest)
{
    for (int i = 0; i < manifest->n_files; i++)
        file_fini(&manifest->files[i]);
    free(manifest->files);
    *manifest = (struct dpt_manifest){0};
}

enum dpt_status dpt_manifest_add(struct dpt_manifest *manifest, const char *name,
                                 struct dpt_manifest_file **ret, struct dpt_err *err)
{
    if (manifest->n_files == DPT_MANIFEST_FILES_MAX)
        return dpt_fail(err, DPT_EOVERFLOW, "more than %d files in a checkpoint",
                        DPT_MANIFEST_FILES_MAX);
    if (manifest->n_files == manifest->files_room) {
        int room = manifest->files_room ? manifest->files_room * 2 : 16;
        struct dpt_manifest_file *more =
            realloc(manifest->files, (size_t)room * sizeof *manifest->files);
        if (!more)
            return dpt_fail(err, DPT_ENOMEM, "list of checkpoint files: out of memory");
        manifest->files = more;
        manifest->files_room = room;
    }
    char *copy = strdup(name);
    if (!copy)
        return dpt_fail(err, DPT_ENOMEM, "list of checkpoint files: out of memory");
    struct dpt_manifest_file *file = &manifest->files[manifest->n_files++];
    *file = (struct dpt_manifest_file){.name = copy};
    *ret = file;
    return DPT_OK;
}

static enum dpt_status reserve_blocks(struct dpt_manifest_file *file, int64_t n,
                                      struct dpt_err *err)
{
    if (n <= file->crc_room)
        return DPT_OK;
    int64_t room = file->crc_room * 2 > n ? file->crc_room * 2 : n;
    uint32_t *more = realloc(file->crc, (size_t)room * sizeof *more);
    if (!more)
        return dpt_fail(err, DPT_ENOMEM, "checksums of '%s': out of memory", file->name);
    file->crc = more;
    file->crc_room = room;
    return DPT_OK;
}

enum dpt_status dpt_manifest_add_block(struct dpt_manifest_file *file, const void *data,
                                       size_t bytes, struct dpt_err *err)
{
    DPT_ASSERT(bytes > 0 && bytes <= DPT_CHECKPOINT_BLOCK_BYTES &&
               file->bytes == file->n_crc * DPT_CHECKPOINT_BLOCK_BYTES);
    DPT_TRY(reserve_blocks(file, file->n_crc + 1, err));
    file->crc[file->n_crc++] = dpt_crc32c(0, data, bytes);
    file->bytes += (int64_t)bytes;
    return DPT_OK;
}

const struct dpt_manifest_file *dpt_manifest_find(const struct dpt_manifest *manifest,
                                                  const char *name)
{
    for (int i = 0; i < manifest->n_files; i++)
        if (strcmp(manifest->files[i].name, name) == 0)
            return &manifest->files[i];
    return NULL;
}

enum dpt_status dpt_manifest_take(struct dpt_manifest *manifest, struct dpt_manifest *part,
                                  struct dpt_err *err)
{
    for (int i = 0; i < part->n_files; i++) {
        struct dpt_manifest_file *from = &part->files[i], *to = NULL;
        if (dpt_manifest_find(manifest, from->name))
            return dpt_fail(err, DPT_ECORRUPT, "two writers report the file '%s'", from->name);
        DPT_TRY(dpt_manifest_add(manifest, from->name, &to, err));
        DPT_ASSERT(to);
        file_fini(to);
        *to = *from;
        *from = (struct dpt_manifest_file){0};
    }
    dpt_manifest_fini(part);
    return DPT_OK;
}

/* The checksums as one string of eight hex digits a block. */
static json_t *print_crc(const struct dpt_manifest_file *file)
{
    static const char digits[] = "0123456789abcdef";
    size_t n = (size_t)file->n_crc;
    char *hex = malloc(n * 8 + 1);
    if (!hex)
        return NULL;
    for (size_t i = 0; i < n; i++)
        for (int d = 0; d < 8; d++)
            hex[i * 8 + (size_t)d] = digits[(file->crc[i] >> (28 - 4 * d)) & 15];
    json_t *text = json_stringn(hex, n * 8);
    free(hex);
    return text;
}

static int hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Eight hex digits; false for anything else. */
static bool parse_crc(const char *hex, uint32_t *ret)
{
    uint32_t value = 0;
    for (int d = 0; d < 8; d++) {
        int digit = hex_value(hex[d]);
        if (digit < 0)
            return false;
        value = value << 4 | (uint32_t)digit;
    }
    *ret = value;
    return true;
}

static json_t *print_files(const struct dpt_manifest *manifest)
{
    json_t *files = json_array();
    for (int i = 0; files && i < manifest->n_files; i++) {
        const struct dpt_manifest_file *file = &manifest->files[i];
        json_t *crc = print_crc(file);
        json_t *entry = crc ? json_pack("{s:s, s:I, s:o}", "name", file->name, "bytes",
                                        (json_int_t)file->bytes, "crc32c", crc)
                            : NULL;
        if (!entry || json_array_append_new(files, entry) != 0) {
            json_decref(files);
            return NULL;
        }
    }
    return files;
}

enum dpt_status dpt_manifest_print(const struct dpt_manifest *manifest, char **ret_text,
                                   size_t *ret_bytes, struct dpt_err *err)
{
    json_t *files = print_files(manifest);
    json_t *root =
        files
            ? json_pack("{s:s, s:i, s:I, s:i, s:i, s:i, s:o, s:s}", "format", "dpt-checkpoint",
                        "version", (int)DPT_CHECKPOINT_VERSION, "step", (json_int_t)manifest->step,
                        "writer", manifest->writer, "writers", manifest->n_writers, "block_bytes",
                        (int)DPT_CHECKPOINT_BLOCK_BYTES, "files", files, "crc32c", SEAL_ZEROS)
            : NULL;
    char *text = root ? json_dumps(root, JSON_INDENT(1)) : NULL;
    json_decref(root);
    size_t bytes = text ? strlen(text) : 0;
    char *line = text ? realloc(text, bytes + 2) : NULL;
    if (!line) {
        free(text);
        return dpt_fail(err, DPT_ENOMEM, "list of checkpoint files: out of memory");
    }
    line[bytes++] = '\n';
    line[bytes] = '\0';
    char *seal = line + bytes - SEAL_TAIL;
    DPT_ASSERT(memcmp(seal, SEAL_ZEROS SEAL_AFTER, SEAL_TAIL) == 0);
    char hex[SEAL_DIGITS + 1];
    (void)snprintf(hex, sizeof hex, "%08x", dpt_crc32c(0, line, bytes));
    memcpy(seal, hex, SEAL_DIGITS);
    *ret_text = line;
    *ret_bytes = bytes;
    return DPT_OK;
}

/* True if the text ends in the checksum of itself. */
static bool seal_holds(const char *text, size_t bytes)
{
    const size_t before = sizeof SEAL_BEFORE - 1;
    if (bytes < SEAL_TAIL + before)
        return false;
    const char *seal = text + bytes - SEAL_TAIL;
    uint32_t expected;
    if (memcmp(seal - before, SEAL_BEFORE, before) != 0 ||
        memcmp(seal + SEAL_DIGITS, SEAL_AFTER, sizeof SEAL_AFTER - 1) != 0 ||
        !parse_crc(seal, &expected))
        return false;
    uint32_t crc = dpt_crc32c(0, text, bytes - SEAL_TAIL);
    return dpt_crc32c(crc, SEAL_ZEROS SEAL_AFTER, SEAL_TAIL) == expected;
}

static enum dpt_status parse_file(json_t *entry, const char *what, struct dpt_manifest *manifest,
                                  struct dpt_err *err)
{
    const char *name, *hex;
    json_int_t bytes;
    size_t hex_n;
    json_error_t why;
    if (json_unpack_ex(entry, &why, 0, "{s:s, s:I, s:s%}", "name", &name, "bytes", &bytes, "crc32c",
                       &hex, &hex_n) != 0)
        return dpt_fail(err, DPT_ECORRUPT, "'%s': a file's entry: %s", what, why.text);
    if (!dpt_name_is_listable(name) || dpt_manifest_find(manifest, name))
        return dpt_fail(err, DPT_ECORRUPT, "'%s': file name '%.100s' is not allowed or given twice",
                        what, name);
    const int64_t blocks =
        bytes / DPT_CHECKPOINT_BLOCK_BYTES + (bytes % DPT_CHECKPOINT_BLOCK_BYTES != 0);
    if (bytes < 0 || hex_n % 8 != 0 || (int64_t)(hex_n / 8) != blocks)
        return dpt_fail(err, DPT_ECORRUPT, "'%s': '%s': %lld bytes do not fit %zu checksum digits",
                        what, name, (long long)bytes, hex_n);
    struct dpt_manifest_file *file = NULL;
    DPT_TRY(dpt_manifest_add(manifest, name, &file, err));
    DPT_ASSERT(file);
    DPT_TRY(reserve_blocks(file, blocks, err));
    for (int64_t i = 0; i < blocks; i++)
        if (!parse_crc(hex + i * 8, &file->crc[i]))
            return dpt_fail(err, DPT_ECORRUPT, "'%s': '%s': a checksum is no hex number", what,
                            name);
    file->n_crc = blocks;
    file->bytes = bytes;
    return DPT_OK;
}

static enum dpt_status parse_root(json_t *root, const char *what, struct dpt_manifest *manifest,
                                  struct dpt_err *err)
{
    const char *format;
    int version, block_bytes;
    json_int_t step;
    json_t *files;
    json_error_t why;
    if (json_unpack_ex(root, &why, 0, "{s:s, s:i}", "format", &format, "version", &version) != 0)
        return dpt_fail(err, DPT_ECORRUPT, "'%s': %s", what, why.text);
    if (strcmp(format, "dpt-checkpoint") != 0)
        return dpt_fail(err, DPT_ECORRUPT, "'%s': format '%.40s' is not dpt-checkpoint", what,
                        format);
    if (version != DPT_CHECKPOINT_VERSION)
        return dpt_fail(err, DPT_EVERSION,
                        "'%s' has version %d, this program reads version %d: use the program that "
                        "wrote it",
                        what, version, DPT_CHECKPOINT_VERSION);
    if (json_unpack_ex(root, &why, 0, "{s:I, s:i, s:i, s:i, s:o}", "step", &step, "writer",
                       &manifest->writer, "writers", &manifest->n_writers, "block_bytes",
                       &block_bytes, "files", &files) != 0)
        return dpt_fail(err, DPT_ECORRUPT, "'%s': %s", what, why.text);
    if (step < 0 || block_bytes != DPT_CHECKPOINT_BLOCK_BYTES || !json_is_array(files) ||
        json_array_size(files) > DPT_MANIFEST_FILES_MAX)
        return dpt_fail(err, DPT_ECORRUPT, "'%s': step, block_bytes or files is out of range",
                        what);
    manifest->step = step;
    for (size_t i = 0; i < json_array_size(files); i++)
        DPT_TRY(parse_file(json_array_get(files, i), what, manifest, err));
    return DPT_OK;
}

enum dpt_status dpt_manifest_parse(const char *text, size_t bytes, const char *what,
                                   struct dpt_manifest *ret, struct dpt_err *err)
{
    if (!seal_holds(text, bytes))
        return dpt_fail(err, DPT_ECORRUPT, "'%s' is damaged: it does not match its own checksum",
                        what);
    json_error_t why;
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &why);
    if (!root)
        return dpt_fail(err, DPT_ECORRUPT, "'%s': line %d: %s", what, why.line, why.text);
    struct dpt_manifest manifest = {0};
    enum dpt_status status = parse_root(root, what, &manifest, err);
    json_decref(root);
    if (status != DPT_OK)
        dpt_manifest_fini(&manifest);
    else
        *ret = manifest;
    return status;
}
