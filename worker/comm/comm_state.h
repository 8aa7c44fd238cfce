/* The inside of a communicator (comm.h): its links, its pools, and its state. */
#ifndef DPT_WORKER_COMM_COMM_STATE_H
#define DPT_WORKER_COMM_COMM_STATE_H

#include "worker/comm/conn.h"

#include <stdatomic.h>

enum {
    COMM_RECORDS_MAX = 16384,   /* transfers posted and not yet done, all ops together */
    COMM_INLINE_SLOTS_MIN = 256 /* small sends waiting for their socket; more with more peers */
};

/* Allocated at creation, so that no step allocates. */
struct comm_pool {
    size_t bytes; /* counted in the account, with struct dpt_comm */
    struct dpt_comm_op ops[DPT_COMM_OPS_MAX], *ops_free;
    struct dpt_rec *recs, *recs_free;
    int recs_left;
    uint8_t *smalls; /* inline slots; a free one holds the pointer to the next */
    uint8_t *smalls_free;
    int smalls_left;
};

/* A wait of the owner for peers that have not begun to send, if it is traced (peer_wait.c). */
struct peer_wait {
    bool wanted;              /* the present poll waits for transfers, not only for a wake */
    int64_t begin_ns, end_ns; /* begin 0: there is none; end 0: the owner has not woken since */
    int64_t held_up_us;       /* of all links, at the begin; -1: no sends waited */
};

struct dpt_comm {
    struct dpt_comm_listener *listener;
    struct router *router; /* NULL: a mesh */
    int rank, world_size, timeout_ms;
    struct dpt_conn **links;   /* [n_links] */
    struct dpt_conn **link_of; /* [world_size], NULL: no peer */
    int n_links;
    struct dpt_wire *wires; /* [wires_max], of which n_wires are open */
    int wires_max, n_wires;
    int epoll_fd, wake_fd;
    atomic_bool abort_asked, wake_asked;
    atomic_bool spin_allowed; /* set by dpt_comm_allow_spin */
    struct dpt_err failure;   /* the first failure; DPT_OK: none */
    int suspect;
    int ops_in_flight; /* ops that are not done */
    bool shut;         /* no peer writes here any more */
    bool news;         /* an op was done since dpt_comm_poll_any last reported one */
    bool woken;        /* the last poll returned because of dpt_comm_wake */
    bool settling;     /* in dpt_comm_settle, where an abort does not stop a copy */
    bool dirty;        /* a link is dirty */
    struct peer_wait peer_wait;
    uint64_t bytes_sent;
    int64_t last_poll_ms;
    int64_t polling_since_ms; /* the owner has polled since then without a long pause */
    struct comm_pool pool;
    struct dpt_comm_xfer *xfers; /* [2 world_size], transfers of the small all-gather */
};

/* comm.c: the parts that do not depend on the backend; the creator adds the links. */
DPT_MUST_USE enum dpt_status dpt_comm_alloc(struct dpt_comm_listener *listener,
                                            const struct dpt_comm_spec *spec, struct dpt_comm **ret,
                                            struct dpt_err *err);
void dpt_comm_add_link(struct dpt_comm *comm, struct dpt_conn *link);
/* Opens a wire of the communicator for a connection between hosts; *ret NULL: spec->encrypt wants
 * none, or a failure. `sent`: the hello or welcome that this side has sent; `got`: that of the peer
 * (DPT_HANDSHAKE_BYTES each); NULL: nothing will be received. */
DPT_MUST_USE enum dpt_status dpt_comm_protect(struct dpt_comm *comm,
                                              const struct dpt_comm_spec *spec, const uint8_t *sent,
                                              const uint8_t *got, struct dpt_wire **ret,
                                              struct dpt_err *err);

/* post.c: like dpt_comm_exchange, over the flows of the router (relay.h) to ranks of this host,
 * too. A SEND from `buf` of more than DPT_COMM_BUF_BYTES_MAX is not copied: the memory must not
 * change before the op is done. The transfers are well-formed and from or into `buf`. */
DPT_MUST_USE enum dpt_status dpt_comm_exchange_routed(struct dpt_comm *comm,
                                                      struct dpt_comm_xfer *xfers, int n,
                                                      struct dpt_comm_op **ret,
                                                      struct dpt_err *err);

/* op_pool.c: both functions assert that the pool is not empty; dpt_comm_exchange checks that
 * first. */
struct dpt_rec *dpt_comm_take_rec(struct dpt_comm *comm);
uint8_t *dpt_comm_take_small(struct dpt_comm *comm);
void dpt_comm_give_small(struct dpt_comm *comm, uint8_t *slot);
void dpt_comm_give_op(struct dpt_comm_op *op);

/* conn.c: keeps the first failure, fills *err with it (may be NULL) and returns its status. */
enum dpt_status dpt_comm_keep_failure(struct dpt_comm *comm, const struct dpt_err *failure,
                                      struct dpt_err *err);
/* Takes back from all peers the memory that was lent for writing, in bounded time. If a peer may
 * still write and the memory cannot be exchanged, the process ends (abort). A second call has no
 * effect. */
void dpt_comm_shut_links(struct dpt_comm *comm);
/* True when an abort should end the present work. */
bool dpt_comm_aborting(const struct dpt_comm *comm);

/* peer_wait.c: the owner is about to wait, is awake again, and ends its poll. dpt_peer_arrived: a
 * posted receive of the link has begun to arrive. Each call costs a branch if nothing is traced. */
void dpt_peer_wait_begin(struct dpt_comm *comm);
void dpt_peer_wait_wake(struct dpt_comm *comm);
void dpt_peer_wait_end(struct dpt_comm *comm);
void dpt_peer_arrived(struct dpt_conn *link);

/* poll.c: *ret_next gets the nearest deadline of a link. Fails if that deadline has passed. */
DPT_MUST_USE enum dpt_status dpt_comm_check_deadlines(struct dpt_comm *comm, int64_t now,
                                                      int64_t *ret_next, struct dpt_err *err);
/* After a poll of `op` has failed because a peer was lost or an abort came: receives the bytes that
 * other ranks had sent. True when all receives of `op` are complete. After a loss it waits up to
 * COMM_DOUBT_MS for these bytes; after an abort it looks once. */
bool dpt_comm_settle(struct dpt_comm *comm, struct dpt_comm_op *op);

#endif
