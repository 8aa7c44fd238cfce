/* The control of the emulated device (emulated.h) by tests in C. */
#ifndef DPT_TESTS_GPU_EMULATED_CONTROL_H
#define DPT_TESTS_GPU_EMULATED_CONTROL_H

#ifdef __cplusplus
extern "C" {
#endif

/* From here on kernels cannot be loaded for lack of memory; or can. */
void emulated_refuse_loading(int refuse);

/* Of a queue; the lower goes first. */
int emulated_priority(const void *queue);

#ifdef __cplusplus
}
#endif

#endif
