/* Formation, the state's part: from what the ranks hold, a checkpoint or the seed to what each
 * shall hold in its generation, and the proof that all hold the same.
 *
 * A rank keeps what it held beside what it is given until it knows that all ranks of the generation
 * have theirs: until GO. A generation that fails before may have to be followed by one that goes on
 * from the old; the next plan says which counts (Plan.state_generation). */
#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "worker/strategy/reshard.h"
#include "worker/train/formation/hello.h"
#include "worker/train/rank_internal.h"
#include "worker/train/save/state_hash.h"

#include <stdlib.h>
#include <string.h>

/* What ranks tell each other has no version of its own: other builds are kept out by the server's.
 */
_Static_assert(DPT_PROTO_VERSION == 3 && DPT_HELLO_BYTES == 43 * 8 && DPT_EVAL_SHARE_BYTES == 6 * 8,
               "a hello or share of another size is another DPT_PROTO_VERSION");

enum source { SOURCE_MEMORY, SOURCE_CHECKPOINT, SOURCE_SEED };

struct formation {
    struct dpt_rank *rank;
    struct dpt_hello mine;
    uint8_t *all; /* [world_size * DPT_HELLO_BYTES] */
    const struct dpt_strategy_state *held, *wanted;
};

static struct dpt_hello hello_of(const struct formation *f, int rank)
{
    return dpt_hello_unpack(f->all + (size_t)rank * DPT_HELLO_BYTES);
}

static enum dpt_status exchange_hellos(struct dpt_comm_thread *thread, struct formation *f,
                                       struct dpt_err *err)
{
    uint8_t mine[DPT_HELLO_BYTES];
    dpt_hello_pack(&f->mine, mine);
    if (f->rank->gen.world_size == 1) {
        memcpy(f->all, mine, DPT_HELLO_BYTES);
        return DPT_OK;
    }
    return dpt_comm_small_all_gather(dpt_comm_thread_comm(thread), mine, DPT_HELLO_BYTES, f->all,
                                     err);
}

/* A shard that another rank tells of must be one. */
static bool is_shard(struct dpt_shard shard)
{
    return dpt_shard_is_none(shard) || (shard.of > 0 && shard.of <= DPT_COMM_WORLD_MAX &&
                                        shard.index >= 0 && shard.index < shard.of);
}

/* Who holds what from now on, and who writes which of it. */
static enum dpt_status learn_shards(struct formation *f, struct dpt_err *err)
{
    struct generation *g = &f->rank->gen;
    for (int i = 0; i < g->world_size; i++) {
        const struct dpt_hello h = hello_of(f, i);
        bool good = is_shard(h.own) && is_shard(h.late) &&
                    dpt_shard_is_none(h.own) == (i >= g->n_trainers) &&
                    h.checkpoint_slot < g->checkpoint_writers;
        for (int k = 0; k < DPT_RESHARD_PARTS; k++)
            good = good && is_shard(h.held[k]) && is_shard(h.wanted[k]);
        if (!good)
            return dpt_fail(err, DPT_EPROTO, "rank %d says that it holds shard %d of %d, writer %d",
                            i, h.own.index, h.own.of, h.checkpoint_slot);
        g->shards[i] = h.own;
        if (h.checkpoint_slot >= 0)
            g->writer_shards[h.checkpoint_slot] = h.own;
    }
    return DPT_OK;
}

static enum dpt_status job_greet(struct dpt_comm_thread *thread, void *ctx, struct dpt_err *err)
{
    struct formation *f = ctx;
    DPT_TRY(exchange_hellos(thread, f, err));
    for (int i = 0; i < f->rank->gen.world_size; i++) {
        if (hello_of(f, i).plan_hash != f->mine.plan_hash)
            return dpt_fail(err, DPT_EPROTO, "rank %d carries out another plan of generation %llu",
                            i, (unsigned long long)f->rank->gen.number);
    }
    return learn_shards(f, err);
}

/* ---- the state moves ---- */

static enum dpt_status job_reshard(struct dpt_comm_thread *thread, void *ctx, struct dpt_err *err)
{
    struct formation *f = ctx;
    struct dpt_rank *r = f->rank;
    const int n = r->gen.world_size;
    bool any = false;
    struct dpt_reshard_rank *ranks = calloc((size_t)n, sizeof *ranks);
    if (!ranks)
        return dpt_fail(err, DPT_ENOMEM, "resharding: out of memory");
    for (int i = 0; i < n; i++) {
        const struct dpt_hello h = hello_of(f, i);
        ranks[i].host = r->gen.host_of_rank[i];
        memcpy(ranks[i].held, h.held, sizeof h.held);
        memcpy(ranks[i].wanted, h.wanted, sizeof h.wanted);
        for (int k = 0; k < DPT_RESHARD_PARTS; k++)
            any = any || !dpt_shard_is_none(h.wanted[k]);
    }
    struct dpt_reshard reshard = {.grid = &r->grid,
                                  .rank = r->gen.rank,
                                  .world_size = n,
                                  .ranks = ranks,
                                  .held = f->held,
                                  .wanted = f->wanted};
    enum dpt_status status =
        any ? dpt_reshard_run(dpt_comm_thread_comm(thread), &reshard, err) : DPT_OK;
    if (status == DPT_OK && reshard.bytes_received + reshard.bytes_sent > 0)
        dpt_log(DPT_LOG_DEBUG, "resharding: received %lld bytes, sent %lld",
                (long long)reshard.bytes_received, (long long)reshard.bytes_sent);
    free(ranks);
    return status;
}

/* ---- the proof ---- */

static bool differ(const struct dpt_hello *a, const struct dpt_hello *b)
{
    for (int i = 0; i < DPT_RESHARD_PARTS; i++)
        for (int k = 0; k < DPT_RESHARD_PARTS; k++)
            if (!dpt_shard_is_none(a->held[i]) && dpt_shard_equal(a->held[i], b->held[k]) &&
                (a->hash[i].hi != b->hash[k].hi || a->hash[i].lo != b->hash[k].lo))
                return true;
    return false;
}

/* What goes with the weights. */
static enum dpt_status adopt_accounts(struct formation *f, struct dpt_err *err)
{
    int source = 0;
    while (f->rank->gen.takes_state[source])
        source++;
    const struct dpt_hello h = hello_of(f, source);
    if (f->rank->gen.takes_state[f->rank->gen.rank])
        f->rank->epoch = h.epoch;
    return rank_adopt_scaler(f->rank, source, &h.scaler, err);
}

/* Nodes that begin from folders of their own begin from the same weights. Every rank finds the
 * same.
 */
static enum dpt_status compare_origins(const struct formation *f, struct dpt_err *err)
{
    int first = -1;
    struct dpt_hash128 said = {0, 0};
    for (int i = 0; i < f->rank->gen.world_size; i++) {
        const struct dpt_hash128 origin = hello_of(f, i).origin;
        if (origin.hi == 0 && origin.lo == 0)
            continue;
        if (first >= 0 && (origin.hi != said.hi || origin.lo != said.lo))
            return dpt_fail(err, DPT_ECONFIG,
                            "model.init_from: rank %d begins from other weights than rank %d; give "
                            "all nodes a folder with the same weights, or none (here: %s)",
                            i, first,
                            f->rank->config->model.init_from[0] ? f->rank->config->model.init_from
                                                                : "null");
        first = first < 0 ? i : first;
        said = origin;
    }
    return DPT_OK;
}

/* Who holds the same part, as replica or as shadow, must hold the same weights. */
static enum dpt_status job_compare(struct dpt_comm_thread *thread, void *ctx, struct dpt_err *err)
{
    struct formation *f = ctx;
    DPT_TRY(exchange_hellos(thread, f, err));
    DPT_TRY(compare_origins(f, err));
    for (int i = 0; i < f->rank->gen.world_size; i++) {
        const struct dpt_hello h = hello_of(f, i);
        if (differ(&f->mine, &h))
            return dpt_fail(
                err, DPT_ECORRUPT,
                "rank %d holds other weights or moments than rank %d at step %lld, though both "
                "carry out generation %llu",
                i, f->rank->gen.rank, (long long)f->rank->step,
                (unsigned long long)f->rank->gen.number);
    }
    return adopt_accounts(f, err);
}

/* ---- the run's history ---- */

/* Everyone goes on with the history of the lowest rank that has (a part of) the state. */
static enum dpt_status job_share_history(struct dpt_comm_thread *thread, void *ctx,
                                         struct dpt_err *err)
{
    struct formation *f = ctx;
    struct dpt_rank *r = f->rank;
    int source = 0;
    while (r->gen.takes_state[source])
        source++;
    struct dpt_history *all = calloc((size_t)r->gen.world_size, sizeof *all);
    if (!all)
        return dpt_fail(err, DPT_ENOMEM, "the run's history: out of memory");
    enum dpt_status status = dpt_comm_small_all_gather(dpt_comm_thread_comm(thread), &r->history,
                                                       sizeof r->history, all, err);
    if (status == DPT_OK)
        r->history = all[source];
    r->history.json[sizeof r->history.json - 1] = '\0';
    free(all);
    return status;
}

static enum dpt_status extend_history(struct dpt_rank *r, struct formation *f, struct dpt_err *err)
{
    const bool begins = r->generations == 1; /* no process of the run is left that knows more */
    if (begins)
        rank_complete_history(r);
    if (r->gen.world_size > 1)
        DPT_TRY(dpt_comm_thread_run(r->comm_thread, job_share_history, f, err));
    const struct dpt_history_entry entry = {.generation = r->gen.number,
                                            .step = r->step,
                                            .world_size = r->gen.n_trainers,
                                            .kind = r->gen.cause_kind,
                                            .cause = r->gen.cause,
                                            .steps_lost = r->gen.steps_lost};
    DPT_TRY(dpt_history_append(&r->history, &entry, err));
    if (begins)
        r->steps_lost = dpt_history_steps_lost(&r->history);
    return DPT_OK;
}

/* The rank whose account of the run counts: of those at the step that the world goes on from the
 * lowest; where nobody is (all go back to a checkpoint), of those that have seen the most
 * generations. */
static bool has_better_account(const struct dpt_hello *h, const struct dpt_hello *best,
                               int64_t resume_step)
{
    if ((h->step == resume_step) != (best->step == resume_step))
        return h->step == resume_step;
    return h->step != resume_step && h->generations > best->generations;
}

/* For the summary: who has been there longest knows most. */
static void adopt_totals(struct dpt_rank *r, const struct formation *f)
{
    int64_t trained_ms = 0, checkpoints = 0, saved_step;
    for (int i = 0; i < r->gen.world_size; i++) {
        const struct dpt_hello h = hello_of(f, i);
        trained_ms = h.trained_ms > trained_ms ? h.trained_ms : trained_ms;
        checkpoints = h.checkpoints > checkpoints ? h.checkpoints : checkpoints;
    }
    if (trained_ms > 0)
        r->began_ms = dpt_now_ms() - trained_ms;
    r->checkpoints_told = checkpoints - dpt_saver_saved(r->saver, &saved_step);
}

static void adopt_history(struct dpt_rank *r, const struct formation *f, const Dpt__Plan *plan)
{
    struct dpt_hello best = hello_of(f, 0);
    for (int i = 1; i < r->gen.world_size; i++) {
        const struct dpt_hello h = hello_of(f, i);
        if (has_better_account(&h, &best, plan->resume_step))
            best = h;
    }
    const bool begins = best.generations == 0;
    r->start_step =
        begins || best.start_step > plan->resume_step ? plan->resume_step : best.start_step;
    r->steps_lost = best.steps_lost + r->gen.steps_lost;
    r->generations = best.generations + 1;
    adopt_totals(r, f);
}

/* An evaluation of the state that the world goes on from counts for all if one rank has it: what
 * one has, it has of all. Where nobody has it whole, who has come furthest counts: one may have
 * seen the end of a round that the others did not. */
static void adopt_validation(struct dpt_rank *r, const struct formation *f, const Dpt__Plan *plan)
{
    const double own_ms = r->validation.step == plan->resume_step ? r->validation.ms : 0;
    const int64_t all = dpt_eval_batches(r->val_samples, r->config->train.micro_batch);
    r->validation = (struct validation){.step = -1};
    r->eval_part = (struct dpt_eval_part){.step = -1};
    for (int i = 0; i < r->gen.world_size; i++) {
        const struct dpt_hello h = hello_of(f, i);
        if (h.step == plan->resume_step && h.val_step == plan->resume_step)
            r->validation = (struct validation){h.val_step, h.val_loss, h.val_right, own_ms};
        if (h.step == plan->resume_step && h.eval.step == plan->resume_step &&
            h.eval.batches > r->eval_part.batches && h.eval.batches <= all)
            r->eval_part = h.eval;
    }
}

/* ---- where it comes from ---- */

/* What this rank holds is about to be overwritten, or is of no use: until the new state has come
 * whole, it has none, also for a re-formation that comes in between. */
static void forget_state(struct dpt_rank *r)
{
    r->step = -1;
    r->has_outcome = false;
    r->not_finite[0] = '\0';
    r->pending_generation = 0;
}

static bool is_guest(const struct dpt_rank *r)
{
    return r->gen.rank >= r->gen.n_trainers;
}

bool rank_holds_gradient(const struct dpt_rank *r)
{
    return r->step >= 0 && !r->gradient_void &&
           r->strategy->ops->holds_gradient(r->strategy, r->step);
}

static bool is_in(const struct dpt_comm_mem *mem, const struct dpt_strategy_state *state)
{
    for (int v = 0; v < DPT_VECTOR_COUNT; v++)
        if (state->own.vector[v].mem == mem || state->shadow.vector[v].mem == mem)
            return true;
    return false;
}

static void withdraw(struct dpt_comm *comm, const struct dpt_state_part *old,
                     const struct dpt_strategy_state *kept)
{
    for (int v = 0; v < DPT_VECTOR_COUNT; v++)
        if (old->vector[v].mem && !is_in(old->vector[v].mem, kept))
            dpt_comm_withdraw(comm, old->vector[v].mem);
}

static enum dpt_status job_withdraw(struct dpt_comm_thread *thread, void *ctx, struct dpt_err *err)
{
    const struct dpt_rank *r = ctx;
    const struct dpt_strategy_state *held = r->strategy->ops->held(r->strategy),
                                    *wanted = r->strategy->ops->wanted(r->strategy);
    struct dpt_comm *comm = dpt_comm_thread_comm(thread);
    (void)err;
    if (!comm || held == wanted)
        return DPT_OK;
    withdraw(comm, &held->own, wanted);
    withdraw(comm, &held->shadow, wanted);
    return DPT_OK;
}

void rank_note_held(struct dpt_rank *r)
{
    r->held_generation = r->gen.number;
    memcpy(r->held_attempt, r->gen.attempt, sizeof r->held_attempt);
}

enum dpt_status rank_adopt_state(struct dpt_rank *r, struct dpt_err *err)
{
    DPT_TRY(dpt_comm_thread_run(r->comm_thread, job_withdraw, r, err));
    r->strategy->ops->state_changed(r->strategy);
    r->pending_generation = 0;
    rank_note_held(r);
    return DPT_OK;
}

void rank_settle_pending(struct dpt_rank *r, const Dpt__Plan *plan)
{
    if (r->pending_generation != 0 && r->pending_generation <= plan->state_generation) {
        r->strategy->ops->state_changed(r->strategy);
        r->gradient_void = true; /* it was of what was held before */
    }
    r->pending_generation = 0; /* else the next begin_generation drops what was wanted */
}

enum dpt_status rank_take_outcome(struct dpt_rank *r, const Dpt__Plan *plan, bool takes_state,
                                  struct dpt_err *err)
{
    if (plan->outcome.len == 0 || r->step != plan->resume_step - 1 || takes_state)
        return DPT_OK;
    if (!rank_holds_gradient(r)) {
        /* The next plan gives the state to the rank without one that it now says it is. */
        forget_state(r);
        return dpt_fail(err, DPT_EPEER,
                        "the outcome of a step is of no use to a rank without its gradient; it "
                        "asks to be healed");
    }
    DPT_TRY(dpt_outcome_unpack(plan->outcome.data, plan->outcome.len, r->slots, &r->outcome, err));
    if (r->outcome.step != r->step)
        return dpt_fail(err, DPT_EPROTO,
                        "the plan hands over the outcome of step %lld instead of %lld",
                        (long long)r->outcome.step, (long long)r->step);
    if (r->outcome.scale != r->scaler.scale)
        return dpt_fail(err, DPT_EPROTO,
                        "the plan hands over the outcome of step %lld with the loss scaled by %g, "
                        "where this rank scaled it by %g",
                        (long long)r->step, r->outcome.scale, r->scaler.scale);
    r->has_outcome = true;
    dpt_log(DPT_LOG_INFO, "applying step %lld with the outcome that a survivor had",
            (long long)r->step);
    return rank_apply(r, err);
}

enum dpt_status rank_fetch_state(struct dpt_rank *r, struct dpt_err *err)
{
    const struct dpt_strategy_ops *ops = r->strategy->ops;
    return ops->fetch_state ? ops->fetch_state(r->strategy, err) : DPT_OK;
}

static enum source source_of(const Dpt__Plan *plan)
{
    return plan->from_seed              ? SOURCE_SEED
           : plan->load_checkpoint >= 0 ? SOURCE_CHECKPOINT
                                        : SOURCE_MEMORY;
}

static void set_parts(struct dpt_shard ret[DPT_RESHARD_PARTS],
                      const struct dpt_strategy_state *state)
{
    ret[0] = state->own.shard;
    ret[1] = state->shadow.shard;
}

/* What this rank gives and what it lacks: `held` and `wanted` of its hello, and the memory that
 * these are about. Who loads its state gives what it has loaded. */
static void say_parts(struct formation *f, enum source source, bool takes_state)
{
    struct dpt_rank *r = f->rank;
    const struct dpt_strategy_ops *ops = r->strategy->ops;
    f->held = ops->held(r->strategy);
    f->wanted = is_guest(r) ? f->held : ops->wanted(r->strategy);
    if (source == SOURCE_CHECKPOINT)
        f->held = f->wanted;
    if (source != SOURCE_SEED && !takes_state)
        set_parts(f->mine.held, f->held);
    if (takes_state || (source == SOURCE_MEMORY && f->wanted != f->held))
        set_parts(f->mine.wanted, f->wanted);
    if (!is_guest(r))
        f->mine.own = f->wanted->own.shard;
}

static enum dpt_status check_place(const struct dpt_rank *r, const Dpt__Plan *plan,
                                   enum source source, bool takes_state, struct dpt_err *err)
{
    if (source != SOURCE_MEMORY || takes_state || r->step == plan->resume_step)
        return DPT_OK;
    return dpt_fail(err, DPT_EPROTO,
                    "the plan resumes at step %lld, which this rank (at %lld) cannot reach",
                    (long long)plan->resume_step, (long long)r->step);
}

/* Fills what this rank shall hold. */
static enum dpt_status fill(struct formation *f, const Dpt__Plan *plan, enum source source,
                            bool takes_state, struct dpt_err *err)
{
    struct dpt_rank *r = f->rank;
    if (source != SOURCE_MEMORY || takes_state)
        forget_state(r);
    if (source != SOURCE_MEMORY)
        r->reread_state = true;
    if (source == SOURCE_SEED)
        DPT_TRY(rank_begin_state(r, &f->mine.origin, err));
    if (source == SOURCE_CHECKPOINT && !takes_state)
        DPT_TRY(rank_load_checkpoint(r, plan->load_checkpoint, err));
    return source == SOURCE_SEED ? DPT_OK
                                 : dpt_comm_thread_run(r->comm_thread, job_reshard, f, err);
}

/* What was filled is whole: it is the state, if there is none that could be gone back to; else it
 * waits beside the old one until GO. */
static enum dpt_status take_state(struct formation *f, int64_t step, struct dpt_err *err)
{
    struct dpt_rank *r = f->rank;
    const bool waits = r->step >= 0 && f->wanted != f->held;
    r->step = step;
    if (is_guest(r))
        return DPT_OK;
    if (waits)
        r->pending_generation = r->gen.number;
    else
        DPT_TRY(rank_adopt_state(r, err));
    f->wanted = waits ? r->strategy->ops->wanted(r->strategy) : r->strategy->ops->held(r->strategy);
    return DPT_OK;
}

/* What was read is what was saved; with all ranks, since each has read its part alone. */
static enum dpt_status check_checkpoint(struct dpt_rank *r, struct dpt_err *err)
{
    char hash[DPT_HASH_HEX_BYTES];
    DPT_TRY(rank_weights_hash(r, hash, err));
    return rank_check_loaded(r, hash, err);
}

enum dpt_status rank_restore(struct dpt_rank *r, const Dpt__Plan *plan, struct dpt_err *err)
{
    const enum source source = source_of(plan);
    const bool takes_state = r->gen.takes_state[r->gen.rank];
    int64_t saved_step;
    struct formation f = {
        .rank = r,
        .mine = {.plan_hash = r->gen.plan_hash,
                 .step = r->step,
                 .start_step = r->start_step,
                 .steps_lost = r->steps_lost,
                 .generations = r->generations,
                 .trained_ms = r->began_ms > 0 ? dpt_now_ms() - r->began_ms : 0,
                 .checkpoints = dpt_saver_saved(r->saver, &saved_step) + r->checkpoints_told,
                 .val_step = r->validation.step,
                 .val_loss = r->validation.loss,
                 .val_right = r->validation.right,
                 .eval = r->eval_part,
                 .checkpoint_slot = r->gen.checkpoint_slot},
        .all = calloc((size_t)r->gen.world_size, DPT_HELLO_BYTES)};
    if (!f.all)
        return dpt_fail(err, DPT_ENOMEM, "formation: out of memory");
    r->loaded_hash[0] = '\0';
    if (source == SOURCE_MEMORY)
        f.mine.late = rank_defer_shadow(r, plan);
    enum dpt_status status = check_place(r, plan, source, takes_state, err);
    if (status == DPT_OK)
        status = rank_fetch_state(r, err);
    say_parts(&f, source, takes_state);
    if (status == DPT_OK)
        status = dpt_comm_thread_run(r->comm_thread, job_greet, &f, err);
    if (status == DPT_OK)
        status = rank_begin_rebuild(r, f.all, err);
    if (status == DPT_OK) {
        adopt_history(r, &f, plan);
        adopt_validation(r, &f, plan);
        status = fill(&f, plan, source, takes_state, err);
    }
    if (status == DPT_OK)
        status = take_state(&f, plan->resume_step, err);
    if (status == DPT_OK) {
        set_parts(f.mine.held, f.wanted);
        f.mine.hash[0] = dpt_state_part_hash(&f.wanted->own, &r->grid, dpt_vectors(r->config));
        f.mine.hash[1] = dpt_state_part_hash(&f.wanted->shadow, &r->grid, dpt_vectors(r->config));
        f.mine.scaler = r->scaler;
        f.mine.epoch = r->epoch;
        status = extend_history(r, &f, err);
    }
    if (status == DPT_OK && source == SOURCE_CHECKPOINT)
        status = check_checkpoint(r, err);
    if (status == DPT_OK)
        status = dpt_comm_thread_run(r->comm_thread, job_compare, &f, err);
    if (status == DPT_OK)
        status = rank_judge_redundancy(r, f.all, err);
    free(f.all);
    return status;
}
