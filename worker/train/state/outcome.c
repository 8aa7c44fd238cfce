/* The messages of the all-gather that commits a step (outcome.h). */
#include "worker/train/state/outcome.h"

#include "worker/optim/scaler.h"
#include "worker/train/state/codec.h"

#include <math.h>
#include <stdbool.h>

/* Whether a scaler can have this scale, which is a power of two within its limits. */
static bool is_scale(double scale)
{
    int exponent;
    return scale >= DPT_SCALE_MIN && scale <= DPT_SCALE_MAX && frexp(scale, &exponent) == 0.5;
}

size_t dpt_contribution_bytes(int slots_max)
{
    return 8 + 5 * 4 + 8 * DPT_ACCUM_LIMBS + 4 + 4 + 8 + 8 * (size_t)slots_max;
}

/* All fields but the losses. */
static void code_contribution(struct codec *c, struct dpt_contribution *mine)
{
    codec_bits(c, &mine->step);
    codec_u32(c, &mine->flags);
    codec_u32(c, &mine->leaving);
    codec_int32(c, &mine->first_slot);
    codec_int32(c, &mine->stride);
    codec_int32(c, &mine->n_slots);
    for (int i = 0; i < DPT_ACCUM_LIMBS; i++)
        codec_bits(c, &mine->norm.limb[i]);
    codec_u32(c, &mine->norm.pending);
    codec_u32(c, &mine->norm.flags);
    codec_bits(c, &mine->scale);
}

void dpt_contribution_pack(const struct dpt_contribution *contribution, int slots_max, void *buf)
{
    struct dpt_contribution mine = *contribution;
    DPT_ASSERT(mine.n_slots >= 0 && mine.n_slots <= slots_max && mine.stride >= 1);
    struct dpt_writer w;
    struct codec c = {.writer = &w};
    dpt_writer_init(&w, buf, dpt_contribution_bytes(slots_max));
    code_contribution(&c, &mine);
    for (int i = 0; i < slots_max; i++) {
        double loss = i < mine.n_slots ? mine.losses[i * mine.stride] : 0;
        codec_bits(&c, &loss);
    }
    DPT_ASSERT(!w.failed && w.at == w.bytes);
}

enum {
    RANK_FLAGS = DPT_COMMIT_REFORM | DPT_COMMIT_SAVER_BUSY | DPT_COMMIT_NOT_FINITE | DPT_COMMIT_SAVE
};

/* DPT_EPROTO: no rank of this world can send this contribution. `scale`: the scale of rank 0. */
static enum dpt_status check_contribution(const struct dpt_commit_world *world, int rank,
                                          const struct dpt_contribution *its, double scale,
                                          struct dpt_err *err)
{
    const int slots_max = world->slots_max, slots = world->slots;
    if (its->step != world->step)
        return dpt_fail(err, DPT_EPROTO,
                        "rank %d commits step %lld while this rank commits step %lld", rank,
                        (long long)its->step, (long long)world->step);
    if ((its->flags & ~(uint32_t)RANK_FLAGS) || its->leaving > 1)
        return dpt_fail(err, DPT_EPROTO, "rank %d commits with flags %#x, leaving %u", rank,
                        its->flags, its->leaving);
    if (!dpt_accum_is_sound(&its->norm))
        return dpt_fail(err, DPT_EPROTO, "rank %d commits a norm with invalid bits", rank);
    if (!is_scale(its->scale) || its->scale != scale)
        return dpt_fail(err, DPT_EPROTO,
                        "rank %d commits step %lld with the loss scaled by %g, rank 0 by %g", rank,
                        (long long)world->step, its->scale, scale);
    const int64_t first = its->first_slot, n = its->n_slots, stride = its->stride;
    const bool fits = first >= 0 && n >= 0 && n <= slots_max && stride >= 1 && stride <= slots &&
                      (n == 0 ? first <= slots : first + (n - 1) * stride < slots);
    return fits ? DPT_OK
                : dpt_fail(err, DPT_EPROTO, "rank %d commits %u slots from %u on, by %u, of %d",
                           rank, (uint32_t)n, (uint32_t)first, (uint32_t)stride, slots);
}

/* Reads the losses, which come next in `c`, and marks their slots in `seen`. */
static enum dpt_status read_losses(struct codec *c, const struct dpt_contribution *its, int rank,
                                   bool *seen, double *losses, struct dpt_err *err)
{
    for (int i = 0; i < its->n_slots; i++) {
        const int slot = its->first_slot + i * its->stride;
        if (seen[slot])
            return dpt_fail(err, DPT_EPROTO, "slot %d was computed twice, again by rank %d", slot,
                            rank);
        seen[slot] = true;
        codec_bits(c, &losses[slot]);
    }
    return DPT_OK;
}

enum dpt_status dpt_outcome_combine(const struct dpt_commit_world *world, const void *all,
                                    struct dpt_outcome *ret, struct dpt_err *err)
{
    const int slots = world->slots;
    DPT_ASSERT(slots >= 1 && slots <= DPT_CONFIG_SLOTS_MAX);
    const size_t bytes = dpt_contribution_bytes(world->slots_max);
    struct dpt_contribution its = {.step = 0};
    struct dpt_accum norm;
    dpt_accum_init(&norm);
    uint32_t flags = 0, leaving = 0;
    int n_seen = 0;
    double scale = 1;
    bool seen[DPT_CONFIG_SLOTS_MAX] = {false};
    for (int rank = 0; rank < world->size; rank++) {
        struct dpt_reader r;
        struct codec c = {.reader = &r};
        dpt_reader_init(&r, (const char *)all + (size_t)rank * bytes, bytes);
        code_contribution(&c, &its);
        scale = rank == 0 ? its.scale : scale;
        DPT_TRY(check_contribution(world, rank, &its, scale, err));
        DPT_TRY(read_losses(&c, &its, rank, seen, ret->losses, err));
        dpt_accum_merge(&norm, &its.norm);
        flags |= its.flags;
        leaving += its.leaving;
        n_seen += its.n_slots;
    }
    if (n_seen != slots)
        return dpt_fail(err, DPT_EPROTO, "%d of %d slots of step %lld were computed", n_seen, slots,
                        (long long)world->step);
    ret->step = world->step;
    ret->slots = slots;
    ret->flags = flags | (leaving == (uint32_t)world->size ? DPT_COMMIT_ALL_LEAVE : 0);
    ret->norm = sqrt(dpt_accum_value(&norm)) / scale; /* exact: the scale is a power of two */
    ret->scale = scale;
    return DPT_OK;
}

/* All fields but the losses. */
static void code_outcome(struct codec *c, struct dpt_outcome *o)
{
    codec_bits(c, &o->step);
    codec_u32(c, &o->flags);
    codec_int32(c, &o->slots);
    codec_bits(c, &o->norm);
    codec_bits(c, &o->scale);
}

enum dpt_status dpt_outcome_pack(const struct dpt_outcome *outcome, void *buf, size_t buf_bytes,
                                 size_t *ret_bytes, struct dpt_err *err)
{
    struct dpt_outcome o = *outcome;
    struct dpt_writer w;
    struct codec c = {.writer = &w};
    dpt_writer_init(&w, buf, buf_bytes);
    code_outcome(&c, &o);
    for (int i = 0; i < o.slots; i++)
        codec_bits(&c, &o.losses[i]);
    DPT_TRY(dpt_writer_end(&w, "outcome of a step", err));
    *ret_bytes = w.at;
    return DPT_OK;
}

enum dpt_status dpt_outcome_unpack(const void *data, size_t bytes, int slots,
                                   struct dpt_outcome *ret, struct dpt_err *err)
{
    struct dpt_outcome o = {.losses = ret->losses};
    struct dpt_reader r;
    struct codec c = {.reader = &r};
    dpt_reader_init(&r, data, bytes);
    code_outcome(&c, &o);
    if (o.slots != slots || o.step < 0 || !is_scale(o.scale))
        dpt_reader_reject(&r);
    for (int i = 0; !r.failed && i < slots; i++)
        codec_bits(&c, &o.losses[i]);
    DPT_TRY(dpt_reader_end(&r, "outcome of a step", err));
    *ret = o;
    return DPT_OK;
}

double dpt_outcome_loss(const struct dpt_outcome *o)
{
    double sum = 0;
    for (int i = 0; i < o->slots; i++)
        sum += o->losses[i];
    return sum / o->slots;
}
