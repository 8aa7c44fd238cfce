/* What the files of worker/comm share: listener, communicator, and the small vtable behind which
 * shared memory and TCP stand, in tests a simulated network, too.
 *
 * A communicator has one link a peer. A posted transfer is a record in one of its link's two
 * queues, sends and receives, which match the peer's in order. A link moves its queues when the
 * core asks (after posting, when its socket is ready), completes records, and names its peer when
 * it fails. Records, operations and small copies come from pools made at creation. */
#ifndef DPT_WORKER_COMM_INTERNAL_H
#define DPT_WORKER_COMM_INTERNAL_H

#include "worker/comm/comm.h"

#include <stdatomic.h>

enum {
    COMM_RECORDS_MAX = 16384,    /* transfers posted and not yet done, all ops together */
    COMM_INLINE_SLOTS_MIN = 256, /* small sends waiting for their socket; more with more peers */
    COMM_REGIONS = DPT_COMM_REGIONS_MAX + 1, /* the staging region is one */
    COMM_COPY_CHUNK_BYTES = 1 << 20,         /* between two looks at the abort flag */
    COMM_STAGING_BYTES = DPT_COMM_SMALL_BYTES_MAX,
    COMM_DOUBT_MS = 30,  /* for what others sent before a peer died to arrive */
    COMM_WRITER_MS = 200 /* for a peer to end what it writes here; then the memory is exchanged */
};

struct dpt_comm_mem {
    struct dpt_comm_listener *listener;
    int region; /* index in the listener's table: its name between peers */
    int fd;
    uint8_t *data;
    size_t bytes, map_bytes;
    enum dpt_memory_tag tag;
    bool open;      /* peers map it to write */
    bool withdrawn; /* from the communicator there is */
};

/* What stands in the place of sockets, where a listener has one: a test's simulated network
 * (tests/worker/comm/sim.h). */
struct dpt_comm_network {
    /* dpt_comm_create, after it has looked at the spec. */
    enum dpt_status (*create)(struct dpt_comm_listener *listener, const struct dpt_comm_spec *spec,
                              int abort_fd, struct dpt_comm **ret, int *ret_suspect,
                              struct dpt_err *err);
    /* Before each exchange, poll and settling; a failure is the communicator's. */
    enum dpt_status (*call)(struct dpt_comm *comm, struct dpt_err *err);
    /* The communicator is being destroyed, its links are gone. */
    void (*forget)(struct dpt_comm *comm);
    /* The listener is being destroyed. */
    void (*unlisten)(struct dpt_comm_listener *listener);
};

struct dpt_comm_listener {
    int shm_fd, tcp_fd; /* listening, nonblocking; -1: none */
    char shm_addr[DPT_COMM_ADDR_BYTES], tcp_addr[DPT_COMM_ADDR_BYTES];
    struct dpt_comm_mem *mems[COMM_REGIONS];
    struct dpt_comm_mem *staging;           /* where small_all_gather sends from */
    int comms;                              /* alive */
    struct dpt_account *account;            /* NULL: nothing is counted */
    const struct dpt_comm_network *network; /* NULL: sockets */
};

enum rec_state {
    REC_FREE,
    REC_QUEUED,     /* in the link's queue */
    REC_OFFERED,    /* shm send: the peer knows where the bytes are and has not given them back */
    REC_LENT,       /* receive: the caller reads the peer's memory */
    REC_GIVING_BACK /* shm receive: the message that gives the bytes back is not yet sent */
};

/* One transfer. Everything needed after posting is copied here: the caller's list is not looked at
 * again, but for `lent`. */
struct dpt_rec {
    struct dpt_rec *next; /* in the queue or list it stands in */
    struct dpt_comm_op *op;
    struct dpt_link *link;
    struct dpt_comm_xfer *xfer; /* receives: where `lent` goes */
    enum rec_state state;
    enum dpt_comm_dir dir;
    bool write;
    uint8_t *data;       /* SEND: source; RECV: destination; LEND: staging, may be NULL */
    uint32_t region;     /* SEND from registered memory, */
    uint64_t offset;     /* and where in it */
    size_t bytes, moved; /* payload; tcp: how much of it has moved */
    uint8_t *small;      /* SEND: the inline slot it was copied to, or NULL */
    uint8_t head[16];    /* tcp: frame header, */
    size_t head_moved;   /* and how much of it is sent */
    uint32_t remote;     /* shm receive: the sender's record */
};

struct rec_queue {
    struct dpt_rec *first, *last;
};

struct dpt_comm_op {
    struct dpt_comm_op *next; /* free list */
    struct dpt_comm *comm;
    int sends_left, recvs_left;
    struct dpt_rec *lends; /* arrived, to be given back */
    bool used, freed;
};

enum link_goodbye { GOODBYE_ORDERLY, GOODBYE_FAILED };

/* A backend. Functions return DPT_OK (moved or not) or fail the communicator through dpt_link_lost
 * or dpt_link_broken. None blocks. */
struct dpt_link_ops {
    enum dpt_status (*send)(struct dpt_link *link, struct dpt_err *err);
    enum dpt_status (*receive)(struct dpt_link *link, struct dpt_err *err);
    /* Takes a lent record back. */
    void (*give_back)(struct dpt_link *link, struct dpt_rec *rec);
    /* True when the next receive or send would find something that no system call tells of. NULL:
     * never. */
    bool (*has_mail)(struct dpt_link *link);
    /* The owner goes to sleep on its descriptors, after which it looks for mail once more, or is
     * awake again. NULL: nobody needs to know. */
    void (*rest)(struct dpt_link *link, bool sleeps);
    /* Begins to write into what the peer lends, false where that is shut; ends it. NULL: nothing is
     * lent for writing by this backend. */
    bool (*write_begin)(struct dpt_link *link);
    void (*write_end)(struct dpt_link *link);
    /* Tells the peer that a region is gone. NULL: it has not mapped any. */
    void (*withdraw)(struct dpt_link *link, int region);
    /* Nothing lent to the peer is written after this has returned true. False: the peer is in the
     * midst of writing and stands still, and the memory itself must be exchanged. NULL: nothing to
     * do. */
    bool (*shut)(struct dpt_link *link);
    /* Epoll events it wants. */
    uint32_t (*interest)(const struct dpt_link *link);
    /* Monotonic ms at which the link has been quiet or in doubt too long; INT64_MAX: never. */
    int64_t (*deadline_ms)(const struct dpt_link *link);
    /* That time has come: the failure. */
    enum dpt_status (*late)(struct dpt_link *link, struct dpt_err *err);
    /* Says goodbye if that is possible at once, closes the socket, unmaps, frees. `suspect`: who
     * made this side fail. */
    void (*destroy)(struct dpt_link *link, enum link_goodbye goodbye, int suspect);
};

struct dpt_link {
    const struct dpt_link_ops *ops;
    struct dpt_comm *comm;
    int rank;
    int fd;        /* -1: none, or gone */
    bool ready;    /* creation: everything exchanged that must be before the first transfer */
    bool bye;      /* the peer has said goodbye: its EOF is no death */
    bool gone;     /* EOF after goodbye seen */
    bool doubtful; /* reset: the peer died or gave up; others may know which */
    bool lost;     /* it has failed: moved no more */
    bool dirty;    /* posted to since it was last moved */
    bool writing;  /* into what the peer lends */
    bool readable; /* its socket was reported since it was last read */
    bool watched;  /* its socket stands in the epoll set, */
    uint32_t watched_events; /* for these */
    int pending;             /* posted and not completed */
    struct rec_queue sends, recvs;
};

struct dpt_comm {
    struct dpt_comm_listener *listener;
    size_t pool_bytes; /* of records, small copies, and this */
    char run[DPT_COMM_RUN_BYTES];
    uint64_t generation;
    int rank, world_size, timeout_ms;
    struct dpt_link **links;   /* [n_links] */
    struct dpt_link **link_of; /* [world_size], NULL where there is none */
    int n_links;
    int epoll_fd, wake_fd;
    atomic_bool abort_asked, wake_asked;
    atomic_bool spin_allowed; /* by dpt_comm_allow_spin */
    enum dpt_status status;   /* the failure, once there is one */
    struct dpt_err failure;
    int suspect;
    int ops_in_flight; /* not done */
    bool shut;         /* no peer writes here any more */
    bool news;         /* an op was done since dpt_comm_poll_any last said so */
    bool woken;        /* why the last poll came back in progress: dpt_comm_wake */
    bool settling;     /* in dpt_comm_settle: an abort does not stop a copy */
    bool dirty;        /* some link is */
    uint64_t bytes_sent;
    int64_t last_poll_ms;
    int64_t polling_since_ms; /* begin of the owner's present run of polls without a long pause */

    struct dpt_comm_op ops[DPT_COMM_OPS_MAX], *ops_free;
    struct dpt_rec *recs, *recs_free;
    int recs_left;
    uint8_t *smalls; /* inline slots; a free one holds the pointer to the next */
    uint8_t *smalls_free;
    int smalls_left;
    struct dpt_comm_xfer *xfers;            /* [2 world_size] for gather.c */
    const struct dpt_comm_network *network; /* NULL: sockets */
};

/* comm.c, for exchange.c. Taking asserts that the pool is not empty: exchange checks before it
 * posts. */
struct dpt_rec *dpt_rec_take(struct dpt_comm *comm);
uint8_t *dpt_small_take(struct dpt_comm *comm);
bool dpt_op_done(const struct dpt_comm_op *op);
void dpt_op_give(struct dpt_comm_op *op);
/* Tells epoll what a link waits for now. */
DPT_MUST_USE enum dpt_status dpt_link_watch(struct dpt_link *link, struct dpt_err *err);
/* The nearest deadline of a link; fails when it has passed. */
DPT_MUST_USE enum dpt_status dpt_comm_check_deadlines(struct dpt_comm *comm, int64_t now,
                                                      int64_t *ret_next, struct dpt_err *err);
/* The first failure stays; fills *err with it and returns it. */
enum dpt_status dpt_comm_keep_failure(struct dpt_comm *comm, enum dpt_status status,
                                      const struct dpt_err *failure, struct dpt_err *err);

/* exchange.c, for gather.c: after a poll of `op` has failed because a peer was lost or an abort
 * came, takes what the others had sent; true when everything that `op` receives is there. A peer
 * that was lost is given COMM_DOUBT_MS of patience with the others, an abort only one look. */
bool dpt_comm_settle(struct dpt_comm *comm, struct dpt_comm_op *op);
/* True when the work at hand should end because of an abort. */
bool dpt_comm_aborting(const struct dpt_comm *comm);

/* comm.c, for links. */
void dpt_queue_push(struct rec_queue *queue, struct dpt_rec *rec);
struct dpt_rec *dpt_queue_pop(struct rec_queue *queue);
/* mem.c: puts other pages, of equal content, in the place of those that peers have mapped. */
DPT_MUST_USE enum dpt_status dpt_comm_mem_exchange(struct dpt_comm_mem *mem, struct dpt_err *err);
/* The transfer is over for this side; the record stays the link's until dpt_rec_free. */
void dpt_rec_complete(struct dpt_rec *rec);
/* The bytes lie at `data` until the caller frees the op; `writable`: the same, if they may be
 * written, else NULL. */
void dpt_rec_lend(struct dpt_rec *rec, const void *data, void *writable);
void dpt_rec_free(struct dpt_rec *rec);
uint32_t dpt_rec_index(const struct dpt_rec *rec);
/* Copies unless the abort flag rises meanwhile (DPT_EABORTED). */
DPT_MUST_USE enum dpt_status dpt_link_copy(struct dpt_link *link, void *to, const void *from,
                                           size_t bytes, struct dpt_err *err);
/* DPT_EPEER: the peer (or `suspect`, when >= 0, in its own words) is lost. */
enum dpt_status dpt_link_lost(struct dpt_link *link, int suspect, struct dpt_err *err,
                              const char *how);
/* How a goodbye names the suspect on the wire: rank + 1, 0 for nobody. What is no rank reads as -1.
 */
uint32_t dpt_link_suspect_code(int suspect);
int dpt_link_suspect(uint32_t code);
/* Another failure that is about this peer. */
enum dpt_status dpt_link_broken(struct dpt_link *link, enum dpt_status status, struct dpt_err *err,
                                const char *how);
/* EOF after goodbye: fine unless something was expected. */
DPT_MUST_USE enum dpt_status dpt_link_left(struct dpt_link *link, struct dpt_err *err);

/* The parts of a communicator that do not depend on the backend; links are added by the creator. */
DPT_MUST_USE enum dpt_status dpt_comm_alloc(struct dpt_comm_listener *listener,
                                            const struct dpt_comm_spec *spec, struct dpt_comm **ret,
                                            struct dpt_err *err);
void dpt_comm_add_link(struct dpt_comm *comm, struct dpt_link *link);
/* Puts every link's socket under the communicator's epoll. */
DPT_MUST_USE enum dpt_status dpt_comm_watch(struct dpt_comm *comm, struct dpt_err *err);

/* Backends: each takes the connected, nonblocking socket. NULL with *err: out of memory (the socket
 * stays the caller's). */
struct dpt_link *dpt_shm_link_create(struct dpt_comm *comm, int rank, int fd, struct dpt_err *err);
struct dpt_link *dpt_tcp_link_create(struct dpt_comm *comm, int rank, int fd, struct dpt_err *err);

#endif
