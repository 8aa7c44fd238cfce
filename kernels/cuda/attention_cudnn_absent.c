/* A build without cuDNN's header (attention_cudnn.h). */
#include "kernels/cuda/attention_cudnn.h"

size_t dpt_cudnn_version(void)
{
    return 0;
}

bool dpt_cudnn_attention_forward(struct dpt_cuda_stream *s, const struct dpt_attention_forward *a)
{
    (void)s;
    (void)a;
    return false;
}

bool dpt_cudnn_attention_backward(struct dpt_cuda_stream *s, const struct dpt_attention_backward *a)
{
    (void)s;
    (void)a;
    return false;
}

size_t dpt_cudnn_attention_cold_bytes(const struct dpt_cuda_stream *s)
{
    (void)s;
    return 0;
}

void dpt_cudnn_attention_warm_up(struct dpt_cuda_stream *s, void *memory)
{
    (void)s;
    (void)memory;
}

void dpt_cudnn_attention_destroy(struct dpt_cudnn_attention **attention)
{
    (void)attention;
}
