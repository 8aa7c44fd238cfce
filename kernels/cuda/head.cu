/* The head's softmax: one block a row of logits. The row is read twice, for its log-sum-exp and for
 * the gradient; threads take every THREADS-th element and are joined in a fixed tree. */
#include "kernels/cuda/elem.cuh"
#include "kernels/cuda/launch.h"

enum { THREADS = 256 };

template <typename E> static __global__ void softmax_loss(struct dpt_launch_softmax a)
{
    __shared__ float place[THREADS];
    const int64_t r = blockIdx.x, target = a.targets[r];
    const float *x = a.logits + r * a.ld;
    float most = -3.0e38f, sum = 0.0f; /* finite, so that most - most is never NaN */
    for (int64_t j = threadIdx.x; j < a.v; j += THREADS) {
        const float v = x[j];
        if (v > most) {
            sum *= exp_of(most - v);
            most = v;
        }
        sum += exp_of(v - most);
    }
    const float row_most = block_max<THREADS>(most, place);
    const float row_sum = block_sum<THREADS>(sum * exp_of(most - row_most), place);
    const float lse = row_most + (float)log((double)row_sum);
    if (threadIdx.x == 0)
        a.loss[r] = lse - x[target];
    if (!a.dlogits)
        return;
    __syncthreads(); /* x[target] is read before it is overwritten, where dlogits are the logits */
    E *to = (E *)a.dlogits + r * a.ld;
    for (int64_t j = threadIdx.x; j < a.v; j += THREADS) {
        float g = exp_of(x[j] - lse) * a.dloss;
        if (j == target)
            g -= a.dloss;
        to[j] = rounded<E>(g);
    }
}

int dpt_launch_softmax_loss(void *queue, const struct dpt_launch_softmax *a)
{
    if (a->rows == 0)
        return 0;
    FOR_ELEM(a->dtype, softmax_loss<E><<<(unsigned)a->rows, THREADS, 0, (cudaStream_t)queue>>>(*a));
    return cudaGetLastError();
}
