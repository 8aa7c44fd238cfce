/* The journal of a server: records wait for the end of a turn, and are committed together. */
#include "rendezvous/store/internal.h"

#include "base/clock.h"
#include "base/fs.h"
#include "rendezvous/core/record.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* A run that has its name still, and its number in the database. */
struct named_run {
    char name[DPT_PROTO_NAME_BYTES];
    int64_t id;
};

struct dpt_store {
    sqlite3 *database;
    struct rows rows;
    struct chains chains; /* as they are committed */
    char path[PATH_MAX];
    int lock_fd, newest_fd;
    struct named_run runs[DPT_RDZV_RUNS_MAX];
    size_t n_runs;
    struct dpt_rdzv_record *pending; /* (n_pending) owned copies */
    size_t n_pending, pending_max;
};

/* ---- the folder ---- */

/* DIR/lock is held until the process ends, however it ends. */
static enum dpt_status lock_folder(struct dpt_store *store, const char *dir, struct dpt_err *err)
{
    char path[PATH_MAX], text[32], owner[64] = "";
    DPT_TRY(dpt_fs_join(dir, "lock", path, sizeof path, err));
    store->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (store->lock_fd < 0)
        return dpt_fail_errno(err, errno, "open '%s'", path);
    if (flock(store->lock_fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK)
            return dpt_fail_errno(err, errno, "lock '%s'", path);
        if (!dpt_fs_read_line(path, owner, sizeof owner))
            (void)snprintf(owner, sizeof owner, "unknown");
        return dpt_fail(err, DPT_EEXIST,
                        "the state folder '%s' is in use by another dpt-rdzv (process %s): name "
                        "another --state-dir, or stop that server",
                        dir, owner);
    }
    const int bytes = snprintf(text, sizeof text, "%ld\n", (long)getpid());
    if (ftruncate(store->lock_fd, 0) != 0 ||
        pwrite(store->lock_fd, text, (size_t)bytes, 0) != (ssize_t)bytes)
        return dpt_fail_errno(err, errno, "write '%s'", path);
    return DPT_OK;
}

/* The files may come from elsewhere: a back-up that SQLite has written, a copy. They have the
 * secrets of nodes, and SQLite gives new files beside the database the mode of the database. */
static enum dpt_status make_private(const char *path, struct dpt_err *err)
{
    static const char *const ends[] = {"", "-wal", "-shm", "-newest"};
    char name[PATH_MAX];
    struct stat info;
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        if (snprintf(name, sizeof name, "%s%s", path, ends[i]) >= (int)sizeof name)
            return dpt_fail(err, DPT_ECONFIG, "the path of the journal '%s' is too long", path);
        if (stat(name, &info) != 0) {
            if (errno != ENOENT)
                return dpt_fail_errno(err, errno, "look at '%s'", name);
        } else if ((info.st_mode & 0077) != 0 && chmod(name, 0600) != 0) {
            return dpt_fail_errno(err, errno, "make '%s' readable by its owner only", name);
        }
    }
    return DPT_OK;
}

static enum dpt_status open_in(struct dpt_store *store, const char *dir, struct dpt_err *err)
{
    const bool is_new = !dpt_fs_exists(dir);
    DPT_TRY(dpt_fs_mkdirs(dir, err));
    if (is_new && chmod(dir, 0700) != 0)
        return dpt_fail_errno(err, errno, "change the mode of '%s'", dir);
    DPT_TRY(lock_folder(store, dir, err));
    DPT_TRY(dpt_fs_join(dir, "journal.sqlite", store->path, sizeof store->path, err));
    struct newest newest;
    DPT_TRY(store_newest_read(store->path, &newest, err));
    DPT_TRY(store_check_files(store->path, newest.seq, err));
    const struct opening opening = {
        .path = store->path, .how = OPEN_TO_WRITE, .newest = &newest, .chains = &store->chains};
    DPT_TRY(store_open_database(&opening, &store->database, err));
    store_keep(store->database, false);
    DPT_TRY(make_private(store->path, err)); /* not sooner: what is refused is left as it is */
    return rows_prepare(&store->rows, store->database, store->path, err);
}

enum dpt_status dpt_store_open(const char *dir, struct dpt_store **ret, struct dpt_err *err)
{
    struct dpt_store *store = calloc(1, sizeof *store);
    if (store == NULL)
        return dpt_fail_nomem(err, "journal in '%s'", dir);
    store->lock_fd = store->newest_fd = -1;
    const enum dpt_status status = open_in(store, dir, err);
    if (status == DPT_OK)
        *ret = store;
    else
        dpt_store_close(&store);
    return status;
}

static void drop_pending(struct dpt_store *store)
{
    for (size_t i = 0; i < store->n_pending; i++)
        dpt_rdzv_record_free(&store->pending[i]);
    store->n_pending = 0;
}

void dpt_store_close(struct dpt_store **store_at)
{
    struct dpt_store *store = *store_at;
    *store_at = NULL;
    if (store == NULL)
        return;
    drop_pending(store);
    free(store->pending);
    rows_fini(&store->rows);
    store_chains_fini(&store->chains);
    (void)sqlite3_close(store->database);
    if (store->newest_fd >= 0)
        (void)close(store->newest_fd);
    if (store->lock_fd >= 0)
        (void)close(store->lock_fd);
    free(store);
}

/* ---- runs ---- */

static struct named_run *find_run(struct dpt_store *store, const char *name)
{
    for (size_t i = 0; i < store->n_runs; i++)
        if (strcmp(store->runs[i].name, name) == 0)
            return &store->runs[i];
    return NULL;
}

/* Keeps the list of names after a record that is durable. */
static void note_run(struct dpt_store *store, const struct dpt_rdzv_record *record, int64_t run_id)
{
    if (record->kind == DPT_RDZV_RECORD_FORGET) {
        struct named_run *run = find_run(store, record->run);
        if (run != NULL)
            *run = store->runs[--store->n_runs];
    } else if (record->kind == DPT_RDZV_RECORD_RUN) {
        DPT_ASSERT(store->n_runs < DPT_RDZV_RUNS_MAX);
        struct named_run *run = &store->runs[store->n_runs++];
        run->id = run_id;
        (void)snprintf(run->name, sizeof run->name, "%s", record->run);
    }
}

/* ---- the journal of a server ---- */

struct restoring {
    struct dpt_store *store;
    struct dpt_rdzv *core;
};

static enum dpt_status restore_record(void *ctx, const struct dpt_rdzv_record *record,
                                      int64_t run_id, struct dpt_err *err)
{
    struct restoring *restoring = ctx;
    DPT_TRY(dpt_rdzv_restore(restoring->core, record, err));
    note_run(restoring->store, record, run_id);
    return DPT_OK;
}

static enum dpt_status store_restore_core(void *ctx, struct dpt_rdzv *core, struct dpt_err *err)
{
    struct dpt_store *store = ctx;
    struct restoring restoring = {.store = store, .core = core};
    const struct reading reading = {.database = store->database,
                                    .path = store->path,
                                    .chains = &store->chains,
                                    .take = restore_record,
                                    .ctx = &restoring};
    const enum dpt_status status = rows_read(&reading, err);
    store_keep(store->database, status != DPT_OK);
    return status;
}

static enum dpt_status store_add_record(void *ctx, const struct dpt_rdzv_record *record,
                                        struct dpt_err *err)
{
    struct dpt_store *store = ctx;
    if (store->n_pending == DPT_STORE_PENDING_MAX)
        return dpt_fail(err, DPT_ENOSPC,
                        "%d decisions wait to be written to the journal '%s', which is the most: "
                        "free space on its disk, or repair it, then start the server again",
                        DPT_STORE_PENDING_MAX, store->path);
    if (store->n_pending == store->pending_max) {
        const size_t max = store->pending_max == 0 ? 64 : 2 * store->pending_max;
        struct dpt_rdzv_record *bigger = realloc(store->pending, max * sizeof *bigger);
        if (bigger == NULL)
            return dpt_fail_nomem(err, "records for '%s'", store->path);
        store->pending = bigger;
        store->pending_max = max;
    }
    DPT_TRY(dpt_rdzv_record_copy(record, &store->pending[store->n_pending], err));
    store->n_pending++;
    return DPT_OK;
}

/* Inserts the pending records. Keeps the list of runs and the chains as they will be after the
 * commit in `store`; the caller puts them back if the commit fails. Returns SQLite's code. */
static int insert_pending(struct dpt_store *store)
{
    const int64_t offset_ms = dpt_wall_ns() / 1000000 - dpt_now_ms();
    int64_t seq = store_newest_of(&store->chains)->newest;
    int code = SQLITE_OK;
    for (size_t i = 0; i < store->n_pending && code == SQLITE_OK; i++) {
        const struct dpt_rdzv_record *record = &store->pending[i];
        const struct named_run *run = find_run(store, record->run);
        struct addition addition = {.record = record,
                                    .seq = ++seq,
                                    .wall_ms = record->at_ms + offset_ms,
                                    .run_id = run != NULL ? run->id : 0};
        code = rows_add(&store->rows, store->database, &addition, &store->chains);
        if (code == SQLITE_OK)
            note_run(store, record, addition.run_id);
    }
    return code;
}

static enum dpt_status write_pending(struct dpt_store *store, struct dpt_err *err)
{
    const int code = insert_pending(store);
    if (code == SQLITE_NOMEM) /* SQLite forgets a bind that failed, and knows no malloc of ours */
        return dpt_fail_nomem(err, "write the journal '%s'", store->path);
    return code == SQLITE_OK ? DPT_OK
                             : store_fail(store->database, store->path, "write the journal", err);
}

/* What a failed commit must not change. */
struct before {
    struct named_run *runs; /* (n_runs) owned */
    size_t n_runs;
    struct chains chains; /* owned */
};

static enum dpt_status take_before(const struct dpt_store *store, struct before *ret,
                                   struct dpt_err *err)
{
    struct before before = {.n_runs = store->n_runs};
    before.runs = malloc((store->n_runs + 1) * sizeof before.runs[0]);
    if (before.runs == NULL || !store_chains_copy(&store->chains, &before.chains)) {
        free(before.runs);
        return dpt_fail_nomem(err, "commit to '%s'", store->path);
    }
    if (store->n_runs > 0)
        memcpy(before.runs, store->runs, store->n_runs * sizeof before.runs[0]);
    *ret = before;
    return DPT_OK;
}

static void go_back(struct dpt_store *store, struct before *before)
{
    const struct chains failed = store->chains;
    /* SQLite may have rolled the transaction back itself. */
    (void)sqlite3_exec(store->database, "ROLLBACK", NULL, NULL, NULL);
    store->n_runs = before->n_runs;
    if (before->n_runs > 0)
        memcpy(store->runs, before->runs, before->n_runs * sizeof before->runs[0]);
    store->chains = before->chains;
    before->chains = failed;
}

static enum dpt_status store_commit_records(void *ctx, struct dpt_err *err)
{
    struct dpt_store *store = ctx;
    struct before before;
    if (store->n_pending == 0)
        return DPT_OK;
    if (store->newest_fd < 0) /* not sooner: a journal that is refused is left as it is */
        DPT_TRY(store_newest_open(store->path, &store->newest_fd, err));
    DPT_TRY(take_before(store, &before, err));
    enum dpt_status status = store_run(store->database, store->path, "BEGIN IMMEDIATE", err);
    if (status == DPT_OK)
        status = write_pending(store, err);
    if (status == DPT_OK)
        status = store_run(store->database, store->path, "COMMIT", err);
    if (status == DPT_OK) {
        const struct chain *newest = store_newest_of(&store->chains);
        store_newest_write(store->newest_fd, store->path, newest->newest, newest->sum);
        drop_pending(store);
    } else {
        go_back(store, &before);
    }
    free(before.runs);
    store_chains_fini(&before.chains);
    return status;
}

struct dpt_journal dpt_store_journal(struct dpt_store *store)
{
    return (struct dpt_journal){.ctx = store,
                                .restore = store_restore_core,
                                .add = store_add_record,
                                .commit = store_commit_records};
}
