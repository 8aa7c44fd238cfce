/* Devices and streams: where memory lives and where ops run. ops.h has the ops.
 *
 * A stream is a queue of ops with its own workers (on CPU: a pool of threads that includes the
 * caller's, so ops are done when they return; on CUDA: a stream and its handles). One thread uses a
 * stream at a time. Ops return nothing: an error sticks to the stream and comes out of the next
 * dpt_stream_sync.
 *
 * Nothing is allocated in a training step. To that end a stream has a preparing mode: between
 * prepare_begin and prepare_end ops touch no tensor (pointers may be NULL) and only create the
 * primitives and the workspace that these shapes need. An op of a shape that was never prepared
 * still works, and allocates. */
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

/* Opens the CPU device. Destroy after its streams. */
DPT_MUST_USE enum dpt_status dpt_device_cpu_create(struct dpt_device **ret, struct dpt_err *err);
enum { DPT_FINGERPRINT_BYTES = 72 };

/* The number of CUDA devices that CUDA_VISIBLE_DEVICES leaves, all of one kind, and the fingerprint
 * of each. Opens none of them, so that a process that only asks takes no memory there. Errors as
 * dpt_device_cuda_create's; DPT_EUNSUPPORTED also when the devices are of different kinds. */
DPT_MUST_USE enum dpt_status dpt_device_cuda_look(int *ret_count,
                                                  char ret_fingerprint[DPT_FINGERPRINT_BYTES],
                                                  struct dpt_err *err);
/* The product name of CUDA device `index` ("NVIDIA H200"). Errors likewise. */
enum { DPT_DEVICE_NAME_BYTES = 256 };
DPT_MUST_USE enum dpt_status dpt_device_cuda_name(int index, char ret[DPT_DEVICE_NAME_BYTES],
                                                  struct dpt_err *err);
/* The PCI address of CUDA device `index` ("0000:1B:00.0"). Errors likewise; opens nothing. */
enum { DPT_DEVICE_BUS_BYTES = 32 };
DPT_MUST_USE enum dpt_status dpt_device_cuda_bus(int index, char ret[DPT_DEVICE_BUS_BYTES],
                                                 struct dpt_err *err);
/* Opens CUDA device `index` of those that CUDA_VISIBLE_DEVICES leaves. Its memory is not the
 * host's: ops take memory of dpt_device_alloc, and `copy` takes host memory on either side.
 * DPT_EUNSUPPORTED in a build without CUDA, DPT_ENOENT without the device; the text has the
 * remedy. */
DPT_MUST_USE enum dpt_status dpt_device_cuda_create(int index, struct dpt_device **ret,
                                                    struct dpt_err *err);
void dpt_device_destroy(struct dpt_device **dev);

/* Makes it the calling thread's current device, for libraries that work on that. */
DPT_MUST_USE enum dpt_status dpt_device_enter(struct dpt_device *dev, struct dpt_err *err);

/* The mathematics of this device (static storage). */
const struct dpt_ops *dpt_device_ops(const struct dpt_device *dev);

/* Names the arithmetic of this device: kind, ISA level used, library versions and a hash of the
 * results of some products
 * ("cpu avx512 onednn-2.6.3 isa-e7 probe-5ae11ba5"). Two nodes with the same fingerprint compute
 * the same bits. Static storage of the device. */
const char *dpt_device_fingerprint(const struct dpt_device *dev);
/* The fingerprint of ranks that compute gradients on `device` and everything else on `host`. */
void dpt_fingerprint_join(const char *device, const char *host, char ret[DPT_FINGERPRINT_BYTES]);

/* From this call on, matrix products of f32 round their operands to TF32, with 10 bits of mantissa,
 * and add in f32. For CUDA devices, before the first stream. */
void dpt_device_use_tf32(struct dpt_device *dev);

/* From this call on, allocations count into `account` (borrowed for the device's life) and into the
 * device's own counters. Once, before the first allocation that is kept. */
void dpt_device_set_account(struct dpt_device *dev, struct dpt_account *account);

/* Device memory, aligned to 64 bytes, zeroed and touched, counted as `tag`. Owned by the caller,
 * freed with dpt_device_free_for and the same numbers. Counts into the account and into
 * dpt_device_bytes. */
DPT_MUST_USE enum dpt_status dpt_device_alloc_for(struct dpt_device *dev, enum dpt_memory_tag tag,
                                                  size_t bytes, void **ret, struct dpt_err *err);
void dpt_device_free_for(struct dpt_device *dev, enum dpt_memory_tag tag, void *ptr, size_t bytes);
/* The same, for DPT_MEMORY_OTHER. */
DPT_MUST_USE enum dpt_status dpt_device_alloc(struct dpt_device *dev, size_t bytes, void **ret,
                                              struct dpt_err *err);
void dpt_device_free(struct dpt_device *dev, void *ptr, size_t bytes);
/* Host memory that this device copies fastest (CUDA: page-locked), zeroed, aligned to 64 bytes. Not
 * counted. Freed with the same number of bytes. */
DPT_MUST_USE enum dpt_status dpt_device_alloc_host(struct dpt_device *dev, size_t bytes, void **ret,
                                                   struct dpt_err *err);
void dpt_device_free_host(struct dpt_device *dev, void *ptr, size_t bytes);
size_t dpt_device_bytes(const struct dpt_device *dev);

enum { DPT_STREAM_THREADS_MAX = 128 };

/* A stream of `threads` workers, at most DPT_STREAM_THREADS_MAX (CPU: the calling thread and
 * threads-1 own ones; they sleep when there is nothing to do and never spin for long). The number
 * of threads never changes the bits of a result. */
DPT_MUST_USE enum dpt_status dpt_stream_create(struct dpt_device *dev, int threads,
                                               struct dpt_stream **ret, struct dpt_err *err);
/* The same, and the device starts its ops before those of other streams that wait for room (CUDA:
 * a stream of the greatest priority). Ops that have begun are not interrupted. */
DPT_MUST_USE enum dpt_status dpt_stream_create_urgent(struct dpt_device *dev, int threads,
                                                      struct dpt_stream **ret, struct dpt_err *err);
void dpt_stream_destroy(struct dpt_stream **stream);

/* Computes with `threads` workers from the next op on: 1 up to the number that the stream was
 * created with; the others sleep. By the thread that uses the stream. After an increase,
 * shapes have to be prepared again if their ops shall not allocate. */
void dpt_stream_set_threads(struct dpt_stream *stream, int threads);

void dpt_stream_prepare_begin(struct dpt_stream *stream);
DPT_MUST_USE enum dpt_status dpt_stream_prepare_end(struct dpt_stream *stream, struct dpt_err *err);

/* Waits until all posted ops are done; returns the first error since the last call. */
DPT_MUST_USE enum dpt_status dpt_stream_sync(struct dpt_stream *stream, struct dpt_err *err);

/* A mark in a stream of this device, for other queues of the device to wait for, without the host:
 * it stands for all ops that were posted to the stream when the event was last recorded. */
DPT_MUST_USE enum dpt_status dpt_event_create(struct dpt_device *dev, struct dpt_event **ret,
                                              struct dpt_err *err);
/* When no queue waits for it any more. Accepts a pointer to NULL. */
void dpt_event_destroy(struct dpt_event **event);
/* Sets the event, by the thread that uses the stream; an error sticks to the stream. */
void dpt_event_record(struct dpt_event *event, struct dpt_stream *stream);
/* Ops that are posted to `stream` of the event's device after this call run when the event has
 * come, without the host. By the thread that uses the stream; an error sticks to the stream. */
void dpt_event_await(struct dpt_event *event, struct dpt_stream *stream);
/* Waits, on the host, until everything posted before the event is done. `stream` is the one that
 * the event was last set in; by the thread that uses that stream. An error sticks to the stream.
 * Returns at once if the event was never set. */
void dpt_event_wait(struct dpt_event *event, struct dpt_stream *stream);
/* The device's own name for it (CUDA: a cudaEvent_t). */
void *dpt_event_native(const struct dpt_event *event);

/* A graph: ops that are launched together, again and again, with the arguments and addresses of
 * their capture (CUDA: a CUDA graph). For a host that posts ops slower than the device runs them.
 * False for a device without graphs, and while ops are timed one by one. */
bool dpt_device_has_graphs(const struct dpt_device *dev);
/* From this call to capture_end, ops are recorded and not run. Every op is prepared; no sync, no
 * event, no copy from or to the host. False: the stream has an error and keeps it, and no capture
 * has begun. */
DPT_MUST_USE bool dpt_stream_capture_begin(struct dpt_stream *stream);
/* Returns the error of any op since begin, or of making the graph; then there is no graph. The
 * stream is as before begin. */
DPT_MUST_USE enum dpt_status dpt_stream_capture_end(struct dpt_stream *stream,
                                                    struct dpt_graph **ret, struct dpt_err *err);
/* False when the stream that the graph was captured from has since moved workspace that the graph
 * uses (an op of a shape that was not prepared): the graph may not be launched again. */
bool dpt_graph_is_current(const struct dpt_graph *graph, const struct dpt_stream *stream);
/* Posts the graph to the stream that it was captured from; an error sticks to that stream. */
void dpt_graph_launch(struct dpt_graph *graph, struct dpt_stream *stream);
/* When no launch of it is under way. Accepts a pointer to NULL. */
void dpt_graph_destroy(struct dpt_graph **graph);

#endif
