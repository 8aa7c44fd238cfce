/* Weights of a model from a checkpoint, from a checkpoint's adapters merged into their base, from a
 * Hugging Face folder, or from a model file of llm.c. */
#ifndef DPT_WORKER_WEIGHTS_WEIGHTS_SOURCE_H
#define DPT_WORKER_WEIGHTS_WEIGHTS_SOURCE_H

#include "worker/weights/llmc.h"
#include "worker/weights/merged.h"
#include "worker/weights/published.h"

/* Zero-initialise. The weights are those of `merged`, else of the one pointer that is set. */
struct dpt_weights_source {
    const struct dpt_model *model;     /* names and shapes; borrowed */
    struct dpt_checkpoint *checkpoint; /* owned, as are the next three */
    struct dpt_merged *merged;         /* over `checkpoint` */
    struct dpt_published *published;
    struct dpt_llmc *llmc;
};

/* Reads elements [first, end) of tensor `param` of the model. If `merged` is set, the caller must
 * read all elements of all tensors in order, each once (dpt_merged_read). */
DPT_MUST_USE enum dpt_status dpt_weights_source_read(const struct dpt_weights_source *source,
                                                     int param, int64_t first, int64_t end,
                                                     float *ret, struct dpt_err *err);

/* Call it after the last element was read and before the weights are used. DPT_ECONFIG: the base of
 * `merged` is not the base of the run (dpt_merged_check). */
DPT_MUST_USE enum dpt_status dpt_weights_source_check(const struct dpt_weights_source *source,
                                                      struct dpt_err *err);

void dpt_weights_source_close(struct dpt_weights_source *source);

#endif
