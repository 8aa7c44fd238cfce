/* The events of one rank: a ring for each of its threads. A thread writes to its own ring only, and
 * the main thread reads all rings after a window.
 *
 * A ring is preallocated, and its pages are touched. When it is full, further events of the window
 * are dropped and counted; steps have a room of their own. A ring belongs to one window: the first
 * event of the next window empties it. */
#ifndef DPT_WORKER_TRACE_RECORDER_H
#define DPT_WORKER_TRACE_RECORDER_H

#include "base/err.h"
#include "worker/trace/span.h"

#include <stddef.h>

/* The threads of a rank that record. */
enum dpt_trace_track {
    DPT_TRACE_MAIN,
    DPT_TRACE_COMM,
    DPT_TRACE_DATA,
    DPT_TRACE_SAVE,
    DPT_TRACE_TRACKS
};

/* Most events in a window of the main and of the communication thread; other threads have a
 * quarter. A step of GPT-2 with 124M parameters on two ranks has about 600. */
enum { DPT_TRACE_EVENTS_MAX = 1 << 17 };
/* Most steps (DPT_TRACE_STEP) of a window, on the main thread, beside its other events. */
enum { DPT_TRACE_STEPS_MAX = 1024 };

struct dpt_trace_recorder;

/* events_max: room of the largest rings, 4 or more. */
DPT_MUST_USE enum dpt_status
dpt_trace_recorder_create(size_t events_max, struct dpt_trace_recorder **ret, struct dpt_err *err);
/* Bytes of the rings of a recorder with this events_max. */
size_t dpt_trace_recorder_bytes(size_t events_max);
/* Every attached thread has ended or is detached. */
void dpt_trace_recorder_destroy(struct dpt_trace_recorder **recorder);

/* The calling thread records into this track from now on, as the only thread. `recorder` NULL: it
 * records nothing. */
void dpt_trace_attach(struct dpt_trace_recorder *recorder, enum dpt_trace_track track);
/* The recorder of the calling thread, for a thread that it starts; NULL: it is not attached. */
struct dpt_trace_recorder *dpt_trace_recorder_here(void);

/* dpt_trace_recorder_begin: starts a window, and forgets the events of the window before.
 * dpt_trace_recorder_end: ends it; its events stay. By one thread. */
void dpt_trace_recorder_begin(struct dpt_trace_recorder *recorder);
void dpt_trace_recorder_end(struct dpt_trace_recorder *recorder);

struct dpt_trace_events {
    const struct dpt_trace_event *event; /* [n], in the order in which they were recorded */
    size_t n;
    int64_t dropped;
    int64_t thread; /* the system's number of the thread; 0: none was attached */
};

/* The events of the newest window, until the next one begins. After dpt_trace_recorder_end. */
void dpt_trace_recorder_read(const struct dpt_trace_recorder *recorder, enum dpt_trace_track track,
                             struct dpt_trace_events *ret);

#endif
