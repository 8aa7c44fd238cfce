/* What goes between the ranks of a sharded strategy in a step (sharded.h): weights from their
 * owners to who computes with them, gradients to the owners of their pieces, who sum them; what
 * follows is in sharded_share.c. */
#include "worker/strategy/sharded.h"
#include "worker/strategy/wave_sum.h"
#include "worker/strategy/wire.h"

#include <stdlib.h>
#include <string.h>

enum {
    PART_BYTES = 2 << 20,       /* of a piece that goes round at once, */
    DEVICE_BYTES = 32 << 20,    /* of a device's those of all others together */
    ALONE_CHUNK_NUMEL = 1 << 18 /* by all the threads of a rank that is alone */
};

static bool is_empty(struct dpt_interval range)
{
    return range.end <= range.first;
}

static bool is_far(const struct sharded *s, int position)
{
    return s->world->host_of_position[position] != s->host;
}

size_t sharded_width(const struct sharded *s, int position)
{
    return is_far(s, position) ? dpt_dtype_bytes(s->wire) : sizeof(float);
}

bool sharded_is_narrow(const struct sharded *s, int position)
{
    return sharded_width(s, position) != sizeof(float);
}

bool sharded_is_staged(const struct sharded *s, int position)
{
    return s->env.resident || is_far(s, position);
}

int64_t sharded_part_bytes(const struct sharded *s, int ranks)
{
    const int64_t share = DEVICE_BYTES / (ranks > 1 ? ranks - 1 : 1);
    return s->env.resident && share > PART_BYTES ? share : PART_BYTES;
}

static int64_t unit_offset(const struct sharded *s, int unit)
{
    return s->env.grid->offset[unit];
}

/* What the rank at a position sum steps of a unit; part `part` of `n` of it. */
static struct dpt_interval summed_piece(const struct sharded *s, int position, int unit)
{
    return dpt_shard_piece(s->env.grid, sharded_summed(s, position), unit);
}

struct dpt_interval sharded_part(const struct sharded *s, int position, int unit, int part, int n)
{
    const struct dpt_interval piece = summed_piece(s, position, unit);
    struct dpt_interval range = {0, 0};
    if (is_empty(piece))
        return range;
    range = dpt_layout_piece(piece.end - piece.first, DPT_BLOCK, n, part);
    return (struct dpt_interval){piece.first + range.first, piece.first + range.end};
}

/* Those who compute in the task's wave: positions below this. */
static int active(const struct sharded *s, const struct dpt_task *task)
{
    return s->present == &s->eval_list || s->lanes
               ? s->world->size
               : s->members.first + dpt_waves_active(&s->waves, task->wave);
}

/* Who sums together; position i places after the own one: so that not all begin with the same
 * rank. */
static int n_members(const struct sharded *s)
{
    return s->members.end - s->members.first;
}

static int other_member(const struct sharded *s, int i)
{
    return s->members.first + (s->position - s->members.first + i) % n_members(s);
}

struct dpt_interval sharded_held_piece(const struct sharded *s, int position, int unit)
{
    return dpt_shard_piece(s->env.grid, sharded_shard(s, position), unit);
}

struct dpt_interval sharded_whole_piece(const struct sharded *s, int position, int unit)
{
    return s->cross ? dpt_shard_piece(s->env.grid, sharded_added(s, position), unit)
                    : summed_piece(s, position, unit);
}

/* Position i places after the own one among those who share a state. */
static int other_of_group(const struct sharded *s, int i)
{
    return s->group_first + (s->position - s->group_first + i) % s->group_size;
}

static char *gather_place(const struct sharded *s, const struct dpt_task *task, int64_t element)
{
    if (task->buffer < 0)
        return (char *)s->whole.data + (size_t)element * s->width;
    return (char *)s->gathered[task->buffer] +
           (size_t)(element - unit_offset(s, task->unit)) * s->width;
}

/* The rank at `holder` keeps a shadow of what the one at `position` holds: it makes these weights
 * of the shadow's masters, and nobody sends them to it. One that is still being copied is none. */
static bool has_shadow_of(const struct sharded *s, int holder, int position)
{
    const bool holder_has = !(s->rebuilds && s->holder_late);
    return (position == s->position && holder == s->shadow_holder && holder_has) ||
           (holder == s->position && position == s->shadow_source &&
            dpt_shard_is_none(s->late.shard));
}

/* Puts the own piece where the unit is gathered. */
static void place_own(const struct sharded *s, const struct dpt_task *task)
{
    const struct dpt_interval own = sharded_held_piece(s, s->position, task->unit);
    size_t offset;
    const char *weights = sharded_weights(s, task->unit, &offset).data;
    if (!task->idle && task->buffer >= 0 && !is_empty(own))
        s->ops->copy(s->comm_stream, (size_t)(own.end - own.first) * s->width, weights + offset,
                     gather_place(s, task, own.first));
}

static void post_gather(void *ctx, const struct dpt_task *task, int turn,
                        struct dpt_task_transfers *x)
{
    const struct sharded *s = ctx;
    const struct dpt_interval own = sharded_held_piece(s, s->position, task->unit);
    const size_t own_bytes = is_empty(own) ? 0 : (size_t)(own.end - own.first) * s->width;
    const int computing = active(s, task);
    size_t offset;
    const struct dpt_buffer weights = sharded_weights(s, task->unit, &offset);
    (void)turn;
    if (!s->env.resident) /* where the device has let the place go only when others' pieces come */
        place_own(s, task);
    for (int i = 1; i < s->group_size; i++) {
        const int position = other_of_group(s, i), peer = s->world->rank_of_position[position];
        const struct dpt_interval theirs = sharded_held_piece(s, position, task->unit);
        if (own_bytes > 0 && position < computing && !has_shadow_of(s, position, s->position))
            x->out[x->n_out++] = dpt_buffer_send(&weights, peer, offset, own_bytes);
        if (!task->idle && !is_empty(theirs) && !has_shadow_of(s, s->position, position))
            x->in[x->n_in++] =
                (struct dpt_comm_xfer){.dir = DPT_COMM_RECV,
                                       .peer = peer,
                                       .buf = gather_place(s, task, theirs.first),
                                       .bytes = (size_t)(theirs.end - theirs.first) * s->width};
    }
}

/* Puts what comes from the shadow beside what others have sent. */
static void place_shadow(const struct sharded *s, const struct dpt_task *task)
{
    if (task->idle || s->shadow_source < 0 || !has_shadow_of(s, s->position, s->shadow_source))
        return;
    const struct dpt_interval piece = sharded_held_piece(s, s->shadow_source, task->unit);
    if (is_empty(piece))
        return;
    const float *masters = sharded_vector_at(s, &s->held.shadow, DPT_VECTOR_PARAM, task->unit);
    char *place = gather_place(s, task, piece.first);
    if (s->dtype == DPT_F32)
        s->ops->copy(s->comm_stream, (size_t)(piece.end - piece.first) * sizeof(float), masters,
                     place);
    else
        s->ops->cast(s->comm_stream, piece.end - piece.first, masters, s->dtype, place);
}

static enum dpt_status gathered(void *ctx, const struct dpt_task *task, int turn,
                                const struct dpt_task_transfers *x, struct dpt_err *err)
{
    const struct sharded *s = ctx;
    (void)turn;
    (void)x;
    if (s->env.resident)
        place_own(s, task);
    place_shadow(s, task);
    return dpt_stream_sync(s->comm_stream, err);
}

void sharded_round_gradient(struct sharded *s, int unit)
{
    const int64_t numel = dpt_model_unit(s->env.model, unit)->numel;
    s->ops->round_to(s->stream, numel, s->wire, s->grads[unit]);
    for (int i = 0; i < s->n_gradients; i++)
        if (s->narrow_gradient[i].data && s->gradient[i].data == s->grads[unit])
            s->ops->cast(s->stream, numel, s->grads[unit], s->wire, s->narrow_gradient[i].data);
}

static void post_scatter(void *ctx, const struct dpt_task *task, int turn,
                         struct dpt_task_transfers *x)
{
    const struct sharded *s = ctx;
    const struct dpt_interval own =
        sharded_part(s, s->position, task->unit, task->part, task->n_parts);
    const int computing = active(s, task);
    char *staging = (char *)s->staging +
                    (size_t)(turn % SHARDED_TURNS) * (size_t)s->n_staged * s->staging_bytes;
    for (int i = 1; i < n_members(s); i++) {
        const int position = other_member(s, i), peer = s->world->rank_of_position[position];
        const struct dpt_interval theirs =
            sharded_part(s, position, task->unit, task->part, task->n_parts);
        const size_t width = sharded_width(s, position);
        if (!task->idle && !is_empty(theirs))
            x->out[x->n_out++] =
                dpt_buffer_send(sharded_is_narrow(s, position) ? &s->narrow_gradient[task->buffer]
                                                               : &s->gradient[task->buffer],
                                peer, (size_t)(theirs.first - unit_offset(s, task->unit)) * width,
                                (size_t)(theirs.end - theirs.first) * width);
        if (position >= computing || is_empty(own))
            continue;
        struct dpt_comm_xfer *in = &x->in[x->n_in++];
        *in = (struct dpt_comm_xfer){
            .dir = DPT_COMM_LEND, .peer = peer, .bytes = (size_t)(own.end - own.first) * width};
        if (sharded_is_staged(s, position)) {
            in->buf = staging;
            staging += s->staging_bytes;
        }
    }
}

/* Folds a wave's contributions to elements [first, first + numel) of the own piece of a unit. */
static void add_wave(const struct sharded *s, const struct dpt_task *task, int64_t first,
                     int64_t numel, struct dpt_stream *stream)
{
    const int at = s->first_step[task->wave];
    float *sums[SHARDED_SUMS_MAX], wide[DPT_WAVE_SUM_CHUNK];
    for (int i = 0; i < s->n_sums; i++)
        sums[i] = sharded_sum(s, i, task->unit) + first;
    const struct dpt_wave_sum wave = {.steps = s->steps + at,
                                      .n = s->first_step[task->wave + 1] - at,
                                      .sums = sums,
                                      .contributions = s->contributions,
                                      .narrow = s->narrow_from,
                                      .wire = s->wire,
                                      .last = task->wave == dpt_waves_count(&s->waves) - 1,
                                      .numel = numel,
                                      .wide = s->env.resident ? s->scratch : wide,
                                      .chunk = s->env.resident       ? numel
                                               : s->world->size == 1 ? ALONE_CHUNK_NUMEL
                                                                     : DPT_WAVE_SUM_CHUNK};
    dpt_wave_sum_add(s->ops, stream, &wave);
}

size_t sharded_narrow_offset(const struct sharded *s, int unit, int64_t at)
{
    return (size_t)(dpt_shard_offset(s->env.grid, s->piece, unit) + at) * dpt_dtype_bytes(s->wire);
}

static enum dpt_status scattered(void *ctx, const struct dpt_task *task, int turn,
                                 const struct dpt_task_transfers *x, struct dpt_err *err)
{
    const struct sharded *s = ctx;
    const struct dpt_interval own =
        sharded_part(s, s->position, task->unit, task->part, task->n_parts);
    (void)turn;
    if (is_empty(own))
        return DPT_OK;
    if (!task->idle)
        s->contributions[s->position - s->members.first] =
            (const float *)s->gradient[task->buffer].data +
            (own.first - unit_offset(s, task->unit));
    int n = 0;
    for (int i = 1; i < n_members(s); i++) {
        const int position = other_member(s, i);
        if (position < active(s, task))
            s->contributions[position - s->members.first] = x->in[n++].lent;
    }
    DPT_ASSERT(n == x->n_in);
    const bool alone = s->world->size == 1;
    struct dpt_stream *stream = alone ? s->stream : s->comm_stream;
    const int64_t first = own.first - summed_piece(s, s->position, task->unit).first;
    add_wave(s, task, first, own.end - own.first, stream);
    if (s->narrow_sum.data)
        s->ops->cast(stream, own.end - own.first, sharded_sum(s, 0, task->unit) + first, s->wire,
                     (char *)s->narrow_sum.data + sharded_narrow_offset(s, task->unit, first));
    return alone && s->env.resident ? DPT_OK : dpt_stream_sync(stream, err);
}

static int64_t numel_of(struct dpt_interval range)
{
    return is_empty(range) ? 0 : range.end - range.first;
}

/* Bytes that a task makes this rank send. */
static int64_t task_bytes(const struct sharded *s, const struct dpt_task *t)
{
    int64_t bytes = 0;
    if (t->kind == DPT_TASK_CROSS || t->kind == DPT_TASK_SHARE)
        return sharded_share_bytes(s, t);
    for (int i = 1; t->kind == DPT_TASK_GATHER && i < s->group_size; i++)
        if (other_of_group(s, i) < active(s, t) &&
            !has_shadow_of(s, other_of_group(s, i), s->position))
            bytes += numel_of(sharded_held_piece(s, s->position, t->unit)) * (int64_t)s->width;
    for (int i = 1; t->kind == DPT_TASK_SCATTER && !t->idle && i < n_members(s); i++)
        bytes += numel_of(sharded_part(s, other_member(s, i), t->unit, t->part, t->n_parts)) *
                 (int64_t)sharded_width(s, other_member(s, i));
    return bytes;
}

int64_t sharded_bytes_sent(const struct sharded *s)
{
    struct dpt_strategy_cost cost = {.sent_bytes = 0};
    if (s->lanes)
        dpt_lane_sums_cost(s->lanes, &cost);
    int64_t bytes = cost.sent_bytes;
    for (int i = 0; i < s->list.n_tasks; i++)
        bytes += task_bytes(s, &s->list.tasks[i]);
    return bytes;
}

static enum dpt_status make_runner(struct sharded *s, struct dpt_err *err)
{
    /* Nodes that sum by themselves have tasks of their own, and a group for them. */
    const int group = s->policy.by_node && s->world->size > 1 ? SHARDED_NODE_GROUP : 0;
    const struct dpt_task_runner_spec spec = {
        .thread = s->env.comm_thread,
        .world_size = s->world->size,
        .xfers_max = sharded_xfers_max(s),
        .device = s->env.resident,
        .stream = s->stream,
        .comm_stream = s->comm_stream,
        .kinds = {[DPT_TASK_GATHER] = {.group = group, .post = post_gather, .arrived = gathered},
                  [DPT_TASK_SCATTER] = {.group = group,
                                        .turns = s->n_staged > 0 ? SHARDED_TURNS : 0,
                                        .post = post_scatter,
                                        .arrived = scattered},
                  [DPT_TASK_CROSS] = {.turns = SHARDED_TURNS,
                                      .post = sharded_post_cross,
                                      .arrived = sharded_crossed},
                  [DPT_TASK_SHARE] = {.post = sharded_post_share, .arrived = sharded_shared},
                  [DPT_TASK_COPY] = {.post = sharded_post_copy}},
        .ctx = s,
        .then = s->lanes ? dpt_lane_sums_job : NULL,
        .then_ctx = s->lanes};
    const int a = s->list.n_tasks, b = s->eval_list.n_tasks;
    return dpt_task_runner_create(&spec, a > b ? a : b, &s->runner, err);
}

/* Memory and plan of the waves. */
static enum dpt_status begin_waves(struct sharded *s, struct dpt_step_spec *spec,
                                   struct dpt_err *err)
{
    const bool several = s->world->size > 1, nodes = n_members(s) < s->world->size;
    if (nodes)
        DPT_TRY(sharded_cross_begin(s, err));
    else
        dpt_buffer_free(&s->env, &s->added);
    spec->assignment = dpt_waves_assign(&s->waves, s->position - s->members.first);
    spec->waves = &s->waves;
    spec->member = s->position - s->members.first;
    spec->parts = s->parts; /* filled in below */
    spec->cross_parts = sharded_cross_parts(s);
    spec->share = several && (s->policy.whole_state || (s->policy.group && !s->policy.by_node) ||
                              nodes || s->shadow_shift > 0);
    spec->copies = s->shadow_shift > 0 ? dpt_vectors(s->env.config) : 0;
    return sharded_memory_begin(s, spec, err);
}

/* Ranks of a node are a group of NCCL's where they have tasks among themselves. */
static void choose_groups(const struct sharded *s)
{
    const struct dpt_nccl_split_of node = {.color = s->group_first, .key = s->position};
    if (s->env.resident)
        dpt_comm_thread_set_groups(s->env.comm_thread, &node, s->policy.by_node ? 1 : 0);
}

enum dpt_status sharded_tasks_begin(struct sharded *s, struct dpt_err *err)
{
    const struct dpt_config *config = s->env.config;
    struct dpt_step_spec spec = {.n_units = s->n_units,
                                 .borrows = s->borrows,
                                 .weights = sharded_weights_plan(s),
                                 .gathered_max = dpt_gathered_places(config, s->env.model),
                                 .prefetch = config->strategy.prefetch,
                                 .overlap = config->strategy.overlap};
    s->piece = sharded_summed(s, s->position);
    choose_groups(s);
    DPT_TRY(sharded_block_sums(s, err));
    if (s->lanes) {
        spec.assignment = dpt_lane_sums_assign(s->lanes, s->world, s->position);
        DPT_TRY(dpt_lane_sums_begin_generation(s->lanes, s->world, s->rank, s->host, err));
    } else {
        DPT_TRY(begin_waves(s, &spec, err));
    }
    DPT_TRY(dpt_step_list_init(&s->list, &spec, err));
    spec.forward_only = true;
    spec.waves = NULL;
    spec.cross_parts = NULL;
    spec.share = false;
    spec.copies = 0;
    DPT_TRY(dpt_step_list_init(&s->eval_list, &spec, err));
    return make_runner(s, err);
}

void sharded_tasks_end(struct sharded *s)
{
    if (s->lanes)
        dpt_lane_sums_end_generation(s->lanes);
    dpt_task_runner_destroy(&s->runner);
    sharded_cross_end(s);
    dpt_step_list_fini(&s->list);
    dpt_step_list_fini(&s->eval_list);
    sharded_memory_end(s);
    s->present = NULL;
}

void sharded_tasks_destroy(struct sharded *s)
{
    sharded_tasks_end(s);
    dpt_lane_sums_destroy(&s->lanes);
    sharded_memory_destroy(s);
}
