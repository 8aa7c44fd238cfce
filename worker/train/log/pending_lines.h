/* Lines for the run's log on their way into it. A node that is cut off from a living server cannot
 * tell this from an outage: it may train on while the server has expelled it and another world
 * writes the same log. So a line is appended only when the server is known to have counted this
 * node in after the line was made, or so shortly before that it cannot have expelled it since
 * (docs/membership.md, "Write permission"). Until then it waits here.
 *
 * Every rank keeps the newest lines, written or not: a generation's log writer completes the file
 * with those that its predecessor could not write any more. One thread, the rank's main. */
#ifndef DPT_WORKER_TRAIN_LOG_PENDING_LINES_H
#define DPT_WORKER_TRAIN_LOG_PENDING_LINES_H

#include "base/err.h"
#include "worker/train/log/run_files.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    DPT_LOGBOOK_BYTES = 1 << 20,    /* of all lines */
    DPT_LOGBOOK_LINES_MAX = 1 << 13 /* some 3000 lines of metrics fit the bytes */
};

struct dpt_logbook;

struct dpt_logbook_options {
    const char *dir; /* log.dir */
    /* File that takes what will never be confirmed; its folder is made when it does. */
    const char *spill_dir, *spill_name;
    /* Whether lines made until `made_ms` may be appended now. */
    bool (*may_append)(void *ctx, int64_t made_ms);
    /* A line was written, or lost for the reason in `err`. */
    void (*appended)(void *ctx, enum dpt_status status, const struct dpt_err *err);
    void *ctx;
};

/* Texts are copied. */
DPT_MUST_USE enum dpt_status dpt_logbook_create(const struct dpt_logbook_options *options,
                                                struct dpt_logbook **ret, struct dpt_err *err);
/* What this rank as the log's writer may not write, now that it ends, goes to the spill file, which
 * a warning names, and what dpt_logbook_keep_unwritten keeps; but not what the file has by now. */
void dpt_logbook_destroy(struct dpt_logbook **book);

/* A generation begins at `step`, in which this rank writes the log or not. Lines of later steps are
 * forgotten: they are computed again. A writer appends from now on what the file, which ends with
 * `last`, lacks of the others. `last`: of a writer's every generation, and of the first of all. */
void dpt_logbook_begin(struct dpt_logbook *book, bool writes, int64_t step,
                       const struct dpt_runlog_place *last);
/* The generation has ended. Appends what may be; the lines of steps that then still wait are for
 * the next generation's writer, which has them as well: until it begins here, none is appended. */
void dpt_logbook_end(struct dpt_logbook *book);

/* Between generations, when this rank has saved its state without a server: the generation's writer
 * may be dead, and no other rank may have its lines. When the book is destroyed, the lines of steps
 * that the file lacks go to the spill file. */
void dpt_logbook_keep_unwritten(struct dpt_logbook *book);

/* A line made at made_ms (dpt_now_ms); of the events only a writer keeps any. Where there is no
 * room the oldest lines go, unwritten ones to the spill file. */
void dpt_logbook_add(struct dpt_logbook *book, const struct dpt_runlog_line *line, int64_t made_ms);

/* A line of this kind and step is here. */
bool dpt_logbook_has(const struct dpt_logbook *book, const struct dpt_runlog_place *place);

/* Appends what may be, in order; true: nothing is left. A line that cannot be appended is lost;
 * appended is told. What had to wait goes to the spill file if another world has appended to the
 * file meanwhile: a server that forgot that world may confirm this one. */
bool dpt_logbook_flush(struct dpt_logbook *book);

#endif
