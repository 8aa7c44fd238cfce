/* Transposes elements of 16 bits. Uses blocks of 8 x 8 in registers where the machine has them. */
#include "kernels/cpu/simd/simd.h"

#if defined(DPT_ISA_PLAIN)
enum { BLOCK = 1 };

INLINE void transpose16_block(const uint16_t *src, int64_t ld, uint16_t *dst, int64_t ld_dst)
{
    (void)ld;
    (void)ld_dst;
    *dst = *src;
}
#else
enum { BLOCK = 8 };

INLINE void transpose16_block(const uint16_t *src, int64_t ld, uint16_t *dst, int64_t ld_dst)
{
    __m128i r[BLOCK], s[BLOCK];
    for (int i = 0; i < BLOCK; i++)
        r[i] = _mm_loadu_si128((const __m128i *)(const void *)(src + i * ld));
    for (int i = 0; i < BLOCK; i += 2) { /* pairs of rows: 16 bits */
        s[i] = _mm_unpacklo_epi16(r[i], r[i + 1]);
        s[i + 1] = _mm_unpackhi_epi16(r[i], r[i + 1]);
    }
    for (int i = 0; i < BLOCK; i += 4) /* 32 bits */
        for (int j = 0; j < 2; j++) {
            r[i + 2 * j] = _mm_unpacklo_epi32(s[i + j], s[i + j + 2]);
            r[i + 2 * j + 1] = _mm_unpackhi_epi32(s[i + j], s[i + j + 2]);
        }
    for (int j = 0; j < BLOCK / 2; j++) { /* 64 bits */
        __m128i even = _mm_unpacklo_epi64(r[j], r[j + 4]);
        __m128i odd = _mm_unpackhi_epi64(r[j], r[j + 4]);
        _mm_storeu_si128((__m128i *)(void *)(dst + 2 * j * ld_dst), even);
        _mm_storeu_si128((__m128i *)(void *)(dst + (2 * j + 1) * ld_dst), odd);
    }
}
#endif

/* Transposes strips of 32 columns. Each cache line of src is read whole, and the lines of dst that
 * are written stay in the cache. */
void SIMD(transpose16)(int64_t rows, int64_t cols, const uint16_t *src, int64_t ld, uint16_t *dst,
                       int64_t ld_dst)
{
    enum { STRIP = 32 };
    int64_t whole_rows = rows / BLOCK * BLOCK, whole_cols = cols / BLOCK * BLOCK;
    for (int64_t strip = 0; strip < whole_cols; strip += STRIP) {
        int64_t end = strip + STRIP < whole_cols ? strip + STRIP : whole_cols;
        for (int64_t i = 0; i < whole_rows; i += BLOCK)
            for (int64_t j = strip; j < end; j += BLOCK)
                transpose16_block(src + i * ld + j, ld, dst + j * ld_dst + i, ld_dst);
    }
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = i < whole_rows ? whole_cols : 0; j < cols; j++)
            dst[j * ld_dst + i] = src[i * ld + j];
}
