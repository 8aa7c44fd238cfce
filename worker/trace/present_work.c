/* The present work of a rank's threads (present_work.h). */
#include "worker/trace/present_work.h"

#include "base/clock.h"
#include "base/err.h"

#include <stddef.h>

enum { SLOT_BITS = 32, UNIT_BITS = 24 };

static _Thread_local struct dpt_present_work *here;
static _Thread_local struct dpt_present_work_note *note_here;

void dpt_present_work_attach(struct dpt_present_work *activity, enum dpt_present_work_track track)
{
    here = activity;
    note_here = activity ? &activity->note[track] : NULL;
}

struct dpt_present_work *dpt_present_work_here(void)
{
    return here;
}

void dpt_present_work_note(enum dpt_work work, int unit, int slot)
{
    if (!note_here)
        return;
    DPT_ASSERT(unit >= -1 && unit < (1 << (UNIT_BITS - 1)) && slot >= -1);
    const uint64_t packed = (uint64_t)work << (SLOT_BITS + UNIT_BITS) |
                            (uint64_t)(unit + 1) << SLOT_BITS | ((uint64_t)slot + 1);
    if (atomic_load_explicit(&note_here->packed, memory_order_relaxed) == packed)
        return;
    atomic_store_explicit(&note_here->since_ns, dpt_now_ns(), memory_order_relaxed);
    atomic_store_explicit(&note_here->packed, packed, memory_order_release);
}

struct dpt_present_work_view dpt_present_work_read(const struct dpt_present_work *activity,
                                                   enum dpt_present_work_track track)
{
    const struct dpt_present_work_note *note = &activity->note[track];
    const uint64_t packed = atomic_load_explicit(&note->packed, memory_order_acquire);
    return (struct dpt_present_work_view){
        .work = (enum dpt_work)(packed >> (SLOT_BITS + UNIT_BITS)),
        .unit = (int)(packed >> SLOT_BITS & ((1u << UNIT_BITS) - 1)) - 1,
        .slot = packed == 0 ? -1 : (int)((packed & UINT32_MAX) - 1),
        .since_ns = atomic_load_explicit(&note->since_ns, memory_order_relaxed)};
}
