/* Packed weights by kind (ops.h). The file of the op that reads a form defines it. */
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/onednn.h"

static const struct {
    size_t (*bytes)(struct dpt_cpu_stream *s, const struct dpt_pack *a);
    void (*pack)(struct dpt_cpu_stream *s, const struct dpt_pack *a);
} forms[] = {
    [DPT_PACK_LINEAR] = {dpt_cpu_linear_packed_bytes, dpt_cpu_linear_pack},
    [DPT_PACK_HEAD] = {dpt_cpu_head_packed_bytes, dpt_cpu_head_pack},
    [DPT_PACK_CONV] = {dpt_cpu_conv_packed_bytes, dpt_cpu_conv_pack},
};

size_t dpt_cpu_packed_bytes(struct dpt_stream *stream, const struct dpt_pack *a)
{
    return dpt_stream_begin(stream, a->dtype, "packed weights")
               ? forms[a->kind].bytes(dpt_cpu_stream(stream), a)
               : 0;
}

void dpt_cpu_pack(struct dpt_stream *stream, const struct dpt_pack *a)
{
    if (dpt_stream_begin(stream, a->dtype, "packed weights"))
        forms[a->kind].pack(dpt_cpu_stream(stream), a);
}

size_t dpt_cpu_operand_bytes(struct dpt_stream *stream, enum dpt_dtype dtype)
{
    return dpt_dtype_bytes(dpt_onednn_operands(dpt_cpu_stream(stream)->gemm, dtype));
}
