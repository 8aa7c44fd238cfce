/* The records of a rank's GPU in its traces (kernels/device_activity.h). Without them a trace has
 * the host's threads only; the log says so once. Main thread. */
#ifndef DPT_WORKER_TRAIN_TRACE_GPU_RECORDS_H
#define DPT_WORKER_TRAIN_TRACE_GPU_RECORDS_H

#include "kernels/device_activity.h"
#include "worker/train/state/rooms.h"

struct rank_gpu_records {
    struct dpt_activity *activity; /* NULL: the GPU is not recorded */
    bool on;                       /* it is recorded now */
    struct dpt_device_records records;
};

/* Called before the rank opens its device. No effect on a rank without one. */
void rank_open_gpu_records(struct dpt_rank *r);
void rank_close_gpu_records(struct dpt_rank *r);

/* Waits for the GPU and begins to record it; if it is recorded already, forgets the records so
 * far. The units' graphs are captured again: CUPTI records the kernels of a graph that was made
 * while it recorded. */
void rank_begin_gpu_records(struct dpt_rank *r);
/* Waits for the GPU and ends the recording. */
void rank_end_gpu_records(struct dpt_rank *r);
/* The records of the window that has ended last; NULL: the GPU is not recorded. Valid until the
 * next window begins. */
const struct dpt_device_records *rank_gpu_records(const struct dpt_rank *r);

#endif
