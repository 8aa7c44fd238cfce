/* Ranks as threads, each with a GPU: nccl_fabric.h takes NCCL's place, and real communicators of
 * the CPU are the control. */
#ifndef DPT_TESTS_WORKER_COMM_NCCL_GPUS_H
#define DPT_TESTS_WORKER_COMM_NCCL_GPUS_H

#include "tests/worker/comm/comm_world.h"
#include "tests/worker/comm/nccl_fabric.h"
#include "worker/comm/nccl_comm.h"

#include <stdatomic.h>

enum { PIECE = 5, LONG_MS = 20000, SHORT_MS = 400, VICTIM = 1 };

struct scene {
    struct fabric fabric;
    enum fabric_fault fault; /* of the victim */
    bool aborts;             /* the victim is aborted and does not die */
    bool meets;              /* the victim dies only when all have reached the end */
    int timeout_ms;
    int closing_min;     /* for the fabric */
    atomic_int at_fault; /* ranks that report a failed creation as their own fault (DPT_EDEVICE) */
};

/* A rank and its GPU. */
struct gpu {
    struct rank *self;
    struct scene *scene;
    struct fabric_rank view;
    struct dpt_nccl_comm *comm;
    struct dpt_comm *control;
};

/* Runs `fn` in one thread for each rank, with the scene as the world's argument. Checks that no
 * communicator is left afterwards. */
void gpu_run(int size, struct scene *scene, rank_fn fn);

/* gpu_plug_in gives the rank its GPU; VICTIM's has the scene's fault. gpu_create creates its
 * communicators; none is open yet. */
struct gpu gpu_plug_in(struct rank *self);
void gpu_create(struct gpu *g);
/* An orderly end, together with the other ranks. */
void gpu_unplug(struct gpu *g);

/* Opens the communicators of a generation over g->control, which the caller has set. */
enum dpt_status gpu_open_with(struct gpu *g, uint64_t generation,
                              const struct dpt_nccl_split_of *splits, int n_splits);
void gpu_open_world(struct gpu *g, uint64_t generation);

enum dpt_status gpu_wait_for(struct gpu *g, int group, uint64_t ticket);
struct dpt_nccl_piece gpu_send_to(int peer, const float *from, size_t n);
struct dpt_nccl_piece gpu_recv_from(int peer, float *to, size_t n);
/* Posts the pieces to the world's communicator and waits. */
void gpu_exchange(struct gpu *g, const struct dpt_nccl_piece *pieces, int n);
/* An all-reduce: each rank owns a piece, receives the others' contributions to it, adds them in the
 * order of ranks, and sends the sum to all. Checks the bits. */
void gpu_all_reduce(struct gpu *g);

#endif
