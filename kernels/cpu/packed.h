/* The packed forms of weights, each beside the op that reads it. For kernels/cpu only. */
#ifndef DPT_KERNELS_CPU_PACKED_H
#define DPT_KERNELS_CPU_PACKED_H

#include "kernels/cpu/stream.h"

/* linear.c */
size_t dpt_cpu_linear_packed_bytes(struct dpt_cpu_stream *s, const struct dpt_pack *a);
void dpt_cpu_linear_pack(struct dpt_cpu_stream *s, const struct dpt_pack *a);

/* head.c */
size_t dpt_cpu_head_packed_bytes(struct dpt_cpu_stream *s, const struct dpt_pack *a);
void dpt_cpu_head_pack(struct dpt_cpu_stream *s, const struct dpt_pack *a);

/* conv.c */
size_t dpt_cpu_conv_packed_bytes(struct dpt_cpu_stream *s, const struct dpt_pack *a);
void dpt_cpu_conv_pack(struct dpt_cpu_stream *s, const struct dpt_pack *a);

#endif
