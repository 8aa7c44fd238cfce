/* The sizes that an op has in traces, for each struct of arguments in ops.h (op_shapes.h). An op
 * whose struct is not here does not link. */
#include "kernels/op_shapes.h"

/* clang-format off */
#define S1(x)             {{#x}, {a->x}}
#define S2(x, y)          {{#x, #y}, {a->x, a->y}}
#define S3(x, y, z)       {{#x, #y, #z}, {a->x, a->y, a->z}}
#define S4(x, y, z, u)    {{#x, #y, #z, #u}, {a->x, a->y, a->z, a->u}}
#define S5(x, y, z, u, v) {{#x, #y, #z, #u, #v}, {a->x, a->y, a->z, a->u, a->v}}
/* The images, and the windows of a convolution or a pooling. */
#define IMAGES(channels)                                                                           \
    {{"b", "h", "w", "kernel", #channels}, {a->of.b, a->of.h, a->of.w, a->of.kernel, a->channels}}
#define SHAPE(type, ...)                                                                           \
    struct dpt_op_shape type##_shape(const struct type *a)                                         \
    {                                                                                              \
        return (struct dpt_op_shape)__VA_ARGS__;                                                   \
    }

SHAPE(dpt_linear_forward, S3(n, in, out))
SHAPE(dpt_linear_backward, S3(n, in, out))
SHAPE(dpt_linear_row, S2(in, out))
SHAPE(dpt_attention, S5(b, t, heads, kv_heads, head_size))
SHAPE(dpt_attention_rows, S5(first, end, heads, kv_heads, head_size))
SHAPE(dpt_rope_table, S2(t, half))
SHAPE(dpt_rope, S4(n, t, heads, head_size))
SHAPE(dpt_layernorm_forward, S2(n, c))
SHAPE(dpt_layernorm_backward, S2(n, c))
SHAPE(dpt_residual_norm, S2(n, c))
SHAPE(dpt_gelu, S1(n))
SHAPE(dpt_swiglu, S2(n, c))
SHAPE(dpt_residual, S1(n))
SHAPE(dpt_dropout_backward, S1(n))
SHAPE(dpt_embedding_forward, S4(b, t, c, v))
SHAPE(dpt_embedding_backward, S4(b, t, c, v))
SHAPE(dpt_head_loss, S3(n, c, v))
SHAPE(dpt_last_token, S3(b, t, c))
SHAPE(dpt_conv_forward, IMAGES(out))
SHAPE(dpt_conv_backward, IMAGES(out))
SHAPE(dpt_batchnorm_forward, S2(n, c))
SHAPE(dpt_batchnorm_backward, S2(n, c))
SHAPE(dpt_maxpool, IMAGES(c))
SHAPE(dpt_avgpool, S3(b, pixels, c))
SHAPE(dpt_adamw, S2(n, n_tensors))
SHAPE(dpt_sgd, S2(n, n_tensors))
SHAPE(dpt_pack, S2(rows, cols))
SHAPE(dpt_ordered_sum, S1(n))
/* clang-format on */
