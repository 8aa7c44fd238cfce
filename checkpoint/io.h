/* System calls of checkpoints: folders are held open by descriptor, symbolic links below the
 * checkpoint folder are never followed, and every call that changes the disk passes the hook of
 * fault.h. Errors name the path. */
#ifndef DPT_CHECKPOINT_IO_H
#define DPT_CHECKPOINT_IO_H

#include "base/err.h"

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dpt_folder {
    int fd; /* -1 when closed */
    char path[PATH_MAX];
};

#define DPT_FOLDER_CLOSED                                                                          \
    {                                                                                              \
        .fd = -1                                                                                   \
    }

/* Opens `path` (whose links are followed: it is the user's), or folder `name` inside `parent`
 * (which must not be a link). Absent: DPT_ENOENT. `ret` is closed on failure. */
DPT_MUST_USE enum dpt_status dpt_folder_open(const char *path, struct dpt_folder *ret,
                                             struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_folder_open_in(const struct dpt_folder *parent, const char *name,
                                                struct dpt_folder *ret, struct dpt_err *err);

/* dpt_folder_open, but an absent folder is DPT_OK and leaves `ret` closed. */
DPT_MUST_USE enum dpt_status dpt_folder_open_if_present(const char *path, struct dpt_folder *ret,
                                                        struct dpt_err *err);

/* mkdir -p in which each level that is created is durable in the level above. */
DPT_MUST_USE enum dpt_status dpt_folder_make_all(const char *path, struct dpt_err *err);

/* Creates `name` inside `parent`; one that exists already is fine. */
DPT_MUST_USE enum dpt_status dpt_folder_make(const struct dpt_folder *parent, const char *name,
                                             struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_folder_sync(const struct dpt_folder *folder, struct dpt_err *err);
void dpt_folder_close(struct dpt_folder *folder);

/* A regular file inside `folder`; `name` may have one folder in front ("optimizer/x"). Opening for
 * reading never blocks and refuses what is no regular file; creating refuses a name that exists.
 * `ret_path` (PATH_MAX bytes) is the whole path, for errors. The descriptor is the caller's. */
DPT_MUST_USE enum dpt_status dpt_io_open(const struct dpt_folder *folder, const char *name,
                                         int *ret_fd, int64_t *ret_bytes, char *ret_path,
                                         struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_io_create(const struct dpt_folder *folder, const char *name,
                                           int *ret_fd, char *ret_path, struct dpt_err *err);
/* A file of `bytes` bytes that several processes write: the first process creates it. Its room
 * is reserved at once if the file system can, so that a full disk is found here. DPT_EEXIST: the
 * name is in use by another kind of file. */
DPT_MUST_USE enum dpt_status dpt_io_create_shared(const struct dpt_folder *folder, const char *name,
                                                  int64_t bytes, int *ret_fd, char *ret_path,
                                                  struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_io_write(int fd, const void *data, size_t bytes, int64_t offset,
                                          const char *path, struct dpt_err *err);

/* Makes the writes of a file bypass the page cache (O_DIRECT: 1.5 times as fast on a virtual disk,
 * and no cached pages of others are evicted), if the file system can. Then the address, offset and
 * size of each write must be multiples of DPT_IO_DIRECT_ALIGN. Turn it off for other writes. */
enum { DPT_IO_DIRECT_ALIGN = 4096 };
void dpt_io_direct(int fd, bool on);
DPT_MUST_USE enum dpt_status dpt_io_sync(int fd, const char *path, struct dpt_err *err);
/* Closes *fd and sets it to -1; some file systems report a failed write only here. */
DPT_MUST_USE enum dpt_status dpt_io_close(int *fd, const char *path, struct dpt_err *err);

/* Size of a regular file, without opening it. */
DPT_MUST_USE enum dpt_status dpt_io_size(const struct dpt_folder *folder, const char *name,
                                         int64_t *ret_bytes, struct dpt_err *err);

/* A whole file of at most bytes_max bytes; owned, with a NUL after the end. */
DPT_MUST_USE enum dpt_status dpt_io_read_small(const struct dpt_folder *folder, const char *name,
                                               size_t bytes_max, char **ret_text, size_t *ret_bytes,
                                               struct dpt_err *err);

/* Writes `name` through `name.tmp`, fsync, rename: whole or absent. The folder is not synced. */
DPT_MUST_USE enum dpt_status dpt_io_write_small(const struct dpt_folder *folder, const char *name,
                                                const void *data, size_t bytes,
                                                struct dpt_err *err);

DPT_MUST_USE enum dpt_status dpt_io_rename(const struct dpt_folder *folder, const char *from,
                                           const char *to, struct dpt_err *err);
/* Swaps two names atomically; DPT_EUNSUPPORTED where the file system cannot. */
DPT_MUST_USE enum dpt_status dpt_io_exchange(const struct dpt_folder *folder, const char *a,
                                             const char *b, struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_io_unlink(const struct dpt_folder *folder, const char *name,
                                           struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_io_remove_tree(const struct dpt_folder *folder, const char *name,
                                                struct dpt_err *err);

#endif
