/* Messages about a checkpoint.dir that cannot be used (save.h). */
#include "worker/train/save/save.h"

#include "base/log.h"

#include <stdio.h>

bool rank_quote_error(struct dpt_rank *r, const struct dpt_err *err, char ret[RANK_WHY_BYTES])
{
    const bool is_news = !dpt_err_is_like(&r->save->told_error, err);
    if (is_news)
        (void)snprintf(ret, RANK_WHY_BYTES, ": %s", err->text);
    else
        (void)snprintf(ret, RANK_WHY_BYTES, ", for the reason logged before");
    r->save->told_error = *err;
    return is_news;
}

void rank_tell_unsaved(struct dpt_rank *r)
{
    if (r->save->saves_failed > 1)
        dpt_log(DPT_LOG_WARN, "%lld more checkpoints %s '%s'",
                (long long)(r->save->saves_failed - 1),
                r->save->save_error.status == DPT_ENOSPC ? "found no room in"
                                                         : "could not be written to",
                r->config->checkpoint.dir);
    r->save->saves_failed = 0;
}

void rank_note_unsaved(struct dpt_rank *r, const struct dpt_err *err)
{
    char why[RANK_WHY_BYTES];
    if (r->save->saves_failed > 0 && !dpt_err_is_like(&r->save->save_error, err))
        rank_tell_unsaved(r);
    r->save->save_error = *err;
    if (r->save->saves_failed++ > 0)
        return; /* rank_tell_unsaved logs how often it came */
    (void)rank_quote_error(r, err, why);
    dpt_log(
        DPT_LOG_ERROR,
        "a checkpoint was not written%s; training continues, and further failures are counted; %s",
        why,
        err->status == DPT_ENOSPC ? "make room before the next one or lower checkpoint.keep"
                                  : "the next one is tried at its step");
}

void rank_note_saves(struct dpt_rank *r)
{
    const int64_t seen = r->save->saves_seen;
    r->save->saves_seen = dpt_saver_saved(r->save->saver).n;
    if (r->save->saves_seen == seen)
        return;
    rank_tell_unsaved(r);
    r->save->told_error = (struct dpt_err){.status = DPT_OK};
}
