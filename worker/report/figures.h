/* The figures of a traced window: of each rank and of the run. The CSV, the terminal and the pages
 * print them; docs/reports.md defines each.
 *
 * Times are in nanoseconds. Shares are in percent. A double that is not a number is not known, and
 * is printed as "-". An int64_t that is not known is REPORT_UNKNOWN. */
#ifndef DPT_WORKER_REPORT_FIGURES_H
#define DPT_WORKER_REPORT_FIGURES_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

enum {
    REPORT_UNKNOWN = -1,
    REPORT_NAME_BYTES = 128, /* longer names are cut */
    REPORT_OPS = 12,         /* longest ops of a rank */
    REPORT_SPANS_MAX = 2000, /* of a rank's timeline */
    REPORT_POINTS_MAX = 400, /* of a rank's memory curve */
    REPORT_TEXT_BYTES = 2048
};

enum report_fact { REPORT_FACT_UNKNOWN, REPORT_FACT_NO, REPORT_FACT_YES };

/* What a remedy depends on, as the heads of the traces say it (docs/tracing.md). A text that is not
 * known is "", a number 0. */
struct report_setup {
    int hosts;
    enum report_fact overlap;       /* strategy.overlap */
    enum report_fact may_compress;  /* strategy.compression: bf16 is allowed */
    enum report_fact sends_slots;   /* the gradient of each micro-batch is sent; else their sum */
    enum report_fact gathers_units; /* weights are gathered for each micro-batch */
    /* Words of the config. */
    char compression[16], activation_checkpointing[16], precision[16], device[16], data[16];
    int global_batch, micro_batch;
    int64_t memory_free; /* bytes that a rank can still allocate; the least of the ranks */
};

enum dpt_report_collective_kind {
    REPORT_ALL_REDUCE,
    REPORT_REDUCE_SCATTER,
    REPORT_ALL_GATHER,
    REPORT_BROADCAST,
    REPORT_ALL_TO_ALL,
    REPORT_SEND_RECV,
    REPORT_OTHER_COLLECTIVE,
    REPORT_COLLECTIVES
};

/* "all_reduce": the word of the CSV's columns and of the pages. */
const char *dpt_report_collective_word(enum dpt_report_collective_kind kind);

/* The collectives of one kind, of one rank. */
struct dpt_report_collective {
    int64_t calls;
    int64_t time_ns; /* sum of the durations, with the wait for late peers */
    int64_t wait_ns; /* the part in which the rank waits for late peers */
    double bytes;    /* moved: the larger of the elements given and taken, by nccl-tests' size */
    double bus_gb_s; /* nccl-tests' bus bandwidth, 1e9 bytes a second, of the time without wait */
};

/* The time from the first kernel's begin to the last kernel's end: compute + other + idle. */
struct dpt_report_breakdown {
    int64_t window_ns, compute_ns, non_compute_ns, idle_ns;
    double compute_percent, non_compute_percent, idle_percent;
    double overlap_percent;       /* of the communication that computation hides */
    double comm_overhead_percent; /* sum of communication kernels over the sum of all kernels */
    double exposed_percent;       /* of the window: communication that computation does not hide */
};

/* Parts of the traced steps on the threads of a rank, summed over the steps. */
struct dpt_report_phases {
    int64_t forward_ns, backward_ns, optimizer_ns, grad_sync_ns;
    int64_t data_wait_ns;  /* the main thread waits for a micro-batch */
    int64_t peer_wait_ns;  /* in collectives; a wait inside of several counts once */
    int64_t checkpoint_ns; /* the main thread saves */
    int64_t evaluation_ns, formation_ns;
};

struct dpt_report_point {
    int64_t at_ns; /* since the begin of the window over all ranks */
    int64_t bytes;
};

struct dpt_report_memory {
    int64_t peak, final, p50, p95;   /* bytes allocated; REPORT_UNKNOWN without memory events */
    struct dpt_report_point *points; /* in order of time; the greatest value of each part; owned */
    size_t n_points;
};

struct dpt_report_op {
    char name[REPORT_NAME_BYTES];
    int64_t calls, total_ns;
    double percent; /* of the sum of all kernels of the rank */
};

enum dpt_report_span_class {
    REPORT_SPAN_COMPUTE,
    REPORT_SPAN_COMMUNICATION,
    REPORT_SPAN_WAIT, /* for late peers */
    REPORT_SPAN_DATA,
    REPORT_SPAN_CHECKPOINT,
    REPORT_SPAN_OPTIMIZER,
    REPORT_SPAN_PHASE, /* forward, backward and other annotations */
    REPORT_SPAN_CLASSES
};

/* Spans of one lane do not overlap. Short neighbours of one class are one span, "12 ops". */
struct dpt_report_span {
    char lane[32]; /* "main", "stream 7", "communication" */
    char name[REPORT_NAME_BYTES];
    enum dpt_report_span_class class;
    int64_t begin_ns, end_ns; /* since the begin of the step, on the first rank that begins it */
};

struct dpt_report_rank {
    int rank;
    char *path; /* of its trace; owned */
    struct dpt_report_breakdown time;
    int64_t kernels_ns; /* sum of the durations of all kernels */
    struct dpt_report_collective collective[REPORT_COLLECTIVES];
    struct dpt_report_phases phases;
    struct dpt_report_memory memory;
    int64_t first_step;
    int64_t *step_ns; /* [n_steps], durations of the steps that count; owned */
    int64_t *step;    /* [n_steps], their numbers; a failure may leave one out; owned */
    size_t n_steps;
    struct dpt_report_op ops[REPORT_OPS]; /* longest total first */
    size_t n_ops;
    struct dpt_report_span *spans; /* the timeline of step `timeline_step`, lane by lane; owned */
    size_t n_spans;
    int64_t dropped_events;
};

enum dpt_report_cause {
    REPORT_COMPUTE, /* nothing else takes a share that matters */
    REPORT_COMMUNICATION,
    REPORT_STRAGGLER, /* one rank computes longer for the same work */
    REPORT_IMBALANCE, /* ranks have uneven work */
    REPORT_DATA,
    REPORT_CHECKPOINT,
    REPORT_EVALUATION,
    REPORT_CAUSES
};

/* "communication" */
const char *dpt_report_cause_word(enum dpt_report_cause cause);

/* Above this share, exposed communication is a warning. */
#define REPORT_EXPOSED_WARN_PERCENT 20.0

struct dpt_report_verdict {
    enum dpt_report_cause cause;
    int rank;                    /* the straggler, or the rank of the starved loader; else -1 */
    double share[REPORT_CAUSES]; /* percent of the mean step that each cause takes */
    /* Of the step, mean over the ranks: communication that computation does not hide, without the
     * wait for late peers. */
    double exposed_percent;
    double wait_percent;          /* the same of that wait: computation does not hide it */
    char key[64];                 /* the config key to change: "data.train" */
    char text[REPORT_TEXT_BYTES]; /* one paragraph, plain text */
    char warning[512];            /* empty, or the remedies of exposed communication */
};

/* Means over the ranks. All that a row of the user's CSV has. */
struct dpt_report_means {
    double step_ms, compute_percent, non_compute_percent, idle_percent, overlap_percent,
        comm_overhead_percent, exposed_percent, wait_ms, /* of a step, for late peers */
        data_wait_ms, checkpoint_ms,                     /* of a step */
        all_reduce_ms, collective_bytes,                 /* of a step */
        memory_peak_mib;
};

struct dpt_report {
    char name[REPORT_NAME_BYTES]; /* of a comparison: the strategy, or the name in the user's CSV */
    char strategy[64];            /* "unknown" if the traces do not say */
    char source[16];              /* "dpt", "pytorch", or "csv": of a CSV, only name and means */
    int world_size;
    int64_t generation, window; /* REPORT_UNKNOWN: not of dpt */
    int64_t clock_error_ns;     /* the largest of the ranks; REPORT_UNKNOWN: not stated */
    int64_t began_ns;           /* begin of the window, since 1970 */
    int64_t timeline_step;
    struct report_setup setup;
    struct dpt_report_rank *ranks; /* [n_ranks], by rank; owned */
    size_t n_ranks;
    struct dpt_report_means means;
    struct dpt_report_verdict verdict;
};

/* Frees the members. A zeroed report is allowed. */
void dpt_report_free(struct dpt_report *report);

#endif
