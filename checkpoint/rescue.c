/* Making a rescue whole without anybody who could say which writer does it: the first that finds
 * all parts takes the attempt over by giving its folder another name, which only one can. */
#include "checkpoint/parts.h"
#include "checkpoint/whole.h"

#include "base/clock.h"

#include <stdio.h>
#include <time.h>

enum { POLL_MS = 20 };

/* DPT_OK: the attempt is ours alone. DPT_ETIMEOUT: parts are missing. DPT_ENOENT: it is another's.
 */
static enum dpt_status take_over(const struct dpt_checkpoint_spec *spec,
                                 const struct dpt_attempt *ours, struct dpt_err *err)
{
    struct dpt_attempt shared;
    enum dpt_status status = dpt_attempt_init(spec, &shared, err);
    if (status == DPT_OK)
        status = dpt_attempt_open(&shared, false, err);
    if (status == DPT_OK)
        status = dpt_parts_wait(spec, &shared, dpt_now_ms(), err);
    if (status == DPT_OK)
        status = dpt_io_rename(&shared.dir, shared.temporary_name, ours->temporary_name, err);
    dpt_attempt_fini(&shared);
    return dpt_attempt_wrap(spec, status, err);
}

static enum dpt_status make_whole(const struct dpt_checkpoint_spec *sealer,
                                  const struct dpt_folder *dir, struct dpt_err *err)
{
    enum dpt_status status = dpt_checkpoint_collect(sealer, 0, err);
    if (status == DPT_OK)
        status = dpt_checkpoint_commit(sealer, err);
    if (status == DPT_OK)
        return DPT_OK;
    dpt_checkpoint_abandon(sealer);
    /* Another node that holds everything was a moment faster. */
    struct dpt_err none;
    return dpt_whole_check(dir, sealer->state.step, DPT_WHOLE_RESCUE, &none) == DPT_OK ? DPT_OK
                                                                                       : status;
}

static enum dpt_status try_to_seal(const struct dpt_checkpoint_spec *spec,
                                   const struct dpt_checkpoint_spec *sealer,
                                   const struct dpt_attempt *ours, struct dpt_err *err)
{
    struct dpt_err none;
    enum dpt_status status = take_over(spec, ours, err);
    if (status == DPT_OK)
        return make_whole(sealer, &ours->dir, err);
    if (status != DPT_ENOENT && status != DPT_ETIMEOUT)
        return status;
    if (dpt_whole_check(&ours->dir, spec->state.step, DPT_WHOLE_RESCUE, &none) != DPT_OK)
        return DPT_ETIMEOUT;
    dpt_checkpoint_abandon(spec); /* what this writer began after another took the attempt over */
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
    if (status == DPT_OK)
        status = try_to_seal(spec, &sealer, &ours, err);
    else
        status = dpt_attempt_wrap(spec, status, err);
    while (status == DPT_ETIMEOUT && dpt_now_ms() < deadline_ms) {
        const struct timespec pause = {.tv_nsec = POLL_MS * 1000000};
        (void)nanosleep(&pause, NULL); /* polled, because a shared file system has no other means */
        status = try_to_seal(spec, &sealer, &ours, err);
    }
    dpt_attempt_fini(&ours);
    return status;
}
