/* Writes a rank's part of a rescue (checkpoint.h): the held state, without a generation and without
 * a server. A rank that holds the whole state writes it alone. Otherwise every rank that must leave
 * writes its part, under the name of the generation in which the ranks agreed on the state. */
#include "base/hash.h"
#include "base/log.h"
#include "checkpoint/names.h"
#include "worker/train/save/save.h"

#include <stdio.h>
#include <string.h>

static bool holds_all(const struct dpt_state_part *part)
{
    return part->shard.of == 1;
}

/* `alone`: this rank writes the whole state. Other ranks may do the same, so the name of the rank
 * separates the attempts. */
static void name_attempt(const struct dpt_rank *r, bool alone, char ret[DPT_PROTO_NAME_BYTES])
{
    const struct dpt_rank_start *start = r->options->start;
    char node[DPT_HASH_HEX_BYTES];
    dpt_hash128_hex(dpt_hash128(start->node, strlen(start->node)), node);
    if (alone)
        (void)snprintf(ret, DPT_PROTO_NAME_BYTES, DPT_NAME_RESCUE_ATTEMPT "%s-%d-%d", node,
                       start->local_rank, start->spawn);
    else
        (void)snprintf(ret, DPT_PROTO_NAME_BYTES, DPT_NAME_RESCUE_ATTEMPT "%s",
                       r->state.held_attempt);
}

static enum dpt_status write_rescued_part(struct dpt_rank *r, const struct dpt_state_part *part,
                                          struct dpt_checkpoint_spec *spec, struct dpt_err *err)
{
    DPT_TRY(dpt_state_pieces_of_part(&r->save->tensors, part, &r->save->saved_pieces, err));
    spec->pieces = r->save->saved_pieces.piece;
    spec->n_pieces = r->save->saved_pieces.n;
    spec->writer = part->shard.index;
    spec->n_writers = part->shard.of;
    enum dpt_status status = dpt_checkpoint_write_part(spec, err);
    return status == DPT_EEXIST ? DPT_OK : status; /* another rank writes a replica of this part */
}

/* Whether the rescue may get its final name. A rescue has no grant: only the claim shows that no
 * new start of the run has taken the folder. */
static bool may_rename_rescue(void *ctx)
{
    const struct dpt_rank *r = ctx;
    struct dpt_err err;
    const bool may = dpt_saver_owns_folder(r->save->saver, r->config->checkpoint.dir, &err);
    if (!may)
        dpt_log(DPT_LOG_ERROR, "the rescue of step %lld is given up: %s", (long long)r->state.step,
                err.text);
    return may;
}

enum dpt_status rank_write_rescue(struct dpt_rank *r, int64_t deadline_ms, struct dpt_err *err)
{
    char attempt[DPT_PROTO_NAME_BYTES];
    DPT_TRY(dpt_strategy_fetch_state(r->strategy, err));
    const struct dpt_strategy_state *held = dpt_strategy_held(r->strategy);
    const struct dpt_shard own = held->own.shard, shadow = held->shadow.shard;
    name_attempt(r, holds_all(&held->own), attempt);
    struct dpt_checkpoint_spec spec = rank_checkpoint_spec(r);
    spec.generation = r->state.held_generation;
    spec.attempt = attempt;
    spec.state.rescue.run = r->config->run;
    spec.state.rescue.node = r->options->start->node;
    spec.state.rescue.generation = r->state.held_generation;
    spec.may_rename = may_rename_rescue;
    spec.ctx = r;
    DPT_TRY(write_rescued_part(r, &held->own, &spec, err));
    /* The shadow is also written: it is the shard of a rank that may be dead. */
    if (!dpt_shard_is_none(shadow) && shadow.of == own.of)
        DPT_TRY(write_rescued_part(r, &held->shadow, &spec, err));
    return dpt_checkpoint_seal(&spec, deadline_ms, err);
}
