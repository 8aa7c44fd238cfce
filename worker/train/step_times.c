/* The times of this rank's newest steps: kept in memory, and written at the end of the run, so that
 * a reader has the waits of every rank of a node, not only those of the log writer. */
#include "worker/train/process.h"

#include "worker/train/device/rank_device.h"
#include "worker/train/log/rank_log.h"

void rank_note_times(struct dpt_rank *r, double step_ms, double wait_ms)
{
    struct rank_loop *loop = r->loop;
    loop->times[loop->steps_made++ % STEP_RECORDS_COUNT] =
        (struct rank_step_times){r->state.step, step_ms, wait_ms};
}

static json_t *times_json(const struct dpt_rank *r)
{
    const struct rank_loop *loop = r->loop;
    json_t *step = json_array(), *step_ms = json_array(), *wait_ms = json_array();
    const int64_t kept = STEP_RECORDS_COUNT;
    for (int64_t i = loop->steps_made > kept ? loop->steps_made - kept : 0; i < loop->steps_made;
         i++) {
        const struct rank_step_times *t = &loop->times[i % kept];
        json_array_append_new(step, json_integer((json_int_t)t->step));
        json_array_append_new(step_ms, dpt_run_file_real(t->step_ms));
        json_array_append_new(wait_ms, dpt_run_file_real(t->wait_ms));
    }
    return json_pack("{s:s, s:i, s:i, s:i, s:o, s:o, s:o}", "node", r->options->start->node,
                     "local_rank", r->options->start->local_rank, "rank", r->gen.rank, "world_size",
                     r->gen.world_size, "step", step, "step_ms", step_ms, "wait_ms", wait_ms);
}

void rank_write_times(struct dpt_rank *r)
{
    /* A finished run that is started again makes no step, and the old record stays. */
    if (r->gen.begun && r->loop->steps_made > 0 && r->config->log.dir[0] &&
        rank_may_record(r, "the times of this rank's steps are"))
        rank_write_record(r, "steps", times_json(r));
}
