/* Faults that tests ask for by environment variables of the rank's process, each with a warning:
 *
 *   DPT_TEST_FLIP_GRADIENT_BIT=RANK:STEP  a bit of the first gradient that the rank announces there
 *   DPT_TEST_FLIP_WEIGHT_BIT=RANK:STEP    a bit of the rank's weights after the step
 *   DPT_TEST_SPOIL_STEPS=COUNT:FIRST[:FACTOR]  the gradients of these steps times FACTOR (NaN), in
 *                                         every slot and so in every world alike
 *
 * They are a decorator of the strategy, its table with three functions replaced: without a
 * variable nothing is installed. */
#include "worker/train/process.h"

#include "base/log.h"
#include "worker/train/device/device.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct place {
    int rank; /* -1: not set */
    int64_t step;
};

struct test_faults {
    struct dpt_strategy_ops ops; /* first: the strategy's pointer to it leads here */
    const struct dpt_strategy_ops *inner;
    struct dpt_rank *rank;
    struct place gradient, weight;
    struct {
        int64_t first, n;
        double factor;
    } spoilt;
    bool armed; /* the next announced gradient is to be damaged */
    struct dpt_slot *slot;
    void (*announce)(void *ctx, int param);
    void *announce_ctx;
};

static struct test_faults *faults_of(struct dpt_strategy *s)
{
    return (struct test_faults *)(uintptr_t)s->ops;
}

static bool is_here(const struct dpt_rank *r, const struct place *place)
{
    return r->gen.rank == place->rank && r->state.step == place->step;
}

/* ---- gradients ---- */

/* Of memory that the slot points to: the host's, or the device's. */
static void flip_gradient_bit(const struct dpt_rank *r, float *at)
{
    const struct rank_device *d = r->device;
    const bool on_device = dpt_config_state_on_device(r->config);
    struct dpt_stream *stream = on_device ? dpt_accelerator_stream(d->accelerator) : d->stream;
    const struct dpt_ops *ops =
        on_device ? dpt_device_ops(dpt_accelerator_device(d->accelerator)) : d->ops;
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
    struct test_faults *f = ctx;
    const struct dpt_model *model = f->rank->model;
    const struct dpt_param *p = dpt_model_param(model, param);
    if (f->armed)
        flip_gradient_bit(f->rank, f->slot->grads[p->unit] +
                                       (p->offset - dpt_model_unit(model, p->unit)->offset));
    f->armed = false;
    f->announce(f->announce_ctx, param);
}

static void begin_step_with_faults(struct dpt_strategy *s, int64_t step)
{
    struct test_faults *f = faults_of(s);
    f->armed = is_here(f->rank, &f->gradient);
    f->inner->begin_step(s, step);
}

static void begin_slot_with_faults(struct dpt_strategy *s, int index, struct dpt_slot *slot)
{
    struct test_faults *f = faults_of(s);
    f->inner->begin_slot(s, index, slot);
    if (slot->step >= f->spoilt.first && slot->step - f->spoilt.first < f->spoilt.n)
        slot->dloss *= (float)f->spoilt.factor;
    f->slot = slot;
    f->announce = slot->announce;
    f->announce_ctx = slot->announce_ctx;
    slot->announce = flip_and_announce;
    slot->announce_ctx = f;
}

/* ---- weights ---- */

static enum dpt_status flip_weight_bit(struct dpt_rank *r, struct dpt_err *err)
{
    DPT_TRY(rank_fetch_state(r, err));
    const struct dpt_state_part *own = &r->strategy->ops->held(r->strategy)->own;
    int unit = 0;
    struct dpt_interval piece = dpt_shard_piece(&r->grid, own->shard, unit);
    while (piece.first >= piece.end && ++unit < r->grid.n_units)
        piece = dpt_shard_piece(&r->grid, own->shard, unit);
    if (piece.first >= piece.end)
        return DPT_OK;
    uint32_t bits;
    float *at = dpt_state_at(own, &r->grid, DPT_VECTOR_PARAM, unit);
    memcpy(&bits, at, sizeof bits);
    bits ^= 1;
    memcpy(at, &bits, sizeof bits);
    if (dpt_config_state_on_device(r->config))
        r->strategy->ops->state_changed(r->strategy); /* so that it reaches the device */
    return DPT_OK;
}

static enum dpt_status apply_with_faults(struct dpt_strategy *s, const struct dpt_optim_step *step,
                                         struct dpt_err *err)
{
    struct test_faults *f = faults_of(s);
    DPT_TRY(f->inner->apply(s, step, err));
    return is_here(f->rank, &f->weight) ? flip_weight_bit(f->rank, err) : DPT_OK;
}

/* ---- the variables ---- */

/* A variable left over from a test must not spoil a run in silence. */
static void warn_of_fault(const char *name, const char *text, const char *what)
{
    dpt_log(DPT_LOG_WARN, "%s=%s is set: %s of this run will be damaged on purpose", name, text,
            what);
}

static bool read_place(const char *name, const char *what, struct place *ret)
{
    const char *text = getenv(name);
    long long step;
    if (!text || sscanf(text, "%d:%lld", &ret->rank, &step) != 2) {
        ret->rank = -1;
        return false;
    }
    ret->step = step;
    warn_of_fault(name, text, what);
    return true;
}

static bool read_spoilt(struct test_faults *f)
{
    static const char name[] = "DPT_TEST_SPOIL_STEPS";
    const char *text = getenv(name);
    long long n, first;
    f->spoilt.factor = (double)NAN;
    if (!text || sscanf(text, "%lld:%lld:%lf", &n, &first, &f->spoilt.factor) < 2)
        return false;
    f->spoilt.first = first;
    f->spoilt.n = n;
    warn_of_fault(name, text, "steps");
    return true;
}

enum dpt_status test_faults_install(struct dpt_rank *r, struct test_faults **ret,
                                    struct dpt_err *err)
{
    struct test_faults faults = {.inner = r->strategy->ops, .rank = r};
    const bool gradient = read_place("DPT_TEST_FLIP_GRADIENT_BIT", "a gradient", &faults.gradient);
    const bool weight = read_place("DPT_TEST_FLIP_WEIGHT_BIT", "a weight", &faults.weight);
    const bool spoilt = read_spoilt(&faults);
    *ret = NULL;
    if (!gradient && !weight && !spoilt)
        return DPT_OK;
    struct test_faults *f = malloc(sizeof *f);
    if (!f)
        return dpt_fail_nomem(err, "faults of a test");
    *f = faults;
    f->ops = *f->inner;
    f->ops.begin_step = begin_step_with_faults;
    f->ops.begin_slot = begin_slot_with_faults;
    f->ops.apply = apply_with_faults;
    r->strategy->ops = &f->ops;
    *ret = f;
    return DPT_OK;
}
