/* A config of the user's that a bench measures: read once, and then run with some keys changed. */
#ifndef DPT_WORKER_BENCH_USER_CONFIG_H
#define DPT_WORKER_BENCH_USER_CONFIG_H

#include "base/config.h"
#include "worker/bench/programs.h"

#include <stdint.h>

enum { USER_CONFIG_SETS_MAX = BENCH_SETS_MAX - 1, USER_CONFIG_SET_BYTES = 64 };

struct user_config {
    const char *path;
    struct dpt_config config;              /* with all changes */
    const char *set[USER_CONFIG_SETS_MAX]; /* the changes as KEY=VALUE, to measured_run */
    int n_sets;
    char text[USER_CONFIG_SETS_MAX][USER_CONFIG_SET_BYTES];
};

/* The changes that a bench makes. sets: the user's own, borrowed for the life of the result. */
struct user_config_changes {
    const char *const *sets;
    int n_sets; /* at most DPT_BENCH_SETS_MAX */
    int nodes;  /* cluster.nnodes; 0: as the file has it */
    int64_t steps;
    int micro_batch; /* 0: as the file has it */
};

/* Reads the file `path` and makes the changes. Also switches off evaluations, checkpoints, traces
 * and event files, logs each step, and shortens a warm-up of the learning rate that is longer than
 * the run: the bench measures steps. `ret` is not moved afterwards. DPT_ECONFIG: the config is
 * refused. With model.init_from only its values are checked: the workers check their combinations.
 */
DPT_MUST_USE enum dpt_status user_config_load(const char *path,
                                              const struct user_config_changes *changes,
                                              struct user_config *ret, struct dpt_err *err);

#endif
