/* The data plane: one generation's communicator between the ranks of a run.
 *
 * Life: a listener is opened once per rank process and outlives generations; a communicator is
 * created for one generation, used by one thread (its owner), aborted from any thread, destroyed by
 * its owner. Calls post and return; dpt_comm_poll says done, in progress, or an error, after which
 * only abort and destroy are legal.
 *
 * Between two ranks transfers match in the order they were posted, per direction; both sides name
 * the same byte count. Ranks must therefore post in the same order, which a plan gives them.
 *
 * Backends compose: peers on the same host (equal host keys) talk through shared memory, others
 * through TCP. A peer that dies is noticed by the EOF of its socket; one that destroys its
 * communicator says goodbye first, and is then missed only by who still waits for it. Waiting for a
 * peer that computes has no deadline: it ends by abort. A transfer between hosts that has begun and
 * stops moving for `timeout_ms` is an error, so an owner polls while it has sends in flight.
 *
 * Memory that is sent from or received into is registered memory (dpt_comm_mem): it outlives
 * generations, and shared-memory peers read it in place. Only memory made open can they write, and
 * only where a SEND says so and while it is in flight. After abort has returned from the owner's
 * dpt_comm_poll or destroy, nothing writes into registered memory. */
#ifndef DPT_WORKER_COMM_COMM_H
#define DPT_WORKER_COMM_COMM_H

#include "base/account.h"
#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    DPT_COMM_WORLD_MAX = 1024,
    DPT_COMM_ADDR_BYTES = 128,
    DPT_COMM_NONCE_BYTES = 16,
    DPT_COMM_RUN_BYTES = 64,
    DPT_COMM_REGIONS_MAX = 64,
    DPT_COMM_BUF_BYTES_MAX = 1024,       /* a SEND from `buf` */
    DPT_COMM_SMALL_BYTES_MAX = 64 * 1024 /* a rank's share of a small all-gather */
};

struct dpt_comm_listener;
struct dpt_comm_mem;
struct dpt_comm;
struct dpt_comm_op;

/* Opens the sockets on which peers will dial: an abstract Unix socket and a TCP port on `address`
 * (numeric IPv4 or IPv6, as given to the peers). The addresses to publish are owned by the
 * listener. */
DPT_MUST_USE enum dpt_status
dpt_comm_listener_create(const char *address, struct dpt_comm_listener **ret, struct dpt_err *err);
void dpt_comm_listener_destroy(struct dpt_comm_listener **listener);
const char *dpt_comm_listener_shm_addr(const struct dpt_comm_listener *listener);
const char *dpt_comm_listener_tcp_addr(const struct dpt_comm_listener *listener);

/* From here on what the listener and its communicators allocate counts into `account` (borrowed for
 * its life; NULL, as in the beginning: it does not count): registered memory, what there is of it
 * already included, and the communicators' records. While there is no communicator. */
void dpt_comm_listener_set_account(struct dpt_comm_listener *listener, struct dpt_account *account);

/* Bytes that a listener and its communicator of a world of this size take beside the memory that
 * their users register: staging of small messages, records of what is under way. */
size_t dpt_comm_own_bytes(int world_size);

/* Bytes of registered memory that are mapped now, in whole pages. */
size_t dpt_comm_listener_bytes(const struct dpt_comm_listener *listener);

/* Registered memory of this process (memfd-backed, zeroed, touched, 64-byte aligned). Register
 * before the first communicator or between generations, never while one exists. At most 64 regions
 * a listener. */
DPT_MUST_USE enum dpt_status dpt_comm_mem_create(struct dpt_comm_listener *listener, size_t bytes,
                                                 struct dpt_comm_mem **ret, struct dpt_err *err);
/* The same, counted for what `tag` says; the one above is for DPT_MEMORY_COMM. `open`: peers of
 * this host may write into what is lent to them for that. */
DPT_MUST_USE enum dpt_status dpt_comm_mem_create_for(struct dpt_comm_listener *listener,
                                                     enum dpt_memory_tag tag, bool open,
                                                     size_t bytes, struct dpt_comm_mem **ret,
                                                     struct dpt_err *err);
/* While a communicator exists: only memory that was withdrawn from it. */
void dpt_comm_mem_destroy(struct dpt_comm_mem **mem);
void *dpt_comm_mem_data(const struct dpt_comm_mem *mem);
size_t dpt_comm_mem_bytes(const struct dpt_comm_mem *mem);

struct dpt_comm_peer {
    int rank;
    int host; /* equal to the own host's index: shared memory */
    char shm_addr[DPT_COMM_ADDR_BYTES];
    char tcp_addr[DPT_COMM_ADDR_BYTES];
};

struct dpt_comm_spec {
    char run[DPT_COMM_RUN_BYTES];
    uint64_t generation;
    uint8_t nonce[DPT_COMM_NONCE_BYTES];
    int rank, world_size, host;
    const struct dpt_comm_peer
        *peers; /* every peer this rank talks to, without itself; borrowed during create */
    int n_peers;
    int timeout_ms; /* deadline of creation, and of a transfer that has begun and stopped moving */
};

/* Builds the communicator: the higher rank dials the lower one; connections that open with another
 * run, generation, rank or nonce are closed and ignored. Blocks for at most timeout_ms;
 * DPT_EABORTED when `abort_fd` (an eventfd the caller owns and this only looks at; -1: none)
 * becomes readable; DPT_ETIMEOUT and DPT_EPEER name the rank that is missing, which `ret_suspect`
 * (may be NULL) also gets (-1: unknown). */
DPT_MUST_USE enum dpt_status dpt_comm_create(struct dpt_comm_listener *listener,
                                             const struct dpt_comm_spec *spec, int abort_fd,
                                             struct dpt_comm **ret, int *ret_suspect,
                                             struct dpt_err *err);

/* Sets the abort flag and wakes the owner. Any thread, any state, returns at once. */
void dpt_comm_abort(struct dpt_comm *comm);

/* Closes everything; accepts a pointer to NULL. By the owner; posted operations end here, their
 * handles with them. For peers this is an orderly goodbye when nothing has failed and, after an
 * abort, nothing was in flight (what is lent is given back; poll with op NULL first when sends may
 * be in flight), else a failed one that hands on who is suspected. */
void dpt_comm_destroy(struct dpt_comm **comm);

int dpt_comm_rank(const struct dpt_comm *comm);
int dpt_comm_world_size(const struct dpt_comm *comm);

enum dpt_comm_dir {
    DPT_COMM_SEND,
    DPT_COMM_RECV,
    DPT_COMM_LEND /* receive without a copy where the backend can: *lent points into the peer's
                     memory, else into the staging that mem or buf names; valid until
                     dpt_comm_op_free. Staging may be left out only where it is certain that it is
                     not used: a peer of this host that sends from registered memory */
};

struct dpt_comm_xfer {
    enum dpt_comm_dir dir;
    int peer;
    struct dpt_comm_mem *mem; /* registered region; SEND of at most 1 KiB may use NULL and `buf` */
    size_t offset, bytes;     /* in mem */
    void *buf; /* when mem is NULL: SEND of at most DPT_COMM_BUF_BYTES_MAX (copied when posted);
                  RECV of any size, or staging of a LEND */
    const void *lent; /* out, LEND: where the bytes are, once done */
    /* SEND from open memory and the LEND of it, without staging, between ranks of one host: who
     * borrows writes the bytes anew before it gives them back (dpt_comm_write_begin); the SEND is
     * done when it has. Both sides say so. */
    bool write;
    void *lent_write; /* out, LEND with `write`: lent, to be written */
};

enum { DPT_COMM_XFERS_MAX = 2 * DPT_COMM_WORLD_MAX, DPT_COMM_OPS_MAX = 256 };

/* Posts a list of transfers (never to oneself). DPT_EINVAL: an ill-formed one, nothing is posted;
 * DPT_EOVERFLOW: too many in flight, nothing is posted; else the communicator has failed. `xfers`
 * is borrowed until the op is freed (its `lent` members are filled there). The memory of a SEND
 * must not change before the op is done; done means the peer has taken the bytes (for LEND: has
 * freed its op). */
DPT_MUST_USE enum dpt_status dpt_comm_exchange(struct dpt_comm *comm, struct dpt_comm_xfer *xfers,
                                               int n, struct dpt_comm_op **ret,
                                               struct dpt_err *err);

/* Progresses everything posted and returns DPT_OK when `op` is done (op NULL: after progress, if
 * nothing is in flight), DPT_INPROGRESS after at most wait_ms (0: no waiting, -1: until done) or
 * when dpt_comm_wake was called, DPT_EABORTED, DPT_EPEER or DPT_ETIMEOUT (err names the rank). For
 * an op with LEND, the SENDs to a lender complete when the lender's peer frees, see above. */
DPT_MUST_USE enum dpt_status dpt_comm_poll(struct dpt_comm *comm, struct dpt_comm_op *op,
                                           int wait_ms, struct dpt_err *err);

/* The same, but returns DPT_OK as soon as everything that `op` receives has arrived. Two ranks that
 * lend to each other must wait with this: the SENDs of both are done only when both have freed. */
DPT_MUST_USE enum dpt_status dpt_comm_poll_received(struct dpt_comm *comm, struct dpt_comm_op *op,
                                                    int wait_ms, struct dpt_err *err);

/* The same without a goal: returns when woken or after wait_ns (DPT_INPROGRESS; -1: no limit), or
 * on failure. For an owner that only keeps its peers moving. */
DPT_MUST_USE enum dpt_status dpt_comm_poll_woken(struct dpt_comm *comm, int64_t wait_ns,
                                                 struct dpt_err *err);

/* The same, but returns DPT_OK as soon as any op is done that was not when this last returned so:
 * for an owner with many under way, who then looks which. */
DPT_MUST_USE enum dpt_status dpt_comm_poll_any(struct dpt_comm *comm, int wait_ms,
                                               struct dpt_err *err);

/* True when every RECV and LEND of `op` has arrived, though its SENDs may still be read by peers.
 * After a poll. */
bool dpt_comm_op_received(const struct dpt_comm_op *op);
/* True when it is done: all has arrived, and all that was sent has been taken. After a poll. */
bool dpt_comm_op_done(const struct dpt_comm_op *op);

/* Ends the use of an op (returns what was lent). Everything it receives must have arrived, unless
 * the communicator has failed; its SENDs that are not done go on in the background, finished by
 * later polls. Accepts a pointer to NULL. */
void dpt_comm_op_free(struct dpt_comm *comm, struct dpt_comm_op **op);

/* Between these two the owner may write into what `op` has borrowed with `write`; some milliseconds
 * at most, since a lender that gives up meanwhile waits for the end. begin fails when a lender has
 * given up, as the poll that tells why. */
DPT_MUST_USE enum dpt_status
dpt_comm_write_begin(struct dpt_comm *comm, const struct dpt_comm_op *op, struct dpt_err *err);
void dpt_comm_write_end(struct dpt_comm *comm);

/* Makes the owner's waiting dpt_comm_poll return DPT_INPROGRESS: new work has come. Any thread. */
void dpt_comm_wake(struct dpt_comm *comm);

/* Registered memory that is needed no more though the communicator goes on: nothing of it is in
 * flight, nothing more may be sent from it, and peers of this host, who learn of it when they next
 * poll, unmap it. By the owner; dpt_comm_mem_destroy, which gives the pages back, may follow at
 * once. (Receiving into memory that was registered after creation is nowhere allowed.) */
void dpt_comm_withdraw(struct dpt_comm *comm, struct dpt_comm_mem *mem);

/* Allows the owner's waits to spin for a moment before they sleep, while nothing else of this
 * process wants its core: on while the threads that compute are waiting for the owner. They do so
 * only where all peers are of this host and the cores suffice (base/cores.h); off at first. Any
 * thread.
 */
void dpt_comm_allow_spin(struct dpt_comm *comm, bool allowed);

/* The rank that the last DPT_EPEER or DPT_ETIMEOUT is about; -1: unknown. */
int dpt_comm_suspect(const struct dpt_comm *comm);

/* Bytes this rank has sent to other ranks since creation, and written into their memory: payload,
 * by any backend. */
uint64_t dpt_comm_bytes_sent(const struct dpt_comm *comm);

/* On exchange, blocking the owner until done: every rank gives `bytes` (<= 64 KiB) and gets all of
 * them in rank order in `ret_all` (world x bytes); what the step's small all-reduce is made of,
 * since its fold is the caller's. It holds to a rule that the commit of a step needs: what one rank
 * got whole, no survivor misses. When a peer is lost in it, or an abort comes, what the others have
 * sent is still taken, and when that is all, the call succeeds and the next one fails. */
DPT_MUST_USE enum dpt_status dpt_comm_small_all_gather(struct dpt_comm *comm, const void *mine,
                                                       size_t bytes, void *ret_all,
                                                       struct dpt_err *err);

#endif
