/* The functions of cudnn_ops.h in a build without cuDNN's header. */
#include "kernels/cuda/cudnn_ops.h"

size_t dpt_cudnn_version(void)
{
    return 0;
}

bool dpt_cudnn_attention_forward(struct dpt_cuda_stream *s, const struct dpt_attention *a)
{
    (void)s;
    (void)a;
    return false;
}

bool dpt_cudnn_attention_backward(struct dpt_cuda_stream *s, const struct dpt_attention *a)
{
    (void)s;
    (void)a;
    return false;
}

bool dpt_cudnn_conv_takes(int64_t in, int64_t out, enum dpt_dtype dtype)
{
    (void)in;
    (void)out;
    (void)dtype;
    return false;
}

struct dpt_cudnn_entry *dpt_cudnn_conv_plan(struct dpt_cuda_stream *s,
                                            const struct dpt_conv_shape *shape, size_t *ret_scratch)
{
    (void)s;
    (void)shape;
    (void)ret_scratch;
    DPT_ASSERT(!"a convolution by cuDNN, which this build is without");
    return NULL;
}

void dpt_cudnn_conv_run(struct dpt_cuda_stream *s, struct dpt_cudnn_entry *plan, const void *x,
                        const void *w, const void *y, void *scratch)
{
    (void)s;
    (void)plan;
    (void)x;
    (void)w;
    (void)y;
    (void)scratch;
}

size_t dpt_cudnn_cold_bytes(const struct dpt_cuda_stream *s)
{
    (void)s;
    return 0;
}

void dpt_cudnn_warm_up(struct dpt_cuda_stream *s, void *memory)
{
    (void)s;
    (void)memory;
}

void dpt_cudnn_destroy(struct dpt_cudnn **cudnn)
{
    (void)cudnn;
}
