/* Aligns the clocks of traces when a generation forms (worker/comm/clock_offset.h). */
#include "worker/train/formation/formation.h"

#include "base/clock.h"
#include "worker/comm/clock_offset.h"
#include "worker/trace/span.h"
#include "worker/train/trace/rank_trace.h"

static int64_t read_clock(void *ctx)
{
    (void)ctx;
    return dpt_now_ns();
}

static bool has_one_host(const struct generation *g)
{
    for (int i = 1; i < g->world_size; i++)
        if (g->host_of_rank[i] != g->host_of_rank[0])
            return false;
    return true;
}

struct alignment {
    struct dpt_clock_spec spec;
    struct dpt_clock_offset offset;
};

static enum dpt_status job_align(struct dpt_comm_thread *thread, void *ctx, struct dpt_err *err)
{
    struct alignment *a = ctx;
    return dpt_comm_clock_offset(dpt_comm_thread_comm(thread), &a->spec, &a->offset, err);
}

enum dpt_status rank_align_clocks(struct dpt_rank *r, struct dpt_err *err)
{
    const int64_t epoch_ns = dpt_wall_ns() - dpt_now_ns(), began_ns = dpt_trace_begin();
    struct alignment a = {
        .spec = {.wanted = r->trace->recorder != NULL, .epoch_ns = epoch_ns, .now_ns = read_clock},
        .offset = {.epoch_ns = epoch_ns}};
    /* All ranks have the same plan, so all decide alike. */
    if (r->gen.world_size > 1 && !has_one_host(&r->gen)) {
        a.spec.clock = dpt_clock_identity();
        DPT_TRY(dpt_comm_thread_run(r->comm_thread, job_align, &a, err));
        dpt_trace_end_named(began_ns, "align clocks");
    }
    rank_trace_set_clock(r, &(struct dpt_kineto_clock){.offset_ns = a.offset.offset_ns,
                                                       .error_ns = a.offset.error_ns,
                                                       .epoch_ns = a.offset.epoch_ns});
    return DPT_OK;
}
