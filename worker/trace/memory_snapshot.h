/* A snapshot of memory in the form of PyTorch's torch.cuda.memory._snapshot(), which the page
 * pytorch.org/memory_viz and the module torch.cuda._memory_viz read: a pickle of
 * {"segments": […], "device_traces": [[…], …]}.
 *
 * A segment is one allocation, with the bytes that the system gave for it. Its blocks are the
 * tensors in it. A block has one frame: `name` is the tensor, `filename` what the memory is for. An
 * allocation whose tensors are not known is one block. The trace of a device has, for each
 * allocation, a segment_alloc and an alloc for each block; for each release a free_requested, a
 * free_completed and a segment_free. */
#ifndef DPT_WORKER_TRACE_MEMORY_SNAPSHOT_H
#define DPT_WORKER_TRACE_MEMORY_SNAPSHOT_H

#include "base/memory_log.h"

#include <stdio.h>

enum { DPT_SNAPSHOT_NAME_BYTES = 160 };

/* A block begins where the block before it ends. */
struct dpt_snapshot_block {
    char name[DPT_SNAPSHOT_NAME_BYTES]; /* of the tensor */
    size_t bytes;                       /* up to the next block */
    size_t used;                        /* of these, the tensor's; 0: no tensor */
};

/* What is in an allocation. */
struct dpt_snapshot_content {
    const char *purpose; /* "moments" */
    struct dpt_snapshot_block *block;
    size_t n, n_max; /* n 0: one block of the name `purpose` */
};

struct dpt_snapshot {
    const struct dpt_memory_history *history; /* [n_devices] */
    int n_devices;
    /* Fills the content of an allocation that exists, at most n_max blocks, of at most piece->bytes
     * together. `content` has n 0 and the purpose of the allocation's tag. NULL: no tensor is
     * known. */
    void (*describe)(void *ctx, int device, const struct dpt_memory_piece *piece,
                     struct dpt_snapshot_content *content);
    void *ctx;
};

/* DPT_ENOMEM. An error of the stream sticks to it. */
DPT_MUST_USE enum dpt_status dpt_snapshot_print(const struct dpt_snapshot *snapshot, FILE *out,
                                                struct dpt_err *err);

#endif
