/* Formation, the rank's part: from a plan to a communicator with the state in place. */
#include "base/clock.h"
#include "base/cores.h"
#include "base/cursor.h"
#include "base/log.h"
#include "worker/train/rank_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void free_generation(struct generation *g)
{
    free(g->rank_of_position);
    free(g->host_of_position);
    free(g->peers);
    free(g->heal_from);
    free(g->shards);
    free(g->writer_shards);
    free(g->contributions);
    free(g->eval_shares);
    *g = (struct generation){.number = 0};
}

void rank_leave_generation(struct dpt_rank *r)
{
    dpt_saver_cancel(r->saver);
    rank_settle_saver(r);
    dpt_comm_thread_close(r->comm_thread);
    if (r->gen.number > 0)
        r->strategy->ops->end_generation(r->strategy);
    if (r->loader)
        dpt_loader_start(r->loader, 0, 0, 0, 1);
    free_generation(&r->gen);
}

static const Dpt__PlanRank *own_entry(const struct dpt_rank *r, const Dpt__Plan *plan)
{
    for (size_t i = 0; i < plan->n_ranks; i++)
        if (plan->ranks[i]->local_rank == r->options->start->local_rank)
            return plan->ranks[i];
    return NULL;
}

static void copy_addr(char ret[DPT_COMM_ADDR_BYTES], const char *addr)
{
    size_t bytes = strlen(addr);
    DPT_ASSERT(bytes < DPT_COMM_ADDR_BYTES); /* message validation bounds it */
    memcpy(ret, addr, bytes + 1);
}

static void fill_members(struct generation *g, const Dpt__Plan *plan)
{
    int n_peers = 0;
    for (size_t i = 0; i < plan->n_ranks; i++) {
        const Dpt__PlanRank *p = plan->ranks[i];
        g->rank_of_position[p->position] = (int)p->rank;
        g->host_of_position[p->position] = (int)p->host;
        g->heal_from[p->rank] = p->heal_from;
        if ((int)p->rank == g->rank)
            continue;
        struct dpt_comm_peer *peer = &g->peers[n_peers++];
        peer->rank = (int)p->rank;
        peer->host = (int)p->host;
        copy_addr(peer->shm_addr, p->shm_addr);
        copy_addr(peer->tcp_addr, p->tcp_addr);
    }
}

static void hex_of(const ProtobufCBinaryData *bytes, char *ret, size_t ret_bytes)
{
    static const char digits[] = "0123456789abcdef";
    size_t n = 0;
    for (size_t i = 0; i < bytes->len && n + 2 < ret_bytes; i++) {
        ret[n++] = digits[bytes->data[i] >> 4];
        ret[n++] = digits[bytes->data[i] & 15];
    }
    ret[n] = '\0';
}

static enum dpt_status read_plan(struct dpt_rank *r, const Dpt__Plan *plan, struct dpt_err *err)
{
    struct generation *g = &r->gen;
    const Dpt__PlanRank *own = own_entry(r, plan);
    if (!own || plan->n_ranks != plan->world_size ||
        (int)plan->world_size > dpt_config_lanes(r->config))
        return dpt_fail(err, DPT_EPROTO,
                        "the plan of generation %llu does not fit this rank (%zu of %u ranks)",
                        (unsigned long long)plan->generation, plan->n_ranks, plan->world_size);
    size_t n = plan->world_size;
    *g = (struct generation){.number = plan->generation,
                             .rank = (int)own->rank,
                             .world_size = (int)n,
                             .position = (int)own->position,
                             .host = (int)own->host,
                             .writes_log = own->writes_log,
                             .checkpoint_slot = own->checkpoint_slot,
                             .checkpoint_writers = (int)plan->checkpoint_writers,
                             .plan_hash = dpt_hash128(plan->digest, strlen(plan->digest)).lo};
    if (!r->config->checkpoint.dir[0] || r->config->train.eval_only)
        g->checkpoint_slot = -1;
    (void)snprintf(g->cause, sizeof g->cause, "%s", plan->cause);
    (void)snprintf(g->cause_kind, sizeof g->cause_kind, "%s", plan->cause_kind);
    g->detect_ms = plan->detect_ms;
    if (plan->steps_done_before > plan->resume_step)
        g->steps_lost = plan->steps_done_before - plan->resume_step;
    g->rank_of_position = calloc(n, sizeof *g->rank_of_position);
    g->host_of_position = calloc(n, sizeof *g->host_of_position);
    g->peers = calloc(n, sizeof *g->peers);
    g->heal_from = calloc(n, sizeof *g->heal_from);
    g->shards = calloc(n, sizeof *g->shards);
    g->writer_shards = calloc(plan->checkpoint_writers + 1, sizeof *g->writer_shards);
    if (!g->rank_of_position || !g->host_of_position || !g->peers || !g->heal_from || !g->shards ||
        !g->writer_shards)
        return dpt_fail(err, DPT_ENOMEM, "plan of generation %llu: out of memory",
                        (unsigned long long)g->number);
    fill_members(g, plan);
    hex_of(&plan->nonce, g->attempt, sizeof g->attempt);
    g->world = (struct dpt_world){.lanes = dpt_config_lanes(r->config),
                                  .size = (int)n,
                                  .rank_of_position = g->rank_of_position,
                                  .host_of_position = g->host_of_position};
    for (int p = 0; p < g->world_size; p++) {
        const struct dpt_deal deal = r->strategy->ops->deal(r->strategy, &g->world, p);
        if (p == g->position)
            g->slots = deal;
        if (deal.n > g->slots_max)
            g->slots_max = deal.n;
    }
    g->contributions = malloc(n * dpt_contribution_bytes(g->slots_max));
    g->eval_shares = malloc(n * DPT_EVAL_SHARE_BYTES);
    if (!g->contributions || !g->eval_shares)
        return dpt_fail(err, DPT_ENOMEM, "plan of generation %llu: out of memory",
                        (unsigned long long)g->number);
    return DPT_OK;
}

/* What this rank holds is about to be overwritten: until the new state has come whole, it has none,
 * also for a re-formation that comes in between. */
static void forget_state(struct dpt_rank *r)
{
    r->step = -1;
    r->has_outcome = false;
}

/* What ranks tell each other first: that they carry out the same plan, and what the run has been so
 * far. */
struct hello {
    uint64_t plan_hash;
    int64_t step; /* before healing; -1: no state */
    int64_t start_step, steps_lost;
    uint64_t generations;
    int64_t val_step; /* the newest evaluation; -1: none */
    double val_loss;
    struct dpt_shard own; /* that it shall hold */
    int checkpoint_slot;
    uint64_t hash_hi, hash_lo; /* of the weights, in the second exchange */
};
enum { HELLO_BYTES = 9 * 8 + 3 * 4 };

static void hello_pack(const struct hello *h, uint8_t buf[HELLO_BYTES])
{
    struct dpt_writer w;
    uint64_t val_loss;
    memcpy(&val_loss, &h->val_loss, sizeof val_loss);
    dpt_writer_init(&w, buf, HELLO_BYTES);
    dpt_writer_u64(&w, h->plan_hash);
    dpt_writer_u64(&w, (uint64_t)h->step);
    dpt_writer_u64(&w, (uint64_t)h->start_step);
    dpt_writer_u64(&w, (uint64_t)h->steps_lost);
    dpt_writer_u64(&w, h->generations);
    dpt_writer_u64(&w, (uint64_t)h->val_step);
    dpt_writer_u64(&w, val_loss);
    dpt_writer_u32(&w, (uint32_t)h->own.index);
    dpt_writer_u32(&w, (uint32_t)h->own.of);
    dpt_writer_u32(&w, (uint32_t)h->checkpoint_slot);
    dpt_writer_u64(&w, h->hash_hi);
    dpt_writer_u64(&w, h->hash_lo);
    DPT_ASSERT(!w.failed);
}

static struct hello hello_unpack(const uint8_t buf[HELLO_BYTES])
{
    struct dpt_reader r;
    dpt_reader_init(&r, buf, HELLO_BYTES);
    struct hello h;
    h.plan_hash = dpt_reader_u64(&r);
    h.step = (int64_t)dpt_reader_u64(&r);
    h.start_step = (int64_t)dpt_reader_u64(&r);
    h.steps_lost = (int64_t)dpt_reader_u64(&r);
    h.generations = dpt_reader_u64(&r);
    h.val_step = (int64_t)dpt_reader_u64(&r);
    uint64_t val_loss = dpt_reader_u64(&r);
    memcpy(&h.val_loss, &val_loss, sizeof h.val_loss);
    h.own.index = (int)dpt_reader_u32(&r);
    h.own.of = (int)dpt_reader_u32(&r);
    h.checkpoint_slot = (int)dpt_reader_u32(&r);
    h.hash_hi = dpt_reader_u64(&r);
    h.hash_lo = dpt_reader_u64(&r);
    return h;
}

struct formation {
    struct dpt_rank *rank;
    struct hello mine;
    uint8_t *all; /* [world_size * HELLO_BYTES] */
};

static enum dpt_status exchange_hellos(struct dpt_comm_thread *thread, struct formation *f,
                                       struct dpt_err *err)
{
    uint8_t mine[HELLO_BYTES];
    hello_pack(&f->mine, mine);
    if (f->rank->gen.world_size == 1) {
        memcpy(f->all, mine, HELLO_BYTES);
        return DPT_OK;
    }
    return dpt_comm_small_all_gather(dpt_comm_thread_comm(thread), mine, HELLO_BYTES, f->all, err);
}

/* Who holds what from now on, and who writes which of it. */
static enum dpt_status learn_shards(struct formation *f, struct dpt_err *err)
{
    struct generation *g = &f->rank->gen;
    for (int i = 0; i < g->world_size; i++) {
        const struct hello h = hello_unpack(f->all + (size_t)i * HELLO_BYTES);
        if (h.own.of < 1 || h.own.of > g->world_size || h.own.index < 0 ||
            h.own.index >= h.own.of || h.checkpoint_slot >= g->checkpoint_writers)
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
    for (int i = 0; i < f->rank->gen.world_size; i++)
        if (hello_unpack(f->all + (size_t)i * HELLO_BYTES).plan_hash != f->mine.plan_hash)
            return dpt_fail(err, DPT_EPROTO, "rank %d carries out another plan of generation %llu",
                            i, (unsigned long long)f->rank->gen.number);
    return learn_shards(f, err);
}

/* Joiners take the whole state from the ranks the plan names. */
static enum dpt_status job_heal(struct dpt_comm_thread *thread, void *ctx, struct dpt_err *err)
{
    struct formation *f = ctx;
    struct dpt_rank *r = f->rank;
    struct dpt_comm *comm = dpt_comm_thread_comm(thread);
    const struct dpt_strategy_state *state = r->strategy->ops->held(r->strategy);
    const size_t n_parts = DPT_VECTOR_COUNT;
    size_t bytes = (size_t)dpt_model_flat_numel(r->model) * sizeof(float);
    struct dpt_comm_xfer *xfers = calloc((size_t)r->gen.world_size * n_parts, sizeof *xfers);
    if (!xfers)
        return dpt_fail(err, DPT_ENOMEM, "healing: out of memory");
    int n = 0;
    for (int rank = 0; rank < r->gen.world_size; rank++) {
        int source = r->gen.heal_from[rank];
        if (source < 0 || (source != r->gen.rank && rank != r->gen.rank))
            continue;
        for (size_t i = 0; i < n_parts; i++)
            xfers[n++] =
                (struct dpt_comm_xfer){.dir = source == r->gen.rank ? DPT_COMM_SEND : DPT_COMM_RECV,
                                       .peer = source == r->gen.rank ? rank : source,
                                       .mem = state->own.vector[i].mem,
                                       .bytes = bytes};
    }
    enum dpt_status status = DPT_OK;
    if (n > 0) {
        struct dpt_comm_op *op = NULL;
        status = dpt_comm_exchange(comm, xfers, n, &op, err);
        if (status == DPT_OK)
            do
                status = dpt_comm_poll(comm, op, -1, err);
            while (status == DPT_INPROGRESS);
        if (op)
            dpt_comm_op_free(comm, &op);
    }
    free(xfers);
    return status;
}

/* Every rank must hold the same weights before the first step of a generation. */
static enum dpt_status job_compare(struct dpt_comm_thread *thread, void *ctx, struct dpt_err *err)
{
    struct formation *f = ctx;
    DPT_TRY(exchange_hellos(thread, f, err));
    for (int i = 0; i < f->rank->gen.world_size; i++) {
        struct hello h = hello_unpack(f->all + (size_t)i * HELLO_BYTES);
        if (h.hash_hi != f->mine.hash_hi || h.hash_lo != f->mine.hash_lo)
            return dpt_fail(err, DPT_ECORRUPT,
                            "rank %d holds other weights than rank %d at step %lld, though both "
                            "carry out generation %llu",
                            i, f->rank->gen.rank, (long long)f->rank->step,
                            (unsigned long long)f->rank->gen.number);
    }
    return DPT_OK;
}

/* Everyone goes on with the history of the lowest rank that was not healed. */
static enum dpt_status job_share_history(struct dpt_comm_thread *thread, void *ctx,
                                         struct dpt_err *err)
{
    struct formation *f = ctx;
    struct dpt_rank *r = f->rank;
    int source = 0;
    while (r->gen.heal_from[source] >= 0)
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
    if (r->gen.world_size > 1)
        DPT_TRY(dpt_comm_thread_run(r->comm_thread, job_share_history, f, err));
    const struct dpt_history_entry entry = {.generation = r->gen.number,
                                            .step = r->step,
                                            .world_size = r->gen.world_size,
                                            .kind = r->gen.cause_kind,
                                            .cause = r->gen.cause,
                                            .steps_lost = r->gen.steps_lost};
    return dpt_history_append(&r->history, &entry, err);
}

/* Where nobody has state: checkpoint or seed. */
static enum dpt_status begin_state(struct dpt_rank *r, const Dpt__Plan *plan, struct dpt_err *err)
{
    const struct dpt_state_part *own = &r->strategy->ops->held(r->strategy)->own;
    if (plan->load_checkpoint < 0 && plan->resume_step != 0)
        return dpt_fail(err, DPT_EPROTO,
                        "the plan resumes at step %lld, which this rank (at %lld) cannot reach",
                        (long long)plan->resume_step, (long long)r->step);
    forget_state(r);
    if (plan->load_checkpoint >= 0)
        return rank_load_checkpoint(r, plan->load_checkpoint, err);
    DPT_TRY(rank_refuse_seed(r, err));
    size_t bytes = (size_t)dpt_model_flat_numel(r->model) * sizeof(float);
    memset(dpt_state_at(own, &r->grid, DPT_VECTOR_M, 0), 0, bytes);
    memset(dpt_state_at(own, &r->grid, DPT_VECTOR_V, 0), 0, bytes);
    dpt_model_init_weights(r->model, r->ops, r->stream, r->config->seed,
                           dpt_state_at(own, &r->grid, DPT_VECTOR_PARAM, 0));
    return dpt_stream_sync(r->stream, err);
}

/* A survivor that lacks only the outcome applies it now. */
static enum dpt_status take_outcome(struct dpt_rank *r, const Dpt__Plan *plan, struct dpt_err *err)
{
    const Dpt__PlanRank *own = own_entry(r, plan);
    if (plan->outcome.len == 0 || r->step != plan->resume_step - 1 || !own || own->heal_from >= 0)
        return DPT_OK;
    if (!r->strategy->ops->holds_gradient(r->strategy, r->step)) {
        /* A spare of the last world stands at this step without having had a part in it. The next
         * plan heals it as the rank without state that it now says it is. */
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
    r->has_outcome = true;
    dpt_log(DPT_LOG_INFO, "applying step %lld with the outcome that a survivor had",
            (long long)r->step);
    return rank_apply(r, err);
}

/* The rank whose account of the run counts: it goes on from the state that counts, lowest rank
 * first. */
static void adopt_history(struct dpt_rank *r, const struct formation *f, const Dpt__Plan *plan)
{
    r->start_step = plan->resume_step;
    r->steps_lost = 0;
    r->generations = 0;
    for (int i = 0; i < r->gen.world_size; i++) {
        struct hello h = hello_unpack(f->all + (size_t)i * HELLO_BYTES);
        if (h.step == plan->resume_step) {
            r->start_step = h.start_step;
            r->steps_lost = h.steps_lost;
            r->generations = h.generations;
            break;
        }
    }
    r->steps_lost += r->gen.steps_lost;
    r->generations++;
}

/* An evaluation of the state that the world goes on from counts for all if one rank has it: what
 * one has, it has of all. Where nobody has it, it is made again. */
static void adopt_validation(struct dpt_rank *r, const struct formation *f, const Dpt__Plan *plan)
{
    const double own_ms = r->validation.step == plan->resume_step ? r->validation.ms : 0;
    r->validation = (struct validation){.step = -1};
    for (int i = 0; i < r->gen.world_size; i++) {
        struct hello h = hello_unpack(f->all + (size_t)i * HELLO_BYTES);
        if (h.step == plan->resume_step && h.val_step == plan->resume_step)
            r->validation = (struct validation){h.val_step, h.val_loss, own_ms};
    }
}

static enum dpt_status build(struct dpt_rank *r, const Dpt__Plan *plan, struct dpt_err *err)
{
    DPT_TRY(r->strategy->ops->begin_generation(r->strategy, &r->gen.world, r->gen.rank, r->gen.host,
                                               err));
    struct dpt_comm_spec spec = {.generation = r->gen.number,
                                 .rank = r->gen.rank,
                                 .world_size = r->gen.world_size,
                                 .host = r->gen.host,
                                 .peers = r->gen.peers,
                                 .n_peers = r->gen.world_size - 1,
                                 .timeout_ms = (int)(r->config->cluster.timeout_s * 1000)};
    (void)snprintf(spec.run, sizeof spec.run, "%s", r->config->run);
    int of_host = 1;
    for (int i = 0; i < spec.n_peers; i++)
        of_host += spec.peers[i].host == spec.host;
    dpt_cores_set_demand(of_host * r->options->start->threads);
    if (plan->nonce.len != DPT_COMM_NONCE_BYTES)
        return dpt_fail(err, DPT_EPROTO, "the plan's nonce has %zu bytes", plan->nonce.len);
    memcpy(spec.nonce, plan->nonce.data, DPT_COMM_NONCE_BYTES);
    dpt_comm_thread_arm(r->comm_thread);
    if (dpt_link_interrupted(r->link, r->gen.number))
        return dpt_fail(err, DPT_EABORTED, "generation %llu was given up",
                        (unsigned long long)r->gen.number);
    return dpt_comm_thread_open(r->comm_thread, &spec, err);
}

static enum dpt_status restore(struct dpt_rank *r, const Dpt__Plan *plan, struct formation *f,
                               struct dpt_err *err)
{
    bool heals = r->gen.heal_from[r->gen.rank] >= 0;
    if (r->step == plan->resume_step && heals)
        return dpt_fail(err, DPT_EPROTO, "the plan heals a rank that stands at step %lld already",
                        (long long)r->step);
    r->loaded_hash[0] = '\0';
    f->mine = (struct hello){.plan_hash = r->gen.plan_hash,
                             .step = r->step,
                             .start_step = r->start_step,
                             .steps_lost = r->steps_lost,
                             .generations = r->generations,
                             .val_step = r->validation.step,
                             .val_loss = r->validation.loss,
                             .own = r->strategy->ops->wanted(r->strategy)->own.shard,
                             .checkpoint_slot = r->gen.checkpoint_slot};
    DPT_TRY(dpt_comm_thread_run(r->comm_thread, job_greet, f, err));
    adopt_history(r, f, plan);
    adopt_validation(r, f, plan);
    if (r->step != plan->resume_step && !heals)
        DPT_TRY(begin_state(r, plan, err));
    if (heals)
        forget_state(r);
    if (r->gen.world_size > 1)
        DPT_TRY(dpt_comm_thread_run(r->comm_thread, job_heal, f, err));
    if (r->step != plan->resume_step) {
        r->step = plan->resume_step;
        r->has_outcome = false;
    }
    r->strategy->ops->state_changed(r->strategy);
    DPT_TRY(extend_history(r, f, err));
    char weights_hash[DPT_HASH_HEX_BYTES];
    DPT_TRY(rank_weights_hash(r, weights_hash, err));
    DPT_TRY(rank_check_loaded(r, weights_hash, err));
    const struct dpt_hash128 hash = dpt_hash128(weights_hash, strlen(weights_hash));
    f->mine.hash_hi = hash.hi;
    f->mine.hash_lo = hash.lo;
    return dpt_comm_thread_run(r->comm_thread, job_compare, f, err);
}

/* What this generation asks of the rank, in bytes. */
static void tell_plan(const struct dpt_rank *r)
{
    struct dpt_strategy_cost cost;
    r->strategy->ops->cost(r->strategy, &cost);
    const double mib = 1024.0 * 1024.0;
    double state = 3.0 * (double)dpt_model_flat_numel(r->model) * sizeof(float);
    dpt_log(
        DPT_LOG_INFO,
        "rank %d of %d goes on from step %lld: %d of %d slots, from slot %d on by %d; holds %.1f "
        "MiB of weights and moments, %.1f MiB of packed weights and %.1f MiB of gradients in %d "
        "buffers, sends %.1f MiB a step",
        r->gen.rank, r->gen.world_size, (long long)r->step, r->gen.slots.n, r->slots,
        r->gen.slots.first, r->gen.slots.stride, state / mib, (double)cost.packed_bytes / mib,
        (double)cost.gradient_bytes / mib, cost.gradient_buffers, (double)cost.sent_bytes / mib);
}

enum dpt_status rank_form(struct dpt_rank *r, const Dpt__Plan *plan, struct dpt_err *err)
{
    DPT_ASSERT(r->gen.number == 0);
    DPT_TRY(take_outcome(r, plan, err));
    enum dpt_status status = read_plan(r, plan, err);
    if (status != DPT_OK) {
        free_generation(&r->gen);
        return status;
    }
    dpt_log_set_where(r->gen.rank, r->gen.number, r->step);
    DPT_TRY(build(r, plan, err));
    r->rebuilt_ms = dpt_now_ms();
    struct formation f = {.rank = r, .all = calloc((size_t)r->gen.world_size, HELLO_BYTES)};
    if (!f.all)
        return dpt_fail(err, DPT_ENOMEM, "formation: out of memory");
    status = restore(r, plan, &f, err);
    free(f.all);
    if (status != DPT_OK)
        return status;
    r->restored_ms = dpt_now_ms();
    rank_clear_leftovers(r);
    if (r->loader)
        dpt_loader_start(r->loader, r->step, r->gen.slots.first, dpt_deal_end(&r->gen.slots),
                         r->gen.slots.stride);
    r->gen.ready = true;
    tell_plan(r);
    return DPT_OK;
}
