/* The data plane between ranks: one communicator per generation.
 *
 * Life: each rank process opens one listener, which outlives generations. A communicator is created
 * for one generation. One thread, its owner, uses and destroys it. Any thread may abort it. Calls
 * post transfers and return. dpt_comm_poll returns done, in progress, or an error. After an error
 * only abort and destroy are legal.
 *
 * In each direction between two ranks, transfers match in the order in which they were posted, and
 * both ranks give the same byte count. The plan therefore fixes one order for all ranks.
 *
 * Peers on one host use shared memory, others TCP. The EOF of a peer's socket shows the peer's
 * death. A peer that destroys its communicator sends a goodbye first. A goodbye is a failure only
 * for ranks that still wait for that peer. A wait for a peer that computes has no deadline; abort
 * ends the wait. Between hosts, a receive that has begun and does not move for `timeout_ms` is an
 * error. So the sender's owner must poll while it has sends in flight.
 *
 * Transfers use registered memory (dpt_comm_mem). It outlives generations, and peers of the same
 * host read it in place. Peers write only into open memory, only where a SEND allows it, and only
 * while that SEND is in flight. After an abort, once dpt_comm_poll or destroy has returned, no peer
 * writes into registered memory. */
#ifndef DPT_WORKER_COMM_COMM_H
#define DPT_WORKER_COMM_COMM_H

#include "base/account.h"
#include "base/encrypt.h"
#include "base/err.h"
#include "base/world_limits.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    DPT_COMM_WORLD_MAX = DPT_MESH_MAX,
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

/* From now on counts all memory of the listener and its communicators in `account` (borrowed; NULL,
 * the default: nothing is counted), also the registered memory that exists. Must not be called
 * while a communicator exists. */
void dpt_comm_listener_set_account(struct dpt_comm_listener *listener, struct dpt_account *account);

/* The bytes that a listener and a communicator of this world size allocate themselves: staging of
 * small messages, records of transfers, relays if the world is no mesh (dpt_comm_spec.mesh_max),
 * and, unless `encrypt` is DPT_ENCRYPT_NONE, the records of each connection. Memory that users
 * register is not included. */
size_t dpt_comm_own_bytes(int world_size, int mesh_max, enum dpt_encrypt encrypt);

/* Bytes of registered memory that are mapped now, in whole pages. */
size_t dpt_comm_listener_bytes(const struct dpt_comm_listener *listener);

/* Allocates registered memory of this process (a memfd, zeroed, touched, 64-byte aligned). Must not
 * be called while a communicator exists. At most DPT_COMM_REGIONS_MAX regions per listener. */
DPT_MUST_USE enum dpt_status dpt_comm_mem_create(struct dpt_comm_listener *listener, size_t bytes,
                                                 struct dpt_comm_mem **ret, struct dpt_err *err);
/* Like dpt_comm_mem_create, with a tag for the account (the default is DPT_MEMORY_COMM). `open`:
 * peers of this host may write where a SEND allows it. */
DPT_MUST_USE enum dpt_status dpt_comm_mem_create_for(struct dpt_comm_listener *listener,
                                                     enum dpt_memory_tag tag, bool open,
                                                     size_t bytes, struct dpt_comm_mem **ret,
                                                     struct dpt_err *err);
/* While a communicator exists, only memory that was withdrawn from it may be destroyed. */
void dpt_comm_mem_destroy(struct dpt_comm_mem **mem);
void *dpt_comm_mem_data(const struct dpt_comm_mem *mem);
size_t dpt_comm_mem_bytes(const struct dpt_comm_mem *mem);

struct dpt_comm_peer {
    int rank;
    int host; /* equal to this rank's host: the link is shared memory */
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
    int timeout_ms; /* deadline of creation, and of a begun receive that does not move (TCP) */
    /* The largest world that is a mesh, in which each rank has a connection to each peer. In a
     * larger world ranks relay what they send between hosts (relay.h), and peers are all other
     * ranks. The same on all ranks. 0: every world is a mesh. */
    int mesh_max;
    enum dpt_encrypt
        encrypt; /* of connections between hosts (protected_records.h); the same on all ranks */
};

/* Creates the communicator. The higher rank of two dials the lower one. A rank closes a connection
 * that opens with another run, generation, rank or nonce. Blocks for at most timeout_ms.
 * DPT_EABORTED: `abort_fd` (an eventfd that the caller owns; this function only polls it; -1: none)
 * became readable. DPT_ETIMEOUT, DPT_EPEER: the error names the missing rank, and `ret_suspect`
 * (may be NULL) gets that rank (-1: unknown). */
DPT_MUST_USE enum dpt_status dpt_comm_create(struct dpt_comm_listener *listener,
                                             const struct dpt_comm_spec *spec, int abort_fd,
                                             struct dpt_comm **ret, int *ret_suspect,
                                             struct dpt_err *err);

/* Sets the abort flag and wakes the owner. Any thread, in any state. Returns at once. */
void dpt_comm_abort(struct dpt_comm *comm);

/* Closes everything. Accepts a pointer to NULL. Only the owner calls it. Posted operations and
 * their handles end here. If nothing has failed, and no abort came while an operation was in
 * flight, it gives borrowed memory back, except memory that this rank still had to write, and sends
 * peers an orderly goodbye. Otherwise it sends peers a failed goodbye that names the suspect. An
 * owner that may have sends in flight must poll with op NULL first. */
void dpt_comm_destroy(struct dpt_comm **comm);

int dpt_comm_rank(const struct dpt_comm *comm);
int dpt_comm_world_size(const struct dpt_comm *comm);

enum dpt_comm_dir {
    DPT_COMM_SEND,
    DPT_COMM_RECV,
    /* Receives without a copy where the backend can: then *lent points into the peer's memory, else
     * into the staging (mem or buf). It is valid until dpt_comm_op_free. A LEND may have no staging
     * only if the peer is on this host and sends from registered memory. */
    DPT_COMM_LEND
};

struct dpt_comm_xfer {
    enum dpt_comm_dir dir;
    int peer;
    struct dpt_comm_mem *mem; /* registered region; NULL: `buf` */
    size_t offset, bytes;     /* in mem */
    /* SEND: source of at most DPT_COMM_BUF_BYTES_MAX, copied when posted; RECV: destination of any
     * size; LEND: staging. */
    void *buf;
    const void *lent; /* out, LEND: the address of the bytes, once done */
    /* For a SEND from open memory and its LEND without staging, between ranks of one host. The
     * borrower writes new bytes into the memory before it gives the memory back
     * (dpt_comm_write_begin). The SEND is done after that. Both ranks set this flag. */
    bool write;
    void *lent_write; /* out, LEND with `write`: the same address as `lent` */
};

enum { DPT_COMM_XFERS_MAX = 2 * DPT_COMM_WORLD_MAX, DPT_COMM_OPS_MAX = 256 };

/* Posts a list of transfers (never to this rank itself). DPT_EINVAL: a transfer is ill-formed,
 * nothing is posted. DPT_EOVERFLOW: too many are in flight, nothing is posted. Any other error: the
 * communicator has failed. `xfers` is borrowed until the op is freed, because this side fills
 * `lent` there. The memory of a SEND must not change before the op is done: before the peer has
 * taken the bytes or, if the peer borrowed them (LEND), has freed its op. */
DPT_MUST_USE enum dpt_status dpt_comm_exchange(struct dpt_comm *comm, struct dpt_comm_xfer *xfers,
                                               int n, struct dpt_comm_op **ret,
                                               struct dpt_err *err);

/* Moves everything that is posted. DPT_OK: `op` is done (NULL: nothing is in flight).
 * DPT_INPROGRESS: wait_ms has passed (0: no waiting, -1: no limit), or dpt_comm_wake was called.
 * DPT_EABORTED, DPT_EPEER, DPT_ETIMEOUT: err names the rank. */
DPT_MUST_USE enum dpt_status dpt_comm_poll(struct dpt_comm *comm, struct dpt_comm_op *op,
                                           int wait_ms, struct dpt_err *err);

/* Like dpt_comm_poll, but returns DPT_OK as soon as everything that `op` receives has arrived. Two
 * ranks that lend memory to each other must use this function, because the SEND of each is done
 * only after the other has freed its op. */
DPT_MUST_USE enum dpt_status dpt_comm_poll_received(struct dpt_comm *comm, struct dpt_comm_op *op,
                                                    int wait_ms, struct dpt_err *err);

/* Like dpt_comm_poll, but waits for no operation: returns DPT_INPROGRESS when dpt_comm_wake was
 * called or after wait_ns (-1: no limit), or a failure. For an owner that only keeps its peers'
 * transfers moving. */
DPT_MUST_USE enum dpt_status dpt_comm_poll_woken(struct dpt_comm *comm, int64_t wait_ns,
                                                 struct dpt_err *err);

/* Like dpt_comm_poll, but returns DPT_OK as soon as any op was done since the last DPT_OK of this
 * function. The owner then finds the op with dpt_comm_op_done. */
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

/* Between write_begin and write_end the owner may write into memory that `op` borrowed with
 * `write`. The owner must call write_end within a few milliseconds, because a lender that gives up
 * waits for it. write_begin fails if a lender has given up; the error is that of the poll that
 * shows the reason. */
DPT_MUST_USE enum dpt_status
dpt_comm_write_begin(struct dpt_comm *comm, const struct dpt_comm_op *op, struct dpt_err *err);
void dpt_comm_write_end(struct dpt_comm *comm);

/* The ranks of this world relay each other's transfers. */
bool dpt_comm_relays(const struct dpt_comm *comm);

/* Relays until dpt_comm_wake (DPT_INPROGRESS), an abort or a failure. An owner without work calls
 * it in a world that relays. After an abort while nothing is in flight the communicator has not
 * failed, so its end is orderly. The next call of another function reports a failure. */
enum dpt_status dpt_comm_relay(struct dpt_comm *comm);

/* Makes the owner's waiting poll return DPT_INPROGRESS because there is new work. Any thread. */
void dpt_comm_wake(struct dpt_comm *comm);

/* Ends the use of registered memory while the communicator exists. No transfer from this memory may
 * be in flight or follow. Peers of this host unmap the memory in their next poll. Only the owner
 * calls it, and may call dpt_comm_mem_destroy at once afterwards. */
void dpt_comm_withdraw(struct dpt_comm *comm, struct dpt_comm_mem *mem);

/* Allows the owner to spin for a moment before it sleeps. Initially off. The caller turns it on
 * while compute threads of this process wait for the owner. The owner spins only if all peers are
 * on this host and cores are spare (base/cores.h). Any thread. */
void dpt_comm_allow_spin(struct dpt_comm *comm, bool allowed);

/* The rank that the last DPT_EPEER or DPT_ETIMEOUT is about; -1: unknown. */
int dpt_comm_suspect(const struct dpt_comm *comm);

/* Payload bytes that this rank has sent to other ranks, or written into their memory, since
 * creation, by any backend. */
uint64_t dpt_comm_bytes_sent(const struct dpt_comm *comm);

/* All-gather of at most DPT_COMM_SMALL_BYTES_MAX bytes per rank, in rank order, into `ret_all`
 * (world x bytes). Blocks the owner until done. The commit of a step needs this rule: if one rank
 * has received the parts of all ranks, every survivor receives them too. Therefore, if a peer is
 * lost or an abort comes during the call, the call still receives the parts that other ranks have
 * sent. If every part has then arrived, the call succeeds, and the next call fails.
 *
 * Where ranks relay, parts go from rank to rank in log2 W rounds. There a loss or an abort during
 * the call may leave survivors without the parts. The commit's rule still holds: a rank has the
 * parts of all ranks only if every rank has taken part, and a survivor that has them gives the
 * outcome to the others. */
DPT_MUST_USE enum dpt_status dpt_comm_small_all_gather(struct dpt_comm *comm, const void *mine,
                                                       size_t bytes, void *ret_all,
                                                       struct dpt_err *err);

#endif
