/* What a run tells while it trains, for the recovery bench: reads on in metrics.jsonl,
 * events.jsonl and the server's log, and sorts what they say by generation. */
#ifndef DPT_TESTS_BENCH_BENCH_RECOVER_WATCH_H
#define DPT_TESTS_BENCH_BENCH_RECOVER_WATCH_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum rec_phase {
    REC_DETECT,
    REC_ABORT,
    REC_RENDEZVOUS,
    REC_REBUILD,
    REC_RESTORE,
    REC_TOTAL,
    REC_PHASE_COUNT
};
extern const char *const rec_phase_names[REC_PHASE_COUNT]; /* as in events.jsonl */

enum { REC_GENERATIONS = 256 /* remembered */, REC_STEP_TIMES = 32, REC_LINE_BYTES = 8192 };

/* Times are seconds since 1970, 0: not yet. */
struct rec_generation {
    uint64_t number;
    double forming; /* the server's first word of it */
    bool has_event;
    double phase_ms[REC_PHASE_COUNT];
    char kind[24];
    int64_t event_steps_lost;
    double first_step;  /* when its first step was completed */
    double step_before; /* when the last step before that was */
    int world;
    int64_t steps; /* completed so far */
};

struct rec_tail {
    char path[512];
    FILE *file; /* NULL while there is none */
    char line[REC_LINE_BYTES];
    size_t bytes; /* of a line that is still being written */
};

struct rec_watch {
    struct rec_tail metrics, events, server;
    struct rec_generation generations[REC_GENERATIONS];
    uint64_t newest;         /* generation that has completed a step */
    uint64_t newest_forming; /* generation that the server has begun to form */
    int64_t step;            /* last completed */
    double step_time;
    double step_ms[REC_STEP_TIMES]; /* of the last steps within a generation */
    int64_t steps_timed;
    int64_t steps_lost;     /* sum of the events' */
    int64_t steps_repeated; /* logged again, under a number that had been logged */
};

/* `dir` is the cluster's folder. */
DPT_MUST_USE enum dpt_status rec_watch_init(struct rec_watch *w, const char *dir,
                                            struct dpt_err *err);
void rec_watch_fini(struct rec_watch *w);

/* Reads what is new. DPT_ECORRUPT when a line is no record. */
DPT_MUST_USE enum dpt_status rec_watch_poll(struct rec_watch *w, struct dpt_err *err);

/* Generation `number`, all zero if nothing was heard of it; NULL when it is too old. */
const struct rec_generation *rec_watch_generation(struct rec_watch *w, uint64_t number);

double rec_watch_median_step_ms(const struct rec_watch *w);

#endif
