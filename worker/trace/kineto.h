/* The events of a window in the form of PyTorch's profiler (Kineto), which Holistic Trace Analysis
 * reads. Pure: the text goes to a function of the caller.
 *
 * Tools expect a GPU. A rank that computes on the CPU has this form:
 *   - An op of the main thread is three events of the same time: a cpu_op on the thread, its launch
 *     (cuda_runtime), and a kernel on stream 7.
 *   - An op of the communication thread is a cpu_op: it is a part of a collective.
 *   - A collective is a launch on its thread and a kernel of NCCL's name on a stream from 20 on.
 *     Collectives that are under way at the same time are on different streams. The kernel's time
 *     contains the wait for peers that come late, as NCCL's kernels do.
 *
 * With the records of a GPU (kineto_device.h) nothing is shown as another thing: kernels, copies
 * and launches are the GPU's, ops are cpu_ops, and a collective is an annotation on its thread. An
 * NCCL kernel has the arguments of its collective. */
#ifndef DPT_WORKER_TRACE_KINETO_H
#define DPT_WORKER_TRACE_KINETO_H

#include "kernels/device_activity.h"
#include "worker/trace/recorder.h"

enum { DPT_KINETO_COMPUTE_STREAM = 7, DPT_KINETO_COMM_STREAM = 20 };

struct dpt_kineto_track {
    const char *name; /* of the thread */
    struct dpt_trace_events events;
};

/* The clock of the events. */
struct dpt_kineto_clock {
    int64_t offset_ns; /* rank 0's clock minus this one */
    int64_t error_ns;  /* bound of the error of offset_ns; 0: rank 0 reads the same clock */
    int64_t epoch_ns;  /* time since 1970 minus the time of rank 0's clock */
    int64_t age_ns;    /* time since it was measured */
};

/* What a remedy for lost time depends on: dpt-trace advises nothing that the run has already.
 * Texts are words of the config. */
struct dpt_kineto_setup {
    int hosts;
    bool overlap;            /* strategy.overlap: gradients are sent during the backward pass */
    const char *compression; /* strategy.compression */
    bool may_compress;       /* strategy.compression: bf16 is allowed beside the other keys */
    bool sends_slots;        /* each micro-batch's gradient is sent; else their sum, once a step */
    bool gathers_units;      /* weights are gathered for each micro-batch; else once a step, or
                                never */
    const char *activation_checkpointing, *precision; /* of train */
    const char *device, *data;                        /* cluster.device, data.kind */
    int global_batch, micro_batch;                    /* of train */
    int64_t memory_free; /* bytes that this rank can still allocate; 0: not known */
};

/* Texts have no quotes and backslashes. */
struct dpt_kineto_trace {
    const char *strategy;
    int rank, world_size;
    struct dpt_kineto_setup setup;
    int64_t process; /* the system's number of the process */
    uint64_t generation;
    uint64_t generation_id; /* equal on its ranks, and in no generation of another run */
    int64_t window;
    struct dpt_kineto_clock clock;
    /* The time that `ts` 0 stands for, since 1970; and that time on the clock of the events. */
    int64_t base_ns, base_event_ns;
    const struct dpt_kineto_track *tracks;   /* [DPT_TRACE_TRACKS] */
    const struct dpt_device_records *device; /* NULL: the CPU is shown as a device */
};

/* Takes the next bytes of the text. */
struct dpt_kineto_sink {
    enum dpt_status (*write)(void *ctx, const char *text, size_t bytes, struct dpt_err *err);
    void *ctx;
};

/* DPT_ENOMEM, or an error of the sink, after which it is not called again. */
DPT_MUST_USE enum dpt_status dpt_kineto_print(const struct dpt_kineto_trace *trace,
                                              const struct dpt_kineto_sink *sink,
                                              struct dpt_err *err);

/* The times of a trace, by trace->clock: all traces have a base that is a multiple of 90 days, as
 * Kineto's do, so that `ts` of the ranks of a generation can be compared, but for the errors of
 * their clocks. event_ns: a time of the window on the clock of the events. Returns that time since
 * 1970. */
int64_t dpt_kineto_set_base(struct dpt_kineto_trace *trace, int64_t event_ns);

#endif
