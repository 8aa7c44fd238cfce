/* The record of a rank's memory (memory_record.h). */
#include "worker/bench/memory_record.h"

#include "worker/strategy/memory/memory_report.h"

#include <stdio.h>

int64_t memory_record_bytes(const json_t *rank, const char *key, const char *inner)
{
    const json_t *value = json_object_get(rank, key);
    return json_integer_value(inner ? json_object_get(value, inner) : value);
}

int64_t memory_record_true_peak(const json_t *rank)
{
    const int64_t others =
        memory_record_bytes(rank, "shared", NULL) - memory_record_bytes(rank, "shared_own", NULL);
    return memory_record_bytes(rank, "process_peak", NULL) - (others > 0 ? others : 0);
}

static void print_line(void *ctx, const char *text)
{
    (void)ctx;
    printf("%s\n", text);
}

void memory_record_print(const json_t *rank)
{
    const json_t *tags = json_object_get(rank, "tags");
    struct dpt_memory_report report = {
        .allocated_all = memory_record_bytes(rank, "counted", "bytes"),
        .peak_all = memory_record_bytes(rank, "counted", "peak"),
        .reserved = memory_record_bytes(rank, "reserved", "bytes"),
        .reserved_peak = memory_record_bytes(rank, "reserved", "peak"),
        .true_peak = memory_record_true_peak(rank)};
    for (int t = 0; t < DPT_MEMORY_COUNT; t++) {
        const char *name = dpt_memory_tag_name((enum dpt_memory_tag)t);
        report.estimated[t] = memory_record_bytes(tags, name, "formula");
        report.allocated[t] = memory_record_bytes(tags, name, "bytes");
        report.peak[t] = memory_record_bytes(tags, name, "peak");
    }
    dpt_memory_report_print(&report, print_line, NULL);
}
