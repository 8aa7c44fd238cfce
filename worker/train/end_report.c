/* What a rank says of its failures: of the one that ends it, whose error it is and what its agent
 * is told; of those that it survives, the first, and how many came after it. */
#include "base/log.h"
#include "worker/train/rank_internal.h"

#include <stdio.h>

enum { EXIT_CODE_CONFIG = 2, EXIT_CODE_FAILED = 4, EXIT_CODE_EXPELLED = 75 };

/* Config and the files it names are the user's to mend, and trying again does not help. */
static int exit_code_of(enum dpt_status status)
{
    switch (status) {
    case DPT_ECONFIG:
    case DPT_EINVAL:
    case DPT_ENOENT:
    case DPT_EIO: /* before the first step: a file that was named and cannot be read */
    case DPT_ECORRUPT:
    case DPT_EVERSION:
    case DPT_EUNSUPPORTED:
        return EXIT_CODE_CONFIG;
    case DPT_EREFUSED: /* the folder is another run's now */
        return EXIT_CODE_EXPELLED;
    default:
        return EXIT_CODE_FAILED;
    }
}

/* What a later process of a place lacks and the first one had: a mount, a device, memory. */
static bool may_come_back(enum dpt_status status)
{
    return status == DPT_EDEVICE || status == DPT_EIO || status == DPT_ENOENT ||
           status == DPT_ENOMEM;
}

/* The last words, which the agent says: it makes them the run's error; or, of a fault of this
 * machine alone, that of this process, whose place another takes. */
static void report_end(struct dpt_rank *r, bool fatal, int exit_code, const char *text)
{
    dpt_log(r->link ? DPT_LOG_INFO : DPT_LOG_ERROR, "this process ends: %s", text);
    if (!r->link)
        return;
    (void)pthread_mutex_lock(&r->report_mutex);
    r->report.fatal = fatal;
    r->report.broken = !fatal;
    r->report.sound = fatal && r->reading_failed;
    r->report.exit_code = (uint32_t)exit_code;
    (void)snprintf(r->report.text, sizeof r->report.text, "%.*s", DPT_PROTO_TEXT_BYTES - 1, text);
    dpt_link_publish(r->link, &r->report, true);
    (void)pthread_mutex_unlock(&r->report_mutex);
}

int rank_tell_end(struct dpt_rank *r, enum dpt_status status, bool at_work, struct dpt_err *err)
{
    if (status == DPT_EPEER) /* the agent is gone: nobody is left to tell */
        return EXIT_CODE_FAILED;
    const int exit_code = at_work && status != DPT_ECONFIG && status != DPT_EREFUSED
                              ? EXIT_CODE_FAILED
                              : exit_code_of(status);
    const bool own =
        at_work ? status == DPT_EDEVICE : r->options->start->spawn > 1 && may_come_back(status);
    rank_explain_memory(status, err);
    report_end(r, !own, exit_code, err->text);
    return exit_code;
}

static void tell_lost_records(struct dpt_rank *r)
{
    if (r->records_lost > 1)
        dpt_log(DPT_LOG_WARN, "%lld more records of the run's log in '%s' are lost",
                (long long)(r->records_lost - 1), r->config->log.dir);
    r->records_lost = r->records_lost > 0;
}

void rank_check_log(struct dpt_rank *r, enum dpt_status status, const struct dpt_err *err)
{
    if (status == DPT_OK) {
        tell_lost_records(r);
        r->records_lost = 0;
        return;
    }
    if (r->records_lost++ == 0)
        dpt_log(DPT_LOG_ERROR,
                "a record of the run's log is lost: %s; training goes on, more of them are counted",
                err->text);
}

/* ---- checkpoint.dir: what keeps one checkpoint from it mostly keeps others, too ---- */

bool rank_say_why(struct dpt_rank *r, const struct dpt_err *err, char ret[RANK_WHY_BYTES])
{
    const bool is_news = !dpt_err_is_like(&r->told_error, err);
    if (is_news)
        (void)snprintf(ret, RANK_WHY_BYTES, ": %s", err->text);
    else
        (void)snprintf(ret, RANK_WHY_BYTES, ", for the reason that was told before");
    r->told_error = *err;
    return is_news;
}

static void tell_unsaved(struct dpt_rank *r)
{
    if (r->saves_failed > 1)
        dpt_log(DPT_LOG_WARN, "%lld more checkpoints %s '%s'", (long long)(r->saves_failed - 1),
                r->save_error.status == DPT_ENOSPC ? "found no room in" : "could not be written to",
                r->config->checkpoint.dir);
    r->saves_failed = 0;
}

void rank_note_unsaved(struct dpt_rank *r, const struct dpt_err *err)
{
    char why[RANK_WHY_BYTES];
    if (r->saves_failed > 0 && !dpt_err_is_like(&r->save_error, err))
        tell_unsaved(r);
    r->save_error = *err;
    if (r->saves_failed++ > 0)
        return; /* rank_tell_repeated says how often */
    (void)rank_say_why(r, err, why);
    dpt_log(DPT_LOG_ERROR,
            "a checkpoint was not written%s; training goes on, more of them are counted; %s", why,
            err->status == DPT_ENOSPC ? "make room before the next one or lower checkpoint.keep"
                                      : "the next one is tried at its step");
}

void rank_note_saves(struct dpt_rank *r)
{
    int64_t step;
    const int64_t seen = r->saves_seen;
    r->saves_seen = dpt_saver_saved(r->saver, &step);
    if (r->saves_seen == seen)
        return;
    tell_unsaved(r);
    r->told_error = (struct dpt_err){.status = DPT_OK};
}

void rank_tell_repeated(struct dpt_rank *r)
{
    tell_lost_records(r);
    tell_unsaved(r);
}
