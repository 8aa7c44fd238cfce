/* A journal in a folder of its own, and the trio whose run it has, for tests of the store. */
#ifndef DPT_TESTS_RENDEZVOUS_STORE_DISK_H
#define DPT_TESTS_RENDEZVOUS_STORE_DISK_H

#include "rendezvous/store/store.h"
#include "tests/rendezvous/core/trio.h"

#include <limits.h>

extern char disk_dir[PATH_MAX], disk_path[PATH_MAX]; /* the folder; its journal.sqlite */

/* Setup and teardown of cmocka: an empty folder, and the trio's. */
int disk_setup(void **state);
int disk_teardown(void **state);

/* A store that must open. */
struct dpt_store *disk_open(void);
/* Opens the store, commits all records together, and closes the store. */
void disk_write(const struct kept_records *records);
struct dpt_rdzv *disk_new_core(void);
/* The journal must give the durable state back that the servers of the stage had. */
void disk_read_back(void);
/* A run with a loss, a grant, a checkpoint and a restart of the server. */
void disk_live(void);
/* Runs SQL on the file, as an operator may. */
void disk_run_sql(const char *sql);

#endif
