/* The messages with which ranks build the GPU's communicators: encoding, refusals, and decisions
 * that are equal on every rank. */
#include "worker/comm/nccl_form.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static const uint8_t nonce[DPT_COMM_NONCE_BYTES] = {5, 6, 7};

static void offers_travel(void **state)
{
    (void)state;
    const struct dpt_nccl_offer offer = {.generation = 1234567890123456789ULL,
                                         .kept = 0xfedcba9876543210ULL,
                                         .kept_rank = 7,
                                         .kept_size = 9,
                                         .n_splits = 2,
                                         .splits = {{3, 4}, {5, 6}}};
    struct dpt_nccl_offer back;
    struct dpt_err err;
    uint8_t bytes[DPT_NCCL_OFFER_BYTES], wrong[DPT_NCCL_OFFER_BYTES];
    dpt_nccl_offer_pack(&offer, bytes);
    assert_int_equal(dpt_nccl_offer_unpack(bytes, offer.generation, &back, &err), DPT_OK);
    assert_memory_equal(&back, &offer, sizeof offer);
    assert_int_equal(dpt_nccl_offer_unpack(bytes, offer.generation + 1, &back, &err), DPT_EPROTO);
    /* Mark, splits, rank, size, the reserved zero, color, one split too many. */
    static const size_t spoilt[] = {0, 7, 27, 31, 32, 43, 56};
    for (size_t i = 0; i < sizeof spoilt / sizeof spoilt[0]; i++) {
        memcpy(wrong, bytes, sizeof wrong);
        wrong[spoilt[i]] ^= 0x80;
        assert_int_equal(dpt_nccl_offer_unpack(wrong, offer.generation, &back, &err), DPT_EPROTO);
    }
    memcpy(wrong, bytes, sizeof wrong);
    wrong[24] = 9; /* rank 9 of 9 */
    assert_int_equal(dpt_nccl_offer_unpack(wrong, offer.generation, &back, &err), DPT_EPROTO);
}

static void an_id_of_another_generation_is_refused(void **state)
{
    (void)state;
    uint8_t id[DPT_NCCL_ID_BYTES], back[DPT_NCCL_ID_BYTES] = {0};
    uint8_t bytes[DPT_NCCL_ID_MESSAGE_BYTES], other[DPT_COMM_NONCE_BYTES] = {5, 6, 8};
    struct dpt_err err;
    for (int i = 0; i < DPT_NCCL_ID_BYTES; i++)
        id[i] = (uint8_t)(i * 3);
    dpt_nccl_id_pack(41, nonce, id, bytes);
    assert_int_equal(dpt_nccl_id_unpack(bytes, 41, nonce, back, &err), DPT_OK);
    assert_memory_equal(back, id, sizeof id);
    memset(back, 0, sizeof back);
    assert_int_equal(dpt_nccl_id_unpack(bytes, 42, nonce, back, &err), DPT_EPROTO);
    assert_non_null(strstr(err.text, "generation 41"));
    assert_int_equal(dpt_nccl_id_unpack(bytes, 41, other, back, &err), DPT_EPROTO);
    memset(bytes, 0, sizeof bytes); /* the message of a rank without an id */
    assert_int_equal(dpt_nccl_id_unpack(bytes, 0, nonce, back, &err), DPT_EPROTO);
    for (size_t i = 0; i < sizeof back; i++)
        assert_int_equal(back[i], 0);
    assert_int_not_equal(dpt_nccl_kept_number(1, nonce), dpt_nccl_kept_number(2, nonce));
    assert_int_not_equal(dpt_nccl_kept_number(1, nonce), dpt_nccl_kept_number(1, other));
}

/* Offers of ranks that hold these ranks of one kept communicator. */
static void offer_kept(struct dpt_nccl_offer *offers, int size, const int *kept_rank, int kept_size)
{
    memset(offers, 0, (size_t)size * sizeof *offers);
    for (int i = 0; i < size; i++) {
        offers[i].kept = 77;
        offers[i].kept_rank = kept_rank[i];
        offers[i].kept_size = kept_size;
    }
}

static void when_the_world_is_shrunk(void **state)
{
    (void)state;
    struct dpt_nccl_offer offers[4];
    struct dpt_nccl_world world;
    /* Ranks of the run are not ranks of the communicator: 4 of 6 are left, in another order. */
    offer_kept(offers, 4, (const int[]){3, 0, 5, 1}, 6);
    dpt_nccl_plan_world(offers, 4, true, &world);
    assert_true(world.shrink);
    assert_int_equal(world.n_excluded, 2);
    assert_int_equal(world.excluded[0], 2);
    assert_int_equal(world.excluded[1], 4);
    static const int order[] = {2, 0, 3, 1};
    assert_memory_equal(world.order, order, sizeof order);

    dpt_nccl_plan_world(offers, 4, false, &world); /* it was tried, and failed */
    assert_false(world.shrink);
    offers[2].kept = 78; /* one kept another */
    dpt_nccl_plan_world(offers, 4, true, &world);
    assert_false(world.shrink);
    offers[2].kept = 0; /* a joiner */
    dpt_nccl_plan_world(offers, 4, true, &world);
    assert_false(world.shrink);
    offer_kept(offers, 4, (const int[]){3, 0, 3, 1}, 6); /* two say they are the same */
    dpt_nccl_plan_world(offers, 4, true, &world);
    assert_false(world.shrink);
    offer_kept(offers, 4, (const int[]){3, 0, 2, 1}, 4); /* none is missing */
    dpt_nccl_plan_world(offers, 4, true, &world);
    assert_false(world.shrink);
    for (int i = 0; i < 4; i++)
        assert_int_equal(world.order[i], i);
}

static void split_orders_ranks_by_color_and_key(void **state)
{
    (void)state;
    struct dpt_nccl_offer offers[5];
    struct dpt_nccl_world world;
    int in[DPT_COMM_WORLD_MAX], size;
    offer_kept(offers, 5, (const int[]){4, 3, 2, 1, 0}, 6);
    static const struct dpt_nccl_split_of splits[] = {{1, 5}, {0, 0}, {1, 2}, {1, 5}, {0, 0}};
    for (int i = 0; i < 5; i++)
        offers[i].splits[1] = splits[i];
    dpt_nccl_plan_world(offers, 5, true, &world);
    size = dpt_nccl_plan_split(offers, 5, &world, 1, 0, in);
    /* Equal keys: in the order of the world's communicator, where rank 3 comes before rank 0. */
    static const int ones[] = {2, -1, 0, 1, -1};
    assert_int_equal(size, 3);
    assert_memory_equal(in, ones, sizeof ones);
    size = dpt_nccl_plan_split(offers, 5, &world, 1, 4, in);
    static const int zeros[] = {-1, 1, -1, -1, 0};
    assert_int_equal(size, 2);
    assert_memory_equal(in, zeros, sizeof zeros);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(offers_travel),
                                       cmocka_unit_test(an_id_of_another_generation_is_refused),
                                       cmocka_unit_test(when_the_world_is_shrunk),
                                       cmocka_unit_test(split_orders_ranks_by_color_and_key)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
