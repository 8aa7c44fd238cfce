/* The product of the health check (health_product.h). */
#include "worker/agent/health_product.h"

#include "base/rng.h"
#include "kernels/ops.h"

enum { ROWS = DPT_HEALTH_ROWS, DEPTH = DPT_HEALTH_DEPTH, COLUMNS = DPT_HEALTH_COLUMNS };
enum { INTEGER_MAX = 256 };
_Static_assert(INTEGER_MAX *INTEGER_MAX *DEPTH <= 1 << 24, "f32 has every partial sum exactly");

/* An integer in [-INTEGER_MAX, INTEGER_MAX - 1], or a number in [-1, 1) that uses all bits of an
 * f32. */
static float product_element(uint32_t word, bool is_integer)
{
    const int32_t integer = (int32_t)(word % (2 * INTEGER_MAX)) - INTEGER_MAX;
    return is_integer ? (float)integer : (float)(int32_t)word * 0x1p-31f;
}

/* m (rows, columns). */
static void draw_matrix(float *m, int64_t rows, int64_t columns, uint32_t which)
{
    const struct dpt_rng_key key = {{which, 0}};
    for (int64_t i = 0; i < rows * columns; i += 4) {
        uint32_t words[4];
        dpt_philox(key, (uint64_t)i, words);
        for (int64_t k = 0; k < 4; k++) {
            const bool is_integer =
                which == 1 ? (i + k) / columns < rows / 2 : (i + k) % columns < columns / 2;
            m[i + k] = product_element(words[k], is_integer);
        }
    }
}

void dpt_health_draw_operands(struct dpt_health_operands *ret)
{
    draw_matrix(ret->x, ROWS, DEPTH, 1);
    draw_matrix(ret->w, DEPTH, COLUMNS, 2);
    for (int r = 0; r < ROWS / 2; r++)
        for (int c = 0; c < COLUMNS / 2; c++) {
            int32_t sum = 0;
            for (int k = 0; k < DEPTH; k++)
                sum += (int32_t)ret->x[r * DEPTH + k] * (int32_t)ret->w[k * COLUMNS + c];
            ret->corner[r * (COLUMNS / 2) + c] = sum;
        }
}

void dpt_health_multiply(const struct dpt_ops *ops, struct dpt_stream *stream,
                         const struct dpt_health_operands *operands, float *y)
{
    const struct dpt_linear_forward product = {.n = ROWS,
                                               .in = DEPTH,
                                               .out = COLUMNS,
                                               .dtype = DPT_F32,
                                               .x = operands->x,
                                               .w = operands->w,
                                               .y = y};
    ops->linear_forward(stream, &product);
}

bool dpt_health_corner_is_right(const struct dpt_health_operands *operands, const float *y)
{
    for (int r = 0; r < ROWS / 2; r++)
        for (int c = 0; c < COLUMNS / 2; c++)
            if (y[r * COLUMNS + c] != (float)operands->corner[r * (COLUMNS / 2) + c])
                return false;
    return true;
}
