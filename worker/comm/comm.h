/* The data plane between ranks: one communicator per generation.
 *
 * Life: each rank process opens one listener, which outlives generations. A communicator is created
 * for one generation. One thread, its owner, uses and destroys it; any thread may abort it. Calls
 * post and return. dpt_comm_poll returns done, in progress, or an error; after an error only abort
 * and destroy are legal.
 *
 * Per direction between two ranks, transfers match in the order in which they were posted, and both
 * sides give the same byte count. The plan therefore fixes one order for all ranks.
 *
 * Peers on one host use shared memory, others TCP. The EOF of its socket shows a peer's death. A
 * peer that destroys its communicator says goodbye first; that is a failure only for ranks that
 * still wait for it. Waiting for a peer that computes has no deadline; abort ends it. A transfer
 * between hosts that has begun and does not move for `timeout_ms` is an error, so an owner polls
 * while it has sends in flight.
 *
 * Transfers use registered memory (dpt_comm_mem), which outlives generations and which peers of the
 * host read in place. Peers write only into open memory, only where a SEND allows it, and only
 * while it is in flight. After dpt_comm_poll or destroy has returned for an abort, nothing writes
 * into registered memory. */
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
    DPT_COMM_SMALL_BYTES_MAX = 64 * 1024 /* a rank's part of a small all-gather */
};

struct dpt_comm_listener;
struct dpt_comm_mem;
struct dpt_comm;
struct dpt_comm_op;

/* Opens the sockets that peers dial: an abstract Unix socket and a TCP port on `address` (numeric
 * IPv4 or IPv6). The listener owns the addresses to publish. */
DPT_MUST_USE enum dpt_status
dpt_comm_listener_create(const char *address, struct dpt_comm_listener **ret, struct dpt_err *err);
void dpt_comm_listener_destroy(struct dpt_comm_listener **listener);
const char *dpt_comm_listener_shm_addr(const struct dpt_comm_listener *listener);
const char *dpt_comm_listener_tcp_addr(const struct dpt_comm_listener *listener);

/* Counts all memory of the listener and its communicators in `account` from now on (borrowed;
 * NULL, the default: not counted). Registered memory that exists is moved to it. Only while there
 * is no communicator. */
void dpt_comm_listener_set_account(struct dpt_comm_listener *listener, struct dpt_account *account);

/* Bytes of a listener and a communicator of this world size beside the memory that users register:
 * staging of small messages, and records of transfers. */
size_t dpt_comm_own_bytes(int world_size);

/* Bytes of registered memory that are mapped now, in whole pages. */
size_t dpt_comm_listener_bytes(const struct dpt_comm_listener *listener);

/* Registers memory of this process (a memfd, zeroed, touched, 64-byte aligned), never while a
 * communicator exists. At most DPT_COMM_REGIONS_MAX regions per listener. */
DPT_MUST_USE enum dpt_status dpt_comm_mem_create(struct dpt_comm_listener *listener, size_t bytes,
                                                 struct dpt_comm_mem **ret, struct dpt_err *err);
/* The same with a tag for the account (the default is DPT_MEMORY_COMM). `open`: peers of this host
 * may write where a SEND allows it. */
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
    int host; /* equal to this rank's host: shared memory */
    char shm_addr[DPT_COMM_ADDR_BYTES];
    char tcp_addr[DPT_COMM_ADDR_BYTES];
};

struct dpt_comm_spec {
    char run[DPT_COMM_RUN_BYTES];
    uint64_t generation;
    uint8_t nonce[DPT_COMM_NONCE_BYTES];
    int rank, world_size, host;
    const struct dpt_comm_peer *peers; /* [n_peers], without this rank; borrowed during create */
    int n_peers;
    int timeout_ms; /* deadline of creation, and of a transfer that has begun and does not move */
};

/* Creates the communicator. The higher rank of two dials the lower one; connections that open with
 * another run, generation, rank or nonce are closed. Blocks for at most timeout_ms. DPT_EABORTED:
 * `abort_fd` (an eventfd that the caller owns and this only polls; -1: none) became readable.
 * DPT_ETIMEOUT, DPT_EPEER: the error names the missing rank, and `ret_suspect` (may be NULL) gets
 * it (-1: unknown). */
DPT_MUST_USE enum dpt_status dpt_comm_create(struct dpt_comm_listener *listener,
                                             const struct dpt_comm_spec *spec, int abort_fd,
                                             struct dpt_comm **ret, int *ret_suspect,
                                             struct dpt_err *err);

/* Sets the abort flag and wakes the owner. Any thread, any state, returns at once. */
void dpt_comm_abort(struct dpt_comm *comm);

/* Closes everything; accepts a pointer to NULL. By the owner. Posted operations and their handles
 * end here. Peers see an orderly goodbye if nothing has failed and no abort came while something
 * was in flight (borrowed memory is given back; poll with op NULL first if sends may be in flight).
 * Otherwise they see a failed one that names the suspect. */
void dpt_comm_destroy(struct dpt_comm **comm);

int dpt_comm_rank(const struct dpt_comm *comm);
int dpt_comm_world_size(const struct dpt_comm *comm);

enum dpt_comm_dir {
    DPT_COMM_SEND,
    DPT_COMM_RECV,
    DPT_COMM_LEND /* receive without a copy where the backend can: *lent points into the peer's
                     memory, else into the staging (mem or buf); valid until dpt_comm_op_free.
                     Without staging only where the peer is on this host and sends from registered
                     memory */
};

struct dpt_comm_xfer {
    enum dpt_comm_dir dir;
    int peer;
    struct dpt_comm_mem *mem; /* registered region; NULL: `buf` */
    size_t offset, bytes;     /* in mem */
    void *buf; /* SEND of at most DPT_COMM_BUF_BYTES_MAX (copied when posted); RECV of any size;
                  staging of a LEND */
    const void *lent; /* out, LEND: the address of the bytes, once done */
    /* SEND from open memory and its LEND without staging, between ranks of one host: the borrower
     * writes new bytes before it gives them back (dpt_comm_write_begin), and the SEND is done
     * after that. Both sides set it. */
    bool write;
    void *lent_write; /* out, LEND with `write`: lent, to be written */
};

enum { DPT_COMM_XFERS_MAX = 2 * DPT_COMM_WORLD_MAX, DPT_COMM_OPS_MAX = 256 };

/* Posts a list of transfers (never to this rank itself). DPT_EINVAL: an ill-formed one, nothing is
 * posted; DPT_EOVERFLOW: too many in flight, nothing is posted; else the communicator has failed.
 * `xfers` is borrowed until the op is freed, because `lent` is filled there. The memory of a SEND
 * must not change before the op is done, which means that the peer has taken the bytes (for LEND:
 * has freed its op). */
DPT_MUST_USE enum dpt_status dpt_comm_exchange(struct dpt_comm *comm, struct dpt_comm_xfer *xfers,
                                               int n, struct dpt_comm_op **ret,
                                               struct dpt_err *err);

/* Moves everything that is posted. DPT_OK: `op` is done (NULL: nothing is in flight).
 * DPT_INPROGRESS: wait_ms has passed (0: no waiting, -1: no limit), or dpt_comm_wake was called.
 * DPT_EABORTED, DPT_EPEER, DPT_ETIMEOUT: err names the rank. */
DPT_MUST_USE enum dpt_status dpt_comm_poll(struct dpt_comm *comm, struct dpt_comm_op *op,
                                           int wait_ms, struct dpt_err *err);

/* The same, but DPT_OK as soon as everything that `op` receives has arrived. Two ranks that lend to
 * each other must use this: their SENDs are done only when both have freed. */
DPT_MUST_USE enum dpt_status dpt_comm_poll_received(struct dpt_comm *comm, struct dpt_comm_op *op,
                                                    int wait_ms, struct dpt_err *err);

/* The same without a goal: returns when woken or after wait_ns (DPT_INPROGRESS; -1: no limit), or
 * on failure. For an owner that only keeps its peers moving. */
DPT_MUST_USE enum dpt_status dpt_comm_poll_woken(struct dpt_comm *comm, int64_t wait_ns,
                                                 struct dpt_err *err);

/* The same, but DPT_OK as soon as any op is done since the last DPT_OK of this function. The owner
 * then finds out which. */
DPT_MUST_USE enum dpt_status dpt_comm_poll_any(struct dpt_comm *comm, int wait_ms,
                                               struct dpt_err *err);

/* After a poll. Everything that `op` receives has arrived; its SENDs may still be read by peers. */
bool dpt_comm_op_received(const struct dpt_comm_op *op);
/* After a poll. Everything has arrived, and peers have taken everything that was sent. */
bool dpt_comm_op_done(const struct dpt_comm_op *op);

/* Ends the use of an op and gives back the memory that it borrowed. Its receives must be complete,
 * unless the communicator has failed. Later polls finish SENDs that are not done. Accepts a pointer
 * to NULL. */
void dpt_comm_op_free(struct dpt_comm *comm, struct dpt_comm_op **op);

/* Between these two the owner may write into memory that `op` borrowed with `write`, for a few
 * milliseconds at most, because a lender that gives up waits for the end. begin fails when a lender
 * has given up, with the error of the poll that shows the reason. */
DPT_MUST_USE enum dpt_status
dpt_comm_write_begin(struct dpt_comm *comm, const struct dpt_comm_op *op, struct dpt_err *err);
void dpt_comm_write_end(struct dpt_comm *comm);

/* Makes the owner's waiting poll return DPT_INPROGRESS because there is new work. Any thread. */
void dpt_comm_wake(struct dpt_comm *comm);

/* Ends the use of registered memory while the communicator lives. No transfer of it may be in
 * flight or follow. Peers of this host unmap it in their next poll. By the owner.
 * dpt_comm_mem_destroy may follow at once. */
void dpt_comm_withdraw(struct dpt_comm *comm, struct dpt_comm_mem *mem);

/* Allows the owner to spin for a moment before it sleeps. To be on while this process's compute
 * threads wait for the owner; off at first. It spins only where all peers are on this host and
 * cores are spare (base/cores.h). Any thread. */
void dpt_comm_allow_spin(struct dpt_comm *comm, bool allowed);

/* The rank that the last DPT_EPEER or DPT_ETIMEOUT is about; -1: unknown. */
int dpt_comm_suspect(const struct dpt_comm *comm);

/* Payload bytes that this rank has sent to other ranks, or written into their memory, since
 * creation, by any backend. */
uint64_t dpt_comm_bytes_sent(const struct dpt_comm *comm);

/* All-gather of at most DPT_COMM_SMALL_BYTES_MAX bytes per rank, in rank order, into `ret_all`
 * (world x bytes); blocks the owner until done. The commit of a step needs this rule: data that one
 * rank has received from all, every survivor receives too. Therefore, when a peer is lost meanwhile
 * or an abort comes, the call still receives the parts that the others have sent. If these are all,
 * it succeeds, and the next call fails. */
DPT_MUST_USE enum dpt_status dpt_comm_small_all_gather(struct dpt_comm *comm, const void *mine,
                                                       size_t bytes, void *ret_all,
                                                       struct dpt_err *err);

#endif
