/* Fuzz target: messages by which ranks create the GPU's communicators. The first byte chooses:
 * bytes as an offer, which is accepted only if it packs to the same bytes again; bytes over a true
 * id, which is accepted if and only if its mark, generation and nonce are intact; or offers of a
 * small world, from which a plan follows in which every rank has its own place. */
#include "base/err.h"
#include "tests/fuzz/fuzz.h"
#include "worker/comm/nccl_form.h"

#include <string.h>

enum { GENERATION = 7, RANKS_MAX = 6 };

static const uint8_t nonce[DPT_COMM_NONCE_BYTES] = {1, 2, 3};

static void offer(struct feed *feed)
{
    uint8_t bytes[DPT_NCCL_OFFER_BYTES], again[DPT_NCCL_OFFER_BYTES];
    struct dpt_nccl_offer true_offer = {.generation = GENERATION,
                                        .kept = 3,
                                        .kept_rank = 1,
                                        .kept_size = 4,
                                        .n_splits = (int)feed_below(feed, 5)};
    struct dpt_nccl_offer read;
    struct dpt_err err = {.status = DPT_OK};
    dpt_nccl_offer_pack(&true_offer, bytes);
    while (!feed_is_over(feed)) {
        const uint32_t at = feed_below(feed, DPT_NCCL_OFFER_BYTES);
        bytes[at] = feed_u8(feed);
    }
    if (dpt_nccl_offer_unpack(bytes, GENERATION, &read, &err) != DPT_OK) {
        DPT_ASSERT(err.status == DPT_EPROTO && err.text[0] != '\0');
        return;
    }
    DPT_ASSERT(read.generation == GENERATION && read.kept_rank < DPT_COMM_WORLD_MAX);
    dpt_nccl_offer_pack(&read, again);
    DPT_ASSERT(memcmp(bytes, again, sizeof bytes) == 0);
}

static void id(struct feed *feed)
{
    enum { HEAD_BYTES = DPT_NCCL_ID_MESSAGE_BYTES - DPT_NCCL_ID_BYTES };
    uint8_t made[DPT_NCCL_ID_BYTES], read[DPT_NCCL_ID_BYTES];
    uint8_t bytes[DPT_NCCL_ID_MESSAGE_BYTES], before[DPT_NCCL_ID_MESSAGE_BYTES];
    memset(made, 0x5a, sizeof made);
    dpt_nccl_id_pack(GENERATION, nonce, made, bytes);
    memcpy(before, bytes, sizeof before);
    while (!feed_is_over(feed)) {
        const uint32_t at = feed_below(feed, DPT_NCCL_ID_MESSAGE_BYTES);
        bytes[at] = feed_u8(feed);
    }
    const bool taken = dpt_nccl_id_unpack(bytes, GENERATION, nonce, read, NULL) == DPT_OK;
    DPT_ASSERT(taken == (memcmp(bytes, before, HEAD_BYTES) == 0));
    DPT_ASSERT(!taken || memcmp(read, bytes + HEAD_BYTES, sizeof read) == 0);
}

/* Ranks with a place of at least 0 have 0 … size - 1, each its own. */
static void check_ranks_places(const int *place, int ranks, int size)
{
    bool taken[RANKS_MAX] = {false};
    int n = 0;
    for (int i = 0; i < ranks; i++) {
        if (place[i] < 0)
            continue;
        DPT_ASSERT(place[i] < size && !taken[place[i]]);
        taken[place[i]] = true;
        n++;
    }
    DPT_ASSERT(n == size);
}

static void plan(struct feed *feed)
{
    struct dpt_nccl_offer offers[RANKS_MAX] = {0};
    static struct dpt_nccl_world world;
    int place[DPT_COMM_WORLD_MAX], size = 0;
    const int ranks = 1 + (int)feed_below(feed, RANKS_MAX);
    const int kept_size = 1 + (int)feed_below(feed, 2 * RANKS_MAX);
    for (int i = 0; i < ranks; i++) {
        offers[i].kept = feed_below(feed, 16) != 0;
        offers[i].kept_rank = (int)feed_below(feed, (uint32_t)kept_size);
        offers[i].kept_size = kept_size;
        offers[i].splits[0].color = (int)feed_below(feed, 3);
        offers[i].splits[0].key = (int)feed_below(feed, 3);
    }
    dpt_nccl_plan_world(offers, ranks, true, &world);
    check_ranks_places(world.order, ranks, ranks);
    DPT_ASSERT(world.n_excluded == (world.shrink ? kept_size - ranks : 0));
    for (int i = 0; i < world.n_excluded; i++) {
        DPT_ASSERT(world.excluded[i] < kept_size);
        DPT_ASSERT(i == 0 || world.excluded[i] > world.excluded[i - 1]);
        for (int r = 0; r < ranks; r++)
            DPT_ASSERT(offers[r].kept_rank != world.excluded[i]);
    }
    for (int rank = 0; rank < ranks; rank++) {
        size = dpt_nccl_plan_split(offers, ranks, &world, 0, rank, place);
        DPT_ASSERT(place[rank] >= 0);
        check_ranks_places(place, ranks, size);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct feed feed = feed_from(data, bytes);
    switch (feed_below(&feed, 3)) {
    case 0:
        offer(&feed);
        break;
    case 1:
        id(&feed);
        break;
    default:
        plan(&feed);
    }
    return 0;
}
