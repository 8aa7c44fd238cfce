/* Ranks as threads under a scripted agent: a test decides which ranks live and die and when the
 * world re-forms. Everything below the agent (link, formation, communicator, steps, checkpoints) is
 * product code. */
#ifndef DPT_TESTS_WORKER_TRAIN_DIRECTOR_H
#define DPT_TESTS_WORKER_TRAIN_DIRECTOR_H

#include "base/config.h"
#include "base/err.h"
#include "worker/train/rank.h"

#include <stdbool.h>
#include <stdint.h>

enum { DIRECTOR_RANKS_MAX = 8 };

struct director;

/* `dir` gets log/ and checkpoints/ under it; config is copied. */
struct director *director_create(const struct dpt_config *config, const char *dir);

/* The same with checkpoint.dir empty. */
struct director *director_create_without_checkpoints(const struct dpt_config *config,
                                                     const char *dir);

/* Ranks that are started from now on have the checkpoints of another director, in `dir`. */
void director_read_checkpoints(struct director *d, const char *dir);

/* Ends every rank and joins. */
void director_destroy(struct director **director);

/* All ranks that are started from now on compute on the device that this opens; NULL: on the host.
 */
void director_accelerate(enum dpt_status (*open)(const struct dpt_rank_start *start,
                                                 struct dpt_device **ret, struct dpt_err *err));
/* And have NCCL from here; NULL: the library. */
void director_use_nccl(enum dpt_status (*load)(const struct dpt_rank_start *start,
                                               const struct dpt_nccl_calls **ret, void **ret_ctx,
                                               struct dpt_err *err));

/* Ranks that are started from now on write under this claim of checkpoint.dir (base/claim.h); 0:
 * under none. `token` is borrowed. */
void director_claim(struct director *d, int64_t number, const char *token);

/* Ranks that are started from now on pack their weights so. */
void director_pack_weights(struct director *d, enum dpt_pack_weights mode);

/* Starts a rank thread and waits until it stands by; returns its handle. */
int director_start(struct director *d, int host);

/* The same with a number of compute threads that is this rank's own. */
int director_start_threads(struct director *d, int host, int threads);

/* Ranks that are started from now on are in the place of processes that ended. */
void director_respawn(struct director *d);

/* Ranks that are started from now on may begin from step 0 over damaged checkpoints. */
void director_allow_fresh(struct director *d);

/* A rank on the bench takes part in formations but gets no plan: a spare. */
void director_bench(struct director *d, int handle, bool benched);

/* Ranks from now on keep their state on the host (strategy.offload: optimizer). */
void director_offload(struct director *d);

/* Ranks from now on have no device. */
void director_on_cpu(struct director *d);

/* In generations from now on only the first rank writes checkpoints, as with a separate folder on
 * each node. */
void director_one_writes(struct director *d);

/* The rank leaves with the next formation: it hands its part of the state over as a guest of one
 * generation, and then sits on the bench. */
void director_retire(struct director *d, int handle);

/* The rank loses its agent: for its peers it is dead. Waits until its thread has ended. */
void director_kill(struct director *d, int handle);

/* One whole formation of the ranks alive: PREPARE (soft or hard), reports, PLAN, GO. Returns false
 * when a rank reported a broken communicator meanwhile. Survivors keep their order. */
bool director_form(struct director *d, bool soft);

/* Only the first half, PREPARE(hard) until all have reported: for deaths during a formation. */
void director_prepare(struct director *d, bool soft);
/* Sends a hard PREPARE, does not wait for the reports. */
void director_send_prepare(struct director *d);
/* All nodes are leaving: every rank is told, and nothing else yet. What is formed from now on is a
 * farewell. */
void director_leave(struct director *d);
/* Every checkpoint that is asked for is granted, but none from now on. */
void director_withhold_grants(struct director *d);
/* Reads the ranks' reports and grants checkpoints for this time. */
void director_listen(struct director *d, int ms);
/* Sends the plan, does not wait. */
void director_plan(struct director *d);
/* Then waits until all are READY. */
void director_await_ready(struct director *d);

/* There is no server, and every node leaves: all ranks write a rescue, for `ms` at most. Returns
 * how many say that it is whole; the others have said that it is not. */
int director_rescue(struct director *d, int ms);

/* Waits until some rank has applied `step` steps, or all are finished. */
void director_await_step(struct director *d, int64_t step);

/* Waits until a checkpoint of at least `step` steps is whole. */
void director_await_checkpoint(struct director *d, int64_t step);

/* Waits until a rank reports a fatal error; returns its text, valid until that rank is killed. */
const char *director_await_fatal(struct director *d);
/* Waits until a rank said that it is broken, and kills it as its agent does; returns its words. */
const char *director_await_broken(struct director *d);

/* Waits until every living rank is finished (re-forming hard whenever a generation broke); returns
 * the common weights hash (static). */
const char *director_finish(struct director *d);

/* The highest step applied that a rank has told. */
int64_t director_best_step(const struct director *d);
int64_t director_step(const struct director *d, int handle);
/* Batches of evaluations that it went through. */
uint32_t director_work_done(const struct director *d, int handle);
/* As it told last; 0: none yet. */
int64_t director_step_ms_median(const struct director *d, int handle);
/* The newest checkpoint that the rank has told of; -1: none. */
int64_t director_checkpoint_step(const struct director *d, int handle);
/* Highest number of steps lost said by plans so far. */
int64_t director_steps_lost(const struct director *d);
bool director_fatal(const struct director *d, int handle, const char **ret_text);
/* Generations in which a survivor was handed the outcome of a step that it had not seen committed.
 */
int director_outcomes_handed(const struct director *d);

#endif
