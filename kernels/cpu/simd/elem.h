/* Elements of a tensor whose type is chosen when a file is compiled: the files that read or write
 * activations are compiled once for each element type (and each instruction set), with
 * DPT_ELEM_F32, DPT_ELEM_BF16 or DPT_ELEM_F16 defined. They compute in f32: e_get widens, e_put
 * rounds (half.h), and for f32 both are plain loads and stores. */
#ifndef DPT_KERNELS_CPU_SIMD_ELEM_H
#define DPT_KERNELS_CPU_SIMD_ELEM_H

#include "kernels/cpu/simd/simd.h"

#if defined(DPT_ELEM_F32)
#define ELEM(name) DPT_ISA_NAME(dpt_simd_##name##_f32)
typedef float elem;
INLINE v16 e_load(const elem *p)
{
    return v_load(p);
}
INLINE v16 e_get(const elem *p, int64_t count, float fill)
{
    return v_get(p, count, fill);
}
INLINE void e_put(elem *p, int64_t count, v16 a)
{
    v_put(p, count, a);
}
/* What e_get would bring back of a after e_put. */
INLINE v16 e_stored(v16 a)
{
    return a;
}
#else

typedef uint16_t elem;
#if defined(DPT_ELEM_BF16)
#define ELEM(name) DPT_ISA_NAME(dpt_simd_##name##_bf16)
#define e_widen(h) v_of_bf16(h)
#define e_round(v) bf16_of_v(v)
#elif defined(DPT_ELEM_F16)
#define ELEM(name) DPT_ISA_NAME(dpt_simd_##name##_f16)
#define e_widen(h) v_of_f16(h)
#define e_round(v) f16_of_v(v)
#else
#error "no element type"
#endif

INLINE v16 e_load(const elem *p)
{
    return e_widen(h_load(p));
}
INLINE v16 e_get(const elem *p, int64_t count, float fill)
{
    if (count == LANES)
        return e_load(p);
    return v_select(m_first(count), e_widen(h_load_part(p, count)), v_set(fill));
}
INLINE void e_put(elem *p, int64_t count, v16 a)
{
    if (count == LANES)
        h_store(p, e_round(a));
    else
        h_store_part(p, count, e_round(a));
}
INLINE v16 e_stored(v16 a)
{
    return e_widen(e_round(a));
}
#endif

void ELEM(tile_store)(const struct dpt_tile *t);
void ELEM(panels)(const struct dpt_panels *a);
#if !defined(DPT_ELEM_F32) /* simd.h has that one */
void ELEM(transpose)(int64_t rows, int64_t cols, const void *src, int64_t ld, float *dst,
                     int64_t ld_dst);
#endif
void ELEM(column_sums)(int64_t rows, int64_t cols, const void *x, int64_t ld, bool accumulate,
                       float *ret);
void ELEM(widen)(int64_t n, const void *x, float *y);
void ELEM(narrow)(int64_t n, const float *x, void *y);
void ELEM(norm)(const struct dpt_norm_rows *a);
void ELEM(norm_grad)(const struct dpt_norm_grad_rows *a);
void ELEM(batchnorm_sums)(const struct dpt_batchnorm_rows *a, float *sums, float *squares);
void ELEM(batchnorm)(const struct dpt_batchnorm_rows *a);
void ELEM(batchnorm_grad_sums)(const struct dpt_batchnorm_grad_rows *a, float *dgamma,
                               float *dbeta);
void ELEM(batchnorm_grad)(const struct dpt_batchnorm_grad_rows *a);
void ELEM(maxpool)(const struct dpt_maxpool_pixel *a);
void ELEM(maxpool_grad)(const struct dpt_maxpool_grad_pixel *a);
void ELEM(gelu)(int64_t n, const void *x, void *y);
void ELEM(gelu_grad)(int64_t n, const void *x, const void *dy, void *dx);
void ELEM(swiglu)(int64_t n, const void *gate, const void *up, void *y);
void ELEM(swiglu_grad)(int64_t n, const void *gate, const void *up, const void *dy, void *dgate,
                       void *dup);
void ELEM(scale)(int64_t n, float factor, void *x);
void ELEM(add)(int64_t n, const void *a, const void *b, void *dst);
void ELEM(drop_add)(int64_t n, const struct dpt_dropout *d, uint64_t first, const void *a,
                    const void *b, void *y);
size_t ELEM(attention_work)(int64_t t, int64_t hd, bool backward);
void ELEM(attention)(const struct dpt_head_rows *a);
void ELEM(attention_grad)(const struct dpt_head_rows *a);
void ELEM(rope)(const struct dpt_rope_rows *a);
void ELEM(softmax_grad)(int64_t n, const float *x, float lse, float scale, void *ret);

#endif
