/* Finding the newest complete checkpoint (complete_checkpoint.h). */
#include "checkpoint/complete_checkpoint.h"

#include "base/fs.h"
#include "base/hash.h"
#include "base/log.h"
#include "checkpoint/blocks.h"
#include "checkpoint/names.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEARCH_TRIES_MAX = 5, SAID_MAX = 64 };

static enum dpt_status open_complete(const struct dpt_folder *dir, int64_t step, bool rescue,
                                     struct dpt_complete *ret, struct dpt_err *err)
{
    struct dpt_complete complete = {.folder = DPT_FOLDER_CLOSED, .rescue = rescue};
    char name[DPT_CHECKPOINT_NAME_BYTES];
    dpt_name_step(step, rescue, name);
    enum dpt_status status = dpt_folder_open_in(dir, name, &complete.folder, err);
    if (status == DPT_OK)
        status = dpt_manifest_read(&complete.folder, DPT_NAME_MANIFEST, &complete.manifest, err);
    if (status == DPT_OK && complete.manifest.step != step)
        status = dpt_fail(err, DPT_ECORRUPT, "'%s/" DPT_NAME_MANIFEST "' belongs to step %lld",
                          complete.folder.path, (long long)complete.manifest.step);
    for (int i = 0; status == DPT_OK && i < complete.manifest.n_files; i++)
        status = dpt_blocks_check_size(&complete.folder, &complete.manifest.files[i], err);
    if (status != DPT_OK)
        dpt_complete_close(&complete);
    else
        *ret = complete;
    return status;
}

enum dpt_status dpt_complete_open(const struct dpt_folder *dir, int64_t step,
                                  enum dpt_complete_name name, struct dpt_complete *ret,
                                  struct dpt_err *err)
{
    struct dpt_err why, damage;
    if (name != DPT_COMPLETE_ANY)
        return open_complete(dir, step, name == DPT_COMPLETE_RESCUE, ret, err);
    enum dpt_status rescue = open_complete(dir, step, true, ret, &damage);
    if (rescue == DPT_OK)
        return DPT_OK;
    enum dpt_status status = open_complete(dir, step, false, ret, &why);
    if (status == DPT_OK)
        return DPT_OK;
    /* If the step has a rescue but no checkpoint, the rescue's damage is the error. */
    return dpt_pass(err, status == DPT_ENOENT && rescue != DPT_ENOENT ? &damage : &why);
}

void dpt_complete_close(struct dpt_complete *complete)
{
    dpt_manifest_fini(&complete->manifest);
    dpt_folder_close(&complete->folder);
}

static int by_step(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

enum dpt_status dpt_checkpoint_list_steps(const struct dpt_folder *dir, int64_t **ret_steps,
                                          size_t *ret_n, struct dpt_err *err)
{
    char **names;
    size_t n_names, n = 0;
    DPT_TRY(dpt_fs_list(dir->path, &names, &n_names, err));
    int64_t *steps = malloc((n_names + 1) * sizeof *steps);
    enum dpt_status status = steps ? DPT_OK : dpt_fail_nomem(err, "list of checkpoints");
    for (size_t i = 0; status == DPT_OK && i < n_names; i++) {
        if (!dpt_name_parse_step(names[i], &steps[n]) &&
            !dpt_name_parse_rescue(names[i], &steps[n]))
            continue;
        if (++n > DPT_CHECKPOINT_STEPS_MAX)
            status = dpt_fail(err, DPT_EOVERFLOW, "'%s' holds more than %d checkpoints", dir->path,
                              DPT_CHECKPOINT_STEPS_MAX);
    }
    dpt_fs_list_free(&names, n_names);
    if (status != DPT_OK) {
        free(steps);
        return status;
    }
    qsort(steps, n, sizeof *steps, by_step);
    size_t distinct = 0;
    for (size_t i = 0; i < n; i++)
        if (i == 0 || steps[i] != steps[i - 1])
            steps[distinct++] = steps[i];
    *ret_steps = steps;
    *ret_n = distinct;
    return DPT_OK;
}

struct search {
    int64_t found; /* -1: none */
    bool rescue;
    int n_damaged;                /* checkpoints after `found` that are not complete */
    char why[DPT_ERR_TEXT_BYTES]; /* the damage of the newest of them */
};

/* A process searches often. It warns once about each damage, and again when more checkpoints are
 * damaged. */
static bool is_news(const char *dir, const struct search *search)
{
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static struct {
        uint64_t key;
        int n_damaged;
    } said[SAID_MAX];     /* under the mutex; a new entry replaces the oldest */
    static size_t n_said; /* under the mutex */
    const uint64_t key = dpt_hash128_join(dpt_hash128(dir, strlen(dir)),
                                          dpt_hash128(search->why, strlen(search->why)))
                             .lo;
    (void)pthread_mutex_lock(&mutex);
    size_t i = 0;
    while (i < n_said && i < SAID_MAX && said[i].key != key)
        i++;
    const bool known = i < n_said && i < SAID_MAX;
    const bool news = !known || search->n_damaged > said[i].n_damaged;
    if (news && !known)
        i = n_said++ % SAID_MAX;
    if (news) {
        said[i].key = key;
        said[i].n_damaged = search->n_damaged;
    }
    (void)pthread_mutex_unlock(&mutex);
    return news;
}

/* One line for all damaged checkpoints. */
static void warn_damaged(const char *dir, const struct search *search)
{
    char others[48] = "",
         name[DPT_CHECKPOINT_NAME_BYTES] = "nothing: no complete checkpoint is there";
    if (search->n_damaged > 1)
        (void)snprintf(others, sizeof others, " (and %d older ones)", search->n_damaged - 1);
    if (search->found >= 0)
        dpt_name_step(search->found, search->rescue, name);
    dpt_log(is_news(dir, search) ? DPT_LOG_WARN : DPT_LOG_DEBUG,
            "the newest checkpoint in '%s'%s is not usable: %s; using %s", dir, others, search->why,
            name);
}

static enum dpt_status search_steps(const struct dpt_folder *dir, const int64_t *steps, size_t n,
                                    int64_t below, struct search *ret, struct dpt_err *err)
{
    struct dpt_err why;
    struct dpt_complete complete;
    *ret = (struct search){.found = -1};
    while (n > 0 && ret->found < 0) {
        const int64_t step = steps[--n];
        if (step >= below)
            continue;
        const enum dpt_status status =
            dpt_complete_open(dir, step, DPT_COMPLETE_ANY, &complete, &why);
        if (status == DPT_OK) {
            ret->found = step;
            ret->rescue = complete.rescue;
            dpt_complete_close(&complete);
        } else if (status == DPT_ENOMEM) {
            return dpt_pass(err, &why); /* not a fault of the checkpoint */
        } else if (ret->n_damaged++ == 0) {
            (void)snprintf(ret->why, sizeof ret->why, "%s", why.text);
        }
    }
    return DPT_OK;
}

/* Repeats the search until the folder does not change during it: a run that commits and prunes
 * there meanwhile can make checkpoints look damaged. Closes `dir`. */
static enum dpt_status search_unchanged_folder(struct dpt_folder *dir, int64_t below,
                                               struct search *ret, struct dpt_err *err)
{
    int64_t *steps = NULL, *after = NULL;
    size_t n = 0, n_after = 0;
    bool unchanged = false;
    enum dpt_status status = dpt_checkpoint_list_steps(dir, &steps, &n, err);
    for (int tries = 0; status == DPT_OK && !unchanged && tries < SEARCH_TRIES_MAX; tries++) {
        status = search_steps(dir, steps, n, below, ret, err);
        if (status != DPT_OK || ret->n_damaged == 0)
            break;
        status = dpt_checkpoint_list_steps(dir, &after, &n_after, err);
        if (status != DPT_OK)
            break;
        unchanged = n == n_after && memcmp(steps, after, n * sizeof *steps) == 0;
        free(steps);
        steps = after;
        n = n_after;
    }
    free(steps);
    dpt_folder_close(dir);
    return status;
}

enum dpt_status dpt_checkpoint_newest_below(const char *dir, int64_t below, int64_t *ret_step,
                                            struct dpt_err *err)
{
    struct dpt_folder folder;
    struct search search = {.found = -1};
    DPT_TRY(dpt_folder_open_if_present(dir, &folder, err));
    if (folder.fd >= 0)
        DPT_TRY(search_unchanged_folder(&folder, below, &search, err));
    if (search.n_damaged > 0)
        warn_damaged(dir, &search);
    *ret_step = search.found;
    return DPT_OK;
}

enum dpt_status dpt_checkpoint_newest(const char *dir, int64_t *ret_step, struct dpt_err *err)
{
    return dpt_checkpoint_newest_below(dir, INT64_MAX, ret_step, err);
}

enum dpt_status dpt_checkpoint_count(const char *dir, int64_t *ret, struct dpt_err *err)
{
    struct dpt_folder folder;
    int64_t *steps = NULL;
    size_t n = 0;
    DPT_TRY(dpt_folder_open_if_present(dir, &folder, err));
    const enum dpt_status status =
        folder.fd >= 0 ? dpt_checkpoint_list_steps(&folder, &steps, &n, err) : DPT_OK;
    dpt_folder_close(&folder);
    free(steps);
    if (status == DPT_OK)
        *ret = (int64_t)n;
    return status;
}
