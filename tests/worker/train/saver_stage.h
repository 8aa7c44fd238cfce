/* A checkpoint writer and its link, with a thread that simulates the agent. */
#ifndef DPT_TESTS_WORKER_TRAIN_SAVER_STAGE_H
#define DPT_TESTS_WORKER_TRAIN_SAVER_STAGE_H

#include "tests/checkpoint/checkpoint_fixture.h"
#include "tests/worker/train/agent_end.h"
#include "worker/train/save/saver_thread.h"

#include "base/claim.h"

#include <pthread.h>
#include <stdatomic.h>

enum { GENERATION = 7, STEP = 5, HEARTBEAT_MS = 10, COLLECT_MS = 40000, SOON_MS = 20000 };

/* The agent; it sends these values with every heartbeat. */
struct played_agent {
    int fd;
    pthread_t thread;
    atomic_bool stop, silent;
    atomic_int command;
    _Atomic uint64_t generation;
    _Atomic int64_t grant;
    _Atomic int64_t lease_ms; /* from now */
};

struct saver_stage {
    struct played_agent agent;
    struct dpt_link *link;
    struct dpt_saver *saver;
    struct model model;
    struct dpt_checkpoint_piece pieces[MODEL_TENSORS_MAX]; /* of the save under way */
    /* Grants asked for: the last one, and how many times (withdrawn ones too). */
    _Atomic int64_t wanted;
    atomic_int asked, withdrawn;
};

/* The claim of the folder for stages that begin from now on; number 0: none. */
extern struct dpt_claim_seen saver_stage_claim;

void saver_stage_begin(struct saver_stage *s, int collect_ms);
/* Ends the agent; the stage goes on. */
void saver_stage_end_agent(struct saver_stage *s);
void saver_stage_end(struct saver_stage *s);
void saver_stage_save_part(struct saver_stage *s, const char *dir, int writer, int n_writers);
/* The result of the save; fails the test after SOON_MS. */
enum dpt_status saver_stage_wait(struct saver_stage *s, struct dpt_err *err);
bool has_saved(struct dpt_saver *saver);
/* Waits until the saver asks for a grant. */
void saver_stage_await_question(struct saver_stage *s);
/* Withdraws the grant and waits until the rank has received that, so that the next save does not
 * find the grant of the last one. */
void saver_stage_withdraw_grant(struct saver_stage *s);
/* The newest checkpoint of the folder; -1: none. */
int64_t newest_checkpoint(const char *dir);
/* The number of entries of a folder. */
int entries_in(const char *dir);
void saver_stage_give_up_generation(struct saver_stage *s);

#endif
