/* The files of a run in log.dir: metrics.jsonl, events.jsonl, summary.json, evaluation.json. The
 * plan names one rank for each distinct folder; this rank writes the files. A record is one
 * write(2), so a killed writer leaves no half line that its successor would continue. */
#ifndef DPT_WORKER_TRAIN_LOG_RUN_FILES_H
#define DPT_WORKER_TRAIN_LOG_RUN_FILES_H

#include "base/err.h"
#include "rendezvous/proto/message.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* The kinds of lines: those of metrics.jsonl, in their order at one step, and those of
 * events.jsonl. */
enum dpt_line_kind { DPT_LINE_STEP, DPT_LINE_EPOCH, DPT_LINE_EVALUATION, DPT_LINE_EVENT };

/* The place of a line in metrics.jsonl. A world that goes back to an earlier step computes the
 * later steps again, in a higher generation. */
struct dpt_run_file_place {
    int64_t step; /* -1: no line, or an event */
    enum dpt_line_kind kind;
    uint64_t generation;
    /* Time of a line that was read, by the clock of the machine that wrote it; 0: unknown. */
    double made_s;
    int64_t file_bytes; /* length of the file (dpt_run_file_last) */
};

enum { DPT_RUN_FILE_LINE_BYTES_MAX = 4096 };

/* A line of the log: "\n", the record, "\n". */
struct dpt_run_file_line {
    struct dpt_run_file_place place;
    const char *text;
    size_t bytes;
};

/* The destination of lines: files in `dir` or, if not NULL, `hold`, which keeps lines until they
 * may be appended. Also has the fields of every line. */
struct dpt_run_files {
    const char *dir;
    const char *run; /* name: letters, digits, '.', '_', '-' */
    uint64_t generation;
    int world_size;
    void (*hold)(void *ctx, const struct dpt_run_file_line *line);
    void *ctx;
};

struct dpt_metrics {
    int64_t step; /* completed steps; 1 after the first step */
    double loss, lr, grad_norm;
    /* step_ms 0: the writing rank did not measure the step. Then tokens_per_s, wait_ms and
     * sent_bytes are unknown and 0. */
    double step_ms, tokens_per_s;
    /* Part of step_ms in which the main thread of the writing rank waited for communication. */
    double wait_ms;
    int64_t sent_bytes; /* bytes that the writing rank sent in the step */
    /* Bytes that the writing rank has allocated on its GPU or, without a GPU, on its host. */
    int64_t memory_bytes;
    int64_t tokens;        /* tokens of the whole run up to this step */
    bool is_scaled;        /* fp16: scale and skipped_steps are written */
    double scale;          /* scale of the step's loss */
    bool may_skip;         /* skipped_steps is written */
    int64_t skipped_steps; /* skipped steps of the whole run */
};

/* An evaluation, which is a line of metrics.jsonl with val_loss. */
struct dpt_eval_record {
    int64_t step;    /* completed steps of the weights */
    double val_loss; /* mean over the tokens, with labels over the samples, nats */
    int64_t tokens;  /* tokens of data.val */
    /* With labels, in place of tokens: the number of correctly predicted samples, and of all
     * samples; 0: no labels. */
    int64_t right, samples;
    double ms; /* NaN: unknown here, other ranks measured it (null in the file) */
};

/* The end of an epoch, which is a line of metrics.jsonl with epoch. */
struct dpt_epoch_record {
    int64_t epoch, epochs;    /* number of the epoch, from 1; epochs of the run */
    int64_t step, first_step; /* completed steps; first step that avg_loss counts */
    double avg_loss;          /* mean of the losses of these steps; NaN: no loss was finite */
    double seconds;           /* duration of the steps on the writing rank */
    double samples_per_s;     /* 0: unknown */
};

struct dpt_event_record {
    /* start | rank_lost | node_lost | joined | left | comm_error | stalled | server_restart, or
     * redundancy: the shadows are rebuilt. */
    const char *kind;
    const char *cause;
    double detect_ms, abort_ms, rendezvous_ms, rebuild_ms, restore_ms, total_ms;
    int64_t steps_lost, resume_step;
    /* Bytes that the writing rank sends in a step, by the strategy's plan. */
    int64_t sends_bytes;
    /* whole: every part of the state is on two nodes at least; rebuilding: parts are copied to a
     * second node while training continues; none. */
    const char *redundancy;
};

/* A step that is not finite, which is a line of events.jsonl of kind diverged. */
struct dpt_divergence_record {
    int64_t step; /* completed steps, this one included */
    double loss, grad_norm;
    const char *action; /* stop | skip | continue */
    /* Number of steps in a row that `skip` has left out, this one included; else 0. */
    int64_t in_row;
};

/* summary.json. */
struct dpt_summary {
    /* The part that the agent also receives. A value that is not finite is null in the file. The
     * file has no val_accuracy if val_samples is 0. */
    Dpt__RunSummary told;
    const char *run; /* the config's run name; outlives the summary */
    int64_t tokens;
    double total_s; /* since training first began, pauses included */
    uint64_t generations;
    int64_t skipped_steps; /* skipped in the whole run, for an overflow in fp16 or a divergence */
    int world_size;
};

DPT_MUST_USE enum dpt_status dpt_run_file_metrics(const struct dpt_run_files *log,
                                                  const struct dpt_metrics *metrics,
                                                  struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_run_file_eval(const struct dpt_run_files *log,
                                               const struct dpt_eval_record *eval,
                                               struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_run_file_epoch(const struct dpt_run_files *log,
                                                const struct dpt_epoch_record *epoch,
                                                struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_run_file_event(const struct dpt_run_files *log,
                                                const struct dpt_event_record *event,
                                                struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_run_file_divergence(const struct dpt_run_files *log,
                                                     const struct dpt_divergence_record *record,
                                                     struct dpt_err *err);
/* Appends a line to its file in dir, or to the file `path`. The line's first newline is left out
 * unless the file ends within a line. */
DPT_MUST_USE enum dpt_status
dpt_run_file_append(const char *dir, const struct dpt_run_file_line *line, struct dpt_err *err);
DPT_MUST_USE enum dpt_status
dpt_run_file_append_to(const char *path, const struct dpt_run_file_line *line, struct dpt_err *err);
DPT_MUST_USE enum dpt_status
dpt_run_file_summary(const char *dir, const struct dpt_summary *summary, struct dpt_err *err);

/* A number; null if it is not finite, which stands for an unknown value. */
json_t *dpt_run_file_real(double value);

/* Writes the object as the whole file `name` in dir. Takes the object; NULL: DPT_ENOMEM. */
DPT_MUST_USE enum dpt_status dpt_run_file_write_json(json_t *object, const char *dir,
                                                     const char *name, struct dpt_err *err);

/* Writes evaluation.json of a run that only evaluates. */
DPT_MUST_USE enum dpt_status dpt_run_file_evaluation(const struct dpt_run_files *log,
                                                     const struct dpt_eval_record *eval,
                                                     const char *weights_hash, struct dpt_err *err);

/* The place of one line of metrics.jsonl, without its newline; step -1: not a whole record of a
 * step, an epoch or an evaluation. */
struct dpt_run_file_place dpt_run_file_place_of(const char *line, size_t bytes);

/* Whether a line at `a` comes after a line at `b`: by step, then by kind. */
bool dpt_run_file_is_after(const struct dpt_run_file_place *a, const struct dpt_run_file_place *b);

/* Reads the end of metrics.jsonl, at most bytes_max bytes, into ret_text. ret_file_bytes: the
 * length of the file, 0 if it is absent. */
DPT_MUST_USE enum dpt_status dpt_runlog_read_end(const char *dir, size_t bytes_max, char *ret_text,
                                                 size_t *ret_bytes, int64_t *ret_file_bytes,
                                                 struct dpt_err *err);

/* The last whole record in metrics.jsonl. Reads the end of the file only. */
DPT_MUST_USE enum dpt_status dpt_run_file_last(const char *dir, struct dpt_run_file_place *ret,
                                               struct dpt_err *err);

#endif
