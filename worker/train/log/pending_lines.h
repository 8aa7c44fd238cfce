/* Lines of the run's log that wait to be appended. A node that has lost the connection to a living
 * server cannot tell this from an outage of the server: it may continue to train while the server
 * has expelled it and another world writes the same log. So a line is appended only if the server
 * has confirmed this node after the line was made, or so shortly before that it cannot have
 * expelled the node since (docs/membership.md, "Write permission"). Until then the line waits here.
 *
 * Every rank keeps the newest lines, appended or not: a generation's log writer appends those that
 * the writer before it did not append. Main thread only. */
#ifndef DPT_WORKER_TRAIN_LOG_PENDING_LINES_H
#define DPT_WORKER_TRAIN_LOG_PENDING_LINES_H

#include "base/err.h"
#include "worker/train/log/run_files.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    DPT_LOGBOOK_BYTES = 1 << 20,    /* of all lines */
    DPT_LOGBOOK_LINES_MAX = 1 << 13 /* DPT_LOGBOOK_BYTES hold about 3000 lines of metrics */
};

struct dpt_logbook;

struct dpt_logbook_options {
    const char *dir; /* log.dir; borrowed */
    /* The spill file has the lines that no server will confirm. Its folder is made with the first
     * line. spill_dir is borrowed, spill_name is copied. */
    const char *spill_dir, *spill_name;
    /* Whether lines made until `made_ms` may be appended now. */
    bool (*may_append)(void *ctx, int64_t made_ms);
    /* A line was written, or lost for the reason in `err`. */
    void (*appended)(void *ctx, enum dpt_status status, const struct dpt_err *err);
    void *ctx;
};

DPT_MUST_USE enum dpt_status dpt_logbook_create(const struct dpt_logbook_options *options,
                                                struct dpt_logbook **ret, struct dpt_err *err);
/* Lines that still wait and that the file lacks go to the spill file, which a warning names. */
void dpt_logbook_destroy(struct dpt_logbook **book);

/* A generation begins at `step`; `writes`: this rank is its log writer. Lines of later steps are
 * dropped: these steps are computed again. A writer appends from now on the kept lines that the
 * file, which ends with `last`, lacks. `last` is read if `writes`, and in the first generation. */
void dpt_logbook_begin(struct dpt_logbook *book, bool writes, int64_t step,
                       const struct dpt_runlog_place *last);
/* The generation has ended. Appends the lines that may be appended. Lines of steps that still wait
 * are left to the next generation's writer, which has them too. */
void dpt_logbook_end(struct dpt_logbook *book);

/* Between generations, when this rank has saved its state without a server: the log writer may be
 * dead, and no other rank may have its lines. So all lines of steps wait from now on, and those
 * that the file lacks go to the spill file when the book is destroyed. */
void dpt_logbook_keep_unwritten(struct dpt_logbook *book);

/* Adds a line made at made_ms (dpt_now_ms). Only a writer keeps events. A full book drops its
 * oldest lines; those that wait go to the spill file. */
void dpt_logbook_add(struct dpt_logbook *book, const struct dpt_runlog_line *line, int64_t made_ms);

/* Whether the book has a line of this kind and step. */
bool dpt_logbook_has(const struct dpt_logbook *book, const struct dpt_runlog_place *place);

/* Appends the lines that may be appended, in order; true: no line waits. A line that cannot be
 * written is lost, and `appended` is called with the error. Lines that had to wait go to the spill
 * file if another world has appended to the file meanwhile: a server that lost the memory of that
 * world may confirm this one. */
bool dpt_logbook_flush(struct dpt_logbook *book);

#endif
