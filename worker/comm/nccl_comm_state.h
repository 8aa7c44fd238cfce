/* The inside of the data plane between GPUs, for nccl_comm.c, nccl_open.c and nccl_queue.c. */
#ifndef DPT_WORKER_COMM_NCCL_COMM_STATE_H
#define DPT_WORKER_COMM_NCCL_COMM_STATE_H

#include "worker/comm/nccl_comm.h"

struct nccl_group {
    int size;                       /* 0: not open */
    int order[DPT_COMM_WORLD_MAX];  /* rank of the run → rank here; -1: outside */
    uint64_t posted, started, done; /* operations since creation; ticket k names the k-th */
    struct dpt_nccl_op queue[DPT_NCCL_QUEUE_MAX];
    const struct dpt_trace_span *span[DPT_NCCL_QUEUE_MAX]; /* of queue[i]; NULL: it is not traced */
    int64_t began_ns; /* of the trace of the operation that runs; 0: none */
};

struct dpt_nccl_comm {
    const struct dpt_nccl_calls *calls;
    void *ctx;
    struct dpt_nccl_guard guard;
    struct dpt_nccl_watch *watch;
    struct dpt_nccl_machine *machine;
    struct dpt_comm *control; /* NULL: nothing is open */
    bool built;               /* every group is READY, on every rank */
    int world_at;  /* index of the present world; the machine has two places for worlds */
    uint64_t kept; /* number of the world at world_at, in use or kept; 0: none */
    int kept_rank, kept_size;
    int n_splits;
    struct dpt_nccl_world world;
    struct nccl_group groups[DPT_NCCL_GROUPS_MAX];
    uint64_t bytes_sent;
    uint64_t n_done, n_reported; /* operations that are done; those that poll_any has reported */
    struct dpt_nccl_offer offers[DPT_COMM_WORLD_MAX]; /* offers of all ranks in the present open */
    uint8_t gathered[DPT_COMM_WORLD_MAX * DPT_NCCL_ID_MESSAGE_BYTES];
    /* Verdicts by rank, and their transfers. */
    uint8_t verdicts[DPT_COMM_WORLD_MAX];
    struct dpt_comm_xfer verdicts_in[DPT_COMM_WORLD_MAX], verdicts_out[DPT_COMM_WORLD_MAX];
    struct dpt_comm_op *verdicts_op;
    struct dpt_nccl_piece scratch[DPT_NCCL_PIECES_MAX];
};

/* Index of a group's communicator in the machine: 0 and 1 are worlds (the present one and the one
 * to be shrunk), then the splits. */
static inline int dpt_nccl_comm_at(const struct dpt_nccl_comm *c, int group)
{
    return group == 0 ? c->world_at : 1 + group;
}
_Static_assert(2 + DPT_NCCL_SPLITS_MAX <= DPT_NCCL_COMMS_MAX, "every group has its place");

/* Time between two checks of the library. A check takes some microseconds. The next operation of a
 * group starts when a check finds the previous one done. */
enum { DPT_NCCL_NAP_NS = 100 * 1000 };

/* nccl_queue.c */
/* Steps the machine, counts the operations that are done, launches the next ones. */
DPT_MUST_USE enum dpt_status dpt_nccl_comm_move(struct dpt_nccl_comm *c, struct dpt_err *err);
/* Polls the control for wait_ns, or until it is woken. Fails with its failure. */
DPT_MUST_USE enum dpt_status dpt_nccl_comm_poll_control(struct dpt_nccl_comm *c, int64_t wait_ns,
                                                        bool *ret_woken, struct dpt_err *err);
/* Stops every communicator of the machine and frees all but `keep` (-1: frees all). If `keep` came
 * to rest, it can be shrunk later. Takes bounded time. */
void dpt_nccl_comm_stop(struct dpt_nccl_comm *c, int keep);
/* Ends the generation: afterwards nothing is open. */
void dpt_nccl_comm_reset(struct dpt_nccl_comm *c);

/* nccl_open.c: waits for all ranks before an orderly end, because in it the library waits for the
 * peers. DPT_ETIMEOUT after stop_ms; other errors are failures of the control. */
DPT_MUST_USE enum dpt_status dpt_nccl_comm_barrier(struct dpt_nccl_comm *c, struct dpt_err *err);

#endif
