/* Forms a generation on a rank: from a plan to a communicator. fill_state.c fills the state. */
#include "worker/train/formation/formation.h"

#include "base/clock.h"
#include "base/cores.h"
#include "base/log.h"
#include "base/strategy_traits.h"
#include "worker/trace/span.h"
#include "worker/train/device/rank_device.h"
#include "worker/train/log/rank_log.h"
#include "worker/train/save/save.h"
#include "worker/train/step/step.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void rank_leave_generation(struct dpt_rank *r)
{
    dpt_saver_cancel(r->save->saver);
    rank_settle_saver(r);
    dpt_comm_thread_close(r->comm_thread);
    rank_end_log(r);
    if (r->gen.begun)
        dpt_strategy_end_generation(r->strategy);
    if (r->stepping->loader)
        dpt_loader_start(r->stepping->loader, 0, 0, 0, 1);
    generation_free(&r->gen);
}

static const Dpt__PlanRank *own_entry(const struct dpt_rank *r, const Dpt__Plan *plan)
{
    for (size_t i = 0; i < plan->n_ranks; i++)
        if (plan->ranks[i]->local_rank == r->options->start->local_rank)
            return plan->ranks[i];
    return NULL;
}

static void fill_members(struct generation *g, const Dpt__Plan *plan)
{
    int n_peers = 0;
    for (size_t i = 0; i < plan->n_ranks; i++) {
        const Dpt__PlanRank *p = plan->ranks[i];
        g->of_position.rank[p->position] = (int)p->rank;
        g->of_position.host[p->position] = (int)p->host;
        g->of_position.node[p->position] = (int)p->node;
        g->of_position.rack[p->position] = (int)p->rack;
        g->host_of_rank[p->rank] = (int)p->host;
        g->node_of_rank[p->rank] = (int)p->node;
        g->takes_state[p->rank] = p->takes_state;
        if ((int)p->rank == g->rank)
            continue;
        struct dpt_comm_peer *peer = &g->peers[n_peers++];
        peer->rank = (int)p->rank;
        peer->host = (int)p->host;
        /* The check of the message limits the lengths of the addresses. */
        (void)snprintf(peer->shm_addr, sizeof peer->shm_addr, "%s", p->shm_addr);
        (void)snprintf(peer->tcp_addr, sizeof peer->tcp_addr, "%s", p->tcp_addr);
    }
}

static void fill_cause(struct generation_cause *cause, const Dpt__Plan *plan)
{
    (void)snprintf(cause->text, sizeof cause->text, "%s", plan->cause);
    (void)snprintf(cause->kind, sizeof cause->kind, "%s", plan->cause_kind);
    cause->detect_ms = plan->detect_ms;
    if (plan->steps_done_before > plan->resume_step)
        cause->steps_lost = plan->steps_done_before - plan->resume_step;
}

/* Computes the slots of this rank, and the largest number of slots of any rank. */
static void divide_slots(struct dpt_rank *r)
{
    struct generation *g = &r->gen;
    for (int p = 0; p < g->n_trainers; p++) {
        const struct dpt_assignment slots = dpt_partition_assign(r->config, &g->world, p);
        if (p == g->position)
            g->slots = slots;
        if (slots.n > g->slots_max)
            g->slots_max = slots.n;
    }
}

static enum dpt_status read_plan(struct dpt_rank *r, const Dpt__Plan *plan,
                                 const Dpt__PlanRank *own, struct dpt_err *err)
{
    struct generation *g = &r->gen;
    const int trainers = (int)(plan->world_size - plan->handover_ranks);
    if (!own || plan->n_ranks != plan->world_size || plan->handover_ranks >= plan->world_size ||
        trainers > dpt_config_world_max(r->config))
        return dpt_fail(err, DPT_EPROTO,
                        "the plan of generation %llu does not fit this rank (%zu of %u ranks)",
                        (unsigned long long)plan->generation, plan->n_ranks, plan->world_size);
    const bool saves = r->config->checkpoint.dir[0] && !r->config->train.eval_only;
    *g = (struct generation){.number = plan->generation,
                             .rank = (int)own->rank,
                             .world_size = (int)plan->world_size,
                             .n_trainers = trainers,
                             .position = (int)own->position,
                             .host = (int)own->host,
                             .n_hosts = (int)plan->n_hosts,
                             .writes_log = own->writes_log,
                             .final_save = plan->final_save,
                             .checkpoint_slot = saves ? own->checkpoint_slot : -1,
                             .checkpoint_writers = (int)plan->checkpoint_writers,
                             .plan_hash = dpt_hash128(plan->digest, strlen(plan->digest)).lo};
    fill_cause(&g->cause, plan);
    for (size_t i = 0; i < plan->nonce.len && i < DPT_COMM_NONCE_BYTES; i++)
        (void)snprintf(g->attempt + 2 * i, 3, "%02x", plan->nonce.data[i]);
    DPT_TRY(generation_alloc(g, err));
    g->world = (struct dpt_world){.lanes = dpt_config_lanes_of(r->config, trainers),
                                  .size = trainers,
                                  .rank_of_position = g->of_position.rank,
                                  .host_of_position = g->of_position.host,
                                  .node_of_position = g->of_position.node,
                                  .rack_of_position = g->of_position.rack};
    fill_members(g, plan);
    divide_slots(r);
    return generation_alloc_gathered(g, err);
}

static enum dpt_status open_communicator(struct dpt_rank *r, const Dpt__Plan *plan,
                                         struct dpt_err *err)
{
    r->gen.begun = r->gen.rank < r->gen.n_trainers; /* a handover rank only sends its state */
    if (r->device->device_model)
        DPT_TRY(dpt_device_model_begin_generation(r->device->device_model, err));
    if (r->gen.begun)
        DPT_TRY(dpt_strategy_begin_generation(r->strategy, &r->gen.world, r->gen.rank, err));
    struct dpt_comm_spec spec = {.generation = r->gen.number,
                                 .rank = r->gen.rank,
                                 .world_size = r->gen.world_size,
                                 .host = r->gen.host,
                                 .peers = r->gen.peers,
                                 .n_peers = r->gen.world_size - 1,
                                 .timeout_ms = (int)(r->config->cluster.timeout_s * 1000),
                                 .mesh_max = r->config->cluster.mesh_max,
                                 .encrypt = r->config->cluster.encrypt};
    (void)snprintf(spec.run, sizeof spec.run, "%s", r->config->run);
    dpt_cores_set_demand(0); /* the demand is unknown until rank_share_cores */
    if (plan->nonce.len != DPT_COMM_NONCE_BYTES)
        return dpt_fail(err, DPT_EPROTO, "the plan's nonce has %zu bytes", plan->nonce.len);
    memcpy(spec.nonce, plan->nonce.data, DPT_COMM_NONCE_BYTES);
    dpt_comm_thread_arm(r->comm_thread);
    if (dpt_link_interrupted(r->link, r->gen.number))
        return dpt_fail(err, DPT_EABORTED, "generation %llu was given up",
                        (unsigned long long)r->gen.number);
    return dpt_comm_thread_open(r->comm_thread, &spec, err);
}

static double mib_of_part(const struct dpt_rank *r, const struct dpt_state_part *part)
{
    int vectors = 0;
    for (int v = 0; v < DPT_VECTOR_COUNT; v++)
        vectors += part->vector[v].mem != NULL;
    return (double)dpt_shard_numel(&r->grid, part->shard) * vectors * sizeof(float) / 1048576.0;
}

/* Logs the work and the memory of the rank in this generation. */
static void log_plan(const struct dpt_rank *r)
{
    const struct dpt_strategy_state *state = dpt_strategy_wanted(r->strategy);
    struct dpt_strategy_cost cost;
    dpt_strategy_cost(r->strategy, &cost);
    const double mib = 1024.0 * 1024.0;
    dpt_log(
        DPT_LOG_INFO,
        "rank %d of %d continues from step %lld: %d of %d slots, from slot %d on by %d; holds %.1f "
        "MiB of weights and moments, %.1f MiB of packed weights and %.1f MiB of gradients in %d "
        "buffers, sends %.1f MiB a step",
        r->gen.rank, r->gen.world_size, (long long)r->state.step, r->gen.slots.n, r->slots,
        r->gen.slots.first, r->gen.slots.stride,
        mib_of_part(r, &state->own) + mib_of_part(r, &state->shadow),
        (double)cost.packed_bytes / mib, (double)cost.gradient_bytes / mib, cost.gradient_buffers,
        (double)cost.sent_bytes / mib);
    if (dpt_strategy_traits(r->config).powersgd && r->gen.rank == 0)
        dpt_log(DPT_LOG_WARN,
                "strategy.compression is powersgd: gradients are approximated by matrices of rank "
                "%d from step %lld on, outside the one trajectory; weights_hash is this cluster's, "
                "not the config's",
                r->config->strategy.powersgd_rank,
                (long long)r->config->strategy.powersgd_start_step);
    if (dpt_strategy_traits(r->config).order_open && r->gen.rank == 0)
        dpt_log(DPT_LOG_WARN,
                "train.reduction is %s: gradients are added in the order %s %d ranks; weights_hash "
                "is this cluster's, not the config's",
                dpt_strategy_traits(r->config).by_ring ? "ring" : "fast",
                dpt_strategy_traits(r->config).by_ring ? "of a ring of" : "that is quickest among",
                r->gen.world_size);
    rank_warn_of_unverified(r);
}

enum dpt_status rank_form(struct dpt_rank *r, const Dpt__Plan *plan, struct dpt_err *err)
{
    DPT_ASSERT(r->gen.number == 0);
    const Dpt__PlanRank *own = own_entry(r, plan);
    rank_settle_pending(r, plan);
    DPT_TRY(rank_take_outcome(r, plan, own && own->takes_state, err));
    enum dpt_status status = read_plan(r, plan, own, err);
    if (status != DPT_OK) {
        generation_free(&r->gen);
        return status;
    }
    dpt_log_set_where(r->gen.rank, r->gen.number, r->state.step);
    r->log->files.generation = r->gen.number;
    r->log->files.world_size = r->gen.world_size;
    const int64_t open_ns = dpt_trace_begin();
    DPT_TRY(open_communicator(r, plan, err));
    dpt_trace_end_named(open_ns, "open communicator");
    DPT_TRY(rank_align_clocks(r, err));
    r->formation->rebuilt_ms = dpt_now_ms();
    DPT_TRY(rank_share_cores(r, err));
    const int64_t fill_ns = dpt_trace_begin();
    DPT_TRY(rank_fill_state(r, plan, err));
    dpt_trace_end_named(fill_ns, "fill state");
    r->formation->restored_ms = dpt_now_ms();
    rank_clear_leftovers(r);
    r->gen.ready = true;
    if (!r->gen.begun) {
        dpt_log(DPT_LOG_INFO, "handed over the state of step %lld; leaving",
                (long long)r->state.step);
        return DPT_OK;
    }
    if (r->stepping->loader)
        dpt_loader_start(r->stepping->loader, r->state.step, r->gen.slots.first,
                         dpt_assignment_end(&r->gen.slots), r->gen.slots.stride);
    log_plan(r);
    rank_warn_of_kept(r);
    return DPT_OK;
}

enum dpt_status rank_enter_generation(struct dpt_rank *r, struct dpt_err *err)
{
    r->gen.ready = false; /* a generation trains once */
    r->formation->ran_generation = r->gen.number;
    r->formation->gradient_void = false;
    rank_note_held(r);
    /* GO has come, so all ranks have their states. */
    if (r->formation->pending_generation != 0)
        DPT_TRY(rank_adopt_state(r, err));
    rank_report(r, DPT__RANK_PHASE__RANK_RUNNING, r->gen.number);
    return DPT_OK;
}
