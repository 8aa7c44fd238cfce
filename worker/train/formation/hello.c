/* Packing and unpacking of hellos (hello.h). */
#include "worker/train/formation/hello.h"

#include "worker/train/state/codec.h"

/* Codes the value with 64 bits, like the other fields. */
static void code_int(struct codec *c, int *value)
{
    int64_t wide = *value;
    codec_bits(c, &wide);
    *value = (int)wide;
}

static void code_shards(struct codec *c, struct dpt_shard *shards, int n)
{
    for (int i = 0; i < n; i++) {
        code_int(c, &shards[i].index);
        code_int(c, &shards[i].of);
    }
}

static void code_epoch(struct codec *c, struct dpt_epoch *epoch)
{
    codec_bits(c, &epoch->from);
    codec_bits(c, &epoch->to);
    codec_bits(c, &epoch->finite);
    codec_bits(c, &epoch->loss_sum);
    codec_bits(c, &epoch->timed);
    codec_bits(c, &epoch->seconds);
}

static void code_hello(struct codec *c, struct dpt_hello *h)
{
    codec_u64(c, &h->plan_hash);
    codec_bits(c, &h->step);
    codec_bits(c, &h->start_step);
    codec_bits(c, &h->steps_lost);
    codec_u64(c, &h->generations);
    codec_bits(c, &h->trained_ms);
    codec_bits(c, &h->checkpoints);
    codec_bits(c, &h->val_step);
    codec_bits(c, &h->val_loss);
    codec_bits(c, &h->val_right);
    codec_bits(c, &h->eval.step);
    codec_bits(c, &h->eval.batches);
    codec_bits(c, &h->eval.sum);
    codec_bits(c, &h->eval.right);
    code_int(c, &h->checkpoint_slot);
    code_shards(c, &h->late, 1);
    code_shards(c, &h->own, 1);
    code_shards(c, h->held, DPT_MOVE_STATE_PARTS);
    code_shards(c, h->wanted, DPT_MOVE_STATE_PARTS);
    for (int i = 0; i < DPT_MOVE_STATE_PARTS; i++)
        codec_hash(c, &h->hash[i]);
    codec_bits(c, &h->scaler.scale);
    codec_bits(c, &h->scaler.good_steps);
    codec_bits(c, &h->scaler.skipped);
    codec_bits(c, &h->scaler.diverged_in_row);
    code_epoch(c, &h->epoch);
    codec_hash(c, &h->origin);
}

void dpt_hello_pack(const struct dpt_hello *hello, uint8_t buf[DPT_HANDSHAKE_BYTES])
{
    struct dpt_writer w;
    struct dpt_hello h = *hello;
    dpt_writer_init(&w, buf, DPT_HANDSHAKE_BYTES);
    code_hello(&(struct codec){.writer = &w}, &h);
    DPT_ASSERT(!w.failed && w.at == w.bytes);
}

struct dpt_hello dpt_hello_unpack(const uint8_t buf[DPT_HANDSHAKE_BYTES])
{
    struct dpt_reader r;
    struct dpt_hello h = {.plan_hash = 0};
    dpt_reader_init(&r, buf, DPT_HANDSHAKE_BYTES);
    code_hello(&(struct codec){.reader = &r}, &h);
    return h;
}
