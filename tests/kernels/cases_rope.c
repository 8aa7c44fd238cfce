/* Cases of rotary embeddings (cases.h): b, t, heads, head_size, elements behind the heads in a row,
 * first. */
#include "tests/kernels/case_families.h"
#include "tests/kernels/ref.h"

#include <math.h>
#include <string.h>

static int64_t rows_of(const struct op_case *c)
{
    return c->shape[0] * c->shape[1];
}

static int64_t stride_of(const struct op_case *c)
{
    return c->shape[2] * c->shape[3] + c->shape[4];
}

static struct dpt_rope_table table_of(const struct op_case *c)
{
    struct dpt_rope_table table = {
        .t = c->shape[1], .first = c->shape[5], .half = (int)(c->shape[3] / 2)};
    for (int i = 0; i < table.half; i++)
        table.inv_freq[i] = (float)pow(10000.0, -(double)i / table.half);
    return table;
}

static struct dpt_rope rope_of(const struct op_case *c, bool inverse)
{
    return (struct dpt_rope){.n = rows_of(c),
                             .t = c->shape[1],
                             .heads = c->shape[2],
                             .head_size = c->shape[3],
                             .stride = stride_of(c),
                             .inverse = inverse};
}

/* Outputs: the rows rotated, their gradients rotated back, the table. */
void rope_layout(const struct op_case *c, struct case_layout *r)
{
    const int64_t x = rows_of(c) * stride_of(c), angles = c->shape[1] * c->shape[3] / 2;
    *r = (struct case_layout){.inputs = 2,
                              .in = {x, x},
                              .outputs = 4,
                              .out = {x, x, angles, angles},
                              .f32 = {false, false, true, true},
                              .y = 0,
                              .dy = 1,
                              .pairs = 1,
                              .of = {0},
                              .grad = {1}};
}

void rope_run(const struct op_case *c, enum dpt_dtype dtype, const struct dpt_ops *ops,
              struct dpt_stream *s, void *const *in, const int32_t *ints, bool accumulate,
              void *const *out)
{
    struct dpt_rope_table table = table_of(c);
    (void)ints;
    (void)accumulate;
    table.cos = out[2];
    table.sin = out[3];
    ops->rope_table(s, &table);
    for (int i = 0; i < 2; i++) {
        struct dpt_rope rope = rope_of(c, i == 1);
        rope.dtype = dtype;
        rope.cos = table.cos;
        rope.sin = table.sin;
        rope.x = out[i];
        ops->copy(s, (size_t)(rope.n * rope.stride) * dpt_dtype_bytes(dtype), in[i], out[i]);
        ops->rope(s, &rope);
    }
}

void rope_ref(const struct op_case *c, double *const *in, const int32_t *ints, double *const *out)
{
    const struct dpt_rope_table table = table_of(c);
    (void)ints;
    ref_rope_table(&table, out[2], out[3]);
    for (int i = 0; i < 2; i++) {
        const struct dpt_rope rope = rope_of(c, i == 1);
        memcpy(out[i], in[i], (size_t)(rope.n * rope.stride) * sizeof(double));
        ref_rope(&rope, out[2], out[3], out[i]);
    }
}
