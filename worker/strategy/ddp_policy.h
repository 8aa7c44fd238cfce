/* What tells ddp and its teaching variants apart: what is reduced together, when it is posted, who
 * waits for it, and how often. Everything else they share. */
#ifndef DPT_WORKER_STRATEGY_DDP_POLICY_H
#define DPT_WORKER_STRATEGY_DDP_POLICY_H

#include "worker/model/model.h"
#include "worker/plan/buckets.h"

struct dpt_ddp_policy {
    const char *name;
    bool tensors;     /* each tensor is reduced by itself; else buckets of strategy.bucket_mib */
    bool small_first; /* the first bucket is one of strategy.first_bucket_mib */
    bool announced;   /* posted when backward announces the last tensor of it; else when the whole
                         backward pass is over */
    bool waits;       /* the main thread waits for each where it is posted; else for all of them
                         before the step is applied */
    bool each_slot;   /* after every micro-batch; else once a step */
};

/* The policy of a strategy's name; NULL when it is not of ddp's family. */
const struct dpt_ddp_policy *dpt_ddp_policy_find(const char *name);

/* What the config asks for, strategy.overlap included. Strategies beyond the family that sum lanes
 * do it as ddp. */
struct dpt_ddp_policy dpt_ddp_policy_of(const struct dpt_config *config);

/* What is reduced together, in the order in which backward completes it: the last tensors first.
 * Both arrays are of [n_params]; returns how many there are. DPT_ENOMEM. */
DPT_MUST_USE enum dpt_status dpt_ddp_policy_buckets(const struct dpt_ddp_policy *policy,
                                                    const struct dpt_config *config,
                                                    const struct dpt_model *model,
                                                    struct dpt_bucket *ret_buckets, int *ret_n,
                                                    struct dpt_err *err);

#endif
