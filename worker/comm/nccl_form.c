/* Messages and decisions for creating the GPU's communicators (nccl_form.h). */
#include "worker/comm/nccl_form.h"

#include "base/cursor.h"
#include "base/hash.h"
#include "base/hmac.h"

#include <string.h>

enum { OFFER_MARK = 0x64706f31, ID_MARK = 0x64706932, CODE_BYTES = 16 }; /* "dpo1", "dpi2" */

void dpt_nccl_offer_pack(const struct dpt_nccl_offer *offer, uint8_t ret[DPT_NCCL_OFFER_BYTES])
{
    struct dpt_writer writer;
    dpt_writer_init(&writer, ret, DPT_NCCL_OFFER_BYTES);
    dpt_writer_u32(&writer, OFFER_MARK);
    dpt_writer_u32(&writer, (uint32_t)offer->n_splits);
    dpt_writer_u64(&writer, offer->generation);
    dpt_writer_u64(&writer, offer->kept);
    dpt_writer_u32(&writer, (uint32_t)offer->kept_rank);
    dpt_writer_u32(&writer, (uint32_t)offer->kept_size);
    dpt_writer_u64(&writer, 0);
    for (int i = 0; i < DPT_NCCL_SPLITS_MAX; i++) {
        const struct dpt_nccl_split_of none = {0, 0};
        const struct dpt_nccl_split_of split = i < offer->n_splits ? offer->splits[i] : none;
        dpt_writer_u32(&writer, (uint32_t)split.color);
        dpt_writer_u32(&writer, (uint32_t)split.key);
    }
    DPT_ASSERT(!writer.failed && writer.at == DPT_NCCL_OFFER_BYTES);
}

static int read_int(struct dpt_reader *reader, int max)
{
    const uint32_t value = dpt_reader_u32(reader);
    if (value > (uint32_t)max)
        dpt_reader_reject(reader);
    return value > (uint32_t)max ? 0 : (int)value;
}

enum dpt_status dpt_nccl_offer_unpack(const uint8_t bytes[DPT_NCCL_OFFER_BYTES],
                                      uint64_t generation, struct dpt_nccl_offer *ret,
                                      struct dpt_err *err)
{
    struct dpt_nccl_offer offer = {0};
    struct dpt_reader reader;
    dpt_reader_init(&reader, bytes, DPT_NCCL_OFFER_BYTES);
    if (dpt_reader_u32(&reader) != OFFER_MARK)
        dpt_reader_reject(&reader);
    offer.n_splits = read_int(&reader, DPT_NCCL_SPLITS_MAX);
    offer.generation = dpt_reader_u64(&reader);
    offer.kept = dpt_reader_u64(&reader);
    offer.kept_rank = read_int(&reader, DPT_COMM_WORLD_MAX - 1);
    offer.kept_size = read_int(&reader, DPT_COMM_WORLD_MAX);
    if (offer.kept != 0 && offer.kept_rank >= offer.kept_size)
        dpt_reader_reject(&reader);
    if (dpt_reader_u64(&reader) != 0)
        dpt_reader_reject(&reader);
    for (int i = 0; i < DPT_NCCL_SPLITS_MAX; i++) {
        const int max = i < offer.n_splits ? INT32_MAX : 0;
        offer.splits[i].color = read_int(&reader, max);
        offer.splits[i].key = read_int(&reader, max);
    }
    DPT_TRY(dpt_reader_end(&reader, "an offer for the GPU's communicators", err));
    if (offer.generation != generation)
        return dpt_fail(err, DPT_EPROTO,
                        "an offer for the GPU's communicators of generation %llu, not %llu",
                        (unsigned long long)offer.generation, (unsigned long long)generation);
    *ret = offer;
    return DPT_OK;
}

uint64_t dpt_nccl_kept_number(uint64_t generation, const uint8_t nonce[DPT_COMM_NONCE_BYTES])
{
    uint8_t bytes[8 + DPT_COMM_NONCE_BYTES];
    struct dpt_writer writer;
    dpt_writer_init(&writer, bytes, sizeof bytes);
    dpt_writer_u64(&writer, generation);
    dpt_writer_bytes(&writer, nonce, DPT_COMM_NONCE_BYTES);
    const uint64_t number = dpt_hash128(bytes, sizeof bytes).lo;
    return number != 0 ? number : 1;
}

/* Names an attempt at a generation without the nonce, which does not go over the network. */
static void code_of(uint64_t generation, const uint8_t nonce[DPT_COMM_NONCE_BYTES],
                    uint8_t ret[CODE_BYTES])
{
    uint8_t bytes[4 + 8], code[DPT_HMAC_BYTES];
    struct dpt_writer writer;
    dpt_writer_init(&writer, bytes, sizeof bytes);
    dpt_writer_u32(&writer, ID_MARK);
    dpt_writer_u64(&writer, generation);
    dpt_hmac(nonce, DPT_COMM_NONCE_BYTES, bytes, sizeof bytes, code);
    memcpy(ret, code, CODE_BYTES);
}

void dpt_nccl_id_pack(uint64_t generation, const uint8_t nonce[DPT_COMM_NONCE_BYTES],
                      const uint8_t id[DPT_NCCL_ID_BYTES], uint8_t ret[DPT_NCCL_ID_MESSAGE_BYTES])
{
    uint8_t code[CODE_BYTES];
    struct dpt_writer writer;
    code_of(generation, nonce, code);
    dpt_writer_init(&writer, ret, DPT_NCCL_ID_MESSAGE_BYTES);
    dpt_writer_u32(&writer, ID_MARK);
    dpt_writer_u32(&writer, DPT_NCCL_ID_BYTES);
    dpt_writer_u64(&writer, generation);
    dpt_writer_bytes(&writer, code, sizeof code);
    dpt_writer_bytes(&writer, id, DPT_NCCL_ID_BYTES);
    DPT_ASSERT(!writer.failed && writer.at == DPT_NCCL_ID_MESSAGE_BYTES);
}

enum dpt_status dpt_nccl_id_unpack(const uint8_t bytes[DPT_NCCL_ID_MESSAGE_BYTES],
                                   uint64_t generation, const uint8_t nonce[DPT_COMM_NONCE_BYTES],
                                   uint8_t ret[DPT_NCCL_ID_BYTES], struct dpt_err *err)
{
    struct dpt_reader reader;
    dpt_reader_init(&reader, bytes, DPT_NCCL_ID_MESSAGE_BYTES);
    const bool marked =
        dpt_reader_u32(&reader) == ID_MARK && dpt_reader_u32(&reader) == DPT_NCCL_ID_BYTES;
    const uint64_t of = dpt_reader_u64(&reader);
    const uint8_t *with = dpt_reader_view(&reader, CODE_BYTES);
    uint8_t code[CODE_BYTES];
    code_of(generation, nonce, code);
    if (!marked)
        return dpt_fail(err, DPT_EPROTO, "this is no id of a communicator of the GPU");
    if (of != generation || !dpt_hmac_equal(with, code, sizeof code))
        return dpt_fail(err, DPT_EPROTO,
                        "an id for the GPU's communicators of generation %llu, or of another "
                        "attempt at it, where generation %llu is formed",
                        (unsigned long long)of, (unsigned long long)generation);
    dpt_reader_bytes(&reader, ret, DPT_NCCL_ID_BYTES);
    return DPT_OK;
}

static bool all_kept_one(const struct dpt_nccl_offer *offers, int size)
{
    bool seen[DPT_COMM_WORLD_MAX] = {false};
    for (int i = 0; i < size; i++) {
        const struct dpt_nccl_offer *offer = &offers[i];
        if (offer->kept == 0 || offer->kept != offers[0].kept ||
            offer->kept_size != offers[0].kept_size || offer->kept_size <= size ||
            seen[offer->kept_rank])
            return false;
        seen[offer->kept_rank] = true;
    }
    return true;
}

void dpt_nccl_plan_world(const struct dpt_nccl_offer *offers, int size, bool may_shrink,
                         struct dpt_nccl_world *ret)
{
    DPT_ASSERT(size > 0 && size <= DPT_COMM_WORLD_MAX);
    ret->shrink = may_shrink && all_kept_one(offers, size);
    ret->n_excluded = 0;
    for (int i = 0; i < size; i++)
        ret->order[i] = i;
    if (!ret->shrink)
        return;
    bool here[DPT_COMM_WORLD_MAX] = {false};
    for (int i = 0; i < size; i++)
        here[offers[i].kept_rank] = true;
    for (int r = 0; r < offers[0].kept_size; r++)
        if (!here[r])
            ret->excluded[ret->n_excluded++] = r;
    for (int i = 0; i < size; i++) {
        ret->order[i] = 0;
        for (int r = 0; r < offers[i].kept_rank; r++)
            ret->order[i] += here[r];
    }
}

int dpt_nccl_plan_split(const struct dpt_nccl_offer *offers, int size,
                        const struct dpt_nccl_world *world, int s, int rank,
                        int ret_order[DPT_COMM_WORLD_MAX])
{
    const int color = offers[rank].splits[s].color;
    int n = 0;
    for (int i = 0; i < size; i++) {
        const struct dpt_nccl_split_of *own = &offers[i].splits[s];
        int before = 0;
        for (int j = 0; j < size; j++) {
            const struct dpt_nccl_split_of *other = &offers[j].splits[s];
            before += other->color == color &&
                      (other->key < own->key ||
                       (other->key == own->key && world->order[j] < world->order[i]));
        }
        ret_order[i] = own->color == color ? before : -1;
        n += own->color == color;
    }
    return n;
}
