/* dpt-bench checkpoint: how fast a state is written as a checkpoint and read back.
 *
 * The tensors are GPT-2's, with moments. The writers are processes that share one folder, as ranks
 * do. `whole`: every writer holds the whole state (ddp). `shards`: each writer holds its shard
 * (zero, fsdp). The time of a write is from the first byte to the durable commit. Training waits
 * for the longest write of a part. Then as many processes read their shards back and verify them.
 * Bytes that were written past the page cache come from the disk. */
#include "base/clock.h"
#include "base/median.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/layout/writer_share.h"
#include "worker/bench/bench.h"
#include "worker/model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WRITERS_MAX = 64, COLLECT_MS = 600000, YAML_BYTES = 512 };

static struct {
    const char *model, *layout, *in;
    int64_t writers, repeats;
} args = {
    .model = "preset: gpt2-124m", .layout = "whole", .writers = 2, .repeats = DPT_BENCH_REPEATS};

static const struct dpt_option options[] = {
    {"--model", "KEYS", "keys of the config's section model (preset: gpt2-124m)",
     .text = &args.model},
    {"--layout", "whole|shards", "each writer holds the whole state (whole), or its shard",
     .text = &args.layout},
    {"--writers", "N", "processes that write (2)", .number = &args.writers, .min = 1,
     .max = WRITERS_MAX},
    {"--in", "FOLDER", "where to write ($TMPDIR, else /tmp)", .text = &args.in},
    DPT_BENCH_REPEATS_OPTION(args.repeats)};

/* The state, in memory that all processes share. */
struct bench_state {
    char dir[DPT_BENCH_DIR_BYTES];
    struct dpt_model *model;
    int64_t unit[DPT_UNITS_MAX + 1];
    struct dpt_grid grid;
    struct dpt_checkpoint_tensor *tensors;
    int64_t *offset;
    int n_tensors;
    float *vector[3];
    int64_t bytes; /* of all values */
    struct seconds {
        double part[WRITERS_MAX], commit;
    } * seconds; /* written by the processes */
    int64_t step;
};

static bool is_sharded(void)
{
    return strcmp(args.layout, "shards") == 0;
}

static enum dpt_status checkpoint_make_model(struct bench_state *s, struct dpt_err *err)
{
    static struct dpt_config config;
    char yaml[YAML_BYTES];
    (void)snprintf(yaml, sizeof yaml,
                   "run: bench\nmodel: {%s}\n"
                   "data: {kind: tokens, train: none.bin}\n",
                   args.model);
    DPT_TRY(dpt_config_load_text(yaml, "bench", NULL, 0, &config, err));
    return dpt_model_create(&config, &s->model, err);
}

static enum dpt_status make_state(struct bench_state *s, struct dpt_err *err)
{
    DPT_TRY(checkpoint_make_model(s, err));
    const int n_units = dpt_model_n_units(s->model);
    const size_t flat = (size_t)dpt_model_flat_numel(s->model);
    for (int u = 0; u < n_units; u++)
        s->unit[u] = dpt_model_unit(s->model, u)->offset;
    s->unit[n_units] = (int64_t)flat;
    s->grid = (struct dpt_grid){.offset = s->unit, .n_units = n_units, .block = DPT_BLOCK};
    s->n_tensors = dpt_model_n_params(s->model);
    s->tensors = calloc((size_t)s->n_tensors, sizeof *s->tensors);
    s->offset = calloc((size_t)s->n_tensors, sizeof *s->offset);
    if (!s->tensors || !s->offset)
        return dpt_fail_nomem(err, "a state of %s", args.model);
    void *shared[4] = {NULL};
    DPT_TRY(dpt_bench_share(sizeof *s->seconds, &shared[3], err));
    s->seconds = shared[3];
    for (int v = 0; v < 3; v++) {
        DPT_TRY(dpt_bench_share(flat * sizeof(float), &shared[v], err));
        s->vector[v] = shared[v];
    }
    for (size_t i = 0; i < flat; i++)
        for (int v = 0; v < 3; v++)
            s->vector[v][i] = (float)(i * 3 + (size_t)v);
    for (int i = 0; i < s->n_tensors; i++) {
        const struct dpt_param *p = dpt_model_param(s->model, i);
        s->offset[i] = p->offset;
        s->tensors[i] = (struct dpt_checkpoint_tensor){.name = p->name,
                                                       .ndim = p->ndim,
                                                       .dim = {p->dim[0], p->dim[1]},
                                                       .param = s->vector[0] + p->offset,
                                                       .m = s->vector[1] + p->offset,
                                                       .v = s->vector[2] + p->offset};
        s->bytes += 3 * p->numel * (int64_t)sizeof(float);
    }
    return DPT_OK;
}

/* The pieces of shard `writer`; owned. */
static struct dpt_checkpoint_piece *shard_pieces(const struct bench_state *s, int writer,
                                                 int *ret_n)
{
    const int n_units = s->grid.n_units, n_max = s->n_tensors + n_units;
    struct dpt_checkpoint_range ranges[DPT_UNITS_MAX];
    struct dpt_checkpoint_piece *pieces = calloc((size_t)n_max, sizeof *pieces);
    for (int u = 0; u < n_units; u++) {
        const struct dpt_interval piece =
            dpt_shard_piece(&s->grid, (struct dpt_shard){writer, (int)args.writers}, u);
        ranges[u] =
            (struct dpt_checkpoint_range){piece.first, piece.end, s->vector[0] + piece.first,
                                          s->vector[1] + piece.first, s->vector[2] + piece.first};
    }
    const struct dpt_checkpoint_vector vector = {s->tensors, s->offset, s->n_tensors};
    *ret_n = pieces ? dpt_checkpoint_cut(&vector, ranges, n_units, pieces, n_max) : 0;
    return pieces;
}

/* The pieces that `writer` writes: its shard, or its share of the whole state; owned. */
static struct dpt_checkpoint_piece *writer_pieces(const struct bench_state *s, int writer,
                                                  int *ret_n)
{
    if (is_sharded())
        return shard_pieces(s, writer, ret_n);
    struct dpt_checkpoint_piece *pieces = calloc((size_t)s->n_tensors, sizeof *pieces);
    if (pieces) {
        dpt_checkpoint_whole_tensors(s->tensors, s->n_tensors, pieces);
        *ret_n = dpt_checkpoint_divide(pieces, s->n_tensors, writer, (int)args.writers, pieces);
    }
    return pieces;
}

static double seconds_since(int64_t start_ns)
{
    return 1e-9 * (double)(dpt_now_ns() - start_ns);
}

static enum dpt_status write_as(struct bench_state *s, int writer, struct dpt_err *err)
{
    int n = 0;
    struct dpt_checkpoint_piece *pieces = writer_pieces(s, writer, &n);
    if (!pieces)
        return dpt_fail_nomem(err, "pieces of a writer");
    const struct dpt_checkpoint_spec spec = {
        .dir = s->dir,
        .writer = writer,
        .n_writers = (int)args.writers,
        .generation = 1,
        .attempt = "bench",
        .tensors = s->tensors,
        .n_tensors = s->n_tensors,
        .moments = true,
        .pieces = pieces,
        .n_pieces = n,
        .hf_config_json = "{}",
        .state = {.step = s->step, .config_yaml = "run: bench\n", .history_json = "[]"},
        .keep = 1};
    int64_t start = dpt_now_ns();
    enum dpt_status status = dpt_checkpoint_write_part(&spec, err);
    s->seconds->part[writer] = seconds_since(start);
    if (status == DPT_OK && writer == 0) {
        status = dpt_checkpoint_collect(&spec, COLLECT_MS, err);
        start = dpt_now_ns();
        if (status == DPT_OK)
            status = dpt_checkpoint_commit(&spec, err);
        s->seconds->commit = seconds_since(start);
    }
    free(pieces);
    return status;
}

static enum dpt_status read_as(struct bench_state *s, int reader, struct dpt_err *err)
{
    int n = 0;
    struct dpt_checkpoint *checkpoint = NULL;
    struct dpt_checkpoint_piece *pieces = shard_pieces(s, reader, &n);
    if (!pieces)
        return dpt_fail_nomem(err, "pieces of a reader");
    enum dpt_status status = dpt_checkpoint_open(s->dir, s->step, &checkpoint, err);
    if (status == DPT_OK)
        status = dpt_checkpoint_read_pieces(checkpoint, s->tensors, pieces, n, err);
    dpt_checkpoint_close(&checkpoint);
    free(pieces);
    return status;
}

/* Calls `fn` in as many processes as there are writers, all at once. Returns the seconds until the
 * last process has ended. */
static enum dpt_status on_all(struct bench_state *s,
                              enum dpt_status (*fn)(struct bench_state *s, int i,
                                                    struct dpt_err *err),
                              double *ret_s, struct dpt_err *err)
{
    pid_t pids[WRITERS_MAX];
    bool failed = false;
    (void)fflush(NULL);
    const int64_t start = dpt_now_ns();
    for (int i = 0; i < (int)args.writers; i++) {
        pids[i] = fork();
        if (pids[i] == 0) {
            struct dpt_err why;
            enum dpt_status status = fn(s, i, &why);
            if (status != DPT_OK)
                fprintf(stderr, "%s\n", why.text);
            _exit(status == DPT_OK ? 0 : 1);
        }
        failed = failed || pids[i] < 0;
    }
    for (int i = 0; i < (int)args.writers; i++) {
        int code;
        failed = failed || pids[i] < 0 || waitpid(pids[i], &code, 0) != pids[i] || code != 0;
    }
    *ret_s = seconds_since(start);
    return failed ? dpt_fail(err, DPT_EIO, "a process has failed") : DPT_OK;
}

static enum dpt_status measure_checkpoint(struct bench_state *s, json_t **ret, struct dpt_err *err)
{
    double write[DPT_BENCH_REPEATS_MAX], part[DPT_BENCH_REPEATS_MAX], commit[DPT_BENCH_REPEATS_MAX],
        read[DPT_BENCH_REPEATS_MAX];
    const int repeats = (int)args.repeats;
    for (int i = 0; i < repeats; i++) {
        s->step = i + 1;
        DPT_TRY(on_all(s, write_as, &write[i], err));
        part[i] = 0;
        for (int w = 0; w < args.writers; w++)
            part[i] = s->seconds->part[w] > part[i] ? s->seconds->part[w] : part[i];
        commit[i] = s->seconds->commit;
        DPT_TRY(on_all(s, read_as, &read[i], err));
    }
    const double mb = 1e-6 * (double)s->bytes, write_s = dpt_median(write, repeats),
                 read_s = dpt_median(read, repeats), part_s = dpt_median(part, repeats),
                 commit_s = dpt_median(commit, repeats);
    printf("%s, %.0f MB, %d writers, %s: written in %.3f s (%.0f MB/s; parts %.3f s, commit %.3f "
           "s), read in %.3f s (%.0f MB/s); medians of %d\n",
           args.model, mb, (int)args.writers, args.layout, write_s, mb / write_s, part_s, commit_s,
           read_s, mb / read_s, repeats);
    *ret =
        json_pack("{s:s,s:s,s:s,s:I,s:f,s:f,s:f,s:f,s:f}", "bench", "checkpoint", "model",
                  args.model, "layout", args.layout, "writers", (json_int_t)args.writers, "mb", mb,
                  "write_s", write_s, "part_s", part_s, "commit_s", commit_s, "read_s", read_s);
    return DPT_OK;
}

static enum dpt_status run_checkpoint(json_t **ret_report, struct dpt_err *err)
{
    struct bench_state s = {.n_tensors = 0};
    if (!is_sharded() && strcmp(args.layout, "whole") != 0)
        return dpt_fail(err, DPT_EINVAL, "--layout: expected whole or shards, got '%.40s'",
                        args.layout);
    enum dpt_status status = make_state(&s, err);
    if (status == DPT_OK)
        status = dpt_bench_dir_create(args.in, "checkpoint", s.dir, err);
    if (status == DPT_OK) {
        status = measure_checkpoint(&s, ret_report, err);
        dpt_bench_dir_remove(s.dir);
    }
    free(s.tensors);
    free(s.offset);
    dpt_model_destroy(&s.model);
    return status;
}

const struct dpt_bench dpt_bench_checkpoint = {
    .name = "checkpoint",
    .help = "the time to write a checkpoint and to read it back",
    .options = options,
    .n_options = sizeof options / sizeof *options,
    .run = run_checkpoint};
