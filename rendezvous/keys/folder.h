/* The key folder of a user: mode 0700, its files 0600, all owned by the user. Server and workers
 * of one user share it, so on the server's machine, and wherever the home folder is shared, nobody
 * types a token.
 *
 *     server.key    the server's secret key
 *     server.key.next   takes the place of server.key at its time of modification (gate.h)
 *     machine.key   this machine's secret key
 *     machines      keys that the server admits (admission.h)
 *     tokens        tokens by their public keys, and their uses (admission.h)
 *     token         the text of the newest token, to be printed again
 *     servers       keys of servers that have admitted this machine (servers.h)
 *     lock          locked by a process that rewrites one of these files
 *
 * The folder is that of --key-dir, else $DPT_KEY_DIR, else ~/.dpt. A folder or file that other
 * users can read or write is refused. */
#ifndef DPT_RENDEZVOUS_KEYS_FOLDER_H
#define DPT_RENDEZVOUS_KEYS_FOLDER_H

#include "base/err.h"
#include "rendezvous/keys/key.h"

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

enum { DPT_KEY_FILE_BYTES_MAX = 8 * 1024 * 1024, DPT_KEY_FOLDER_LOCK_MS = 500 };

struct dpt_key_folder {
    char path[PATH_MAX];
    bool is_default; /* neither --key-dir nor $DPT_KEY_DIR named it */
};

/* State of a file, to notice that it has changed; all zero: there is no file. */
struct dpt_key_file_state {
    int64_t modified_ns;
    int64_t changed_ns; /* time of a change of the text, the mode or the owner */
    int64_t bytes;
    uint64_t inode;
};

/* Finds the folder and creates it if it is missing. `given`: of --key-dir; NULL: none. DPT_ECONFIG:
 * it cannot be created, or it is not the user's alone. */
DPT_MUST_USE enum dpt_status dpt_key_folder_open(const char *given, struct dpt_key_folder *ret,
                                                 struct dpt_err *err);

/* Reads the secret key `name`. If there is none, writes `fresh` there, unless another process has
 * just written one; then that one is returned. DPT_ECONFIG: the file is not the user's alone, or
 * holds no key. */
DPT_MUST_USE enum dpt_status dpt_key_folder_secret(const struct dpt_key_folder *folder,
                                                   const char *name, const struct dpt_key *fresh,
                                                   struct dpt_key *ret, struct dpt_err *err);

/* The same, but a file that does not exist stays so: *ret_found is then false. */
DPT_MUST_USE enum dpt_status dpt_key_folder_find_secret(const struct dpt_key_folder *folder,
                                                        const char *name, struct dpt_key *ret,
                                                        bool *ret_found, struct dpt_err *err);

/* Reads a text file of at most DPT_KEY_FILE_BYTES_MAX bytes into owned memory (free()), with a NUL
 * after its end; a file that does not exist is empty. ret_state may be NULL. DPT_ECONFIG: the file
 * cannot be read, or is not the user's alone. */
DPT_MUST_USE enum dpt_status dpt_key_folder_read(const struct dpt_key_folder *folder,
                                                 const char *name, char **ret_text,
                                                 struct dpt_key_file_state *ret_state,
                                                 struct dpt_err *err);

/* The present state of a file; all zero if it cannot be looked at. */
struct dpt_key_file_state dpt_key_folder_state(const struct dpt_key_folder *folder,
                                               const char *name);
bool dpt_key_folder_is_same(struct dpt_key_file_state a, struct dpt_key_file_state b);

/* Keeps other processes from changing the folder's files by what they have read before; without
 * effect on a file system that has no locks. *ret_lock is for dpt_key_folder_unlock. Waits up to
 * DPT_KEY_FOLDER_LOCK_MS. DPT_ECONFIG: another process has the lock for longer, or the file `lock`
 * cannot be opened. */
DPT_MUST_USE enum dpt_status dpt_key_folder_lock(const struct dpt_key_folder *folder, int *ret_lock,
                                                 struct dpt_err *err);
void dpt_key_folder_unlock(int lock);

/* Gives a file another name, and takes the place of a file of that name. at_s > 0: sets its time of
 * modification first, in seconds since 1970. DPT_ECONFIG. */
DPT_MUST_USE enum dpt_status dpt_key_folder_rename(const struct dpt_key_folder *folder,
                                                   const char *from, const char *to, int64_t at_s,
                                                   struct dpt_err *err);

/* Appends `line` and a newline with one write(2), and syncs the file; creates it with mode 0600. If
 * the file's last line has no newline, one is written first. The cost does not depend on the file's
 * size. DPT_EOVERFLOW: with the line the file would be too large to be read, so nothing is
 * written. *state (may be NULL): that of the text which the caller has read. If the file now has
 * that text and the line, *state becomes the state after the line; else, because another process
 * has changed the file, it becomes all zero. */
DPT_MUST_USE enum dpt_status dpt_key_folder_append(const struct dpt_key_folder *folder,
                                                   const char *name, const char *line,
                                                   struct dpt_key_file_state *state,
                                                   struct dpt_err *err);

/* Replaces the file's text; the new file is complete or absent, and has mode 0600. */
DPT_MUST_USE enum dpt_status dpt_key_folder_replace(const struct dpt_key_folder *folder,
                                                    const char *name, const char *text,
                                                    struct dpt_err *err);

#endif
