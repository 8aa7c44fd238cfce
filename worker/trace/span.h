/* Records the time that a piece of work took, on the thread that does the work:
 *
 *     const int64_t began_ns = dpt_trace_begin();
 *     … the work …
 *     dpt_trace_end(began_ns, &(struct dpt_trace_span){.name = "commit"});
 *
 * A thread that is not attached to a recorder (recorder.h) pays one load and one branch. Recording
 * takes no lock and allocates nothing. Any thread. */
#ifndef DPT_WORKER_TRACE_SPAN_H
#define DPT_WORKER_TRACE_SPAN_H

#include <stddef.h>
#include <stdint.h>

enum dpt_trace_kind {
    DPT_TRACE_ANNOTATION, /* a part of the training loop */
    DPT_TRACE_STEP,       /* a step of the run; value[0] is its number */
    DPT_TRACE_OP,         /* an op of the device */
    DPT_TRACE_COLLECTIVE, /* a transfer between ranks, with the wait for late peers */
    /* A COLLECTIVE that a device carries out by NCCL: from its launch until the host knows its end
     */
    DPT_TRACE_DEVICE_COLLECTIVE,
    DPT_TRACE_MEMORY,    /* an allocation or a release; the values are DPT_TRACE_MEMORY_… */
    DPT_TRACE_MEMORY_TAG /* `name` is a kind of memory, and the values are its bytes and its peak */
};

/* The values of a MEMORY. bytes: negative for a release, 0 for a sample; all, reserved: in total
 * after it. */
enum {
    DPT_TRACE_MEMORY_BYTES,
    DPT_TRACE_MEMORY_ALL,
    DPT_TRACE_MEMORY_RESERVED,
    DPT_TRACE_MEMORY_ADDRESS,
    DPT_TRACE_MEMORY_ON_GPU /* 1: of a GPU; also of a MEMORY_TAG, without a key */
};

enum dpt_trace_collective {
    DPT_TRACE_ALL_GATHER,
    DPT_TRACE_REDUCE_SCATTER,
    DPT_TRACE_ALL_REDUCE,
    DPT_TRACE_SEND_RECV,
    DPT_TRACE_COLLECTIVE_COUNT
};

/* The ranks of a collective. */
enum dpt_trace_scope {
    DPT_TRACE_WORLD,
    DPT_TRACE_NODE,  /* of one node */
    DPT_TRACE_ACROSS /* of several nodes, with the same part of the state */
};

struct dpt_trace_group {
    enum dpt_trace_scope scope;
    int number; /* equal on its ranks, and another one in each other group; 0: the world */
};

enum { DPT_TRACE_ARGS = 5 };

/* All texts live until the recorder is destroyed, and have no quotes and backslashes. */
struct dpt_trace_span {
    const char *name; /* NULL for a collective */
    enum dpt_trace_kind kind;
    enum dpt_trace_collective collective; /* of a COLLECTIVE or a DEVICE_COLLECTIVE */
    struct dpt_trace_group group;         /* likewise */
    const char *dtype;                    /* of its elements, by PyTorch's name; else NULL */
    const char *key[DPT_TRACE_ARGS];      /* NULL: no value */
    int64_t value[DPT_TRACE_ARGS];
};

/* The first values of a COLLECTIVE, under Kineto's names: elements that this rank gives, elements
 * that it gets, ranks that take part. */
#define DPT_TRACE_COLLECTIVE_KEYS "In msg nelems", "Out msg nelems", "Group size"

struct dpt_trace_event {
    struct dpt_trace_span span;
    int64_t begin_ns, end_ns; /* of dpt_now_ns */
};

struct dpt_trace_ring;
/* The ring of the calling thread (recorder.h); NULL: the thread is not attached. */
extern _Thread_local struct dpt_trace_ring *dpt_trace_ring_here;

/* The time now if the ring's recorder records, else 0. */
int64_t dpt_trace_ring_now(const struct dpt_trace_ring *ring);
/* Adds a span that ends now. */
void dpt_trace_ring_add(struct dpt_trace_ring *ring, int64_t begin_ns, int64_t end_ns,
                        const struct dpt_trace_span *span);

/* The beginning of a span; 0: nothing is recorded now. */
static inline int64_t dpt_trace_begin(void)
{
    return dpt_trace_ring_here ? dpt_trace_ring_now(dpt_trace_ring_here) : 0;
}

/* Records a span of no duration: a MEMORY, a MEMORY_TAG. */
static inline void dpt_trace_mark(const struct dpt_trace_span *span)
{
    const int64_t now_ns = dpt_trace_begin();
    if (now_ns != 0)
        dpt_trace_ring_add(dpt_trace_ring_here, now_ns, now_ns, span);
}

/* Ends a span. No effect if began_ns is 0. */
static inline void dpt_trace_end(int64_t began_ns, const struct dpt_trace_span *span)
{
    if (began_ns != 0 && dpt_trace_ring_here)
        dpt_trace_ring_add(dpt_trace_ring_here, began_ns, dpt_trace_ring_now(dpt_trace_ring_here),
                           span);
}

/* A span that stands for many short pieces of work on its thread, which records nothing from its
 * begin to its end:
 *
 *     const struct dpt_trace_whole whole = dpt_trace_begin_whole();
 *     … the work …
 *     dpt_trace_end_whole(&whole, &(struct dpt_trace_span){.name = "ordered_sum"}); */
struct dpt_trace_whole {
    struct dpt_trace_ring *ring;
    int64_t began_ns;
};

static inline struct dpt_trace_whole dpt_trace_begin_whole(void)
{
    const struct dpt_trace_whole whole = {dpt_trace_ring_here, dpt_trace_begin()};
    dpt_trace_ring_here = NULL;
    return whole;
}

static inline void dpt_trace_end_whole(const struct dpt_trace_whole *whole,
                                       const struct dpt_trace_span *span)
{
    dpt_trace_ring_here = whole->ring;
    dpt_trace_end(whole->began_ns, span);
}

/* As dpt_trace_end, for a span that has only a name. */
static inline void dpt_trace_end_named(int64_t began_ns, const char *name)
{
    if (began_ns != 0)
        dpt_trace_end(began_ns, &(struct dpt_trace_span){.name = name});
}

#endif
