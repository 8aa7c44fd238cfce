/* A double of NCCL for ranks that are threads. A communicator exists when all its ranks have
 * called; a send is copied from the sender's memory to the receiver's; an operation waits for the
 * peer's. It serves the tests of the code above the state machine of nccl_machine.h; the tests of
 * that machine use nccl_double.h. */
#ifndef DPT_TESTS_WORKER_COMM_NCCL_FABRIC_H
#define DPT_TESTS_WORKER_COMM_NCCL_FABRIC_H

#include "worker/comm/nccl_calls.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

enum { FABRIC_RANKS_MAX = 8, FABRIC_CLIQUES_MAX = 128, FABRIC_PIECES_MAX = 64 };

enum fabric_fault {
    FABRIC_WELL,
    FABRIC_SILENT_IN_INIT, /* its init does not count: the others wait without end */
    FABRIC_FAILS_IN_INIT,  /* its init fails; the others fail when it gives up */
    FABRIC_TEARS_IN_INIT,  /* its init fails, and those of the others at the same moment */
    FABRIC_NO_ID,          /* it cannot make an id */
    FABRIC_NO_SHRINK,      /* its shrink fails */
    FABRIC_NO_REVOKE,      /* its revoke is refused */
    FABRIC_FAILS_LATE      /* its operation number `fails_at` ends with a system error */
};

struct fabric_piece {
    bool send, sums, moved; /* sums: `to` = the sum of all members' `from`, floats */
    int peer;
    const uint8_t *from;
    uint8_t *to;
    size_t bytes;
};

struct fabric_handle {
    bool used, gone, revoked, finalized, failed, asked;
    struct clique *clique;
    int rank;
    struct fabric_handle *made_of; /* the parent, until this child is complete */
    struct dpt_nccl_place *place;
    struct clique *child; /* that is being created from this one */
    int child_rank;
    uint64_t ops;                    /* begun */
    uint64_t with[FABRIC_RANKS_MAX]; /* by peer: begun operations with a transfer to or from it */
    struct fabric_piece pieces[FABRIC_PIECES_MAX];
    int n_pieces;
};

/* The ranks of one communicator. */
struct clique {
    uint8_t id[DPT_NCCL_ID_BYTES];
    const struct clique *parent;
    int color, size, n_calls, calls_wanted;
    struct fabric_handle members[FABRIC_RANKS_MAX];
    int keys[FABRIC_RANKS_MAX], colors[FABRIC_RANKS_MAX]; /* of a split, by rank of the parent */
    struct fabric_handle *callers[FABRIC_RANKS_MAX];
    bool complete, torn; /* torn: it will never be complete */
    bool is_split;       /* one of the groups beside the world */
    bool tears;          /* becomes torn when all have asked for its state */
    atomic_int n_asked;
};

/* Functions of devices whose memory the host cannot access. Both NULL: the memory is the host's,
 * and its queues complete at once. */
struct fabric_devices {
    void (*copy)(void *to, const void *from, size_t bytes);
    void (*await)(void *event); /* returns when the marked work is done */
};

struct fabric {
    struct fabric_devices devices;
    pthread_mutex_t mutex;
    struct clique cliques[FABRIC_CLIQUES_MAX];
    int n_cliques, ids;
    int live, live_streams;      /* of all ranks; 0 at the end */
    uint64_t bytes, split_bytes; /* moved between ranks; of these, in splits */
    atomic_int closing;          /* ranks that have announced to close */
    int closing_min;             /* `closing` must reach it before any rank finalizes */
};

/* One rank's view: the context of its calls. */
struct fabric_rank {
    struct fabric *fabric;
    enum fabric_fault fault;
    struct fabric_handle *grouped;
    struct fabric_piece pieces[FABRIC_PIECES_MAX];
    int n_pieces;
    int inits, shrinks;
    uint64_t ops, fails_at;
};

extern const struct dpt_nccl_calls fabric_calls;

void fabric_init(struct fabric *fabric);
/* Checks that no communicator and no stream is left. */
void fabric_fini(struct fabric *fabric);
/* The number of communicators of all ranks that are not freed. */
int fabric_live(struct fabric *fabric);

#endif
