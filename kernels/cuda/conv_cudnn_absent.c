/* What a build without cuDNN's header has in the place of conv_cudnn.c. */
#include "kernels/cuda/conv_cudnn.h"

bool dpt_cudnn_conv_takes(int64_t in, int64_t out, enum dpt_dtype dtype)
{
    (void)in;
    (void)out;
    (void)dtype;
    return false;
}

bool dpt_cudnn_conv_plan(struct dpt_cuda_stream *s, const struct dpt_cudnn_conv *c,
                         size_t *ret_scratch)
{
    (void)s;
    (void)c;
    (void)ret_scratch;
    return false;
}

void dpt_cudnn_conv_run(struct dpt_cuda_stream *s, const struct dpt_cudnn_conv *c, const void *x,
                        const void *w, const void *y, void *scratch)
{
    (void)s;
    (void)c;
    (void)x;
    (void)w;
    (void)y;
    (void)scratch;
}

size_t dpt_cudnn_conv_cold_bytes(const struct dpt_cuda_stream *s)
{
    (void)s;
    return 0;
}

void dpt_cudnn_conv_warm_up(struct dpt_cuda_stream *s, void *memory)
{
    (void)s;
    (void)memory;
}

void dpt_cudnn_convs_destroy(struct dpt_cudnn_convs **convs)
{
    (void)convs;
}
