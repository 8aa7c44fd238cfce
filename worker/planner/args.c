/* The command line of dpt-plan: see args.h. */
#include "worker/planner/args.h"

#include "base/option.h"
#include "worker/planner/scaled.h"

#include <string.h>

enum { LAYERS_MAX = 254, WIDTH_MAX = 65536 };

static const char usage[] =
    "usage: dpt-plan --config FILE [--set KEY=VALUE]… [OPTIONS]\n"
    "       dpt-plan --model NAME [--set KEY=VALUE]… [OPTIONS]\n"
    "       dpt-plan --params N [--layers L --width C] [--set KEY=VALUE]… [OPTIONS]\n"
    "       dpt-plan --layers L --width C [--set KEY=VALUE]… [OPTIONS]\n"
    "       dpt-plan --help | --version\n"
    "\n"
    "Says what a training run needs: memory by strategy, time, price and goodput. Nothing is\n"
    "started. The model:\n"
    "  --config FILE          a config of dpt-worker\n"
    "  --model NAME           gpt3-175b, llama3-8b, llama3-70b, llama3-405b, or a preset of a\n"
    "                         language model (gpt2-124m)\n"
    "  --params N             a model of the Llama family with N parameters: 70e9 or 70B\n"
    "  --layers L --width C   its layers and channels\n"
    "  --set KEY=VALUE        a key of the config (train.micro_batch=4), may be repeated\n"
    "The machines:\n"
    "  --machines N           of --config: cluster.nnodes, else 1\n"
    "  --ranks N              ranks (devices) of a machine; of --config: cluster.gpus_per_node,\n"
    "                         else 1\n"
    "  --memory SIZE          of a device, for one rank: 80GB, 80GiB\n"
    "  --flops F              peak FLOP/s of a device: 989T\n"
    "  --mfu SHARE            of the peak that training reaches (0.4)\n"
    "  --tokens-per-s R       measured, of all ranks, in place of --flops: 100K\n"
    "  --link-rate SIZE       bytes per second between a machine and the others: 50GB, 400Gbit\n"
    "  --price P              dollars of a machine and hour\n"
    "The run:\n"
    "  --tokens N             2e12 or 2T; of --config: train.steps\n"
    "Failures:\n"
    "  --mtbf-h H             mean hours between two failures of one machine\n"
    "  --checkpoint-s S       seconds that a checkpoint stops training, or\n"
    "  --checkpoint-rate SIZE bytes per second with which all machines together write one\n"
    "  --interval-s S         training between two checkpoints (Daly's best interval)\n"
    "  --restart-s S          from a failure to the first step of a restarted job (300)\n"
    "  --recovery-s S         from a failure to the next step of dpt (cluster.timeout_s)\n"
    "The output:\n"
    "  --strategies LIST      ddp,zero1,zero2,zero3,no_shard,shard_grad_op,full_shard,\n"
    "                         hybrid_shard,zero2+shadow,full_shard+shadow\n"
    "  --json FILE            also writes the plan as JSON; -: to the standard output alone\n"
    "Exit codes: 0 planned, 1 failed, 2 usage or a config that is refused.\n";

void dpt_plan_args_help(FILE *out)
{
    (void)fputs(usage, out);
}

static enum dpt_status set_count(void *ctx, const char *value, struct dpt_err *err)
{
    return dpt_scaled_parse(value, DPT_SCALED_COUNT, ctx, err);
}

static enum dpt_status set_bytes(void *ctx, const char *value, struct dpt_err *err)
{
    return dpt_scaled_parse(value, DPT_SCALED_BYTES, ctx, err);
}

static enum dpt_status set_flops(void *ctx, const char *value, struct dpt_err *err)
{
    return dpt_scaled_parse(value, DPT_SCALED_FLOPS, ctx, err);
}

static enum dpt_status set_plain(void *ctx, const char *value, struct dpt_err *err)
{
    return dpt_scaled_parse(value, DPT_SCALED_PLAIN, ctx, err);
}

static enum dpt_status set_share(void *ctx, const char *value, struct dpt_err *err)
{
    double share;
    DPT_TRY(dpt_scaled_parse(value, DPT_SCALED_PLAIN, &share, err));
    if (share > 1)
        return dpt_fail(err, DPT_EINVAL, "expected a share of at most 1, got '%.40s'", value);
    *(double *)ctx = share;
    return DPT_OK;
}

static enum dpt_status add_set(void *ctx, const char *value, struct dpt_err *err)
{
    struct dpt_source_args *source = ctx;
    if (source->n_sets == DPT_SOURCE_SETS_MAX)
        return dpt_fail(err, DPT_EINVAL, "more than %d", DPT_SOURCE_SETS_MAX);
    source->sets[source->n_sets++] = value;
    return DPT_OK;
}

static enum dpt_status set_strategies(void *ctx, const char *value, struct dpt_err *err)
{
    bool *listed = ctx;
    memset(listed, 0, DPT_PLAN_STRATEGIES * sizeof *listed);
    for (const char *at = value;; at++) {
        const size_t bytes = strcspn(at, ",");
        int i = 0;
        while (i < DPT_PLAN_STRATEGIES && (strlen(dpt_plan_strategies[i].label) != bytes ||
                                           strncmp(dpt_plan_strategies[i].label, at, bytes) != 0))
            i++;
        if (i == DPT_PLAN_STRATEGIES)
            return dpt_fail(err, DPT_EINVAL, "'%.*s' is not a strategy of dpt-plan",
                            bytes < 40 ? (int)bytes : 40, at);
        listed[i] = true;
        at += bytes;
        if (*at == '\0')
            return DPT_OK;
    }
}

static enum dpt_status read_options(int argc, char **argv, struct dpt_plan_args *a, int64_t *shape,
                                    struct dpt_err *err)
{
    struct dpt_source_args *s = &a->source;
    struct dpt_machines *m = &a->machines;
    const struct dpt_option options[] = {
        {"--help", .flag = &a->help},
        {"--version", .flag = &a->version},
        {"--config", "FILE", .text = &s->config},
        {"--model", "NAME", .text = &s->model},
        {"--params", "N", .set = set_count, .ctx = &s->params},
        {"--layers", "L", .number = &s->layers, .min = 1, .max = LAYERS_MAX},
        {"--width", "C", .number = &s->width, .min = 1, .max = WIDTH_MAX},
        {"--set", "KEY=VALUE", .set = add_set, .ctx = s},
        {"--machines", "N", .number = &shape[0], .min = 1, .max = DPT_CONFIG_WORLD_MAX},
        {"--ranks", "N", .number = &shape[1], .min = 1, .max = DPT_CONFIG_WORLD_MAX},
        {"--memory", "SIZE", .set = set_bytes, .ctx = &m->memory},
        {"--flops", "F", .set = set_flops, .ctx = &m->flops},
        {"--mfu", "SHARE", .set = set_share, .ctx = &m->mfu},
        {"--tokens-per-s", "R", .set = set_count, .ctx = &m->tokens_per_s},
        {"--link-rate", "SIZE", .set = set_bytes, .ctx = &m->link},
        {"--price", "P", .set = set_plain, .ctx = &m->price},
        {"--tokens", "N", .set = set_count, .ctx = &a->tokens},
        {"--mtbf-h", "H", .set = set_plain, .ctx = &m->mtbf_h},
        {"--checkpoint-s", "S", .set = set_plain, .ctx = &m->save_s},
        {"--checkpoint-rate", "SIZE", .set = set_bytes, .ctx = &m->save_rate},
        {"--interval-s", "S", .set = set_plain, .ctx = &m->interval_s},
        {"--restart-s", "S", .set = set_plain, .ctx = &m->restart_s},
        {"--recovery-s", "S", .set = set_plain, .ctx = &m->recovery_s},
        {"--strategies", "LIST", .set = set_strategies, .ctx = a->listed},
        {"--json", "FILE", .text = &a->json},
    };
    for (int at = 1; at < argc && !a->help && !a->version; at++) {
        if (strncmp(argv[at], "--", 2) != 0)
            return dpt_fail(err, DPT_EINVAL, "expected an option, got '%.80s'", argv[at]);
        DPT_TRY(dpt_option_read(options, sizeof options / sizeof *options, argc, argv, &at, err));
    }
    return DPT_OK;
}

enum dpt_status dpt_plan_args_read(int argc, char **argv, struct dpt_plan_args *ret,
                                   struct dpt_err *err)
{
    int64_t shape[2] = {0, 0};
    *ret = (struct dpt_plan_args){.tokens = 0};
    for (int i = 0; i < DPT_PLAN_STRATEGIES; i++)
        ret->listed[i] = true;
    DPT_TRY(read_options(argc, argv, ret, shape, err));
    ret->machines.shape = (struct dpt_world_shape){(int)shape[0], (int)shape[1]};
    return DPT_OK;
}
