/* Finding the newest whole checkpoint (whole.h). */
#include "checkpoint/whole.h"

#include "base/fs.h"
#include "base/hash.h"
#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/names.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEARCH_TRIES_MAX = 5, SAID_MAX = 64 };

static enum dpt_status open_named(const struct dpt_folder *dir, const char *name, int64_t step,
                                  struct dpt_folder *ret_folder, struct dpt_manifest *ret_manifest,
                                  struct dpt_err *err)
{
    char path[PATH_MAX];
    struct dpt_folder folder = DPT_FOLDER_CLOSED;
    struct dpt_manifest manifest = {0};
    char *text = NULL;
    size_t bytes;
    enum dpt_status status = dpt_folder_open_in(dir, name, &folder, err);
    if (status == DPT_OK)
        status = dpt_fs_join(folder.path, DPT_NAME_MANIFEST, path, sizeof path, err);
    if (status == DPT_OK)
        status = dpt_io_read_small(&folder, DPT_NAME_MANIFEST, DPT_MANIFEST_BYTES_MAX, &text,
                                   &bytes, err);
    if (status == DPT_OK)
        status = dpt_manifest_parse(text, bytes, path, &manifest, err);
    if (status == DPT_OK && manifest.step != step)
        status = dpt_fail(err, DPT_ECORRUPT, "'%s' belongs to step %lld", path,
                          (long long)manifest.step);
    for (int i = 0; status == DPT_OK && i < manifest.n_files; i++) {
        const struct dpt_manifest_file *file = &manifest.files[i];
        int64_t file_bytes;
        status = dpt_io_size(&folder, file->name, &file_bytes, err);
        if (status == DPT_OK && file_bytes != file->bytes)
            status =
                dpt_fail(err, DPT_ECORRUPT, "'%s/%s' has %lld bytes, the manifest says %lld",
                         folder.path, file->name, (long long)file_bytes, (long long)file->bytes);
    }
    free(text);
    if (status != DPT_OK) {
        dpt_manifest_fini(&manifest);
        dpt_folder_close(&folder);
        return status;
    }
    *ret_folder = folder;
    *ret_manifest = manifest;
    return DPT_OK;
}

static enum dpt_status open_one(const struct dpt_folder *dir, int64_t step, bool rescue,
                                struct dpt_whole *ret, struct dpt_err *err)
{
    char name[DPT_CHECKPOINT_NAME_BYTES];
    if (rescue)
        dpt_name_rescue(step, name);
    else
        dpt_name_step(step, name);
    DPT_TRY(open_named(dir, name, step, &ret->folder, &ret->manifest, err));
    ret->rescue = rescue;
    return DPT_OK;
}

enum dpt_status dpt_whole_open(const struct dpt_folder *dir, int64_t step, enum dpt_whole_name name,
                               struct dpt_whole *ret, struct dpt_err *err)
{
    struct dpt_err why, damage;
    if (name != DPT_WHOLE_ANY)
        return open_one(dir, step, name == DPT_WHOLE_RESCUE, ret, err);
    enum dpt_status rescue = open_one(dir, step, true, ret, &damage);
    if (rescue == DPT_OK)
        return DPT_OK;
    enum dpt_status status = open_one(dir, step, false, ret, &why);
    if (status == DPT_OK)
        return DPT_OK;
    /* Without a checkpoint beside it, the rescue's damage is the error. */
    return status == DPT_ENOENT && rescue != DPT_ENOENT ? dpt_pass(err, &damage)
                                                        : dpt_pass(err, &why);
}

void dpt_whole_close(struct dpt_whole *whole)
{
    dpt_manifest_fini(&whole->manifest);
    dpt_folder_close(&whole->folder);
}

enum dpt_status dpt_whole_check(const struct dpt_folder *dir, int64_t step,
                                enum dpt_whole_name name, struct dpt_err *err)
{
    struct dpt_whole whole;
    DPT_TRY(dpt_whole_open(dir, step, name, &whole, err));
    dpt_whole_close(&whole);
    return DPT_OK;
}

static int by_step(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

enum dpt_status dpt_whole_steps(const struct dpt_folder *dir, int64_t **ret_steps, size_t *ret_n,
                                struct dpt_err *err)
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
    int n_bad;                    /* newer checkpoints that are not whole */
    char why[DPT_ERR_TEXT_BYTES]; /* of the newest of them */
};

/* A process searches often; it warns once for each finding, and again if more is damaged. */
static bool is_news(const char *dir, const struct search *search)
{
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static struct {
        uint64_t key;
        int n_bad;
    } said[SAID_MAX];     /* under the mutex; a new entry replaces the oldest */
    static size_t n_said; /* likewise */
    const uint64_t words[] = {dpt_hash128(dir, strlen(dir)).lo,
                              dpt_hash128(search->why, strlen(search->why)).lo};
    const uint64_t key = dpt_hash128(words, sizeof words).lo;
    (void)pthread_mutex_lock(&mutex);
    size_t i = 0;
    while (i < n_said && i < SAID_MAX && said[i].key != key)
        i++;
    const bool known = i < n_said && i < SAID_MAX;
    const bool news = !known || search->n_bad > said[i].n_bad;
    if (news && !known)
        i = n_said++ % SAID_MAX;
    if (news) {
        said[i].key = key;
        said[i].n_bad = search->n_bad;
    }
    (void)pthread_mutex_unlock(&mutex);
    return news;
}

/* One line for all that was passed over. */
static void warn_passed_over(const char *dir, const struct search *search)
{
    char others[48] = "", name[DPT_CHECKPOINT_NAME_BYTES] = "nothing, no checkpoint there is whole";
    if (search->n_bad > 1)
        (void)snprintf(others, sizeof others, " (and %d older ones)", search->n_bad - 1);
    if (search->found >= 0 && search->rescue)
        dpt_name_rescue(search->found, name);
    else if (search->found >= 0)
        dpt_name_step(search->found, name);
    dpt_log(is_news(dir, search) ? DPT_LOG_WARN : DPT_LOG_DEBUG,
            "the newest checkpoint in '%s'%s is not usable: %s; using %s", dir, others, search->why,
            name);
}

static enum dpt_status look_for_whole(const struct dpt_folder *dir, int64_t step, bool *ret_rescue,
                                      struct dpt_err *err)
{
    struct dpt_whole whole;
    DPT_TRY(dpt_whole_open(dir, step, DPT_WHOLE_ANY, &whole, err));
    *ret_rescue = whole.rescue;
    dpt_whole_close(&whole);
    return DPT_OK;
}

static enum dpt_status search_steps(const struct dpt_folder *dir, const int64_t *steps, size_t n,
                                    int64_t below, struct search *ret, struct dpt_err *err)
{
    struct dpt_err why;
    *ret = (struct search){.found = -1};
    while (n > 0 && ret->found < 0) {
        const int64_t step = steps[--n];
        if (step >= below)
            continue;
        enum dpt_status whole = look_for_whole(dir, step, &ret->rescue, &why);
        if (whole == DPT_OK)
            ret->found = step;
        else if (whole == DPT_ENOMEM)
            return dpt_pass(err, &why); /* no fault of the checkpoint */
        else if (ret->n_bad++ == 0)
            (void)snprintf(ret->why, sizeof ret->why, "%s", why.text);
    }
    return DPT_OK;
}

/* Searches again until the folder did not change during the search: a run that commits and prunes
 * there meanwhile can make checkpoints look damaged. Closes `dir`. */
static enum dpt_status search_at_rest(struct dpt_folder *dir, int64_t below, struct search *ret,
                                      struct dpt_err *err)
{
    int64_t *steps = NULL, *after = NULL;
    size_t n = 0, n_after = 0;
    bool rest = false;
    enum dpt_status status = dpt_whole_steps(dir, &steps, &n, err);
    for (int tries = 0; status == DPT_OK && !rest && tries < SEARCH_TRIES_MAX; tries++) {
        status = search_steps(dir, steps, n, below, ret, err);
        if (status != DPT_OK || ret->n_bad == 0)
            break;
        status = dpt_whole_steps(dir, &after, &n_after, err);
        if (status != DPT_OK)
            break;
        rest = n == n_after && memcmp(steps, after, n * sizeof *steps) == 0;
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
        DPT_TRY(search_at_rest(&folder, below, &search, err));
    if (search.n_bad > 0)
        warn_passed_over(dir, &search);
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
        folder.fd >= 0 ? dpt_whole_steps(&folder, &steps, &n, err) : DPT_OK;
    dpt_folder_close(&folder);
    free(steps);
    if (status == DPT_OK)
        *ret = (int64_t)n;
    return status;
}
