/* The recovery bench's figures: the results of a trial, the table, the JSON. */
#ifndef DPT_WORKER_BENCH_BENCH_RECOVER_REPORT_H
#define DPT_WORKER_BENCH_BENCH_RECOVER_REPORT_H

#include "worker/bench/bench_recover_cluster.h"
#include "worker/bench/bench_recover_watch.h"

#include <jansson.h>

enum recover_fault {
    REC_KILL_RANK, /* kill -9 of a rank process */
    REC_KILL_NODE, /* kill -9 of an agent and its ranks */
    REC_DRAIN,     /* SIGTERM of an agent */
    REC_JOIN,      /* one more worker is started */
    REC_STOP,      /* SIGSTOP of an agent and its ranks */
    REC_FAULT_COUNT
};
extern const char *const recover_fault_names[REC_FAULT_COUNT];

/* The moment of a fault. */
enum recover_aim {
    REC_AIM_STEP,
    REC_AIM_APPLY,
    REC_AIM_COMMIT, /* when some ranks have received the commit of the rank that dies */
    REC_AIM_PREPARE,
    REC_AIM_BUILD,
    REC_AIM_COUNT
};
extern const char *const recover_aim_names[REC_AIM_COUNT];

struct recover_trial {
    int strategy; /* index into the totals' outcomes */
    enum recover_fault fault;
    bool doubled;              /* a second fault came while the next generation formed */
    enum recover_fault second; /* kill rank or kill node */
    /* The aim of the first fault is step, apply or commit; of the second, prepare or build. */
    enum recover_aim aim, aim_second;
    enum recover_landing landing; /* the phase of the run at the last fault */
    bool measured;
    struct recover_generation
        generation;    /* completed the next step; with the phases of its event */
    double noticed_ms; /* fault to the server's line "forming generation"; NAN when doubled */
    double pause_ms;   /* last step before the generation to its first step */
    double resumed_ms; /* last fault to the first step of the generation */
    double outage_ms;  /* first fault to the same step */
    double step_ms;    /* median before the fault */
    double back_ms;    /* first fault until all nodes train again; NAN: they do not */
    int64_t steps_lost;
    int64_t first_step, end_step; /* completed in the trial */
    /* Compared with the run without faults step by step; the first difference is in this trial. */
    bool compared, differs;
    bool survivors_kept; /* agents and ranks without a fault are the same processes */
    double load;         /* load average of the machine over the minute before */
};

/* The results of one strategy's run. */
struct recover_outcome {
    const struct recover_strategy *strategy;
    int nodes;
    uint64_t generations;
    int64_t steps, steps_lost, steps_repeated, steps_skipped;
    int64_t outcomes_told; /* steps applied with an outcome received from another rank */
    int64_t rebuilds;      /* shadows that were rebuilt while the run trained */
    double step_ms;
    /* The weights hash of the run's checkpoint, and of the run without faults; "": not reached. */
    char hash[REC_HASH_BYTES], calm_hash[REC_HASH_BYTES];
    /* Steps before the first difference of loss or norm. A step that the run did not log counts as
     * equal. */
    int64_t calm_steps;
};

struct recover_totals {
    struct recover_outcome outcomes[REC_STRATEGIES_MAX];
    int n_outcomes;
    int n_embd, trials_wanted, trials, hangs, survivors_changed, hash_differences;
    double timeout_s, rebuild_mib, load_before, load_after, seconds;
    bool one_host;
    uint64_t seed;
    int64_t steps_lost, steps_repeated;
    bool clean; /* no error: every program ended as expected, and none was left */
};

/* Adds up the trials and the outcomes. */
void recover_report_sum(const struct recover_trial *trials, struct recover_totals *totals);
bool recover_report_is_good(const struct recover_totals *totals);
void recover_report_print(const struct recover_trial *trials, const struct recover_totals *totals);
/* Returns a new reference. */
json_t *recover_report_json(const struct recover_trial *trials,
                            const struct recover_totals *totals);

#endif
