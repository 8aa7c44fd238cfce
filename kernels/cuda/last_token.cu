/* Forward copies the row of each sample's last token. Backward writes it back among rows of
 * zeros. */
#include "kernels/cuda/elem.cuh"
#include "kernels/cuda/launch.h"

enum { THREADS = 256 };

template <typename E> static __global__ void last_token(struct dpt_last_token a)
{
    const E *x = (const E *)a.x;
    E *y = (E *)a.y;
    GRID_LOOP(i, a.b * a.c) {
        const int64_t sample = i / a.c;
        y[i] = x[(sample * a.t + a.lengths[sample] - 1) * a.c + i % a.c];
    }
}

void dpt_launch_last_token_forward(void *queue, const struct dpt_last_token *a)
{
    const int64_t n = a->b * a->c;
    FOR_ELEM(a->dtype, POST(last_token<E>, n, *a));
}

template <typename E> static __global__ void last_token_grad(struct dpt_last_token a)
{
    const E *dy = (const E *)a.x;
    E *dx = (E *)a.y;
    GRID_LOOP(i, a.b * a.t * a.c) {
        const int64_t row = i / a.c, sample = row / a.t;
        const bool last = row % a.t == a.lengths[sample] - 1;
        dx[i] = last ? dy[sample * a.c + i % a.c] : rounded<E>(0.0f);
    }
}

void dpt_launch_last_token_backward(void *queue, const struct dpt_last_token *a)
{
    const int64_t n = a->b * a->t * a->c;
    FOR_ELEM(a->dtype, POST(last_token_grad<E>, n, *a));
}
