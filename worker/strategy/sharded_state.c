/* Masters, moments and weights of a sharded strategy: where they lie, how the weights are made from
 * the masters, the step (sharded.h). */
#include "worker/strategy/sharded.h"

#include "worker/optim/optim.h"

#include <stdlib.h>
#include <string.h>

static bool has_whole(const struct sharded *s)
{
    return s->policy.weights != DPT_WEIGHTS_UNITS;
}

enum dpt_weights_plan sharded_weights_plan(const struct sharded *s, int size)
{
    return size == 1 ? DPT_WEIGHTS_HELD : s->policy.weights;
}

struct dpt_interval sharded_piece(const struct sharded *s, int rank, int unit)
{
    return dpt_shard_piece(s->env.grid, (struct dpt_shard){rank, s->world->size}, unit);
}

float *sharded_sum(const struct sharded *s, int sum, int unit)
{
    if (s->lanes)
        return dpt_lane_sums_gradient(s->lanes) +
               dpt_shard_piece(s->env.grid, s->piece, unit).first;
    if (sum > 0)
        return (float *)s->sums[sum] + dpt_shard_offset(s->env.grid, s->piece, unit);
    float *data = dpt_comm_mem_data(s->sum0);
    return data + (s->policy.whole_state ? dpt_shard_piece(s->env.grid, s->piece, unit).first
                                         : dpt_shard_offset(s->env.grid, s->piece, unit));
}

enum dpt_status sharded_mem(struct sharded *s, struct dpt_comm_mem **mem, size_t bytes,
                            struct dpt_err *err)
{
    if (*mem && dpt_comm_mem_bytes(*mem) == bytes)
        return DPT_OK;
    dpt_comm_mem_destroy(mem);
    return dpt_comm_mem_create(s->env.listener, bytes, mem, err);
}

/* Bytes of a compact shard; never none, so that there is memory to point to. */
static size_t shard_bytes(const struct sharded *s, struct dpt_shard shard, size_t width)
{
    const int64_t numel = dpt_shard_numel(s->env.grid, shard);
    return (size_t)(numel > 0 ? numel : DPT_BLOCK) * width;
}

static void free_part(const struct sharded *s, struct dpt_state_part *part)
{
    for (int v = 0; v < DPT_VECTOR_COUNT; v++) {
        if (part->vector[v].mem != s->whole)
            dpt_comm_mem_destroy(&part->vector[v].mem);
        part->vector[v].mem = NULL;
    }
    part->shard = (struct dpt_shard){0, 0};
}

static enum dpt_status make_part(struct sharded *s, struct dpt_shard shard,
                                 struct dpt_state_part *part, struct dpt_err *err)
{
    *part = (struct dpt_state_part){.shard = shard};
    for (int v = 0; v < DPT_VECTOR_COUNT; v++) {
        struct dpt_state_vector *vector = &part->vector[v];
        if (v == DPT_VECTOR_PARAM && has_whole(s) && s->dtype == DPT_F32) {
            *vector = (struct dpt_state_vector){.mem = s->whole, .flat = true};
            continue;
        }
        vector->flat = s->policy.whole_state;
        const enum dpt_status status = dpt_comm_mem_create(
            s->env.listener, shard_bytes(s, shard, sizeof(float)), &vector->mem, err);
        if (status != DPT_OK) {
            free_part(s, part);
            return status;
        }
    }
    return DPT_OK;
}

enum dpt_status sharded_state_create(struct sharded *s, struct dpt_err *err)
{
    if (has_whole(s)) {
        DPT_TRY(
            dpt_comm_mem_create(s->env.listener, (size_t)s->flat_numel * s->width, &s->whole, err));
        for (int u = 0; u < s->n_units; u++)
            s->weights[u] =
                (char *)dpt_comm_mem_data(s->whole) + (size_t)s->env.grid->offset[u] * s->width;
    }
    /* What no world changes is there from the beginning. */
    if (s->policy.whole_state)
        return make_part(s, (struct dpt_shard){0, 1}, &s->held.own, err);
    return DPT_OK;
}

void sharded_state_destroy(struct sharded *s)
{
    free_part(s, &s->held.own);
    if (s->moves)
        free_part(s, &s->wanted.own);
    dpt_comm_mem_destroy(&s->whole);
    dpt_comm_mem_destroy(&s->copy);
    for (int i = 0; i < s->n_gathered; i++)
        dpt_device_free(s->env.device, s->gathered[i], s->gathered_bytes[i]);
}

/* Elements of the largest unit that has no buffer of its own. */
static int64_t shared_numel(const struct sharded *s)
{
    int64_t most = 0;
    for (int u = 0; u < s->n_units; u++) {
        const int64_t numel = dpt_model_unit(s->env.model, u)->numel;
        if (u != s->tied && numel > most)
            most = numel;
    }
    return most;
}

/* Room for units that are gathered: no world changes it. */
static enum dpt_status make_gathered(struct sharded *s, struct dpt_err *err)
{
    const int own = s->tied >= 0, n = own + s->env.config->strategy.gathered_units_max;
    while (s->n_gathered < n) {
        const int i = s->n_gathered;
        const int64_t numel =
            i < own ? dpt_model_unit(s->env.model, s->tied)->numel : shared_numel(s);
        s->gathered_bytes[i] = (size_t)numel * s->width;
        DPT_TRY(dpt_device_alloc(s->env.device, s->gathered_bytes[i], &s->gathered[i], err));
        s->n_gathered++;
    }
    return DPT_OK;
}

enum dpt_status sharded_state_begin(struct sharded *s, struct dpt_err *err)
{
    const int size = s->world->size;
    const struct dpt_shard shard =
        s->policy.whole_state ? (struct dpt_shard){0, 1} : (struct dpt_shard){s->rank, size};
    if (s->moves)
        free_part(s, &s->wanted.own);
    s->moves = false;
    if (!dpt_shard_equal(s->held.own.shard, shard)) {
        DPT_TRY(make_part(s, shard, &s->wanted.own, err));
        s->moves = true;
    }
    if (s->policy.weights != DPT_WEIGHTS_UNITS)
        return DPT_OK;
    if (s->dtype != DPT_F32)
        DPT_TRY(sharded_mem(s, &s->copy, shard_bytes(s, shard, s->width), err));
    return size > 1 ? make_gathered(s, err) : DPT_OK;
}

/* Where this rank's own weights of a unit lie in the compute dtype. */
static char *own_weights(const struct sharded *s, int unit)
{
    size_t offset;
    const struct dpt_comm_mem *mem = sharded_weights_mem(s, unit, &offset);
    return (char *)dpt_comm_mem_data(mem) + offset;
}

struct dpt_comm_mem *sharded_weights_mem(const struct sharded *s, int unit, size_t *ret_offset)
{
    const struct dpt_state_part *own = &s->held.own;
    if (has_whole(s)) {
        *ret_offset = (size_t)dpt_shard_piece(s->env.grid, own->shard, unit).first * s->width;
        return s->whole;
    }
    *ret_offset = (size_t)dpt_shard_offset(s->env.grid, own->shard, unit) * s->width;
    return s->dtype == DPT_F32 ? own->vector[DPT_VECTOR_PARAM].mem : s->copy;
}

void sharded_state_changed(struct sharded *s)
{
    if (s->moves) {
        free_part(s, &s->held.own);
        s->held.own = s->wanted.own;
        s->moves = false;
    }
    const struct dpt_state_part *own = &s->held.own;
    s->stale = true;
    if (dpt_shard_is_none(own->shard))
        return;
    for (int u = 0; u < s->n_units; u++) {
        const struct dpt_interval piece = dpt_shard_piece(s->env.grid, own->shard, u);
        if (s->dtype != DPT_F32 && piece.end > piece.first)
            s->ops->cast(s->env.stream, piece.end - piece.first,
                         dpt_state_at(own, s->env.grid, DPT_VECTOR_PARAM, u), s->dtype,
                         own_weights(s, u));
        if (own->shard.of == 1 && !has_whole(s))
            s->weights[u] = own_weights(s, u);
    }
}

enum dpt_status sharded_apply(struct sharded *s, const struct dpt_optim_step *step,
                              struct dpt_err *err)
{
    const struct dpt_state_part *own = &s->held.own;
    for (int u = 0; u < s->n_units; u++) {
        const struct dpt_interval piece = dpt_shard_piece(s->env.grid, own->shard, u);
        if (piece.end <= piece.first)
            continue;
        const float *grad = s->policy.whole_state
                                ? (const float *)dpt_comm_mem_data(s->sum0) + piece.first
                                : sharded_sum(s, 0, u);
        const struct dpt_optim_vectors vectors = {
            .origin = piece.first,
            .param = dpt_state_at(own, s->env.grid, DPT_VECTOR_PARAM, u),
            .m = dpt_state_at(own, s->env.grid, DPT_VECTOR_M, u),
            .v = dpt_state_at(own, s->env.grid, DPT_VECTOR_V, u),
            .grad = grad,
            .copy = s->dtype == DPT_F32 ? NULL : own_weights(s, u)};
        dpt_optim_update(s->env.config, s->env.model, s->ops, s->env.stream, step, piece.first,
                         piece.end, &vectors);
    }
    s->stale = true;
    return dpt_stream_sync(s->env.stream, err);
}

enum dpt_status sharded_norm(struct sharded *s, struct dpt_accum *ret, struct dpt_err *err)
{
    dpt_accum_init(ret);
    for (int u = 0; u < s->n_units; u++) {
        const struct dpt_interval piece = dpt_shard_piece(s->env.grid, s->piece, u);
        const int64_t numel = piece.end - piece.first;
        if (numel <= 0)
            continue;
        s->ops->sumsq_blocks(s->env.stream, numel, DPT_BLOCK, sharded_sum(s, 0, u), s->block_sums);
        DPT_TRY(dpt_stream_sync(s->env.stream, err));
        for (int64_t b = 0; b < numel / DPT_BLOCK; b++)
            dpt_accum_add(ret, s->block_sums[b]);
    }
    dpt_accum_normalise(ret);
    return DPT_OK;
}
