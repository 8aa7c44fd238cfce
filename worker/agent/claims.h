/* Claims the folders that a worker writes to for its run (base/claim.h): a thread takes or joins
 * the claims, rewrites them while the worker lives, and notices their loss. dpt_claims_create makes
 * the folders on its caller's thread. After that a disk that hangs holds up the claims' thread
 * alone. */
#ifndef DPT_WORKER_AGENT_CLAIMS_H
#define DPT_WORKER_AGENT_CLAIMS_H

#include "base/claim.h"

struct dpt_claims;

enum { DPT_CLAIMS_MAX = 2 };

struct dpt_claims_options {
    const char *dir[DPT_CLAIMS_MAX]; /* made if need be; "": none; the same folder counts once */
    const char *run;
    uint64_t server;    /* epoch of the server that the worker has joined */
    bool embedded;      /* in this process: no other worker can come back to it */
    int64_t timeout_ms; /* cluster.timeout_s */
};

enum dpt_claims_state {
    DPT_CLAIMS_PENDING,
    DPT_CLAIMS_HELD,
    DPT_CLAIMS_REFUSED, /* a folder is another run's, or cannot be claimed */
    DPT_CLAIMS_LOST     /* taken over while this process was suspended or could not renew */
};

DPT_MUST_USE enum dpt_status dpt_claims_create(const struct dpt_claims_options *options,
                                               struct dpt_claims **ret, struct dpt_err *err);

/* Whether a run that claims nothing may write into `dir`. DPT_EREFUSED, with the owner: another run
 * has claimed it. A folder without a claim, or that does not exist, is free. */
DPT_MUST_USE enum dpt_status dpt_claims_check_guest(const char *dir, const char *run,
                                                    struct dpt_err *err);

/* Releases the claims that no other process shares; waits at most wait_ms. */
void dpt_claims_destroy(struct dpt_claims **claims, int wait_ms);

/* The epoch of a restarted server; 0: unknown. Any thread. */
void dpt_claims_set_server(struct dpt_claims *claims, uint64_t server);

/* `ret_text` (DPT_ERR_TEXT_BYTES; may be NULL): the reason of REFUSED and LOST. Any thread. */
enum dpt_claims_state dpt_claims_state(struct dpt_claims *claims, char *ret_text);

/* Time (dpt_now_ms) until which the ranks may write to the folders: no other run takes them over
 * before it. Stands still while no claim can be renewed. Any thread. */
int64_t dpt_claims_until_ms(struct dpt_claims *claims);

/* The claim of dir[i], when HELD; false: it has none. */
bool dpt_claims_get(struct dpt_claims *claims, int i, int64_t *ret_number,
                    char ret_token[DPT_CLAIM_TOKEN_BYTES]);

#endif
