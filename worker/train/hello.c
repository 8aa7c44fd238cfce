/* Packing and unpacking of hellos (hello.h). */
#include "worker/train/hello.h"

#include "base/cursor.h"

#include <string.h>

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
    uint64_t val_loss, eval_sum;
    memcpy(&val_loss, &h->val_loss, sizeof val_loss);
    memcpy(&eval_sum, &h->eval.sum, sizeof eval_sum);
    dpt_writer_init(&w, buf, DPT_HELLO_BYTES);
    dpt_writer_u64(&w, h->plan_hash);
    dpt_writer_u64(&w, (uint64_t)h->step);
    dpt_writer_u64(&w, (uint64_t)h->start_step);
    dpt_writer_u64(&w, (uint64_t)h->steps_lost);
    dpt_writer_u64(&w, h->generations);
    dpt_writer_u64(&w, (uint64_t)h->trained_ms);
    dpt_writer_u64(&w, (uint64_t)h->checkpoints);
    dpt_writer_u64(&w, (uint64_t)h->val_step);
    dpt_writer_u64(&w, val_loss);
    dpt_writer_u64(&w, (uint64_t)h->eval.step);
    dpt_writer_u64(&w, (uint64_t)h->eval.batches);
    dpt_writer_u64(&w, eval_sum);
    dpt_writer_u64(&w, (uint64_t)h->checkpoint_slot);
    pack_shards(&w, &h->late, 1);
    pack_shards(&w, &h->own, 1);
    pack_shards(&w, h->held, DPT_RESHARD_PARTS);
    pack_shards(&w, h->wanted, DPT_RESHARD_PARTS);
    for (int i = 0; i < DPT_RESHARD_PARTS; i++) {
        dpt_writer_u64(&w, h->hash[i].hi);
        dpt_writer_u64(&w, h->hash[i].lo);
    }
    uint64_t scale;
    memcpy(&scale, &h->scaler.scale, sizeof scale);
    dpt_writer_u64(&w, scale);
    dpt_writer_u64(&w, (uint64_t)h->scaler.good_steps);
    dpt_writer_u64(&w, (uint64_t)h->scaler.skipped);
    dpt_writer_u64(&w, (uint64_t)h->scaler.diverged_in_row);
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
    uint64_t val_loss = dpt_reader_u64(&r);
    memcpy(&h.val_loss, &val_loss, sizeof h.val_loss);
    h.eval.step = (int64_t)dpt_reader_u64(&r);
    h.eval.batches = (int64_t)dpt_reader_u64(&r);
    uint64_t eval_sum = dpt_reader_u64(&r);
    memcpy(&h.eval.sum, &eval_sum, sizeof h.eval.sum);
    h.checkpoint_slot = (int)dpt_reader_u64(&r);
    unpack_shards(&r, &h.late, 1);
    unpack_shards(&r, &h.own, 1);
    unpack_shards(&r, h.held, DPT_RESHARD_PARTS);
    unpack_shards(&r, h.wanted, DPT_RESHARD_PARTS);
    for (int i = 0; i < DPT_RESHARD_PARTS; i++) {
        h.hash[i].hi = dpt_reader_u64(&r);
        h.hash[i].lo = dpt_reader_u64(&r);
    }
    uint64_t scale = dpt_reader_u64(&r);
    memcpy(&h.scaler.scale, &scale, sizeof scale);
    h.scaler.good_steps = (int64_t)dpt_reader_u64(&r);
    h.scaler.skipped = (int64_t)dpt_reader_u64(&r);
    h.scaler.diverged_in_row = (int64_t)dpt_reader_u64(&r);
    return h;
}
