/* A rank in this process, in a world of one, for dpt-bench train. The calling thread plays the
 * rank's agent and server over the rank's link (worker/agent/rank_protocol.h). */
#ifndef DPT_WORKER_BENCH_BENCH_TRAIN_RANK_H
#define DPT_WORKER_BENCH_BENCH_TRAIN_RANK_H

#include "base/config.h"
#include "base/err.h"

#include <stdint.h>

struct bench_rank;

/* Starts the rank on a thread of its own and forms its only generation; returns when it trains.
 * `config` is borrowed, as long as the rank lives. DPT_EREFUSED: the rank cannot train; the text is
 * its reason. DPT_ETIMEOUT: it is not ready in time. */
DPT_MUST_USE enum dpt_status bench_rank_start(const struct dpt_config *config,
                                              struct bench_rank **ret, struct dpt_err *err);

/* Renews the rank's lease and reads its reports until it has applied `step` steps. *ret_step: the
 * steps that it has applied by then. DPT_EREFUSED: the rank has failed; DPT_ETIMEOUT: no step
 * within ten minutes. */
DPT_MUST_USE enum dpt_status bench_rank_await_step(struct bench_rank *r, int64_t step,
                                                   int64_t *ret_step, struct dpt_err *err);

/* Waits until the rank has done the config's last step, and tells it to end. Errors as above. */
DPT_MUST_USE enum dpt_status bench_rank_finish(struct bench_rank *r, struct dpt_err *err);

/* Ends the rank and joins its thread: then its records are written. Sets *r to NULL. Accepts
 * NULL. */
void bench_rank_destroy(struct bench_rank **r);

#endif
