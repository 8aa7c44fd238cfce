/* The journal of a server: the records of its core in a SQLite database, DIR/journal.sqlite, which
 * any program reads that speaks SQL (docs/journal.md has its tables and views).
 *
 * The database is in WAL mode with synchronous=FULL: a commit is one write and one fsync of the
 * write-ahead log. A server that is killed loses nothing that it has sent. Readers do not wait for
 * the server, nor the server for readers.
 *
 * DIR/lock is held (flock) while a server uses the folder. The database has the secrets of nodes,
 * so the folder is for its owner only.
 *
 * A store belongs to one thread. Errors name the file and say what to do. */
#ifndef DPT_RENDEZVOUS_STORE_STORE_H
#define DPT_RENDEZVOUS_STORE_STORE_H

#include "rendezvous/core/journal.h"

#include <limits.h>

enum {
    DPT_STORE_VERSION = 6,         /* of the tables; PRAGMA user_version */
    DPT_STORE_PENDING_MAX = 65536, /* records of a turn, and those that wait for room on the disk */
};

struct dpt_store;

/* Writes the folder for a server on this port that is given none: $XDG_STATE_HOME/dpt-rdzv/PORT,
 * else for root /var/lib/dpt-rdzv/PORT, else ~/.local/state/dpt-rdzv/PORT. Each port has its own,
 * so that servers of one machine do not meet. DPT_ECONFIG: there is no home folder. */
DPT_MUST_USE enum dpt_status dpt_store_folder(int port, char ret_dir[PATH_MAX],
                                              struct dpt_err *err);

/* Opens the journal in `dir`; makes folder and journal if they are absent. Changes nothing that it
 * refuses: DPT_EEXIST: another server uses the folder. DPT_EVERSION: another version wrote it.
 * DPT_ECORRUPT: the file is damaged, or no journal of dpt-rdzv. DPT_EIO, DPT_ENOSPC: the system. */
DPT_MUST_USE enum dpt_status dpt_store_open(const char *dir, struct dpt_store **ret,
                                            struct dpt_err *err);
/* Records that are not committed are lost. Accepts NULL and nulls the pointer. */
void dpt_store_close(struct dpt_store **store);

/* The latest time of a record in the journal that is open in `dir`: Unix time in ms, by the clocks
 * of the servers that wrote it. 0: it has no record. DPT_EIO, DPT_ECORRUPT. */
DPT_MUST_USE enum dpt_status dpt_store_newest_ms(const char *dir, int64_t *ret_ms,
                                                 struct dpt_err *err);

/* The journal for a server; borrows the store. */
struct dpt_journal dpt_store_journal(struct dpt_store *store);

#endif
