/* Packing, folding and unpacking of the step's small all-reduce. */
#include "worker/train/state/outcome.h"

#include "base/cursor.h"
#include "worker/optim/scaler.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

static uint64_t bits_of(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static double double_of(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* What a scaler can have come to, 1 included. */
static bool is_scale(double scale)
{
    int exponent;
    return scale >= DPT_SCALE_MIN && scale <= DPT_SCALE_MAX && frexp(scale, &exponent) == 0.5;
}

size_t dpt_contribution_bytes(int slots_max)
{
    return 8 + 5 * 4 + 8 * DPT_ACCUM_LIMBS + 4 + 4 + 8 + 8 * (size_t)slots_max;
}

void dpt_contribution_pack(const struct dpt_contribution *c, int slots_max, void *buf)
{
    DPT_ASSERT(c->n_slots >= 0 && c->n_slots <= slots_max && c->stride >= 1);
    struct dpt_writer w;
    dpt_writer_init(&w, buf, dpt_contribution_bytes(slots_max));
    dpt_writer_u64(&w, (uint64_t)c->step);
    dpt_writer_u32(&w, c->flags);
    dpt_writer_u32(&w, c->leaving);
    dpt_writer_u32(&w, (uint32_t)c->first_slot);
    dpt_writer_u32(&w, (uint32_t)c->stride);
    dpt_writer_u32(&w, (uint32_t)c->n_slots);
    for (int i = 0; i < DPT_ACCUM_LIMBS; i++)
        dpt_writer_u64(&w, (uint64_t)c->norm.limb[i]);
    dpt_writer_u32(&w, c->norm.pending);
    dpt_writer_u32(&w, c->norm.flags);
    dpt_writer_u64(&w, bits_of(c->scale));
    for (int i = 0; i < slots_max; i++)
        dpt_writer_u64(&w, i < c->n_slots ? bits_of(c->losses[i * c->stride]) : 0);
    DPT_ASSERT(!w.failed && w.at == w.bytes);
}

enum { RANK_FLAGS = DPT_COMMIT_REFORM | DPT_COMMIT_SAVER_BUSY | DPT_COMMIT_NOT_FINITE };

enum dpt_status dpt_outcome_fold(const void *all, int world, int slots_max, int64_t step, int slots,
                                 struct dpt_outcome *ret, struct dpt_err *err)
{
    DPT_ASSERT(slots >= 1 && slots <= DPT_CONFIG_SLOTS_MAX);
    size_t bytes = dpt_contribution_bytes(slots_max);
    struct dpt_accum norm;
    dpt_accum_init(&norm);
    uint32_t flags = 0, leaving = 0;
    int seen = 0;
    double scale = 1;
    bool slot_seen[DPT_CONFIG_SLOTS_MAX] = {false};
    for (int rank = 0; rank < world; rank++) {
        struct dpt_reader r;
        dpt_reader_init(&r, (const char *)all + (size_t)rank * bytes, bytes);
        int64_t its_step = (int64_t)dpt_reader_u64(&r);
        if (its_step != step)
            return dpt_fail(err, DPT_EPROTO,
                            "rank %d commits step %lld while this rank commits step %lld", rank,
                            (long long)its_step, (long long)step);
        uint32_t its_flags = dpt_reader_u32(&r), leaves = dpt_reader_u32(&r);
        if ((its_flags & ~(uint32_t)RANK_FLAGS) || leaves > 1)
            return dpt_fail(err, DPT_EPROTO, "rank %d commits with flags %#x, leaving %u", rank,
                            its_flags, leaves);
        flags |= its_flags;
        leaving += leaves;
        uint32_t first = dpt_reader_u32(&r), stride = dpt_reader_u32(&r), n = dpt_reader_u32(&r);
        struct dpt_accum share;
        for (int i = 0; i < DPT_ACCUM_LIMBS; i++)
            share.limb[i] = (int64_t)dpt_reader_u64(&r);
        share.pending = dpt_reader_u32(&r);
        share.flags = dpt_reader_u32(&r);
        if (!dpt_accum_is_sound(&share))
            return dpt_fail(err, DPT_EPROTO, "rank %d commits a norm that no sum can be", rank);
        dpt_accum_merge(&norm, &share);
        double its_scale = double_of(dpt_reader_u64(&r));
        if (!is_scale(its_scale) || (rank > 0 && its_scale != scale))
            return dpt_fail(err, DPT_EPROTO,
                            "rank %d commits step %lld with the loss scaled by %g, rank 0 by %g",
                            rank, (long long)step, its_scale, rank > 0 ? scale : its_scale);
        scale = its_scale;
        const uint64_t end = n == 0 ? first : first + (uint64_t)(n - 1) * stride + 1;
        if (n > (uint32_t)slots_max || stride < 1 || stride > (uint32_t)slots ||
            end > (uint64_t)slots)
            return dpt_fail(err, DPT_EPROTO, "rank %d commits %u slots from %u on, by %u, of %d",
                            rank, n, first, stride, slots);
        for (uint32_t i = 0; i < n; i++) {
            const uint32_t slot = first + i * stride;
            if (slot_seen[slot])
                return dpt_fail(err, DPT_EPROTO, "slot %u was computed twice, again by rank %d",
                                slot, rank);
            slot_seen[slot] = true;
            ret->losses[slot] = double_of(dpt_reader_u64(&r));
            seen++;
        }
    }
    if (seen != slots)
        return dpt_fail(err, DPT_EPROTO, "%d of %d slots of step %lld were computed", seen, slots,
                        (long long)step);
    ret->step = step;
    ret->slots = slots;
    ret->flags = flags;
    if (leaving == (uint32_t)world)
        ret->flags |= DPT_COMMIT_ALL_LEAVE;
    ret->norm = sqrt(dpt_accum_value(&norm)) / scale; /* a power of two: exact */
    ret->scale = scale;
    return DPT_OK;
}

enum dpt_status dpt_outcome_pack(const struct dpt_outcome *o, void *buf, size_t buf_bytes,
                                 size_t *ret_bytes, struct dpt_err *err)
{
    struct dpt_writer w;
    dpt_writer_init(&w, buf, buf_bytes);
    dpt_writer_u64(&w, (uint64_t)o->step);
    dpt_writer_u32(&w, o->flags);
    dpt_writer_u32(&w, (uint32_t)o->slots);
    dpt_writer_u64(&w, bits_of(o->norm));
    dpt_writer_u64(&w, bits_of(o->scale));
    for (int i = 0; i < o->slots; i++)
        dpt_writer_u64(&w, bits_of(o->losses[i]));
    DPT_TRY(dpt_writer_end(&w, "outcome of a step", err));
    *ret_bytes = w.at;
    return DPT_OK;
}

enum dpt_status dpt_outcome_unpack(const void *data, size_t bytes, int slots,
                                   struct dpt_outcome *ret, struct dpt_err *err)
{
    struct dpt_reader r;
    dpt_reader_init(&r, data, bytes);
    int64_t step = (int64_t)dpt_reader_u64(&r);
    uint32_t flags = dpt_reader_u32(&r);
    uint32_t n = dpt_reader_u32(&r);
    double norm = double_of(dpt_reader_u64(&r)), scale = double_of(dpt_reader_u64(&r));
    if (n != (uint32_t)slots || step < 0 || !is_scale(scale))
        dpt_reader_reject(&r);
    for (uint32_t i = 0; !r.failed && i < n; i++)
        ret->losses[i] = double_of(dpt_reader_u64(&r));
    DPT_TRY(dpt_reader_end(&r, "outcome of a step", err));
    ret->step = step;
    ret->flags = flags;
    ret->slots = slots;
    ret->norm = norm;
    ret->scale = scale;
    return DPT_OK;
}

double dpt_outcome_loss(const struct dpt_outcome *o)
{
    double sum = 0;
    for (int i = 0; i < o->slots; i++)
        sum += o->losses[i];
    return sum / o->slots;
}
