/* A double of NCCL among ranks that are threads: a communicator exists when all have called, sends
 * are copied from the sender's memory to the receiver's, and an operation waits for the peer's. For
 * the tests of the code above the machine; the machine itself has nccl_double.h. */
#ifndef DPT_TESTS_WORKER_COMM_NCCL_FABRIC_H
#define DPT_TESTS_WORKER_COMM_NCCL_FABRIC_H

#include "worker/comm/nccl_calls.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

enum { FABRIC_RANKS_MAX = 8, FABRIC_CLIQUES_MAX = 128, FABRIC_PIECES_MAX = 64 };

enum fabric_fault {
    FABRIC_WELL,
    FABRIC_SILENT_IN_INIT, /* the others wait for it without end */
    FABRIC_FAILS_IN_INIT,  /* and when it gives up, fail themselves */
    FABRIC_TEARS_IN_INIT,  /* and fail with it, all at one moment */
    FABRIC_NO_ID,          /* it can make none */
    FABRIC_NO_SHRINK,      /* its shrink fails */
    FABRIC_NO_REVOKE,      /* its revoke is refused */
    FABRIC_FAILS_LATE      /* its operation number `fails_at` ends with an error of its system */
};

struct fabric_piece {
    bool send, sums, moved; /* sums: all members' `from`, floats */
    int peer;
    const uint8_t *from;
    uint8_t *to;
    size_t bytes;
};

struct fabric_handle {
    bool used, gone, revoked, finalized, failed, asked;
    struct clique *clique;
    int rank;
    struct fabric_handle *made_of; /* a child waits to be complete */
    struct dpt_nccl_place *place;
    struct clique *child; /* being made of this one */
    int child_rank;
    uint64_t ops;                    /* begun */
    uint64_t with[FABRIC_RANKS_MAX]; /* of them, those with a transfer to or from a rank */
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
    bool complete, torn; /* torn: it never will be */
    bool is_split;       /* one of the groups beside the world */
    bool tears;          /* when all have asked how it stands */
    atomic_int n_asked;
};

/* Memory of devices that the host cannot touch, and its events. Both NULL: memory of the host,
 * whose queues are done at once. */
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
    uint64_t bytes, split_bytes; /* moved from rank to rank; of these in groups */
    atomic_int closing;          /* ranks that say they are about to close */
    int closing_min;             /* so many have, before one finalizes */
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
/* Checks that nothing is left. */
void fabric_fini(struct fabric *fabric);
/* Communicators of all ranks that are not freed. */
int fabric_live(struct fabric *fabric);

#endif
