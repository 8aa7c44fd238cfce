/* The table and the line of a rank's memory, letter by letter. */
#include "worker/strategy/memory/memory_report.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

static void add_line(void *ctx, const char *text)
{
    char *all = ctx;
    const size_t used = strlen(all);
    (void)snprintf(all + used, 2048 - used, "%s\n", text);
}

static void table_has_a_row_for_each_category(void **state)
{
    (void)state;
    const int64_t mb = 1 << 20;
    char text[2048] = "";
    struct dpt_memory_report report = {.allocated_all = 110 * mb,
                                       .peak_all = 120 * mb,
                                       .reserved = 111 * mb,
                                       .reserved_peak = 121 * mb,
                                       .true_peak = 150 * mb};
    report.estimated[DPT_MEMORY_WEIGHTS] = 40 * mb;
    report.allocated[DPT_MEMORY_WEIGHTS] = report.peak[DPT_MEMORY_WEIGHTS] = 40 * mb;
    report.estimated[DPT_MEMORY_MOMENTS] = 50 * mb;
    report.allocated[DPT_MEMORY_MOMENTS] = report.peak[DPT_MEMORY_MOMENTS] = 60 * mb;
    report.allocated[DPT_MEMORY_CHECKPOINT] = 10 * mb;
    report.peak[DPT_MEMORY_CHECKPOINT] = 20 * mb;
    dpt_memory_report_print(&report, add_line, text);
    assert_string_equal(text, "Allocated vs Estimated, MB (2^20 bytes)\n"
                              "                estimated    allocated   difference         peak\n"
                              "model                40.0         40.0       +0.0 %         40.0\n"
                              "grad                  0.0          0.0                       0.0\n"
                              "optim                50.0         60.0      +20.0 %         60.0\n"
                              "activations           0.0          0.0                       0.0\n"
                              "comm                  0.0          0.0                       0.0\n"
                              "other                 0.0         10.0                      20.0\n"
                              "all                  90.0        110.0      +22.2 %        120.0\n"
                              "reserved                         111.0                     121.0\n"
                              "true peak                                                  150.0\n");
}

/* A rank with a GPU has two places; kernels' workspace has no estimate and a row of its own. */
static void table_of_a_gpu_has_its_workspace_apart(void **state)
{
    (void)state;
    const int64_t mb = 1 << 20;
    int64_t estimated[DPT_MEMORY_COUNT] = {
        [DPT_MEMORY_WEIGHTS] = 40 * mb, [DPT_MEMORY_ACTIVATIONS] = 10 * mb};
    struct dpt_memory_use use = {
        .all = 55 * mb, .all_peak = 60 * mb, .reserved = 56 * mb, .reserved_peak = 61 * mb};
    char text[2048] = "";
    use.tag[DPT_MEMORY_WEIGHTS] = use.tag_peak[DPT_MEMORY_WEIGHTS] = 40 * mb;
    use.tag[DPT_MEMORY_ACTIVATIONS] = use.tag_peak[DPT_MEMORY_ACTIVATIONS] = 10 * mb;
    use.tag[DPT_MEMORY_WORKSPACE] = 5 * mb;
    use.tag_peak[DPT_MEMORY_WORKSPACE] = 7 * mb;
    struct dpt_memory_report report = dpt_memory_report_of(&use, estimated);
    report.place = "GPU";
    report.workspace_apart = true;
    dpt_memory_report_print(&report, add_line, text);
    assert_string_equal(text, "Allocated vs Estimated, GPU, MB (2^20 bytes)\n"
                              "                estimated    allocated   difference         peak\n"
                              "model                40.0         40.0       +0.0 %         40.0\n"
                              "grad                  0.0          0.0                       0.0\n"
                              "optim                 0.0          0.0                       0.0\n"
                              "activations          10.0         10.0       +0.0 %         10.0\n"
                              "comm                  0.0          0.0                       0.0\n"
                              "other                 0.0          0.0                       0.0\n"
                              "workspace                          5.0                       7.0\n"
                              "all                  50.0         55.0      +10.0 %         60.0\n"
                              "reserved                          56.0                      61.0\n");
}

static void line_has_the_fields_of_a_rank(void **state)
{
    (void)state;
    const int64_t mb = 1 << 20;
    struct dpt_memory_use use = {
        .all = 7 * mb, .all_peak = 8 * mb, .reserved = 9 * mb, .reserved_peak = 10 * mb + mb / 2};
    char line[DPT_MEMORY_LINE_BYTES];
    use.tag[DPT_MEMORY_WEIGHTS] = use.tag[DPT_MEMORY_PACKED] = mb;
    use.tag[DPT_MEMORY_GRADIENT] = mb;
    use.tag[DPT_MEMORY_MASTERS] = use.tag[DPT_MEMORY_MOMENTS] = 2 * mb;
    dpt_memory_line(3, &use, line);
    assert_string_equal(line, "[Rank 3] model=2.0 grad=1.0 optim=4.0 alloc=7.0 reserved=9.0 "
                              "peak_alloc=8.0 peak_reserved=10.5");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table_has_a_row_for_each_category),
        cmocka_unit_test(table_of_a_gpu_has_its_workspace_apart),
        cmocka_unit_test(line_has_the_fields_of_a_rank),
    };
    return cmocka_run_group_tests_name("report of memory", tests, NULL, NULL);
}
