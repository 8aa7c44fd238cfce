/* A link is the connection to one peer. A backend (shared memory, TCP, the tests' simulation)
 * implements struct dpt_conn_ops.
 *
 * A posted transfer is a record in one of its link's two queues, sends and receives. The k-th send
 * matches the peer's k-th receive. A link moves its queues when the communicator asks (after
 * posting, or when its socket is ready), completes records, and names its peer when it fails. */
#ifndef DPT_WORKER_COMM_CONN_H
#define DPT_WORKER_COMM_CONN_H

#include "worker/comm/listener.h"

enum {
    COMM_COPY_CHUNK_BYTES = 1 << 20, /* copied between two checks of the abort flag */
    COMM_DOUBT_MS = 30,  /* time for other peers' messages to arrive after a peer died */
    COMM_WRITER_MS = 200 /* time for a peer to finish writing here; then the memory is exchanged */
};

enum rec_state {
    REC_FREE,
    REC_QUEUED,     /* in the link's queue */
    REC_OFFERED,    /* shm send: the peer has the address and has not given the bytes back */
    REC_LENT,       /* receive: the caller reads the peer's memory */
    REC_GIVING_BACK /* shm receive: the message that gives the bytes back is not yet sent */
};

/* One transfer. Posting copies the transfer into the record: later code writes the caller's list
 * (`lent`) but never reads it. */
struct dpt_rec {
    struct dpt_rec *next; /* in its queue or list */
    struct dpt_comm_op *op;
    struct dpt_conn *link;
    struct dpt_comm_xfer *xfer; /* receives: gets `lent` */
    enum rec_state state;
    enum dpt_comm_dir dir;
    bool write;
    uint8_t *data;       /* SEND: source; RECV: destination; LEND: staging, may be NULL */
    uint32_t region;     /* SEND from registered memory: the region of `data` */
    uint64_t offset;     /* the offset of `data` in the region */
    size_t bytes, moved; /* payload; tcp: bytes of it that have moved */
    uint8_t *small;      /* SEND: the inline slot with the copy, or NULL */
    uint8_t head[16];    /* tcp: frame header */
    size_t head_moved;   /* tcp: bytes of `head` that are sent */
    uint32_t remote;     /* shm receive: the sender's record */
};

struct rec_queue {
    struct dpt_rec *first, *last;
};

struct dpt_comm_op {
    struct dpt_comm_op *next; /* free list */
    struct dpt_comm *comm;
    int sends_left, recvs_left;
    struct dpt_rec *lends; /* arrived, to be given back to their peers */
    bool used, freed;
};

enum link_goodbye { GOODBYE_ORDERLY, GOODBYE_FAILED };

/* A backend. Its functions return DPT_OK, whether or not they moved bytes, or fail the communicator
 * through dpt_conn_lost or dpt_conn_broken. None blocks. A function may be NULL where its comment
 * says so. */
struct dpt_conn_ops {
    enum dpt_status (*send)(struct dpt_conn *link, struct dpt_err *err);
    enum dpt_status (*receive)(struct dpt_conn *link, struct dpt_err *err);
    /* The caller needs the bytes of a lent record no more: gives them back to the peer. NULL: the
     * backend never calls dpt_conn_lend_rec. */
    void (*give_back)(struct dpt_conn *link, struct dpt_rec *rec);
    /* True when the next receive or send has work that no descriptor reports. NULL: never. */
    bool (*has_mail)(struct dpt_conn *link);
    /* The owner is about to sleep (it checks for mail once more afterwards), or is awake again.
     * NULL: the peer needs no wake-up message. */
    void (*rest)(struct dpt_conn *link, bool sleeps);
    /* Begin and end a write into the peer's lent memory. write_begin returns false if the peer has
     * shut the memory. NULL: this backend lends nothing for writing. */
    bool (*write_begin)(struct dpt_conn *link);
    void (*write_end)(struct dpt_conn *link);
    /* Tells the peer that a region is gone. NULL: the peer has mapped none. */
    void (*withdraw)(struct dpt_conn *link, int region);
    /* True: the peer no longer writes into lent memory. False: the peer stopped in the middle of a
     * write, so dpt_comm_mem_exchange must replace the memory. NULL: the same as true. */
    bool (*shut)(struct dpt_conn *link);
    /* For traced waits (peer_wait.c). `receives`: a receive has begun and is not complete. `sends`:
     * sends wait for room in the socket. `held_up_us`: the time in us, since creation, in which
     * they waited because the peer did not read. All NULL: a transfer is complete as soon as it
     * begins. */
    bool (*receives)(const struct dpt_conn *link);
    bool (*sends)(const struct dpt_conn *link);
    int64_t (*held_up_us)(const struct dpt_conn *link);
    /* Epoll events that the link waits for. */
    uint32_t (*interest)(const struct dpt_conn *link);
    /* Monotonic ms at which the link has been quiet or doubtful for too long; INT64_MAX, or NULL:
     * never. */
    int64_t (*deadline_ms)(const struct dpt_conn *link);
    /* The failure when that deadline has passed. NULL without deadline_ms. */
    enum dpt_status (*late)(struct dpt_conn *link, struct dpt_err *err);
    /* Sends a goodbye if it can do so at once, closes the socket, unmaps memory, frees the link.
     * `suspect`: the rank that made this side fail. */
    void (*destroy)(struct dpt_conn *link, enum link_goodbye goodbye, int suspect);
};

struct dpt_conn {
    const struct dpt_conn_ops *ops;
    struct dpt_comm *comm;
    int rank;
    int fd;                /* -1: none, or gone */
    struct dpt_wire *wire; /* of the communicator; NULL: bytes go over the network as they are */
    bool ready;            /* creation: all that precedes the first transfer is exchanged */
    bool bye;              /* the peer has sent a goodbye, so its EOF is not a death */
    bool gone;             /* the EOF after a goodbye was seen */
    bool doubtful;         /* reset: the peer died or gave up; other links may show which */
    bool lost;             /* the link has failed and moves nothing any more */
    bool dirty;            /* transfers were posted since the link last moved */
    bool writing;          /* between write_begin and write_end */
    bool readable;         /* epoll has reported the socket since it was last read */
    bool watched;          /* its socket is in the epoll set */
    uint32_t watched_events;
    int pending; /* transfers that are posted and not completed */
    struct rec_queue sends, recvs;
};

/* op_pool.c */
void dpt_conn_queue_push(struct rec_queue *queue, struct dpt_rec *rec);
struct dpt_rec *dpt_conn_queue_pop(struct rec_queue *queue);
/* The transfer is over for this side; the record stays the link's until dpt_conn_free_rec. */
void dpt_conn_complete_rec(struct dpt_rec *rec);
/* The caller may read the bytes at `data` until it frees the op. `writable`: the same address if
 * the caller may write there, else NULL. */
void dpt_conn_lend_rec(struct dpt_rec *rec, const void *data, void *writable);
void dpt_conn_free_rec(struct dpt_rec *rec);
uint32_t dpt_conn_rec_index(const struct dpt_rec *rec);

/* conn.c */
/* Copies. Stops with DPT_EABORTED if the abort flag is set during the copy. */
DPT_MUST_USE enum dpt_status dpt_conn_copy(struct dpt_conn *link, void *to, const void *from,
                                           size_t bytes, struct dpt_err *err);
/* Tells epoll which events the link waits for now. */
DPT_MUST_USE enum dpt_status dpt_conn_watch(struct dpt_conn *link, struct dpt_err *err);
/* Fails with DPT_EPEER: the peer is lost. `suspect` >= 0: the peer names this rank as the cause, so
 * this rank is lost instead. */
enum dpt_status dpt_conn_lost(struct dpt_conn *link, int suspect, struct dpt_err *err,
                              const char *how);
/* Fails with `status`, for any other failure that concerns this peer. */
enum dpt_status dpt_conn_broken(struct dpt_conn *link, enum dpt_status status, struct dpt_err *err,
                                const char *how);
/* To be called after reading. `eof`: the connection has ended. An end without a goodbye is a death.
 * An end or a goodbye while transfers are pending counts as a death, too. */
DPT_MUST_USE enum dpt_status dpt_conn_check_end(struct dpt_conn *link, bool eof,
                                                struct dpt_err *err);
/* The code of a suspect in a goodbye: rank + 1; 0: none. A code that is not the code of a rank
 * reads as -1. */
uint32_t dpt_conn_suspect_code(int suspect);
int dpt_conn_suspect(uint32_t code);

/* Backends: each takes ownership of the connected, nonblocking socket. NULL with *err: out of
 * memory; the caller still owns the socket. */
struct dpt_conn *dpt_shm_link_create(struct dpt_comm *comm, int rank, int fd, struct dpt_err *err);
struct dpt_conn *dpt_tcp_link_create(struct dpt_comm *comm, int rank, int fd, struct dpt_err *err);

/* tcp.c: the options of a data connection. Keepalive detects the loss of an idle peer's machine;
 * the rendezvous server detects it earlier. Returns 0, or not with errno set. */
int dpt_tcp_set_options(int fd, int timeout_ms);

#endif
