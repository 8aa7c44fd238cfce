/* Between conv.c and conv_weights.c. */
#ifndef DPT_KERNELS_CPU_CONV_H
#define DPT_KERNELS_CPU_CONV_H

#include "kernels/cpu/windows.h"

/* Makes a->dw, or prepares to. */
void dpt_cpu_conv_weight_gradient(struct dpt_cpu_stream *s, const struct dpt_conv_backward *a);

#endif
