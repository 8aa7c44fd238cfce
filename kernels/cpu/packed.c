/* Packed weights by kind: see ops.h. The file of the op that reads a form defines it. */
#include "kernels/cpu/packed.h"

#include "kernels/cpu/onednn.h"

size_t dpt_cpu_packed_bytes(struct dpt_stream *stream, const struct dpt_pack *a)
{
    struct dpt_cpu_stream *s = dpt_cpu_stream(stream);
    if (!dpt_stream_begin(&s->base, a->dtype, "packed weights"))
        return 0;
    switch (a->kind) {
    case DPT_PACK_HEAD:
        return dpt_cpu_head_packed_bytes(s, a);
    case DPT_PACK_CONV:
        return dpt_cpu_conv_packed_bytes(s, a);
    case DPT_PACK_LINEAR:
        break;
    }
    return dpt_cpu_linear_packed_bytes(s, a);
}

void dpt_cpu_pack(struct dpt_stream *stream, const struct dpt_pack *a)
{
    struct dpt_cpu_stream *s = dpt_cpu_stream(stream);
    if (!dpt_stream_begin(&s->base, a->dtype, "packed weights"))
        return;
    if (a->kind == DPT_PACK_HEAD)
        dpt_cpu_head_pack(s, a);
    else if (a->kind == DPT_PACK_CONV)
        dpt_cpu_conv_pack(s, a);
    else
        dpt_cpu_linear_pack(s, a);
}

size_t dpt_cpu_operand_bytes(struct dpt_stream *stream, enum dpt_dtype dtype)
{
    return dpt_dtype_bytes(dpt_onednn_operands(dpt_cpu_stream(stream)->gemm, dtype));
}
