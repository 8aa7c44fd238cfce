/* One rank, composed of the folders of worker/train. Functions and files that concern all of them
 * call such a folder a room. Its header has its struct and functions. A folder includes and calls
 * only the folders above it in this list; tests/tidy checks this:
 *
 *   state/      generation, training state: data that all folders share
 *   link/       the agent: commands, the report, the fence and the grants
 *   log/        log.dir: lines of the run's log, records of this rank
 *   device/     memory, streams and kernels; the model's forward and backward
 *   trace/      trace.dir: the recorder of the threads, the records of the GPU, the files of its
 *               windows
 *   save/       checkpoint.dir: saving, loading, rescues
 *   step/       a step up to its application; evaluation; comparison of replicas
 *   formation/  from a plan to a communicator and a filled state
 *   ..          the process: start, commands, the loop over steps, the end
 *
 * This header only declares the structs of the folders. */
#ifndef DPT_WORKER_TRAIN_STATE_ROOMS_H
#define DPT_WORKER_TRAIN_STATE_ROOMS_H

#include "base/config.h"
#include "kernels/device.h"
#include "worker/agent/rank_protocol.h"
#include "worker/comm/nccl_calls.h"
#include "worker/trace/present_work.h"
#include "worker/train/state/generation.h"
#include "worker/train/state/train_state.h"

struct dpt_rank_options {
    const struct dpt_rank_start *start;
    const struct dpt_config *config;
    int link_fd; /* taken by the rank */
    /* Opens the device for cluster.device: cuda. NULL: opens a CUDA device. */
    enum dpt_status (*open_device)(const struct dpt_rank_start *start, struct dpt_device **ret,
                                   struct dpt_err *err);
    /* Gives the functions of NCCL and their context, on the communication thread. NULL: the
     * library's functions. */
    enum dpt_status (*load_nccl)(const struct dpt_rank_start *start,
                                 const struct dpt_nccl_calls **ret, void **ret_ctx,
                                 struct dpt_err *err);
    /* The rank writes its newest step to this descriptor (rank_protocol.h); -1: nowhere. */
    int step_fd;
    /* Called on the link's thread when the agent has ended. A process exits there at once. NULL:
     * the rank only stops. */
    void (*on_agent_gone)(void);
};

struct dpt_link;
struct rank_log;
struct rank_trace;
struct rank_device;
struct rank_save;
struct rank_stepping;
struct rank_formation;
struct rank_loop;

struct dpt_rank {
    const struct dpt_rank_options *options;
    const struct dpt_config *config;
    struct dpt_sample_form form;
    int slots; /* slots of a step, of all ranks together */
    struct dpt_model *model;
    struct dpt_grid grid; /* grid of the model's units */
    struct dpt_comm_listener *listener;
    struct dpt_comm_thread *comm_thread;
    struct dpt_strategy *strategy;
    struct generation gen;
    struct train_state state;
    struct dpt_present_work activity; /* of the main and the communication thread */
    struct dpt_link *link;
    struct rank_log *log;
    struct rank_trace *trace;
    struct rank_device *device;
    struct rank_save *save;
    struct rank_stepping *stepping;
    struct rank_formation *formation;
    struct rank_loop *loop;
};

#endif
