/* Time, price and goodput of a planned run. Pure. */
#ifndef DPT_WORKER_PLANNER_ESTIMATE_H
#define DPT_WORKER_PLANNER_ESTIMATE_H

#include "base/err.h"
#include "worker/planner/fit.h"

/* 0: not given. */
struct dpt_machines {
    struct dpt_world_shape shape;
    double memory;       /* bytes of a device */
    double flops, mfu;   /* peak FLOP/s of a device, and the share that training reaches */
    double tokens_per_s; /* measured, of all ranks */
    double link;         /* bytes per second between a machine and the others */
    double price;        /* of a machine and hour */
    double mtbf_h;       /* hours between two failures of a machine */
    double save_s;       /* a checkpoint, which stops training */
    double save_rate;    /* bytes per second of all machines together */
    double interval_s;   /* training between two checkpoints */
    double restart_s;    /* from a failure to the first step of a restarted job */
    double recovery_s;   /* from a failure to the next step of dpt */
};

#define DPT_ESTIMATE_MFU       0.4
#define DPT_ESTIMATE_RESTART_S 300.0

/* A run with failures. */
struct dpt_outcome {
    double goodput, days, price;
};

struct dpt_estimate {
    bool has_time, has_failures; /* without: the members below are 0 */
    bool has_copies;             /* another machine exists: `copies` is meant */
    double tokens, flops_per_token, tokens_per_s, step_s;
    int waves;          /* slots of a rank in a step, by --flops: the fewest that ranks allow */
    double days, price; /* without failures; price 0: not given */
    double mtbf_s;      /* of all machines */
    double save_s, young_s, daly_s;
    double interval_s; /* Daly's, unless one is given */
    double restart_s, recovery_s;
    struct dpt_outcome restart; /* the job is started again and loads the checkpoint */
    struct dpt_outcome reload;  /* dpt, where no memory has the lost state: from the checkpoint */
    struct dpt_outcome copies;  /* dpt, where other machines have the state in memory */
};

/* `tokens`: of the run; 0: the config's steps. DPT_EINVAL: arguments contradict each other, or one
 * is missing that another needs. */
DPT_MUST_USE enum dpt_status dpt_estimate(const struct dpt_machines *machines,
                                          const struct dpt_fit_model *model, double tokens,
                                          struct dpt_estimate *ret, struct dpt_err *err);

#endif
