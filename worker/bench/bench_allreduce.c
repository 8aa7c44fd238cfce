/* dpt-bench allreduce: ddp's canonical all-reduce between processes of one machine, by size, and a
 * peer library's all-reduce in the same run.
 *
 * Blocks of both sides alternate, so that other load on the machine slows both. Each block begins
 * with an all-reduce whose sum is checked, then warms up. Both sides reduce floats in place. The
 * peer uses the algorithm with the best median in a first block of each. */
#include "worker/bench/bench_allreduce.h"

#include "worker/bench/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const size_t default_sizes[] = {1024,     10u * 1024, 100u * 1024,
                                       1u << 20, 26u << 20,  124u << 20};
enum {
    DEFAULT_SIZES = sizeof default_sizes / sizeof *default_sizes,
    BLOCKS = 8,
    SKIPPED = 77, /* exit code: the peer library is not there */
    BYTES_MAX = 1 << 30
};

struct args {
    int ranks, blocks, n_sizes;
    size_t sizes[AR_SIZES_MAX];
    bool gloo;
    const char *json;
};

/* The times of one side for one size. */
struct times {
    int n;
    double us[AR_ROUNDS_MAX];
};

struct row {
    struct times own, own_fresh, by_main, gloo, gloo_fresh;
    uint64_t bytes_sent;
    int algorithm;
};

struct bench {
    struct args args;
    struct ar_shared *shared;
    struct ar_team own, gloo;
    struct row rows[AR_SIZES_MAX];
};

static bool take_sizes(const char *text, struct args *a)
{
    a->n_sizes = 0;
    for (const char *at = text; a->n_sizes < AR_SIZES_MAX;) {
        char *end;
        const long long bytes = strtoll(at, &end, 10);
        if (end == at || bytes < 4 || bytes > BYTES_MAX || bytes % 4 != 0)
            return false;
        a->sizes[a->n_sizes++] = (size_t)bytes;
        if (*end == '\0')
            return true;
        if (*end != ',')
            return false;
        at = end + 1;
    }
    return false;
}

static const char usage[] = "usage: dpt-bench allreduce [--ranks 2] [--sizes BYTES[,BYTES…]] "
                            "[--blocks N] [--peer gloo] [--json FILE]\n";

static bool parse_allreduce_args(int argc, char **argv, struct args *a)
{
    *a = (struct args){.ranks = 2, .blocks = BLOCKS, .n_sizes = DEFAULT_SIZES};
    memcpy(a->sizes, default_sizes, sizeof default_sizes);
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        bool good = *value != '\0';
        if (strcmp(argv[i], "--ranks") == 0)
            good = dpt_bench_parse_int(value, 2, AR_RANKS_MAX, &a->ranks);
        else if (strcmp(argv[i], "--blocks") == 0)
            good = dpt_bench_parse_int(value, 1, 64, &a->blocks);
        else if (strcmp(argv[i], "--sizes") == 0)
            good = take_sizes(value, a);
        else if (strcmp(argv[i], "--peer") == 0)
            good = a->gloo = strcmp(value, "gloo") == 0;
        else if (strcmp(argv[i], "--json") == 0)
            a->json = value;
        else
            good = false;
        if (!good)
            return dpt_bench_misused("allreduce", usage, argv[i]);
    }
    return true;
}

/* The rounds of a block, so that a block takes about as long for every size. */
static int rounds_of(size_t bytes)
{
    return bytes <= 128u * 1024 ? 250 : bytes <= 2u << 20 ? 100 : bytes <= 32u << 20 ? 10 : 4;
}

static void keep_times(struct times *times, const double *us, int n)
{
    for (int i = 0; i < n && times->n < AR_ROUNDS_MAX; i++)
        times->us[times->n++] = us[i];
}

/* The quantile `q` of the times; sorts them. */
static double quantile(struct times *times, double q)
{
    if (times->n == 0)
        return 0;
    dpt_bench_sort(times->us, times->n);
    return times->us[(int)(q * (times->n - 1) + 0.5)];
}

static bool own_block(struct bench *b, const struct ar_block *block, struct times *times)
{
    for (int i = 0; i < b->own.n; i++)
        if (write(b->own.to[i], block, sizeof *block) != (ssize_t)sizeof *block)
            return false;
    for (int i = 0; i < b->own.n; i++) {
        char done;
        if (read(b->own.from[i], &done, 1) != 1)
            return false;
    }
    keep_times(times, b->shared->us, block->rounds);
    return true;
}

static struct ar_block block_of(const struct bench *b, int size, bool fresh)
{
    const int rounds = rounds_of(b->args.sizes[size]);
    return (struct ar_block){
        .size_index = size, .warmup = rounds / 10 + 1, .rounds = rounds, .fresh = fresh};
}

/* Chooses the peer's fastest algorithm for a size. */
static bool choose(struct bench *b, int size)
{
    double best = 0;
    const size_t bytes = b->args.sizes[size];
    for (int a = 0; a < AR_GLOO_ALGORITHMS; a++) {
        static double us[AR_ROUNDS_MAX];
        struct times times = {.n = 0};
        const struct ar_block block = block_of(b, size, false);
        if (!ar_gloo_block(&b->gloo, ar_gloo_algorithms[a], bytes, &block, us))
            return false;
        keep_times(&times, us, block.rounds);
        const double median = quantile(&times, 0.5);
        if (a == 0 || median < best) {
            best = median;
            b->rows[size].algorithm = a;
        }
    }
    return true;
}

static bool gloo_block(struct bench *b, int size, bool fresh, struct times *times)
{
    static double us[AR_ROUNDS_MAX];
    const struct ar_block block = block_of(b, size, fresh);
    if (!ar_gloo_block(&b->gloo, ar_gloo_algorithms[b->rows[size].algorithm], b->args.sizes[size],
                       &block, us))
        return false;
    keep_times(times, us, block.rounds);
    return true;
}

/* Runs a block of each kind on both sides. */
static bool run_size(struct bench *b, int size)
{
    struct row *row = &b->rows[size];
    struct ar_block block = block_of(b, size, false), fresh = block_of(b, size, true);
    if (!own_block(b, &block, &row->own) ||
        (b->args.gloo && !gloo_block(b, size, false, &row->gloo)) ||
        !own_block(b, &fresh, &row->own_fresh) ||
        (b->args.gloo && !gloo_block(b, size, true, &row->gloo_fresh)))
        return false;
    block.by_main = true;
    block.rounds = block.rounds / 4 + 1;
    if (!own_block(b, &block, &row->by_main))
        return false;
    row->bytes_sent = 0;
    for (int i = 0; i < b->own.n; i++)
        if (b->shared->bytes_sent[i] > row->bytes_sent)
            row->bytes_sent = b->shared->bytes_sent[i];
    return true;
}

static bool measure_allreduce(struct bench *b)
{
    for (int i = 0; b->args.gloo && i < b->args.n_sizes; i++)
        if (!choose(b, i))
            return false;
    for (int block = 0; block < b->args.blocks; block++)
        for (int i = 0; i < b->args.n_sizes; i++)
            if (!run_size(b, i))
                return false;
    return true;
}

/* Bytes that each rank must send at least: 2 (N-1)/N of the vector. */
static double least_bytes(const struct bench *b, size_t bytes)
{
    return 2.0 * (b->args.ranks - 1) / b->args.ranks * (double)bytes;
}

static json_t *report_row(struct bench *b, int size)
{
    struct row *row = &b->rows[size];
    const size_t bytes = b->args.sizes[size];
    const double median = quantile(&row->own, 0.5), p99 = quantile(&row->own, 0.99);
    const double fresh = quantile(&row->own_fresh, 0.5), by_main = quantile(&row->by_main, 0.5);
    const double least = least_bytes(b, bytes), bus = least / median * 1e-3;
    printf("%10zu %9.1f %9.1f %7.2f %9.1f %9.1f %10llu %10.0f", bytes, median, p99, bus, fresh,
           by_main, (unsigned long long)row->bytes_sent, least);
    json_t *json =
        json_pack("{s:I,s:i,s:f,s:f,s:f,s:f,s:f,s:I,s:f}", "bytes", (json_int_t)bytes, "rounds",
                  row->own.n, "median_us", median, "p99_us", p99, "bus_gb_per_s", bus,
                  "fresh_median_us", fresh, "by_main_thread_median_us", by_main, "bytes_sent",
                  (json_int_t)row->bytes_sent, "bytes_formula", least);
    if (b->args.gloo) {
        const double gloo = quantile(&row->gloo, 0.5), gloo_p99 = quantile(&row->gloo, 0.99);
        const double gloo_fresh = quantile(&row->gloo_fresh, 0.5);
        const char *algorithm = ar_gloo_algorithms[row->algorithm];
        printf("   %-16s %9.1f %9.1f %9.1f %6.1f %6.1f", algorithm, gloo, gloo_p99, gloo_fresh,
               gloo / median, gloo_fresh / fresh);
        json_object_set_new(json, "gloo",
                            json_pack("{s:s,s:f,s:f,s:f,s:f,s:f}", "algorithm", algorithm,
                                      "median_us", gloo, "p99_us", gloo_p99, "fresh_median_us",
                                      gloo_fresh, "ratio", gloo / median, "fresh_ratio",
                                      gloo_fresh / fresh));
    }
    printf("\n");
    return json;
}

static json_t *report_allreduce(struct bench *b)
{
    printf("%d processes of one machine, shared memory, floats summed in place; us. fresh: each "
           "vector is written anew before each round\n",
           b->args.ranks);
    if (b->args.gloo)
        printf("gloo: its TCP transport on loopback, the best of %d algorithms for each size\n",
               AR_GLOO_ALGORITHMS);
    printf("%10s %9s %9s %7s %9s %9s %10s %10s", "bytes", "median", "p99", "GB/s", "fresh",
           "by main", "sent", "2(N-1)/N D");
    if (b->args.gloo)
        printf("   %-16s %9s %9s %9s %6s %6s", "gloo", "median", "p99", "fresh", "ratio", "fresh");
    printf("\n");
    json_t *rows = json_array();
    for (int i = 0; i < b->args.n_sizes; i++)
        json_array_append_new(rows, report_row(b, i));
    return json_pack("{s:s,s:i,s:s,s:s?,s:o}", "bench", "allreduce", "processes", b->args.ranks,
                     "transport", "shm", "peer", b->args.gloo ? "gloo, tcp on loopback" : NULL,
                     "rows", rows);
}

static int own_body(void *ctx, int rank, int in, int out)
{
    return ar_rank(ctx, rank, in, out);
}

/* Starts both sides, measures, ends them. */
static bool run_teams(struct bench *b, const char *folder)
{
    bool good = ar_team_start(&b->own, b->args.ranks, own_body, b->shared) &&
                (!b->args.gloo || ar_gloo_start(&b->gloo, b->args.ranks, folder)) &&
                measure_allreduce(b);
    if (b->args.gloo)
        good = ar_team_end(&b->gloo) && good;
    return ar_team_end(&b->own) && good;
}

static int run_allreduce(int argc, char **argv)
{
    static struct bench b;
    char folder[DPT_BENCH_DIR_BYTES];
    struct dpt_err err;
    if (!parse_allreduce_args(argc, argv, &b.args))
        return 2;
    if (b.args.gloo && !ar_gloo_exists()) {
        (void)fprintf(stderr, "dpt-bench allreduce: there is no dpt-peer-gloo beside this program; "
                              "`deploy/install-deps peers`, then build anew\n");
        return SKIPPED;
    }
    b.shared =
        mmap(NULL, sizeof *b.shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (b.shared == MAP_FAILED)
        return 1;
    if (dpt_bench_dir_create(NULL, "allreduce", folder, &err) != DPT_OK) {
        (void)fprintf(stderr, "dpt-bench allreduce: %s\n", err.text);
        return 1;
    }
    b.shared->n_ranks = b.args.ranks;
    b.shared->n_sizes = b.args.n_sizes;
    memcpy(b.shared->sizes, b.args.sizes, sizeof b.args.sizes);
    const bool good = run_teams(&b, folder);
    dpt_bench_dir_remove(folder);
    const int code =
        good ? dpt_bench_finish(&(struct dpt_bench_args){.json = b.args.json}, report_allreduce(&b))
             : 1;
    munmap(b.shared, sizeof *b.shared);
    return code;
}

const struct dpt_bench dpt_bench_allreduce = {
    .name = "allreduce",
    .help = "ddp's all-reduce between processes of one machine by size, beside a peer library",
    .run = run_allreduce,
};
