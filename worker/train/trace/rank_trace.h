/* The traces of a rank (config trace): which steps are recorded, and the file of each window. A
 * trace that cannot be written never ends the training. Main thread. */
#ifndef DPT_WORKER_TRAIN_TRACE_RANK_TRACE_H
#define DPT_WORKER_TRAIN_TRACE_RANK_TRACE_H

#include "worker/trace/kineto.h"
#include "worker/trace/window.h"
#include "worker/train/state/rooms.h"
#include "worker/train/trace/gpu_records.h"

struct rank_trace {
    struct dpt_trace_recorder *recorder; /* NULL: nothing is traced */
    struct rank_gpu_records gpu;
    struct dpt_kineto_clock clock;
    int64_t clock_ns;           /* when `clock` was set */
    bool failed;                /* a file could not be written; no further steps are recorded */
    enum dpt_trace_phase phase; /* of the present step: IDLE, WARMUP or RECORD */
    int64_t window;             /* of `phase` */
    int64_t first_step;         /* the first recorded step of the window */
    /* In the generation of the present step. */
    int rank, world_size, hosts, ranks_of_host;
    uint64_t generation, generation_id;
    int64_t step, step_began_ns; /* the present step */
};

/* Called before the threads of the rank start. Attaches the calling thread to the recorder.
 * rank_close_trace: after these threads have ended. */
DPT_MUST_USE enum dpt_status rank_open_trace(struct dpt_rank *r, struct dpt_err *err);
void rank_close_trace(struct dpt_rank *r);

/* A generation forms: the clock of the events that are written from now on, also of those that are
 * recorded already. */
void rank_trace_set_clock(struct dpt_rank *r, const struct dpt_kineto_clock *clock);

/* Before and after step r->state.step with its evaluation and its save. A step that was interrupted
 * has no end and begins again. rank_trace_end_step writes the file after the last step of a window,
 * and returns whether it did. */
void rank_trace_begin_step(struct dpt_rank *r);
bool rank_trace_end_step(struct dpt_rank *r);
/* After the last step of this rank: at the end of the run, when this node leaves, before the run
 * ends because it has diverged. Writes the file of a window that has begun. */
void rank_trace_end_run(struct dpt_rank *r);

/* trace_setup.c. The facts that a trace of the present steps states. */
struct dpt_kineto_setup rank_trace_setup(const struct dpt_rank *r);

#endif
