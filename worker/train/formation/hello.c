/* Packing and unpacking of hellos (hello.h). */
#include "worker/train/formation/hello.h"

#include "base/cursor.h"

#include <string.h>

static void pack_double(struct dpt_writer *w, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    dpt_writer_u64(w, bits);
}

static double unpack_double(struct dpt_reader *r)
{
    double value;
    const uint64_t bits = dpt_reader_u64(r);
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void pack_epoch(struct dpt_writer *w, const struct dpt_epoch *epoch)
{
    dpt_writer_u64(w, (uint64_t)epoch->from);
    dpt_writer_u64(w, (uint64_t)epoch->to);
    dpt_writer_u64(w, (uint64_t)epoch->finite);
    pack_double(w, epoch->loss_sum);
    dpt_writer_u64(w, (uint64_t)epoch->timed);
    pack_double(w, epoch->seconds);
}

static struct dpt_epoch unpack_epoch(struct dpt_reader *r)
{
    struct dpt_epoch epoch;
    epoch.from = (int64_t)dpt_reader_u64(r);
    epoch.to = (int64_t)dpt_reader_u64(r);
    epoch.finite = (int64_t)dpt_reader_u64(r);
    epoch.loss_sum = unpack_double(r);
    epoch.timed = (int64_t)dpt_reader_u64(r);
    epoch.seconds = unpack_double(r);
    return epoch;
}

static void pack_shards(struct dpt_writer *w, const struct dpt_shard *shards, int n)
{
    for (int i = 0; i < n; i++) {
        dpt_writer_u64(w, (uint64_t)shards[i].index);
        dpt_writer_u64(w, (uint64_t)shards[i].of);
    }
}

void dpt_hello_pack(const struct dpt_hello *h, uint8_t buf[DPT_HELLO_BYTES])
{
    struct dpt_writer w;
    dpt_writer_init(&w, buf, DPT_HELLO_BYTES);
    dpt_writer_u64(&w, h->plan_hash);
    dpt_writer_u64(&w, (uint64_t)h->step);
    dpt_writer_u64(&w, (uint64_t)h->start_step);
    dpt_writer_u64(&w, (uint64_t)h->steps_lost);
    dpt_writer_u64(&w, h->generations);
    dpt_writer_u64(&w, (uint64_t)h->trained_ms);
    dpt_writer_u64(&w, (uint64_t)h->checkpoints);
    dpt_writer_u64(&w, (uint64_t)h->val_step);
    pack_double(&w, h->val_loss);
    dpt_writer_u64(&w, (uint64_t)h->val_right);
    dpt_writer_u64(&w, (uint64_t)h->eval.step);
    dpt_writer_u64(&w, (uint64_t)h->eval.batches);
    pack_double(&w, h->eval.sum);
    dpt_writer_u64(&w, (uint64_t)h->eval.right);
    dpt_writer_u64(&w, (uint64_t)h->checkpoint_slot);
    pack_shards(&w, &h->late, 1);
    pack_shards(&w, &h->own, 1);
    pack_shards(&w, h->held, DPT_RESHARD_PARTS);
    pack_shards(&w, h->wanted, DPT_RESHARD_PARTS);
    for (int i = 0; i < DPT_RESHARD_PARTS; i++) {
        dpt_writer_u64(&w, h->hash[i].hi);
        dpt_writer_u64(&w, h->hash[i].lo);
    }
    pack_double(&w, h->scaler.scale);
    dpt_writer_u64(&w, (uint64_t)h->scaler.good_steps);
    dpt_writer_u64(&w, (uint64_t)h->scaler.skipped);
    dpt_writer_u64(&w, (uint64_t)h->scaler.diverged_in_row);
    pack_epoch(&w, &h->epoch);
    dpt_writer_u64(&w, h->origin.hi);
    dpt_writer_u64(&w, h->origin.lo);
    DPT_ASSERT(!w.failed);
}

static void unpack_shards(struct dpt_reader *r, struct dpt_shard *ret, int n)
{
    for (int i = 0; i < n; i++) {
        ret[i].index = (int)dpt_reader_u64(r);
        ret[i].of = (int)dpt_reader_u64(r);
    }
}

struct dpt_hello dpt_hello_unpack(const uint8_t buf[DPT_HELLO_BYTES])
{
    struct dpt_reader r;
    struct dpt_hello h;
    dpt_reader_init(&r, buf, DPT_HELLO_BYTES);
    h.plan_hash = dpt_reader_u64(&r);
    h.step = (int64_t)dpt_reader_u64(&r);
    h.start_step = (int64_t)dpt_reader_u64(&r);
    h.steps_lost = (int64_t)dpt_reader_u64(&r);
    h.generations = dpt_reader_u64(&r);
    h.trained_ms = (int64_t)dpt_reader_u64(&r);
    h.checkpoints = (int64_t)dpt_reader_u64(&r);
    h.val_step = (int64_t)dpt_reader_u64(&r);
    h.val_loss = unpack_double(&r);
    h.val_right = (int64_t)dpt_reader_u64(&r);
    h.eval.step = (int64_t)dpt_reader_u64(&r);
    h.eval.batches = (int64_t)dpt_reader_u64(&r);
    h.eval.sum = unpack_double(&r);
    h.eval.right = (int64_t)dpt_reader_u64(&r);
    h.checkpoint_slot = (int)dpt_reader_u64(&r);
    unpack_shards(&r, &h.late, 1);
    unpack_shards(&r, &h.own, 1);
    unpack_shards(&r, h.held, DPT_RESHARD_PARTS);
    unpack_shards(&r, h.wanted, DPT_RESHARD_PARTS);
    for (int i = 0; i < DPT_RESHARD_PARTS; i++) {
        h.hash[i].hi = dpt_reader_u64(&r);
        h.hash[i].lo = dpt_reader_u64(&r);
    }
    h.scaler.scale = unpack_double(&r);
    h.scaler.good_steps = (int64_t)dpt_reader_u64(&r);
    h.scaler.skipped = (int64_t)dpt_reader_u64(&r);
    h.scaler.diverged_in_row = (int64_t)dpt_reader_u64(&r);
    h.epoch = unpack_epoch(&r);
    h.origin.hi = dpt_reader_u64(&r);
    h.origin.lo = dpt_reader_u64(&r);
    return h;
}
