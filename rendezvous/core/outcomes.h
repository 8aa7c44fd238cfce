/* The outcomes of steps that the ranks of a run report while they have quiesced. All ranks have the
 * same bytes for a step, and reports of a formation are about one step or two; a spare may have
 * that of the step at which it lost its place. So a run keeps each outcome once, and OUTCOMES_MAX
 * different ones: a member that reports others takes no more memory. */
#ifndef DPT_RENDEZVOUS_CORE_OUTCOMES_H
#define DPT_RENDEZVOUS_CORE_OUTCOMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { OUTCOMES_MAX = 64 };

struct outcome {
    uint32_t uses;  /* ranks that have it; 0: the entry is unused */
    uint8_t *bytes; /* (n_bytes) owned */
    size_t n_bytes;
};

struct outcomes {
    struct outcome list[OUTCOMES_MAX];
    bool told_full; /* the log says that an outcome was not kept */
};

/* The outcome with these bytes (n_bytes > 0), with one use more. NULL: OUTCOMES_MAX others are in
 * use, or no memory (*ret_no_memory). */
struct outcome *dpt_outcomes_keep(struct outcomes *outcomes, const uint8_t *bytes, size_t n_bytes,
                                  bool *ret_no_memory);
/* Ends one use; *outcome is NULL then, and may be NULL before. */
void dpt_outcomes_drop(struct outcome **outcome);

#endif
