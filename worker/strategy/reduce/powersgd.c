/* PowerSGD (powersgd.h): two all-reduces of factors a step, and the products between them. */
#include "worker/strategy/reduce/powersgd.h"

#include "worker/strategy/reduce/host_reducer.h"
#include "worker/strategy/transport/buffer.h"

#include <stdlib.h>
#include <string.h>

enum {
    RATE_MIN = 2, /* a matrix is compressed if it becomes at least this many times smaller */
    CHANNELS = 2  /* 0: left factors, and gradients that are not compressed; 1: right factors */
};

/* A parameter, and where it is in the channels. */
struct item {
    int64_t offset, numel; /* in the flat vector */
    int64_t n, m;          /* of a compressed matrix (n, m); 0: not compressed */
    int64_t left_at, right_at, error_at;
};

/* The operand of one all-reduce. */
struct channel {
    struct dpt_bucket bucket;
    struct dpt_comm_mem *buffer[DPT_COVER_MAX];
    int n_buffers;
    struct dpt_reducer *reducer;
};

struct dpt_powersgd {
    struct dpt_strategy_env env;
    const struct dpt_ops *ops;
    int64_t rank; /* r */
    int n_items;
    struct item *items;
    struct channel channel[CHANNELS];
    int64_t errors_numel, right_numel, column_max;

    /* Two of each: index `current` is of the last step that was applied, the other one is filled by
     * the present step. */
    struct dpt_buffer errors[2];
    struct dpt_buffer right[2]; /* the factors Q, (m, r) each, at right_at */
    int current;
    struct dpt_buffer across; /* transposed right factors, at right_at */
    struct dpt_buffer column; /* one redrawn column */
    int64_t error_step;   /* the step whose gradient the errors are added to; -1: they are zero */
    int64_t reduced_step; /* in this generation; -1: none */
};

/* The reducer of a generation. */
struct powersgd_reducer {
    struct dpt_reducer base; /* `inner` reduces the steps that are not compressed */
    struct dpt_powersgd *powersgd;
    float *gradient;
    int64_t step;
};

static float *channel_data(const struct dpt_powersgd *p, int channel)
{
    return dpt_comm_mem_data(p->channel[channel].buffer[0]);
}

static void plan_item(struct dpt_powersgd *p, const struct dpt_param *param, struct item *ret)
{
    struct channel *left = &p->channel[0], *right = &p->channel[1];
    const int64_t n = param->dim[0], m = param->numel / n, r = p->rank;
    *ret = (struct item){.offset = param->offset, .numel = param->numel};
    ret->left_at = left->bucket.end;
    if (param->ndim < 2 || (n + m) * r * RATE_MIN > n * m) {
        left->bucket.end += param->numel;
        return;
    }
    ret->n = n;
    ret->m = m;
    ret->right_at = right->bucket.end;
    ret->error_at = p->errors_numel;
    left->bucket.end += n * r;
    right->bucket.end += m * r;
    p->errors_numel += param->numel;
    p->column_max = m > p->column_max ? m : p->column_max;
}

static enum dpt_status make_floats(struct dpt_powersgd *p, int64_t numel, struct dpt_buffer *buffer,
                                   struct dpt_err *err)
{
    const size_t bytes = (size_t)(numel > 0 ? numel : 1) * sizeof(float);
    return dpt_buffer_make(NULL, p->env.device, DPT_MEMORY_COMM, bytes, buffer, err);
}

static enum dpt_status make_powersgd(struct dpt_powersgd *p, struct dpt_err *err)
{
    const struct dpt_model *model = p->env.model;
    p->n_items = dpt_model_n_params(model);
    p->items = calloc((size_t)p->n_items, sizeof *p->items);
    if (!p->items)
        return dpt_fail_nomem(err, "powersgd");
    for (int i = 0; i < p->n_items; i++)
        plan_item(p, dpt_model_param(model, i), &p->items[i]);
    p->right_numel = p->channel[1].bucket.end;
    for (int i = 0; i < 2; i++) {
        DPT_TRY(make_floats(p, p->errors_numel, &p->errors[i], err));
        DPT_TRY(make_floats(p, p->right_numel, &p->right[i], err));
    }
    DPT_TRY(make_floats(p, p->right_numel, &p->across, err));
    return make_floats(p, p->column_max, &p->column, err);
}

enum dpt_status dpt_powersgd_create(const struct dpt_strategy_env *env, struct dpt_powersgd **ret,
                                    struct dpt_err *err)
{
    struct dpt_powersgd *p = calloc(1, sizeof *p);
    if (!p)
        return dpt_fail_nomem(err, "powersgd");
    p->env = *env;
    p->ops = dpt_device_ops(env->device);
    p->rank = env->config->strategy.powersgd_rank;
    p->error_step = p->reduced_step = -1;
    const enum dpt_status status = make_powersgd(p, err);
    if (status != DPT_OK)
        dpt_powersgd_destroy(&p);
    else
        *ret = p;
    return status;
}

void dpt_powersgd_destroy(struct dpt_powersgd **powersgd)
{
    struct dpt_powersgd *p = *powersgd;
    if (!p)
        return;
    for (int c = 0; c < CHANNELS; c++)
        for (int i = 0; i < p->channel[c].n_buffers; i++)
            dpt_comm_mem_destroy(&p->channel[c].buffer[i]);
    for (int i = 0; i < 2; i++) {
        dpt_buffer_free(&p->errors[i]);
        dpt_buffer_free(&p->right[i]);
    }
    dpt_buffer_free(&p->across);
    dpt_buffer_free(&p->column);
    free(p->items);
    free(p);
    *powersgd = NULL;
}

/* The three products of an item. While products are prepared their operands are NULL. */
static void left_product(const struct dpt_powersgd *p, const struct item *t, const float *d,
                         const float *right, float *left)
{
    p->ops->linear_forward(p->env.stream, &(struct dpt_linear_forward){.n = t->n,
                                                                       .in = t->m,
                                                                       .out = p->rank,
                                                                       .dtype = DPT_F32,
                                                                       .x = d,
                                                                       .w = right,
                                                                       .y = left});
}

static void right_product(const struct dpt_powersgd *p, const struct item *t, const float *d,
                          const float *left, float *right)
{
    p->ops->linear_backward(p->env.stream, &(struct dpt_linear_backward){.n = t->n,
                                                                         .in = t->m,
                                                                         .out = p->rank,
                                                                         .dtype = DPT_F32,
                                                                         .x = d,
                                                                         .dy = left,
                                                                         .dw = right});
}

static void whole_product(const struct dpt_powersgd *p, const struct item *t, const float *left,
                          const float *across, float *ret)
{
    p->ops->linear_forward(p->env.stream, &(struct dpt_linear_forward){.n = t->n,
                                                                       .in = p->rank,
                                                                       .out = t->m,
                                                                       .dtype = DPT_F32,
                                                                       .x = left,
                                                                       .w = across,
                                                                       .y = ret});
}

static enum dpt_status prepare_products(struct dpt_powersgd *p, struct dpt_err *err)
{
    dpt_stream_prepare_begin(p->env.stream);
    for (int i = 0; i < p->n_items; i++) {
        const struct item *t = &p->items[i];
        if (t->n == 0)
            continue;
        left_product(p, t, NULL, NULL, NULL);
        right_product(p, t, NULL, NULL, NULL);
        whole_product(p, t, NULL, NULL, NULL);
    }
    return dpt_stream_prepare_end(p->env.stream, err);
}

static void draw_factor(const struct dpt_powersgd *p, int item, int64_t step, int64_t column,
                        int64_t numel, float *ret)
{
    const struct dpt_rng_key key =
        dpt_rng_key(p->env.config->seed, DPT_RNG_POWERSGD, (uint64_t)item, (uint64_t)(step + 1),
                    (uint64_t)(column + 1));
    p->ops->fill_normal(p->env.stream, numel, &(struct dpt_normal){key, 0, 0.0f, 1.0f}, ret);
}

static enum dpt_status open_channel(struct dpt_powersgd *p, struct channel *c,
                                    const struct dpt_world *world, int rank, struct dpt_err *err)
{
    const int need = dpt_reduce_buffers(world, dpt_world_position(world, rank));
    DPT_ASSERT(need <= DPT_COVER_MAX);
    for (; c->n_buffers < need; c->n_buffers++)
        DPT_TRY(dpt_host_reducer_buffer_create(p->env.listener, c->n_buffers,
                                               c->bucket.end > 0 ? c->bucket.end : 1,
                                               &c->buffer[c->n_buffers], err));
    const struct dpt_host_reducer_spec spec = {.of = {.thread = p->env.comm_thread,
                                                      .stream = p->env.comm_stream,
                                                      .buckets = &c->bucket,
                                                      .n_buckets = 1,
                                                      .block = DPT_BLOCK,
                                                      .world = world,
                                                      .rank = rank},
                                               .ops = p->ops,
                                               .listener = p->env.listener,
                                               .buffers = c->buffer};
    return dpt_host_reducer_create(&spec, &c->reducer, err);
}

static bool is_due(const struct dpt_powersgd *p, int64_t step)
{
    return step >= p->env.config->strategy.powersgd_start_step;
}

/* ret (r, m) = factor times the transpose of x (m, r). */
static void transpose_factor(int64_t m, int64_t r, float factor, const float *x, float *ret)
{
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < r; j++)
            ret[j * m + i] = factor * x[i * r + j];
}

/* Clears the errors if they belong to another state. Errors that are one step behind stay, if this
 * rank computed the step before and all ranks skipped it. */
static void settle_errors(struct dpt_powersgd *p, int64_t step)
{
    const bool skipped = p->reduced_step == step - 1 && p->error_step == step - 1;
    if (p->error_step != step && !skipped)
        memset(p->errors[p->current].data, 0, p->errors[p->current].bytes);
    p->error_step = step;
}

/* Adds the errors to the gradients. Fills the first channel with the left factors, and with the
 * gradients that are not compressed. */
static void begin_factors(struct dpt_powersgd *p, const float *gradient)
{
    float *out = channel_data(p, 0), *sums = p->errors[!p->current].data;
    const float *errors = p->errors[p->current].data, *right = p->right[p->current].data;
    for (int i = 0; i < p->n_items; i++) {
        const struct item *t = &p->items[i];
        const float *g = gradient + t->offset;
        if (t->n == 0) {
            p->ops->copy(p->env.stream, (size_t)t->numel * sizeof *g, g, out + t->left_at);
            continue;
        }
        p->ops->add(p->env.stream, t->numel, g, errors + t->error_at, sums + t->error_at);
        left_product(p, t, sums + t->error_at, right + t->right_at, out + t->left_at);
    }
}

/* Fills the second channel with this rank's right factors, and transposes them for the new
 * errors. */
static void own_factors(struct dpt_powersgd *p)
{
    float *left = channel_data(p, 0), *out = channel_data(p, 1), *across = p->across.data;
    const float *sums = p->errors[!p->current].data;
    for (int i = 0; i < p->n_items; i++) {
        const struct item *t = &p->items[i];
        if (t->n == 0)
            continue;
        p->ops->orthonormalise(p->env.stream, t->n, p->rank, left + t->left_at);
        right_product(p, t, sums + t->error_at, left + t->left_at, out + t->right_at);
        transpose_factor(t->m, p->rank, -1.0f, out + t->right_at, across + t->right_at);
    }
}

/* Makes the new errors: the difference between this rank's gradient and the product of its factors.
 * The gradient's memory is scratch. Gradients that are not compressed are copied back. */
static void new_errors(struct dpt_powersgd *p, float *gradient)
{
    const float *left = channel_data(p, 0), *across = p->across.data;
    float *sums = p->errors[!p->current].data;
    for (int i = 0; i < p->n_items; i++) {
        const struct item *t = &p->items[i];
        float *g = gradient + t->offset, *error = sums + t->error_at;
        if (t->n == 0) {
            p->ops->copy(p->env.stream, (size_t)t->numel * sizeof *g, left + t->left_at, g);
            continue;
        }
        whole_product(p, t, left + t->left_at, across + t->right_at, g);
        p->ops->add(p->env.stream, t->numel, error, g, error);
    }
}

/* Redraws each column that is zero: it would stay zero in every later step. */
static void renew_columns(struct dpt_powersgd *p, int item, int64_t step, float *right)
{
    const int64_t m = p->items[item].m;
    float *column = p->column.data;
    for (int64_t j = 0; j < p->rank; j++) {
        bool gone = true;
        for (int64_t i = 0; i < m && gone; i++)
            gone = right[i * p->rank + j] == 0;
        if (!gone)
            continue;
        draw_factor(p, item, step, j, m, column);
        for (int64_t i = 0; i < m; i++)
            right[i * p->rank + j] = column[i];
    }
}

/* Makes the gradient of all ranks, and the factors with which the next step begins. */
static void end_factors(struct dpt_powersgd *p, int64_t step, float *gradient)
{
    const float *left = channel_data(p, 0), *sum = channel_data(p, 1);
    float *across = p->across.data, *next = p->right[!p->current].data;
    for (int i = 0; i < p->n_items; i++) {
        const struct item *t = &p->items[i];
        if (t->n == 0)
            continue;
        transpose_factor(t->m, p->rank, 1.0f, sum + t->right_at, across + t->right_at);
        whole_product(p, t, left + t->left_at, across + t->right_at, gradient + t->offset);
        p->ops->copy(p->env.stream, (size_t)(t->m * p->rank) * sizeof *sum, sum + t->right_at,
                     next + t->right_at);
        p->ops->orthonormalise(p->env.stream, t->m, p->rank, next + t->right_at);
        renew_columns(p, i, step, next + t->right_at);
    }
}

static void post_channel(struct channel *c)
{
    struct dpt_err none;
    (void)dpt_reducer_begin(c->reducer, 0);
    /* The ready function of a host reducer copies nothing and cannot fail. */
    DPT_ASSERT(dpt_reducer_ready(c->reducer, 0, &none) == DPT_OK);
    dpt_reducer_post(c->reducer);
}

/* `gradient` is the whole flat vector: this rank's own gradient before, the gradient of all ranks
 * after. */
static enum dpt_status reduce_by_factors(struct dpt_powersgd *p, int64_t step, float *gradient,
                                         struct dpt_err *err)
{
    struct dpt_stream *stream = p->env.stream;
    settle_errors(p, step);
    begin_factors(p, gradient);
    DPT_TRY(dpt_stream_sync(stream, err));
    post_channel(&p->channel[0]);
    DPT_TRY(dpt_reducer_finish(p->channel[0].reducer, err));
    own_factors(p);
    DPT_TRY(dpt_stream_sync(stream, err));
    post_channel(&p->channel[1]);
    new_errors(p, gradient);
    const enum dpt_status status = dpt_stream_sync(stream, err);
    DPT_TRY(dpt_reducer_finish(p->channel[1].reducer, err));
    DPT_TRY(status);
    end_factors(p, step, gradient);
    DPT_TRY(dpt_stream_sync(stream, err));
    p->reduced_step = step;
    return DPT_OK;
}

void dpt_powersgd_applied(struct dpt_powersgd *p, int64_t step)
{
    if (!is_due(p, step))
        return;
    DPT_ASSERT(p->error_step == step);
    p->current = !p->current;
    p->error_step = step + 1;
}

/* ---- as a reducer (reducer.h) ---- */

static struct powersgd_reducer *reducer_of(struct dpt_reducer *reducer)
{
    return (struct powersgd_reducer *)reducer;
}

static bool powersgd_begin(struct dpt_reducer *reducer, int64_t step)
{
    struct powersgd_reducer *r = reducer_of(reducer);
    r->step = step;
    return dpt_reducer_begin(reducer->inner, step) && !is_due(r->powersgd, step);
}

static enum dpt_status powersgd_ready(struct dpt_reducer *reducer, int bucket, struct dpt_err *err)
{
    struct powersgd_reducer *r = reducer_of(reducer);
    return is_due(r->powersgd, r->step) ? DPT_OK : dpt_reducer_ready(reducer->inner, bucket, err);
}

static enum dpt_status powersgd_finish(struct dpt_reducer *reducer, struct dpt_err *err)
{
    struct powersgd_reducer *r = reducer_of(reducer);
    return is_due(r->powersgd, r->step) ? reduce_by_factors(r->powersgd, r->step, r->gradient, err)
                                        : dpt_reducer_finish(reducer->inner, err);
}

/* The cost of a compressed step. */
static void powersgd_cost(const struct dpt_reducer *reducer, struct dpt_strategy_cost *cost)
{
    const struct dpt_powersgd *p = ((const struct powersgd_reducer *)reducer)->powersgd;
    cost->gradient_bytes += 2 * (int64_t)p->errors[0].bytes;
    for (int c = 0; c < CHANNELS; c++) {
        for (int i = 0; i < p->channel[c].n_buffers; i++)
            cost->gradient_bytes += (int64_t)dpt_comm_mem_bytes(p->channel[c].buffer[i]);
        cost->sent_bytes += dpt_reducer_bytes_sent(p->channel[c].reducer);
    }
}

static void powersgd_release(struct dpt_reducer *reducer)
{
    for (int c = 0; c < CHANNELS; c++)
        dpt_reducer_destroy(&reducer_of(reducer)->powersgd->channel[c].reducer);
}

static const struct dpt_reducer_ops powersgd_reducer = {.release = powersgd_release,
                                                        .begin = powersgd_begin,
                                                        .ready = powersgd_ready,
                                                        .finish = powersgd_finish,
                                                        .cost = powersgd_cost};

static enum dpt_status wrap_reducer(struct dpt_powersgd *p, float *gradient,
                                    struct dpt_reducer **reducer, struct dpt_err *err)
{
    struct powersgd_reducer *r = calloc(1, sizeof *r);
    if (!r)
        return dpt_fail_nomem(err, "powersgd");
    *r = (struct powersgd_reducer){
        .base = {.ops = &powersgd_reducer, .of = (*reducer)->of, .inner = *reducer},
        .powersgd = p,
        .gradient = gradient};
    *reducer = &r->base;
    return DPT_OK;
}

enum dpt_status dpt_powersgd_begin_generation(struct dpt_powersgd *p, const struct dpt_world *world,
                                              int rank, float *gradient,
                                              struct dpt_reducer **reducer, struct dpt_err *err)
{
    p->reduced_step = -1;
    DPT_TRY(wrap_reducer(p, gradient, reducer, err));
    for (int c = 0; c < CHANNELS; c++)
        DPT_TRY(open_channel(p, &p->channel[c], world, rank, err));
    DPT_TRY(prepare_products(p, err));
    float *right = p->right[p->current].data;
    for (int i = 0; i < p->n_items; i++)
        if (p->items[i].n > 0)
            draw_factor(p, i, -1, -1, p->items[i].m * p->rank, right + p->items[i].right_at);
    return dpt_stream_sync(p->env.stream, err);
}
