/* One run of the real programs for a bench: a server and a worker for each node train until the
 * config's last step. The results come from the files that the nodes wrote. */
#ifndef DPT_WORKER_BENCH_MEASURED_RUN_H
#define DPT_WORKER_BENCH_MEASURED_RUN_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    MEASURED_WARMUP_MAX = 64,
    MEASURED_STEPS_MAX = 1000,
    MEASURED_LOSSES_MAX = MEASURED_WARMUP_MAX + MEASURED_STEPS_MAX,
    MEASURED_HASH_BYTES = 64
};

struct measured_run {
    const char *dir;  /* folder for the run's files: created, and removed after success */
    const char *text; /* the config as YAML; NULL: the file `config` */
    const char *config;
    const char *const *sets; /* [n_sets] KEY=VALUE, overrides of the config */
    int n_sets;
    int nodes, hosts; /* node i is on host i hosts / nodes */
    /* The config's train.steps is warmup + steps, and its train.log_every is 1. */
    int warmup, steps;
    int64_t timeout_ms;
};

/* One rank of each node writes a log; every rank writes records. */
struct measured {
    int n; /* measured steps */
    double step_ms[MEASURED_STEPS_MAX];
    /* The main thread of the rank that comes last waits for transfers only. So the least wait of
     * the ranks in a step is exposed communication. The mean over the ranks of their waits beyond
     * it is the wait for late ranks. */
    double exposed_ms[MEASURED_STEPS_MAX], late_ms[MEASURED_STEPS_MAX];
    double wait_share; /* of a step, mean over the ranks */
    int n_losses;
    double losses[MEASURED_LOSSES_MAX]; /* of all steps, warm-up included */
    /* Of a step, the median over the steps; of the node whose logged rank sends most. */
    int64_t sent_bytes;
    int64_t sends_bytes;  /* of the same rank, by its strategy's plan */
    int64_t held_bytes;   /* peak, by the account of the rank that holds most */
    int64_t holds_bytes;  /* of the same rank, by the formula */
    int64_t peak_bytes;   /* largest peak of a rank's process */
    int64_t own_bytes;    /* the same, without memory of other ranks */
    int64_t device_bytes; /* largest peak of a rank's memory on its GPU; 0: there is no GPU */
    int world_size;
    double loss; /* at the end */
    char hash[MEASURED_HASH_BYTES];
};

/* Blocks until all programs have ended. Errors of bench_cluster_run; DPT_ENOENT, DPT_EPROTO: a file
 * is missing or lacks figures; DPT_ECORRUPT: ranks end with different weights. After an error
 * prints the ends of the programs' output to standard error. */
DPT_MUST_USE enum dpt_status measured_run(const struct measured_run *run, struct measured *ret,
                                          struct dpt_err *err);

/* Keeps one hash for all runs of a config: that of the first run, and "" from the first run on that
 * ends with other weights than the runs before it. `first`: `hash` is not set yet. */
void measured_keep_hash(const struct measured *run, bool first, char hash[MEASURED_HASH_BYTES]);

#endif
