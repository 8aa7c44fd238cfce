/* The director: runs ranks as threads under a scripted agent. A test decides which ranks live and
 * die and when a new world is formed. Everything below the agent (link, formation, communicator,
 * steps, checkpoints) is product code.
 *
 * Functions that set something for "new ranks" are for ranks that are started afterwards. */
#ifndef DPT_TESTS_WORKER_TRAIN_DIRECTOR_H
#define DPT_TESTS_WORKER_TRAIN_DIRECTOR_H

#include "base/config.h"
#include "base/err.h"
#include "worker/train/rank.h"

#include <stdbool.h>
#include <stdint.h>

enum { DIRECTOR_RANKS_MAX = 8 };

struct director;

/* The run writes into log/ and checkpoints/ in `dir`. `config` is copied. */
struct director *director_create(const struct dpt_config *config, const char *dir);

/* The same with checkpoint.dir empty. */
struct director *director_create_without_checkpoints(const struct dpt_config *config,
                                                     const char *dir);

/* New ranks use the checkpoints of another director, whose folder is `dir`. */
void director_read_checkpoints(struct director *d, const char *dir);

/* Ends all ranks and joins their threads. */
void director_destroy(struct director **director);

/* New ranks compute on the device that `open` opens; NULL: on the host. */
void director_open_device_with(enum dpt_status (*open)(const struct dpt_rank_start *start,
                                                       struct dpt_device **ret,
                                                       struct dpt_err *err));
/* New ranks get NCCL from `load`; NULL: the library. */
void director_use_nccl(enum dpt_status (*load)(const struct dpt_rank_start *start,
                                               const struct dpt_nccl_calls **ret, void **ret_ctx,
                                               struct dpt_err *err));

/* New ranks write under this claim of checkpoint.dir (base/claim.h); number 0: without a claim.
 * `token` is borrowed. */
void director_claim(struct director *d, int64_t number, const char *token);

/* New ranks pack their weights in this mode. */
void director_pack_weights(struct director *d, enum dpt_pack_weights mode);

/* Starts a rank thread and waits until it is in STANDBY; returns its handle. */
int director_start(struct director *d, int host);

/* The same, with this number of compute threads. */
int director_start_threads(struct director *d, int host, int threads);

/* New ranks are successors: the second process of their local rank, after one that ended. */
void director_respawn(struct director *d);

/* New ranks may start from step 0 although all checkpoints are damaged (--allow-fresh). */
void director_allow_fresh(struct director *d);

/* A rank on the bench takes part in formations but gets no plan: a spare. */
void director_bench(struct director *d, int handle, bool benched);

/* New ranks keep their state on the host (strategy.offload: optimizer). */
void director_offload(struct director *d);

/* New ranks compute on the CPU, without a device. */
void director_on_cpu(struct director *d);

/* In generations from now on only the first rank writes checkpoints, as with a separate folder on
 * each node. */
void director_one_writes(struct director *d);

/* The rank leaves with the next formation: it hands its part of the state over as a handover rank
 * of one generation, and then sits on the bench. */
void director_retire(struct director *d, int handle);

/* Cuts the rank off from its agent, so that it ends: its peers see a death. Waits until its thread
 * has ended. */
void director_kill(struct director *d, int handle);

/* One whole formation of the living ranks: PREPARE (soft or hard), reports, PLAN, GO. Returns false
 * if a rank reports a broken communicator meanwhile. Survivors keep their order. */
bool director_form(struct director *d, bool soft);

/* Only the first half of a formation, for deaths in it: sends PREPARE (soft or hard) and waits for
 * all reports. */
void director_prepare(struct director *d, bool soft);
/* Sends a hard PREPARE and does not wait for the reports. */
void director_send_prepare(struct director *d);
/* Tells every rank that all nodes are leaving. Later formations are final saves. */
void director_leave(struct director *d);
/* Grants no more checkpoints. Until this call the director grants every checkpoint. */
void director_withhold_grants(struct director *d);
/* Reads the ranks' reports and grants checkpoints for `ms`. */
void director_listen(struct director *d, int ms);
/* Sends the plan and does not wait. */
void director_plan(struct director *d);
/* Waits until all ranks are READY. */
void director_await_ready(struct director *d);

/* Every node leaves while there is no server: all ranks write a rescue, within `ms`. Returns how
 * many ranks report that it is whole; the others have reported that it is not. */
int director_rescue(struct director *d, int ms);

/* Waits until a rank has applied `step` steps, or all are finished. */
void director_await_step(struct director *d, int64_t step);

/* Waits until a checkpoint of at least `step` steps is complete. */
void director_await_checkpoint(struct director *d, int64_t step);

/* Waits until a rank reports a fatal error; returns its text, valid until that rank is killed. */
const char *director_await_fatal(struct director *d);
/* Waits until a rank reports that it is broken, and kills it, as an agent does; returns its text.
 */
const char *director_await_broken(struct director *d);

/* Waits until every living rank is finished; if a generation breaks, forms the next one (hard).
 * Returns the weights hash, which all ranks must have (static). */
const char *director_finish(struct director *d);

/* The highest applied step that any rank reported; director_step: that this rank reported last. */
int64_t director_best_step(const struct director *d);
int64_t director_step(const struct director *d, int handle);
/* The rank's count of finished batches of evaluation. */
uint32_t director_work_done(const struct director *d, int handle);
/* The last value that the rank reported; 0: none yet. */
int64_t director_step_ms_median(const struct director *d, int handle);
/* The newest checkpoint that the rank reported; -1: none. */
int64_t director_checkpoint_step(const struct director *d, int handle);
/* The highest number of lost steps in a plan so far. */
int64_t director_steps_lost(const struct director *d);
bool director_fatal(const struct director *d, int handle, const char **ret_text);
/* The number of generations in which a survivor received the outcome of a step whose commit it had
 * missed. */
int director_outcomes_handed(const struct director *d);

#endif
