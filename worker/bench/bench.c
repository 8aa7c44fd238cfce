/* Shared by the benches: options, timing, files, the report. */
#include "worker/bench/bench.h"

#include "base/clock.h"
#include "base/cores.h"
#include "base/fs.h"
#include "base/median.h"
#include "base/parse.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MEET_POLL_US = 1000, OPTIONS_MAX = 24, EXIT_USAGE = 2, EXIT_UNSUPPORTED = 77 };

static const char *json_path; /* of --json; NULL: none */

/* ---- options ---- */

static const char *const precisions[DPT_DTYPE_COUNT] = {
    [DPT_F32] = "fp32", [DPT_BF16] = "bf16", [DPT_F16] = "fp16"};

enum dpt_status dpt_bench_set_precision(void *ctx, const char *value, struct dpt_err *err)
{
    for (int i = 0; i < DPT_DTYPE_COUNT; i++)
        if (strcmp(value, precisions[i]) == 0) {
            *(enum dpt_dtype *)ctx = (enum dpt_dtype)i;
            return DPT_OK;
        }
    return dpt_fail(err, DPT_EINVAL, "expected fp32, bf16 or fp16, got '%.40s'", value);
}

const char *dpt_bench_precision(enum dpt_dtype dtype)
{
    return precisions[dtype];
}

int dpt_bench_threads(const struct dpt_bench_compute *c)
{
    return c->threads > 0 ? (int)c->threads : dpt_cores();
}

enum dpt_status dpt_bench_compute_open(const struct dpt_bench_compute *c,
                                       struct dpt_device **ret_device,
                                       struct dpt_stream **ret_stream, struct dpt_err *err)
{
    DPT_TRY(dpt_device_cpu_create(ret_device, err));
    return dpt_stream_create(*ret_device, dpt_bench_threads(c), ret_stream, err);
}

enum dpt_status dpt_bench_add_set(void *ctx, const char *value, struct dpt_err *err)
{
    struct dpt_bench_sets *sets = ctx;
    if (sets->n == DPT_BENCH_SETS_MAX)
        return dpt_fail(err, DPT_EINVAL, "given more than %d times", DPT_BENCH_SETS_MAX);
    sets->set[sets->n++] = value;
    return DPT_OK;
}

enum dpt_status dpt_bench_set_list(void *ctx, const char *value, struct dpt_err *err)
{
    struct dpt_bench_list *list = ctx;
    const char *comma;
    list->n = 0;
    do {
        char number[24];
        comma = strchrnul(value, ',');
        (void)snprintf(number, sizeof number, "%.*s", (int)(comma - value), value);
        if (list->n == DPT_BENCH_LIST_MAX)
            return dpt_fail(err, DPT_EINVAL, "more than %d numbers", DPT_BENCH_LIST_MAX);
        DPT_TRY(dpt_parse_i64(number, list->min, list->max, &list->values[list->n++], err));
        value = comma + 1;
    } while (*comma);
    return DPT_OK;
}

enum dpt_status dpt_bench_set_real(void *ctx, const char *value, struct dpt_err *err)
{
    struct dpt_bench_real *real = ctx;
    double number = 0;
    DPT_TRY(dpt_parse_double(value, &number, err));
    if (number < real->min || number > real->max)
        return dpt_fail(err, DPT_EINVAL, "expected a number from %g to %g, got '%.40s'", real->min,
                        real->max, value);
    real->value = number;
    return DPT_OK;
}

void dpt_bench_model_keys(const char *preset, char ret[DPT_BENCH_MODEL_BYTES])
{
    if (strcmp(preset, "tiny") == 0)
        (void)snprintf(ret, DPT_BENCH_MODEL_BYTES, "%s",
                       "n_layer: 2, n_head: 2, n_embd: 64, context: 1024, vocab: 300");
    else
        (void)snprintf(ret, DPT_BENCH_MODEL_BYTES, "preset: %s", preset);
}

bool dpt_bench_is_listed(const char *list, const char *name)
{
    const size_t n = strlen(name);
    for (const char *at = list; at; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, name, n) == 0 && (at[n] == '\0' || at[n] == ','))
            return true;
    }
    return !list;
}

static void print_option(const struct dpt_option *option)
{
    char left[64];
    (void)snprintf(left, sizeof left, "%s%s%s", option->name, option->value ? " " : "",
                   option->value ? option->value : "");
    (void)printf("  %-36s %s\n", left, option->help);
}

/* Reads the words after the bench's name. *ret_help: --help was among them and is answered. */
static enum dpt_status read_options(const struct dpt_bench *bench, int argc, char **argv,
                                    bool *ret_help, struct dpt_err *err)
{
    bool help = false;
    struct dpt_option all[OPTIONS_MAX] = {
        {"--json", "FILE", "writes the figures to FILE, too", .text = &json_path},
        {"--help", .help = "prints this", .flag = &help}};
    const size_t n = bench->n_options + 2;
    DPT_ASSERT(n <= OPTIONS_MAX);
    for (size_t i = 0; i < bench->n_options; i++)
        all[2 + i] = bench->options[i];
    for (int i = 1; i < argc; i++)
        DPT_TRY(dpt_option_read(all, n, argc, argv, &i, err));
    if (help) {
        printf("usage: dpt-bench %s [options]\n\nMeasures %s.\n\n", bench->name, bench->help);
        for (size_t i = 0; i < n; i++)
            print_option(&all[i]);
    }
    *ret_help = help;
    return DPT_OK;
}

/* ---- the report ---- */

enum dpt_status dpt_bench_save(const json_t *report, struct dpt_err *err)
{
    if (json_path && json_dump_file(report, json_path, JSON_INDENT(2)) != 0)
        return dpt_fail(err, DPT_EIO, "cannot write '%s'", json_path);
    return DPT_OK;
}

static int exit_code_of(enum dpt_status status)
{
    return status == DPT_OK                                ? 0
           : status == DPT_EINVAL || status == DPT_ECONFIG ? EXIT_USAGE
           : status == DPT_EUNSUPPORTED                    ? EXIT_UNSUPPORTED
                                                           : 1;
}

int dpt_bench_main(const struct dpt_bench *bench, int argc, char **argv)
{
    json_t *report = NULL;
    struct dpt_err err, unsaved;
    bool help = false;
    enum dpt_status status = read_options(bench, argc, argv, &help, &err);
    if (status == DPT_OK && !help)
        status = bench->run(&report, &err);
    if (status == DPT_EINVAL)
        (void)fprintf(stderr, "dpt-bench %s: %s (see dpt-bench %s --help)\n", bench->name, err.text,
                      bench->name);
    else if (status != DPT_OK)
        (void)fprintf(stderr, "dpt-bench %s: %s\n", bench->name, err.text);
    const enum dpt_status saved = report ? dpt_bench_save(report, &unsaved) : DPT_OK;
    if (saved != DPT_OK)
        (void)fprintf(stderr, "dpt-bench %s: %s\n", bench->name, unsaved.text);
    json_decref(report);
    return exit_code_of(status != DPT_OK ? status : saved);
}

/* ---- files and processes ---- */

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

enum dpt_status dpt_bench_share(size_t bytes, void **ret, struct dpt_err *err)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return dpt_fail_errno(err, errno, "share %zu bytes of memory", bytes);
    *ret = at;
    return DPT_OK;
}

/* ---- times ---- */

struct dpt_bench_time dpt_bench_time(int64_t repeats, void (*fn)(void *ctx), void *ctx)
{
    double times[DPT_BENCH_REPEATS_MAX];
    fn(ctx);
    int64_t start = dpt_now_ns();
    fn(ctx);
    int64_t once = dpt_now_ns() - start;
    const int64_t wanted = 30 * 1000 * 1000;
    int64_t calls = once < wanted ? wanted / (once + 1) + 1 : 1;
    for (int64_t r = 0; r < repeats; r++) {
        start = dpt_now_ns();
        for (int64_t i = 0; i < calls; i++)
            fn(ctx);
        times[r] = (double)(dpt_now_ns() - start) * 1e-9 / (double)calls;
    }
    dpt_sort_doubles(times, (int)repeats);
    return (struct dpt_bench_time){
        .median_s = times[repeats / 2], .min_s = times[0], .max_s = times[repeats - 1]};
}
