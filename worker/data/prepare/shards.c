/* Growing shards and full shards, and how an encode resumes them. */
#include "worker/data/prepare/shards.h"

#include "base/cursor.h"
#include "base/fs.h"
#include "worker/data/data_source.h"
#include "worker/data/prepare/disk.h"
#include "worker/data/prepare/encode_state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TOKEN_BYTES_MAX = 4, CHUNK_TOKENS = 16 << 10, READ_BYTES = 1 << 20 };

#define PART ".part"
#define FULL ""

/* DIR/NAME.bin and `ending`: PART or FULL. */
static enum dpt_status shard_path(const struct dpt_shards *shards,
                                  const struct dpt_shard_list *list, int index, const char *ending,
                                  char ret[PATH_MAX], struct dpt_err *err)
{
    char name[DPT_SHARD_NAME_BYTES], whole[DPT_SHARD_NAME_BYTES + sizeof PART];
    dpt_shard_list_name(list, index, name);
    (void)snprintf(whole, sizeof whole, "%s%s", name, ending);
    return dpt_fs_join(shards->dir, whole, ret, PATH_MAX, err);
}

enum dpt_status dpt_shards_open(struct dpt_shards *shards, const char *dir, int64_t shard_tokens,
                                int token_bytes, struct dpt_err *err)
{
    *shards =
        (struct dpt_shards){.dir_fd = -1, .shard_tokens = shard_tokens, .token_bytes = token_bytes};
    for (int s = 0; s < DPT_SPLIT_COUNT; s++)
        shards->list[s] = (struct dpt_shard_list){.split = dpt_split_names[s], .fd = -1};
    const int n = snprintf(shards->dir, sizeof shards->dir, "%s", dir);
    if (n <= 0 || (size_t)n >= sizeof shards->dir - 64)
        return dpt_fail(err, DPT_EINVAL, "--out: the path is empty or too long");
    DPT_TRY(dpt_disk_mkdirs(dir, err));
    shards->dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (shards->dir_fd < 0)
        return dpt_fail_errno(err, errno, "open folder '%s'", dir);
    if (flock(shards->dir_fd, LOCK_EX | LOCK_NB) != 0) {
        const int saved_errno = errno;
        dpt_shards_close(shards);
        return saved_errno == EWOULDBLOCK
                   ? dpt_fail(err, DPT_EREFUSED, "another dpt-data writes to '%s'; wait for it",
                              dir)
                   : dpt_fail_errno(err, saved_errno, "lock folder '%s'", dir);
    }
    return DPT_OK;
}

void dpt_shards_close(struct dpt_shards *shards)
{
    for (int s = 0; s < DPT_SPLIT_COUNT; s++)
        dpt_shard_list_fini(&shards->list[s]);
    if (shards->dir_fd >= 0)
        (void)close(shards->dir_fd); /* opened for reading */
    shards->dir_fd = -1;
}

/* ---------------------------------------------------------------- growing */

/* Bytes of a shard's file with `tokens` tokens. */
static int64_t bytes_before(const struct dpt_shards *shards, int64_t tokens)
{
    return DPT_SHARD_HEADER_BYTES + tokens * shards->token_bytes;
}

/* Appends to the growing shard of `list`. */
static enum dpt_status write_tokens(const struct dpt_shards *shards,
                                    const struct dpt_shard_list *list, const char *path,
                                    const uint32_t *ids, size_t n, struct dpt_err *err)
{
    uint8_t bytes[CHUNK_TOKENS * TOKEN_BYTES_MAX];
    for (size_t done = 0; done < n;) {
        const size_t count = n - done < CHUNK_TOKENS ? n - done : CHUNK_TOKENS;
        struct dpt_writer writer;
        dpt_writer_init(&writer, bytes, sizeof bytes);
        for (size_t i = done; i < done + count; i++)
            dpt_writer_uint(&writer, ids[i], (size_t)shards->token_bytes);
        DPT_TRY(dpt_disk_write(list->fd, bytes, writer.at,
                               bytes_before(shards, list->current + (int64_t)done), path, err));
        done += count;
    }
    return DPT_OK;
}

static enum dpt_status checksum_of(int fd, const char *path, int64_t bytes,
                                   char ret_hex[DPT_SHA256_HEX_BYTES], struct dpt_err *err)
{
    struct dpt_sha256 sha;
    uint8_t *block = malloc(READ_BYTES);
    enum dpt_status status = block ? DPT_OK : dpt_fail_nomem(err, "checksum");
    dpt_sha256_init(&sha);
    for (int64_t at = 0; status == DPT_OK && at < bytes; at += READ_BYTES) {
        const size_t n = bytes - at < READ_BYTES ? (size_t)(bytes - at) : READ_BYTES;
        status = dpt_fs_pread_all(fd, block, n, at, path, err);
        if (status == DPT_OK)
            dpt_sha256_add(&sha, block, n);
    }
    free(block);
    if (status == DPT_OK)
        dpt_sha256_hex(&sha, ret_hex);
    return status;
}

/* The growing shard is full: writes its header, makes it durable and takes its checksum. It keeps
 * the name of a part until the state is saved. */
static enum dpt_status end_shard(struct dpt_shards *shards, struct dpt_shard_list *list,
                                 struct dpt_err *err)
{
    uint8_t header[DPT_SHARD_HEADER_BYTES] = {0};
    char path[PATH_MAX];
    struct dpt_writer writer;
    DPT_TRY(shard_path(shards, list, list->full, PART, path, err));
    DPT_TRY(dpt_shard_list_reserve(list, list->full + 1, err));
    struct dpt_full_shard *full = &list->shards[list->full];
    dpt_writer_init(&writer, header, sizeof header);
    const bool narrow = shards->token_bytes == 2;
    dpt_writer_u32(&writer, narrow ? DPT_SHARD_MAGIC_GPT2 : DPT_SHARD_MAGIC_LLAMA3);
    dpt_writer_u32(&writer, narrow ? DPT_SHARD_VERSION_GPT2 : DPT_SHARD_VERSION_LLAMA3);
    dpt_writer_u32(&writer, (uint32_t)list->current);
    DPT_TRY(dpt_disk_write(list->fd, header, sizeof header, 0, path, err));
    DPT_TRY(dpt_disk_sync(list->fd, path, err));
    DPT_TRY(checksum_of(list->fd, path, bytes_before(shards, list->current), full->sha256, err));
    const int fd = list->fd;
    list->fd = -1;
    if (close(fd) != 0)
        return dpt_fail_errno(err, errno, "close '%s'", path);
    full->tokens = list->current;
    list->full++;
    list->current = 0;
    return DPT_OK;
}

enum dpt_status dpt_shards_append(struct dpt_shards *shards, enum dpt_split split,
                                  const uint32_t *ids, size_t n, struct dpt_err *err)
{
    struct dpt_shard_list *list = &shards->list[split];
    for (size_t done = 0; done < n;) {
        char path[PATH_MAX];
        const int64_t left = (int64_t)(n - done), room = shards->shard_tokens - list->current;
        const size_t count = (size_t)(left < room ? left : room);
        DPT_TRY(shard_path(shards, list, list->full, PART, path, err));
        if (list->fd < 0)
            DPT_TRY(dpt_disk_create(path, &list->fd, err));
        DPT_TRY(write_tokens(shards, list, path, ids + done, count, err));
        list->current += (int64_t)count;
        list->tokens += (int64_t)count;
        done += count;
        if (list->current == shards->shard_tokens)
            DPT_TRY(end_shard(shards, list, err));
    }
    return DPT_OK;
}

/* ---------------------------------------------------------------- saving */

bool dpt_shards_want_save(const struct dpt_shards *shards)
{
    for (int s = 0; s < DPT_SPLIT_COUNT; s++)
        if (shards->list[s].renamed < shards->list[s].full)
            return true;
    return false;
}

static enum dpt_status rename_full_shards(struct dpt_shards *shards, struct dpt_shard_list *list,
                                          struct dpt_err *err)
{
    for (; list->renamed < list->full; list->renamed++) {
        char part[PATH_MAX], whole[PATH_MAX];
        DPT_TRY(shard_path(shards, list, list->renamed, PART, part, err));
        DPT_TRY(shard_path(shards, list, list->renamed, FULL, whole, err));
        DPT_TRY(dpt_disk_rename(part, whole, err));
    }
    return DPT_OK;
}

enum dpt_status dpt_shards_save(struct dpt_shards *shards, struct dpt_err *err)
{
    for (int s = 0; s < DPT_SPLIT_COUNT; s++)
        if (shards->list[s].fd >= 0)
            DPT_TRY(dpt_disk_sync(shards->list[s].fd, shards->dir, err));
    DPT_TRY(dpt_disk_sync(shards->dir_fd, shards->dir, err)); /* the parts' names become durable */
    DPT_TRY(dpt_encode_state_write(shards, err));
    if (!dpt_shards_want_save(shards))
        return DPT_OK;
    for (int s = 0; s < DPT_SPLIT_COUNT; s++)
        DPT_TRY(rename_full_shards(shards, &shards->list[s], err));
    return dpt_disk_sync(shards->dir_fd, shards->dir, err);
}

enum dpt_status dpt_shards_finish(struct dpt_shards *shards, struct dpt_err *err)
{
    for (int s = 0; s < DPT_SPLIT_COUNT; s++)
        if (shards->list[s].current > 0)
            DPT_TRY(end_shard(shards, &shards->list[s], err));
    DPT_TRY(dpt_shards_save(shards, err));
    DPT_TRY(dpt_encode_state_write_sums(shards, err));
    DPT_TRY(dpt_encode_state_write_record(shards, err));
    return dpt_encode_state_remove(shards, err);
}

/* ---------------------------------------------------------------- resuming */

/* Checks that a full shard is there; renames it if it still has the name of a part. */
static enum dpt_status check_full_shard(const struct dpt_shards *shards,
                                        const struct dpt_shard_list *list, int index,
                                        struct dpt_err *err)
{
    struct stat st;
    char part[PATH_MAX], whole[PATH_MAX];
    const int64_t bytes = bytes_before(shards, list->shards[index].tokens);
    DPT_TRY(shard_path(shards, list, index, PART, part, err));
    DPT_TRY(shard_path(shards, list, index, FULL, whole, err));
    if (stat(whole, &st) != 0 && errno == ENOENT && stat(part, &st) == 0)
        DPT_TRY(dpt_disk_rename(part, whole, err));
    if (stat(whole, &st) != 0 || st.st_size != bytes)
        return dpt_fail(err, DPT_ECORRUPT,
                        "'%s' is not the file of %lld bytes that was written; remove '%s' and "
                        "start again",
                        whole, (long long)bytes, shards->dir);
    return DPT_OK;
}

static enum dpt_status check_full_shards(struct dpt_shards *shards, struct dpt_err *err)
{
    for (int s = 0; s < DPT_SPLIT_COUNT; s++) {
        struct dpt_shard_list *list = &shards->list[s];
        for (int i = 0; i < list->full; i++)
            DPT_TRY(check_full_shard(shards, list, i, err));
        list->renamed = list->full;
    }
    return DPT_OK;
}

/* Opens the growing part and truncates it to the length in the state; removes the parts after it.
 */
static enum dpt_status reopen_part(struct dpt_shards *shards, struct dpt_shard_list *list,
                                   struct dpt_err *err)
{
    const int64_t bytes = bytes_before(shards, list->current);
    char path[PATH_MAX];
    struct stat st;
    for (int i = list->full + (list->current > 0); i <= DPT_PREPARED_SHARDS_MAX; i++) {
        DPT_TRY(shard_path(shards, list, i, PART, path, err));
        if (lstat(path, &st) != 0)
            break;
        DPT_TRY(dpt_disk_remove(path, err));
    }
    if (list->current == 0)
        return DPT_OK;
    DPT_TRY(shard_path(shards, list, list->full, PART, path, err));
    list->fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (list->fd < 0 || fstat(list->fd, &st) != 0 || st.st_size < bytes)
        return dpt_fail(err, DPT_ECORRUPT,
                        "'%s' is not the file that was written; remove '%s' and start again", path,
                        shards->dir);
    return dpt_disk_truncate(list->fd, bytes, path, err);
}

/* Refuses shards in a folder without state or record: another program made them. Removes parts,
 * which are left of an encode that died before its first save. */
static enum dpt_status refuse_foreign_shards(struct dpt_shards *shards, struct dpt_err *err)
{
    char path[PATH_MAX];
    for (int s = 0; s < DPT_SPLIT_COUNT; s++) {
        DPT_TRY(shard_path(shards, &shards->list[s], 0, FULL, path, err));
        if (dpt_fs_exists(path))
            return dpt_fail(err, DPT_EREFUSED,
                            "'%s' is there and no " DPT_RECORD_NAME " beside it says what it was "
                            "made from; name an empty folder",
                            path);
        DPT_TRY(reopen_part(shards, &shards->list[s], err));
    }
    return DPT_OK;
}

/* Whether this is a file that dpt_fs_write_file_atomic left in a process that died during the
 * call. */
static bool is_temporary(const char *name)
{
    static const char *const files[] = {DPT_STATE_NAME, DPT_RECORD_NAME, DPT_SUMS_NAME};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        const size_t n = strlen(files[i]);
        if (strncmp(name, files[i], n) == 0 && strncmp(name + n, ".tmp-", 5) == 0)
            return true;
    }
    return false;
}

static enum dpt_status remove_temporaries(const struct dpt_shards *shards, struct dpt_err *err)
{
    char **found, path[PATH_MAX];
    size_t n;
    DPT_TRY(dpt_fs_list(shards->dir, &found, &n, err));
    enum dpt_status status = DPT_OK;
    for (size_t i = 0; status == DPT_OK && i < n; i++) {
        if (!is_temporary(found[i]))
            continue;
        status = dpt_fs_join(shards->dir, found[i], path, sizeof path, err);
        if (status == DPT_OK)
            status = dpt_disk_remove(path, err);
    }
    dpt_fs_list_free(&found, n);
    return status;
}

enum dpt_status dpt_shards_resume(struct dpt_shards *shards, bool *ret_done, struct dpt_err *err)
{
    bool found = false;
    *ret_done = false;
    DPT_TRY(remove_temporaries(shards, err));
    DPT_TRY(dpt_encode_state_check_record(shards, ret_done, err));
    if (*ret_done) {
        DPT_TRY(check_full_shards(shards, err));
        return dpt_encode_state_remove(shards, err);
    }
    DPT_TRY(dpt_encode_state_read(shards, &found, err));
    if (!found)
        return refuse_foreign_shards(shards, err);
    DPT_TRY(check_full_shards(shards, err));
    for (int s = 0; s < DPT_SPLIT_COUNT; s++)
        DPT_TRY(reopen_part(shards, &shards->list[s], err));
    return dpt_disk_sync(shards->dir_fd, shards->dir, err);
}
