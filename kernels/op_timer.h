/* The timer of a stream (op_times.h), for kernels/device.c. */
#ifndef DPT_KERNELS_OP_TIMER_H
#define DPT_KERNELS_OP_TIMER_H

#include "kernels/device_impl.h"

extern const struct dpt_ops dpt_timed_ops;

/* For a new stream; nothing is allocated later. */
DPT_MUST_USE enum dpt_status dpt_op_timer_create(struct dpt_stream *stream, struct dpt_err *err);
/* Before the stream is destroyed. Accepts a stream without one. */
void dpt_op_timer_destroy(struct dpt_stream *stream);
/* While a stream prepares nothing counts, nor does the time that goes by. */
void dpt_op_timer_pause(struct dpt_stream *stream, bool paused);
/* What was posted failed: its marks tell nothing. */
void dpt_op_timer_drop(struct dpt_stream *stream);
/* All that was posted is done: reads the marks. */
void dpt_op_timer_drain(struct dpt_stream *stream);

#endif
