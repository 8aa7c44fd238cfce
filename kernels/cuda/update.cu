/* The optimizers' updates: one pass over parameters, moments and gradient for the whole flat range,
 * whatever tensors are in it. The operations and their order are those of the CPU, and so are the
 * bits. */
#include "kernels/cuda/elem.cuh"
#include "kernels/cuda/launch.h"

enum { THREADS = 256, TENSORS_MAX = 128 };

/* The tensors that a launch updates, and which of them decay. A kernel gets this as an argument, so
 * no memory is written for it. */
struct tensors {
    int n;
    int64_t begin[TENSORS_MAX], end[TENSORS_MAX];
    uint32_t decays[TENSORS_MAX / 32];
};

/* The tensor that contains element i. -1: none. */
static __device__ int tensor_of(const struct tensors &t, int64_t i)
{
    int low = 0, high = t.n - 1; /* finds the last tensor that begins at or before i */
    while (low < high) {
        const int middle = (low + high + 1) / 2;
        if (t.begin[middle] <= i)
            low = middle;
        else
            high = middle - 1;
    }
    return i >= t.begin[low] && i < t.end[low] ? low : -1;
}

static __device__ bool does_decay(const struct tensors &t, int tensor)
{
    return t.decays[tensor / 32] >> (tensor % 32) & 1;
}

/* Updates the moments of element i and returns its new parameter. */
static __device__ float updated(const struct dpt_adamw &a, int64_t i, float weight_decay)
{
    const float b1_rest = 1.0f - a.beta1, b2_rest = 1.0f - a.beta2;
    float g = a.grad[i] * a.grad_scale;
    float p = a.param[i];
    if (a.l2)
        g = fmaf(weight_decay, p, g);
    const float m = fmaf(a.beta1, a.m[i], b1_rest * g);
    const float v = fmaf(a.beta2, a.v[i], b2_rest * (g * g));
    if (!a.l2)
        p = p - a.lr * weight_decay * p;
    a.m[i] = m;
    a.v[i] = v;
    return p - a.lr * ((m / a.bias1) / (sqrtf(v / a.bias2) + a.eps));
}

static __device__ float updated(const struct dpt_sgd &a, int64_t i, float weight_decay)
{
    const float p = a.param[i];
    const float g = fmaf(weight_decay, p, a.grad[i] * a.grad_scale);
    float step = g;
    if (a.momentum > 0.0f) {
        const float m = fmaf(a.momentum, a.m[i], g);
        a.m[i] = m;
        step = a.nesterov ? fmaf(a.momentum, m, g) : m;
    }
    return p - a.lr * step;
}

/* OP: struct dpt_adamw or struct dpt_sgd. */
template <typename E, typename OP> static __global__ void update(OP a, struct tensors t)
{
    const int64_t first = t.begin[0];
    GRID_LOOP(at, t.end[t.n - 1] - first) {
        const int64_t i = first + at;
        const int tensor = tensor_of(t, i);
        if (tensor < 0)
            continue;
        const float p = updated(a, i, does_decay(t, tensor) ? a.weight_decay : 0.0f);
        a.param[i] = p;
        if (a.copy)
            ((E *)a.copy)[i] = rounded<E>(p);
    }
}

/* The tensors of one launch: at most TENSORS_MAX, from `first` on. */
static struct tensors some_of(const struct dpt_updated *tensors, int n, int first)
{
    struct tensors t = {};
    for (; t.n < TENSORS_MAX && first + t.n < n; t.n++) {
        const struct dpt_updated *one = &tensors[first + t.n];
        t.begin[t.n] = one->begin;
        t.end[t.n] = one->end;
        t.decays[t.n / 32] |= (uint32_t)one->decays << (t.n % 32);
    }
    return t;
}

template <typename OP> static void launch_update(void *queue, const OP *a)
{
    const struct dpt_updated whole = {0, a->n, true};
    const struct dpt_updated *tensors = a->tensors ? a->tensors : &whole;
    const int n = a->tensors ? a->n_tensors : 1;
    for (int first = 0; a->n > 0 && first < n; first += TENSORS_MAX) {
        const struct tensors t = some_of(tensors, n, first);
        const int64_t elements = t.end[t.n - 1] - t.begin[0];
        FOR_ELEM(a->copy_dtype, POST((update<E, OP>), elements, *a, t));
    }
}

void dpt_launch_adamw(void *queue, const struct dpt_adamw *a)
{
    launch_update(queue, a);
}

void dpt_launch_sgd(void *queue, const struct dpt_sgd *a)
{
    launch_update(queue, a);
}
