/* dpt-bench strategies: runs every strategy of the config on one model, with the real programs on
 * this machine. Compares the time, memory, sent bytes and waiting of a step with the formulas.
 *
 * The strategies' runs alternate, round after round, so that other load on the machine slows all of
 * them. A run has a server and a worker for each node; its first steps are not counted. Strategies
 * that add gradients in the same order must end with the same weights hash; else the bench
 * fails. */
#include "worker/bench/bench_strategies.h"

#include "base/config_table.h"
#include "base/fs.h"
#include "worker/bench/bench.h"
#include "worker/bench/programs.h"
#include "worker/model/model.h"

#include <stdlib.h>
#include <string.h>

enum { TEXT_BYTES = 400 * 1000, WHY_BYTES = 1024 };

static const char usage[] =
    "usage: dpt-bench strategies [--ranks 2] [--hosts 1] [--rounds 3] [--steps 8] [--batch 16] "
    "[--micro 2] [--seq 64] [--model \"n_layer: 4, n_head: 4, …\"] [--precision fp32|bf16|fp16] "
    "[--accumulate auto|local|reduce] [--only NAME[,NAME…]] [--json FILE] [--html FILE]\n"
    "  hosts: ranks are dealt to them alike\n";

static bool take_word(const char *text, const char **ret)
{
    *ret = text;
    return *text != '\0';
}

static bool take(struct st_args *a, const char *flag, const char *value)
{
    if (strcmp(flag, "--ranks") == 0)
        return dpt_bench_parse_int(value, 1, ST_RANKS_MAX, &a->ranks);
    if (strcmp(flag, "--hosts") == 0)
        return dpt_bench_parse_int(value, 1, ST_RANKS_MAX, &a->hosts);
    if (strcmp(flag, "--rounds") == 0)
        return dpt_bench_parse_int(value, 1, ST_ROUNDS_MAX, &a->rounds);
    if (strcmp(flag, "--steps") == 0)
        return dpt_bench_parse_int(value, 1, ST_STEPS_MAX, &a->steps);
    if (strcmp(flag, "--batch") == 0)
        return dpt_bench_parse_int(value, 1, 1 << 16, &a->global_batch);
    if (strcmp(flag, "--micro") == 0)
        return dpt_bench_parse_int(value, 1, 1 << 16, &a->micro_batch);
    if (strcmp(flag, "--seq") == 0)
        return dpt_bench_parse_int(value, 1, 1 << 16, &a->seq_len);
    if (strcmp(flag, "--model") == 0)
        return take_word(value, &a->model) && strlen(value) < ST_MODEL_BYTES;
    if (strcmp(flag, "--precision") == 0)
        return take_word(value, &a->precision);
    if (strcmp(flag, "--accumulate") == 0)
        return take_word(value, &a->accumulate);
    if (strcmp(flag, "--only") == 0)
        return take_word(value, &a->only);
    if (strcmp(flag, "--json") == 0)
        return take_word(value, &a->json);
    return strcmp(flag, "--html") == 0 && take_word(value, &a->html);
}

static bool parse_strategies_args(int argc, char **argv, struct st_args *a)
{
    *a = (struct st_args){
        .ranks = 2,
        .hosts = 1,
        .rounds = 3,
        .steps = 8,
        .global_batch = 16,
        .micro_batch = 2,
        .seq_len = 64,
        .model = "n_layer: 4, n_head: 4, n_embd: 256, context: 64, vocab: 8192, dropout: 0.0",
        .precision = "fp32",
        .accumulate = "auto",
        .only = ""};
    for (int i = 1; i < argc; i += 2)
        if (!take(a, argv[i], i + 1 < argc ? argv[i + 1] : ""))
            return dpt_bench_misused("strategies", usage, argv[i]);
    return a->ranks % a->hosts == 0 || dpt_bench_misused("strategies", usage, "--hosts");
}

/* True: `label` is one of the words of the comma-separated list. An empty list has every word. */
static bool wanted(const char *list, const char *label)
{
    const size_t n = strlen(label);
    if (*list == '\0')
        return true;
    for (const char *at = list; at; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, label, n) == 0 && (at[n] == '\0' || at[n] == ','))
            return true;
    }
    return false;
}

static const struct dpt_choice *choices_of(const char *key)
{
    return dpt_config_keys[dpt_config_key_index(key)].choices;
}

/* Adds a strategy that the user asked for. If it cannot run here, prints the reason instead.
 * hybrid_shard shards inside a node, so its nodes have several ranks. */
static void add(struct st_bench *b, const char *label, const char *name, const char *sharding)
{
    char text[2048];
    struct dpt_err err = {.text = ""};
    if (!wanted(b->args.only, label))
        return;
    DPT_ASSERT(b->n < ST_STRATEGIES_MAX);
    struct st_strategy *s = &b->strategies[b->n];
    s->nodes = b->args.ranks;
    if (strcmp(sharding, "hybrid_shard") == 0)
        s->nodes = b->args.hosts > 1 || b->args.ranks == 1 ? b->args.hosts : 2;
    if (b->args.ranks % s->nodes != 0) {
        (void)fprintf(stderr, "%s is left out: %d ranks are not alike on %d nodes\n", label,
                      b->args.ranks, s->nodes);
        return;
    }
    st_config_text(b, name, sharding, s->nodes, text);
    if (dpt_config_load_text(text, label, NULL, 0, &s->config, &err) != DPT_OK) {
        (void)fprintf(stderr, "%s is left out: %.*s\n", label, WHY_BYTES, err.text);
        return;
    }
    (void)snprintf(s->label, sizeof s->label, "%s", label);
    (void)snprintf(s->name, sizeof s->name, "%s", name);
    (void)snprintf(s->sharding, sizeof s->sharding, "%s", sharding);
    b->n++;
}

/* Adds every strategy and every sharding that the config knows. */
static void add_all(struct st_bench *b)
{
    for (const struct dpt_choice *c = choices_of("strategy.name"); c->name; c++) {
        if (strcmp(c->name, "fsdp") != 0) {
            add(b, c->name, c->name, "");
            continue;
        }
        for (const struct dpt_choice *k = choices_of("strategy.sharding"); k->name; k++)
            if (k->value != DPT_SHARDING_NULL)
                add(b, k->name, c->name, k->name);
    }
}

static enum dpt_status prepare(struct st_bench *b, struct dpt_err *err)
{
    struct dpt_model *model = NULL;
    char path[BENCH_PATH_BYTES];
    DPT_TRY(bench_program_find("dpt-worker", b->worker, err));
    DPT_TRY(dpt_fs_join(b->dir, "text.txt", path, sizeof path, err));
    DPT_TRY(bench_text_write(path, TEXT_BYTES, err));
    add_all(b);
    if (b->n == 0)
        return dpt_fail(err, DPT_ECONFIG, "there is no strategy to measure");
    DPT_TRY(dpt_model_create(&b->strategies[0].config, &model, err));
    for (int i = 0; i < dpt_model_n_params(model); i++)
        b->parameters += dpt_model_param(model, i)->numel;
    dpt_model_destroy(&model);
    return DPT_OK;
}

static enum dpt_status measure_strategies(struct st_bench *b, struct dpt_err *err)
{
    for (int round = 0; round < b->args.rounds; round++)
        for (int i = 0; i < b->n; i++) {
            struct st_strategy *s = &b->strategies[i];
            DPT_TRY(st_run(b, s, round, &s->runs[s->n_runs], err));
            s->n_runs++;
        }
    return DPT_OK;
}

static int report_strategies(struct st_bench *b)
{
    struct dpt_err err;
    st_conclude(b);
    st_print(b);
    int code = dpt_bench_finish(&(struct dpt_bench_args){.json = b->args.json}, st_json(b));
    if (b->args.html && st_page(b, b->args.html, &err) != DPT_OK) {
        (void)fprintf(stderr, "dpt-bench strategies: %s\n", err.text);
        code = 1;
    }
    return st_one_hash(b, DPT_ACCUMULATE_LOCAL) && st_one_hash(b, DPT_ACCUMULATE_REDUCE) ? code : 1;
}

static int run_strategies(int argc, char **argv)
{
    static struct st_bench b;
    struct dpt_err err;
    if (!parse_strategies_args(argc, argv, &b.args))
        return 2;
    enum dpt_status status = dpt_bench_dir_create(NULL, "strategies", b.dir, &err);
    if (status != DPT_OK) {
        (void)fprintf(stderr, "dpt-bench strategies: %s\n", err.text);
        return 1;
    }
    (void)getloadavg(&b.load_before, 1);
    status = bench_programs_begin(&err);
    if (status == DPT_OK)
        status = prepare(&b, &err);
    if (status == DPT_OK)
        status = measure_strategies(&b, &err);
    (void)getloadavg(&b.load_after, 1);
    if (status != DPT_OK)
        (void)fprintf(stderr, "dpt-bench strategies: %s\n", err.text);
    const int code = status == DPT_OK ? report_strategies(&b) : 1;
    dpt_bench_dir_remove(b.dir);
    return code;
}

const struct dpt_bench dpt_bench_strategies = {
    .name = "strategies",
    .help = "every strategy on one model: time, bytes held and sent beside the formulas, hash",
    .run = run_strategies,
};
