/* A double of NCCL and of a CUDA stream for the tests of one rank's state machine
 * (nccl_machine.h). A script sets the effect and the duration of each call, and time is simulated.
 * The double checks every call against the rules for users of NCCL. A broken rule ends the program,
 * which prints the seed.
 *
 * The rules:
 * - no call on a freed communicator;
 * - one operation at a time on a communicator, and none while a child of it is created;
 * - operations only inside a group, and a group has one communicator;
 * - revoke at most once, and never after finalize;
 * - destroy only after finalize;
 * - all communicators in use are revoked before any of them is freed. */
#ifndef DPT_TESTS_WORKER_COMM_NCCL_DOUBLE_H
#define DPT_TESTS_WORKER_COMM_NCCL_DOUBLE_H

#include "worker/comm/nccl_machine_state.h"

#include <setjmp.h>

enum { NEVER = -1, DOUBLE_HANDLES_MAX = 256 };

/* The effect of the next call of each kind. Times are in ms after the call, or NEVER. */
struct nccl_script {
    int create_ms, launch_ms, op_ms, revoke_ms, finalize_ms;
    int abort_takes_ms, revoke_takes_ms; /* duration of the call; NEVER: it does not return */
    int drain_ms;                        /* from an abort until the stream is idle */
    enum dpt_nccl_result create, create_ends, op, op_ends, revoke, revoke_ends, finalize,
        finalize_ends, abort, stream_create, id;
    bool child_left; /* a creation that ends badly leaves a handle to be freed */
};

enum double_state { IN_CREATION, AT_REST, IN_LAUNCH, IN_OPERATION, IN_REVOKE, IN_FINALIZE, FINAL };

struct double_handle {
    bool used, freed;
    enum double_state state;
    int64_t done_ms; /* of the present state; INT64_MAX: never */
    enum dpt_nccl_result ends, error;
    struct nccl_script script;    /* at the start of the present work */
    struct double_handle *parent; /* while split or shrink creates it */
    struct dpt_nccl_place *place; /* receives the handle while it is created */
    struct double_handle *child;  /* that is being created from it */
    bool revoke_tried, quiet;     /* quiet: the revoke has ended well */
    bool launching;               /* as last reported to the caller */
    int freed_call;               /* number of the call that freed it */
    struct double_stream *stream; /* of its operations */
    int ops_begun, ops_done;      /* done: those that ended well */
};

struct double_stream {
    bool used, freed;
    int64_t idle_ms; /* INT64_MAX: not before an abort */
    bool broken;
};

struct nccl_double {
    struct dpt_nccl_calls calls;
    struct dpt_nccl_guard guard;
    uint64_t seed; /* printed when a rule is broken */
    int64_t now_ms;
    struct nccl_script script;
    struct double_handle handles[DOUBLE_HANDLES_MAX];
    struct double_stream streams[DOUBLE_HANDLES_MAX];
    int n_handles, n_streams, n_calls, n_aborts, n_destroys, n_revokes;
    int group;                     /* depth */
    struct double_handle *grouped; /* the communicator of the open group; NULL: none yet */
    bool group_failed;
    jmp_buf *lost_to; /* target of the jump that replaces the end of the process */
    const char *lost; /* the reason given for that end */
};

enum {
    DOUBLE_RUN_MS = 800, /* the run's timeout */
    DOUBLE_TIMEOUT_MS = 1000,
    DOUBLE_CREATE_MS = 1200
};

/* All calls succeed, each within a few ms. */
void nccl_double_init(struct nccl_double *d, uint64_t seed);
struct dpt_nccl_machine *nccl_double_machine(struct nccl_double *d);
struct double_handle *double_of(const struct dpt_nccl_machine *n, int comm);
/* Checks that no handle and no stream is left. */
void nccl_double_check_clean(struct nccl_double *d);
void nccl_double_broken(const struct nccl_double *d, const char *file, int line, const char *rule);

#define RULE(d, cond)                                                                              \
    do {                                                                                           \
        if (!(cond))                                                                               \
            nccl_double_broken(d, __FILE__, __LINE__, #cond);                                      \
    } while (0)

#endif
