/* Faults of ranks, a decorator of the strategy that a test program installs by linking this file
 * and wrapping the functions of WRAPPED_BY_FAULTS (CMakeLists.txt). Environment variables that are
 * read when a rank starts ask for them:
 *
 *   DPT_TEST_FLIP_GRADIENT_BIT=RANK:STEP  flips a bit of the first gradient that the rank announces
 *   DPT_TEST_FLIP_WEIGHT_BIT=RANK:STEP    flips a bit of the rank's weights after the step
 *   DPT_TEST_SPOIL_STEPS=COUNT:FIRST[:FACTOR]  multiplies the gradients of these steps by FACTOR
 * (by default NaN), in every slot and so in every world alike
 *   DPT_TEST_SLOW_SLOTS=US:FILE           delays each slot's backward pass (delays.h)
 *   DPT_TEST_SLOW_RANK=RANK               only of this rank */
#include "tests/worker/train/delays.h"

#include "base/log.h"
#include "worker/strategy/strategy.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum dpt_status __real_dpt_strategy_create(const struct dpt_strategy_env *env,
                                           struct dpt_strategy **ret, struct dpt_err *err);
enum dpt_status __wrap_dpt_strategy_create(const struct dpt_strategy_env *env,
                                           struct dpt_strategy **ret, struct dpt_err *err);
void __real_dpt_strategy_destroy(struct dpt_strategy **s);
void __wrap_dpt_strategy_destroy(struct dpt_strategy **s);
enum dpt_status __real_dpt_strategy_begin_generation(struct dpt_strategy *s,
                                                     const struct dpt_world *world, int rank,
                                                     struct dpt_err *err);
enum dpt_status __wrap_dpt_strategy_begin_generation(struct dpt_strategy *s,
                                                     const struct dpt_world *world, int rank,
                                                     struct dpt_err *err);
void __real_dpt_strategy_begin_step(struct dpt_strategy *s, int64_t step);
void __wrap_dpt_strategy_begin_step(struct dpt_strategy *s, int64_t step);
void __real_dpt_strategy_begin_slot(struct dpt_strategy *s, int index, struct dpt_slot *slot);
void __wrap_dpt_strategy_begin_slot(struct dpt_strategy *s, int index, struct dpt_slot *slot);
enum dpt_status __real_dpt_strategy_apply(struct dpt_strategy *s, const struct dpt_optim_step *step,
                                          struct dpt_err *err);
enum dpt_status __wrap_dpt_strategy_apply(struct dpt_strategy *s, const struct dpt_optim_step *step,
                                          struct dpt_err *err);

struct place {
    int rank; /* -1: not set */
    int64_t step;
};

struct faults {
    struct faults *next;
    const struct dpt_strategy *strategy; /* that has these faults */
    struct dpt_strategy_env env;
    struct place gradient, weight;
    struct {
        int64_t first, n;
        double factor;
    } spoilt;
    int rank;      /* in the present generation */
    int slow_rank; /* whose slots may be delayed; -1: all */
    bool armed;    /* the next announced gradient is to be damaged */
    bool slow;     /* the next announced gradient is the slot's first */
    struct dpt_slot *slot;
    void (*announce)(void *ctx, int param);
    void *announce_ctx;
};

/* Of all strategies of the process: ranks may be threads. */
static pthread_mutex_t list_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct faults *list;

static struct faults *faults_of(const struct dpt_strategy *s)
{
    pthread_mutex_lock(&list_mutex);
    struct faults *f = list;
    while (f && f->strategy != s)
        f = f->next;
    pthread_mutex_unlock(&list_mutex);
    DPT_ASSERT(f);
    return f;
}

static bool is_here(const struct faults *f, const struct place *place, int64_t step)
{
    return f->rank == place->rank && step == place->step;
}

enum dpt_status __wrap_dpt_strategy_begin_generation(struct dpt_strategy *s,
                                                     const struct dpt_world *world, int rank,
                                                     struct dpt_err *err)
{
    faults_of(s)->rank = rank;
    return __real_dpt_strategy_begin_generation(s, world, rank, err);
}

/* ---- gradients ---- */

/* Of memory that the slot points to: the host's, or the device's. */
static void flip_gradient_bit(const struct dpt_strategy_env *env, float *at)
{
    struct dpt_stream *stream = env->state_device ? env->state_stream : env->stream;
    const struct dpt_ops *ops = dpt_device_ops(env->state_device ? env->state_device : env->device);
    uint32_t bits = 0;
    struct dpt_err err;
    ops->copy(stream, sizeof bits, at, &bits);
    if (dpt_stream_sync(stream, &err) != DPT_OK)
        dpt_log(DPT_LOG_ERROR, "no bit is flipped: %s", err.text);
    bits ^= 1u << 22;
    ops->copy(stream, sizeof bits, &bits, at);
}

static void flip_and_announce(void *ctx, int param)
{
    struct faults *f = ctx;
    const struct dpt_model *model = f->env.model;
    const struct dpt_param *p = dpt_model_param(model, param);
    if (f->slow && (f->slow_rank < 0 || f->slow_rank == f->rank))
        dpt_test_delay("DPT_TEST_SLOW_SLOTS");
    f->slow = false;
    if (f->armed)
        flip_gradient_bit(&f->env, f->slot->grads[p->unit] +
                                       (p->offset - dpt_model_unit(model, p->unit)->offset));
    f->armed = false;
    f->announce(f->announce_ctx, param);
}

void __wrap_dpt_strategy_begin_step(struct dpt_strategy *s, int64_t step)
{
    struct faults *f = faults_of(s);
    f->armed = is_here(f, &f->gradient, step);
    __real_dpt_strategy_begin_step(s, step);
}

void __wrap_dpt_strategy_begin_slot(struct dpt_strategy *s, int index, struct dpt_slot *slot)
{
    struct faults *f = faults_of(s);
    __real_dpt_strategy_begin_slot(s, index, slot);
    if (slot->step >= f->spoilt.first && slot->step - f->spoilt.first < f->spoilt.n)
        slot->dloss *= (float)f->spoilt.factor;
    f->slot = slot;
    f->slow = true;
    f->announce = slot->announce;
    f->announce_ctx = slot->announce_ctx;
    slot->announce = flip_and_announce;
    slot->announce_ctx = f;
}

/* ---- weights ---- */

static enum dpt_status flip_weight_bit(struct faults *f, struct dpt_strategy *s,
                                       struct dpt_err *err)
{
    const struct dpt_grid *grid = f->env.grid;
    const struct dpt_state_part *own = &dpt_strategy_held(s)->own;
    int unit = 0;
    uint32_t bits;
    DPT_TRY(dpt_strategy_fetch_state(s, err));
    for (; unit < grid->n_units; unit++) {
        const struct dpt_interval piece = dpt_shard_piece(grid, own->shard, unit);
        if (piece.first < piece.end)
            break;
    }
    DPT_ASSERT(unit < grid->n_units);
    float *at = dpt_strategy_state_at(own, grid, DPT_VECTOR_PARAM, unit);
    memcpy(&bits, at, sizeof bits);
    bits ^= 1;
    memcpy(at, &bits, sizeof bits);
    if (f->env.state_device)
        dpt_strategy_state_changed(s); /* so that it reaches the device */
    return DPT_OK;
}

enum dpt_status __wrap_dpt_strategy_apply(struct dpt_strategy *s, const struct dpt_optim_step *step,
                                          struct dpt_err *err)
{
    struct faults *f = faults_of(s);
    DPT_TRY(__real_dpt_strategy_apply(s, step, err));
    return is_here(f, &f->weight, step->step) ? flip_weight_bit(f, s, err) : DPT_OK;
}

/* ---- installation ---- */

static struct place read_place(const char *name)
{
    const char *text = getenv(name);
    struct place place = {.rank = -1};
    long long step;
    if (!text || sscanf(text, "%d:%lld", &place.rank, &step) != 2)
        return (struct place){.rank = -1};
    place.step = step;
    return place;
}

static void read_spoilt(struct faults *f)
{
    const char *text = getenv("DPT_TEST_SPOIL_STEPS");
    long long n, first;
    f->spoilt.factor = (double)NAN;
    if (!text || sscanf(text, "%lld:%lld:%lf", &n, &first, &f->spoilt.factor) < 2)
        return;
    f->spoilt.first = first;
    f->spoilt.n = n;
}

void __wrap_dpt_strategy_destroy(struct dpt_strategy **s)
{
    struct faults *f = faults_of(*s), **at = &list;
    pthread_mutex_lock(&list_mutex);
    while (*at != f)
        at = &(*at)->next;
    *at = f->next;
    pthread_mutex_unlock(&list_mutex);
    free(f);
    __real_dpt_strategy_destroy(s);
}

enum dpt_status __wrap_dpt_strategy_create(const struct dpt_strategy_env *env,
                                           struct dpt_strategy **ret, struct dpt_err *err)
{
    DPT_TRY(__real_dpt_strategy_create(env, ret, err));
    struct faults *f = calloc(1, sizeof *f);
    DPT_ASSERT(f);
    f->strategy = *ret;
    f->env = *env;
    f->gradient = read_place("DPT_TEST_FLIP_GRADIENT_BIT");
    f->weight = read_place("DPT_TEST_FLIP_WEIGHT_BIT");
    read_spoilt(f);
    const char *slow_rank = getenv("DPT_TEST_SLOW_RANK");
    if (!slow_rank || sscanf(slow_rank, "%d", &f->slow_rank) != 1)
        f->slow_rank = -1;
    pthread_mutex_lock(&list_mutex);
    f->next = list;
    list = f;
    pthread_mutex_unlock(&list_mutex);
    return DPT_OK;
}
