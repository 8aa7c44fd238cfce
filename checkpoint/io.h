/* System calls of checkpoints. Folders stay open by descriptor, symbolic links below the checkpoint
 * folder are never followed, and every call that changes the disk first calls the hook of fault.h.
 * Errors name the path. */
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

/* dpt_folder_open opens `path`, which the user chose and which may contain links.
 * dpt_folder_open_in opens folder `name` inside `parent`, which must not be a link. DPT_ENOENT: the
 * folder is absent. `ret` is closed on failure. */
DPT_MUST_USE enum dpt_status dpt_folder_open(const char *path, struct dpt_folder *ret,
                                             struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_folder_open_in(const struct dpt_folder *parent, const char *name,
                                                struct dpt_folder *ret, struct dpt_err *err);

/* dpt_folder_open, but an absent folder is DPT_OK and leaves `ret` closed. */
DPT_MUST_USE enum dpt_status dpt_folder_open_if_present(const char *path, struct dpt_folder *ret,
                                                        struct dpt_err *err);

/* mkdir -p. Each new level is synced into the level above. */
DPT_MUST_USE enum dpt_status dpt_folder_make_all(const char *path, struct dpt_err *err);

/* Creates `name` inside `parent`; an existing one is DPT_OK. */
DPT_MUST_USE enum dpt_status dpt_folder_make(const struct dpt_folder *parent, const char *name,
                                             struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_folder_sync(const struct dpt_folder *folder, struct dpt_err *err);
void dpt_folder_close(struct dpt_folder *folder);

/* dpt_io_open opens a regular file inside `folder` for reading, and never blocks; DPT_ECORRUPT: a
 * link, or not a regular file. dpt_io_create creates a regular file and refuses an existing name.
 * `name` may begin with one folder ("optimizer/x"). `ret_path` (PATH_MAX bytes) is the whole path,
 * for errors. The caller owns the descriptor. */
DPT_MUST_USE enum dpt_status dpt_io_open(const struct dpt_folder *folder, const char *name,
                                         int *ret_fd, int64_t *ret_bytes, char *ret_path,
                                         struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_io_create(const struct dpt_folder *folder, const char *name,
                                           int *ret_fd, char *ret_path, struct dpt_err *err);
/* Opens a file of `bytes` bytes that several processes write; the first process creates it.
 * Reserves its space if the file system can, so that a full disk fails here. DPT_EEXIST: the name
 * belongs to a link, to another kind of file, to a larger file or to one with several names. */
DPT_MUST_USE enum dpt_status dpt_io_create_shared(const struct dpt_folder *folder, const char *name,
                                                  int64_t bytes, int *ret_fd, char *ret_path,
                                                  struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_io_write(int fd, const void *data, size_t bytes, int64_t offset,
                                          const char *path, struct dpt_err *err);

/* Lets the writes of a file bypass the page cache, if the file system can (O_DIRECT: 1.5 times as
 * fast on a virtual disk, and evicts no cached pages of other programs). While this is on, the
 * address, offset and size of each write must be multiples of DPT_IO_DIRECT_ALIGN. Turn it off for
 * other writes. */
enum { DPT_IO_DIRECT_ALIGN = 4096 };
void dpt_io_direct(int fd, bool on);
DPT_MUST_USE enum dpt_status dpt_io_sync(int fd, const char *path, struct dpt_err *err);
/* Closes *fd and sets it to -1; some file systems report a failed write only here. */
DPT_MUST_USE enum dpt_status dpt_io_close(int *fd, const char *path, struct dpt_err *err);

/* Reads a whole file of at most bytes_max bytes; owned, with a NUL after the end. */
DPT_MUST_USE enum dpt_status dpt_io_read_small(const struct dpt_folder *folder, const char *name,
                                               size_t bytes_max, char **ret_text, size_t *ret_bytes,
                                               struct dpt_err *err);

/* Writes `name.tmp`, syncs it and renames it to `name`: complete or absent. Does not sync the
 * folder. */
DPT_MUST_USE enum dpt_status dpt_io_write_small(const struct dpt_folder *folder, const char *name,
                                                const void *data, size_t bytes,
                                                struct dpt_err *err);

DPT_MUST_USE enum dpt_status dpt_io_rename(const struct dpt_folder *folder, const char *from,
                                           const char *to, struct dpt_err *err);
/* Swaps two names atomically; DPT_EUNSUPPORTED where the file system cannot. */
DPT_MUST_USE enum dpt_status dpt_io_exchange(const struct dpt_folder *folder, const char *a,
                                             const char *b, struct dpt_err *err);
/* Removes a file or a folder with its contents; an absent one is DPT_OK. */
DPT_MUST_USE enum dpt_status dpt_io_remove_tree(const struct dpt_folder *folder, const char *name,
                                                struct dpt_err *err);

#endif
