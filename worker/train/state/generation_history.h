/* The run's history, as state.json has it: a JSON array with one object for each generation, oldest
 * first. Checkpoints and messages between ranks carry it. When it grows too long the oldest entries
 * are dropped. */
#ifndef DPT_WORKER_TRAIN_STATE_GENERATION_HISTORY_H
#define DPT_WORKER_TRAIN_STATE_GENERATION_HISTORY_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

enum { DPT_HISTORY_BYTES = 16 * 1024 }; /* of the text, NUL included */

/* Text of the array; "[]" is the empty one. */
struct dpt_history {
    char json[DPT_HISTORY_BYTES];
};

struct dpt_history_entry {
    uint64_t generation;
    int64_t step; /* completed steps at its beginning */
    int world_size;
    const char *kind, *cause; /* why it was formed */
    int64_t steps_lost;
};

void dpt_history_init(struct dpt_history *history);

/* Takes the text of another rank or of a checkpoint; DPT_ECORRUPT when it is no JSON array. Entries
 * that do not fit are dropped, oldest first. */
DPT_MUST_USE enum dpt_status dpt_history_load(struct dpt_history *history, const char *json,
                                              struct dpt_err *err);

/* Over all generations: those formed after a loss, and the steps lost. 0 if the history is not
 * readable. */
struct dpt_history_totals {
    int recoveries;
    int64_t steps_lost;
};
struct dpt_history_totals dpt_history_totals(const struct dpt_history *history);

/* Adds the generations in `events`, the lines of events.jsonl, that come after the newest
 * generation of the history; to an empty history those from the last start at step 0 on. Nothing is
 * added if the events lack that generation, or that start. Lines of other kinds and torn lines are
 * ignored. */
DPT_MUST_USE enum dpt_status dpt_history_add_events(struct dpt_history *history, const char *events,
                                                    size_t bytes, struct dpt_err *err);

DPT_MUST_USE enum dpt_status dpt_history_append(struct dpt_history *history,
                                                const struct dpt_history_entry *entry,
                                                struct dpt_err *err);

#endif
