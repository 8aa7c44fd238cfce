/* The claim of a folder: the run that owns the folder, and the processes that hold it for the run.
 *
 * The claim is the file OWNER.NNNNNNNN with the highest number in the folder. A process takes the
 * folder over by creating the file of the next number. Exactly one process can create it, on shared
 * file systems too. The file with the highest number is never removed. Its record names the run,
 * the server of the run's workers, and the process that wrote the record last. Every holder
 * rewrites the record periodically, each time with different bytes. So a record that changes has a
 * living holder, whatever the machines' clocks say, and a record that has not changed for its lease
 * has no living holder. The record stays when its holders have ended, so the folder still belongs
 * to the run.
 *
 * No function waits or starts a thread. Any thread may call them. An error of the disk, such as
 * DPT_EIO, does not mean that another run owns the folder. */
#ifndef DPT_BASE_CLAIM_H
#define DPT_BASE_CLAIM_H

#include "base/err.h"

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

enum { DPT_CLAIM_NAME_BYTES = 64, DPT_CLAIM_TOKEN_BYTES = 33, DPT_CLAIM_RECORD_BYTES = 1024 };

/* Texts have no control characters. */
struct dpt_claim_record {
    char run[DPT_CLAIM_NAME_BYTES];    /* name of the run */
    char token[DPT_CLAIM_TOKEN_BYTES]; /* drawn at each takeover; all holders have the same */
    uint64_t server;                   /* epoch of the holder's server */
    char host[DPT_CLAIM_NAME_BYTES], user[DPT_CLAIM_NAME_BYTES];
    char process[160]; /* boot, PID namespace and start time; unique together with the pid */
    int pid;
    char since[32]; /* time at which the folder was taken, UTC */
    int64_t lease_ms;
    bool released; /* the only holder of the claim ended normally */
};

struct dpt_claim_seen {
    int64_t number;  /* 0: the folder has no claim */
    bool shared;     /* several processes held it, possibly on several hosts */
    bool readable;   /* false: a holder is rewriting the record, or it is damaged */
    uint64_t digest; /* hash of the record's bytes */
    struct dpt_claim_record record;
};

/* Fills host, user, process, pid and since of a record with those of this process. */
void dpt_claim_describe_self(struct dpt_claim_record *ret);

/* False: the process that wrote the record has ended. True also if the process is on another host
 * or in another PID namespace, where this process cannot see its end. */
bool dpt_claim_may_live(const struct dpt_claim_record *record);

/* Reads the claim of `dir`, which must exist. */
DPT_MUST_USE enum dpt_status dpt_claim_look(const char *dir, struct dpt_claim_seen *ret,
                                            struct dpt_err *err);

/* Takes the folder over as claim `number`, one more than the number that was seen, and removes
 * earlier claims. DPT_EEXIST: another process took it over first. */
DPT_MUST_USE enum dpt_status dpt_claim_take(const char *dir, int64_t number,
                                            const struct dpt_claim_record *record,
                                            struct dpt_err *err);

/* Marks claim `number` as held by several processes. */
DPT_MUST_USE enum dpt_status dpt_claim_share(const char *dir, int64_t number, struct dpt_err *err);

/* Rewrites the record of claim `number`, which another holder with the same token may have written.
 * If the folder was emptied, creates the claim again. DPT_EREFUSED: the claim is no longer valid,
 * because a later claim exists or this number has another token. This is checked even after a
 * failed write. */
DPT_MUST_USE enum dpt_status dpt_claim_renew(const char *dir, int64_t number,
                                             const struct dpt_claim_record *record,
                                             struct dpt_err *err);

/* DPT_EREFUSED: the folder has a claim other than claim `number` with this token. */
DPT_MUST_USE enum dpt_status dpt_claim_check(const char *dir, int64_t number, const char *token,
                                             struct dpt_err *err);

/* The decision, after each dpt_claim_look, of a process that wants the folder. */
enum dpt_claim_verdict {
    DPT_CLAIM_WAIT,   /* look again soon */
    DPT_CLAIM_TAKE,   /* take the folder as claim `number` seen + 1 */
    DPT_CLAIM_JOIN,   /* the claim belongs to this run */
    DPT_CLAIM_REFUSED /* the claim belongs to another run, or to a living run of the same name */
};

/* What the process has seen so far. Initially zeroed. */
struct dpt_claim_watch {
    bool begun, moved;
    int64_t number, first_ms, moved_ms;
    uint64_t digest;
};

/* `me`: run, server and token of the calling process. `waits`: the server of the calling process
 * may have just restarted, so it may not know the holders of the same run yet. These holders have
 * the record's lease to join the server. `may_live`: dpt_claim_may_live. `now_ms`: of one monotonic
 * clock. Pure. */
enum dpt_claim_verdict dpt_claim_judge(struct dpt_claim_watch *watch,
                                       const struct dpt_claim_record *me, bool waits,
                                       const struct dpt_claim_seen *seen, bool may_live,
                                       int64_t now_ms);

#endif
