/* Residual networks: presets, sizes that follow from others, and impossible combinations. */
#include "base/config_table.h"

#include "base/strategy_traits.h"

#include <string.h>

enum {
    SMALL_STAGES = 3,  /* number of stages if model.stages is empty */
    SMALL_BLOCKS = 18, /* number of blocks if model.n_layer is not given either */
    STAGES_MAX = 6,
    BLOCKS_MAX = 254 /* the limit in the table: units of a model, without stem and head */
};

/* He et al. 2016, table 1, in torchvision's form. */
static const struct resnet {
    const char *preset;
    enum dpt_stem stem;
    enum dpt_residual_block block;
    struct dpt_config_steps stages; /* empty: SMALL_STAGES stages of SMALL_BLOCKS blocks in all */
} resnets[] = {
    {"small_resnet", DPT_STEM_CIFAR, DPT_RESIDUAL_BLOCK_BASIC, {0}},
    {"resnet18", DPT_STEM_IMAGENET, DPT_RESIDUAL_BLOCK_BASIC, {4, {2, 2, 2, 2}}},
    {"resnet34", DPT_STEM_IMAGENET, DPT_RESIDUAL_BLOCK_BASIC, {4, {3, 4, 6, 3}}},
    {"resnet50", DPT_STEM_IMAGENET, DPT_RESIDUAL_BLOCK_BOTTLENECK, {4, {3, 4, 6, 3}}},
};

void dpt_config_fill_resnet(struct dpt_config_load *load, const char *preset)
{
    struct dpt_config *c = &load->config;
    for (size_t i = 0; i < sizeof resnets / sizeof *resnets; i++) {
        if (strcmp(resnets[i].preset, preset) != 0)
            continue;
        if (!dpt_config_given(load, "model.stem"))
            c->model.stem = resnets[i].stem;
        if (!dpt_config_given(load, "model.block"))
            c->model.block = resnets[i].block;
        if (!dpt_config_given(load, "model.stages"))
            c->model.stages = resnets[i].stages;
    }
}

static int64_t blocks_of(const struct dpt_config *c)
{
    int64_t blocks = 0;
    for (int64_t i = 0; i < c->model.stages.n; i++)
        blocks += c->model.stages.step[i];
    return blocks;
}

void dpt_config_resolve_resnet(struct dpt_config_load *load)
{
    struct dpt_config *c = &load->config;
    const bool counted = dpt_config_given(load, "model.n_layer");
    if (c->model.stages.n > 0) {
        if (!counted && blocks_of(c) <= BLOCKS_MAX) /* else the check refuses it */
            c->model.n_layer = (int)blocks_of(c);
        return;
    }
    if (!counted)
        c->model.n_layer = SMALL_BLOCKS;
    if (c->model.n_layer % SMALL_STAGES != 0) /* the check refuses it */
        return;
    c->model.stages.n = SMALL_STAGES;
    for (int i = 0; i < SMALL_STAGES; i++)
        c->model.stages.step[i] = c->model.n_layer / SMALL_STAGES;
}

static enum dpt_status check_stages(const struct dpt_config_load *load, struct dpt_err *err)
{
    const struct dpt_config *c = &load->config;
    char multiples[DPT_CONFIG_NEAREST_BYTES];
    if (c->model.stages.n == 0) {
        dpt_config_nearest_multiples(c->model.n_layer, SMALL_STAGES, multiples);
        return dpt_refuse_both(load, "model.n_layer", "model.stages", err,
                               "model.n_layer (%d) is not a multiple of the %d stages; nearest: "
                               "%s, or name the blocks of each in model.stages",
                               c->model.n_layer, SMALL_STAGES, multiples);
    }
    if (c->model.stages.n > STAGES_MAX)
        return dpt_refuse_key(load, "model.stages", err, "%lld stages; at most %d",
                              (long long)c->model.stages.n, STAGES_MAX);
    if (blocks_of(c) > BLOCKS_MAX)
        return dpt_refuse_key(load, "model.stages", err, "%lld blocks in all; at most %d",
                              (long long)blocks_of(c), BLOCKS_MAX);
    if (c->model.n_layer != blocks_of(c))
        return dpt_refuse_both(load, "model.n_layer", "model.stages", err,
                               "model.n_layer (%d) is not the number of blocks in model.stages "
                               "(%lld); leave model.n_layer out",
                               c->model.n_layer, (long long)blocks_of(c));
    return DPT_OK;
}

static int halved_pixels(int pixels)
{
    return (pixels + 1) / 2;
}

/* Batch norm needs at least two values for a variance. */
static enum dpt_status check_pixels(const struct dpt_config_load *load, struct dpt_err *err)
{
    const struct dpt_config *c = &load->config;
    int side = c->data.image_size;
    if (c->model.stem == DPT_STEM_IMAGENET)
        side = halved_pixels(halved_pixels(side));
    for (int64_t stage = 1; stage < c->model.stages.n; stage++)
        side = halved_pixels(side);
    if ((int64_t)side * side * c->train.micro_batch < 2)
        return dpt_refuse_both(load, "train.micro_batch", "data.image_size", err,
                               "train.micro_batch is 1, and of an image of %d x %d pixels "
                               "(data.image_size) the last stage sees one: batch norm has nothing "
                               "to compare; set micro_batch to at least 2, or take larger images",
                               c->data.image_size, c->data.image_size);
    return DPT_OK;
}

static const char *choice_name(const struct dpt_config *c, const char *path)
{
    return dpt_config_key_choice(dpt_config_key(path), c)->name;
}

enum dpt_status dpt_config_check_resnet(const struct dpt_config_load *load, struct dpt_err *err)
{
    const struct dpt_config *c = &load->config;
    if (!dpt_config_reads_images(c))
        return dpt_refuse_both(
            load, "data.kind", "model.name", err,
            "data.kind: %s is not what model.name: resnet reads; write cifar10 or images",
            choice_name(c, "data.kind"));
    if (c->train.activation_checkpointing != DPT_ACTIVATION_CHECKPOINTING_NONE)
        return dpt_refuse_both(
            load, "train.activation_checkpointing", "model.name", err,
            "train.activation_checkpointing: %s is not for model.name: resnet; write none",
            choice_name(c, "train.activation_checkpointing"));
    if (dpt_strategy_traits(c).wire == DPT_PRECISION_FP16)
        return dpt_refuse_both(
            load, "strategy.compression", "model.name", err,
            "strategy.compression: fp16 ends at 65504, and the variances that batch norm keeps do "
            "not carry the loss's scale; write bf16 or none");
    DPT_TRY(check_stages(load, err));
    return check_pixels(load, err);
}
