/* A strategy on machines: see fit.h. */
#include "worker/planner/fit.h"

#include "base/sample.h"
#include "worker/planner/traffic.h"
#include "worker/strategy/strategy.h"

#include <stdio.h>

enum { CHECKPOINT_BYTES = 12 /* of a parameter: fp32 master and two moments */ };

/* The config of one strategy in one world, with its model. The config is large, so it is static. */
static enum dpt_status open_world(const struct dpt_source *source,
                                  const struct dpt_plan_strategy *strategy,
                                  struct dpt_world_shape shape,
                                  const struct dpt_config **ret_config, struct dpt_model **ret,
                                  struct dpt_err *err)
{
    static struct dpt_config config;
    DPT_TRY(dpt_source_load(source, strategy, shape, &config, err));
    *ret_config = &config;
    return dpt_model_create(&config, ret, err);
}

static void read_facts(const struct dpt_source *source, const struct dpt_config *config,
                       const struct dpt_model *model, struct dpt_fit_model *ret)
{
    const struct dpt_model *base = dpt_model_base(model);
    const bool images = dpt_config_reads_images(config);
    const int64_t positions = dpt_sample_form(config).positions;
    const double frozen = base ? (double)dpt_model_param_count(base) : 0;
    *ret = (struct dpt_fit_model){
        .parameters = (double)dpt_model_param_count(model),
        .frozen_parameters = frozen,
        .frozen_bytes = frozen * (double)dpt_dtype_bytes(dpt_model_dtype(model)),
        .layers = images ? 0 : config->model.n_layer,
        .channels = images ? 0 : config->model.n_embd,
        .seq_len = (int)positions,
        .micro_batch = config->train.micro_batch,
        .slots = dpt_config_slots(config),
        .tokens_per_step = config->train.global_batch * positions,
        .steps = source->text ? config->train.steps : 0,
        .cuda = source->written.cluster.device == DPT_DEVICE_CUDA,
        .checkpoint_bytes = dpt_model_param_count(model) * CHECKPOINT_BYTES,
        .precision = config->train.precision,
        .moments = dpt_strategy_vectors(config) - 1,
        .timeout_s = config->cluster.timeout_s};
}

enum dpt_status dpt_fit_model(const struct dpt_source *source, struct dpt_world_shape shape,
                              struct dpt_fit_model *ret, struct dpt_err *err)
{
    struct dpt_err why;
    for (int i = 0; i < DPT_PLAN_STRATEGIES; i++) {
        const struct dpt_config *config;
        struct dpt_model *model = NULL;
        const enum dpt_status status =
            open_world(source, &dpt_plan_strategies[i], shape, &config, &model, &why);
        if (status == DPT_OK) {
            read_facts(source, config, model, ret);
            dpt_model_destroy(&model);
            return DPT_OK;
        }
        if (i == 0)
            (void)dpt_pass(err, &why);
        if (status != DPT_ECONFIG)
            return dpt_pass(err, &why);
    }
    return DPT_ECONFIG;
}

struct dpt_textbook_widths dpt_fit_widths(const struct dpt_fit_model *model)
{
    const bool narrow =
        model->precision == DPT_PRECISION_BF16 || model->precision == DPT_PRECISION_FP16;
    return narrow ? dpt_textbook_mixed(model->moments)
                  : dpt_textbook_plain(sizeof(float), model->moments);
}

/* Whether `machines` machines have enough memory, judged by their first and last rank, or by all
 * (`exact`). A world that the config's rules refuse does not fit. */
static enum dpt_status world_fits(const struct dpt_fit_task *task,
                                  const struct dpt_plan_strategy *strategy, int machines,
                                  bool exact, bool *ret_fits, struct dpt_err *err)
{
    const struct dpt_world_shape shape = {machines, task->shape.each};
    const struct dpt_config *config;
    struct dpt_world_memory memory = {.rank_bytes = 0};
    struct dpt_model *model = NULL;
    const enum dpt_status status = open_world(task->source, strategy, shape, &config, &model, err);
    *ret_fits = false;
    if (status == DPT_ECONFIG)
        return DPT_OK;
    if (status != DPT_OK)
        return status;
    if (exact)
        dpt_world_memory(config, model, shape, &memory);
    else
        memory.rank_bytes = dpt_world_memory_ends(config, model, shape);
    dpt_model_destroy(&model);
    *ret_fits = (double)memory.rank_bytes <= task->memory;
    return DPT_OK;
}

/* The fewest machines that fit; 0: none. */
static enum dpt_status find_least(const struct dpt_fit_task *task,
                                  const struct dpt_plan_strategy *strategy, int *ret,
                                  struct dpt_err *err)
{
    const int most = DPT_CONFIG_WORLD_MAX / task->shape.each;
    int under = 0, fitting = 1;
    bool fits = false;
    DPT_TRY(world_fits(task, strategy, fitting, false, &fits, err));
    while (!fits && fitting < most) {
        under = fitting;
        fitting = fitting * 2 < most ? fitting * 2 : most;
        DPT_TRY(world_fits(task, strategy, fitting, false, &fits, err));
    }
    while (fits && fitting - under > 1) {
        const int middle = (under + fitting) / 2;
        bool here;
        DPT_TRY(world_fits(task, strategy, middle, false, &here, err));
        *(here ? &fitting : &under) = middle;
    }
    /* Another rank may hold more than the first and the last. */
    for (; fits && fitting <= most; fitting++) {
        bool here;
        DPT_TRY(world_fits(task, strategy, fitting, true, &here, err));
        if (here)
            break;
    }
    *ret = fits && fitting <= most ? fitting : 0;
    return DPT_OK;
}

static double textbook_rank(const struct dpt_fit_task *task,
                            const struct dpt_plan_strategy *strategy, int ranks)
{
    const bool in_machine = strategy->sharding == DPT_SHARDING_HYBRID_SHARD;
    const int parts = in_machine && ranks > task->shape.each ? task->shape.each : ranks;
    return task->model->frozen_bytes +
           dpt_textbook_rank(task->parameters, dpt_fit_widths(task->model), strategy->stage, parts);
}

static enum dpt_status fill_here(const struct dpt_fit_task *task, struct dpt_fit *fit,
                                 struct dpt_err *err)
{
    const struct dpt_config *config;
    struct dpt_model *model = NULL;
    struct dpt_planned_world planned;
    DPT_TRY(open_world(task->source, fit->strategy, task->shape, &config, &model, err));
    dpt_world_memory(config, model, task->shape, &fit->memory);
    dpt_planned_world_init(&planned, config, task->shape);
    const struct dpt_traffic traffic =
        dpt_traffic_of(config, &planned.world, dpt_model_flat_numel(model),
                       (int)dpt_dtype_bytes(dpt_model_dtype(model)));
    const int64_t *bytes = fit->memory.bytes;
    fit->waves = dpt_planned_world_waves(config, &planned.world);
    fit->batch_bytes = (double)(bytes[DPT_MEMORY_ACTIVATIONS] + bytes[DPT_MEMORY_SCRATCH] +
                                bytes[DPT_MEMORY_WORKSPACE] + bytes[DPT_MEMORY_DATA]);
    fit->textbook_bytes = textbook_rank(task, fit->strategy, fit->memory.ranks);
    fit->sent_bytes = traffic.sent;
    fit->crossing_bytes = traffic.crossing;
    fit->has_copies = dpt_plan_strategy_has_copies(
        config, planned.world.host_of_position[planned.world.size - 1] + 1);
    fit->fits = task->memory > 0 && (double)fit->memory.rank_bytes <= task->memory;
    dpt_model_destroy(&model);
    return DPT_OK;
}

enum dpt_status dpt_fit_strategy(const struct dpt_fit_task *task,
                                 const struct dpt_plan_strategy *strategy, struct dpt_fit *ret,
                                 struct dpt_err *err)
{
    struct dpt_err why;
    *ret = (struct dpt_fit){.strategy = strategy,
                            .own = task->source->text &&
                                   dpt_plan_strategy_is_of(strategy, &task->source->written)};
    const enum dpt_status status = fill_here(task, ret, &why);
    if (status == DPT_ECONFIG)
        (void)snprintf(ret->refused, sizeof ret->refused, "%s", why.text);
    else if (status != DPT_OK)
        return dpt_pass(err, &why);
    if (task->memory <= 0)
        return DPT_OK;
    DPT_TRY(find_least(task, strategy, &ret->least_machines, err));
    ret->least_ranks = ret->least_machines * task->shape.each;
    return DPT_OK;
}
