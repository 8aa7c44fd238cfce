/* Slots on their way to the owners of their pieces, and the sums on their way back (slot_sums.h).
 *
 * A step's tasks, the same on all ranks: of each wave, of each bucket, scatters of its parts, and
 * where the sum comes back a share. A rank without a slot in the last wave sums and takes. */
#include "worker/strategy/slot_sums.h"

#include "worker/strategy/task_runner.h"
#include "worker/strategy/wave_sum.h"

#include <stdlib.h>
#include <string.h>

enum {
    SUMS_MAX = DPT_TREE_DEPTH_MAX + 2,
    PART_BYTES = 2 << 20,        /* of a piece that goes round at once */
    CHUNK_NUMEL = 4096,          /* summed at once */
    ALONE_CHUNK_NUMEL = 1 << 18, /* by all the threads of a rank that is alone */
    TURNS = 2                    /* scatters under way that need staging */
};

struct dpt_slot_sums {
    struct dpt_strategy_env env;
    const struct dpt_ops *ops;
    struct dpt_ddp_policy policy;
    int64_t flat_numel;
    float **grads; /* [n_units] */

    int n_buckets;
    struct dpt_bucket *buckets;
    int *bucket_of_param;
    int *announced; /* [n_buckets] parameters of this slot */
    struct dpt_comm_mem *gradient;

    /* The generation. */
    const struct dpt_world *world;
    int rank, host, position;
    struct dpt_waves waves;
    struct dpt_sum_step *steps;
    int *first_step; /* [waves + 1] */
    int *parts;      /* [n_buckets] */
    int64_t *own_at; /* [n_buckets] where a bucket's own piece lies in a sum */
    struct dpt_step_list list;
    int *first_task; /* [waves x n_buckets + 1] scatters of a wave's bucket */
    struct dpt_task_runner *runner;
    const void **contributions; /* [world size], by position */
    void *sums[SUMS_MAX];       /* of the own pieces, compact */
    size_t sum_bytes;
    int n_sums;
    void *staging;
    size_t staging_bytes; /* of one part of one rank */
    int n_staged;         /* ranks of other hosts */

    /* The step. */
    int wave;               /* of the present slot; after it, of the next */
    enum dpt_status status; /* of what was waited for in an announcement or at a slot's end */
    struct dpt_err err;
};

static enum dpt_status no_memory(struct dpt_err *err)
{
    return dpt_fail(err, DPT_ENOMEM, "sums of slots: out of memory");
}

static float *gradient_at(const struct dpt_slot_sums *s, int64_t element)
{
    return (float *)dpt_comm_mem_data(s->gradient) + element;
}

static bool comes_back(const struct dpt_slot_sums *s, int wave)
{
    return s->policy.each_slot || wave == dpt_waves_count(&s->waves) - 1;
}

/* A rank's piece of a bucket. */
static struct dpt_interval piece_of(const struct dpt_slot_sums *s, int rank, int bucket)
{
    const struct dpt_bucket *b = &s->buckets[bucket];
    const struct dpt_interval piece =
        dpt_layout_piece(b->end - b->first, DPT_BLOCK, s->world->size, rank);
    return (struct dpt_interval){b->first + piece.first, b->first + piece.end};
}

/* Part `part` of `n` of it. */
static struct dpt_interval part_of(const struct dpt_slot_sums *s, int rank, int bucket, int part,
                                   int n)
{
    const struct dpt_interval piece = piece_of(s, rank, bucket);
    const struct dpt_interval of_it = dpt_layout_piece(piece.end - piece.first, DPT_BLOCK, n, part);
    return (struct dpt_interval){piece.first + of_it.first, piece.first + of_it.end};
}

static struct dpt_comm_xfer send_of(const struct dpt_slot_sums *s, int peer,
                                    struct dpt_interval range)
{
    return (struct dpt_comm_xfer){.dir = DPT_COMM_SEND,
                                  .peer = peer,
                                  .mem = s->gradient,
                                  .offset = (size_t)range.first * sizeof(float),
                                  .bytes = (size_t)(range.end - range.first) * sizeof(float)};
}

/* Position i places after the own one: so that not all begin with the same rank. */
static int other_position(const struct dpt_slot_sums *s, int i)
{
    return (s->position + i) % s->world->size;
}

static void post_scatter(void *ctx, const struct dpt_task *task, int turn,
                         struct dpt_task_transfers *x)
{
    const struct dpt_slot_sums *s = ctx;
    const struct dpt_interval own = part_of(s, s->rank, task->unit, task->part, task->n_parts);
    const int active = dpt_waves_active(&s->waves, task->wave);
    char *staging =
        (char *)s->staging + (size_t)(turn % TURNS) * (size_t)s->n_staged * s->staging_bytes;
    for (int i = 1; i < s->world->size; i++) {
        const int position = other_position(s, i), peer = s->world->rank_of_position[position];
        const struct dpt_interval theirs = part_of(s, peer, task->unit, task->part, task->n_parts);
        if (!task->idle && theirs.end > theirs.first)
            x->out[x->n_out++] = send_of(s, peer, theirs);
        if (position >= active || own.end == own.first)
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

/* Folds what has come of the own piece. */
static enum dpt_status scattered(void *ctx, const struct dpt_task *task, int turn,
                                 const struct dpt_task_transfers *x, struct dpt_err *err)
{
    const struct dpt_slot_sums *s = ctx;
    const struct dpt_interval own = part_of(s, s->rank, task->unit, task->part, task->n_parts);
    const int active = dpt_waves_active(&s->waves, task->wave);
    const bool alone = s->world->size == 1;
    struct dpt_stream *stream = alone ? s->env.stream : s->env.comm_stream;
    float *sums[SUMS_MAX];
    (void)turn;
    if (own.end == own.first)
        return DPT_OK;
    if (!task->idle)
        s->contributions[s->position] = gradient_at(s, own.first);
    int n = 0;
    for (int i = 1; i < s->world->size; i++)
        if (other_position(s, i) < active)
            s->contributions[other_position(s, i)] = x->in[n++].lent;
    DPT_ASSERT(n == x->n_in);
    const int64_t at = s->own_at[task->unit] + (own.first - piece_of(s, s->rank, task->unit).first);
    for (int i = 0; i < s->n_sums; i++)
        sums[i] = (float *)s->sums[i] + at;
    const int first = s->first_step[task->wave];
    const struct dpt_wave_sum wave = {.steps = s->steps + first,
                                      .n = s->first_step[task->wave + 1] - first,
                                      .sums = sums,
                                      .contributions = s->contributions,
                                      .numel = own.end - own.first,
                                      .chunk = alone ? ALONE_CHUNK_NUMEL : CHUNK_NUMEL};
    dpt_wave_sum_add(s->ops, stream, &wave);
    return dpt_stream_sync(stream, err);
}

/* The own piece's sum takes its place among the others, which come from their owners: all that
 * others read of this rank's gradient there they have read, since they had to for their sums. */
static void post_share(void *ctx, const struct dpt_task *task, int turn,
                       struct dpt_task_transfers *x)
{
    const struct dpt_slot_sums *s = ctx;
    const struct dpt_interval own = piece_of(s, s->rank, task->unit);
    (void)turn;
    if (own.end > own.first)
        memcpy(gradient_at(s, own.first), (float *)s->sums[0] + s->own_at[task->unit],
               (size_t)(own.end - own.first) * sizeof(float));
    for (int i = 1; i < s->world->size; i++) {
        const int peer = s->world->rank_of_position[other_position(s, i)];
        const struct dpt_interval theirs = piece_of(s, peer, task->unit);
        if (own.end > own.first)
            x->out[x->n_out++] = send_of(s, peer, own);
        if (theirs.end == theirs.first)
            continue;
        x->in[x->n_in] = send_of(s, peer, theirs);
        x->in[x->n_in++].dir = DPT_COMM_RECV;
    }
}

/* Backward writes parameters, to where the padding between units stays zero. */
static enum dpt_status make(struct dpt_slot_sums *s, struct dpt_err *err)
{
    const int n_units = dpt_model_n_units(s->env.model), n = dpt_model_n_params(s->env.model);
    s->grads = calloc((size_t)n_units, sizeof *s->grads);
    s->buckets = calloc((size_t)n, sizeof *s->buckets);
    s->bucket_of_param = calloc((size_t)n, sizeof *s->bucket_of_param);
    s->announced = calloc((size_t)n, sizeof *s->announced);
    if (!s->grads || !s->buckets || !s->bucket_of_param || !s->announced)
        return no_memory(err);
    DPT_TRY(dpt_ddp_policy_buckets(&s->policy, s->env.config, s->env.model, s->buckets,
                                   &s->n_buckets, err));
    for (int b = 0; b < s->n_buckets; b++)
        for (int i = 0; i < s->buckets[b].n_tensors; i++)
            s->bucket_of_param[s->buckets[b].first_tensor + i] = b;
    DPT_TRY(dpt_comm_mem_create_for(s->env.listener, DPT_MEMORY_GRADIENT, false,
                                    (size_t)s->flat_numel * sizeof(float), &s->gradient, err));
    for (int u = 0; u < n_units; u++)
        s->grads[u] = gradient_at(s, dpt_model_unit(s->env.model, u)->offset);
    return DPT_OK;
}

enum dpt_status dpt_slot_sums_create(const struct dpt_strategy_env *env, struct dpt_slot_sums **ret,
                                     struct dpt_err *err)
{
    struct dpt_slot_sums *s = calloc(1, sizeof *s);
    if (!s)
        return no_memory(err);
    s->env = *env;
    s->ops = dpt_device_ops(env->device);
    s->policy = dpt_ddp_policy_of(env->config);
    s->flat_numel = dpt_model_flat_numel(env->model);
    const enum dpt_status status = make(s, err);
    if (status != DPT_OK)
        dpt_slot_sums_destroy(&s);
    else
        *ret = s;
    return status;
}

void dpt_slot_sums_destroy(struct dpt_slot_sums **sums)
{
    struct dpt_slot_sums *s = *sums;
    if (!s)
        return;
    dpt_slot_sums_end_generation(s);
    dpt_comm_mem_destroy(&s->gradient);
    free(s->grads);
    free(s->buckets);
    free(s->bucket_of_param);
    free(s->announced);
    free(s);
    *sums = NULL;
}

static struct dpt_waves waves_of(const struct dpt_slot_sums *s, const struct dpt_world *world)
{
    const bool reduce = dpt_config_accumulate(s->env.config) == DPT_ACCUMULATE_REDUCE;
    const int lanes = reduce ? 1 : world->lanes;
    return (struct dpt_waves){.slots = dpt_config_slots(s->env.config),
                              .lanes = lanes,
                              .run = {0, lanes},
                              .members = world->size};
}

struct dpt_assignment dpt_slot_sums_assign(const struct dpt_slot_sums *s,
                                           const struct dpt_world *world, int position)
{
    const struct dpt_waves waves = waves_of(s, world);
    return dpt_waves_assign(&waves, position);
}

/* Cuts pieces into parts, the same on all ranks; room for sums and for what other hosts send. */
static enum dpt_status make_room(struct dpt_slot_sums *s, struct dpt_err *err)
{
    const int64_t most = PART_BYTES / (int64_t)sizeof(float);
    int64_t largest = 0, own = 0;
    for (int b = 0; b < s->n_buckets; b++) {
        const struct dpt_interval first = piece_of(s, 0, b); /* of the largest */
        const struct dpt_interval mine = piece_of(s, s->rank, b);
        s->parts[b] = s->world->size > 1 ? (int)((first.end - first.first + most - 1) / most) : 1;
        const struct dpt_interval part = part_of(s, 0, b, 0, s->parts[b]);
        largest = part.end - part.first > largest ? part.end - part.first : largest;
        s->own_at[b] = own;
        own += mine.end - mine.first;
    }
    const int n = dpt_waves_sums(&s->waves);
    DPT_ASSERT(n <= SUMS_MAX);
    s->sum_bytes = (size_t)(own > 0 ? own : DPT_BLOCK) * sizeof(float);
    for (s->n_sums = 0; s->n_sums < n; s->n_sums++)
        DPT_TRY(dpt_device_alloc_for(s->env.device, DPT_MEMORY_SUMS, s->sum_bytes,
                                     &s->sums[s->n_sums], err));
    for (int p = 0; p < s->world->size; p++)
        s->n_staged += s->world->host_of_position[p] != s->host;
    s->staging_bytes = (size_t)largest * sizeof(float);
    if (s->n_staged == 0)
        return DPT_OK;
    return dpt_device_alloc_for(s->env.device, DPT_MEMORY_COMM,
                                TURNS * (size_t)s->n_staged * s->staging_bytes, &s->staging, err);
}

static void add_share(struct dpt_slot_sums *s, int wave, int bucket, int scatters)
{
    s->list.tasks[s->list.n_tasks++] = (struct dpt_task){.kind = DPT_TASK_SHARE,
                                                         .unit = bucket,
                                                         .wave = wave,
                                                         .buffer = -1,
                                                         .n_parts = 1,
                                                         .scatters = scatters};
}

/* A bucket's share follows its scatters where it is waited for; else those of the next bucket, so
 * that its own have been summed by then and nothing waits behind it. */
static void list_tasks(struct dpt_slot_sums *s, int waves)
{
    const int mine = dpt_waves_assign(&s->waves, s->position).n;
    int scatters = 0;
    for (int wave = 0; wave < waves; wave++) {
        for (int b = 0; b < s->n_buckets; b++) {
            const int at = wave * s->n_buckets + b, before = scatters;
            s->first_task[at] = s->list.n_tasks;
            for (int part = 0; part < s->parts[b]; part++, scatters++)
                s->list.tasks[s->list.n_tasks++] =
                    (struct dpt_task){.kind = DPT_TASK_SCATTER,
                                      .unit = b,
                                      .wave = wave,
                                      .buffer = -1,
                                      .part = part,
                                      .n_parts = s->parts[b],
                                      .actions = wave < mine ? at + 1 : 0,
                                      .idle = wave >= mine};
            if (!comes_back(s, wave))
                continue;
            if (s->policy.waits)
                add_share(s, wave, b, scatters);
            else if (b > 0)
                add_share(s, wave, b - 1, before);
        }
        if (comes_back(s, wave) && !s->policy.waits)
            add_share(s, wave, s->n_buckets - 1, scatters);
    }
    s->first_task[waves * s->n_buckets] = s->list.n_tasks;
}

static enum dpt_status make_list(struct dpt_slot_sums *s, struct dpt_err *err)
{
    const int waves = dpt_waves_count(&s->waves);
    size_t per_wave = (size_t)s->n_buckets;
    for (int b = 0; b < s->n_buckets; b++)
        per_wave += (size_t)s->parts[b];
    s->list.tasks = calloc((size_t)waves * per_wave, sizeof *s->list.tasks);
    s->first_task = calloc((size_t)waves * (size_t)s->n_buckets + 1, sizeof *s->first_task);
    s->steps = calloc((size_t)(s->waves.slots + s->waves.lanes), sizeof *s->steps);
    s->first_step = calloc((size_t)waves + 1, sizeof *s->first_step);
    s->contributions = calloc((size_t)s->world->size, sizeof *s->contributions);
    if (!s->list.tasks || !s->first_task || !s->steps || !s->first_step || !s->contributions)
        return no_memory(err);
    list_tasks(s, waves);
    (void)dpt_waves_sum_steps(&s->waves, s->steps, s->first_step);
    return DPT_OK;
}

enum dpt_status dpt_slot_sums_begin_generation(struct dpt_slot_sums *s,
                                               const struct dpt_world *world, int rank, int host,
                                               struct dpt_err *err)
{
    s->world = world;
    s->rank = rank;
    s->host = host;
    s->position = 0;
    while (world->rank_of_position[s->position] != rank)
        s->position++;
    s->waves = waves_of(s, world);
    s->parts = calloc((size_t)s->n_buckets, sizeof *s->parts);
    s->own_at = calloc((size_t)s->n_buckets, sizeof *s->own_at);
    if (!s->parts || !s->own_at)
        return no_memory(err);
    DPT_TRY(make_room(s, err));
    DPT_TRY(make_list(s, err));
    const struct dpt_task_runner_spec spec = {
        .thread = s->env.comm_thread,
        .world_size = world->size,
        .xfers_max = world->size - 1,
        .kinds = {[DPT_TASK_SCATTER] = {.turns = s->n_staged > 0 ? TURNS : 0,
                                        .post = post_scatter,
                                        .arrived = scattered},
                  [DPT_TASK_SHARE] = {.post = post_share}},
        .ctx = s};
    return dpt_task_runner_create(&spec, s->list.n_tasks, &s->runner, err);
}

void dpt_slot_sums_end_generation(struct dpt_slot_sums *s)
{
    dpt_task_runner_destroy(&s->runner);
    dpt_step_list_fini(&s->list);
    for (int i = 0; i < s->n_sums; i++) {
        dpt_device_free_for(s->env.device, DPT_MEMORY_SUMS, s->sums[i], s->sum_bytes);
        s->sums[i] = NULL;
    }
    dpt_device_free_for(s->env.device, DPT_MEMORY_COMM, s->staging,
                        TURNS * (size_t)s->n_staged * s->staging_bytes);
    free(s->steps);
    free(s->first_step);
    free(s->first_task);
    free(s->parts);
    free(s->own_at);
    free(s->contributions);
    s->staging = NULL;
    s->steps = NULL;
    s->first_step = s->first_task = s->parts = NULL;
    s->own_at = NULL;
    s->contributions = NULL;
    s->n_sums = s->n_staged = 0;
    s->world = NULL;
}

void dpt_slot_sums_begin_step(struct dpt_slot_sums *s)
{
    s->wave = 0;
    s->status = DPT_OK;
    dpt_task_runner_begin(s->runner, &s->list, false, false);
}

/* The tasks of buckets [first, end), counted over all waves, are over. */
static void await_buckets(struct dpt_slot_sums *s, int first, int end)
{
    const int task = s->first_task[first];
    if (s->status == DPT_OK)
        s->status =
            dpt_task_runner_await(s->runner, task, s->first_task[end] - task, true, &s->err);
}

/* The present slot's gradient of a bucket is whole. */
static void let_go(struct dpt_slot_sums *s, int bucket)
{
    const int at = s->wave * s->n_buckets + bucket;
    if (s->status == DPT_OK)
        s->status = dpt_task_runner_advance(s->runner, at + 1, &s->err);
    if (s->policy.waits)
        await_buckets(s, at, at + 1);
}

static void announce(void *ctx, int param)
{
    struct dpt_slot_sums *s = ctx;
    const int bucket = s->bucket_of_param[param];
    s->announced[bucket]++;
    if (s->policy.announced && s->announced[bucket] == s->buckets[bucket].n_tensors)
        let_go(s, bucket);
}

void dpt_slot_sums_begin_slot(struct dpt_slot_sums *s, struct dpt_slot *slot)
{
    if (s->wave > 0 && !s->policy.waits)
        await_buckets(s, (s->wave - 1) * s->n_buckets, s->wave * s->n_buckets);
    memset(s->announced, 0, (size_t)s->n_buckets * sizeof *s->announced);
    slot->grads = s->grads;
    slot->accumulate = slot->parts_apart = false;
    slot->announce = announce;
    slot->announce_ctx = s;
}

void dpt_slot_sums_end_slot(struct dpt_slot_sums *s)
{
    for (int b = 0; b < s->n_buckets && !s->policy.announced; b++)
        let_go(s, b);
    s->wave++;
}

enum dpt_status dpt_slot_sums_wait(struct dpt_slot_sums *s, struct dpt_err *err)
{
    DPT_ASSERT(s->wave == dpt_waves_assign(&s->waves, s->position).n);
    if (s->status == DPT_OK)
        return dpt_task_runner_end(s->runner, err);
    *err = s->err;
    return s->status;
}

float *dpt_slot_sums_gradient(const struct dpt_slot_sums *s)
{
    return gradient_at(s, 0);
}

/* Elements that this rank sends in a step. */
static int64_t sent_numel(const struct dpt_slot_sums *s)
{
    const int waves = dpt_waves_count(&s->waves), mine = dpt_waves_assign(&s->waves, s->position).n;
    const int back = s->policy.each_slot ? waves : 1;
    int64_t numel = 0;
    for (int b = 0; b < s->n_buckets; b++) {
        const struct dpt_interval own = piece_of(s, s->rank, b);
        const int64_t all = s->buckets[b].end - s->buckets[b].first, piece = own.end - own.first;
        numel += mine * (all - piece) + back * (s->world->size - 1) * piece;
    }
    return numel;
}

void dpt_slot_sums_cost(const struct dpt_slot_sums *s, struct dpt_strategy_cost *ret)
{
    *ret = (struct dpt_strategy_cost){.gradient_bytes = (int64_t)dpt_comm_mem_bytes(s->gradient) +
                                                        (int64_t)s->n_sums * (int64_t)s->sum_bytes,
                                      .gradient_buffers = 1 + s->n_sums,
                                      .sent_bytes = sent_numel(s) * (int64_t)sizeof(float)};
}
