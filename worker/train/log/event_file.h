/* TensorBoard event files in log.dir, events.out.tfevents.NUMBER.HOST.PID: the curves of
 * metrics.jsonl (log.tensorboard).
 *
 * A line is appended to metrics.jsonl first and then to the event file, by the same process. So an
 * event file has no line that metrics.jsonl lacks, and a killed writer leaves at most one line that
 * only metrics.jsonl has. The next writer begins a new file, which repeats the lines of the newest
 * steps of metrics.jsonl after a START at the first of them. A step that was computed again comes
 * after a START, too. TensorBoard's reader in Python drops what it has from the step of a START on,
 * so it has each step once, in order, although nothing is removed from a file. TensorBoard's data
 * server in Rust ignores a START: it drops the later values of a tag at the tag's next value. A
 * START drops whole steps: an evaluation or an epoch that goes back to an earlier step begins a new
 * file.
 *
 * NUMBER is the time of creation in seconds, but at least one more than the newest file's NUMBER,
 * so that the files' names have the order of their contents also if the clocks of two nodes differ.
 * Main thread only. */
#ifndef DPT_WORKER_TRAIN_LOG_EVENT_FILE_H
#define DPT_WORKER_TRAIN_LOG_EVENT_FILE_H

#include "worker/train/log/run_files.h"

#include <limits.h>

/* Zeroed, with `dir`: no file has been begun. */
struct dpt_event_file {
    const char *dir;               /* log.dir; borrowed */
    char path[PATH_MAX];           /* "": the next line begins a file */
    struct dpt_run_file_place end; /* the last line in it */
};

/* A generation begins. `writes`: this rank is its log writer. The file is continued only if this
 * rank was the last one that wrote event files. */
void dpt_event_file_begin(struct dpt_event_file *file, bool writes);

/* Begins a file if none has been begun. This allocates memory, so it is called outside a step.
 * If it fails, the next line begins the file. */
void dpt_event_file_prepare(struct dpt_event_file *file);

/* Appends a line, which metrics.jsonl has already, in one write(2). If this fails, the line is
 * lost, and the file ends with whole records. */
DPT_MUST_USE enum dpt_status dpt_event_file_add(struct dpt_event_file *file,
                                                const struct dpt_run_file_line *line,
                                                struct dpt_err *err);

#endif
