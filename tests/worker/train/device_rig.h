/* Ranks with an emulated device: a CPU device with memory that the host cannot access (discrete.h).
 * NCCL is a double that copies between these devices (nccl_fabric.h). */
#ifndef DPT_TESTS_WORKER_TRAIN_DEVICE_RIG_H
#define DPT_TESTS_WORKER_TRAIN_DEVICE_RIG_H

#include "tests/kernels/discrete.h"
#include "tests/worker/train/nccl_ranks.h"
#include "tests/worker/train/rank_rig.h"

enum { DEVICE_RIG_ROOM = 64 << 20, DEVICE_RIG_SEQUENCES = 5 };

/* cmocka's setup and teardown of each test. */
int device_rig_setup(void **state);
int device_rig_teardown(void **state);

/* The argument of director_open_device_with: opens the emulated device of a rank. */
enum dpt_status device_rig_open(const struct dpt_rank_start *start, struct dpt_device **ret,
                                struct dpt_err *err);

/* Bytes of device memory that the rank `handle`, which must live, has allocated. */
size_t device_rig_in_use(int handle);

/* The device computes, and the host stores the state. */
void offload(struct dpt_config *config);
/* The device also stores the state, and gradients go from device to device. */
void keep_state_on_device(struct dpt_config *config);

/* A config with the state on the host, 11 slots, and an evaluation after every second step. */
struct dpt_config device_rig_config(enum dpt_accumulate accumulate, enum dpt_precision precision,
                                    int steps);

/* Runs in a world of `world` ranks on two hosts and compares rank 0's accounts of the host's and
 * the device's memory with the formulas. Returns the device's bytes; *ret_elements is the model's
 * number of elements. */
json_int_t device_rig_bytes(const struct dpt_config *config, const char *name, int world,
                            json_int_t *ret_elements);

#endif
