/* Lines of the run's log that wait to be appended. A node that has lost the connection to a living
 * server cannot distinguish this from an outage of the server. So it may continue to train after
 * the server has expelled it, while another world writes the same log. Therefore a line is appended
 * only if one of two conditions holds: the server has confirmed this node after the line was made,
 * or it has confirmed the node so shortly before that it cannot have expelled the node since
 * (docs/membership.md, "Write permission"). Until then the line waits here.
 *
 * Every rank keeps the newest lines, whether or not they are appended. The log writer of a
 * generation appends the lines that the last writer did not append. Main thread only. */
#ifndef DPT_WORKER_TRAIN_LOG_PENDING_LINES_H
#define DPT_WORKER_TRAIN_LOG_PENDING_LINES_H

#include "base/err.h"
#include "worker/train/log/run_files.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    DPT_PENDING_BYTES = 1 << 20,    /* memory for the text of all lines */
    DPT_PENDING_LINES_MAX = 1 << 13 /* DPT_PENDING_BYTES hold about 3000 lines of metrics */
};

struct dpt_pending;

struct dpt_pending_options {
    const char *dir;  /* log.dir; borrowed */
    bool tensorboard; /* lines of metrics.jsonl are also appended to event files (event_file.h) */
    /* The spill file takes the lines that no server will confirm. Its folder is created with the
     * first line. spill_dir is borrowed, spill_name is copied. */
    const char *spill_dir, *spill_name;
    /* Whether lines made until `made_ms` may be appended now. */
    bool (*may_append)(void *ctx, int64_t made_ms);
    /* Called when a line was written, or was lost for the reason in `err`. */
    void (*appended)(void *ctx, enum dpt_status status, const struct dpt_err *err);
    void *ctx;
};

DPT_MUST_USE enum dpt_status dpt_pending_create(const struct dpt_pending_options *options,
                                                struct dpt_pending **ret, struct dpt_err *err);
/* Writes lines that still wait and that the file lacks to the spill file. A warning names the spill
 * file. */
void dpt_pending_destroy(struct dpt_pending **book);

/* A generation begins at `step`. `writes`: this rank is its log writer. Drops the lines of later
 * steps, which are computed again. From now on a writer appends the kept lines that are missing in
 * the file, which ends with `last`. `last` is read if `writes`, and in the first generation. */
void dpt_pending_begin(struct dpt_pending *book, bool writes, int64_t step,
                       const struct dpt_run_file_place *last);
/* The generation has ended. Appends the lines that may be appended. Lines of steps that still wait
 * are left to the writer of the next generation, which has them too. */
void dpt_pending_end(struct dpt_pending *book);

/* Called between generations, when this rank has saved its state without a server. The log writer
 * may be dead, and perhaps no other rank has its lines. So from now on all lines of steps wait.
 * When the book is destroyed, the lines that the file lacks go to the spill file. */
void dpt_pending_keep_unwritten(struct dpt_pending *book);

/* Adds a line made at made_ms (dpt_now_ms). Only a writer keeps events. A full book drops its
 * oldest lines; those that still wait go to the spill file. */
void dpt_pending_add(struct dpt_pending *book, const struct dpt_run_file_line *line,
                     int64_t made_ms);

/* Whether the book has a line of this kind and step. */
bool dpt_pending_has(const struct dpt_pending *book, const struct dpt_run_file_place *place);

/* Appends the lines that may be appended, in order. True: no line waits. A line that cannot be
 * written, to its file or to the event file, is lost, and `appended` gets the error. If another
 * world has appended to the file meanwhile, lines that had to wait go to the spill file: a server
 * that has no memory of that world may confirm this one. */
bool dpt_pending_flush(struct dpt_pending *book);

#endif
