/* dpt-bench: every figure the project claims. */
#include "base/stdout.h"
#include "worker/bench/bench.h"

#include <stdio.h>
#include <string.h>

static const struct dpt_bench *const benches[] = {
    &dpt_bench_gemm,        &dpt_bench_ops,        &dpt_bench_comm,    &dpt_bench_allreduce,
    &dpt_bench_canonical,   &dpt_bench_train,      &dpt_bench_recover, &dpt_bench_tokenize,
    &dpt_bench_checkpoint,  &dpt_bench_strategies, &dpt_bench_memory,  &dpt_bench_spans,
    &dpt_bench_collectives, &dpt_bench_scaling,    &dpt_bench_compare, &dpt_bench_accumulation,
#ifdef DPT_BENCH_RDZV /* with ZeroMQ */
    &dpt_bench_rdzv,
#endif
};
enum { BENCHES = sizeof benches / sizeof *benches };

static void print_benches(FILE *out)
{
    for (int i = 0; i < BENCHES; i++)
        (void)fprintf(out, "  %-12s %s\n", benches[i]->name, benches[i]->help);
}

static void print_usage(FILE *out)
{
    (void)fputs(
        "usage: dpt-bench NAME [--json FILE] [options of the bench]\n"
        "       dpt-bench NAME --help\n"
        "       dpt-bench --list | --help | --version\n\n"
        "Measures dpt on this machine. Prints the figures, and writes them to FILE as JSON.\n\n",
        out);
    print_benches(out);
    (void)fputs("\nExit codes: 0 measured, 1 failed, 2 wrong options, 77 not supported here.\n",
                out);
}

static int run_bench_command(int argc, char **argv)
{
    for (int i = 0; argc > 1 && i < BENCHES; i++)
        if (strcmp(argv[1], benches[i]->name) == 0)
            return dpt_bench_main(benches[i], argc - 1, argv + 1);
    if (argc == 2 && strcmp(argv[1], "--list") == 0)
        print_benches(stdout);
    else if (argc == 2 && strcmp(argv[1], "--version") == 0)
        (void)puts("dpt-bench " DPT_VERSION);
    else if (argc == 2 && strcmp(argv[1], "--help") == 0)
        print_usage(stdout);
    else {
        struct dpt_err err;
        (void)dpt_fail(&err, DPT_EINVAL, "'%.80s' is not the name of a bench; see dpt-bench --help",
                       argc > 1 ? argv[1] : "");
        (void)fprintf(stderr, "dpt-bench: %s\n", err.text);
        return 2;
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct dpt_err err;
    const int code = run_bench_command(argc, argv);
    if (dpt_stdout_flush(&err) != DPT_OK) {
        (void)fprintf(stderr, "dpt-bench: %s\n", err.text);
        return code == 0 ? 1 : code;
    }
    return code;
}
