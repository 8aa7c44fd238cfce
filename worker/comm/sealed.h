/* Shared memory that a process maps to write and passes to processes of its host: a memfd with
 * seals. It never shrinks under a reader, and unless it is open no other process can write it. */
#ifndef DPT_WORKER_COMM_SEALED_H
#define DPT_WORKER_COMM_SEALED_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

struct sealed_memory {
    int fd;
    void *data;
};

/* Zeroed memory whose pages are reserved and touched: running out is an error here and no signal
 * later. `bytes` > 0. `open`: other processes may map it to write. */
DPT_MUST_USE enum dpt_status dpt_sealed_create(size_t bytes, bool open, struct sealed_memory *ret,
                                               struct dpt_err *err);

/* Seals of a descriptor that a peer has passed: it keeps its size; its maker lets others write. */
bool dpt_sealed_keeps_size(int fd);
bool dpt_sealed_is_open(int fd);

#endif
