/* The table and the line of a rank's memory (memory_report.h). */
#include "worker/strategy/memory/memory_report.h"

#include "base/number.h"

#include <stdio.h>

enum { LINE_BYTES = 128 };

struct printer {
    void (*line)(void *ctx, const char *text);
    void *ctx;
};

static void print_memory_row(const struct printer *p, const char *name, int64_t estimated,
                             int64_t allocated, int64_t peak)
{
    char text[LINE_BYTES], difference[24] = "";
    if (estimated > 0)
        (void)snprintf(difference, sizeof difference, "%+.1f %%",
                       100 * ((double)allocated / (double)estimated - 1));
    (void)snprintf(text, sizeof text, "%-12s %12.1f %12.1f %12s %12.1f", name, dpt_mib(estimated),
                   dpt_mib(allocated), difference, dpt_mib(peak));
    p->line(p->ctx, text);
}

/* A row without an estimate. `now` < 0: not known. */
static void print_measured(const struct printer *p, const char *name, int64_t now, int64_t peak)
{
    char text[LINE_BYTES], bytes[24] = "";
    if (now >= 0)
        (void)snprintf(bytes, sizeof bytes, "%.1f", dpt_mib(now));
    (void)snprintf(text, sizeof text, "%-12s %12s %12s %12s %12.1f", name, "", bytes, "",
                   dpt_mib(peak));
    p->line(p->ctx, text);
}

struct dpt_memory_report dpt_memory_report_of(const struct dpt_memory_use *use,
                                              const int64_t estimated[DPT_MEMORY_COUNT])
{
    struct dpt_memory_report report = {.allocated_all = use->all,
                                       .peak_all = use->all_peak,
                                       .reserved = use->reserved,
                                       .reserved_peak = use->reserved_peak};
    for (int i = 0; i < DPT_MEMORY_COUNT; i++) {
        report.estimated[i] = estimated[i];
        report.allocated[i] = use->tag[i];
        report.peak[i] = use->tag_peak[i];
    }
    return report;
}

static void print_memory_head(const struct printer *p, const char *place)
{
    char head[LINE_BYTES];
    (void)snprintf(head, sizeof head, "Allocated vs Estimated, %s%sMB (2^20 bytes)",
                   place ? place : "", place ? ", " : "");
    p->line(p->ctx, head);
    (void)snprintf(head, sizeof head, "%-12s %12s %12s %12s %12s", "", "estimated", "allocated",
                   "difference", "peak");
    p->line(p->ctx, head);
}

void dpt_memory_report_print(const struct dpt_memory_report *report,
                             void (*line)(void *ctx, const char *text), void *ctx)
{
    int64_t estimated[DPT_MEMORY_CATEGORIES], allocated[DPT_MEMORY_CATEGORIES],
        peak[DPT_MEMORY_CATEGORIES], estimated_all = 0;
    const struct printer p = {line, ctx};
    const int64_t workspace = report->allocated[DPT_MEMORY_WORKSPACE],
                  workspace_peak = report->peak[DPT_MEMORY_WORKSPACE];
    dpt_memory_by_category(report->estimated, estimated);
    dpt_memory_by_category(report->allocated, allocated);
    dpt_memory_by_category(report->peak, peak);
    if (report->workspace_apart) {
        allocated[DPT_MEMORY_OF_ACTIVATIONS] -= workspace;
        peak[DPT_MEMORY_OF_ACTIVATIONS] -= workspace_peak;
    }
    print_memory_head(&p, report->place);
    for (int c = 0; c < DPT_MEMORY_CATEGORIES; c++) {
        print_memory_row(&p, dpt_memory_category_name((enum dpt_memory_category)c), estimated[c],
                         allocated[c], peak[c]);
        estimated_all += estimated[c];
    }
    if (report->workspace_apart)
        print_measured(&p, "workspace", workspace, workspace_peak);
    print_memory_row(&p, "all", estimated_all, report->allocated_all, report->peak_all);
    print_measured(&p, "reserved", report->reserved, report->reserved_peak);
    if (report->true_peak > 0)
        print_measured(&p, "true peak", -1, report->true_peak);
}

void dpt_memory_line(int rank, const struct dpt_memory_use *use, char ret[DPT_MEMORY_LINE_BYTES])
{
    int64_t now[DPT_MEMORY_CATEGORIES];
    dpt_memory_by_category(use->tag, now);
    (void)snprintf(ret, DPT_MEMORY_LINE_BYTES,
                   "[Rank %d] model=%.1f grad=%.1f optim=%.1f alloc=%.1f reserved=%.1f "
                   "peak_alloc=%.1f peak_reserved=%.1f",
                   rank, dpt_mib(now[DPT_MEMORY_OF_MODEL]), dpt_mib(now[DPT_MEMORY_OF_GRAD]),
                   dpt_mib(now[DPT_MEMORY_OF_OPTIM]), dpt_mib(use->all), dpt_mib(use->reserved),
                   dpt_mib(use->all_peak), dpt_mib(use->reserved_peak));
}
