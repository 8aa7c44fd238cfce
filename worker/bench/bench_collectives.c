/* dpt-bench collectives: collective operations of dpt's communicators by size, in the table of
 * nccl-tests (github.com/NVIDIA/nccl-tests): time, algorithm and bus bandwidth, wrong elements.
 *
 * Each table (a collective, an algorithm, a number of ranks) has its own processes. A time is the
 * mean over rounds and ranks, as in nccl-tests. After the rounds of a size one more operation is
 * checked element by element. */
#include "worker/bench/bench_collectives.h"

#include "base/median.h"
#include "base/memory.h"
#include "worker/bench/collective_math.h"
#include "worker/bench/collectives_table.h"
#include "worker/bench/pattern_picture.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { PART_BYTES = 256 << 10, SIZE_MIN = 1024, DRAWN_RANKS = 4, FACTOR_MAX = 1024 };
static const int64_t size_max = (int64_t)1 << 40;

static enum dpt_status set_collective(void *ctx, const char *value, struct dpt_err *err);
static enum dpt_status set_algorithm(void *ctx, const char *value, struct dpt_err *err);
static enum dpt_status set_size(void *ctx, const char *value, struct dpt_err *err);
static enum dpt_status set_encrypt(void *ctx, const char *value, struct dpt_err *err);

static struct {
    unsigned collectives, algorithms; /* sets of bits */
    struct dpt_bench_list ranks;
    int64_t hosts, mesh_max, begin, end, factor, rounds, warmup, part;
    bool algorithm_given, cuda;
    enum dpt_encrypt encrypt;
    const char *draw;
} args = {.collectives = 1U << DPT_COLLECTIVE_ALL_REDUCE,
          .algorithms = 1U << DPT_ALGORITHM_DIRECT,
          .ranks = {.min = 2, .max = AR_RANKS_MAX},
          .hosts = 1,
          .mesh_max = AR_RANKS_MAX,
          .begin = 1 << 10,
          .end = 1 << 30,
          .factor = 2,
          .rounds = 20,
          .warmup = 5,
          .part = PART_BYTES};

static const struct dpt_option options[] = {
    {"--collective", "NAME",
     "all_reduce, all_gather, reduce_scatter, broadcast, send_recv or all (all_reduce)",
     .set = set_collective, .ctx = &args.collectives},
    {"--algorithm", "NAME", "direct, ring or all (direct)", .set = set_algorithm,
     .ctx = &args.algorithms},
    {"--ranks", "N,...", "processes, 2 to 16; each number in turn (2)", .set = dpt_bench_set_list,
     .ctx = &args.ranks},
    {"--hosts", "N", "hosts of the ranks; between them by TCP on loopback (1)",
     .number = &args.hosts, .min = 1, .max = AR_RANKS_MAX},
    {"--mesh-max", "N", "more ranks than N relay between hosts, as with cluster.mesh_max (16)",
     .number = &args.mesh_max, .min = 1, .max = AR_RANKS_MAX},
    {"--encrypt", "HOW",
     "none, mac or data: how these are protected, as with cluster.encrypt "
     "(none)",
     .set = set_encrypt, .ctx = &args.encrypt},
    {"--begin", "SIZE", "the smallest vector, such as 1K (1K)", .set = set_size,
     .ctx = &args.begin},
    {"--end", "SIZE", "the largest vector, such as 26M or 1G (1G)", .set = set_size,
     .ctx = &args.end},
    {"--factor", "N", "from one size to the next (2)", .number = &args.factor, .min = 2,
     .max = FACTOR_MAX},
    {"--rounds", "N", "timed operations of a size (20)", .number = &args.rounds, .min = 1,
     .max = COLLECTIVES_ROUNDS_MAX},
    {"--warmup", "N", "operations before them (5)", .number = &args.warmup, .min = 0,
     .max = COLLECTIVES_ROUNDS_MAX},
    {"--part", "SIZE", "of a ring's chunk that is under way at once (256K)", .set = set_size,
     .ctx = &args.part},
    {"--cuda", .help = "vectors on GPUs, by NCCL's own algorithms", .flag = &args.cuda},
    {"--draw", "DIR", "draws the patterns as SVG into DIR, for the first of --ranks (4)",
     .text = &args.draw}};

static enum dpt_status set_collective(void *ctx, const char *value, struct dpt_err *err)
{
    unsigned *set = ctx;
    if (strcmp(value, "all") == 0) {
        *set = (1U << DPT_COLLECTIVE_COUNT) - 1;
        return DPT_OK;
    }
    for (int i = 0; i < DPT_COLLECTIVE_COUNT; i++)
        if (strcmp(value, dpt_collective_name((enum dpt_collective)i)) == 0) {
            *set = 1U << i;
            return DPT_OK;
        }
    return dpt_fail(err, DPT_EINVAL,
                    "expected all_reduce, all_gather, reduce_scatter, broadcast, send_recv or all, "
                    "got '%.40s'",
                    value);
}

static enum dpt_status set_algorithm(void *ctx, const char *value, struct dpt_err *err)
{
    unsigned *set = ctx;
    args.algorithm_given = true;
    if (strcmp(value, "all") == 0) {
        *set = (1U << DPT_ALGORITHM_COUNT) - 1;
        return DPT_OK;
    }
    for (int i = 0; i < DPT_ALGORITHM_COUNT; i++)
        if (strcmp(value, dpt_algorithm_name((enum dpt_algorithm)i)) == 0) {
            *set = 1U << i;
            return DPT_OK;
        }
    return dpt_fail(err, DPT_EINVAL, "expected direct, ring or all, got '%.40s'", value);
}

static enum dpt_status set_size(void *ctx, const char *value, struct dpt_err *err)
{
    return collective_parse_size(value, SIZE_MIN, size_max, ctx, err);
}

static enum dpt_status set_encrypt(void *ctx, const char *value, struct dpt_err *err)
{
    static const char *const names[] = {
        [DPT_ENCRYPT_NONE] = "none", [DPT_ENCRYPT_MAC] = "mac", [DPT_ENCRYPT_DATA] = "data"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(value, names[i]) == 0) {
            *(enum dpt_encrypt *)ctx = (enum dpt_encrypt)i;
            return DPT_OK;
        }
    return dpt_fail(err, DPT_EINVAL, "expected none, mac or data, got '%.40s'", value);
}

/* ---- a table ---- */

/* Starts the block on all ranks and waits for them. */
static bool run_block(struct allreduce_team *team, const struct collectives_block *block)
{
    for (int i = 0; i < team->n; i++)
        if (write(team->to[i], block, sizeof *block) != (ssize_t)sizeof *block)
            return false;
    for (int i = 0; i < team->n; i++) {
        char done;
        if (read(team->from[i], &done, 1) != 1)
            return false;
    }
    return true;
}

static void read_result(const struct collectives_shared *shared, struct collective_figure *ret)
{
    double mean[COLLECTIVES_ROUNDS_MAX], sum = 0; /* mean: over the ranks, of a round */
    ret->wrong = 0;
    for (int i = 0; i < args.rounds; i++) {
        mean[i] = 0;
        for (int rank = 0; rank < shared->n_ranks; rank++)
            mean[i] += shared->us[rank][i] / shared->n_ranks;
        sum += mean[i];
    }
    for (int rank = 0; rank < shared->n_ranks; rank++)
        ret->wrong += shared->wrong[rank];
    ret->measured = true;
    ret->us = sum / (double)args.rounds;
    ret->median_us = dpt_median(mean, (int)args.rounds);
    ret->least_us = mean[0];
}

static bool has_form(const struct collectives_shared *shared, bool in_place)
{
    return in_place ? shared->collective != DPT_COLLECTIVE_SEND_RECV
                    : !collectives_by_reducer(shared);
}

static bool measure_size(const struct collectives_shared *shared, struct allreduce_team *team,
                         int size, struct collective_row *row)
{
    *row = (struct collective_row){
        .collective = shared->collective, .n_ranks = shared->n_ranks, .numel = shared->numel[size]};
    for (int in_place = 0; in_place < COLLECTIVE_FORMS; in_place++) {
        const struct collectives_block block = {.size_index = size,
                                                .in_place = in_place == 1,
                                                .warmup = (int)args.warmup,
                                                .rounds = (int)args.rounds};
        if (!has_form(shared, block.in_place))
            continue;
        if (!run_block(team, &block))
            return false;
        read_result(shared, &row->form[in_place]);
    }
    return true;
}

static int collectives_body(void *ctx, int rank, int in, int out)
{
    return collectives_rank(ctx, rank, in, out);
}

static enum dpt_status check_memory(const struct collectives_shared *shared, struct dpt_err *err)
{
    const int64_t needed = collectives_bytes(shared), available = dpt_memory_available("");
    if (shared->cuda || available == 0 || needed <= available)
        return DPT_OK;
    return dpt_fail(err, DPT_ENOMEM,
                    "%d ranks need %.1f GB of memory for vectors of %lld bytes, and %.1f GB are "
                    "available: choose a smaller --end or fewer --ranks",
                    shared->n_ranks, (double)needed * 1e-9,
                    (long long)(shared->numel[shared->n_sizes - 1] * (int64_t)sizeof(float)),
                    (double)available * 1e-9);
}

/* Measures all sizes and adds the table to the report. *ret_wrong: elements. */
static enum dpt_status run_table(struct collectives_shared *shared, json_t *tables,
                                 int64_t *ret_wrong, struct dpt_err *err)
{
    const struct collective_table table = {
        .collective = shared->collective,
        .algorithm = shared->cuda ? "nccl" : dpt_algorithm_name(shared->algorithm),
        .n_ranks = shared->n_ranks,
        .n_hosts = shared->n_hosts,
        .warmup = (int)args.warmup,
        .rounds = (int)args.rounds};
    struct allreduce_team team = {.n = 0};
    json_t *rows = json_array();
    struct collective_total total = {.n = 0};
    DPT_ASSERT(rows != NULL);
    memset(shared->listening, 0, sizeof shared->listening);
    collective_print_head(stdout, &table);
    bool good = allreduce_team_start(&team, shared->n_ranks, collectives_body, shared);
    for (int i = 0; good && i < shared->n_sizes; i++) {
        struct collective_row row;
        good = measure_size(shared, &team, i, &row);
        if (!good)
            break;
        collective_print_row(stdout, &row);
        collective_total_add(&total, &row);
        json_array_append_new(rows, collective_row_json(&row));
    }
    good = allreduce_team_end(&team) && good;
    if (good)
        collective_print_total(stdout, &total);
    json_array_append_new(tables, collective_table_json(&table, &total, rows));
    *ret_wrong += total.wrong;
    return good ? DPT_OK : dpt_fail(err, DPT_EPEER, "a process of the bench failed");
}

/* ---- all tables ---- */

static void set_table(struct collectives_shared *shared, int n_ranks,
                      enum dpt_collective collective, enum dpt_algorithm algorithm)
{
    int64_t bytes[COLLECTIVES_SIZES_MAX];
    shared->collective = collective;
    shared->algorithm = algorithm;
    shared->cuda = args.cuda;
    shared->n_ranks = n_ranks;
    shared->n_hosts = (int)args.hosts;
    shared->mesh_max = (int)args.mesh_max;
    shared->encrypt = args.encrypt;
    shared->part_numel = args.part / (int64_t)sizeof(float);
    shared->n_sizes =
        collective_sizes(args.begin, args.end, args.factor, bytes, COLLECTIVES_SIZES_MAX);
    for (int i = 0; i < shared->n_sizes; i++)
        shared->numel[i] = collective_numel(collective, n_ranks, bytes[i]);
}

/* A send-receive has one pattern. */
static bool is_wanted(enum dpt_collective collective, enum dpt_algorithm algorithm)
{
    if ((args.collectives & (1U << collective)) == 0 || (args.algorithms & (1U << algorithm)) == 0)
        return false;
    return collective != DPT_COLLECTIVE_SEND_RECV || algorithm == DPT_ALGORITHM_DIRECT ||
           args.algorithms == 1U << DPT_ALGORITHM_RING;
}

static enum dpt_status run_tables(struct collectives_shared *shared, json_t *tables,
                                  int64_t *ret_wrong, struct dpt_err *err)
{
    for (int r = 0; r < args.ranks.n; r++)
        for (int c = 0; c < DPT_COLLECTIVE_COUNT; c++)
            for (int a = 0; a < DPT_ALGORITHM_COUNT; a++) {
                if (!is_wanted((enum dpt_collective)c, (enum dpt_algorithm)a))
                    continue;
                set_table(shared, (int)args.ranks.values[r], (enum dpt_collective)c,
                          (enum dpt_algorithm)a);
                DPT_TRY(check_memory(shared, err));
                DPT_TRY(run_table(shared, tables, ret_wrong, err));
            }
    return DPT_OK;
}

static enum dpt_status check_collectives_args(struct dpt_err *err)
{
    if (args.end < args.begin)
        return dpt_fail(err, DPT_EINVAL, "--end: %lld bytes are less than --begin, %lld bytes",
                        (long long)args.end, (long long)args.begin);
    if (args.cuda && (args.algorithm_given || args.hosts > 1))
        return dpt_fail(err, DPT_EINVAL,
                        "--cuda: NCCL chooses the algorithm and the links; leave out --algorithm "
                        "and --hosts");
    for (int i = 0; i < args.ranks.n; i++)
        if (args.ranks.values[i] < args.hosts)
            return dpt_fail(err, DPT_EINVAL, "--hosts: %lld hosts are more than %lld ranks",
                            (long long)args.hosts, (long long)args.ranks.values[i]);
    return DPT_OK;
}

static enum dpt_status run_collectives(json_t **ret_report, struct dpt_err *err)
{
    void *memory = NULL;
    int64_t wrong = 0;
    if (args.ranks.n == 0) {
        args.ranks.values[0] = args.draw ? DRAWN_RANKS : args.hosts > 2 ? args.hosts : 2;
        args.ranks.n = 1;
    }
    DPT_TRY(check_collectives_args(err));
    if (args.draw)
        return pattern_pictures_write(args.draw, (int)args.ranks.values[0], err);
    DPT_TRY(dpt_bench_share(sizeof(struct collectives_shared), &memory, err));
    json_t *tables = json_array();
    DPT_ASSERT(tables != NULL);
    const enum dpt_status status = run_tables(memory, tables, &wrong, err);
    *ret_report = json_pack("{s:s,s:I,s:o}", "bench", "collectives", "wrong", (json_int_t)wrong,
                            "tables", tables);
    if (status == DPT_OK && wrong > 0)
        return dpt_fail(err, DPT_ECORRUPT,
                        "%lld elements of results are wrong; column #wrong has their rows",
                        (long long)wrong);
    return status;
}

const struct dpt_bench dpt_bench_collectives = {
    .name = "collectives",
    .help = "collective operations by size in nccl-tests' table, by direct exchange and by a ring",
    .options = options,
    .n_options = sizeof options / sizeof *options,
    .run = run_collectives};
