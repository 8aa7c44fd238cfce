/* The run's log as the rank sees it: who writes it, when it may, and what a predecessor could not
 * write (logbook.h). */
#include "base/clock.h"
#include "base/fs.h"
#include "base/log.h"
#include "worker/train/rank_internal.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

static bool interrupted(void *ctx)
{
    const struct dpt_rank *r = ctx;
    return dpt_link_interrupted(r->link, r->gen.number);
}

static void hold(void *ctx, const struct dpt_runlog_line *line)
{
    struct dpt_rank *r = ctx;
    dpt_logbook_add(r->book, line, dpt_now_ms());
}

/* What the server has confirmed was made by a world that counted; and what is made so shortly after
 * that is, too, since nobody is expelled within the grace. */
static bool may_append(void *ctx, int64_t made_ms)
{
    const struct dpt_rank *r = ctx;
    const int64_t confirmed_ms = dpt_link_confirmed_ms(r->link);
    return dpt_link_may_write(r->link) &&
           (made_ms <= confirmed_ms || dpt_now_ms() < confirmed_ms + r->grace_ms);
}

static void appended(void *ctx, enum dpt_status status, const struct dpt_err *err)
{
    rank_check_log(ctx, status, err);
}

enum dpt_status rank_open_log(struct dpt_rank *r, struct dpt_err *err)
{
    const struct dpt_rank_start *start = r->options->start;
    const char *dir = r->config->log.dir;
    char folder[2 * DPT_CONFIG_PATH_BYTES], name[64];
    if (!dir[0])
        return DPT_OK;
    (void)snprintf(folder, sizeof folder, "%s/node-%s", dir, start->node);
    (void)snprintf(name, sizeof name, "rank-%d.unconfirmed.jsonl", start->local_rank);
    const struct dpt_logbook_options options = {.dir = dir,
                                                .spill_dir = folder,
                                                .spill_name = name,
                                                .may_append = may_append,
                                                .appended = appended,
                                                .ctx = r};
    r->log = (struct dpt_runlog){.dir = dir, .hold = hold, .ctx = r};
    return dpt_logbook_create(&options, &r->book, err);
}

bool rank_keeps_log(const struct dpt_rank *r)
{
    return r->book && r->gen.begun;
}

void rank_flush_log(struct dpt_rank *r)
{
    if (r->book)
        (void)dpt_logbook_flush(r->book);
}

void rank_add_line(struct dpt_rank *r, enum dpt_status status, const struct dpt_err *err)
{
    if (status != DPT_OK)
        rank_check_log(r, status, err);
    rank_flush_log(r);
}

void rank_begin_log(struct dpt_rank *r)
{
    struct dpt_err err;
    struct dpt_runlog_place last = {.step = -1};
    if (!r->book)
        return;
    const enum dpt_status status = dpt_runlog_last(r->config->log.dir, &last, &err);
    if (r->gen.writes_log)
        rank_check_log(r, status, &err);
    dpt_logbook_begin(r->book, r->gen.writes_log, r->step, &last);
    rank_flush_log(r);
}

void rank_end_log(struct dpt_rank *r)
{
    if (r->book)
        dpt_logbook_end(r->book);
}

bool rank_settles_log(struct dpt_rank *r)
{
    if (!r->book || !r->gen.writes_log ||
        !dpt_link_await_confirmed(r->link, r->grace_ms, interrupted, r))
        return false;
    rank_flush_log(r);
    return true;
}

static bool is_unconfirmed(const char *name)
{
    static const char suffix[] = ".unconfirmed.jsonl";
    const size_t n = strlen(name), m = sizeof suffix - 1;
    return n > m && strcmp(name + n - m, suffix) == 0;
}

/* Adds those of one node's folder. */
static void find_unconfirmed(const char *folder, char first[PATH_MAX], int *n)
{
    char **names = NULL, path[PATH_MAX];
    size_t n_names = 0;
    if (dpt_fs_list(folder, &names, &n_names, NULL) != DPT_OK)
        return;
    for (size_t i = 0; i < n_names; i++)
        if (is_unconfirmed(names[i]) &&
            dpt_fs_join(folder, names[i], path, sizeof path, NULL) == DPT_OK && (*n)++ == 0)
            memcpy(first, path, sizeof path);
    dpt_fs_list_free(&names, n_names);
}

void rank_tell_unconfirmed(const struct dpt_rank *r)
{
    char **names = NULL, folder[PATH_MAX], first[PATH_MAX] = "", more[48] = "";
    size_t n_names = 0;
    int n = 0;
    if (!r->book || !r->gen.writes_log ||
        dpt_fs_list(r->config->log.dir, &names, &n_names, NULL) != DPT_OK)
        return;
    for (size_t i = 0; i < n_names; i++)
        if (strncmp(names[i], "node-", 5) == 0 &&
            dpt_fs_join(r->config->log.dir, names[i], folder, sizeof folder, NULL) == DPT_OK)
            find_unconfirmed(folder, first, &n);
    dpt_fs_list_free(&names, n_names);
    if (n > 1)
        (void)snprintf(more, sizeof more, " and in %d more such files", n - 1);
    if (n > 0)
        dpt_log(DPT_LOG_WARN,
                "the run goes on from a rescue: lines of steps before it that metrics.jsonl lacks "
                "are in '%s'%s",
                first, more);
}
