/* Cutting text into pieces by the steps of a vocabulary that a tokenizer.json gave. */
#ifndef DPT_WORKER_DATA_PRESPLIT_H
#define DPT_WORKER_DATA_PRESPLIT_H

#include "worker/data/vocab.h"

struct dpt_matcher;

/* Work space of one thread. Zero-initialise. */
struct dpt_presplit {
    struct dpt_matcher *matcher; /* made when a pattern is first run */
    uint8_t *prefixed;
    size_t prefixed_bytes;
    /* Called with each piece that is left after the last step; `room` bytes from `piece` on may be
     * read. */
    enum dpt_status (*piece)(void *ctx, const uint8_t *piece, size_t bytes, size_t room,
                             struct dpt_err *err);
    void *ctx;
};
void dpt_presplit_fini(struct dpt_presplit *split);

/* Cuts `text`, which is valid UTF-8, and hands over its pieces in order. What piece() fails with,
 * DPT_ENOMEM, or DPT_EOVERFLOW of a pattern that gives up. */
DPT_MUST_USE enum dpt_status dpt_presplit_text(struct dpt_presplit *split,
                                               const struct dpt_vocab *vocab, const uint8_t *text,
                                               size_t bytes, size_t room, struct dpt_err *err);

#endif
