/* Ranks with an emulated device: a CPU device with memory that the host cannot access (discrete.h).
 * NCCL is a double that copies between these devices (nccl_fabric.h). */
#ifndef DPT_TESTS_WORKER_TRAIN_ACCELERATOR_RIG_H
#define DPT_TESTS_WORKER_TRAIN_ACCELERATOR_RIG_H

#include "tests/kernels/discrete.h"
#include "tests/worker/train/nccl_ranks.h"
#include "tests/worker/train/rig.h"

enum { ACCELERATOR_ROOM = 64 << 20, ACCELERATOR_SEQUENCES = 5 };

/* cmocka's, for each test. */
int accelerator_setup(void **state);
int accelerator_teardown(void **state);

/* For director_accelerate: the device of ranks after the setup. */
enum dpt_status accelerator_open(const struct dpt_rank_start *start, struct dpt_device **ret,
                                 struct dpt_err *err);

/* Bytes that the living rank of a handle has of its device. */
size_t accelerator_in_use(int handle);

/* It computes, and the host has the state. */
void offload(struct dpt_config *config);
/* It has the state, too, and gradients go from device to device. */
void keep_on_device(struct dpt_config *config);

/* Offloaded: 11 slots, evaluated after every second step. */
struct dpt_config accelerator_config(enum dpt_accumulate accumulate, enum dpt_precision precision,
                                     int steps);

/* Runs in a world of `world` ranks on two hosts and holds rank 0's account of the host's memory
 * against the formula. Returns the device's bytes, and gives the elements of the model. */
json_int_t accelerator_bytes(const struct dpt_config *config, const char *name, int world,
                             json_int_t *ret_elements);

#endif
