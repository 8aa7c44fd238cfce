/* The optimizers' updates: one pass over parameter, moments and gradient for the whole flat range,
 * whatever tensors lie in it. The operations and their order are the CPU's, so the bits are too. */
#include "kernels/cuda/elem.cuh"
#include "kernels/cuda/launch.h"

enum { THREADS = 256 };

template <typename E> static __device__ void store_copy(void *copy, int64_t i, float p)
{
    if (copy)
        ((E *)copy)[i] = rounded<E>(p);
}

template <typename E> static __global__ void adamw(struct dpt_adamw a)
{
    const float decay = a.lr * a.weight_decay, b1_rest = 1.0f - a.beta1, b2_rest = 1.0f - a.beta2;
    GRID_LOOP(i, a.n)
    {
        const float g = a.grad[i] * a.grad_scale;
        float p = a.param[i];
        const float m = fmaf(a.beta1, a.m[i], b1_rest * g);
        const float v = fmaf(a.beta2, a.v[i], b2_rest * (g * g));
        p = p - decay * p;
        p = p - a.lr * ((m / a.bias1) / (sqrtf(v / a.bias2) + a.eps));
        a.param[i] = p;
        a.m[i] = m;
        a.v[i] = v;
        store_copy<E>(a.copy, i, p);
    }
}

template <typename E> static __global__ void sgd(struct dpt_sgd a)
{
    const bool keeps = a.momentum > 0.0f;
    GRID_LOOP(i, a.n)
    {
        const float p = a.param[i];
        const float g = fmaf(a.weight_decay, p, a.grad[i] * a.grad_scale);
        float step = g;
        if (keeps) {
            const float m = fmaf(a.momentum, a.m[i], g);
            a.m[i] = m;
            step = a.nesterov ? fmaf(a.momentum, m, g) : m;
        }
        const float next = p - a.lr * step;
        a.param[i] = next;
        store_copy<E>(a.copy, i, next);
    }
}

int dpt_launch_adamw(void *queue, const struct dpt_adamw *a)
{
    if (a->n == 0)
        return 0;
    FOR_ELEM(a->copy_dtype,
             adamw<E><<<grid_for(a->n, THREADS), THREADS, 0, (cudaStream_t)queue>>>(*a));
    return cudaGetLastError();
}

int dpt_launch_sgd(void *queue, const struct dpt_sgd *a)
{
    if (a->n == 0)
        return 0;
    FOR_ELEM(a->copy_dtype,
             sgd<E><<<grid_for(a->n, THREADS), THREADS, 0, (cudaStream_t)queue>>>(*a));
    return cudaGetLastError();
}
