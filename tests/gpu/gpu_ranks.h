/* Ranks of this process that compute on a CUDA device. All share the first one. */
#ifndef DPT_TESTS_GPU_GPU_RANKS_H
#define DPT_TESTS_GPU_GPU_RANKS_H

/* Ranks that the director starts from now on open the device. Returns -1; without such a device the
 * exit code of the test: 77 (skipped), with DPT_TEST_GPU=1 in the environment 1. */
int gpu_ranks_open(void);

#endif
