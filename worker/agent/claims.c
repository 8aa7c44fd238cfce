/* The thread that claims a worker's folders (claims.h). */
#include "worker/agent/claims.h"

#include "base/clock.h"
#include "base/fs.h"
#include "base/log.h"
#include "worker/agent/identity.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum { LEASE_MS_MIN = 1000, BEATS_A_LEASE = 10, OWNER_BYTES = 384 };

/* One folder and the claim on it. */
struct claim {
    char dir[PATH_MAX];
    bool wanted, held, wait_logged;
    int64_t number;
    int64_t renewed_ms; /* start time of the newest successful rewriting */
    struct dpt_claim_watch watch;
    struct dpt_claim_record record;
};

struct dpt_claims {
    pthread_t thread;
    int64_t lease_ms, beat_ms, margin_ms;
    bool waits;
    /* Only the thread uses the claims until the state is HELD. After that their numbers, tokens and
     * folders do not change, and any thread may read them. */
    struct claim claim[DPT_CLAIMS_MAX];
    _Atomic uint64_t server;
    _Atomic int64_t until_ms;

    pthread_mutex_t mutex;
    pthread_cond_t cond;
    /* The mutex guards the following. */
    bool stop, ended;
    enum dpt_claims_state state;
    char text[DPT_ERR_TEXT_BYTES];
};

/* ---- between the thread and its callers ---- */

static void publish_state(struct dpt_claims *c, enum dpt_claims_state state, int64_t until_ms,
                          const char *text)
{
    (void)pthread_mutex_lock(&c->mutex);
    /* Set before the state: a caller that reads HELD also reads this time. */
    c->until_ms = until_ms;
    c->state = state;
    (void)snprintf(c->text, sizeof c->text, "%s", text);
    (void)pthread_mutex_unlock(&c->mutex);
}

/* Waits at most `ms` until *flag, a member of *c, is set. Returns the flag. */
static bool wait_for_flag(struct dpt_claims *c, const bool *flag, int64_t ms)
{
    const int64_t until_ms = dpt_now_ms() + ms;
    const struct timespec end = {.tv_sec = until_ms / 1000, .tv_nsec = until_ms % 1000 * 1000000};
    int rc = 0;
    (void)pthread_mutex_lock(&c->mutex);
    while (!*flag && rc != ETIMEDOUT)
        rc = pthread_cond_clockwait(&c->cond, &c->mutex, CLOCK_MONOTONIC, &end);
    const bool is_set = *flag;
    (void)pthread_mutex_unlock(&c->mutex);
    return is_set;
}

static void set_flag(struct dpt_claims *c, bool *flag)
{
    (void)pthread_mutex_lock(&c->mutex);
    *flag = true;
    (void)pthread_cond_broadcast(&c->cond);
    (void)pthread_mutex_unlock(&c->mutex);
}

/* Waits for `ms`. False: the thread must end. */
static bool wait_unless_stopped(struct dpt_claims *c, int64_t ms)
{
    return !wait_for_flag(c, &c->stop, ms);
}

/* ---- taking a folder ---- */

static void format_owner(const struct dpt_claim_record *r, char ret[OWNER_BYTES])
{
    (void)snprintf(ret, OWNER_BYTES, "run %s (host %s, user %s, pid %d, since %s)", r->run, r->host,
                   r->user, r->pid, r->since);
}

static bool is_of_another_run(const struct dpt_claim_seen *seen, const char *run)
{
    return !seen->readable || strcmp(seen->record.run, run) != 0;
}

static enum dpt_status refuse_folder(const char *dir, const char *run,
                                     const struct dpt_claim_seen *seen, struct dpt_err *err)
{
    char owner[OWNER_BYTES];
    if (!seen->readable)
        return dpt_fail(
            err, DPT_EREFUSED,
            "'%s' has an owner that cannot be read (OWNER.%08lld); name another folder, "
            "or remove that file if no run uses the folder",
            dir, (long long)seen->number);
    format_owner(&seen->record, owner);
    if (is_of_another_run(seen, run))
        return dpt_fail(
            err, DPT_EREFUSED,
            "'%s' belongs to %s, and this is run %s; name another folder, or, if that run "
            "has ended, remove OWNER.%08lld there to give it to this run",
            dir, owner, run, (long long)seen->number);
    return dpt_fail(err, DPT_EREFUSED,
                    "'%s' is in use by %s, which is alive and uses another server; wait for its "
                    "end or stop it, or name another folder",
                    dir, owner);
}

enum dpt_status dpt_claims_check(const char *dir, const char *run, struct dpt_err *err)
{
    struct dpt_claim_seen seen;
    const enum dpt_status status = dpt_claim_look(dir, &seen, err);
    if (status != DPT_OK)
        return status == DPT_ENOENT ? DPT_OK : status;
    return seen.number > 0 && is_of_another_run(&seen, run) ? refuse_folder(dir, run, &seen, err)
                                                            : DPT_OK;
}

static void log_takeover(const struct claim *claim, const struct dpt_claim_seen *seen)
{
    char owner[OWNER_BYTES];
    format_owner(&seen->record, owner);
    if (!seen->shared && !dpt_claim_may_live(&seen->record))
        dpt_log(DPT_LOG_INFO, "'%s' is taken over from %s, whose process has ended", claim->dir,
                owner);
    else
        dpt_log(DPT_LOG_INFO,
                "'%s' is taken over from %s, which has not renewed its claim for %" PRId64
                " ms: it has ended, is suspended or cannot write there",
                claim->dir, owner, seen->record.lease_ms);
}

static enum dpt_status claim_folder(struct dpt_claims *c, struct claim *claim,
                                    const struct dpt_claim_seen *seen, struct dpt_err *err)
{
    const int64_t began_ms = dpt_now_ms();
    claim->record.server = c->server;
    const enum dpt_status status =
        dpt_claim_take(claim->dir, seen->number + 1, &claim->record, err);
    /* EEXIST, ENOENT: another process took the claim first, and the caller looks again. */
    if (status != DPT_OK)
        return status == DPT_EEXIST || status == DPT_ENOENT ? DPT_OK : status;
    claim->number = seen->number + 1;
    claim->renewed_ms = began_ms;
    claim->held = true;
    if (seen->number > 0 && !seen->record.released)
        log_takeover(claim, seen);
    return DPT_OK;
}

/* Joins a claim of the same run. The claim is held if it is still valid one beat after this process
 * joined it: a process that considered the holders dead has taken the folder over by then. */
static enum dpt_status join_folder(struct dpt_claims *c, struct claim *claim,
                                   const struct dpt_claim_seen *seen, struct dpt_err *err)
{
    struct dpt_claim_record record = claim->record;
    (void)snprintf(record.token, sizeof record.token, "%s", seen->record.token);
    record.server = c->server;
    DPT_TRY(dpt_claim_share(claim->dir, seen->number, err));
    for (int i = 0; i < 2; i++) {
        claim->renewed_ms = dpt_now_ms();
        const enum dpt_status status = dpt_claim_renew(claim->dir, seen->number, &record, err);
        if (status == DPT_EREFUSED || !wait_unless_stopped(c, i == 0 ? c->beat_ms : 0))
            return DPT_OK;
        if (status != DPT_OK)
            return status;
    }
    claim->record = record;
    claim->number = seen->number;
    claim->held = true;
    return DPT_OK;
}

/* Reads the claim once and changes nothing. DPT_EREFUSED: the claim belongs to another run. */
static enum dpt_status judge_folder(struct dpt_claims *c, struct claim *claim,
                                    struct dpt_claim_seen *seen,
                                    enum dpt_claim_verdict *ret_verdict, struct dpt_err *err)
{
    char owner[OWNER_BYTES];
    struct dpt_claim_record me = claim->record;
    me.server = c->server;
    DPT_TRY(dpt_claim_look(claim->dir, seen, err));
    const bool may_live = seen->readable && dpt_claim_may_live(&seen->record);
    const enum dpt_claim_verdict verdict =
        dpt_claim_judge(&claim->watch, &me, c->waits, seen, may_live, dpt_now_ms());
    if (verdict == DPT_CLAIM_REFUSED)
        return refuse_folder(claim->dir, claim->record.run, seen, err);
    if (verdict == DPT_CLAIM_WAIT && !claim->wait_logged) {
        format_owner(&seen->record, owner);
        dpt_log(DPT_LOG_INFO,
                "'%s' is claimed by %s; waiting for %" PRId64 " ms to see whether it is alive",
                claim->dir, owner, seen->record.lease_ms);
        claim->wait_logged = true;
    }
    *ret_verdict = verdict;
    return DPT_OK;
}

/* ---- holding the folders ---- */

/* Rewrites the records of the held claims. After a disk error the thread goes on, but the claim
 * does not count as renewed until a rewriting succeeds. A folder that was removed has no record to
 * rewrite and counts as renewed. DPT_EREFUSED: the claim is lost. */
static enum dpt_status renew_all(struct dpt_claims *c, bool *logged, struct dpt_err *err)
{
    for (int i = 0; i < DPT_CLAIMS_MAX; i++) {
        struct claim *claim = &c->claim[i];
        struct dpt_err why;
        if (!claim->held)
            continue;
        const int64_t began_ms = dpt_now_ms();
        claim->record.server = c->server;
        const enum dpt_status status =
            dpt_claim_renew(claim->dir, claim->number, &claim->record, &why);
        if (status == DPT_EREFUSED)
            return dpt_pass(err, &why);
        if (status == DPT_OK || status == DPT_ENOENT)
            claim->renewed_ms = began_ms;
        if (status != DPT_OK && !*logged)
            dpt_log(
                DPT_LOG_WARN,
                "the claim of '%s' could not be renewed: %s; until a claim is renewed, this node "
                "writes nothing and waits at the next checkpoint",
                claim->dir, why.text);
        *logged = *logged || status != DPT_OK;
    }
    return DPT_OK;
}

/* The newest renewal of any claim counts: a process that wants to take the run over watches all its
 * folders for a lease, and takes none while one of their records changes. */
static int64_t newest_renewal_ms(const struct dpt_claims *c)
{
    int64_t newest_ms = 0;
    for (int i = 0; i < DPT_CLAIMS_MAX; i++)
        if (c->claim[i].held && c->claim[i].renewed_ms > newest_ms)
            newest_ms = c->claim[i].renewed_ms;
    return newest_ms;
}

static void hold_folders(struct dpt_claims *c)
{
    struct dpt_err err;
    bool logged = false;
    do {
        if (renew_all(c, &logged, &err) != DPT_OK) {
            publish_state(c, DPT_CLAIMS_LOST, 0, err.text);
            return;
        }
        publish_state(c, DPT_CLAIMS_HELD, newest_renewal_ms(c) + c->lease_ms - c->margin_ms, "");
    } while (wait_unless_stopped(c, c->beat_ms));
}

/* Looks at all folders that are not held, and takes the first of them if that is possible now.
 * *ret_left: number of folders that are still not held. */
static enum dpt_status claim_first_folder(struct dpt_claims *c, int *ret_left, struct dpt_err *err)
{
    struct claim *first = NULL;
    struct dpt_claim_seen seen;
    enum dpt_claim_verdict verdict = DPT_CLAIM_WAIT;
    int left = 0;
    for (int i = DPT_CLAIMS_MAX - 1; i >= 0; i--) {
        struct claim *claim = &c->claim[i];
        if (!claim->wanted || claim->held)
            continue;
        DPT_TRY(judge_folder(c, claim, &seen, &verdict, err));
        first = claim;
        left++;
    }
    if (verdict == DPT_CLAIM_TAKE)
        DPT_TRY(claim_folder(c, first, &seen, err));
    else if (verdict == DPT_CLAIM_JOIN)
        DPT_TRY(join_folder(c, first, &seen, err));
    *ret_left = first && first->held ? left - 1 : left;
    return DPT_OK;
}

/* Claims the folders in order: if two processes start at the same time, one gets the first folder
 * and the other gets none. The thread watches the owners of all folders at the same time, so that
 * it waits for dead owners only one lease. It renews held folders during the wait. */
static enum dpt_status acquire_folders(struct dpt_claims *c, struct dpt_err *err)
{
    bool logged = false;
    int before = DPT_CLAIMS_MAX + 1;
    for (;;) {
        int left;
        DPT_TRY(claim_first_folder(c, &left, err));
        if (left == 0)
            return DPT_OK;
        if (!wait_unless_stopped(c, left < before ? 0 : c->beat_ms / 2))
            return dpt_fail(err, DPT_EABORTED, "ended while the folders were claimed");
        before = left;
        DPT_TRY(renew_all(c, &logged, err));
    }
}

/* A claim that several processes share is not released: the other processes may live. */
static void release_all(struct dpt_claims *c)
{
    for (int i = 0; i < DPT_CLAIMS_MAX; i++) {
        struct claim *claim = &c->claim[i];
        struct dpt_claim_seen seen;
        claim->record.released = true;
        if (claim->held && dpt_claim_look(claim->dir, &seen, NULL) == DPT_OK && !seen.shared &&
            seen.number == claim->number &&
            dpt_claim_renew(claim->dir, claim->number, &claim->record, NULL) != DPT_OK)
            dpt_log(DPT_LOG_DEBUG, "the claim of '%s' was not released", claim->dir);
    }
}

static void *claims_thread(void *arg)
{
    struct dpt_claims *c = arg;
    struct dpt_err err = {.text = ""};
    const enum dpt_status status = acquire_folders(c, &err);
    if (status == DPT_OK)
        hold_folders(c);
    else if (status != DPT_EABORTED)
        publish_state(c, DPT_CLAIMS_REFUSED, 0, err.text);
    release_all(c);
    set_flag(c, &c->ended);
    return NULL;
}

/* ---- create, destroy, callers ---- */

static bool same_folder(const char *a, const char *b)
{
    struct stat x, y;
    return strcmp(a, b) == 0 ||
           (stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino);
}

static enum dpt_status init_folders(struct dpt_claims *c, const struct dpt_claims_options *options,
                                    struct dpt_err *err)
{
    struct dpt_claim_record me = {.lease_ms = c->lease_ms};
    (void)snprintf(me.run, sizeof me.run, "%s", options->run);
    dpt_claim_describe_self(&me);
    DPT_TRY(dpt_random_hex(16, me.token, err));
    for (int i = 0; i < DPT_CLAIMS_MAX; i++) {
        struct claim *claim = &c->claim[i];
        const char *dir = options->dir[i];
        claim->record = me;
        (void)snprintf(claim->dir, sizeof claim->dir, "%s", dir);
        if (!dir[0])
            continue;
        /* same_folder compares folders by stat, so they must exist. */
        DPT_TRY(dpt_fs_mkdirs(dir, err));
        claim->wanted = i == 0 || !options->dir[0][0] || !same_folder(options->dir[0], dir);
    }
    return DPT_OK;
}

enum dpt_status dpt_claims_create(const struct dpt_claims_options *options, struct dpt_claims **ret,
                                  struct dpt_err *err)
{
    struct dpt_claims *c = calloc(1, sizeof *c);
    if (!c)
        return dpt_fail_nomem(err, "claims of folders");
    c->lease_ms = options->timeout_ms > LEASE_MS_MIN ? options->timeout_ms : LEASE_MS_MIN;
    c->beat_ms = c->lease_ms / BEATS_A_LEASE;
    c->margin_ms = c->lease_ms / 4; /* the longest time to rewrite a record */
    c->waits = !options->embedded;
    c->server = options->server;
    enum dpt_status status = init_folders(c, options, err);
    if (status != DPT_OK) {
        free(c);
        return status;
    }
    (void)pthread_mutex_init(&c->mutex, NULL);
    (void)pthread_cond_init(&c->cond, NULL);
    int rc = pthread_create(&c->thread, NULL, claims_thread, c);
    if (rc != 0) {
        free(c);
        return dpt_fail_errno(err, rc, "start the thread that claims folders");
    }
    *ret = c;
    return DPT_OK;
}

void dpt_claims_destroy(struct dpt_claims **claims, int wait_ms)
{
    struct dpt_claims *c = *claims;
    if (!c)
        return;
    *claims = NULL;
    set_flag(c, &c->stop);
    /* False: a disk hangs. The thread goes on using `c` and ends with the process. */
    if (!wait_for_flag(c, &c->ended, wait_ms)) {
        (void)pthread_detach(c->thread);
        return;
    }
    (void)pthread_join(c->thread, NULL);
    (void)pthread_cond_destroy(&c->cond);
    (void)pthread_mutex_destroy(&c->mutex);
    free(c);
}

void dpt_claims_set_server(struct dpt_claims *c, uint64_t server)
{
    if (server != 0)
        c->server = server;
}

enum dpt_claims_state dpt_claims_state(struct dpt_claims *c, char *ret_text)
{
    (void)pthread_mutex_lock(&c->mutex);
    const enum dpt_claims_state state = c->state;
    if (ret_text != NULL)
        (void)snprintf(ret_text, DPT_ERR_TEXT_BYTES, "%s", c->text);
    (void)pthread_mutex_unlock(&c->mutex);
    return state;
}

int64_t dpt_claims_until_ms(struct dpt_claims *c)
{
    return c->until_ms;
}

bool dpt_claims_get(struct dpt_claims *c, int i, int64_t *ret_number,
                    char ret_token[DPT_CLAIM_TOKEN_BYTES])
{
    const struct claim *claim = c->claim[i].wanted ? &c->claim[i] : &c->claim[0];
    if (dpt_claims_state(c, NULL) != DPT_CLAIMS_HELD || !claim->held || !c->claim[i].dir[0])
        return false;
    *ret_number = claim->number;
    memcpy(ret_token, claim->record.token, DPT_CLAIM_TOKEN_BYTES);
    return true;
}
