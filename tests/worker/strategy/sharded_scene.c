/* Running a scene of strategies (sharded_scene.h). */
#include "tests/worker/strategy/sharded_scene.h"

#include "base/cores.h"
#include "base/rng.h"
#include "kernels/device.h"
#include "worker/model/kind.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

struct part {
    struct scene *scene;
    struct dpt_device *device;
    struct dpt_stream *stream, *comm_stream;
    const struct dpt_ops *ops;
    struct dpt_model *model;
    struct dpt_comm_thread *thread;
    int64_t offset[DPT_UNITS_MAX + 1];
    struct dpt_grid grid;
    struct dpt_strategy *strategy;
    struct dpt_world world;
    int rank_of_position[RANKS_MAX], host_of_position[RANKS_MAX], node_of_position[RANKS_MAX];
    void *saved, *scratch;
    float losses[MICRO_BATCH * SEQ_LEN];
    int32_t tokens[MICRO_BATCH * SEQ_LEN], targets[MICRO_BATCH * SEQ_LEN];
    struct dpt_accum mine, all[RANKS_MAX];
    uint64_t opened, sent; /* bytes: by opening, and since */
};

static struct dpt_config make_scene_config(const struct variant *v, enum dpt_accumulate accumulate,
                                           enum dpt_precision precision)
{
    struct dpt_config c;
    dpt_config_defaults(&c);
    (void)snprintf(c.strategy.name, sizeof c.strategy.name, "%s", v->name);
    c.strategy.sharding = v->sharding;
    c.strategy.redundancy = v->redundancy;
    c.strategy.gathered_units_max = v->gathered_max;
    c.strategy.prefetch = v->prefetch;
    c.strategy.bucket_mib = c.strategy.first_bucket_mib = 0.02;
    c.model.n_layer = 3;
    c.model.n_head = 2;
    c.model.n_embd = 32;
    c.model.context = SEQ_LEN;
    c.model.vocab = VOCAB;
    c.model.dropout = 0.1;
    c.train.global_batch = SLOTS * MICRO_BATCH;
    c.train.micro_batch = MICRO_BATCH;
    c.train.seq_len = SEQ_LEN;
    c.train.precision = precision;
    c.train.accumulate = accumulate;
    c.train.lanes = 5;
    c.train.steps = 100;
    c.optimizer.lr = 1e-2;
    return c;
}

/* Vectors and matrices in all units but the embedding's: strategies do not look at the flag
 * `averaged`. */
static void mark_statistics(struct dpt_model *model)
{
    for (int i = 3; i < model->n_params; i += 5) {
        model->params[i].averaged = true;
        model->params[i].decay = false;
    }
}

static void make_scene_part(struct rank *self, struct part *p)
{
    struct scene *s = self->world->arg;
    struct dpt_err *err = &self->err;
    *p = (struct part){.scene = s};
    CHECK_OK(dpt_device_cpu_create(&p->device, err), err);
    CHECK_OK(dpt_stream_create(p->device, 1, &p->stream, err), err);
    CHECK_OK(dpt_stream_create(p->device, 1, &p->comm_stream, err), err);
    p->ops = dpt_device_ops(p->device);
    CHECK_OK(dpt_model_create(&s->config, &p->model, err), err);
    if (s->averages)
        mark_statistics(p->model);
    CHECK_OK(dpt_comm_thread_create(self->listener, &p->thread, err), err);
    const int n = dpt_model_n_units(p->model);
    for (int u = 0; u < n; u++)
        p->offset[u] = dpt_model_unit(p->model, u)->offset;
    p->offset[n] = dpt_model_flat_numel(p->model);
    p->grid = (struct dpt_grid){.offset = p->offset, .n_units = n, .block = DPT_BLOCK};
    const struct dpt_strategy_env env = {.config = &s->config,
                                         .model = p->model,
                                         .device = p->device,
                                         .stream = p->stream,
                                         .comm_stream = p->comm_stream,
                                         .listener = self->listener,
                                         .comm_thread = p->thread,
                                         .grid = &p->grid};
    CHECK_OK(dpt_strategy_create(&env, &p->strategy, err), err);
    CHECK_OK(dpt_device_alloc(p->device, dpt_model_saved_bytes(p->model, MICRO_BATCH, SEQ_LEN),
                              &p->saved, err),
             err);
    CHECK_OK(dpt_device_alloc(p->device, dpt_model_scratch_bytes(p->model, MICRO_BATCH, SEQ_LEN),
                              &p->scratch, err),
             err);
}

static void end_part(struct part *p)
{
    dpt_strategy_destroy(&p->strategy);
    dpt_comm_thread_destroy(&p->thread);
    dpt_device_free(p->device, p->saved, dpt_model_saved_bytes(p->model, MICRO_BATCH, SEQ_LEN));
    dpt_device_free(p->device, p->scratch, dpt_model_scratch_bytes(p->model, MICRO_BATCH, SEQ_LEN));
    dpt_model_destroy(&p->model);
    dpt_stream_destroy(&p->stream);
    dpt_stream_destroy(&p->comm_stream);
    CHECK(dpt_device_bytes(p->device) == 0);
    dpt_device_destroy(&p->device);
}

/* Ranks are numbered against the order of positions, so that taking one for the other shows. */
static void make_world(struct part *p, int size)
{
    const struct layout *layout = p->scene->layout;
    int n = 0;
    for (int node = 0; node < RANKS_MAX; node++) /* ascending with their hosts */
        for (int rank = size - 1; rank >= 0; rank--)
            if (layout->node[rank] == node) {
                p->rank_of_position[n] = rank;
                p->node_of_position[n] = node;
                p->host_of_position[n++] = layout->host[rank];
            }
    CHECK(n == size);
    p->world = (struct dpt_world){.lanes = dpt_config_lanes(&p->scene->config),
                                  .size = size,
                                  .rank_of_position = p->rank_of_position,
                                  .host_of_position = p->host_of_position,
                                  .node_of_position = p->node_of_position};
}

/* Copies each piece of a part between its memory and the scene's whole vectors. */
static void copy_part(const struct part *p, const struct dpt_state_part *part, bool out)
{
    for (int v = 0; v < DPT_VECTOR_COUNT; v++)
        for (int u = 0; u < p->grid.n_units; u++) {
            const struct dpt_interval piece = dpt_shard_piece(&p->grid, part->shard, u);
            if (piece.end <= piece.first)
                continue;
            float *own = dpt_strategy_state_at(part, &p->grid, (enum dpt_vector)v, u);
            float *whole = p->scene->vector[v] + piece.first;
            const size_t bytes = (size_t)(piece.end - piece.first) * sizeof(float);
            memcpy(out ? whole : own, out ? own : whole, bytes);
        }
}

/* Once lent memory is back. */
static uint64_t bytes_sent(struct dpt_comm *comm, struct dpt_err *err)
{
    while (dpt_comm_poll(comm, NULL, -1, err) == DPT_INPROGRESS)
        continue;
    return dpt_comm_bytes_sent(comm);
}

static enum dpt_status job_opened(struct dpt_comm_thread *thread, void *ctx, struct dpt_err *err)
{
    struct part *p = ctx;
    struct dpt_comm *comm = dpt_comm_thread_comm(thread);
    p->opened = comm ? bytes_sent(comm, err) : 0;
    return DPT_OK;
}

static void open_world(struct rank *self, struct part *p, int stage)
{
    const int size = p->scene->size[stage];
    make_world(p, size);
    CHECK_OK(dpt_strategy_begin_generation(p->strategy, &p->world, self->rank, &self->err),
             &self->err);
    if (p->scene->rebuilds)
        p->scene->late[self->rank] = !dpt_shard_is_none(dpt_strategy_defer_shadow(p->strategy));
    copy_part(p, &dpt_strategy_wanted(p->strategy)->own, false);
    copy_part(p, &dpt_strategy_wanted(p->strategy)->shadow, false);
    dpt_strategy_state_changed(p->strategy);
    if (p->scene->rebuilds) {
        pthread_barrier_wait(&self->world->barrier);
        dpt_strategy_rebuild(p->strategy, p->scene->late);
    }
    struct dpt_comm_spec spec = world_spec(self, (uint64_t)stage + 1);
    spec.world_size = size; /* the first ranks */
    spec.n_peers = size - 1;
    dpt_comm_thread_arm(p->thread);
    CHECK_OK(dpt_comm_thread_open(p->thread, &spec, &self->err), &self->err);
    CHECK_OK(dpt_comm_thread_run(p->thread, job_opened, p, &self->err), &self->err);
}

static void read_batch(struct part *p, uint64_t what, int64_t step, int slot)
{
    const struct dpt_rng_key key =
        dpt_rng_key(what, DPT_RNG_TEST, (uint64_t)step, (uint64_t)slot, 0);
    for (uint64_t i = 0; i < MICRO_BATCH * SEQ_LEN; i++) {
        uint32_t draw[4];
        dpt_philox(key, i, draw);
        p->tokens[i] = (int32_t)(draw[0] % VOCAB);
        p->targets[i] = (int32_t)(draw[1] % VOCAB);
    }
}

static struct dpt_slot make_slot(struct part *p, enum dpt_mode mode, int64_t step, int slot)
{
    return (struct dpt_slot){.mode = mode,
                             .seed = 5,
                             .step = step,
                             .slot = slot,
                             .b = MICRO_BATCH,
                             .t = SEQ_LEN,
                             .batch = {.part = {p->tokens, p->targets}},
                             .dloss = 1.0f / (MICRO_BATCH * SEQ_LEN * SLOTS),
                             .saved = p->saved,
                             .scratch = p->scratch,
                             .losses = p->losses};
}

static void run_list(struct rank *self, struct part *p, const struct dpt_step_list *list,
                     int64_t step)
{
    struct dpt_slot slot = {.b = 0};
    for (int i = 0; i < list->n_actions; i++) {
        const struct dpt_action *a = &list->actions[i];
        switch (a->kind) {
        case DPT_ACTION_BEGIN_SLOT:
            read_batch(p, 1, step, a->slot);
            slot = make_slot(p, DPT_MODE_TRAIN, step, a->slot);
            dpt_strategy_begin_slot(p->strategy, a->slot, &slot);
            break;
        case DPT_ACTION_FORWARD:
            dpt_model_forward(p->model, p->ops, p->stream, a->unit, &slot);
            break;
        case DPT_ACTION_BACKWARD:
            dpt_model_backward(p->model, p->ops, p->stream, a->unit, &slot);
            break;
        case DPT_ACTION_END_SLOT:
            CHECK_OK(dpt_stream_sync(p->stream, &self->err), &self->err);
            break;
        default:
            CHECK_OK(dpt_strategy_act(p->strategy, i, &self->err), &self->err);
        }
    }
}

static enum dpt_status job_commit(struct dpt_comm_thread *thread, void *ctx, struct dpt_err *err)
{
    struct part *p = ctx;
    struct dpt_comm *comm = dpt_comm_thread_comm(thread);
    if (!comm) {
        p->all[0] = p->mine;
        return DPT_OK;
    }
    p->sent = bytes_sent(comm, err) - p->opened;
    return dpt_comm_small_all_gather(comm, &p->mine, sizeof p->mine, p->all, err);
}

static void one_step(struct rank *self, struct part *p, int64_t step)
{
    struct dpt_err *err = &self->err;
    dpt_strategy_begin_step(p->strategy, step);
    run_list(self, p, dpt_strategy_step_list(p->strategy), step);
    CHECK(!dpt_strategy_holds_gradient(p->strategy, step));
    CHECK_OK(dpt_strategy_await_gradient(p->strategy, err), err);
    CHECK(dpt_strategy_holds_gradient(p->strategy, step));
    CHECK_OK(dpt_strategy_norm_share(p->strategy, &p->mine, err), err);
    CHECK_OK(dpt_comm_thread_run(p->thread, job_commit, p, err), err);
    struct dpt_accum norm;
    dpt_accum_init(&norm);
    for (int r = 0; r < p->world.size; r++)
        dpt_accum_merge(&norm, &p->all[r]);
    const struct dpt_optim_step update = {
        .step = step,
        .updates = step,
        .grad_scale = dpt_optim_clip_scale(sqrt(dpt_accum_value(&norm)), 0.5)};
    CHECK_OK(dpt_strategy_apply(p->strategy, &update, err), err);
}

/* Every rank computes the same batch. */
static double evaluate(struct rank *self, struct part *p)
{
    struct dpt_slot slot = make_slot(p, DPT_MODE_EVAL, 0, 0);
    read_batch(p, 2, 0, 0);
    dpt_strategy_begin_eval(p->strategy, &slot);
    const struct dpt_step_list *list = dpt_strategy_eval_list(p->strategy);
    for (int i = 0; i < list->n_actions; i++) {
        const struct dpt_action *a = &list->actions[i];
        if (a->kind == DPT_ACTION_FORWARD)
            dpt_model_forward(p->model, p->ops, p->stream, a->unit, &slot);
        else if (a->kind == DPT_ACTION_GATHER || a->kind == DPT_ACTION_FREE)
            CHECK_OK(dpt_strategy_act(p->strategy, i, &self->err), &self->err);
    }
    CHECK_OK(dpt_stream_sync(p->stream, &self->err), &self->err);
    CHECK_OK(dpt_strategy_end_eval(p->strategy, &self->err), &self->err);
    double sum = 0;
    for (int i = 0; i < MICRO_BATCH * SEQ_LEN; i++)
        sum += (double)p->losses[i];
    return sum;
}

static void train(struct rank *self, struct part *p, int stage)
{
    struct scene *s = p->scene;
    for (int k = 0; k < s->steps; k++) {
        if (s->rebuilds)
            CHECK(dpt_strategy_rebuilding(p->strategy) == (k < p->grid.n_units));
        one_step(self, p, (int64_t)stage * s->steps + k);
        if (stage == 0 && k == 0) {
            struct dpt_strategy_cost cost;
            dpt_strategy_cost(p->strategy, &cost);
            s->sent[self->rank] = p->sent;
            s->told[self->rank] = (uint64_t)cost.sent_bytes;
        }
        const double loss = evaluate(self, p);
        if (k == 0) /* again, now that nothing has changed */
            CHECK(evaluate(self, p) == loss);
        if (self->rank == 0)
            s->loss = loss;
    }
    pthread_barrier_wait(&self->world->barrier);               /* all have read their state */
    static pthread_mutex_t writes = PTHREAD_MUTEX_INITIALIZER; /* replicas write the same places */
    (void)pthread_mutex_lock(&writes);
    copy_part(p, &dpt_strategy_held(p->strategy)->own, true);
    (void)pthread_mutex_unlock(&writes);
}

/* The shadow equals its owner's shard, bit for bit. */
static void check_shadow(const struct part *p, int rank)
{
    const struct dpt_state_part *part = &dpt_strategy_held(p->strategy)->shadow;
    for (int v = 0; v < DPT_VECTOR_COUNT; v++)
        for (int u = 0; u < p->grid.n_units && !dpt_shard_is_none(part->shard); u++) {
            const struct dpt_interval piece = dpt_shard_piece(&p->grid, part->shard, u);
            if (piece.end > piece.first)
                CHECK(memcmp(dpt_strategy_state_at(part, &p->grid, (enum dpt_vector)v, u),
                             p->scene->vector[v] + piece.first,
                             (size_t)(piece.end - piece.first) * sizeof(float)) == 0);
        }
    const bool wanted = p->scene->config.strategy.redundancy == DPT_REDUNDANCY_SHADOW;
    const int shift = dpt_shadow_shift(&p->world);
    int source = -1;
    for (int at = 0; wanted && at < p->world.size; at++)
        if (p->rank_of_position[at] == rank)
            source = dpt_shadow_source(&p->world, shift, at);
    CHECK(dpt_shard_is_none(part->shard) == (source < 0));
    if (source >= 0)
        CHECK(part->shard.index == p->rank_of_position[source]);
}

static void run_stages(struct rank *self)
{
    struct scene *s = self->world->arg;
    struct part p;
    make_scene_part(self, &p);
    for (int stage = 0; stage < s->n_stages; stage++) {
        const bool plays = self->rank < s->size[stage];
        if (plays) {
            open_world(self, &p, stage);
            train(self, &p, stage);
        } else {
            pthread_barrier_wait(&self->world->barrier);
        }
        pthread_barrier_wait(&self->world->barrier);
        if (plays) {
            check_shadow(&p, self->rank);
            dpt_comm_thread_close(p.thread);
            dpt_strategy_end_generation(p.strategy);
        }
    }
    end_part(&p);
}

void begin_scene(struct scene *s, const struct variant *v, enum dpt_accumulate accumulate,
                 enum dpt_precision precision, const int *sizes, int n_stages)
{
    struct dpt_err err;
    struct dpt_model *model;
    struct dpt_device *device;
    struct dpt_stream *stream;
    *s = (struct scene){.config = make_scene_config(v, accumulate, precision),
                        .n_stages = n_stages,
                        .steps = STEPS};
    memcpy(s->size, sizes, (size_t)n_stages * sizeof *sizes);
    CHECK_OK(dpt_device_cpu_create(&device, &err), &err);
    CHECK_OK(dpt_stream_create(device, 1, &stream, &err), &err);
    CHECK_OK(dpt_model_create(&s->config, &model, &err), &err);
    s->numel = dpt_model_flat_numel(model);
    for (int i = 0; i < DPT_VECTOR_COUNT; i++) {
        s->vector[i] = calloc((size_t)s->numel, sizeof(float));
        CHECK(s->vector[i] != NULL);
    }
    dpt_model_init_range(model, dpt_device_ops(device), stream, 3,
                         (struct dpt_span){0, dpt_model_flat_numel(model)},
                         s->vector[DPT_VECTOR_PARAM]);
    CHECK_OK(dpt_stream_sync(stream, &err), &err);
    dpt_model_destroy(&model);
    dpt_stream_destroy(&stream);
    dpt_device_destroy(&device);
}

void end_scene(struct scene *s)
{
    for (int v = 0; v < DPT_VECTOR_COUNT; v++)
        free(s->vector[v]);
}

void run_scene(struct scene *s, const struct layout *layout)
{
    struct world world = {.arg = s, .mesh_max = s->mesh_max};
    s->layout = layout;
    for (int i = 0; i < s->n_stages; i++)
        world.size = s->size[i] > world.size ? s->size[i] : world.size;
    for (int r = 0; r < world.size; r++)
        world.hosts[r] = layout->host[r];
    world_run_threads(&world, run_stages);
}

void check_equal(const struct scene *expected, const struct scene *s, const char *what)
{
    for (int v = 0; v < DPT_VECTOR_COUNT; v++)
        for (int64_t i = 0; i < s->numel; i++)
            if (memcmp(&expected->vector[v][i], &s->vector[v][i], sizeof(float)) != 0)
                fail_msg("%s: %s, sharding %d: vector %d differs at element %lld", what,
                         s->config.strategy.name, (int)s->config.strategy.sharding, v,
                         (long long)i);
    if (memcmp(&expected->loss, &s->loss, sizeof s->loss) != 0)
        fail_msg("%s: %s: the evaluation gives %.17g, not %.17g", what, s->config.strategy.name,
                 s->loss, expected->loss);
}
