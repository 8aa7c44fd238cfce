/* Control of the emulated device (emulated.h) for tests in C. */
#ifndef DPT_TESTS_GPU_EMULATED_CONTROL_H
#define DPT_TESTS_GPU_EMULATED_CONTROL_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Is told of the work of the device, on the thread that posts it. Work is done when it is told. */
struct emulated_observer {
    void (*kernel)(unsigned grid, unsigned block, size_t shared_bytes);
    void (*copy)(size_t bytes);
    void (*set)(size_t bytes);
    void (*sync)(void); /* the host waits for a queue */
};
/* Borrowed; NULL: nobody is told. Called while the device is idle. */
void emulated_observe(const struct emulated_observer *observer);

/* refuse 1: from now on a kernel cannot be loaded, for lack of memory; 0: it can. */
void emulated_refuse_loading(int refuse);

/* The priority of a queue; a lower number goes first. */
int emulated_priority(const void *queue);

#ifdef __cplusplus
}
#endif

#endif
