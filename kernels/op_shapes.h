/* The shapes of ops, from their arguments: dpt_linear_forward_shape(a) has n, in and out of *a.
 * Only op_times.c includes this. */
#ifndef DPT_KERNELS_OP_SHAPES_H
#define DPT_KERNELS_OP_SHAPES_H

#include "kernels/op_times.h"
#include "kernels/ops.h"

#define DPT_OP(name, class, type) struct dpt_op_shape type##_shape(const struct type *a);
#include "kernels/ops.def"

#endif
