/* dpt-bench: every figure the project claims. */
#include "tests/bench/bench.h"

#include <stdio.h>
#include <string.h>

static const struct dpt_bench *const benches[] = {&dpt_bench_gemm,    &dpt_bench_ops,
                                                  &dpt_bench_comm,    &dpt_bench_train,
                                                  &dpt_bench_recover, &dpt_bench_tokenize};
enum { BENCHES = sizeof benches / sizeof *benches };

int main(int argc, char **argv)
{
    for (int i = 0; argc > 1 && i < BENCHES; i++)
        if (strcmp(argv[1], benches[i]->name) == 0)
            return benches[i]->run(argc - 1, argv + 1);
    bool list = argc == 2 && strcmp(argv[1], "--list") == 0;
    FILE *out = list ? stdout : stderr;
    if (!list)
        fprintf(out, "usage: dpt-bench NAME [--json FILE] [flags of its own]\n");
    for (int i = 0; i < BENCHES; i++)
        fprintf(out, "%-8s %s\n", benches[i]->name, benches[i]->help);
    return list ? 0 : 2;
}
