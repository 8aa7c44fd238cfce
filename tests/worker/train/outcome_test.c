/* The messages of a step's commit: the outcome of valid contributions, the refusal of all others.
 */
#include "worker/train/state/outcome.h"

#include "base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WORLD = 3, SLOTS = 7, SLOTS_MAX = 3, STEP = 12 };

/* Where the fields of a packed contribution lie. */
enum {
    AT_STEP = 0,
    AT_FLAGS = 8,
    AT_LEAVING = 12,
    AT_FIRST = 16,
    AT_STRIDE = 20,
    AT_COUNT = 24,
    AT_NORM = 28,
    AT_SCALE = AT_NORM + 8 * DPT_ACCUM_LIMBS + 8
};

struct fold {
    struct dpt_contribution part[WORLD];
    double losses[SLOTS];
    uint8_t *all;
    size_t bytes; /* of one */
    struct dpt_outcome outcome;
    double folded[SLOTS];
};

static void begin_fold(struct fold *f)
{
    *f = (struct fold){.bytes = dpt_contribution_bytes(SLOTS_MAX)};
    f->all = malloc(WORLD * f->bytes);
    assert_non_null(f->all);
    f->outcome.losses = f->folded;
    int first = 0;
    for (int i = 0; i < SLOTS; i++)
        f->losses[i] = 1.0 / (i + 3);
    for (int rank = 0; rank < WORLD; rank++) {
        int n = rank == 0 ? 3 : 2;
        f->part[rank] = (struct dpt_contribution){.step = STEP,
                                                  .first_slot = first,
                                                  .stride = 1,
                                                  .n_slots = n,
                                                  .losses = f->losses + first,
                                                  .scale = 1};
        dpt_accum_init(&f->part[rank].norm);
        dpt_accum_add(&f->part[rank].norm, 0.1 * (rank + 1));
        dpt_accum_normalise(&f->part[rank].norm);
        first += n;
    }
}

static void pack(struct fold *f)
{
    for (int rank = 0; rank < WORLD; rank++)
        dpt_contribution_pack(&f->part[rank], SLOTS_MAX, f->all + (size_t)rank * f->bytes);
}

static enum dpt_status fold(struct fold *f, struct dpt_err *err)
{
    const struct dpt_commit_world world = {
        .step = STEP, .size = WORLD, .slots = SLOTS, .slots_max = SLOTS_MAX};
    return dpt_outcome_combine(&world, f->all, &f->outcome, err);
}

static void expect_refused(struct fold *f, const char *word)
{
    struct dpt_err err;
    assert_int_equal(fold(f, &err), DPT_EPROTO);
    if (!strstr(err.text, word))
        fail_msg("'%s' does not say '%s'", err.text, word);
    free(f->all);
}

static void end_fold(struct fold *f)
{
    free(f->all);
}

static void contributions_come_together(void **state)
{
    (void)state;
    struct fold f;
    struct dpt_err err;
    begin_fold(&f);
    f.part[0].flags = DPT_COMMIT_SAVE;
    f.part[1].flags = DPT_COMMIT_REFORM;
    f.part[2].flags = DPT_COMMIT_SAVER_BUSY | DPT_COMMIT_NOT_FINITE;
    f.part[2].leaving = 1;
    pack(&f);
    assert_int_equal(fold(&f, &err), DPT_OK);
    assert_int_equal(f.outcome.step, STEP);
    assert_int_equal(f.outcome.slots, SLOTS);
    assert_int_equal(f.outcome.flags, DPT_COMMIT_REFORM | DPT_COMMIT_SAVER_BUSY |
                                          DPT_COMMIT_NOT_FINITE | DPT_COMMIT_SAVE);
    assert_memory_equal(f.folded, f.losses, sizeof f.folded);
    struct dpt_accum norm;
    dpt_accum_init(&norm);
    for (int rank = 0; rank < WORLD; rank++)
        dpt_accum_add(&norm, 0.1 * (rank + 1));
    double expected = sqrt(dpt_accum_value(&norm));
    assert_memory_equal(&f.outcome.norm, &expected, sizeof expected);
    double sum = 0;
    for (int i = 0; i < SLOTS; i++)
        sum += f.losses[i];
    assert_true(dpt_outcome_loss(&f.outcome) == sum / SLOTS);
    end_fold(&f);
}

/* Slots 0, 3, 6; 1, 4; 2, 5. */
static void slots_dealt_in_turn(void **state)
{
    (void)state;
    struct fold f;
    struct dpt_err err;
    begin_fold(&f);
    for (int rank = 0; rank < WORLD; rank++) {
        f.part[rank].first_slot = rank;
        f.part[rank].stride = WORLD;
        f.part[rank].losses = f.losses + rank;
    }
    pack(&f);
    assert_int_equal(fold(&f, &err), DPT_OK);
    assert_memory_equal(f.folded, f.losses, sizeof f.folded);
    end_fold(&f);
}

static void all_leave_only_together(void **state)
{
    (void)state;
    for (int leaving = 0; leaving <= WORLD; leaving++) {
        struct fold f;
        struct dpt_err err;
        begin_fold(&f);
        for (int rank = 0; rank < leaving; rank++)
            f.part[rank].leaving = 1;
        pack(&f);
        assert_int_equal(fold(&f, &err), DPT_OK);
        assert_int_equal((f.outcome.flags & DPT_COMMIT_ALL_LEAVE) != 0, leaving == WORLD);
        end_fold(&f);
    }
}

static void a_surplus_rank_has_no_slot(void **state)
{
    (void)state;
    struct fold f;
    struct dpt_err err;
    begin_fold(&f);
    f.part[0].n_slots = 0;
    f.part[1] = (struct dpt_contribution){.step = STEP,
                                          .stride = 1,
                                          .n_slots = 3,
                                          .losses = f.losses,
                                          .norm = f.part[1].norm,
                                          .scale = 1};
    pack(&f);
    const struct dpt_commit_world world = {
        .step = STEP, .size = 2, .slots = 3, .slots_max = SLOTS_MAX};
    assert_int_equal(dpt_outcome_combine(&world, f.all, &f.outcome, &err), DPT_OK);
    assert_memory_equal(f.folded, f.losses, 3 * sizeof(double));
    end_fold(&f);
}

static void norms_that_are_no_numbers(void **state)
{
    (void)state;
    static const double bad[] = {(double)NAN, (double)INFINITY};
    for (int i = 0; i < 2; i++) {
        struct fold f;
        struct dpt_err err;
        begin_fold(&f);
        dpt_accum_add(&f.part[1].norm, bad[i]);
        f.losses[0] = bad[i];
        pack(&f);
        assert_int_equal(fold(&f, &err), DPT_OK);
        assert_true(i == 0 ? isnan(f.outcome.norm) : isinf(f.outcome.norm));
        assert_memory_equal(f.folded, f.losses, sizeof f.folded);
        /* And through the bytes that re-formation carries. */
        uint8_t buf[DPT_OUTCOME_BYTES_MAX];
        size_t bytes = 0;
        double losses[SLOTS];
        struct dpt_outcome back = {.losses = losses};
        assert_int_equal(dpt_outcome_pack(&f.outcome, buf, sizeof buf, &bytes, &err), DPT_OK);
        assert_int_equal(dpt_outcome_unpack(buf, bytes, SLOTS, &back, &err), DPT_OK);
        assert_memory_equal(&back.norm, &f.outcome.norm, sizeof(double));
        assert_memory_equal(losses, f.losses, sizeof losses);
        end_fold(&f);
    }
}

/* The norm is of the unscaled gradient, bit for bit. */
static void a_scaled_gradient(void **state)
{
    (void)state;
    struct fold f;
    struct dpt_err err;
    begin_fold(&f);
    pack(&f);
    assert_int_equal(fold(&f, &err), DPT_OK);
    const double plain = f.outcome.norm;
    assert_true(f.outcome.scale == 1);
    end_fold(&f);
    begin_fold(&f);
    for (int rank = 0; rank < WORLD; rank++) {
        f.part[rank].scale = 1024;
        dpt_accum_init(&f.part[rank].norm);
        dpt_accum_add(&f.part[rank].norm, 0.1 * (rank + 1) * 1024 * 1024);
        dpt_accum_normalise(&f.part[rank].norm);
    }
    pack(&f);
    assert_int_equal(fold(&f, &err), DPT_OK);
    assert_true(f.outcome.scale == 1024);
    assert_memory_equal(&f.outcome.norm, &plain, sizeof plain);
    end_fold(&f);
}

static void another_scale_is_refused(void **state)
{
    (void)state;
    static const double bad[] = {2, 0, -1, 3, 0x1p65, 0x1p-65, (double)NAN, (double)INFINITY};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        for (int rank = 0; rank < WORLD; rank++) {
            struct fold f;
            begin_fold(&f);
            f.part[rank].scale = bad[i];
            pack(&f);
            expect_refused(&f, "scaled");
        }
}

static void another_step_is_refused(void **state)
{
    (void)state;
    for (int rank = 0; rank < WORLD; rank++) {
        struct fold f;
        begin_fold(&f);
        f.part[rank].step = STEP + 1;
        pack(&f);
        expect_refused(&f, "step 13");
    }
}

static void a_slot_twice_is_refused(void **state)
{
    (void)state;
    struct fold f;
    begin_fold(&f);
    f.part[1].first_slot = 2;
    pack(&f);
    expect_refused(&f, "slot 2");
}

static void a_missing_slot_is_refused(void **state)
{
    (void)state;
    struct fold f;
    begin_fold(&f);
    f.part[2].n_slots = 1;
    pack(&f);
    expect_refused(&f, "6 of 7");
}

static void put_u32(struct fold *f, int rank, int at, uint32_t value)
{
    uint8_t *field = f->all + (size_t)rank * f->bytes + at;
    for (int i = 0; i < 4; i++)
        field[i] = (uint8_t)(value >> (8 * i));
}

/* A peer's bytes are input: a value out of range is refused, whatever the other ranks send. */
static void fields_out_of_range_are_refused(void **state)
{
    (void)state;
    static const struct {
        int at;
        uint32_t value;
    } bad[] = {
        {AT_COUNT, SLOTS_MAX + 1},
        {AT_COUNT, UINT32_MAX},
        {AT_STRIDE, 0},
        {AT_STRIDE, SLOTS},
        {AT_STRIDE, UINT32_MAX},
        {AT_FIRST, SLOTS},
        {AT_FIRST, SLOTS - 1},
        {AT_FIRST, UINT32_MAX},
        {AT_FIRST, UINT32_MAX - 1},
        {AT_FLAGS, 32},
        {AT_FLAGS, UINT32_MAX},
        {AT_FLAGS, DPT_COMMIT_ALL_LEAVE},
        {AT_LEAVING, 2},
        {AT_LEAVING, UINT32_MAX},
        {AT_STEP, STEP + 256},
        {AT_STEP + 4, 1},
        {AT_NORM + 4, 0x80000000}, /* a limb that no sum of so few terms has */
        {AT_NORM + 8 * DPT_ACCUM_LIMBS, UINT32_MAX},
        {AT_NORM + 8 * DPT_ACCUM_LIMBS + 4, 8},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        for (int rank = 0; rank < WORLD; rank++) {
            struct fold f;
            begin_fold(&f);
            pack(&f);
            put_u32(&f, rank, bad[i].at, bad[i].value);
            expect_refused(&f, "rank");
        }
}

/* As many as the config allows, and one slot after them. */
static void outcome_of_the_most_slots(void **state)
{
    (void)state;
    enum { MOST = DPT_CONFIG_SLOTS_MAX };
    static double losses[MOST], folded[MOST];
    struct dpt_err err;
    struct dpt_outcome outcome = {.losses = folded};
    const struct dpt_commit_world world = {
        .step = STEP, .size = 1, .slots = MOST, .slots_max = MOST};
    struct fold f = {.bytes = dpt_contribution_bytes(MOST)};
    f.all = malloc(f.bytes);
    assert_non_null(f.all);
    for (int i = 0; i < MOST; i++)
        losses[i] = 1.0 / (i + 3);
    struct dpt_contribution all = {
        .step = STEP, .stride = 1, .n_slots = MOST, .losses = losses, .scale = 1};
    dpt_accum_init(&all.norm);
    dpt_contribution_pack(&all, MOST, f.all);
    assert_int_equal(dpt_outcome_combine(&world, f.all, &outcome, &err), DPT_OK);
    assert_memory_equal(folded, losses, sizeof losses);
    put_u32(&f, 0, AT_FIRST, 1);
    assert_int_equal(dpt_outcome_combine(&world, f.all, &outcome, &err), DPT_EPROTO);
    assert_string_equal(err.text, "rank 0 commits 4096 slots from 1 on, by 1, of 4096");
    put_u32(&f, 0, AT_FIRST, MOST);
    put_u32(&f, 0, AT_COUNT, 1);
    assert_int_equal(dpt_outcome_combine(&world, f.all, &outcome, &err), DPT_EPROTO);
    end_fold(&f);
}

static void random_bytes_do_no_harm(void **state)
{
    (void)state;
    struct fold f;
    begin_fold(&f);
    for (uint64_t seed = 0; seed < 2000; seed++) {
        pack(&f);
        uint32_t block[4];
        dpt_philox(dpt_rng_key(seed, DPT_RNG_TEST, 4, 0, 0), 0, block);
        f.all[block[0] % (WORLD * f.bytes)] ^= (uint8_t)(1 + block[1] % 255);
        struct dpt_err err;
        enum dpt_status status = fold(&f, &err);
        assert_true(status == DPT_OK || status == DPT_EPROTO);
    }
    end_fold(&f);
}

static void outcome_is_written_and_read_back(void **state)
{
    (void)state;
    double losses[SLOTS] = {1, 2, 3, 4, 5, 6, 7}, back_losses[SLOTS];
    struct dpt_outcome outcome = {.step = 5,
                                  .flags = DPT_COMMIT_REFORM,
                                  .slots = SLOTS,
                                  .norm = 0.5,
                                  .scale = 4096,
                                  .losses = losses};
    struct dpt_outcome back = {.losses = back_losses};
    uint8_t buf[DPT_OUTCOME_BYTES_MAX];
    size_t bytes = 0;
    struct dpt_err err;
    assert_int_equal(dpt_outcome_pack(&outcome, buf, sizeof buf, &bytes, &err), DPT_OK);
    assert_int_equal(dpt_outcome_unpack(buf, bytes, SLOTS, &back, &err), DPT_OK);
    assert_int_equal(back.step, 5);
    assert_int_equal(back.flags, DPT_COMMIT_REFORM);
    assert_memory_equal(losses, back_losses, sizeof losses);
    assert_true(back.norm == 0.5 && back.scale == 4096);
    for (size_t short_of = 0; short_of < bytes; short_of++)
        assert_int_not_equal(dpt_outcome_unpack(buf, short_of, SLOTS, &back, &err), DPT_OK);
    assert_int_not_equal(dpt_outcome_unpack(buf, bytes + 1, SLOTS, &back, &err), DPT_OK);
    assert_int_not_equal(dpt_outcome_unpack(buf, bytes, SLOTS - 1, &back, &err), DPT_OK);
    assert_int_not_equal(dpt_outcome_unpack(buf, bytes, SLOTS + 1, &back, &err), DPT_OK);
    buf[7] = 0x80; /* a negative step */
    assert_int_not_equal(dpt_outcome_unpack(buf, bytes, SLOTS, &back, &err), DPT_OK);
    outcome.scale = 3; /* no power of two */
    assert_int_equal(dpt_outcome_pack(&outcome, buf, sizeof buf, &bytes, &err), DPT_OK);
    assert_int_not_equal(dpt_outcome_unpack(buf, bytes, SLOTS, &back, &err), DPT_OK);
    outcome.scale = 1;
    /* Room is checked; the largest outcome fits where it is kept. */
    for (size_t room = 0; room < bytes; room++)
        assert_int_not_equal(dpt_outcome_pack(&outcome, buf, room, &bytes, &err), DPT_OK);
    static double most[DPT_CONFIG_SLOTS_MAX];
    outcome.slots = DPT_CONFIG_SLOTS_MAX;
    outcome.losses = most;
    assert_int_equal(dpt_outcome_pack(&outcome, buf, sizeof buf, &bytes, &err), DPT_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(contributions_come_together),
        cmocka_unit_test(slots_dealt_in_turn),
        cmocka_unit_test(all_leave_only_together),
        cmocka_unit_test(a_surplus_rank_has_no_slot),
        cmocka_unit_test(norms_that_are_no_numbers),
        cmocka_unit_test(a_scaled_gradient),
        cmocka_unit_test(another_scale_is_refused),
        cmocka_unit_test(another_step_is_refused),
        cmocka_unit_test(a_slot_twice_is_refused),
        cmocka_unit_test(a_missing_slot_is_refused),
        cmocka_unit_test(fields_out_of_range_are_refused),
        cmocka_unit_test(outcome_of_the_most_slots),
        cmocka_unit_test(random_bytes_do_no_harm),
        cmocka_unit_test(outcome_is_written_and_read_back),
    };
    return cmocka_run_group_tests_name("outcome", tests, NULL, NULL);
}
