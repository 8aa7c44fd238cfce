/* Shared memory that a process maps to write and passes to processes of its host: a memfd with
 * seals. The memory never shrinks while a reader has it mapped. Unless it is open, no other process
 * can write into it (Linux 5.1 and later; earlier kernels do not have that seal). */
#ifndef DPT_WORKER_COMM_SEALED_H
#define DPT_WORKER_COMM_SEALED_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

struct sealed_memory {
    int fd;
    void *data;
};

/* Creates zeroed memory whose pages are reserved and touched. So a lack of memory is an error of
 * this call, not a signal at a later access. `bytes` > 0. `open`: other processes may map the
 * memory to write. */
DPT_MUST_USE enum dpt_status dpt_sealed_create(size_t bytes, bool open, struct sealed_memory *ret,
                                               struct dpt_err *err);

/* Check the seals of a descriptor that a peer has passed. keeps_size: the memory cannot shrink.
 * is_open: other processes may write into the memory. */
bool dpt_sealed_keeps_size(int fd);
bool dpt_sealed_is_open(int fd);

#endif
