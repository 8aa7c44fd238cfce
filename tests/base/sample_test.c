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
    assert_int_equal(form.losses, SEQ);
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
        cmocka_unit_test(tokens_and_targets),
        cmocka_unit_test(parts_of_a_batch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
