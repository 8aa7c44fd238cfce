/* The table of one instruction set and element type. */
#include "kernels/cpu/simd/elem.h"

extern const struct dpt_elem_kernels ELEM(elem);

const struct dpt_elem_kernels ELEM(elem) = {
    .tile_store = ELEM(tile_store),
    .panels = ELEM(panels),
    .transpose = ELEM(transpose),
    .column_sums = ELEM(column_sums),
    .widen = ELEM(widen),
    .narrow = ELEM(narrow),
    .norm = ELEM(norm),
    .norm_grad = ELEM(norm_grad),
    .batchnorm_sums = ELEM(batchnorm_sums),
    .batchnorm = ELEM(batchnorm),
    .batchnorm_grad_sums = ELEM(batchnorm_grad_sums),
    .batchnorm_grad = ELEM(batchnorm_grad),
    .maxpool = ELEM(maxpool),
    .maxpool_grad = ELEM(maxpool_grad),
    .gelu = ELEM(gelu),
    .gelu_grad = ELEM(gelu_grad),
    .swiglu = ELEM(swiglu),
    .swiglu_grad = ELEM(swiglu_grad),
    .scale = ELEM(scale),
    .add = ELEM(add),
    .drop_add = ELEM(drop_add),
    .attention_work = ELEM(attention_work),
    .attention = ELEM(attention),
    .attention_grad = ELEM(attention_grad),
    .rope = ELEM(rope),
    .softmax_grad = ELEM(softmax_grad),
};
