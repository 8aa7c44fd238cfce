/* The figures of dpt-bench rdzv: quantiles, the table, the JSON. */
#ifndef DPT_WORKER_BENCH_BENCH_RDZV_FIGURES_H
#define DPT_WORKER_BENCH_BENCH_RDZV_FIGURES_H

#include "worker/bench/bench_rdzv.h"

#include <jansson.h>

/* Quantiles: the least of the values of which 50 % or 99 % are not larger. */
struct rdzv_times {
    double p50, p99, max;
};
/* Sorts `values`; all 0 for n = 0. */
struct rdzv_times rdzv_times_of(double *values, int n);

struct rdzv_phase {
    const char *name;
    int nodes;            /* that take part at its end */
    uint32_t world;       /* of the generation that the phase forms; 0: it forms none */
    int generations;      /* that it took; 1: no formation was repeated */
    struct rdzv_times ms; /* over the nodes: from the phase's begin until the node has got there */
    double server_cpu_ms;
    struct rdzv_counts counts;
};

struct rdzv_steady {
    double seconds, server_cpu_percent; /* percent of one core */
    struct rdzv_counts counts;
    struct rdzv_times answer_ms; /* from a message of a node to the answer that echoes it */
    int answers;                 /* of which these are the times */
};

enum rdzv_phase_index {
    RDZV_PHASE_CONNECT,
    RDZV_PHASE_FORMATION,
    RDZV_PHASE_LOSS,
    RDZV_PHASE_JOIN,
    RDZV_PHASE_RACK,
    RDZV_PHASES
};
const char *rdzv_phase_name(enum rdzv_phase_index phase);

struct rdzv_figures {
    struct rdzv_setup setup;
    struct rdzv_phase phases[RDZV_PHASES];
    struct rdzv_steady steady;
    int64_t peak_bytes, resident_bytes; /* memory of the server: at the end, and while steady */
    int64_t base_bytes;                 /* ... before a node connects */
};

void rdzv_figures_print_head(const struct rdzv_setup *setup);
/* The names of the columns of phases. */
void rdzv_figures_print_columns(void);
void rdzv_figures_print_phase(const struct rdzv_phase *phase);
/* The steady state and the memory. */
void rdzv_figures_print_rest(const struct rdzv_figures *figures);
/* Of a model's value, in percent of the measured value; 100 if only that is 0. */
double rdzv_error_percent(double model, double measured);
/* Errors of a model in percent, in the columns of phases. Times are left out. */
void rdzv_figures_print_errors(const struct rdzv_figures *model,
                               const struct rdzv_figures *measured);
/* Owned by the caller. */
json_t *rdzv_figures_json(const struct rdzv_figures *figures);

#endif
