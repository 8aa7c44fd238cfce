/* Whether values of a file of weights are numbers. */
#ifndef DPT_WORKER_WEIGHTS_FINITE_H
#define DPT_WORKER_WEIGHTS_FINITE_H

#include "base/err.h"

#include <stdint.h>

/* Looks at elements [first, end) of tensor `name` in file `path`, which are in `values`.
 * DPT_ECORRUPT: one is NaN or infinite; the line names the file, the tensor and the element. */
DPT_MUST_USE enum dpt_status dpt_weights_check_finite(const char *path, const char *name,
                                                      int64_t first, int64_t end,
                                                      const float *values, struct dpt_err *err);

#endif
