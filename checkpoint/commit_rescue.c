/* Completes a rescue. No server chooses the writer that completes it. The first writer that finds
 * all parts takes over the attempt by a rename of its folder, which succeeds for one writer
 * only. */
#include "checkpoint/complete_checkpoint.h"
#include "checkpoint/parts.h"

#include "base/clock.h"

#include <errno.h>
#include <stdio.h>
#include <time.h>

enum { POLL_MS = 20 };

/* DPT_OK: this writer has taken over the attempt. DPT_ETIMEOUT: parts are missing. DPT_ENOENT:
 * another writer has taken it over. */
static enum dpt_status take_over(const struct dpt_checkpoint_spec *spec,
                                 const struct dpt_attempt *ours, struct dpt_err *err)
{
    struct dpt_attempt shared;
    enum dpt_status status = dpt_attempt_init(spec, &shared, err);
    if (status == DPT_OK)
        status = dpt_attempt_open(&shared, false, err);
    if (status == DPT_OK)
        status = dpt_parts_wait(&shared, dpt_now_ms(), err);
    if (status == DPT_OK) {
        struct dpt_err why = {.saved_errno = 0};
        status = dpt_io_rename(&shared.dir, shared.temporary_name, ours->temporary_name, &why);
        /* Another writer took over the attempt, and then a late writer began the shared folder
         * again. */
        if (why.saved_errno == ENOTEMPTY || why.saved_errno == EEXIST)
            status = DPT_ENOENT;
        if (status != DPT_OK && err)
            *err = why;
    }
    return dpt_attempt_end(&shared, status, err);
}

static bool is_rescued(const struct dpt_attempt *ours)
{
    struct dpt_complete complete;
    const enum dpt_status status =
        dpt_complete_open(&ours->dir, ours->spec->state.step, DPT_COMPLETE_RESCUE, &complete, NULL);
    if (status == DPT_OK)
        dpt_complete_close(&complete);
    return status == DPT_OK;
}

static enum dpt_status commit_rescue(const struct dpt_attempt *ours, struct dpt_err *err)
{
    enum dpt_status status = dpt_checkpoint_collect(ours->spec, 0, err);
    if (status == DPT_OK)
        status = dpt_checkpoint_commit(ours->spec, err);
    if (status == DPT_OK)
        return DPT_OK;
    dpt_checkpoint_abandon(ours->spec);
    return is_rescued(ours) ? DPT_OK : status; /* another node with the whole state was faster */
}

static enum dpt_status try_to_seal(const struct dpt_checkpoint_spec *spec,
                                   const struct dpt_attempt *ours, struct dpt_err *err)
{
    enum dpt_status status = take_over(spec, ours, err);
    if (status == DPT_OK)
        return commit_rescue(ours, err);
    if (status != DPT_ENOENT && status != DPT_ETIMEOUT)
        return status;
    if (!is_rescued(ours))
        return DPT_ETIMEOUT;
    /* This writer began the shared folder again after another writer had taken over the attempt. */
    dpt_checkpoint_abandon(spec);
    return DPT_OK;
}

enum dpt_status dpt_checkpoint_seal(const struct dpt_checkpoint_spec *spec, int64_t deadline_ms,
                                    struct dpt_err *err)
{
    DPT_ASSERT(spec->state.rescue.node);
    char name[DPT_CHECKPOINT_ATTEMPT_BYTES_MAX + 8];
    struct dpt_checkpoint_spec sealer = *spec;
    struct dpt_attempt ours;
    (void)snprintf(name, sizeof name, "%s-seal", spec->attempt);
    sealer.writer = 0;
    sealer.attempt = name;
    enum dpt_status status = dpt_attempt_init(&sealer, &ours, err);
    if (status != DPT_OK)
        return dpt_attempt_end(&ours, status, err);
    while ((status = try_to_seal(spec, &ours, err)) == DPT_ETIMEOUT && dpt_now_ms() < deadline_ms) {
        const struct timespec pause = {.tv_nsec = POLL_MS * 1000000};
        (void)nanosleep(&pause, NULL); /* no notification works on every shared file system */
    }
    dpt_attempt_end(&ours, DPT_OK, err);
    return status;
}
