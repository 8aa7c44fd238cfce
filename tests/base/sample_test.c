/* The form of a sample and where a micro-batch's parts lie. */
#include "base/sample.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { SEQ = 9, N = 3 };

static struct dpt_sample_form form_of(int seq_len)
{
    struct dpt_config config;
    dpt_config_defaults(&config);
    config.train.seq_len = seq_len;
    return dpt_sample_form(&config);
}

static void tokens_and_targets(void **state)
{
    (void)state;
    const struct dpt_sample_form form = form_of(SEQ);
    assert_int_equal(form.part_bytes[DPT_SAMPLE_INPUT], SEQ * sizeof(int32_t));
    assert_int_equal(form.part_bytes[DPT_SAMPLE_TARGET], SEQ * sizeof(int32_t));
    assert_int_equal(form.positions, SEQ);
    assert_int_equal(form.part_bytes[DPT_SAMPLE_LENGTH], 0);
    assert_int_equal(form.losses, SEQ);
    assert_false(form.ragged);
}

static struct dpt_sample_form classified(void)
{
    struct dpt_config config;
    dpt_config_defaults(&config);
    config.data.kind = DPT_DATA_CLASSIFICATION;
    config.train.seq_len = SEQ;
    return dpt_sample_form(&config);
}

static void a_label_and_a_length(void **state)
{
    (void)state;
    const struct dpt_sample_form form = classified();
    assert_int_equal(form.part_bytes[DPT_SAMPLE_INPUT], SEQ * sizeof(int32_t));
    assert_int_equal(form.part_bytes[DPT_SAMPLE_TARGET], sizeof(int32_t));
    assert_int_equal(form.part_bytes[DPT_SAMPLE_LENGTH], sizeof(int32_t));
    assert_int_equal(form.positions, SEQ);
    assert_int_equal(form.losses, 1);
    assert_true(form.ragged);
}

static void an_image_and_a_label(void **state)
{
    (void)state;
    struct dpt_config config;
    dpt_config_defaults(&config);
    config.data.kind = DPT_DATA_IMAGES;
    config.data.image_size = 5;
    const struct dpt_sample_form form = dpt_sample_form(&config);
    assert_int_equal(form.part_bytes[DPT_SAMPLE_INPUT], 5 * 5 * 3 * sizeof(float));
    assert_int_equal(form.part_bytes[DPT_SAMPLE_TARGET], sizeof(int32_t));
    assert_int_equal(form.part_bytes[DPT_SAMPLE_LENGTH], 0);
    assert_int_equal(form.positions, 1);
    assert_int_equal(form.losses, 1);
    assert_false(form.ragged);
}

/* Every place of a row is another number, so that one that stays behind is seen. */
static void fill_batch(const struct dpt_sample_form *form, const struct dpt_batch *batch,
                       const int32_t lengths[N])
{
    for (int i = 0; i < N; i++) {
        int32_t *tokens = dpt_batch_part(form, batch, DPT_SAMPLE_INPUT, i);
        for (int j = 0; j < SEQ; j++)
            tokens[j] = 100 * (i + 1) + j;
        *(int32_t *)dpt_batch_part(form, batch, DPT_SAMPLE_TARGET, i) = i;
        *(int32_t *)dpt_batch_part(form, batch, DPT_SAMPLE_LENGTH, i) = lengths[i];
    }
}

/* A micro-batch is as long as its longest sample, and its memory may be filled again. */
static void rows_are_moved_together(void **state)
{
    (void)state;
    static const int32_t cases[][N] = {
        {2, 5, 1}, {1, 1, 1}, {SEQ, 1, SEQ}, {3, 3, 4}, {SEQ, SEQ, SEQ}};
    const struct dpt_sample_form form = classified();
    _Alignas(DPT_BATCH_ALIGN) static char memory[4 * 128];
    assert_true(dpt_batch_bytes(&form, N) <= sizeof memory);
    struct dpt_batch batch = dpt_batch_at(&form, N, memory);
    assert_int_equal(batch.positions, SEQ);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        int32_t longest = 0;
        fill_batch(&form, &batch, cases[c]);
        dpt_batch_close(&form, &batch, N);
        for (int i = 0; i < N; i++)
            longest = cases[c][i] > longest ? cases[c][i] : longest;
        assert_int_equal(batch.positions, longest);
        const int32_t *tokens = batch.part[DPT_SAMPLE_INPUT];
        const int32_t *labels = batch.part[DPT_SAMPLE_TARGET];
        const int32_t *lengths = batch.part[DPT_SAMPLE_LENGTH];
        for (int i = 0; i < N; i++) {
            assert_int_equal(labels[i], i);
            assert_int_equal(lengths[i], cases[c][i]);
            for (int j = 0; j < longest; j++)
                assert_int_equal(tokens[i * longest + j], j < cases[c][i] ? 100 * (i + 1) + j : 0);
        }
    }
}

/* A micro-batch with fewer samples than its room: the content of the unused room does not count. */
static void only_n_samples_are_looked_at(void **state)
{
    (void)state;
    const struct dpt_sample_form form = classified();
    _Alignas(DPT_BATCH_ALIGN) static char memory[4 * 128];
    struct dpt_batch batch = dpt_batch_at(&form, N, memory);
    fill_batch(&form, &batch, (const int32_t[N]){2, 3, SEQ});
    dpt_batch_close(&form, &batch, N - 1);
    assert_int_equal(batch.positions, 3);
}

static void others_stay_as_they_are(void **state)
{
    (void)state;
    const struct dpt_sample_form form = form_of(SEQ);
    _Alignas(DPT_BATCH_ALIGN) static char memory[2 * 128], before[2 * 128];
    for (size_t i = 0; i < sizeof memory; i++)
        memory[i] = before[i] = (char)i;
    struct dpt_batch batch = dpt_batch_at(&form, N, memory);
    dpt_batch_close(&form, &batch, N);
    assert_int_equal(batch.positions, SEQ);
    assert_memory_equal(memory, before, sizeof memory);
}

/* Parts begin aligned, hold all samples, and do not overlap. */
static void parts_of_a_batch(void **state)
{
    (void)state;
    const struct dpt_sample_form form = form_of(SEQ);
    _Alignas(DPT_BATCH_ALIGN) static char memory[2 * 128];
    assert_int_equal(dpt_batch_bytes(&form, N), sizeof memory); /* 3 * 36 bytes in 128, twice */
    const struct dpt_batch batch = dpt_batch_at(&form, N, memory);
    assert_ptr_equal(batch.part[DPT_SAMPLE_INPUT], memory);
    assert_ptr_equal(batch.part[DPT_SAMPLE_TARGET], memory + 128);
    assert_ptr_equal(dpt_batch_part(&form, &batch, DPT_SAMPLE_INPUT, 0), memory);
    assert_ptr_equal(dpt_batch_part(&form, &batch, DPT_SAMPLE_TARGET, N - 1),
                     memory + 128 + (N - 1) * SEQ * sizeof(int32_t));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_and_targets),      cmocka_unit_test(a_label_and_a_length),
        cmocka_unit_test(an_image_and_a_label),    cmocka_unit_test(parts_of_a_batch),
        cmocka_unit_test(rows_are_moved_together), cmocka_unit_test(only_n_samples_are_looked_at),
        cmocka_unit_test(others_stay_as_they_are),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
