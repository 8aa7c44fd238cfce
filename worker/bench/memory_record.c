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

/* The figures of `place`: the record itself has those of the host. `counted`: those of all tags. */
static struct dpt_memory_report report_of_place(const json_t *place, const json_t *counted)
{
    const json_t *tags = json_object_get(place, "tags");
    struct dpt_memory_use use = {.all = memory_record_bytes(counted, "bytes", NULL),
                                 .all_peak = memory_record_bytes(counted, "peak", NULL),
                                 .reserved = memory_record_bytes(place, "reserved", "bytes"),
                                 .reserved_peak = memory_record_bytes(place, "reserved", "peak")};
    int64_t formula[DPT_MEMORY_COUNT];
    for (int t = 0; t < DPT_MEMORY_COUNT; t++) {
        const char *name = dpt_memory_tag_name((enum dpt_memory_tag)t);
        formula[t] = memory_record_bytes(tags, name, "formula");
        use.tag[t] = memory_record_bytes(tags, name, "bytes");
        use.tag_peak[t] = memory_record_bytes(tags, name, "peak");
    }
    return dpt_memory_report_of(&use, formula);
}

void memory_record_print(const json_t *rank)
{
    const json_t *gpu = json_object_get(rank, "device");
    struct dpt_memory_report host = report_of_place(rank, json_object_get(rank, "counted")),
                             device = report_of_place(gpu, gpu);
    host.true_peak = memory_record_true_peak(rank);
    if (device.peak_all > 0) {
        host.place = "host";
        device.place = "GPU";
        device.workspace_apart = true;
        dpt_memory_report_print(&device, print_line, NULL);
    }
    dpt_memory_report_print(&host, print_line, NULL);
}
