/* Rotary embeddings: rotates the two halves of each head of a row by the row's angles. Each product
 * and each sum is rounded, as in a framework that has a separate op for each. */
#include "kernels/cpu/simd/elem.h"

void ELEM(rope)(const struct dpt_rope *a, int64_t first, int64_t end)
{
    const int64_t half = a->head_size / 2;
    const v16 sign = v_set(a->inverse ? -1.0f : 1.0f);
    for (int64_t r = first; r < end; r++) {
        const int64_t at = r % a->t * half;
        for (int64_t h = 0; h < a->heads; h++) {
            elem *low = (elem *)a->x + r * a->stride + h * 2 * half, *high = low + half;
            FOR_LANES(j, count, half) {
                v16 c = v_get(a->cos + at + j, count, 0.0f);
                v16 s = v_mul(sign, v_get(a->sin + at + j, count, 0.0f));
                v16 x = e_get(low + j, count, 0.0f), y = e_get(high + j, count, 0.0f);
                e_put(low + j, count, v_sub(v_mul(x, c), v_mul(y, s)));
                e_put(high + j, count, v_add(v_mul(y, c), v_mul(x, s)));
            }
        }
    }
}
