/* The config of a planned run: see source.h. */
#include "worker/planner/source.h"

#include "base/fs.h"
#include "worker/planner/shape.h"
#include "worker/weights/published.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    CONTEXT = 2048,
    BATCH_NOT_GIVEN = 16777216, /* the limit of train.global_batch */
    EXTRA_SETS = 10             /* of dpt_source_load */
};

/* Models that are no presets. Sources: Brown et al. 2020, table 2.1; Grattafiori et al. 2024 (Llama
 * 3), table 3. */
static const struct known {
    const char *name, *family;
    int context;
    struct dpt_shape_of_llama shape; /* gpt2: n_kv_head and n_inner 0 */
} known_models[] = {
    {"gpt3-175b", "gpt2", 2048, {96, 12288, 96, 0, 0, DPT_VOCAB_GPT2}},
    {"llama3-8b", "llama", 8192, {32, 4096, 32, 8, 14336, 128256}},
    {"llama3-70b", "llama", 8192, {80, 8192, 64, 8, 28672, 128256}},
    {"llama3-405b", "llama", 8192, {126, 16384, 128, 8, 53248, 128256}},
};

DPT_PRINTF(2, 3) static void source_put(struct dpt_source *s, const char *form, ...)
{
    va_list args;
    DPT_ASSERT(s->n_built < DPT_SOURCE_BUILT_MAX);
    va_start(args, form);
    const int bytes = vsnprintf(s->built[s->n_built++], DPT_SOURCE_TEXT_BYTES, form, args);
    va_end(args);
    DPT_ASSERT(bytes < DPT_SOURCE_TEXT_BYTES);
}

static void source_put_shape(struct dpt_source *s, const char *family, int context,
                             const struct dpt_shape_of_llama *shape)
{
    source_put(s, "model.name=%s", family);
    source_put(s, "model.n_layer=%d", shape->n_layer);
    source_put(s, "model.n_embd=%d", shape->n_embd);
    source_put(s, "model.n_head=%d", shape->n_head);
    source_put(s, "model.context=%d", context);
    source_put(s, "model.vocab=%d", shape->vocab);
    source_put(s, "train.seq_len=%d", context < CONTEXT ? context : CONTEXT);
    if (shape->n_inner == 0)
        return;
    source_put(s, "model.n_kv_head=%d", shape->n_kv_head);
    source_put(s, "model.n_inner=%d", shape->n_inner);
    source_put(s, "model.tied_head=false");
}

static void source_put_model(struct dpt_source *s, const char *name)
{
    for (size_t i = 0; i < sizeof known_models / sizeof *known_models; i++)
        if (strcmp(known_models[i].name, name) == 0) {
            const struct known *known = &known_models[i];
            source_put_shape(s, known->family, known->context, &known->shape);
            return;
        }
    source_put(s, "model.preset=%.40s", name);
    source_put(s, "train.seq_len=1024");
}

/* Settings under which large models are trained. A --set has the last word. */
static enum dpt_status source_build(struct dpt_source *s, struct dpt_err *err)
{
    const struct dpt_source_args *a = s->args;
    struct dpt_shape_of_llama shape;
    source_put(s, "train.precision=bf16");
    source_put(s, "train.activation_checkpointing=full");
    source_put(s, "train.micro_batch=1");
    source_put(s, "train.global_batch=%d", BATCH_NOT_GIVEN);
    source_put(s, "cluster.pack_weights=off");
    source_put(s, "optimizer.warmup_steps=0");
    if (a->model) {
        source_put_model(s, a->model);
        return DPT_OK;
    }
    if (a->params > 0)
        DPT_TRY(dpt_shape_fit(a->params, (int)a->layers, (int)a->width, &shape, err));
    else
        DPT_TRY(dpt_shape_given((int)a->layers, (int)a->width, &shape, err));
    source_put_shape(s, "llama", CONTEXT, &shape);
    return DPT_OK;
}

/* Whether a --set gives this key. */
static bool is_set(const struct dpt_source_args *a, const char *key)
{
    const size_t bytes = strlen(key);
    for (size_t i = 0; i < a->n_sets; i++)
        if (strncmp(a->sets[i], key, bytes) == 0 && a->sets[i][bytes] == '=')
            return true;
    return false;
}

/* Refuses keys whose values options and rows of the plan replace. */
static enum dpt_status check_sets(const struct dpt_source_args *a, struct dpt_err *err)
{
    static const struct {
        const char *key, *instead;
    } replaced[] = {
        {"cluster", "--set for single keys"},    {"cluster.nnodes", "--machines"},
        {"cluster.gpus_per_node", "--ranks"},    {"strategy", "--set for single keys"},
        {"strategy.name", "--strategies"},       {"strategy.sharding", "--strategies"},
        {"strategy.redundancy", "--strategies"},
    };
    for (size_t i = 0; i < sizeof replaced / sizeof *replaced; i++)
        if (is_set(a, replaced[i].key))
            return dpt_fail(err, DPT_EINVAL, "--set %s: the plan chooses the value; give %s",
                            replaced[i].key, replaced[i].instead);
    if (!a->config && is_set(a, "train.steps"))
        return dpt_fail(err, DPT_EINVAL,
                        "--set train.steps needs --config; give the length of the run as --tokens");
    return DPT_OK;
}

static enum dpt_status check_source_args(const struct dpt_source_args *a, struct dpt_err *err)
{
    const int n = (a->config != NULL) + (a->model != NULL) + (a->params > 0 || a->layers > 0);
    if ((a->layers > 0) != (a->width > 0))
        return dpt_fail(err, DPT_EINVAL, "--layers and --width go together: %s is missing",
                        a->layers > 0 ? "--width" : "--layers");
    if (n == 0)
        return dpt_fail(err, DPT_EINVAL,
                        "no model is given: expected --config, --model, --params, or --layers and "
                        "--width");
    if (n > 1)
        return dpt_fail(err, DPT_EINVAL,
                        "two models are given: expected one of --config, --model and --params");
    if (a->model && strstr(a->model, "resnet"))
        return dpt_fail(err, DPT_EINVAL,
                        "--model %.40s: a model of images depends on its data; give --config",
                        a->model);
    return check_sets(a, err);
}

/* The overrides of all worlds: those of the source, then --set. Returns their number. */
static size_t collect_sets(const struct dpt_source *s, const char **ret)
{
    size_t n = 0;
    for (size_t i = 0; i < s->n_built; i++)
        ret[n++] = s->built[i];
    for (size_t i = 0; i < s->args->n_sets; i++)
        ret[n++] = s->args->sets[i];
    return n;
}

static struct dpt_config_input input_of(const struct dpt_source *s, const char *const *sets,
                                        size_t n)
{
    return (struct dpt_config_input){.text = s->text ? s->text : "",
                                     .bytes = s->bytes,
                                     .name = s->text ? s->args->config : "defaults",
                                     .overrides = sets,
                                     .n_overrides = n,
                                     .sizes = s->sizes.n > 0 ? &s->sizes : NULL};
}

static enum dpt_status source_read(struct dpt_source *s, struct dpt_err *err)
{
    const char *sets[DPT_SOURCE_BUILT_MAX + DPT_SOURCE_SETS_MAX];
    if (s->args->config)
        DPT_TRY(dpt_fs_read_stream(s->args->config, DPT_CONFIG_TEXT_BYTES_MAX, &s->text, &s->bytes,
                                   err));
    else
        DPT_TRY(source_build(s, err));
    const struct dpt_config_input input = input_of(s, sets, collect_sets(s, sets));
    DPT_TRY(dpt_config_parse(&input, &s->written, err));
    s->batch_by_world = !s->text && s->written.train.global_batch == BATCH_NOT_GIVEN;
    if (s->batch_by_world && is_set(s->args, "train.lanes"))
        return dpt_fail(err, DPT_EINVAL,
                        "--set train.lanes needs --set train.global_batch, without which each rank "
                        "has one lane");
    if (s->written.strategy.offload == DPT_OFFLOAD_OPTIMIZER)
        return dpt_fail(
            err, DPT_ECONFIG,
            "strategy.offload optimizer has no plan, because the state is divided between host and "
            "GPU, and a plan has one memory a rank; plan with --set strategy.offload=none");
    if (s->written.model.init_from[0])
        DPT_TRY(dpt_wrap(err, dpt_published_sizes(s->written.model.init_from, &s->sizes, err),
                         "model.init_from"));
    return DPT_OK;
}

enum dpt_status dpt_source_open(const struct dpt_source_args *args, struct dpt_source *ret,
                                struct dpt_err *err)
{
    *ret = (struct dpt_source){.args = args};
    DPT_TRY(check_source_args(args, err));
    const enum dpt_status status = source_read(ret, err);
    if (status != DPT_OK)
        dpt_source_close(ret);
    return status;
}

void dpt_source_close(struct dpt_source *source)
{
    free(source->text);
    source->text = NULL;
}

enum dpt_status dpt_source_load(const struct dpt_source *source,
                                const struct dpt_plan_strategy *strategy,
                                struct dpt_world_shape shape, struct dpt_config *ret,
                                struct dpt_err *err)
{
    const char *sets[DPT_SOURCE_BUILT_MAX + DPT_SOURCE_SETS_MAX + EXTRA_SETS];
    char name[64], sharding[64], nnodes[64], batch[64], lanes[64];
    size_t n = collect_sets(source, sets);
    const int ranks = shape.machines * shape.each;
    (void)snprintf(name, sizeof name, "strategy.name=%s", strategy->name);
    (void)snprintf(sharding, sizeof sharding, "strategy.sharding=%s", strategy->sharding_word);
    (void)snprintf(nnodes, sizeof nnodes, "cluster.nnodes=%d", shape.machines);
    (void)snprintf(batch, sizeof batch, "train.global_batch=%d",
                   ranks * source->written.train.micro_batch);
    if (source->written.train.reduction != DPT_REDUCTION_CANONICAL)
        (void)snprintf(lanes, sizeof lanes, "train.lanes=auto"); /* a lane a rank by itself */
    else
        (void)snprintf(lanes, sizeof lanes, "train.lanes=%d", ranks);
    sets[n++] = name;
    sets[n++] = sharding;
    sets[n++] = strategy->shadow ? "strategy.redundancy=shadow" : "strategy.redundancy=none";
    sets[n++] = nnodes;
    sets[n++] = "cluster.gpus_per_node=auto"; /* the shape has the ranks of a machine */
    if (source->batch_by_world) {
        sets[n++] = batch;
        sets[n++] = lanes;
    }
    if (source->written.cluster.device == DPT_DEVICE_CUDA) {
        sets[n++] = "cluster.device=cpu";
        sets[n++] = "cluster.pack_weights=off";
        if (source->written.train.precision == DPT_PRECISION_TF32)
            sets[n++] = "train.precision=fp32";
    }
    const struct dpt_config_input input = input_of(source, sets, n);
    return dpt_config_load(&input, ret, err);
}
