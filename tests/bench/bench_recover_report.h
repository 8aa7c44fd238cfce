/* The recovery bench's figures: what a trial gives, the table, the JSON. */
#ifndef DPT_TESTS_BENCH_BENCH_RECOVER_REPORT_H
#define DPT_TESTS_BENCH_BENCH_RECOVER_REPORT_H

#include "tests/bench/bench_recover_watch.h"

#include <jansson.h>

enum rec_fault {
    REC_KILL_RANK,   /* kill -9 of a rank process */
    REC_KILL_WORKER, /* kill -9 of an agent */
    REC_DRAIN,       /* SIGTERM of an agent */
    REC_JOIN,        /* one more worker is started */
    REC_STOP,        /* SIGSTOP of an agent and its rank */
    REC_FAULT_COUNT
};
extern const char *const rec_fault_names[REC_FAULT_COUNT];

struct rec_trial {
    enum rec_fault fault;
    bool doubled;          /* a second fault came when the generation after the first was forming */
    enum rec_fault second; /* kill rank or kill worker */
    bool measured;
    struct rec_generation generation; /* that completed the next step; its event's phases */
    double noticed_ms; /* fault to the server's first word of a new generation; NAN when doubled */
    double pause_ms;   /* last step before to first step of the generation */
    double resumed_ms; /* the (second) fault to the first step of the generation */
    double step_ms;    /* median before the fault */
    double back_ms;    /* first fault until all nodes train again; NAN: they never did */
    int64_t steps_lost;
    bool survivors_kept; /* their agents and ranks are the processes that they were */
    double load;         /* of the machine, over the last minute */
};

struct rec_totals {
    int nodes, n_embd, trials_wanted, trials, hangs, survivors_changed;
    double timeout_s, load_before, load_after;
    uint64_t seed, generations;
    int64_t steps, steps_lost, steps_repeated;
    bool clean; /* everything ended as told and nothing was left */
};

void rec_report_print(const struct rec_trial *trials, const struct rec_totals *totals);
/* Returns a new reference. */
json_t *rec_report_json(const struct rec_trial *trials, const struct rec_totals *totals);

#endif
