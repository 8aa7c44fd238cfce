/* Elements of a tensor; their type is chosen when a file is compiled. Files that read or write
 * activations are compiled once for each element type and each instruction set, with DPT_ELEM_F32,
 * DPT_ELEM_BF16 or DPT_ELEM_F16 defined. They compute in f32: e_get widens, e_put rounds (half.h).
 * For f32 both are plain loads and stores. */
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
/* The value that e_get reads after e_put wrote a. */
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

#define DPT_ELEM_KERNEL(result, name, parameters) result ELEM(name) parameters;
#include "kernels/cpu/kernels.def"
#if !defined(DPT_ELEM_F32)
void SIMD(transpose_f32)(int64_t rows, int64_t cols, const void *src, int64_t ld, float *dst,
                         int64_t ld_dst);
#endif

#endif
