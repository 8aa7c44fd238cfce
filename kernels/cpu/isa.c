/* Chooses the table of kernels: the best one that this machine can run and DPT_TEST_ISA allows. */
#include "kernels/cpu/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef DPT_HAVE_X86_KERNELS
#include <cpuid.h>
#endif

enum { TABLES_MAX = 3 };

#ifdef DPT_HAVE_X86_KERNELS
/* __builtin_cpu_supports of clang 14 does not know "f16c". F16C needs the operating system to save
 * the AVX registers, and that is certain on a machine where AVX2 works. */
static bool has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

static int runnable_tables(const struct dpt_cpu_kernels *ret[TABLES_MAX])
{
    int n = 0;
    ret[n++] = &dpt_cpu_kernels_plain;
#ifdef DPT_HAVE_X86_KERNELS
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c()) {
        ret[n++] = &dpt_cpu_kernels_avx2;
#ifdef DPT_HAVE_AVX512_KERNELS
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw"))
            ret[n++] = &dpt_cpu_kernels_avx512;
#endif
    }
#endif
    return n;
}

const struct dpt_cpu_kernels *dpt_cpu_kernels_at(int i)
{
    const struct dpt_cpu_kernels *all[TABLES_MAX];
    int n = runnable_tables(all);
    return i < n ? all[i] : NULL;
}

const struct dpt_cpu_kernels *dpt_cpu_kernels_best(enum dpt_cpu_isa limit)
{
    const struct dpt_cpu_kernels *all[TABLES_MAX];
    const int last = runnable_tables(all) - 1;
    return all[(int)limit < last ? (int)limit : last];
}

const char *dpt_cpu_isa_name(enum dpt_cpu_isa isa)
{
    static const char *const names[DPT_CPU_ISA_COUNT] = {"plain", "avx2", "avx512", "avx512_bf16"};
    return names[isa];
}

enum dpt_status dpt_cpu_isa_limit(enum dpt_cpu_isa *ret, struct dpt_err *err)
{
    const char *wanted = getenv("DPT_TEST_ISA");
    char all[64] = "";
    if (!wanted) {
        *ret = DPT_CPU_ISA_COUNT;
        return DPT_OK;
    }
    for (int i = 0; i < DPT_CPU_ISA_COUNT; i++) {
        const size_t at = strlen(all);
        if (strcmp(dpt_cpu_isa_name(i), wanted) == 0) {
            *ret = i;
            return DPT_OK;
        }
        (void)snprintf(all + at, sizeof all - at, "%s%s", at ? ", " : "", dpt_cpu_isa_name(i));
    }
    return dpt_fail(err, DPT_EINVAL, "DPT_TEST_ISA is '%s', not one of %s", wanted, all);
}
