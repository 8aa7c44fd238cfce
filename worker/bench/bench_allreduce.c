/* dpt-bench allreduce: ddp's canonical all-reduce between processes of one machine, by size, and a
 * peer library's all-reduce in the same run.
 *
 * Blocks of both sides alternate, so that other load on the machine slows both. Each block begins
 * with an all-reduce whose sum is checked, then warms up. Both sides reduce floats in place. The
 * peer uses the algorithm with the best median in a first block of each. */
#include "worker/bench/bench_allreduce.h"

#include "base/median.h"
#include "worker/bench/bench.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { BLOCKS = 8, BLOCKS_MAX = 64, BYTES_MAX = 1 << 30 };

static struct {
    int64_t ranks, blocks;
    struct dpt_bench_list sizes;
    const char *peer;
} args = {.ranks = 2,
          .blocks = BLOCKS,
          .sizes = {.min = sizeof(float),
                    .max = BYTES_MAX,
                    .n = 6,
                    .values = {1 << 10, 10 << 10, 100 << 10, 1 << 20, 26 << 20, 124 << 20}}};

static const struct dpt_option options[] = {
    {"--ranks", "N", "processes (2)", .number = &args.ranks, .min = 2, .max = AR_RANKS_MAX},
    {"--sizes", "BYTES,...", "of the vectors (1 KiB to 124 MiB)", .set = dpt_bench_set_list,
     .ctx = &args.sizes},
    {"--blocks", "N", "blocks of each size (8)", .number = &args.blocks, .min = 1,
     .max = BLOCKS_MAX},
    {"--peer", "gloo", "measures Gloo's all-reduce in the same run, too", .text = &args.peer}};

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
    struct allreduce_shared *shared;
    struct allreduce_team own, gloo;
    struct row rows[AR_SIZES_MAX];
};

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
static double quantile_of_times(struct times *times, double q)
{
    if (times->n == 0)
        return 0;
    dpt_sort_doubles(times->us, times->n);
    return times->us[(int)(q * (times->n - 1) + 0.5)];
}

static bool own_block(struct bench *b, const struct allreduce_block *block, struct times *times)
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

static struct allreduce_block block_of(const struct bench *b, int size, bool fresh)
{
    const int rounds = rounds_of(b->shared->sizes[size]);
    return (struct allreduce_block){
        .size_index = size, .warmup = rounds / 10 + 1, .rounds = rounds, .fresh = fresh};
}

/* Chooses the peer's fastest algorithm for a size. */
static bool choose_peer_algorithm(struct bench *b, int size)
{
    double best = 0;
    const size_t bytes = b->shared->sizes[size];
    for (int a = 0; a < AR_GLOO_ALGORITHMS; a++) {
        static double us[AR_ROUNDS_MAX];
        struct times times = {.n = 0};
        const struct allreduce_block block = block_of(b, size, false);
        if (!allreduce_gloo_block(&b->gloo, allreduce_gloo_algorithms[a], bytes, &block, us))
            return false;
        keep_times(&times, us, block.rounds);
        const double median = quantile_of_times(&times, 0.5);
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
    const struct allreduce_block block = block_of(b, size, fresh);
    if (!allreduce_gloo_block(&b->gloo, allreduce_gloo_algorithms[b->rows[size].algorithm],
                              b->shared->sizes[size], &block, us))
        return false;
    keep_times(times, us, block.rounds);
    return true;
}

/* Runs a block of each kind on both sides. */
static bool run_size(struct bench *b, int size)
{
    struct row *row = &b->rows[size];
    struct allreduce_block block = block_of(b, size, false), fresh = block_of(b, size, true);
    if (!own_block(b, &block, &row->own) ||
        (args.peer && !gloo_block(b, size, false, &row->gloo)) ||
        !own_block(b, &fresh, &row->own_fresh) ||
        (args.peer && !gloo_block(b, size, true, &row->gloo_fresh)))
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
    for (int i = 0; args.peer && i < args.sizes.n; i++)
        if (!choose_peer_algorithm(b, i))
            return false;
    for (int block = 0; block < args.blocks; block++)
        for (int i = 0; i < args.sizes.n; i++)
            if (!run_size(b, i))
                return false;
    return true;
}

/* Bytes that each rank must send at least: 2 (N-1)/N of the vector. */
static double least_bytes(size_t bytes)
{
    return 2.0 * (double)(args.ranks - 1) / (double)args.ranks * (double)bytes;
}

static json_t *report_row(struct bench *b, int size)
{
    struct row *row = &b->rows[size];
    const size_t bytes = b->shared->sizes[size];
    const double median = quantile_of_times(&row->own, 0.5),
                 p99 = quantile_of_times(&row->own, 0.99);
    const double fresh = quantile_of_times(&row->own_fresh, 0.5),
                 by_main = quantile_of_times(&row->by_main, 0.5);
    const double least = least_bytes(bytes), bus = least / median * 1e-3;
    printf("%10zu %9.1f %9.1f %7.2f %9.1f %9.1f %10llu %10.0f", bytes, median, p99, bus, fresh,
           by_main, (unsigned long long)row->bytes_sent, least);
    json_t *json =
        json_pack("{s:I,s:i,s:f,s:f,s:f,s:f,s:f,s:I,s:f}", "bytes", (json_int_t)bytes, "rounds",
                  row->own.n, "median_us", median, "p99_us", p99, "bus_gb_per_s", bus,
                  "fresh_median_us", fresh, "by_main_thread_median_us", by_main, "bytes_sent",
                  (json_int_t)row->bytes_sent, "bytes_formula", least);
    if (args.peer) {
        const double gloo = quantile_of_times(&row->gloo, 0.5),
                     gloo_p99 = quantile_of_times(&row->gloo, 0.99);
        const double gloo_fresh = quantile_of_times(&row->gloo_fresh, 0.5);
        const char *algorithm = allreduce_gloo_algorithms[row->algorithm];
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
           (int)args.ranks);
    if (args.peer)
        printf("gloo: its TCP transport on loopback, the best of %d algorithms for each size\n",
               AR_GLOO_ALGORITHMS);
    printf("%10s %9s %9s %7s %9s %9s %10s %10s", "bytes", "median", "p99", "GB/s", "fresh",
           "by main", "sent", "2(N-1)/N D");
    if (args.peer)
        printf("   %-16s %9s %9s %9s %6s %6s", "gloo", "median", "p99", "fresh", "ratio", "fresh");
    printf("\n");
    json_t *rows = json_array();
    for (int i = 0; i < args.sizes.n; i++)
        json_array_append_new(rows, report_row(b, i));
    return json_pack("{s:s,s:i,s:s,s:s?,s:o}", "bench", "allreduce", "processes", (int)args.ranks,
                     "transport", "shm", "peer", args.peer ? "gloo, tcp on loopback" : NULL, "rows",
                     rows);
}

static int own_body(void *ctx, int rank, int in, int out)
{
    return allreduce_rank(ctx, rank, in, out);
}

/* Starts both sides, measures, ends them. */
static bool run_teams(struct bench *b, const char *folder)
{
    const int n = (int)args.ranks;
    bool good = allreduce_team_start(&b->own, n, own_body, b->shared) &&
                (!args.peer || allreduce_gloo_start(&b->gloo, n, folder)) && measure_allreduce(b);
    if (args.peer)
        good = allreduce_team_end(&b->gloo) && good;
    return allreduce_team_end(&b->own) && good;
}

static enum dpt_status check_allreduce_args(struct dpt_err *err)
{
    if (args.peer && strcmp(args.peer, "gloo") != 0)
        return dpt_fail(err, DPT_EINVAL, "--peer: expected gloo, got '%.40s'", args.peer);
    for (int i = 0; i < args.sizes.n; i++)
        if (args.sizes.values[i] % (int64_t)sizeof(float) != 0)
            return dpt_fail(err, DPT_EINVAL, "--sizes: expected multiples of 4, got %lld",
                            (long long)args.sizes.values[i]);
    if (args.peer && !allreduce_gloo_exists())
        return dpt_fail(err, DPT_EUNSUPPORTED,
                        "there is no dpt-peer-gloo beside this program: run `deploy/install-deps "
                        "peers` and build again");
    return DPT_OK;
}

static enum dpt_status run_allreduce(json_t **ret_report, struct dpt_err *err)
{
    static struct bench b;
    char folder[DPT_BENCH_DIR_BYTES];
    void *shared = NULL;
    DPT_TRY(check_allreduce_args(err));
    DPT_TRY(dpt_bench_share(sizeof *b.shared, &shared, err));
    DPT_TRY(dpt_bench_dir_create(NULL, "allreduce", folder, err));
    b.shared = shared;
    b.shared->n_ranks = (int)args.ranks;
    b.shared->n_sizes = args.sizes.n;
    for (int i = 0; i < args.sizes.n; i++)
        b.shared->sizes[i] = (size_t)args.sizes.values[i];
    const bool good = run_teams(&b, folder);
    dpt_bench_dir_remove(folder);
    if (!good)
        return dpt_fail(err, DPT_EPEER, "a process of the bench failed");
    *ret_report = report_allreduce(&b);
    return DPT_OK;
}

const struct dpt_bench dpt_bench_allreduce = {
    .name = "allreduce",
    .help = "the all-reduce of ddp between processes, by size, beside another library's",
    .options = options,
    .n_options = sizeof options / sizeof *options,
    .run = run_allreduce};
