/* Between conv.c and conv_weights.c. */
#ifndef DPT_KERNELS_CPU_CONV_H
#define DPT_KERNELS_CPU_CONV_H

#include "kernels/cpu/windows.h"

/* The windows of a convolution on its images (b, h, w, c). */
struct dpt_cpu_windows dpt_cpu_conv_windows(const struct dpt_cpu_stream *s,
                                            const struct dpt_windows *of, int64_t c,
                                            enum dpt_dtype dtype, const void *image);

/* a->dw. */
void dpt_cpu_conv_weight_gradient(struct dpt_cpu_stream *s, const struct dpt_conv_backward *a);

#endif
