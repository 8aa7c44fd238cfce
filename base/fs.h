/* Files: whole reads and writes, durability, directories. Every function reports the path in its
 * error. */
#ifndef DPT_BASE_FS_H
#define DPT_BASE_FS_H

#include "base/err.h"

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Read or write exactly `bytes` bytes at `offset`. They retry after EINTR and short transfers.
 * DPT_ECORRUPT: the file ends early. */
DPT_MUST_USE enum dpt_status dpt_fs_pread_all(int fd, void *buf, size_t bytes, int64_t offset,
                                              const char *path, struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_fs_pwrite_all(int fd, const void *buf, size_t bytes,
                                               int64_t offset, const char *path,
                                               struct dpt_err *err);

/* Writes `bytes` at the start of the new file `fd` and syncs it. Closes `fd`,
 * also after a failure. */
DPT_MUST_USE enum dpt_status dpt_fs_write_and_close(int fd, const void *data, size_t bytes,
                                                    const char *path, struct dpt_err *err);

/* Reads the first line of a small file, without its newline, into `ret` of `ret_bytes` bytes.
 * False: there is no such file, the file is empty, or the line is longer. */
bool dpt_fs_read_line(const char *path, char *ret, size_t ret_bytes);

/* Reads a whole regular file of at most bytes_max bytes; returns owned memory (free()) with a NUL
 * after the end. Does not wait. DPT_EIO: the path is a pipe, a device or a folder. */
DPT_MUST_USE enum dpt_status dpt_fs_read_file(const char *path, size_t bytes_max, char **ret_text,
                                              size_t *ret_bytes, struct dpt_err *err);

/* As dpt_fs_read_file, but the path may also be a pipe (a shell's `<(…)`) or a terminal. Blocks
 * until the writer closes it. */
DPT_MUST_USE enum dpt_status dpt_fs_read_stream(const char *path, size_t bytes_max, char **ret_text,
                                                size_t *ret_bytes, struct dpt_err *err);

/* Writes `path` durably, and so that the new file is complete or absent: temporary file in the same
 * folder, fsync, rename, fsync of the folder. */
DPT_MUST_USE enum dpt_status dpt_fs_write_file_atomic(const char *path, const void *data,
                                                      size_t bytes, struct dpt_err *err);

/* Appends one record with one write(2) to a file opened with O_APPEND (created when absent). */
DPT_MUST_USE enum dpt_status dpt_fs_append(const char *path, const void *data, size_t bytes,
                                           struct dpt_err *err);

/* mkdir -p. */
DPT_MUST_USE enum dpt_status dpt_fs_mkdirs(const char *path, struct dpt_err *err);

/* fsync of a folder's entries. */
DPT_MUST_USE enum dpt_status dpt_fs_sync_dir(const char *path, struct dpt_err *err);

/* rm -r of a folder. It is not an error if the folder is absent, or if another process removes
 * entries at the same time. Symbolic links are removed, never followed. At most 16 levels deep. */
DPT_MUST_USE enum dpt_status dpt_fs_remove_tree(const char *path, struct dpt_err *err);

/* Names in a folder without "." and "..", sorted bytewise; returns an owned array of owned strings.
 * DPT_ENOENT: the folder is absent. At most 1,000,000 names. */
DPT_MUST_USE enum dpt_status dpt_fs_list(const char *path, char ***ret_names, size_t *ret_n,
                                         struct dpt_err *err);
void dpt_fs_list_free(char ***names, size_t n);

bool dpt_fs_exists(const char *path);

/* Whether the name of the file has one of the endings "txt,jsonl", in any case. */
bool dpt_fs_has_ending(const char *path, const char *endings);

/* The folder of `path`: "." of a bare name, "/" of "/x". DPT_EOVERFLOW: longer than PATH_MAX. */
DPT_MUST_USE enum dpt_status dpt_fs_folder(const char *path, char ret_dir[PATH_MAX],
                                           struct dpt_err *err);

/* "dir/name" into `ret_path`; DPT_EOVERFLOW when it does not fit. */
DPT_MUST_USE enum dpt_status dpt_fs_join(const char *dir, const char *name, char *ret_path,
                                         size_t path_bytes, struct dpt_err *err);

#endif
