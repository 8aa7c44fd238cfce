/* A strategy on given machines, and on the fewest machines whose memory is enough. */
#ifndef DPT_WORKER_PLANNER_FIT_H
#define DPT_WORKER_PLANNER_FIT_H

#include "worker/planner/source.h"

/* The facts of the model that do not depend on the strategy. */
struct dpt_fit_model {
    double parameters;        /* trained; without padding */
    double frozen_parameters; /* of the base under train.lora: on every rank whole */
    double frozen_bytes;
    int layers, channels;     /* 0: a model of images */
    int seq_len, micro_batch; /* seq_len 1: an image */
    int slots;                /* of a step */
    int64_t tokens_per_step;  /* of images: samples */
    int64_t steps;            /* 0: not in the config */
    bool cuda;                /* the config has cluster.device cuda */
    int64_t checkpoint_bytes; /* fp32 masters and two moments, in every format of moments */
    enum dpt_precision precision;
    int moments;
    double timeout_s; /* cluster.timeout_s */
};

struct dpt_fit {
    const struct dpt_plan_strategy *strategy;
    bool own;                         /* the strategy of the config file */
    char refused[DPT_ERR_TEXT_BYTES]; /* the config's rules refuse it here; "": they do not */
    struct dpt_world_memory memory;
    int waves;          /* the most slots of a rank in a step */
    double batch_bytes; /* activations, workspace and data, part of memory */
    double textbook_bytes;
    bool fits;                       /* memory.rank_bytes is at most the device's memory */
    int least_machines, least_ranks; /* the smallest world that fits; 0: none, or no memory given */
    double sent_bytes;               /* by a rank in a step */
    double crossing_bytes;           /* by a machine to others in a step */
    bool has_copies;                 /* the state survives the loss of a machine in memory */
};

struct dpt_fit_task {
    const struct dpt_source *source;
    const struct dpt_fit_model *model;
    struct dpt_world_shape shape;
    double parameters; /* of the textbook's accounting */
    double memory;
};

/* Reads the facts from the first strategy that the config's rules accept. Its error if none is. */
DPT_MUST_USE enum dpt_status dpt_fit_model(const struct dpt_source *source,
                                           struct dpt_world_shape shape, struct dpt_fit_model *ret,
                                           struct dpt_err *err);

/* Fills a row. `memory`: bytes of a device; 0: not given. A strategy that the rules refuse on these
 * machines may still have a smallest world. The search assumes that a world of more machines needs
 * no more memory a rank. */
DPT_MUST_USE enum dpt_status dpt_fit_strategy(const struct dpt_fit_task *task,
                                              const struct dpt_plan_strategy *strategy,
                                              struct dpt_fit *ret, struct dpt_err *err);

/* Bytes of a number of the textbook under the config's precision. */
struct dpt_textbook_widths dpt_fit_widths(const struct dpt_fit_model *facts);

#endif
