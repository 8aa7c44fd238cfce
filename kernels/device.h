/* Devices and streams. A device owns memory, a stream runs ops. ops.h has the ops.
 *
 * A stream is a queue of ops. On the CPU it is a pool of threads that includes the calling thread,
 * so an op is done when it returns. On CUDA it is a CUDA stream and its library handles. One thread
 * uses a stream at a time. Ops return nothing: an error sticks to the stream, and the next
 * dpt_stream_sync returns it.
 *
 * A training step allocates nothing, because the stream prepares its ops before. Between
 * prepare_begin and prepare_end an op touches no tensor (pointers may be NULL). It only creates the
 * primitives and the workspace that its shape needs. An op of a shape that was never prepared still
 * works, but it allocates. */
#ifndef DPT_KERNELS_DEVICE_H
#define DPT_KERNELS_DEVICE_H

#include "base/account.h"
#include "base/err.h"
#include "kernels/tensor.h"

#include <stdbool.h>
#include <stddef.h>

struct dpt_device;
struct dpt_stream;
struct dpt_event;
struct dpt_graph;
struct dpt_ops;

/* Opens the CPU device. The caller destroys its streams first. DPT_EINVAL if DPT_TEST_ISA has an
 * unknown name, DPT_EUNSUPPORTED if this machine does not have the instruction set that it
 * names. */
DPT_MUST_USE enum dpt_status dpt_device_cpu_create(struct dpt_device **ret, struct dpt_err *err);
enum { DPT_FINGERPRINT_BYTES = 72 };

/* Returns the number of CUDA devices that CUDA_VISIBLE_DEVICES leaves, and their common
 * fingerprint. Opens no device, so a process that only asks takes no device memory. Errors as
 * dpt_device_cuda_create's, and DPT_EUNSUPPORTED when the devices are of different kinds. */
DPT_MUST_USE enum dpt_status dpt_device_cuda_look(int *ret_count,
                                                  char ret_fingerprint[DPT_FINGERPRINT_BYTES],
                                                  struct dpt_err *err);
/* The product name of CUDA device `index` ("NVIDIA H200"). Opens no device. Errors as
 * dpt_device_cuda_create's. */
enum { DPT_DEVICE_NAME_BYTES = 256 };
DPT_MUST_USE enum dpt_status dpt_device_cuda_name(int index, char ret[DPT_DEVICE_NAME_BYTES],
                                                  struct dpt_err *err);
/* The PCI address of CUDA device `index` ("0000:1B:00.0"). Opens no device. Errors as
 * dpt_device_cuda_create's. */
enum { DPT_DEVICE_BUS_BYTES = 32 };
DPT_MUST_USE enum dpt_status dpt_device_cuda_bus(int index, char ret[DPT_DEVICE_BUS_BYTES],
                                                 struct dpt_err *err);
/* Whether CUDA device `from` can access the memory of device `to`; false for a device and itself.
 * Opens no device. Errors as dpt_device_cuda_create's. */
DPT_MUST_USE enum dpt_status dpt_device_cuda_peer(int from, int to, bool *ret, struct dpt_err *err);
/* Opens CUDA device `index`, counted among the devices that CUDA_VISIBLE_DEVICES leaves. Its memory
 * is separate from the host's: ops take only memory of dpt_device_alloc, except `copy`, which takes
 * host memory on either side. DPT_ENOENT if there is no such device, DPT_EVERSION if the driver is
 * missing or too old, DPT_EUNSUPPORTED if the build has no CUDA or the device is too old or too
 * small. The error's text says what to do. */
DPT_MUST_USE enum dpt_status dpt_device_cuda_create(int index, struct dpt_device **ret,
                                                    struct dpt_err *err);
void dpt_device_destroy(struct dpt_device **dev);

/* Makes `dev` the calling thread's current device, for libraries that work on the current
 * device. */
DPT_MUST_USE enum dpt_status dpt_device_enter(struct dpt_device *dev, struct dpt_err *err);

/* The ops of this device (static storage). */
const struct dpt_ops *dpt_device_ops(const struct dpt_device *dev);

/* Names the arithmetic of this device: its kind, the instruction set, the library versions and a
 * hash of the results of some products, such as "cpu avx512 onednn-2.6.3 isa-e7 probe-5ae11ba5".
 * Two nodes with the same fingerprint compute the same bits. The device owns the text. */
const char *dpt_device_fingerprint(const struct dpt_device *dev);
/* Makes one fingerprint for a rank that computes gradients on `device` and everything else on
 * `host`. */
void dpt_fingerprint_join(const char *device, const char *host, char ret[DPT_FINGERPRINT_BYTES]);

/* From this call on, matrix products of f32 round their operands to TF32 (10 bits of mantissa) and
 * add in f32. CUDA devices only; called before the first stream is created. */
void dpt_device_use_tf32(struct dpt_device *dev);

/* From this call on, allocations count into `account` as well as into the device's own counter. The
 * device borrows `account` until it is destroyed. Called once, while nothing is allocated. */
void dpt_device_set_account(struct dpt_device *dev, struct dpt_account *account);

/* Device memory, aligned to 64 bytes, zeroed and touched, counted as `tag` in the account and in
 * dpt_device_bytes. The caller owns it and frees it with dpt_device_free_for and the same tag and
 * bytes. */
DPT_MUST_USE enum dpt_status dpt_device_alloc_for(struct dpt_device *dev, enum dpt_memory_tag tag,
                                                  size_t bytes, void **ret, struct dpt_err *err);
void dpt_device_free_for(struct dpt_device *dev, enum dpt_memory_tag tag, void *ptr, size_t bytes);
/* The same with tag DPT_MEMORY_OTHER. */
DPT_MUST_USE enum dpt_status dpt_device_alloc(struct dpt_device *dev, size_t bytes, void **ret,
                                              struct dpt_err *err);
void dpt_device_free(struct dpt_device *dev, void *ptr, size_t bytes);
/* Host memory that this device copies fastest (CUDA: page-locked), zeroed, aligned to 64 bytes. No
 * account counts it. The caller frees it with the same number of bytes. */
DPT_MUST_USE enum dpt_status dpt_device_alloc_host(struct dpt_device *dev, size_t bytes, void **ret,
                                                   struct dpt_err *err);
void dpt_device_free_host(struct dpt_device *dev, void *ptr, size_t bytes);
size_t dpt_device_bytes(const struct dpt_device *dev);

enum { DPT_STREAM_THREADS_MAX = 128 };

/* Creates a stream of `threads` workers, 1 to DPT_STREAM_THREADS_MAX; DPT_EINVAL for another
 * number. On the CPU these are the calling thread and threads - 1 threads of the stream, which
 * sleep when they have nothing to do and never spin for long. The number of threads never changes
 * the bits of a result. */
DPT_MUST_USE enum dpt_status dpt_stream_create(struct dpt_device *dev, int threads,
                                               struct dpt_stream **ret, struct dpt_err *err);
/* The same, but the device starts the ops of this stream before waiting ops of other streams (CUDA:
 * the greatest stream priority). It does not interrupt ops that have begun. */
DPT_MUST_USE enum dpt_status dpt_stream_create_urgent(struct dpt_device *dev, int threads,
                                                      struct dpt_stream **ret, struct dpt_err *err);
void dpt_stream_destroy(struct dpt_stream **stream);

/* From the next op on `threads` workers compute and the others sleep; `threads` is 1 up to the
 * number that the stream was created with. Called by the thread that uses the stream. After an
 * increase, the caller prepares shapes again if their ops must not allocate. */
void dpt_stream_set_threads(struct dpt_stream *stream, int threads);

void dpt_stream_prepare_begin(struct dpt_stream *stream);
DPT_MUST_USE enum dpt_status dpt_stream_prepare_end(struct dpt_stream *stream, struct dpt_err *err);

/* Waits until all posted ops are done. Returns the first error since the last call. */
DPT_MUST_USE enum dpt_status dpt_stream_sync(struct dpt_stream *stream, struct dpt_err *err);

/* An event marks a position in a stream, so that other queues of the device can wait for that
 * position without the host. It stands for all ops that were posted before the last
 * dpt_event_record. */
DPT_MUST_USE enum dpt_status dpt_event_create(struct dpt_device *dev, struct dpt_event **ret,
                                              struct dpt_err *err);
/* Called when no queue waits for the event any more. Accepts a pointer to NULL. */
void dpt_event_destroy(struct dpt_event **event);
/* Records the event in `stream`. Called by the thread that uses the stream. An error sticks to the
 * stream. */
void dpt_event_record(struct dpt_event *event, struct dpt_stream *stream);
/* Makes ops that are posted to `stream` after this call wait for the event, without the host.
 * `stream` is of the event's device. Called by the thread that uses the stream. An error sticks to
 * the stream. */
void dpt_event_await(struct dpt_event *event, struct dpt_stream *stream);
/* Blocks the calling thread until all ops before the event are done. `stream` is the stream in
 * which the event was last recorded, and the caller is the thread that uses it. An error sticks to
 * the stream. Returns at once if the event was never recorded. */
void dpt_event_wait(struct dpt_event *event, struct dpt_stream *stream);
/* The device's handle of the event (CUDA: a cudaEvent_t). */
void *dpt_event_native(const struct dpt_event *event);

/* A graph is a captured list of ops that the host launches with one call, repeatedly, with the
 * arguments and addresses of the capture (CUDA: a CUDA graph). It helps a host that posts ops
 * more slowly than the device runs them. False for a device without graphs, and while each op is
 * timed. */
bool dpt_device_has_graphs(const struct dpt_device *dev);
/* From this call to capture_end the stream records ops and does not run them. Every recorded op was
 * prepared before. No sync, no event and no copy from or to the host may happen in between. False:
 * the stream has an error, keeps it, and no capture has begun. */
DPT_MUST_USE bool dpt_stream_capture_begin(struct dpt_stream *stream);
/* Ends the capture and creates the graph. Returns the error of an op since capture_begin or of the
 * creation; then there is no graph. Afterwards the stream runs ops again. */
DPT_MUST_USE enum dpt_status dpt_stream_capture_end(struct dpt_stream *stream,
                                                    struct dpt_graph **ret, struct dpt_err *err);
/* False when `stream`, from which the graph was captured, has since moved the workspace that the
 * graph uses. An op of a shape that was not prepared can move it. Such a graph may not be launched
 * again. */
bool dpt_graph_is_current(const struct dpt_graph *graph, const struct dpt_stream *stream);
/* Posts the graph to the stream from which it was captured. An error sticks to that stream. */
void dpt_graph_launch(struct dpt_graph *graph, struct dpt_stream *stream);
/* Called when no launch of the graph is under way. Accepts a pointer to NULL. */
void dpt_graph_destroy(struct dpt_graph **graph);

#endif
