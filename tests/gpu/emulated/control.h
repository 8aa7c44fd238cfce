/* Control of the emulated device (emulated.h) for tests in C. */
#ifndef DPT_TESTS_GPU_EMULATED_CONTROL_H
#define DPT_TESTS_GPU_EMULATED_CONTROL_H

#ifdef __cplusplus
extern "C" {
#endif

/* refuse 1: from now on a kernel cannot be loaded, for lack of memory; 0: it can. */
void emulated_refuse_loading(int refuse);

/* The priority of a queue; a lower number goes first. */
int emulated_priority(const void *queue);

#ifdef __cplusplus
}
#endif

#endif
