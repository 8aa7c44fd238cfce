/* Claims the folders that a worker writes to for its run (base/claim.h). A thread takes or joins
 * the claims, rewrites them while the worker lives, and notices when a claim is lost.
 * dpt_claims_create creates the folders on its caller's thread. After that a hanging disk delays
 * only the claims' thread. */
#ifndef DPT_WORKER_AGENT_CLAIMS_H
#define DPT_WORKER_AGENT_CLAIMS_H

#include "base/claim.h"

struct dpt_claims;

enum { DPT_CLAIMS_MAX = 2 };

struct dpt_claims_options {
    /* The folders, created if absent; "": none. Two names of one folder are claimed once. */
    const char *dir[DPT_CLAIMS_MAX];
    const char *run;
    uint64_t server; /* epoch of the server that the worker has joined */
    /* The server runs in this process, so no worker of an earlier process can join it again. */
    bool embedded;
    int64_t timeout_ms; /* cluster.timeout_s in milliseconds */
};

enum dpt_claims_state {
    DPT_CLAIMS_PENDING,
    DPT_CLAIMS_HELD,
    DPT_CLAIMS_REFUSED, /* a folder belongs to another run, or cannot be claimed */
    /* Another process took a folder over while this one was suspended or could not renew. */
    DPT_CLAIMS_LOST
};

DPT_MUST_USE enum dpt_status dpt_claims_create(const struct dpt_claims_options *options,
                                               struct dpt_claims **ret, struct dpt_err *err);

/* Whether a run that claims no folder may write into `dir`. A folder without a claim is free, and
 * so is a folder that does not exist. DPT_EREFUSED, with the owner: another run has claimed the
 * folder. */
DPT_MUST_USE enum dpt_status dpt_claims_check(const char *dir, const char *run,
                                              struct dpt_err *err);

/* Releases the claims that no other process shares. Waits at most wait_ms for the thread. */
void dpt_claims_destroy(struct dpt_claims **claims, int wait_ms);

/* Notes the epoch of a restarted server; 0: unknown. Any thread. */
void dpt_claims_set_server(struct dpt_claims *claims, uint64_t server);

/* `ret_text` (DPT_ERR_TEXT_BYTES; may be NULL): the reason of REFUSED and LOST. Any thread. */
enum dpt_claims_state dpt_claims_state(struct dpt_claims *claims, char *ret_text);

/* Time (dpt_now_ms) until which the ranks may write to the folders: before this time no other run
 * takes the folders over. The time does not advance while no claim can be renewed. Any thread. */
int64_t dpt_claims_until_ms(struct dpt_claims *claims);

/* The number and token of the claim on dir[i]. False: the state is not HELD, or there is no
 * dir[i]. */
bool dpt_claims_get(struct dpt_claims *claims, int i, int64_t *ret_number,
                    char ret_token[DPT_CLAIM_TOKEN_BYTES]);

#endif
