/* Counters of memory (account.h). */
#include "base/account.h"

#include "base/err.h"
#include "base/memory_log.h"

static const char *const names[DPT_MEMORY_COUNT] = {
    [DPT_MEMORY_WEIGHTS] = "weights",
    [DPT_MEMORY_MASTERS] = "masters",
    [DPT_MEMORY_MOMENTS] = "moments",
    [DPT_MEMORY_GRADIENT] = "gradient",
    [DPT_MEMORY_SUMS] = "sums",
    [DPT_MEMORY_SLOT_GRADIENTS] = "slot_gradients",
    [DPT_MEMORY_GATHERED] = "gathered",
    [DPT_MEMORY_SHADOW] = "shadow",
    [DPT_MEMORY_PACKED] = "packed",
    [DPT_MEMORY_ACTIVATIONS] = "activations",
    [DPT_MEMORY_SCRATCH] = "scratch",
    [DPT_MEMORY_WORKSPACE] = "workspace",
    [DPT_MEMORY_COMM] = "comm",
    [DPT_MEMORY_DATA] = "data",
    [DPT_MEMORY_CHECKPOINT] = "checkpoint",
    [DPT_MEMORY_TRACE] = "trace",
    [DPT_MEMORY_OTHER] = "other",
};

const char *dpt_memory_tag_name(enum dpt_memory_tag tag)
{
    DPT_ASSERT((unsigned)tag < DPT_MEMORY_COUNT);
    return names[tag];
}

static const enum dpt_memory_category category_of[DPT_MEMORY_COUNT] = {
    [DPT_MEMORY_WEIGHTS] = DPT_MEMORY_OF_MODEL,
    [DPT_MEMORY_MASTERS] = DPT_MEMORY_OF_OPTIM,
    [DPT_MEMORY_MOMENTS] = DPT_MEMORY_OF_OPTIM,
    [DPT_MEMORY_GRADIENT] = DPT_MEMORY_OF_GRAD,
    [DPT_MEMORY_SUMS] = DPT_MEMORY_OF_GRAD,
    [DPT_MEMORY_SLOT_GRADIENTS] = DPT_MEMORY_OF_GRAD,
    [DPT_MEMORY_GATHERED] = DPT_MEMORY_OF_MODEL,
    [DPT_MEMORY_SHADOW] = DPT_MEMORY_OF_OTHER,
    [DPT_MEMORY_PACKED] = DPT_MEMORY_OF_MODEL,
    [DPT_MEMORY_ACTIVATIONS] = DPT_MEMORY_OF_ACTIVATIONS,
    [DPT_MEMORY_SCRATCH] = DPT_MEMORY_OF_ACTIVATIONS,
    [DPT_MEMORY_WORKSPACE] = DPT_MEMORY_OF_ACTIVATIONS,
    [DPT_MEMORY_COMM] = DPT_MEMORY_OF_COMM,
    [DPT_MEMORY_DATA] = DPT_MEMORY_OF_OTHER,
    [DPT_MEMORY_CHECKPOINT] = DPT_MEMORY_OF_OTHER,
    [DPT_MEMORY_TRACE] = DPT_MEMORY_OF_OTHER,
    [DPT_MEMORY_OTHER] = DPT_MEMORY_OF_OTHER,
};

const char *dpt_memory_category_name(enum dpt_memory_category category)
{
    static const char *const words[DPT_MEMORY_CATEGORIES] = {
        [DPT_MEMORY_OF_MODEL] = "model", [DPT_MEMORY_OF_GRAD] = "grad",
        [DPT_MEMORY_OF_OPTIM] = "optim", [DPT_MEMORY_OF_ACTIVATIONS] = "activations",
        [DPT_MEMORY_OF_COMM] = "comm",   [DPT_MEMORY_OF_OTHER] = "other"};
    DPT_ASSERT((unsigned)category < DPT_MEMORY_CATEGORIES);
    return words[category];
}

void dpt_memory_by_category(const int64_t bytes[DPT_MEMORY_COUNT],
                            int64_t ret[DPT_MEMORY_CATEGORIES])
{
    for (int c = 0; c < DPT_MEMORY_CATEGORIES; c++)
        ret[c] = 0;
    for (int t = 0; t < DPT_MEMORY_COUNT; t++)
        ret[category_of[t]] += bytes[t];
}

/* Returns the bytes after the addition. */
static long long count_add(struct dpt_counter *counter, size_t bytes)
{
    const long long now = atomic_fetch_add(&counter->now, (long long)bytes) + (long long)bytes;
    long long peak = atomic_load(&counter->peak);
    while (now > peak && !atomic_compare_exchange_weak(&counter->peak, &peak, now)) {
    }
    return now;
}

/* Returns the bytes after the subtraction. */
static long long count_sub(struct dpt_counter *counter, size_t bytes)
{
    const long long before = atomic_fetch_sub(&counter->now, (long long)bytes);
    /* Else the release has another purpose than the allocation. */
    DPT_ASSERT(before >= (long long)bytes);
    return before - (long long)bytes;
}

void dpt_account_observe(struct dpt_account *account, dpt_account_sink sink)
{
    account->sink = sink;
}

static void tell_sink(const struct dpt_account *account, struct dpt_account_change change)
{
    if (account->sink)
        account->sink(&change);
}

void dpt_account_add(struct dpt_account *account, enum dpt_memory_tag tag, const void *at,
                     size_t bytes, size_t reserved)
{
    if (!account)
        return;
    if (account->log)
        dpt_memory_log_allocate(
            account->log,
            &(struct dpt_memory_piece){.at = at, .bytes = bytes, .reserved = reserved, .tag = tag});
    (void)count_add(&account->tag[tag], bytes);
    const int64_t all = count_add(&account->all, bytes),
                  all_reserved = count_add(&account->reserved, reserved);
    tell_sink(account, (struct dpt_account_change){tag, (int64_t)bytes, at, all, all_reserved});
}

void dpt_account_sub(struct dpt_account *account, enum dpt_memory_tag tag, const void *at,
                     size_t bytes, size_t reserved)
{
    if (!account)
        return;
    if (account->log)
        dpt_memory_log_release(
            account->log,
            &(struct dpt_memory_piece){.at = at, .bytes = bytes, .reserved = reserved, .tag = tag});
    (void)count_sub(&account->tag[tag], bytes);
    const int64_t all = count_sub(&account->all, bytes),
                  all_reserved = count_sub(&account->reserved, reserved);
    tell_sink(account, (struct dpt_account_change){tag, -(int64_t)bytes, at, all, all_reserved});
}

void dpt_account_read(const struct dpt_account *account, struct dpt_memory_use *ret)
{
    for (int i = 0; i < DPT_MEMORY_COUNT; i++) {
        ret->tag[i] = atomic_load(&account->tag[i].now);
        ret->tag_peak[i] = atomic_load(&account->tag[i].peak);
    }
    ret->all = atomic_load(&account->all.now);
    ret->all_peak = atomic_load(&account->all.peak);
    ret->reserved = atomic_load(&account->reserved.now);
    ret->reserved_peak = atomic_load(&account->reserved.peak);
}
