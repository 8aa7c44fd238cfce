/* Rotary embeddings: the table of angles, with one thread per angle, and the rotation. A thread
 * rotates N adjacent elements of a head's lower half with the matching elements of the upper half.
 * The assignment of elements to threads changes no bit. */
#include "kernels/cuda/elem.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/rope.h"

enum { THREADS = 256 };

static __global__ void rope_table(struct dpt_rope_table a)
{
    GRID_LOOP(i, a.t * a.half) {
        const float angle = (float)(a.first + i / a.half) * a.inv_freq[i % a.half];
        dpt_rope_cos_sin(angle, &a.cos[i], &a.sin[i]);
    }
}

void dpt_launch_rope_table(void *queue, const struct dpt_rope_table *a)
{
    const int64_t n = a->t * a->half;
    POST(rope_table, n, *a);
}

/* Each product and each sum is rounded, as on the CPU. */
template <typename E, bool WHOLE> static __global__ void rope(struct dpt_rope a, int64_t items)
{
    enum { N = some<E>::N };
    const int64_t half = a.head_size / 2, groups = (half + N - 1) / N;
    const float sign = a.inverse ? -1.0f : 1.0f;
    GRID_LOOP(i, items) {
        const int64_t at = i % groups * N, row = i / groups / a.heads;
        const int64_t angle = row % a.t * half;
        E *low = (E *)a.x + row * a.stride + i / groups % a.heads * a.head_size, *high = low + half;
        float x[N], y[N];
        get<N, WHOLE>(low, at, half, x);
        get<N, WHOLE>(high, at, half, y);
#pragma unroll
        for (int k = 0; k < N; k++) {
            const bool there = WHOLE || at + k < half;
            const float c = there ? a.cos[angle + at + k] : 0.0f;
            const float s = there ? sign * a.sin[angle + at + k] : 0.0f;
            const float turned = x[k] * c - y[k] * s;
            y[k] = y[k] * c + x[k] * s;
            x[k] = turned;
        }
        put<N, WHOLE>(low, at, half, x);
        put<N, WHOLE>(high, at, half, y);
    }
}

template <typename E> static void post_rope(void *queue, const struct dpt_rope *a)
{
    enum { N = some<E>::N };
    const int64_t half = a->head_size / 2, items = a->n * a->heads * ceil_div(half, N);
    FOR_WHOLE(half % N == 0 && a->stride % N == 0 && is_whole<N>((const E *)a->x),
              POST((rope<E, WHOLE>), items, *a, items));
}

void dpt_launch_rope(void *queue, const struct dpt_rope *a)
{
    FOR_ELEM(a->dtype, post_rope<E>(queue, a));
}
