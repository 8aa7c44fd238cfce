/* An account of memory: how many bytes there are of each kind, and how many there were at most.
 *
 * Whoever allocates in the large says what for; the counters are the caller's (a rank has one
 * account), so that two of them in a process, as in tests, know nothing of each other. Counting is
 * one atomic addition for each allocation and release, from any thread; nothing is counted in a
 * step, since nothing is allocated in one. */
#ifndef DPT_BASE_ACCOUNT_H
#define DPT_BASE_ACCOUNT_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum dpt_memory_tag {
    DPT_MEMORY_WEIGHTS,        /* in the compute dtype, whole or a shard; f32: the masters too */
    DPT_MEMORY_MASTERS,        /* f32 masters beside weights of 16 bits */
    DPT_MEMORY_MOMENTS,        /* the optimizer's */
    DPT_MEMORY_GRADIENT,       /* the step's reduced gradient, as far as this rank keeps it */
    DPT_MEMORY_SUMS,           /* lane buffers and sums of lanes beside it */
    DPT_MEMORY_SLOT_GRADIENTS, /* one slot's, on their way to who folds them */
    DPT_MEMORY_GATHERED,       /* places of units whose weights come and go */
    DPT_MEMORY_SHADOW,         /* another rank's shard and its gradient */
    DPT_MEMORY_PACKED,         /* weights in the form that products read */
    DPT_MEMORY_ACTIVATIONS,    /* kept from forward to backward */
    DPT_MEMORY_SCRATCH,        /* of a unit's call */
    DPT_MEMORY_WORKSPACE,      /* of an operation: packed operands, logits, indices */
    DPT_MEMORY_COMM,           /* staging, records and links of communicators */
    DPT_MEMORY_DATA,           /* micro-batches read ahead, what is on its way to a device */
    DPT_MEMORY_CHECKPOINT,     /* staging of a writer */
    DPT_MEMORY_OTHER,
    DPT_MEMORY_COUNT
};

/* The tag's name, as in reports: "slot_gradients". Static storage. */
const char *dpt_memory_tag_name(enum dpt_memory_tag tag);

struct dpt_counter {
    atomic_llong now, peak;
};

/* Zeroed is empty. */
struct dpt_account {
    struct dpt_counter tag[DPT_MEMORY_COUNT];
    struct dpt_counter all;      /* what was asked for */
    struct dpt_counter reserved; /* what was taken from the system for it: whole pages */
};

/* Counts an allocation of `bytes`, for which `reserved` were taken; and its release, which must be
 * told with the same numbers. No account (NULL): no effect. Any thread. */
void dpt_account_add(struct dpt_account *account, enum dpt_memory_tag tag, size_t bytes,
                     size_t reserved);
void dpt_account_sub(struct dpt_account *account, enum dpt_memory_tag tag, size_t bytes,
                     size_t reserved);

/* A copy of the counters; while others count, each of its numbers is true by itself. */
struct dpt_memory_use {
    int64_t tag[DPT_MEMORY_COUNT], tag_peak[DPT_MEMORY_COUNT];
    int64_t all, all_peak, reserved, reserved_peak;
};
void dpt_account_read(const struct dpt_account *account, struct dpt_memory_use *ret);

#endif
