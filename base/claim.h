/* The claim of a folder: which run owns it, and who holds it for the run.
 *
 * The claim is a file OWNER.NNNNNNNN in the folder, of which the highest number counts. Whoever
 * takes the folder over makes the file of the next number, which exactly one can do, on shared file
 * systems too; a number that counts is never removed. Its record names the run, the server at which
 * the run's workers meet, and the process that wrote it last; every holder rewrites it, each time
 * with other bytes. So a record that moves has a living holder, whatever the clocks of the machines
 * say, and a record that has not moved for its lease has none. The record outlives its holders: the
 * folder stays the run's.
 *
 * Nothing here waits or keeps a thread; any thread may call. Errors of the disk are DPT_EIO and the
 * like and say nothing about the owner. */
#ifndef DPT_BASE_CLAIM_H
#define DPT_BASE_CLAIM_H

#include "base/err.h"

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

enum { DPT_CLAIM_NAME_BYTES = 64, DPT_CLAIM_TOKEN_BYTES = 33, DPT_CLAIM_RECORD_BYTES = 1024 };

/* What a record says. Texts have no control characters. */
struct dpt_claim_record {
    char run[DPT_CLAIM_NAME_BYTES];    /* its name */
    char token[DPT_CLAIM_TOKEN_BYTES]; /* of this taking of the folder: all holders have the same */
    uint64_t server;                   /* epoch of the server that the holder belongs to */
    char host[DPT_CLAIM_NAME_BYTES], user[DPT_CLAIM_NAME_BYTES];
    char process[160]; /* boot, process space, pid and start: names one process of all times */
    int pid;
    char since[32]; /* when the folder was taken, UTC */
    int64_t lease_ms;
    bool released; /* its only holder ended in order */
};

struct dpt_claim_seen {
    int64_t number;  /* 0: nobody has ever claimed the folder */
    bool shared;     /* several processes held it, perhaps of several hosts */
    bool readable;   /* else it is being rewritten, or damaged */
    uint64_t digest; /* of the record's bytes */
    struct dpt_claim_record record;
};

/* Fills host, user, process, pid and since of a record with this process's. */
void dpt_claim_describe_self(struct dpt_claim_record *ret);

/* False when the process that wrote the record has ended; true also when that cannot be known here:
 * it is of another host or process space. */
bool dpt_claim_may_live(const struct dpt_claim_record *record);

/* Reads the claim that counts in `dir`, which must be there. */
DPT_MUST_USE enum dpt_status dpt_claim_look(const char *dir, struct dpt_claim_seen *ret,
                                            struct dpt_err *err);

/* Takes the folder as claim `number`, one more than the one that was seen, and removes those
 * before it. DPT_EEXIST: somebody else did. */
DPT_MUST_USE enum dpt_status dpt_claim_take(const char *dir, int64_t number,
                                            const struct dpt_claim_record *record,
                                            struct dpt_err *err);

/* Marks claim `number` as held by several. */
DPT_MUST_USE enum dpt_status dpt_claim_share(const char *dir, int64_t number, struct dpt_err *err);

/* Rewrites the record of claim `number`, which another holder with the same token may have written;
 * in a folder that was emptied it is made anew. DPT_EREFUSED: it does not count any more: a later
 * one is there, or this number has another token. That is looked for where the disk refuses the
 * rewriting, too. */
DPT_MUST_USE enum dpt_status dpt_claim_renew(const char *dir, int64_t number,
                                             const struct dpt_claim_record *record,
                                             struct dpt_err *err);

/* Does claim `number` with this token count, or none? DPT_EREFUSED: another does. */
DPT_MUST_USE enum dpt_status dpt_claim_check(const char *dir, int64_t number, const char *token,
                                             struct dpt_err *err);

/* What a process that wants the folder makes of what it sees, look after look. Pure. */
enum dpt_claim_verdict {
    DPT_CLAIM_WAIT,   /* look again soon */
    DPT_CLAIM_TAKE,   /* as number seen + 1 */
    DPT_CLAIM_JOIN,   /* the claim is this run's */
    DPT_CLAIM_REFUSED /* another's, or of the same run's name with a living holder elsewhere */
};

/* Zero-initialise. */
struct dpt_claim_watch {
    bool begun, moved;
    int64_t number, first_ms, moved_ms;
    uint64_t digest;
};

/* `me`: run, server and token of the one that looks. `waits`: its server may have just been started
 * anew, so that holders of the same run may not have told it yet; they have the record's lease for
 * that. `may_live`: dpt_claim_may_live. `now_ms` of one monotonic clock. */
enum dpt_claim_verdict dpt_claim_judge(struct dpt_claim_watch *watch,
                                       const struct dpt_claim_record *me, bool waits,
                                       const struct dpt_claim_seen *seen, bool may_live,
                                       int64_t now_ms);

#endif
