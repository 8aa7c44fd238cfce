/* The recovery bench's figures: what a trial gives, the table, the JSON. */
#ifndef DPT_WORKER_BENCH_BENCH_RECOVER_REPORT_H
#define DPT_WORKER_BENCH_BENCH_RECOVER_REPORT_H

#include "worker/bench/bench_recover_cluster.h"
#include "worker/bench/bench_recover_watch.h"

#include <jansson.h>

enum rec_fault {
    REC_KILL_RANK, /* kill -9 of a rank process */
    REC_KILL_NODE, /* kill -9 of an agent and its ranks */
    REC_DRAIN,     /* SIGTERM of an agent */
    REC_JOIN,      /* one more worker is started */
    REC_STOP,      /* SIGSTOP of an agent and its ranks */
    REC_FAULT_COUNT
};
extern const char *const rec_fault_names[REC_FAULT_COUNT];

/* The moment of a fault. */
enum rec_aim {
    REC_AIM_STEP,
    REC_AIM_APPLY,
    REC_AIM_COMMIT, /* when some ranks have received the commit of the rank that dies */
    REC_AIM_PREPARE,
    REC_AIM_BUILD,
    REC_AIM_COUNT
};
extern const char *const rec_aim_names[REC_AIM_COUNT];

struct rec_trial {
    int strategy; /* index into the totals' */
    enum rec_fault fault;
    bool doubled;                 /* a second fault came when the next generation was forming */
    enum rec_fault second;        /* kill rank or kill node */
    enum rec_aim aim, aim_second; /* the first: up to commit; the second: prepare or build */
    enum rec_landing landing;     /* the phase of the run at the last fault */
    bool measured;
    struct rec_generation generation; /* that completed the next step; its event's phases */
    double noticed_ms; /* fault to the server's first word of a new generation; NAN when doubled */
    double pause_ms;   /* last step before to first step of the generation */
    double resumed_ms; /* the (second) fault to the first step of the generation */
    double outage_ms;  /* the first fault to that step */
    double step_ms;    /* median before the fault */
    double back_ms;    /* first fault until all nodes train again; NAN: they never did */
    int64_t steps_lost;
    int64_t first_step, end_step; /* completed in the trial */
    bool compared, differs;       /* with the undisturbed run, step by step */
    bool survivors_kept;          /* their agents and ranks are the processes that they were */
    double load;                  /* of the machine, over the last minute */
};

/* Of one strategy's run. */
struct rec_outcome {
    const struct rec_strategy *strategy;
    int nodes;
    uint64_t generations;
    int64_t steps, steps_lost, steps_repeated, steps_skipped;
    int64_t outcomes_told; /* steps applied with an outcome received from another rank */
    int64_t rebuilds;      /* of shadows, beside the steps */
    double step_ms;
    char hash[REC_HASH_BYTES], calm_hash[REC_HASH_BYTES]; /* "": the run did not come so far */
    int64_t calm_steps; /* equal in loss and norm, of those that the run logged */
};

struct rec_totals {
    struct rec_outcome outcomes[REC_STRATEGIES_MAX];
    int n_outcomes;
    int n_embd, trials_wanted, trials, hangs, survivors_changed, hash_differences;
    double timeout_s, rebuild_mib, load_before, load_after, seconds;
    bool one_host;
    uint64_t seed;
    int64_t steps_lost, steps_repeated;
    bool clean; /* everything ended as told and nothing was left */
};

/* Adds up what the trials and outcomes say. */
void rec_report_sum(const struct rec_trial *trials, struct rec_totals *totals);
bool rec_report_is_good(const struct rec_totals *totals);
void rec_report_print(const struct rec_trial *trials, const struct rec_totals *totals);
/* Returns a new reference. */
json_t *rec_report_json(const struct rec_trial *trials, const struct rec_totals *totals);

#endif
