/* Ops of decoding, one row at a time and in f32. */
#include "kernels/cuda/elem.cuh"
#include "kernels/cuda/launch.h"

enum { LANES = 32, WARPS = 4, THREADS = 128 };

/* One thread per column: a chain of fma that begins with the bias, in the order of the rows of
 * w. */
static __global__ void linear_row(struct dpt_linear_row a)
{
    const int64_t j = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (j >= a.out)
        return;
    float sum = a.bias ? a.bias[j] : 0.0f;
    for (int64_t i = 0; i < a.in; i++)
        sum = fmaf(a.x[i], a.w[i * a.out + j], sum);
    a.y[j] = sum;
}

/* One warp per result: the dot product of x and a row of w, plus the bias. */
static __global__ void linear_row_out_in(struct dpt_linear_row a)
{
    const int lane = threadIdx.x % LANES;
    const int64_t j = (int64_t)blockIdx.x * WARPS + threadIdx.x / LANES;
    if (j >= a.out)
        return;
    float sum = 0.0f;
    for (int64_t i = lane; i < a.in; i += LANES)
        sum = fmaf(a.x[i], a.w[j * a.in + i], sum);
    sum = group_sum<LANES>(sum);
    if (lane == 0)
        a.y[j] = a.bias ? sum + a.bias[j] : sum;
}

void dpt_launch_linear_row(void *queue, const struct dpt_linear_row *a)
{
    cudaStream_t q = (cudaStream_t)queue;
    if (a->out == 0)
        return;
    if (a->out_in)
        linear_row_out_in<<<(unsigned)ceil_div(a->out, WARPS), WARPS * LANES, 0, q>>>(*a);
    else
        linear_row<<<(unsigned)ceil_div(a->out, THREADS), THREADS, 0, q>>>(*a);
}

/* One block per head of a row. Its scores are in shared memory. */
static __global__ void attend_rows(struct dpt_attention_rows a)
{
    extern __shared__ float scores[];
    __shared__ float place[THREADS];
    const int64_t hd = a.head_size, c = a.heads * hd, ld = c + 2 * a.kv_heads * hd;
    const int64_t row = a.first + blockIdx.x / a.heads, head = blockIdx.x % a.heads;
    const float *q = a.qkv + row * ld + head * hd;
    const float *keys = a.qkv + c + head / (a.heads / a.kv_heads) * hd;
    const float *values = keys + a.kv_heads * hd;
    const float scale = 1.0f / sqrtf((float)hd);
    float most = -3.0e38f, sum = 0.0f;
    for (int64_t s = threadIdx.x; s <= row; s += THREADS) {
        const float *k = keys + s * ld;
        float score = 0.0f;
        for (int64_t j = 0; j < hd; j++)
            score = fmaf(q[j], k[j], score);
        scores[s] = scale * score;
        most = fmaxf(most, scores[s]);
    }
    most = block_reduce<THREADS, greatest>(most, place);
    for (int64_t s = threadIdx.x; s <= row; s += THREADS) {
        scores[s] = exp_of(scores[s] - most);
        sum += scores[s];
    }
    sum = block_reduce<THREADS, plus>(sum, place); /* also a barrier: all scores are written */
    for (int64_t j = threadIdx.x; j < hd; j += THREADS) {
        float mean = 0.0f;
        for (int64_t s = 0; s <= row; s++)
            mean = fmaf(scores[s], values[s * ld + j], mean);
        a.y[(row - a.first) * c + head * hd + j] = mean * (1.0f / sum);
    }
}

int64_t dpt_launch_attention_rows_max(int shared_bytes)
{
    return shared_bytes / (int)sizeof(float) - THREADS; /* the floats of `place` */
}

void dpt_launch_attention_rows(void *queue, const struct dpt_attention_rows *a)
{
    const int64_t blocks = (a->end - a->first) * a->heads;
    /* Whole groups of four scores, because the compiled kernel reads scores in groups of four. */
    const int bytes = (int)(ceil_div(a->end, 4) * 4) * (int)sizeof(float);
    if (blocks > 0)
        post_with_shared(attend_rows, a, (unsigned)blocks, THREADS, bytes, queue);
}
