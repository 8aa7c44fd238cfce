/* The table of one instruction set and element type. */
#include "kernels/cpu/simd/elem.h"

extern const struct dpt_elem_kernels ELEM(elem);

const struct dpt_elem_kernels ELEM(elem) = {
#define DPT_ELEM_KERNEL(result, name, parameters) .name = ELEM(name),
#include "kernels/cpu/kernels.def"
};
