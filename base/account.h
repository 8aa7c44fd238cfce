/* An account of memory: the present and the largest number of bytes of each kind.
 *
 * Every large allocation is counted under its purpose. The caller owns the counters, and each rank
 * has one account. So two ranks in one process, as in tests, are independent. Each allocation and
 * each release costs one atomic addition per counter, from any thread. A step allocates nothing, so
 * it counts nothing. */
#ifndef DPT_BASE_ACCOUNT_H
#define DPT_BASE_ACCOUNT_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum dpt_memory_tag {
    DPT_MEMORY_WEIGHTS,  /* in the compute dtype, whole or a shard; with f32 also the masters */
    DPT_MEMORY_MASTERS,  /* f32 masters beside weights of 16 bits */
    DPT_MEMORY_MOMENTS,  /* moments of the optimizer */
    DPT_MEMORY_GRADIENT, /* the part of the step's reduced gradient that this rank keeps */
    DPT_MEMORY_SUMS,     /* lane buffers, and sums of lanes */
    DPT_MEMORY_SLOT_GRADIENTS, /* gradients of one slot, until they are sent or added */
    DPT_MEMORY_GATHERED,       /* gathered weights of units */
    DPT_MEMORY_SHADOW,         /* another rank's shard and its gradient */
    DPT_MEMORY_PACKED,         /* weights in the layout of matrix products */
    DPT_MEMORY_ACTIVATIONS,    /* activations that are kept from forward to backward */
    DPT_MEMORY_SCRATCH,        /* scratch of one call of a unit */
    DPT_MEMORY_WORKSPACE,      /* workspace of an operation: packed operands, logits, indices */
    DPT_MEMORY_COMM,           /* staging, records and links of communicators */
    DPT_MEMORY_DATA,           /* micro-batches that are read ahead or copied to a device */
    DPT_MEMORY_CHECKPOINT,     /* staging of a checkpoint's writer */
    DPT_MEMORY_TRACE,          /* rings of traced events */
    DPT_MEMORY_OTHER,
    DPT_MEMORY_COUNT
};

/* The tag's name, as in reports: "slot_gradients". Static storage. */
const char *dpt_memory_tag_name(enum dpt_memory_tag tag);

/* The tags by the words of the field's reports. */
enum dpt_memory_category {
    DPT_MEMORY_OF_MODEL,       /* weights, gathered, packed */
    DPT_MEMORY_OF_GRAD,        /* gradient, sums, slot_gradients */
    DPT_MEMORY_OF_OPTIM,       /* masters, moments */
    DPT_MEMORY_OF_ACTIVATIONS, /* activations, scratch, workspace */
    DPT_MEMORY_OF_COMM,        /* comm */
    DPT_MEMORY_OF_OTHER,       /* shadow, data, checkpoint, trace, other */
    DPT_MEMORY_CATEGORIES
};

/* "model", "grad", "optim", "activations", "comm", "other". Static storage. */
const char *dpt_memory_category_name(enum dpt_memory_category category);
/* Adds up the bytes of each category's tags. */
void dpt_memory_by_category(const int64_t bytes[DPT_MEMORY_COUNT],
                            int64_t ret[DPT_MEMORY_CATEGORIES]);

struct dpt_counter {
    atomic_llong now, peak;
};

/* An allocation or a release that was counted. */
struct dpt_account_change {
    enum dpt_memory_tag tag;
    int64_t bytes;         /* negative: released */
    const void *address;   /* NULL: not known */
    int64_t all, reserved; /* of the account, after the change */
};
typedef void (*dpt_account_sink)(const struct dpt_account_change *change);

struct dpt_memory_log;

/* A zeroed account is empty. */
struct dpt_account {
    struct dpt_memory_log *log; /* gets every allocation and release (memory_log.h); NULL: none */
    struct dpt_counter tag[DPT_MEMORY_COUNT];
    struct dpt_counter all;      /* bytes that callers asked for */
    struct dpt_counter reserved; /* bytes that the system gave for them: whole pages */
    dpt_account_sink sink;       /* receives each change; NULL: nobody */
};

/* From now on `sink` receives each change, on the thread that made it. Called before other threads
 * use the account. */
void dpt_account_observe(struct dpt_account *account, dpt_account_sink sink);

/* dpt_account_add counts an allocation of `bytes` bytes at `at`, for which the system gave
 * `reserved` bytes. `at` is for the log and the sink; NULL: the memory has several addresses.
 * dpt_account_sub counts its release, with the same numbers. No effect if `account` is NULL. Any
 * thread. */
void dpt_account_add(struct dpt_account *account, enum dpt_memory_tag tag, const void *at,
                     size_t bytes, size_t reserved);
void dpt_account_sub(struct dpt_account *account, enum dpt_memory_tag tag, const void *at,
                     size_t bytes, size_t reserved);

/* A copy of the counters. If other threads count at the same time, each number is correct, but the
 * numbers may be of different moments. */
struct dpt_memory_use {
    int64_t tag[DPT_MEMORY_COUNT], tag_peak[DPT_MEMORY_COUNT];
    int64_t all, all_peak, reserved, reserved_peak;
};
void dpt_account_read(const struct dpt_account *account, struct dpt_memory_use *ret);

#endif
