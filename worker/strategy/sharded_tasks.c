/* What goes between the ranks of a sharded strategy in a step (sharded.h): weights from their
 * owners to who computes with them, gradients to the owners of their pieces, who fold them, and,
 * where all apply everything, the folded pieces to all. */
#include "worker/strategy/sharded.h"

#include <stdlib.h>
#include <string.h>

enum {
    PART_BYTES = 2 << 20,       /* of a piece that goes round at once */
    CHUNK_NUMEL = 4096,         /* folded at once, so that sums stay in the cache */
    ALONE_CHUNK_NUMEL = 1 << 18 /* by all the threads of a rank that is alone */
};

static bool is_empty(struct dpt_interval range)
{
    return range.end <= range.first;
}

static int64_t unit_offset(const struct sharded *s, int unit)
{
    return s->env.grid->offset[unit];
}

/* Part `part` of `n` of a rank's piece of a unit. */
static struct dpt_interval part_of(const struct sharded *s, int rank, int unit, int part, int n)
{
    const struct dpt_interval piece = sharded_piece(s, rank, unit);
    struct dpt_interval range = {0, 0};
    if (is_empty(piece))
        return range;
    range = dpt_layout_piece(piece.end - piece.first, DPT_BLOCK, n, part);
    return (struct dpt_interval){piece.first + range.first, piece.first + range.end};
}

/* Ranks that compute in the task's wave: those at positions below this. */
static int active(const struct sharded *s, const struct dpt_task *task)
{
    return s->present == &s->eval_list || s->lanes ? s->world->size
                                                   : dpt_waves_active(&s->waves, task->wave);
}

/* Position i places after the own one: so that not all begin with the same rank. */
static int other_position(const struct sharded *s, int i)
{
    return (s->position + i) % s->world->size;
}

/* What the rank at a position holds of a unit's weights. */
static struct dpt_interval held_piece(const struct sharded *s, int position, int unit)
{
    return dpt_shard_piece(s->env.grid, sharded_shard(s, position), unit);
}

/* Position i places after the own one among those who share a state. */
static int other_of_group(const struct sharded *s, int i)
{
    return s->group_first + (s->position - s->group_first + i) % s->group_size;
}

static char *gather_place(const struct sharded *s, const struct dpt_task *task, int64_t element)
{
    if (task->buffer < 0)
        return (char *)dpt_comm_mem_data(s->whole) + (size_t)element * s->width;
    return (char *)s->gathered[task->buffer] +
           (size_t)(element - unit_offset(s, task->unit)) * s->width;
}

static void post_gather(void *ctx, const struct dpt_task *task, int turn, struct dpt_walk_xfers *x)
{
    const struct sharded *s = ctx;
    const struct dpt_interval own = held_piece(s, s->position, task->unit);
    const size_t own_bytes = is_empty(own) ? 0 : (size_t)(own.end - own.first) * s->width;
    const int computing = active(s, task);
    size_t offset;
    struct dpt_comm_mem *mem = sharded_weights_mem(s, task->unit, &offset);
    (void)turn;
    if (!task->idle && task->buffer >= 0 && own_bytes > 0)
        memcpy(gather_place(s, task, own.first), (char *)dpt_comm_mem_data(mem) + offset,
               own_bytes);
    for (int i = 1; i < s->group_size; i++) {
        const int position = other_of_group(s, i), peer = s->world->rank_of_position[position];
        const struct dpt_interval theirs = held_piece(s, position, task->unit);
        if (own_bytes > 0 && position < computing)
            x->out[x->n_out++] = (struct dpt_comm_xfer){.dir = DPT_COMM_SEND,
                                                        .peer = peer,
                                                        .mem = mem,
                                                        .offset = offset,
                                                        .bytes = own_bytes};
        if (!task->idle && !is_empty(theirs))
            x->in[x->n_in++] =
                (struct dpt_comm_xfer){.dir = DPT_COMM_RECV,
                                       .peer = peer,
                                       .buf = gather_place(s, task, theirs.first),
                                       .bytes = (size_t)(theirs.end - theirs.first) * s->width};
    }
}

static void post_scatter(void *ctx, const struct dpt_task *task, int turn, struct dpt_walk_xfers *x)
{
    const struct sharded *s = ctx;
    const struct dpt_interval own = part_of(s, s->rank, task->unit, task->part, task->n_parts);
    const int computing = active(s, task);
    char *staging = (char *)s->staging +
                    (size_t)(turn % SHARDED_TURNS) * (size_t)s->n_staged * s->staging_bytes;
    for (int i = 1; i < s->world->size; i++) {
        const int position = other_position(s, i), peer = s->world->rank_of_position[position];
        const struct dpt_interval theirs = part_of(s, peer, task->unit, task->part, task->n_parts);
        if (!task->idle && !is_empty(theirs))
            x->out[x->n_out++] = (struct dpt_comm_xfer){
                .dir = DPT_COMM_SEND,
                .peer = peer,
                .mem = s->gradient[task->buffer],
                .offset = (size_t)(theirs.first - unit_offset(s, task->unit)) * sizeof(float),
                .bytes = (size_t)(theirs.end - theirs.first) * sizeof(float)};
        if (position >= computing || is_empty(own))
            continue;
        struct dpt_comm_xfer *in = &x->in[x->n_in++];
        *in = (struct dpt_comm_xfer){.dir = DPT_COMM_LEND,
                                     .peer = peer,
                                     .bytes = (size_t)(own.end - own.first) * sizeof(float)};
        if (s->world->host_of_position[position] != s->host) {
            in->buf = staging;
            staging += s->staging_bytes;
        }
    }
}

/* Folds a wave's contributions to elements [first, first + numel) of the own piece of a unit. */
static void fold(const struct sharded *s, const struct dpt_task *task, int64_t first, int64_t numel,
                 struct dpt_stream *stream)
{
    const int64_t step = s->world->size == 1 ? ALONE_CHUNK_NUMEL : CHUNK_NUMEL;
    float *sums[SHARDED_SUMS_MAX];
    for (int i = 0; i < s->n_sums; i++)
        sums[i] = sharded_sum(s, i, task->unit) + first;
    for (int64_t at = 0; at < numel; at += step) {
        const int64_t n = numel - at < step ? numel - at : step;
        for (int i = s->first_fold[task->wave]; i < s->first_fold[task->wave + 1]; i++) {
            const struct dpt_fold *f = &s->folds[i];
            float *sum = sums[f->sum] + at;
            const float *term =
                f->kind == DPT_FOLD_JOIN ? sums[f->sum + 1] + at : s->contributions[f->member] + at;
            if (f->kind == DPT_FOLD_SET)
                s->ops->copy(stream, (size_t)n * sizeof *sum, term, sum);
            else
                s->ops->add(stream, n, sum, term, sum);
        }
    }
}

static enum dpt_status scattered(void *ctx, const struct dpt_task *task, int turn,
                                 const struct dpt_walk_xfers *x, struct dpt_err *err)
{
    const struct sharded *s = ctx;
    const struct dpt_interval own = part_of(s, s->rank, task->unit, task->part, task->n_parts);
    (void)turn;
    if (is_empty(own))
        return DPT_OK;
    if (!task->idle)
        s->contributions[s->position] =
            (const float *)dpt_comm_mem_data(s->gradient[task->buffer]) +
            (own.first - unit_offset(s, task->unit));
    int n = 0;
    for (int i = 1; i < s->world->size; i++) {
        const int position = other_position(s, i);
        if (position < active(s, task))
            s->contributions[position] = x->in[n++].lent;
    }
    DPT_ASSERT(n == x->n_in);
    struct dpt_stream *stream = s->world->size == 1 ? s->env.stream : s->env.comm_stream;
    fold(s, task, own.first - sharded_piece(s, s->rank, task->unit).first, own.end - own.first,
         stream);
    return dpt_stream_sync(stream, err);
}

/* What the rank at position `from` has folded of a unit and the one at `to` applies beside it. */
static struct dpt_interval shared(const struct sharded *s, int from, int to, int unit)
{
    const struct dpt_interval folded = sharded_piece(s, s->world->rank_of_position[from], unit);
    if (s->policy.shadow) {
        const bool covers =
            (from == s->position && to == s->buddy) || (to == s->position && from == s->ward);
        return covers ? folded : (struct dpt_interval){0, 0};
    }
    return dpt_interval_intersect(folded, held_piece(s, to, unit));
}

/* Where this rank keeps element `element` of what it applies of a unit that others have folded. */
static float *share_place(const struct sharded *s, int unit, int64_t element)
{
    if (s->policy.shadow)
        return sharded_shadow_gradient(s, unit) + (element - held_piece(s, s->ward, unit).first);
    return sharded_own_gradient(s, unit) + (element - held_piece(s, s->position, unit).first);
}

static void post_share(void *ctx, const struct dpt_task *task, int turn, struct dpt_walk_xfers *x)
{
    const struct sharded *s = ctx;
    const int unit = task->unit;
    const float *sums = dpt_comm_mem_data(s->sum0), *own = sharded_sum(s, 0, unit);
    const int64_t own_first = sharded_piece(s, s->rank, unit).first;
    (void)turn;
    for (int i = 0; i < s->world->size; i++) {
        const int position = other_position(s, i), peer = s->world->rank_of_position[position];
        const struct dpt_interval give = shared(s, s->position, position, unit),
                                  take = shared(s, position, s->position, unit);
        if (i == 0) { /* the own part, where it is applied elsewhere than it was folded */
            if (!is_empty(take) && s->applied)
                memcpy(share_place(s, unit, take.first), own + (take.first - own_first),
                       (size_t)(take.end - take.first) * sizeof(float));
            continue;
        }
        if (!is_empty(give))
            x->out[x->n_out++] = (struct dpt_comm_xfer){
                .dir = DPT_COMM_SEND,
                .peer = peer,
                .mem = s->sum0,
                .offset = (size_t)(own + (give.first - own_first) - sums) * sizeof(float),
                .bytes = (size_t)(give.end - give.first) * sizeof(float)};
        if (!is_empty(take))
            x->in[x->n_in++] =
                (struct dpt_comm_xfer){.dir = DPT_COMM_RECV,
                                       .peer = peer,
                                       .buf = share_place(s, unit, take.first),
                                       .bytes = (size_t)(take.end - take.first) * sizeof(float)};
    }
}

static int64_t numel_of(struct dpt_interval range)
{
    return is_empty(range) ? 0 : range.end - range.first;
}

/* Elements that a task makes this rank send. */
static int64_t task_numel(const struct sharded *s, const struct dpt_task *t)
{
    const int computing = s->lanes ? s->world->size : dpt_waves_active(&s->waves, t->wave);
    int64_t numel = 0;
    for (int i = 1; i < s->world->size; i++) {
        const int position = other_position(s, i), rank = s->world->rank_of_position[position];
        const bool in_group =
            position >= s->group_first && position < s->group_first + s->group_size;
        if (t->kind == DPT_TASK_GATHER && in_group && position < computing)
            numel += numel_of(held_piece(s, s->position, t->unit));
        else if (t->kind == DPT_TASK_SCATTER && !t->idle)
            numel += numel_of(part_of(s, rank, t->unit, t->part, t->n_parts));
        else if (t->kind == DPT_TASK_SHARE)
            numel += numel_of(shared(s, s->position, position, t->unit));
    }
    return numel;
}

int64_t sharded_bytes_sent(const struct sharded *s)
{
    struct dpt_strategy_cost cost = {.sent_bytes = 0};
    if (s->lanes)
        dpt_lane_sums_cost(s->lanes, &cost);
    int64_t bytes = cost.sent_bytes;
    for (int i = 0; i < s->list.n_tasks; i++) {
        const struct dpt_task *t = &s->list.tasks[i];
        bytes +=
            task_numel(s, t) * (int64_t)(t->kind == DPT_TASK_GATHER ? s->width : sizeof(float));
    }
    return bytes;
}

static enum dpt_status no_memory(struct dpt_err *err)
{
    return dpt_fail(err, DPT_ENOMEM, "sharded strategy: out of memory");
}

/* A slot's gradients: those of the tied unit, and two that the other units use in turn. */
static enum dpt_status make_gradients(struct sharded *s, const struct dpt_step_spec *spec,
                                      struct dpt_err *err)
{
    int own;
    int64_t shared = 0;
    s->n_gradients = dpt_step_gradient_buffers(spec, &own);
    DPT_ASSERT(own == (s->tied >= 0) && s->n_gradients <= SHARDED_GRADIENTS_MAX);
    for (int u = 0; u < s->n_units; u++) {
        const int64_t numel = dpt_model_unit(s->env.model, u)->numel;
        if (u != s->tied && numel > shared)
            shared = numel;
    }
    for (int i = 0; i < s->n_gradients; i++) {
        const int64_t numel = i < own ? dpt_model_unit(s->env.model, s->tied)->numel : shared;
        DPT_TRY(sharded_mem(s, &s->gradient[i], (size_t)numel * sizeof(float), err));
    }
    return DPT_OK;
}

static void free_sums(struct sharded *s)
{
    for (int i = 1; i < s->n_sums; i++) {
        dpt_device_free(s->env.device, s->sums[i], s->sum_bytes);
        s->sums[i] = NULL;
    }
    s->n_sums = 0;
}

/* Room for what others have folded and this rank applies. */
static enum dpt_status make_applied(struct sharded *s, struct dpt_err *err)
{
    if (s->policy.group && s->world->size > 1) {
        const int64_t numel = dpt_shard_numel(s->env.grid, sharded_shard(s, s->position));
        DPT_TRY(sharded_mem(s, &s->applied, (size_t)(numel > 0 ? numel : DPT_BLOCK) * sizeof(float),
                            err));
    } else {
        dpt_comm_mem_destroy(&s->applied);
    }
    if (s->ward >= 0) {
        const int64_t numel = dpt_shard_numel(s->env.grid, sharded_shard(s, s->ward));
        return sharded_mem(s, &s->shadowed, (size_t)(numel > 0 ? numel : DPT_BLOCK) * sizeof(float),
                           err);
    }
    dpt_comm_mem_destroy(&s->shadowed);
    return DPT_OK;
}

static enum dpt_status make_sums(struct sharded *s, struct dpt_err *err)
{
    const int64_t numel = dpt_shard_numel(s->env.grid, s->piece);
    const size_t bytes = (size_t)(numel > 0 ? numel : DPT_BLOCK) * sizeof(float);
    const int n = dpt_waves_sums(&s->waves);
    DPT_ASSERT(n <= SHARDED_SUMS_MAX);
    DPT_TRY(sharded_mem(
        s, &s->sum0, s->policy.whole_state ? (size_t)s->flat_numel * sizeof(float) : bytes, err));
    DPT_TRY(make_applied(s, err));
    free_sums(s);
    s->sum_bytes = bytes;
    for (s->n_sums = 1; s->n_sums < n; s->n_sums++)
        DPT_TRY(dpt_device_alloc(s->env.device, bytes, &s->sums[s->n_sums], err));
    return DPT_OK;
}

static enum dpt_status make_folds(struct sharded *s, struct dpt_err *err)
{
    const size_t waves = (size_t)dpt_waves_count(&s->waves);
    s->folds = calloc((size_t)(s->waves.slots + s->waves.lanes), sizeof *s->folds);
    s->first_fold = calloc(waves + 1, sizeof *s->first_fold);
    s->contributions = calloc((size_t)s->world->size, sizeof *s->contributions);
    if (!s->folds || !s->first_fold || !s->contributions)
        return no_memory(err);
    (void)dpt_waves_folds(&s->waves, s->folds, s->first_fold);
    return DPT_OK;
}

/* Cuts the pieces into parts, the same on all ranks, and makes room for those of other hosts. */
static enum dpt_status make_parts(struct sharded *s, struct dpt_err *err)
{
    const int64_t most = PART_BYTES / (int64_t)sizeof(float);
    int64_t largest = 0;
    for (int u = 0; u < s->n_units; u++) {
        const struct dpt_interval first = sharded_piece(s, 0, u); /* of the largest */
        const int64_t numel = first.end - first.first;
        s->parts[u] = (int)((numel + most - 1) / most);
        if (s->parts[u] < 1 || s->world->size == 1)
            s->parts[u] = 1;
        const struct dpt_interval part = part_of(s, 0, u, 0, s->parts[u]);
        if (part.end - part.first > largest)
            largest = part.end - part.first;
    }
    s->n_staged = 0;
    for (int p = 0; p < s->world->size; p++)
        s->n_staged += s->world->host_of_position[p] != s->host;
    s->staging_bytes = (size_t)largest * sizeof(float);
    if (s->n_staged == 0)
        return DPT_OK;
    return dpt_device_alloc(s->env.device, SHARDED_TURNS * (size_t)s->n_staged * s->staging_bytes,
                            &s->staging, err);
}

static enum dpt_status make_walk(struct sharded *s, struct dpt_err *err)
{
    const struct dpt_walk_spec spec = {
        .thread = s->env.comm_thread,
        .world_size = s->world->size,
        .turns = s->n_staged > 0 ? SHARDED_TURNS : 0,
        .kinds = {[DPT_TASK_GATHER] = {.post = post_gather},
                  [DPT_TASK_SCATTER] = {.post = post_scatter, .arrived = scattered},
                  [DPT_TASK_SHARE] = {.post = post_share}},
        .ctx = s,
        .then = s->lanes ? dpt_lane_sums_job : NULL,
        .then_ctx = s->lanes};
    const int a = s->list.n_tasks, b = s->eval_list.n_tasks;
    return dpt_walk_create(&spec, a > b ? a : b, &s->walk, err);
}

/* Memory and plan of the waves. */
static enum dpt_status begin_waves(struct sharded *s, struct dpt_step_spec *spec,
                                   struct dpt_err *err)
{
    spec->deal = dpt_waves_deal(&s->waves, s->position);
    spec->waves = &s->waves;
    spec->member = s->position;
    spec->parts = s->parts;
    spec->share = s->world->size > 1 && (s->policy.whole_state || s->policy.group || s->ward >= 0);
    DPT_TRY(make_parts(s, err));
    DPT_TRY(make_gradients(s, spec, err));
    DPT_TRY(make_sums(s, err));
    return make_folds(s, err);
}

enum dpt_status sharded_tasks_begin(struct sharded *s, struct dpt_err *err)
{
    const struct dpt_config *config = s->env.config;
    struct dpt_step_spec spec = {.n_units = s->n_units,
                                 .borrows = s->borrows,
                                 .weights = sharded_weights_plan(s),
                                 .gathered_max = config->strategy.gathered_units_max,
                                 .prefetch = config->strategy.prefetch};
    s->piece = (struct dpt_shard){s->rank, s->world->size};
    free(s->block_sums);
    s->block_sums = calloc((size_t)(s->flat_numel / DPT_BLOCK), sizeof *s->block_sums);
    if (!s->block_sums)
        return no_memory(err);
    if (s->lanes) {
        spec.deal = dpt_lane_sums_deal(s->lanes, s->world, s->position);
        DPT_TRY(dpt_lane_sums_begin_generation(s->lanes, s->world, s->rank, s->host, err));
    } else {
        DPT_TRY(begin_waves(s, &spec, err));
    }
    DPT_TRY(dpt_step_list_init(&s->list, &spec, err));
    spec.forward_only = true;
    spec.waves = NULL;
    spec.share = false;
    DPT_TRY(dpt_step_list_init(&s->eval_list, &spec, err));
    return make_walk(s, err);
}

void sharded_tasks_end(struct sharded *s)
{
    if (s->lanes)
        dpt_lane_sums_end_generation(s->lanes);
    dpt_walk_destroy(&s->walk);
    dpt_step_list_fini(&s->list);
    dpt_step_list_fini(&s->eval_list);
    free(s->folds);
    free(s->first_fold);
    free(s->contributions);
    dpt_device_free(s->env.device, s->staging,
                    SHARDED_TURNS * (size_t)s->n_staged * s->staging_bytes);
    s->folds = NULL;
    s->first_fold = NULL;
    s->contributions = NULL;
    s->staging = NULL;
    s->present = NULL;
}

void sharded_tasks_destroy(struct sharded *s)
{
    sharded_tasks_end(s);
    dpt_lane_sums_destroy(&s->lanes);
    free_sums(s);
    dpt_comm_mem_destroy(&s->sum0);
    dpt_comm_mem_destroy(&s->applied);
    dpt_comm_mem_destroy(&s->shadowed);
    for (int i = 0; i < SHARDED_GRADIENTS_MAX; i++)
        dpt_comm_mem_destroy(&s->gradient[i]);
    free(s->block_sums);
}
