/* The text of the agent's lines. Pure: no terminal, clock or file. */
#ifndef DPT_WORKER_AGENT_PROGRESS_TEXT_H
#define DPT_WORKER_AGENT_PROGRESS_TEXT_H

#include "rendezvous/proto/message.h"
#include "worker/agent/core.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    DPT_TEXT_LINE_BYTES = 2048,
    DPT_TEXT_NUMBER_BYTES = 32,
    DPT_TEXT_SUMMARY_BYTES = 2048,
    DPT_TEXT_BAR_MIN = 6, /* columns of the live line's bar */
    DPT_TEXT_BAR_MAX = 30
};

/* A completed step as the terminal shows it. */
struct dpt_step_facts {
    int64_t step, steps; /* completed steps; steps of the run, 0: unknown */
    double loss, lr, grad_norm;
    double tokens_per_s; /* 0: not known */
    bool of_images;      /* a sample counts as one token */
    uint32_t world_size;
    int64_t elapsed_ms; /* time since training began on this node */
    int64_t eta_ms;     /* expected time left; < 0: unknown */
};

struct dpt_live_facts {
    struct dpt_step_facts step;
    struct dpt_agent_evaluation val; /* the newest evaluation */
    int64_t checkpoint;              /* step of the newest checkpoint; 0: none */
};

/* 1234567 as "1,234,567". */
void dpt_progress_text_count(int64_t number, char ret[DPT_TEXT_NUMBER_BYTES]);

/* "5.9 s", "41 s", "12 min 03 s", "2 h 05 min". */
void dpt_progress_text_duration(int64_t ms, char ret[DPT_TEXT_NUMBER_BYTES]);

/* "31.25%". `samples` must be above 0. */
void dpt_progress_text_share(int64_t right, int64_t samples, char ret[DPT_TEXT_NUMBER_BYTES]);

/* "step 12/100  loss 3.2104  lr 2.98e-04  norm 0.91  4,812 tokens/s  2 ranks  5.9 s  ETA 41 s". */
void dpt_progress_text_step(const struct dpt_step_facts *facts, char ret[DPT_TEXT_LINE_BYTES]);

/* "Epoch 1/10 | Avg loss 3.2104 | 12.3 s | 512 samples/s" of a step that ends an epoch. If `whole`
 * is false, the numbers are of a part of the epoch: "Epoch 2/10 | Avg loss 3.1002 (of steps 26-40)
 * | …". */
void dpt_progress_text_epoch(const Dpt__StepRecord *step, int64_t epochs, bool whole,
                             char ret[DPT_TEXT_LINE_BYTES]);

/* One line of fewer than `columns` columns. A field that does not fit is left out completely, the
 * least important field first. Without `utf8` all bytes are ASCII. "" if the step itself does not
 * fit. */
void dpt_progress_text_live(const struct dpt_live_facts *facts, int columns, bool utf8,
                            char ret[DPT_TEXT_LINE_BYTES]);

/* "rank 3 (node b, host gpu7) died: signal 9; training resumed after 264 ms, 0 steps lost, world 4
 * -> 3". world_before 0: this node had no part in that world. */
void dpt_progress_text_recovery(const struct dpt_agent_view *view, uint32_t world_before,
                                char ret[DPT_TEXT_LINE_BYTES]);

/* A node's part in a run that ended with exit code 0. */
struct dpt_closing_facts {
    const char *run;
    int64_t step;        /* newest step applied by a rank of this node; -1: none */
    uint64_t generation; /* 0: none */
    bool released;       /* the node left on request, before the run's end */
    bool no_server;      /* no server answered */
};

/* "done: run tiny, step 60, generation 1". */
void dpt_progress_text_closing(const struct dpt_closing_facts *facts,
                               char ret[DPT_TEXT_LINE_BYTES]);

/* The end of a run: a block of aligned lines, without the last newline. */
void dpt_progress_text_summary(const Dpt__RunSummary *summary, char ret[DPT_TEXT_SUMMARY_BYTES]);

/* The state of a run that the last node leaves, as the node of rank 0 knows it. */
struct dpt_left_facts {
    int64_t step;             /* newest saved step */
    int64_t steps;            /* steps of the run; 0: unknown */
    int64_t first_step;       /* step from which training began on this node */
    int64_t samples_per_step; /* 0: not known */
    /* Recoveries that this node has seen, and the steps that they lost. */
    uint32_t recoveries;
    int64_t steps_lost;
};

/* The same block for a run that the last node leaves. live->step.elapsed_ms: time since training
 * began on this node. */
void dpt_progress_text_left(const struct dpt_left_facts *facts, const struct dpt_live_facts *live,
                            char ret[DPT_TEXT_SUMMARY_BYTES]);

#endif
