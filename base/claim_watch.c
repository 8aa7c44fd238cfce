/* The rules that decide whether a run may take a folder (claim.h). */
#include "base/claim.h"

#include <string.h>

/* Notes whether the record has moved since the last look. */
static void note_record(struct dpt_claim_watch *watch, const struct dpt_claim_seen *seen,
                        int64_t now_ms)
{
    const bool same =
        watch->begun && watch->number == seen->number && watch->digest == seen->digest;
    if (!watch->begun)
        watch->first_ms = now_ms;
    watch->moved = watch->moved || (watch->begun && !same);
    if (!same)
        watch->moved_ms = now_ms;
    watch->begun = true;
    watch->number = seen->number;
    watch->digest = seen->digest;
}

enum dpt_claim_verdict dpt_claim_judge(struct dpt_claim_watch *watch,
                                       const struct dpt_claim_record *me, bool waits,
                                       const struct dpt_claim_seen *seen, bool may_live,
                                       int64_t now_ms)
{
    const struct dpt_claim_record *owner = &seen->record;
    note_record(watch, seen, now_ms);
    if (seen->number == 0)
        return DPT_CLAIM_TAKE;
    if (!seen->readable) /* an ended holder may have left the record half written */
        return now_ms - watch->moved_ms >= me->lease_ms ? DPT_CLAIM_REFUSED : DPT_CLAIM_WAIT;
    if (strcmp(owner->run, me->run) != 0)
        return DPT_CLAIM_REFUSED;
    if (strcmp(owner->token, me->token) == 0)
        return DPT_CLAIM_JOIN;
    if (!seen->shared && (owner->released || !may_live))
        return DPT_CLAIM_TAKE;
    /* Workers with the same server belong to one run, and the server decides which of them are
     * members. */
    if (owner->server == me->server)
        return DPT_CLAIM_JOIN;
    if (now_ms - watch->moved_ms >= owner->lease_ms)
        return DPT_CLAIM_TAKE;
    if (watch->moved && (!waits || now_ms - watch->first_ms >= owner->lease_ms))
        return DPT_CLAIM_REFUSED;
    return DPT_CLAIM_WAIT;
}
