/* Rings of events (recorder.h). A ring has one writer, its thread, and one reader, which uses only
 * events below the published count. So no event is read while it is written. */
#include "worker/trace/recorder.h"

#include "base/clock.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RING_ALIGNMENT = 64 };

struct dpt_trace_ring {
    struct dpt_trace_recorder *recorder;
    atomic_long thread;
    atomic_uint_fast64_t window; /* the window of the events */
    atomic_size_t n;
    atomic_size_t dropped;
    size_t room;                   /* of events of all kinds; `steps` more are for steps */
    size_t steps;                  /* 0 but for the main thread */
    size_t others;                 /* events that are no step; only the thread uses it */
    struct dpt_trace_event *event; /* [room + steps] owned */
};

struct dpt_trace_recorder {
    atomic_uint_fast64_t open; /* the window that is recorded; 0: none */
    uint64_t newest;           /* the newest window; only its owner uses it */
    struct dpt_trace_ring ring[DPT_TRACE_TRACKS];
};

_Thread_local struct dpt_trace_ring *dpt_trace_ring_here;

static size_t ring_events(size_t events_max, int track)
{
    return track == DPT_TRACE_MAIN || track == DPT_TRACE_COMM ? events_max : events_max / 4;
}

static size_t ring_steps(int track)
{
    return track == DPT_TRACE_MAIN ? DPT_TRACE_STEPS_MAX : 0;
}

size_t dpt_trace_recorder_bytes(size_t events_max)
{
    size_t events = 0;
    for (int i = 0; i < DPT_TRACE_TRACKS; i++)
        events += ring_events(events_max, i) + ring_steps(i);
    return events * sizeof(struct dpt_trace_event);
}

enum dpt_status dpt_trace_recorder_create(size_t events_max, struct dpt_trace_recorder **ret,
                                          struct dpt_err *err)
{
    struct dpt_trace_recorder *recorder = calloc(1, sizeof *recorder);
    if (!recorder)
        return dpt_fail_nomem(err, "trace");
    for (int i = 0; i < DPT_TRACE_TRACKS; i++) {
        struct dpt_trace_ring *ring = &recorder->ring[i];
        ring->recorder = recorder;
        ring->room = ring_events(events_max, i);
        ring->steps = ring_steps(i);
        const size_t bytes = (ring->room + ring->steps) * sizeof *ring->event;
        ring->event = aligned_alloc(RING_ALIGNMENT,
                                    (bytes + RING_ALIGNMENT - 1) / RING_ALIGNMENT * RING_ALIGNMENT);
        if (!ring->event) {
            dpt_trace_recorder_destroy(&recorder);
            return dpt_fail_nomem(err, "trace of %zu events", events_max);
        }
        memset(ring->event, 0, bytes); /* a traced step must not pay for new pages */
    }
    *ret = recorder;
    return DPT_OK;
}

void dpt_trace_recorder_destroy(struct dpt_trace_recorder **recorder)
{
    if (!*recorder)
        return;
    for (int i = 0; i < DPT_TRACE_TRACKS; i++)
        free((*recorder)->ring[i].event);
    free(*recorder);
    *recorder = NULL;
}

void dpt_trace_attach(struct dpt_trace_recorder *recorder, enum dpt_trace_track track)
{
    dpt_trace_ring_here = recorder ? &recorder->ring[track] : NULL;
    if (recorder)
        atomic_store(&recorder->ring[track].thread, (long)gettid());
}

struct dpt_trace_recorder *dpt_trace_recorder_here(void)
{
    return dpt_trace_ring_here ? dpt_trace_ring_here->recorder : NULL;
}

void dpt_trace_recorder_begin(struct dpt_trace_recorder *recorder)
{
    atomic_store(&recorder->open, ++recorder->newest);
}

void dpt_trace_recorder_end(struct dpt_trace_recorder *recorder)
{
    atomic_store(&recorder->open, 0);
}

void dpt_trace_recorder_read(const struct dpt_trace_recorder *recorder, enum dpt_trace_track track,
                             struct dpt_trace_events *ret)
{
    const struct dpt_trace_ring *ring = &recorder->ring[track];
    *ret = (struct dpt_trace_events){.event = ring->event, .thread = atomic_load(&ring->thread)};
    if (atomic_load_explicit(&ring->window, memory_order_acquire) != recorder->newest)
        return;
    ret->n = atomic_load_explicit(&ring->n, memory_order_acquire);
    ret->dropped = (int64_t)atomic_load(&ring->dropped);
}

/* ---- on the recording thread ---- */

int64_t dpt_trace_ring_now(const struct dpt_trace_ring *ring)
{
    return atomic_load_explicit(&ring->recorder->open, memory_order_relaxed) ? dpt_now_ns() : 0;
}

/* Empties the ring for a window. */
static void enter_window(struct dpt_trace_ring *ring, uint64_t window)
{
    atomic_store_explicit(&ring->n, 0, memory_order_relaxed);
    atomic_store_explicit(&ring->dropped, 0, memory_order_relaxed);
    ring->others = 0;
    atomic_store_explicit(&ring->window, window, memory_order_release);
}

void dpt_trace_ring_add(struct dpt_trace_ring *ring, int64_t begin_ns, int64_t end_ns,
                        const struct dpt_trace_span *span)
{
    /* Acquire: the reader has finished with the events of the window before. */
    const uint64_t open = atomic_load_explicit(&ring->recorder->open, memory_order_acquire);
    if (open == 0 || end_ns == 0)
        return;
    if (atomic_load_explicit(&ring->window, memory_order_relaxed) != open)
        enter_window(ring, open);
    const size_t n = atomic_load_explicit(&ring->n, memory_order_relaxed);
    const bool step = span->kind == DPT_TRACE_STEP;
    if (n == ring->room + ring->steps || (!step && ring->others == ring->room)) {
        (void)atomic_fetch_add_explicit(&ring->dropped, 1, memory_order_relaxed);
        return;
    }
    ring->event[n] =
        (struct dpt_trace_event){.span = *span, .begin_ns = begin_ns, .end_ns = end_ns};
    ring->others += !step;
    atomic_store_explicit(&ring->n, n + 1, memory_order_release);
}
