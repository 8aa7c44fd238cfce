/* The run's history, as in state.json: a JSON array with one object for each generation, oldest
 * first. Checkpoints and messages between ranks carry the history. When it grows too long, the
 * oldest entries are dropped. */
#ifndef DPT_WORKER_TRAIN_STATE_GENERATION_HISTORY_H
#define DPT_WORKER_TRAIN_STATE_GENERATION_HISTORY_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

enum { DPT_HISTORY_BYTES = 16 * 1024 }; /* bytes of the text, NUL included */

/* The text of the array. "[]" is an empty history. */
struct dpt_history {
    char json[DPT_HISTORY_BYTES];
};

struct dpt_history_entry {
    uint64_t generation;
    int64_t step; /* completed steps when the generation began */
    int world_size;
    const char *kind, *cause; /* why the generation was formed */
    int64_t steps_lost;
};

void dpt_history_init(struct dpt_history *history);

/* Reads the text of another rank or of a checkpoint. DPT_ECORRUPT: the text is no JSON array.
 * Entries that do not fit are dropped, oldest first. */
DPT_MUST_USE enum dpt_status dpt_history_load(struct dpt_history *history, const char *json,
                                              struct dpt_err *err);

/* Totals over all generations: generations formed after a loss, and lost steps. Both are 0 if the
 * history is not readable. */
struct dpt_history_totals {
    int recoveries;
    int64_t steps_lost;
};
struct dpt_history_totals dpt_history_totals(const struct dpt_history *history);

/* Adds generations from `events`, the lines of events.jsonl, to the history: those after the
 * history's newest generation or, if the history is empty, those from the last start at step 0. If
 * the events do not contain that generation or that start, nothing is added. Lines of other kinds
 * and torn lines are ignored. */
DPT_MUST_USE enum dpt_status dpt_history_add_events(struct dpt_history *history, const char *events,
                                                    size_t bytes, struct dpt_err *err);

DPT_MUST_USE enum dpt_status dpt_history_append(struct dpt_history *history,
                                                const struct dpt_history_entry *entry,
                                                struct dpt_err *err);

#endif
