/* Follows a run for the recovery bench: reads metrics.jsonl, events.jsonl and the server's log as
 * they grow, and sorts their records by generation. */
#ifndef DPT_WORKER_BENCH_BENCH_RECOVER_WATCH_H
#define DPT_WORKER_BENCH_BENCH_RECOVER_WATCH_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum recover_phase {
    REC_DETECT,
    REC_ABORT,
    REC_RENDEZVOUS,
    REC_REBUILD,
    REC_RESTORE,
    REC_TOTAL,
    REC_PHASE_COUNT
};

enum { REC_GENERATIONS = 256 /* remembered */, REC_STEP_TIMES = 32, REC_LINE_BYTES = 8192 };

/* Times are seconds since 1970; 0: not yet. */
struct recover_generation {
    uint64_t number;
    double forming, planned, runs; /* times in the server's log: begins to form, has a plan, runs */
    bool has_event;
    bool rebuilding; /* its ranks rebuild shadows while they train */
    double phase_ms[REC_PHASE_COUNT];
    char kind[24];
    int64_t event_steps_lost;
    double first_step;  /* when its first step was completed */
    double step_before; /* when the last step before that was completed */
    int world;
    int64_t steps; /* completed so far */
};

struct recover_tail {
    char path[512];
    FILE *file; /* NULL: the file does not exist yet */
    char line[REC_LINE_BYTES];
    size_t bytes; /* of a line that is not complete yet */
};

/* Loss and gradient norm of one step, from its first log line; both 0: there is no line. A
 * difference in any weight shows in these numbers. */
struct recover_value {
    double loss, norm;
};

struct recover_watch {
    struct recover_tail metrics, events, server;
    struct recover_generation generations[REC_GENERATIONS];
    uint64_t newest;         /* newest generation that has completed a step */
    uint64_t newest_forming; /* newest generation that the server has begun to form */
    uint64_t newest_planned; /* newest generation with a plan */
    int64_t step;            /* last completed */
    double step_time;
    double step_ms[REC_STEP_TIMES]; /* of the last steps, except the first step of a generation */
    int64_t steps_timed;
    int64_t steps_lost;           /* sum over the events */
    int64_t steps_repeated;       /* log lines about steps that already had a line */
    int64_t steps_skipped;        /* steps without a line before a step with one */
    struct recover_value *values; /* [values_max] by step; owned */
    int64_t values_max;
    double healing_ms[REC_STEP_TIMES]; /* rebuild and restore phases of the last generations */
    int64_t healings;
    int64_t rebuilds; /* events that tell that all shadows are rebuilt */
};

/* Follows the files in folder `below` of the cluster's folder `dir`, and the server's log in
 * `dir`. */
DPT_MUST_USE enum dpt_status recover_watch_init(struct recover_watch *w, const char *dir,
                                                const char *below, struct dpt_err *err);
void recover_watch_fini(struct recover_watch *w);

/* Reads the new lines. DPT_ECORRUPT: a line is no record. */
DPT_MUST_USE enum dpt_status recover_watch_poll(struct recover_watch *w, struct dpt_err *err);

/* Generation `number`, all zero if it has no record yet; NULL: it is too old. */
const struct recover_generation *recover_watch_generation(struct recover_watch *w, uint64_t number);

double recover_watch_median_step_ms(const struct recover_watch *w);
/* Median of the rebuild and restore phases: from a generation's plan until its ranks are READY; 0:
 * none yet. */
double recover_watch_median_healing_ms(const struct recover_watch *w);

/* The phase of the run at `time`, by the newest generation that had begun to form by then. */
enum recover_landing { REC_IN_STEPS, REC_IN_PREPARE, REC_IN_BUILD, REC_LANDING_COUNT };
extern const char *const recover_landing_names[REC_LANDING_COUNT];
enum recover_landing recover_watch_landing(const struct recover_watch *w, double time);

/* The first step in [first, end) that both runs logged and that differs in loss or norm; -1:
 * none. */
int64_t recover_watch_differs(const struct recover_watch *w, const struct recover_watch *other,
                              int64_t first, int64_t end);

#endif
