/* Fills the state in a formation: each rank receives its parts from the ranks that hold them, from
 * a checkpoint or from the seed, and all ranks compare the result (formation.h). */
#include "worker/train/formation/formation.h"

#include "base/clock.h"
#include "base/log.h"
#include "worker/strategy/state/move_state.h"
#include "worker/train/save/save.h"
#include "worker/train/save/state_hash.h"

#include <stdlib.h>
#include <string.h>

/* Messages between ranks have no version. The version in the server's protocol keeps other builds
 * out of the run. */
_Static_assert(DPT_PROTO_VERSION == 9 && DPT_HANDSHAKE_BYTES == 43 * 8 &&
                   sizeof(struct dpt_eval_share) == 6 * 8,
               "a hello or share of another size is another DPT_PROTO_VERSION");

_Static_assert((int)DPT_SHARD_EMPTY_INDEX >= (int)DPT_COMM_WORLD_MAX &&
                   (int)DPT_SHARD_EMPTY_INDEX >= (int)DPT_PROTO_WORLD_MAX,
               "no world has a shard with the numbers of the empty one");

enum source { SOURCE_MEMORY, SOURCE_CHECKPOINT, SOURCE_SEED };

struct filling {
    struct dpt_rank *rank;
    enum source source;
    bool takes_state; /* this rank receives its state from another rank */
    struct dpt_hello mine;
    struct dpt_hello *hellos; /* [world_size] received in the last exchange */
    const struct dpt_strategy_state *held, *wanted;
};

/* ---- exchanges ---- */

static enum dpt_status exchange_hellos(struct filling *f, struct dpt_err *err)
{
    struct generation *g = &f->rank->gen;
    uint8_t mine[DPT_HANDSHAKE_BYTES];
    dpt_hello_pack(&f->mine, mine);
    DPT_TRY(generation_all_gather(g, f->rank->comm_thread, mine, sizeof mine, err));
    const uint8_t(*all)[DPT_HANDSHAKE_BYTES] = g->gathered;
    for (int i = 0; i < g->world_size; i++)
        f->hellos[i] = dpt_hello_unpack(all[i]);
    return DPT_OK;
}

/* Whether a shard that another rank has sent can exist. */
static bool is_possible_shard(struct dpt_shard shard)
{
    return dpt_shard_is_none(shard) || dpt_shard_is_empty(shard) ||
           (shard.of > 0 && shard.of <= DPT_COMM_WORLD_MAX && shard.index >= 0 &&
            shard.index < shard.of);
}

/* Notes the shards that the ranks will hold, and the shards of the writers of a checkpoint. */
static enum dpt_status learn_shards(struct filling *f, struct dpt_err *err)
{
    struct generation *g = &f->rank->gen;
    for (int i = 0; i < g->world_size; i++) {
        const struct dpt_hello h = f->hellos[i];
        bool good = is_possible_shard(h.own) && is_possible_shard(h.late) &&
                    dpt_shard_is_none(h.own) == (i >= g->n_trainers) &&
                    h.checkpoint_slot < g->checkpoint_writers;
        for (int k = 0; k < DPT_MOVE_STATE_PARTS; k++)
            good = good && is_possible_shard(h.held[k]) && is_possible_shard(h.wanted[k]);
        if (!good)
            return dpt_fail(err, DPT_EPROTO,
                            "rank %d reports that it holds shard %d of %d, writer %d", i,
                            h.own.index, h.own.of, h.checkpoint_slot);
        g->shards[i] = h.own;
        if (h.checkpoint_slot >= 0)
            g->writer_shards[h.checkpoint_slot] = h.own;
    }
    return DPT_OK;
}

/* Makes the first exchange: all ranks must carry out the same plan. */
static enum dpt_status greet_ranks(struct filling *f, struct dpt_err *err)
{
    const struct generation *g = &f->rank->gen;
    DPT_TRY(exchange_hellos(f, err));
    for (int i = 0; i < g->world_size; i++)
        if (f->hellos[i].plan_hash != f->mine.plan_hash)
            return dpt_fail(err, DPT_EPROTO, "rank %d carries out another plan of generation %llu",
                            i, (unsigned long long)g->number);
    return learn_shards(f, err);
}

static bool parts_differ(const struct dpt_hello *a, const struct dpt_hello *b)
{
    for (int i = 0; i < DPT_MOVE_STATE_PARTS; i++)
        for (int k = 0; k < DPT_MOVE_STATE_PARTS; k++)
            if (!dpt_shard_is_none(a->held[i]) && dpt_shard_equal(a->held[i], b->held[k]) &&
                (a->hash[i].hi != b->hash[k].hi || a->hash[i].lo != b->hash[k].lo))
                return true;
    return false;
}

/* Compares the first weights: nodes whose ranks read different folders must begin from the same
 * weights. Every rank gets the same result. */
static enum dpt_status compare_origins(const struct filling *f, struct dpt_err *err)
{
    int first = -1;
    struct dpt_hash128 reported = {0, 0};
    for (int i = 0; i < f->rank->gen.world_size; i++) {
        const struct dpt_hash128 origin = f->hellos[i].origin;
        if (origin.hi == 0 && origin.lo == 0)
            continue;
        if (first >= 0 && (origin.hi != reported.hi || origin.lo != reported.lo))
            return dpt_fail(err, DPT_ECONFIG,
                            "model.init_from: rank %d begins from other weights than rank %d; give "
                            "all nodes a folder with the same weights, or none (here: %s)",
                            i, first,
                            f->rank->config->model.init_from[0] ? f->rank->config->model.init_from
                                                                : "null");
        first = first < 0 ? i : first;
        reported = origin;
    }
    return DPT_OK;
}

/* Makes the second exchange: ranks that hold the same part, as replica or as shadow, must hold the
 * same weights and moments. */
static enum dpt_status compare_parts(struct filling *f, struct dpt_err *err)
{
    const struct generation *g = &f->rank->gen;
    DPT_TRY(exchange_hellos(f, err));
    DPT_TRY(compare_origins(f, err));
    for (int i = 0; i < g->world_size; i++)
        if (parts_differ(&f->mine, &f->hellos[i]))
            return dpt_fail(
                err, DPT_ECORRUPT,
                "rank %d holds other weights or moments than rank %d at step %lld, though both "
                "carry out generation %llu",
                i, g->rank, (long long)f->rank->state.step, (unsigned long long)g->number);
    return rank_adopt_scale(f->rank, f->hellos, err);
}

/* ---- filling the state ---- */

static enum dpt_status job_reshard(struct dpt_comm_thread *thread, void *ctx, struct dpt_err *err)
{
    struct filling *f = ctx;
    struct dpt_rank *r = f->rank;
    const int n = r->gen.world_size;
    bool any = false;
    struct dpt_move_state_rank *ranks = calloc((size_t)n, sizeof *ranks);
    if (!ranks)
        return dpt_fail_nomem(err, "resharding");
    for (int i = 0; i < n; i++) {
        const struct dpt_hello h = f->hellos[i];
        ranks[i].host = r->gen.host_of_rank[i];
        memcpy(ranks[i].held, h.held, sizeof h.held);
        memcpy(ranks[i].wanted, h.wanted, sizeof h.wanted);
        for (int k = 0; k < DPT_MOVE_STATE_PARTS; k++)
            any = any || !dpt_shard_is_none(h.wanted[k]);
    }
    struct dpt_reshard reshard = {.grid = &r->grid,
                                  .rank = r->gen.rank,
                                  .world_size = n,
                                  .ranks = ranks,
                                  .held = f->held,
                                  .wanted = f->wanted};
    enum dpt_status status =
        any ? dpt_move_state(dpt_comm_thread_comm(thread), &reshard, err) : DPT_OK;
    if (status == DPT_OK && reshard.bytes_received + reshard.bytes_sent > 0)
        dpt_log(DPT_LOG_DEBUG, "resharding: received %lld bytes, sent %lld",
                (long long)reshard.bytes_received, (long long)reshard.bytes_sent);
    free(ranks);
    return status;
}

static bool only_hands_over(const struct dpt_rank *r)
{
    return r->gen.rank >= r->gen.n_trainers;
}

static enum source source_of(const Dpt__Plan *plan)
{
    return plan->from_seed              ? SOURCE_SEED
           : plan->load_checkpoint >= 0 ? SOURCE_CHECKPOINT
                                        : SOURCE_MEMORY;
}

static void list_shards(struct dpt_shard ret[DPT_MOVE_STATE_PARTS],
                        const struct dpt_strategy_state *state)
{
    ret[0] = state->own.shard;
    ret[1] = state->shadow.shard;
}

/* Lists the parts that this rank sends and receives, as `held` and `wanted` of its hello, and their
 * memory. A rank that loads a checkpoint sends the loaded parts. */
static void list_parts_before_filling(struct filling *f)
{
    struct dpt_rank *r = f->rank;
    f->held = dpt_strategy_held(r->strategy);
    f->wanted = only_hands_over(r) ? f->held : dpt_strategy_wanted(r->strategy);
    if (f->source == SOURCE_CHECKPOINT)
        f->held = f->wanted;
    if (f->source != SOURCE_SEED && !f->takes_state)
        list_shards(f->mine.held, f->held);
    if (f->takes_state || (f->source == SOURCE_MEMORY && f->wanted != f->held))
        list_shards(f->mine.wanted, f->wanted);
    if (!only_hands_over(r))
        f->mine.own = f->wanted->own.shard;
}

/* DPT_EPROTO: the plan resumes from this rank's state, but at another step. */
static enum dpt_status check_resume_step(const struct filling *f, const Dpt__Plan *plan,
                                         struct dpt_err *err)
{
    const struct dpt_rank *r = f->rank;
    if (f->source != SOURCE_MEMORY || f->takes_state || r->state.step == plan->resume_step)
        return DPT_OK;
    return dpt_fail(err, DPT_EPROTO,
                    "the plan resumes at step %lld, which this rank (at %lld) cannot reach",
                    (long long)plan->resume_step, (long long)r->state.step);
}

/* Fills the parts that this rank must hold. */
static enum dpt_status fill_wanted(struct filling *f, const Dpt__Plan *plan, struct dpt_err *err)
{
    struct dpt_rank *r = f->rank;
    if (f->source != SOURCE_MEMORY || f->takes_state)
        rank_forget_state(r);
    if (f->source != SOURCE_MEMORY)
        r->state.reread = true;
    if (f->source == SOURCE_SEED)
        DPT_TRY(rank_begin_state(r, &f->mine.origin, err));
    if (f->source == SOURCE_CHECKPOINT && !f->takes_state)
        DPT_TRY(rank_load_checkpoint(r, plan->load_checkpoint, err));
    return f->source == SOURCE_SEED ? DPT_OK
                                    : dpt_comm_thread_run(r->comm_thread, job_reshard, f, err);
}

/* Keeps the complete filled state. If this rank held no state before, the filled state is held from
 * now on. Otherwise it waits beside the old state until GO. */
static enum dpt_status keep_filled_state(struct filling *f, int64_t step, struct dpt_err *err)
{
    struct dpt_rank *r = f->rank;
    const bool waits = r->state.step >= 0 && f->wanted != f->held;
    r->state.step = step;
    if (only_hands_over(r))
        return DPT_OK;
    if (waits)
        r->formation->pending_generation = r->gen.number;
    else
        DPT_TRY(rank_adopt_state(r, err));
    f->wanted = waits ? dpt_strategy_wanted(r->strategy) : dpt_strategy_held(r->strategy);
    return DPT_OK;
}

/* Hashes the parts that this rank holds now, for the second exchange. */
static void hash_filled_parts(struct filling *f)
{
    const struct dpt_rank *r = f->rank;
    const int vectors = dpt_strategy_vectors(r->config);
    list_shards(f->mine.held, f->wanted);
    f->mine.hash[0] = dpt_state_part_hash(&f->wanted->own, &r->grid, vectors);
    f->mine.hash[1] = dpt_state_part_hash(&f->wanted->shadow, &r->grid, vectors);
    f->mine.scaler = r->state.scaler;
    f->mine.epoch = r->state.epoch;
}

/* Makes the rank's message for the first exchange. */
static struct dpt_hello hello_of(const struct dpt_rank *r)
{
    const struct train_state *s = &r->state;
    return (struct dpt_hello){.plan_hash = r->gen.plan_hash,
                              .step = s->step,
                              .start_step = s->start_step,
                              .steps_lost = s->steps_lost,
                              .generations = s->generations,
                              .trained_ms = s->began_ms > 0 ? dpt_now_ms() - s->began_ms : 0,
                              .checkpoints =
                                  dpt_saver_saved(r->save->saver).n + s->checkpoints_told,
                              .val_step = s->validation.step,
                              .val_loss = s->validation.loss,
                              .val_right = s->validation.right,
                              .eval = s->eval_part,
                              .checkpoint_slot = r->gen.checkpoint_slot};
}

static enum dpt_status fill_and_compare(struct filling *f, const Dpt__Plan *plan,
                                        struct dpt_err *err)
{
    struct dpt_rank *r = f->rank;
    DPT_TRY(check_resume_step(f, plan, err));
    DPT_TRY(dpt_strategy_fetch_state(r->strategy, err));
    list_parts_before_filling(f);
    DPT_TRY(greet_ranks(f, err));
    DPT_TRY(rank_begin_rebuild(r, f->hellos, err));
    rank_adopt_account(r, f->hellos, plan->resume_step);
    DPT_TRY(fill_wanted(f, plan, err));
    DPT_TRY(keep_filled_state(f, plan->resume_step, err));
    hash_filled_parts(f);
    DPT_TRY(rank_extend_history(r, err));
    /* Each rank has read and checked only its part. */
    if (f->source == SOURCE_CHECKPOINT)
        DPT_TRY(rank_check_loaded(r, err));
    DPT_TRY(compare_parts(f, err));
    return rank_judge_redundancy(r, f->hellos, err);
}

enum dpt_status rank_fill_state(struct dpt_rank *r, const Dpt__Plan *plan, struct dpt_err *err)
{
    struct filling f = {.rank = r,
                        .source = source_of(plan),
                        .takes_state = r->gen.takes_state[r->gen.rank],
                        .mine = hello_of(r),
                        .hellos = calloc((size_t)r->gen.world_size, sizeof *f.hellos)};
    if (!f.hellos)
        return dpt_fail_nomem(err, "formation");
    r->save->loaded_hash[0] = '\0';
    if (f.source == SOURCE_MEMORY)
        f.mine.late = rank_defer_shadow(r, plan);
    const enum dpt_status status = fill_and_compare(&f, plan, err);
    free(f.hellos);
    return status;
}
