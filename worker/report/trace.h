/* A trace file in memory: the events of one rank in one window, in the form of PyTorch's profiler
 * (Kineto). */
#ifndef DPT_WORKER_REPORT_TRACE_H
#define DPT_WORKER_REPORT_TRACE_H

#include "worker/report/figures.h"
#include "worker/report/names.h"

#include <stdbool.h>

enum report_category {
    REPORT_CPU_OP,
    REPORT_ANNOTATION,
    REPORT_KERNEL, /* an event of a device's stream: kernel, copy, memset */
    REPORT_OTHER   /* launches and others */
};

/* Holistic Trace Analysis tells kernels apart by these classes. */
enum report_kernel_class { REPORT_COMPUTES, REPORT_COMMUNICATES, REPORT_MOVES, REPORT_NEITHER };

struct report_event {
    int64_t begin_ns, end_ns; /* since 1970 if the trace has a base */
    int64_t correlation;      /* of a kernel and its launch; -1: none */
    uint32_t name;            /* of trace->names */
    int32_t lane;             /* of trace->lanes */
    int32_t stream;           /* -1: on the host */
    int32_t detail;           /* of trace->details; -1: none */
    enum report_category category;
    enum report_kernel_class kernel;
};

/* The arguments that figures use. */
struct report_detail {
    enum dpt_report_collective_kind collective;
    double bytes;   /* of a collective, as nccl-tests counts; NaN: not known */
    int group_size; /* of a collective; 0: not known */
    double work;    /* of a unit or op: positions of its batch, or elements of its input */
    int peer;       /* that a wait is for; REPORT_UNKNOWN: not said */
};

struct report_lane {
    int64_t process, thread;
    char name[64]; /* "" if the trace has none */
};

struct report_memory_event {
    int64_t at_ns, allocated_bytes;
    bool is_device;
};

struct report_head {
    int rank, world_size; /* REPORT_UNKNOWN: not in the file */
    struct report_setup setup;
    char strategy[64]; /* "" */
    bool is_dpt;
    /* Equal on all ranks of a generation, and in no generation of another run; "": not in the file
     * (of another program, or an older file of dpt). */
    char generation_id[40];
    int64_t generation, window, clock_error_ns; /* REPORT_UNKNOWN */
    int64_t dropped_events, base_ns;
};

struct report_trace {
    char *path; /* owned */
    struct report_head head;
    struct report_names names;
    struct report_event *events; /* [n], in the order of the file; owned */
    size_t n, events_room;
    int64_t sum_ns; /* of the durations of the events */
    struct report_detail *details;
    size_t n_details, details_room;
    struct report_lane *lanes;
    size_t n_lanes, lanes_room;
    struct report_memory_event *memory;
    size_t n_memory, memory_room;
};

/* Reads the head, as far as it stands before the events. For errors see report_text_read;
 * DPT_EPROTO also for a head that is not JSON. */
DPT_MUST_USE enum dpt_status report_head_read(const char *path, struct report_head *ret,
                                              struct dpt_err *err);

/* Reads the file. Memory: about 60 bytes an event. The caller frees *trace, also after a failure.
 * Different traces may be read by different threads. DPT_EPROTO: also for a file without events. */
DPT_MUST_USE enum dpt_status report_trace_read(const char *path, struct report_trace *trace,
                                               struct dpt_err *err);
void report_trace_free(struct report_trace *trace);

const char *report_event_name(const struct report_trace *trace, const struct report_event *event);

#endif
