/* The checkpoint writer: a thread that writes this rank's part and, on the rank with slot 0,
 * commits the checkpoint.
 *
 * The main thread waits only while the weights are read (dpt_saver_wait_written). During the rest
 * training continues: while the thread waits for the parts of other ranks and for the server's
 * grant, writes the manifest and renames the folder. Without a server the checkpoint waits for its
 * grant. */
#ifndef DPT_WORKER_TRAIN_SAVE_SAVER_THREAD_H
#define DPT_WORKER_TRAIN_SAVE_SAVER_THREAD_H

#include "checkpoint/checkpoint.h"
#include "worker/train/link/link.h"

struct dpt_saver;

struct dpt_saver_options {
    struct dpt_link *link;  /* grants, fence, interruption and the report; borrowed */
    int collect_timeout_ms; /* slot 0 waits at most this long for the parts of other ranks */
    /* The claim of checkpoint.dir, which is checked again at the rename. Number 0: there is
     * none. */
    int64_t claim_number;
    const char *claim_token;
};

DPT_MUST_USE enum dpt_status dpt_saver_create(const struct dpt_saver_options *options,
                                              struct dpt_saver **ret, struct dpt_err *err);
/* Cancels an attempt that runs, and waits for its end. */
void dpt_saver_destroy(struct dpt_saver **saver);

/* Begins an attempt. The saver must be idle. It borrows the spec's tensors, texts and config until
 * the attempt is over, and replaces the spec's callbacks. */
void dpt_saver_begin(struct dpt_saver *saver, const struct dpt_checkpoint_spec *spec);

/* True while an attempt runs. */
bool dpt_saver_busy(struct dpt_saver *saver);

/* Waits until the tensors are no longer read. */
void dpt_saver_wait_written(struct dpt_saver *saver);

/* Waits until the attempt is over and returns its status. Each status is returned once; later
 * calls, and calls without an attempt, return DPT_OK. DPT_EREFUSED: another run has the folder's
 * claim, and this run must not write there. */
DPT_MUST_USE enum dpt_status dpt_saver_wait(struct dpt_saver *saver, struct dpt_err *err);

/* Cancels the attempt: it ends soon with DPT_EABORTED, unless it is committed before. Call
 * dpt_saver_wait after this. */
void dpt_saver_cancel(struct dpt_saver *saver);

/* Whether this run has the claim of `dir`. False: `err` names the owner. Any thread. */
bool dpt_saver_owns_folder(const struct dpt_saver *saver, const char *dir, struct dpt_err *err);

/* The saves so far. An attempt succeeds when this rank's part is written and, on slot 0, the
 * checkpoint is committed. */
struct dpt_saved {
    int64_t n;           /* successful attempts */
    uint64_t generation; /* generation of the newest successful attempt */
    int64_t step;        /* step of the newest successful attempt; 0: none */
    /* Step of the newest checkpoint that this thread committed; -1: none. */
    int64_t committed_step;
};
struct dpt_saved dpt_saver_saved(struct dpt_saver *saver);

#endif
