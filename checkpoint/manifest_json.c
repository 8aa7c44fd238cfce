/* Prints and parses manifests and reports as sealed JSON (manifest.h). */
#include "checkpoint/manifest.h"

#include "base/fs.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/names.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEAL_BEFORE "\"crc32c\": \""
#define SEAL_ZEROS  "00000000"
#define SEAL_AFTER  "\"\n}\n"

enum { CRC_DIGITS = 8, SEAL_TAIL = CRC_DIGITS + sizeof SEAL_AFTER - 1, HASH_DIGITS = 32 };

/* The checksums as one string, CRC_DIGITS hex digits a block. */
static json_t *print_crc(const struct dpt_manifest_file *file)
{
    const size_t n = (size_t)file->n_crc;
    char *hex = malloc(n * CRC_DIGITS + 1);
    if (!hex)
        return NULL;
    for (size_t i = 0; i < n; i++)
        (void)snprintf(hex + i * CRC_DIGITS, CRC_DIGITS + 1, "%08x", file->crc[i]);
    json_t *text = json_stringn(hex, n * CRC_DIGITS);
    free(hex);
    return text;
}

/* CRC_DIGITS lower-case hex digits; false for anything else. */
static bool parse_crc(const char *hex, uint32_t *ret)
{
    char digits[CRC_DIGITS + 1] = "";
    memcpy(digits, hex, CRC_DIGITS);
    if (strspn(digits, "0123456789abcdef") != CRC_DIGITS)
        return false;
    *ret = (uint32_t)strtoul(digits, NULL, 16);
    return true;
}

static json_t *print_files(const struct dpt_manifest *manifest)
{
    json_t *files = json_array();
    for (int i = 0; files && i < manifest->n_files; i++) {
        const struct dpt_manifest_file *file = &manifest->files[i];
        json_t *entry = json_pack("{s:s, s:I, s:o}", "name", file->name, "bytes",
                                  (json_int_t)file->bytes, "crc32c", print_crc(file));
        /* A manifest lists whole files, so `first` is left out. */
        if (!entry ||
            (manifest->writer >= 0 &&
             json_object_set_new(entry, "first", json_integer(file->first)) != 0) ||
            json_array_append_new(files, entry) != 0) {
            json_decref(files);
            return NULL;
        }
    }
    return files;
}

static json_t *print_hashes(const struct dpt_manifest *manifest)
{
    json_t *runs = json_array();
    for (int i = 0; runs && i < manifest->n_hashes; i++) {
        const struct dpt_manifest_hashes *run = &manifest->hashes[i];
        char *hex = malloc((size_t)run->n * HASH_DIGITS + 1);
        for (int64_t k = 0; hex && k < run->n; k++)
            dpt_hash128_hex(run->hash[k], hex + k * HASH_DIGITS);
        json_t *entry = hex ? json_pack("{s:I, s:s#}", "first", (json_int_t)run->first, "xxh3", hex,
                                        (int)(run->n * HASH_DIGITS))
                            : NULL;
        free(hex);
        if (!entry || json_array_append_new(runs, entry) != 0) {
            json_decref(runs);
            return NULL;
        }
    }
    return runs;
}

/* The seal is the last member, and all its digits are zeros. */
static json_t *print_root(const struct dpt_manifest *manifest)
{
    const bool is_part = manifest->writer >= 0;
    json_t *files = print_files(manifest), *hashes = is_part ? print_hashes(manifest) : NULL;
    if (!files || (is_part && !hashes)) {
        json_decref(files);
        json_decref(hashes);
        return NULL;
    }
    return json_pack("{s:s, s:i, s:I, s:i, s:i, s:i, s:o, s:o*, s:s*, s:s}", "format",
                     "dpt-checkpoint", "version", (int)DPT_CHECKPOINT_VERSION, "step",
                     (json_int_t)manifest->step, "writer", manifest->writer, "writers",
                     manifest->n_writers, "block_bytes", (int)DPT_CHECKPOINT_BLOCK_BYTES, "files",
                     files, "hashes", hashes, "not_finite",
                     manifest->not_finite[0] ? manifest->not_finite : NULL, "crc32c", SEAL_ZEROS);
}

enum dpt_status dpt_manifest_print(const struct dpt_manifest *manifest, char **ret_text,
                                   size_t *ret_bytes, struct dpt_err *err)
{
    json_t *root = print_root(manifest);
    char *text = root ? json_dumps(root, JSON_INDENT(1)) : NULL;
    json_decref(root);
    size_t bytes = text ? strlen(text) : 0;
    char *line = text ? realloc(text, bytes + 2) : NULL;
    if (!line) {
        free(text);
        return dpt_fail_nomem(err, "list of checkpoint files");
    }
    line[bytes++] = '\n';
    line[bytes] = '\0';
    char *seal = line + bytes - SEAL_TAIL;
    DPT_ASSERT(memcmp(seal, SEAL_ZEROS SEAL_AFTER, SEAL_TAIL) == 0);
    char hex[CRC_DIGITS + 1];
    (void)snprintf(hex, sizeof hex, "%08x", dpt_crc32c(0, line, bytes));
    memcpy(seal, hex, CRC_DIGITS);
    *ret_text = line;
    *ret_bytes = bytes;
    return DPT_OK;
}

/* True if the text ends with its own checksum. */
static bool seal_holds(const char *text, size_t bytes)
{
    const size_t before = sizeof SEAL_BEFORE - 1;
    if (bytes < SEAL_TAIL + before)
        return false;
    const char *seal = text + bytes - SEAL_TAIL;
    uint32_t expected;
    if (memcmp(seal - before, SEAL_BEFORE, before) != 0 ||
        memcmp(seal + CRC_DIGITS, SEAL_AFTER, sizeof SEAL_AFTER - 1) != 0 ||
        !parse_crc(seal, &expected))
        return false;
    uint32_t crc = dpt_crc32c(0, text, bytes - SEAL_TAIL);
    return dpt_crc32c(crc, SEAL_ZEROS SEAL_AFTER, SEAL_TAIL) == expected;
}

/* The number of blocks that bytes [first, first + bytes) touch. */
static int64_t blocks_of(int64_t first, int64_t bytes)
{
    const int64_t last = first + bytes - 1;
    return bytes == 0 ? 0
                      : last / DPT_CHECKPOINT_BLOCK_BYTES - first / DPT_CHECKPOINT_BLOCK_BYTES + 1;
}

static enum dpt_status parse_crcs(const char *hex, const char *what, struct dpt_manifest_file *file,
                                  struct dpt_err *err)
{
    file->crc = malloc((size_t)(file->n_crc ? file->n_crc : 1) * sizeof *file->crc);
    if (!file->crc)
        return dpt_fail_nomem(err, "'%s'", what);
    file->crc_room = (size_t)file->n_crc;
    for (int64_t i = 0; i < file->n_crc; i++)
        if (!parse_crc(hex + i * CRC_DIGITS, &file->crc[i]))
            return dpt_fail(err, DPT_ECORRUPT, "'%s': '%s': a checksum is no hex number", what,
                            file->name);
    return DPT_OK;
}

static enum dpt_status parse_file(json_t *entry, const char *what, struct dpt_manifest *manifest,
                                  struct dpt_err *err)
{
    const char *name, *hex;
    json_int_t first = 0, bytes;
    size_t hex_n;
    json_error_t why;
    if (json_unpack_ex(entry, &why, 0, "{s:s, s?I, s:I, s:s%}", "name", &name, "first", &first,
                       "bytes", &bytes, "crc32c", &hex, &hex_n) != 0)
        return dpt_fail(err, DPT_ECORRUPT, "'%s': a file's entry: %s", what, why.text);
    if (!dpt_name_is_listable(name) ||
        (manifest->writer < 0 && (first != 0 || dpt_manifest_find(manifest, name))))
        return dpt_fail(err, DPT_ECORRUPT, "'%s': file name '%.100s' is not allowed or given twice",
                        what, name);
    if (first < 0 || bytes < 0 || bytes > INT64_MAX - first || hex_n % CRC_DIGITS != 0 ||
        (int64_t)(hex_n / CRC_DIGITS) != blocks_of(first, bytes))
        return dpt_fail(err, DPT_ECORRUPT,
                        "'%s': '%s': %lld bytes at %lld do not fit %zu checksum digits", what, name,
                        (long long)bytes, (long long)first, hex_n);
    struct dpt_manifest_file *file = NULL;
    DPT_TRY(dpt_manifest_add(manifest, name, first, &file, err));
    DPT_ASSERT(file);
    file->bytes = bytes;
    file->n_crc = (int64_t)(hex_n / CRC_DIGITS);
    return parse_crcs(hex, what, file, err);
}

/* HASH_DIGITS hex digits; false for anything else. */
static bool parse_hash(const char *hex, struct dpt_hash128 *ret)
{
    uint32_t word[4];
    for (int i = 0; i < 4; i++)
        if (!parse_crc(hex + CRC_DIGITS * i, &word[i]))
            return false;
    *ret = (struct dpt_hash128){.hi = (uint64_t)word[0] << 32 | word[1],
                                .lo = (uint64_t)word[2] << 32 | word[3]};
    return true;
}

static enum dpt_status parse_hashes(json_t *runs, const char *what, struct dpt_manifest *manifest,
                                    struct dpt_err *err)
{
    int64_t total = 0;
    for (size_t i = 0; i < json_array_size(runs); i++) {
        json_int_t first;
        const char *hex;
        size_t hex_n;
        json_error_t why;
        if (json_unpack_ex(json_array_get(runs, i), &why, 0, "{s:I, s:s%}", "first", &first, "xxh3",
                           &hex, &hex_n) != 0)
            return dpt_fail(err, DPT_ECORRUPT, "'%s': hashes: %s", what, why.text);
        const int64_t n = (int64_t)(hex_n / HASH_DIGITS);
        total += n;
        if (first < 0 || first > INT64_MAX - n || hex_n % HASH_DIGITS != 0 ||
            total > DPT_MANIFEST_HASHES_MAX)
            return dpt_fail(err, DPT_ECORRUPT, "'%s': %zu hash digits from block %lld", what, hex_n,
                            (long long)first);
        for (int64_t k = 0; k < n; k++) {
            struct dpt_hash128 hash;
            if (!parse_hash(hex + k * HASH_DIGITS, &hash))
                return dpt_fail(err, DPT_ECORRUPT, "'%s': a hash is no hex number", what);
            DPT_TRY(dpt_manifest_add_hash(manifest, first + k, hash, err));
        }
    }
    return DPT_OK;
}

static enum dpt_status parse_root(json_t *root, const char *what, struct dpt_manifest *manifest,
                                  struct dpt_err *err)
{
    const char *format;
    int version, block_bytes;
    json_int_t step;
    json_t *files, *hashes = NULL;
    const char *not_finite = NULL;
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
    if (json_unpack_ex(root, &why, 0, "{s:I, s:i, s:i, s:i, s:o, s?o, s?s}", "step", &step,
                       "writer", &manifest->writer, "writers", &manifest->n_writers, "block_bytes",
                       &block_bytes, "files", &files, "hashes", &hashes, "not_finite",
                       &not_finite) != 0)
        return dpt_fail(err, DPT_ECORRUPT, "'%s': %s", what, why.text);
    const bool is_part = manifest->writer >= 0;
    if (step < 0 || block_bytes != DPT_CHECKPOINT_BLOCK_BYTES || !json_is_array(files) ||
        json_array_size(files) >
            (size_t)(is_part ? DPT_MANIFEST_RUNS_MAX : DPT_MANIFEST_FILES_MAX) ||
        (hashes && (!is_part || !json_is_array(hashes))))
        return dpt_fail(err, DPT_ECORRUPT,
                        "'%s': step, block_bytes, files or hashes is out of range", what);
    manifest->step = step;
    (void)snprintf(manifest->not_finite, sizeof manifest->not_finite, "%s",
                   is_part && not_finite ? not_finite : "");
    for (size_t i = 0; i < json_array_size(files); i++)
        DPT_TRY(parse_file(json_array_get(files, i), what, manifest, err));
    return hashes ? parse_hashes(hashes, what, manifest, err) : DPT_OK;
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

enum dpt_status dpt_manifest_read(const struct dpt_folder *folder, const char *name,
                                  struct dpt_manifest *ret, struct dpt_err *err)
{
    char *text, path[PATH_MAX];
    size_t bytes;
    DPT_TRY(dpt_io_read_small(folder, name, DPT_MANIFEST_BYTES_MAX, &text, &bytes, err));
    enum dpt_status status = dpt_fs_join(folder->path, name, path, sizeof path, err);
    if (status == DPT_OK)
        status = dpt_manifest_parse(text, bytes, path, ret, err);
    free(text);
    return status;
}
