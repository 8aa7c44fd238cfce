/* Reports the ranges that a product reads and writes to the sanitizer. In builds with a sanitizer
 * the products are compiled without instrumentation, because instrumented products took nine tenths
 * of a test's time at AVX2. Only the files of products include this. Without a sanitizer tell_range
 * does nothing. */
#ifndef DPT_KERNELS_CPU_SIMD_SANITIZER_H
#define DPT_KERNELS_CPU_SIMD_SANITIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(DPT_TELL_ADDRESS) || defined(DPT_TELL_THREAD)
enum { DPT_TELLS = 1 };
#else
enum { DPT_TELLS = 0 };
#endif

#if defined(DPT_TELL_ADDRESS)
#include <sanitizer/asan_interface.h>
#elif defined(DPT_TELL_THREAD)
/* functions of the runtime; no header declares them */
void __tsan_read_range(void *addr, unsigned long size);
void __tsan_write_range(void *addr, unsigned long size);
#endif

/* Reports an access to n elements from p on. AddressSanitizer ends the program if the program may
 * not touch one of them. ThreadSanitizer ends it if another thread writes one at the same time, or
 * reads one that this call writes. */
static inline void tell_range(const float *p, int64_t n, bool writes)
{
    const size_t bytes = (size_t)n * sizeof *p;
#if defined(DPT_TELL_ADDRESS)
    void *const bad = __asan_region_is_poisoned((void *)(uintptr_t)p, bytes);
    if (bad)
        __asan_report_error(__builtin_return_address(0), __builtin_frame_address(0),
                            __builtin_frame_address(0), bad, writes, sizeof *p);
#elif defined(DPT_TELL_THREAD)
    (writes ? __tsan_write_range : __tsan_read_range)((void *)(uintptr_t)p, bytes);
#else
    (void)p;
    (void)writes;
    (void)bytes;
#endif
}

#endif
