/* Sizes of a model of the Llama family for a number of parameters. Pure. */
#ifndef DPT_WORKER_PLANNER_SHAPE_H
#define DPT_WORKER_PLANNER_SHAPE_H

#include "base/err.h"

#include <stdint.h>

struct dpt_shape_of_llama {
    int n_layer, n_embd, n_head, n_kv_head, n_inner, vocab;
};

enum { DPT_SHAPE_VOCAB = 32000 }; /* Llama 2's */

/* Parameters of such a model with an untied head and no biases. */
double dpt_shape_count(const struct dpt_shape_of_llama *shape);

/* Fills *ret with sizes whose number of parameters is closest to `parameters`. `layers` and
 * `width` 0: both are chosen in Llama 3 70B's proportions (width = 102.4 layers, n_inner = 3.5
 * width); n_inner then makes up the difference. Given: n_inner alone is chosen. Heads have 128
 * channels, or 64 below a width of 1,024 and where 128 does not divide the width; keys and values
 * have 8 heads where 8 divides the heads. Widths of 1,024 and more are chosen as multiples of it.
 * DPT_EINVAL: `width` is not a multiple of 64, or no n_inner of 1 to 262,144 gives the number. */
DPT_MUST_USE enum dpt_status dpt_shape_fit(double parameters, int layers, int width,
                                           struct dpt_shape_of_llama *ret, struct dpt_err *err);

/* The sizes for given layers and width without a number of parameters: n_inner = 3.5 width. */
DPT_MUST_USE enum dpt_status dpt_shape_given(int layers, int width, struct dpt_shape_of_llama *ret,
                                             struct dpt_err *err);

#endif
