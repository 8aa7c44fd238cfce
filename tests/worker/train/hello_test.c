/* Hellos as bytes: every field arrives as it was sent, and no two fields share bytes. */
#include "worker/train/formation/hello.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { NUMBERS = DPT_HANDSHAKE_BYTES / 8 };

static struct dpt_hello sample(void)
{
    struct dpt_hello h = {
        .plan_hash = 0x8000000000000001,
        .step = -1,
        .start_step = 3,
        .steps_lost = INT64_MAX,
        .generations = 5,
        .trained_ms = 123456789012,
        .checkpoints = 17,
        .val_step = -6,
        .val_loss = 7.25,
        .val_right = 18,
        .eval = {.step = 21, .batches = 22, .sum = 23.5, .right = 24},
        .checkpoint_slot = -8,
        .late = {14, 15},
        .own = {9, 10},
        .scaler = {.scale = 65536, .good_steps = 12, .skipped = 13, .diverged_in_row = 14},
        .epoch =
            {.from = 31, .to = 32, .finite = 33, .loss_sum = 34.5, .timed = 35, .seconds = 36.5},
        .origin = {.hi = 37, .lo = 38}};
    for (int i = 0; i < DPT_MOVE_STATE_PARTS; i++) {
        h.held[i] = (struct dpt_shard){100 + i, 110 + i};
        h.wanted[i] = (struct dpt_shard){120 + i, 130 + i};
        h.hash[i] = (struct dpt_hash128){.hi = 140 + (uint64_t)i, .lo = 150 + (uint64_t)i};
    }
    return h;
}

static void every_field_arrives(void **state)
{
    (void)state;
    const struct dpt_hello sent = sample();
    uint8_t bytes[DPT_HANDSHAKE_BYTES];
    dpt_hello_pack(&sent, bytes);
    const struct dpt_hello h = dpt_hello_unpack(bytes);
    assert_true(h.plan_hash == sent.plan_hash && h.step == sent.step);
    assert_true(h.start_step == sent.start_step && h.steps_lost == sent.steps_lost);
    assert_true(h.generations == sent.generations && h.val_step == sent.val_step);
    assert_true(h.trained_ms == sent.trained_ms && h.checkpoints == sent.checkpoints);
    assert_memory_equal(&h.val_loss, &sent.val_loss, sizeof h.val_loss);
    assert_true(h.eval.step == sent.eval.step && h.eval.batches == sent.eval.batches);
    assert_memory_equal(&h.eval.sum, &sent.eval.sum, sizeof h.eval.sum);
    assert_true(h.val_right == sent.val_right && h.eval.right == sent.eval.right);
    assert_int_equal(h.checkpoint_slot, sent.checkpoint_slot);
    assert_true(dpt_shard_equal(h.own, sent.own) && dpt_shard_equal(h.late, sent.late));
    for (int i = 0; i < DPT_MOVE_STATE_PARTS; i++) {
        assert_true(dpt_shard_equal(h.held[i], sent.held[i]));
        assert_true(dpt_shard_equal(h.wanted[i], sent.wanted[i]));
        assert_true(h.hash[i].hi == sent.hash[i].hi && h.hash[i].lo == sent.hash[i].lo);
    }
    assert_memory_equal(&h.scaler.scale, &sent.scaler.scale, sizeof h.scaler.scale);
    assert_true(h.scaler.good_steps == sent.scaler.good_steps);
    assert_true(h.scaler.skipped == sent.scaler.skipped);
    assert_true(h.scaler.diverged_in_row == sent.scaler.diverged_in_row);
    assert_memory_equal(&h.epoch, &sent.epoch, sizeof h.epoch);
    assert_true(h.origin.hi == sent.origin.hi && h.origin.lo == sent.origin.lo);
}

/* A change of any eight bytes changes the hello when it is packed again: no field is left out. */
static void every_byte_counts(void **state)
{
    (void)state;
    const struct dpt_hello sent = sample();
    for (int i = 0; i < NUMBERS; i++) {
        uint8_t bytes[DPT_HANDSHAKE_BYTES], again[DPT_HANDSHAKE_BYTES];
        dpt_hello_pack(&sent, bytes);
        bytes[8 * i] ^= 1;
        const struct dpt_hello h = dpt_hello_unpack(bytes);
        dpt_hello_pack(&h, again);
        assert_memory_equal(again, bytes, sizeof bytes);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_field_arrives),
                                       cmocka_unit_test(every_byte_counts)};
    return cmocka_run_group_tests_name("hello", tests, NULL, NULL);
}
