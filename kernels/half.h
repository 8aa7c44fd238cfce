/* Floats of 16 bits: bf16 (8 bits of exponent, 7 of fraction) and fp16 (IEEE binary16: 5 and 10).
 *
 * These functions define the conversions for every device and instruction set. An f32 is rounded
 * to the nearest value, ties to even. Values that are too large become infinity. Subnormal numbers
 * are kept. A NaN stays a NaN: it becomes quiet and keeps its sign and the leading bits of its
 * payload. Widening is exact, except that a signalling NaN of fp16 becomes quiet, as in x86's
 * instruction. */
#ifndef DPT_KERNELS_HALF_H
#define DPT_KERNELS_HALF_H

#include "base/device_fn.h"

#include <stdint.h>
#include <string.h>

DPT_DEVICE_FN uint32_t dpt_f32_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

DPT_DEVICE_FN float dpt_f32_of_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

DPT_DEVICE_FN uint16_t dpt_bf16_of_f32(float x)
{
    uint32_t u = dpt_f32_bits(x);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(u >> 16 | 0x40u);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

DPT_DEVICE_FN float dpt_f32_of_bf16(uint16_t h)
{
    return dpt_f32_of_bits((uint32_t)h << 16);
}

DPT_DEVICE_FN uint16_t dpt_f16_of_f32(float x)
{
    uint32_t u = dpt_f32_bits(x), sign = u >> 16 & 0x8000u, size = u & 0x7fffffffu;
    if (size > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | (size >> 13 & 0x3ffu));
    if (size >= 0x477ff000u) /* 65520: half-way to the next power of two */
        return (uint16_t)(sign | 0x7c00u);
    if (size >= 0x38800000u) { /* normal: from 2^-14 */
        size -= 112u << 23;
        return (uint16_t)(sign | (size + 0xfffu + (size >> 13 & 1u)) >> 13);
    }
    /* A subnormal counts units of 2^-24. Adding 2^-1 shifts exactly these units into the low bits
     * of the f32's fraction, and the addition rounds them. */
    return (uint16_t)(sign | (dpt_f32_bits(dpt_f32_of_bits(size) + 0.5f) - 0x3f000000u));
}

DPT_DEVICE_FN float dpt_f32_of_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, size = h & 0x7fffu;
    if (size >= 0x7c00u) {
        uint32_t fraction = size & 0x3ffu;
        return dpt_f32_of_bits(sign | 0x7f800000u | fraction << 13 | (fraction ? 1u << 22 : 0u));
    }
    if (size >= 0x400u)
        return dpt_f32_of_bits(sign | ((size << 13) + (112u << 23)));
    /* Subnormal: size units of 2^-24. */
    return dpt_f32_of_bits(sign | dpt_f32_bits((float)size * 0x1p-24f));
}

#endif
