/* Shared by the benches: arguments, timing, the report's file. */
#include "worker/bench/bench.h"

#include "base/clock.h"
#include "base/cores.h"
#include "base/fs.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MEET_POLL_US = 1000 };

/* The number that `text` begins with; *ret_end is what follows it. */
static bool take_int(const char *text, int min, int max, int *ret, char **ret_end)
{
    const long value = strtol(text, ret_end, 10);
    if (*ret_end == text || value < min || value > max)
        return false;
    *ret = (int)value;
    return true;
}

bool dpt_bench_parse_int(const char *text, int min, int max, int *ret)
{
    char *end;
    int value;
    if (!take_int(text, min, max, &value, &end) || *end != '\0')
        return false;
    *ret = value;
    return true;
}

bool dpt_bench_parse_ints(const char *text, int min, int max, int n_max, int *ret, int *ret_n)
{
    for (*ret_n = 0; *ret_n < n_max; text++) {
        char *end;
        if (!take_int(text, min, max, &ret[(*ret_n)++], &end))
            return false;
        if (*end == '\0')
            return true;
        if (*end != ',')
            return false;
        text = end;
    }
    return false;
}

enum dpt_status dpt_bench_dir_create(const char *base, const char *name,
                                     char ret[DPT_BENCH_DIR_BYTES], struct dpt_err *err)
{
    const char *in = base ? base : getenv("TMPDIR");
    char dir[DPT_BENCH_DIR_BYTES];
    const int bytes =
        snprintf(dir, sizeof dir, "%s/dpt-bench-%s-XXXXXX", in && *in ? in : "/tmp", name);
    if (bytes >= (int)sizeof dir)
        return dpt_fail(err, DPT_EOVERFLOW, "the path of the folder '%s' is too long", in);
    if (!mkdtemp(dir))
        return dpt_fail_errno(err, errno, "create the folder '%s'", dir);
    memcpy(ret, dir, sizeof dir);
    return DPT_OK;
}

void dpt_bench_dir_remove(const char *dir)
{
    struct dpt_err err;
    if (dpt_fs_remove_tree(dir, &err) != DPT_OK)
        (void)fprintf(stderr, "dpt-bench: %s\n", err.text);
}

enum dpt_status dpt_bench_meet(int *listening, int n, int own, int timeout_ms, struct dpt_err *err)
{
    const int64_t deadline = dpt_now_ms() + timeout_ms;
    __atomic_store_n(&listening[own], 1, __ATOMIC_RELEASE);
    for (int i = 0; i < n; i++)
        while (__atomic_load_n(&listening[i], __ATOMIC_ACQUIRE) == 0) {
            if (dpt_now_ms() >= deadline)
                return dpt_fail(err, DPT_ETIMEOUT,
                                "process %d of the bench did not come within %d ms", i, timeout_ms);
            usleep(MEET_POLL_US); /* tidy: pause of a bounded poll */
        }
    return DPT_OK;
}

static const char *const precisions[DPT_DTYPE_COUNT] = {
    [DPT_F32] = "fp32", [DPT_BF16] = "bf16", [DPT_F16] = "fp16"};

bool dpt_bench_parse_precision(const char *text, enum dpt_dtype *ret)
{
    for (int i = 0; i < DPT_DTYPE_COUNT; i++)
        if (strcmp(text, precisions[i]) == 0) {
            *ret = (enum dpt_dtype)i;
            return true;
        }
    return false;
}

const char *dpt_bench_precision(enum dpt_dtype dtype)
{
    return precisions[dtype];
}

bool dpt_bench_misused(const char *name, const char *usage, const char *arg)
{
    struct dpt_err err;
    (void)dpt_fail(&err, DPT_EINVAL,
                   "'%.80s' is no flag of it, or has no value that it takes; see dpt-bench %s "
                   "--help",
                   arg, name);
    if (strcmp(arg, "--help") == 0)
        (void)fputs(usage, stdout);
    else
        (void)fprintf(stderr, "dpt-bench %s: %s\n", name, err.text);
    return false;
}

bool dpt_bench_parse(int argc, char **argv, const char *own, struct dpt_bench_args *ret)
{
    char usage[512];
    (void)snprintf(usage, sizeof usage,
                   "usage: dpt-bench %s [--threads N] [--repeats N] [--precision fp32|bf16|fp16] "
                   "[--json FILE]%s%s\n",
                   argv[0], own[0] ? " " : "", own);
    *ret = (struct dpt_bench_args){.threads = dpt_cores(), .repeats = 9};
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        bool good = false;
        if (strcmp(argv[i], "--threads") == 0)
            good = dpt_bench_parse_int(value, 1, 128, &ret->threads);
        else if (strcmp(argv[i], "--repeats") == 0)
            good = dpt_bench_parse_int(value, 1, DPT_BENCH_REPEATS_MAX, &ret->repeats);
        else if (strcmp(argv[i], "--precision") == 0)
            good = dpt_bench_parse_precision(value, &ret->dtype);
        else if (strcmp(argv[i], "--json") == 0 && *value) {
            ret->json = value;
            good = true;
        }
        if (!good)
            return dpt_bench_misused(argv[0], usage, argv[i]);
    }
    return true;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void dpt_bench_sort(double *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, compare_doubles);
}

struct dpt_bench_time dpt_bench_time(int repeats, void (*fn)(void *ctx), void *ctx)
{
    double times[DPT_BENCH_REPEATS_MAX];
    fn(ctx);
    int64_t start = dpt_now_ns();
    fn(ctx);
    int64_t once = dpt_now_ns() - start;
    const int64_t wanted = 30 * 1000 * 1000;
    int64_t calls = once < wanted ? wanted / (once + 1) + 1 : 1;
    for (int r = 0; r < repeats; r++) {
        start = dpt_now_ns();
        for (int64_t i = 0; i < calls; i++)
            fn(ctx);
        times[r] = (double)(dpt_now_ns() - start) * 1e-9 / (double)calls;
    }
    dpt_bench_sort(times, repeats);
    return (struct dpt_bench_time){
        .median_s = times[repeats / 2], .min_s = times[0], .max_s = times[repeats - 1]};
}

int dpt_bench_finish(const struct dpt_bench_args *args, json_t *report)
{
    int code = 0;
    if (args->json && json_dump_file(report, args->json, JSON_INDENT(2)) != 0) {
        (void)fprintf(stderr, "dpt-bench: cannot write '%s'\n", args->json);
        code = 1;
    }
    json_decref(report);
    return code;
}
