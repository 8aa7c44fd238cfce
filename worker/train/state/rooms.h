/* One rank, composed of the rooms of worker/train. Each folder is a room. Its header has the room's
 * struct and functions. A room includes and calls only the rooms above it in this list, which
 * tests/tidy checks:
 *
 *   state/      generation, training state: data that all rooms share
 *   link/       the agent: commands, the report, the fence and the grants
 *   log/        log.dir: lines of the run's log, records of this rank
 *   device/     memory, streams and kernels; the model's forward and backward
 *   save/       checkpoint.dir: saving, loading, rescues
 *   step/       a step up to its application; evaluation; comparison of replicas
 *   formation/  from a plan to a communicator and a filled state
 *   ..          the process: start, commands, the loop over steps, the end
 *
 * The structs of the rooms are incomplete here: a file sees those whose headers it includes. */
#ifndef DPT_WORKER_TRAIN_STATE_ROOMS_H
#define DPT_WORKER_TRAIN_STATE_ROOMS_H

#include "worker/train/state/generation.h"
#include "worker/train/state/rank_options.h"
#include "worker/train/state/train_state.h"

struct dpt_link;
struct rank_log;
struct rank_device;
struct rank_save;
struct rank_stepping;
struct rank_formation;
struct rank_loop;

struct dpt_rank {
    const struct dpt_rank_options *options;
    const struct dpt_config *config;
    struct dpt_sample_form form;
    int slots; /* of a step, in all ranks */
    struct dpt_model *model;
    struct dpt_grid grid; /* of the model's units */
    struct dpt_comm_listener *listener;
    struct dpt_comm_thread *comm_thread;
    struct dpt_strategy *strategy;
    struct generation gen;
    struct train_state state;
    struct dpt_link *link;
    struct rank_log *log;
    struct rank_device *device;
    struct rank_save *save;
    struct rank_stepping *stepping;
    struct rank_formation *formation;
    struct rank_loop *loop;
};

#endif
