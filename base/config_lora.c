/* Adapters (train.lora): their keys, and impossible combinations. */
#include "base/config_table.h"

#include <stdio.h>
#include <string.h>

enum {
    OF_GPT2 = DPT_LORA_C_ATTN | DPT_LORA_C_PROJ | DPT_LORA_C_FC,
    OF_LLAMA = DPT_LORA_Q_PROJ | DPT_LORA_K_PROJ | DPT_LORA_V_PROJ | DPT_LORA_O_PROJ |
               DPT_LORA_GATE_PROJ | DPT_LORA_UP_PROJ | DPT_LORA_DOWN_PROJ
};

static const struct dpt_key *targets_key(void)
{
    return dpt_config_key("train.lora.targets");
}

bool dpt_config_adapts(const struct dpt_config *config, const char *layer)
{
    const int targets = config->train.lora.targets;
    if (config->train.lora.rank == 0)
        return false;
    for (const struct dpt_choice *c = targets_key()->choices; c->name; c++)
        if (c->value != 0 && strcmp(c->name, layer) == 0)
            return targets == DPT_LORA_ALL || (targets & c->value) != 0;
    return false;
}

/* If train.lora.rank is 0, there are no adapters. Then the other keys of train.lora must have their
 * defaults. */
static enum dpt_status check_unused(const struct dpt_config_load *load, struct dpt_err *err)
{
    static const char *const keys[] = {"train.lora.alpha", "train.lora.targets",
                                       "train.lora.base_hash"};
    const char *path = dpt_config_first_changed(load, keys, sizeof keys / sizeof *keys);
    return path == NULL ? DPT_OK
                        : dpt_refuse_both(load, path, "train.lora.rank", err,
                                          "%s is a setting of adapters, and train.lora.rank is 0; "
                                          "set the rank to at least 1, or leave %s out",
                                          path, path);
}

enum dpt_status dpt_config_check_lora(const struct dpt_config_load *load, struct dpt_err *err)
{
    const struct dpt_config *c = &load->config;
    const bool is_llama = strcmp(c->model.name, "llama") == 0;
    const int known = is_llama ? OF_LLAMA : OF_GPT2;
    if (c->train.lora.rank == 0)
        return check_unused(load, err);
    if (strcmp(c->model.name, "resnet") == 0)
        return dpt_refuse_both(load, "train.lora.rank", "model.name", err,
                               "train.lora has no adapters for model.name: resnet, only for gpt2 "
                               "and llama; set train.lora.rank to 0");
    if (c->model.init_from[0] == '\0')
        return dpt_refuse_both(load, "train.lora.rank", "model.init_from", err,
                               "train.lora trains adapters of published weights; name their folder "
                               "with model.init_from, or set train.lora.rank to 0");
    if ((c->train.lora.targets & ~known) == 0)
        return DPT_OK;
    char has[DPT_CONFIG_VALUE_BYTES], strange[DPT_CONFIG_VALUE_BYTES];
    struct dpt_config other = *c;
    other.train.lora.targets = known;
    dpt_config_key_format(targets_key(), &other, has);
    other.train.lora.targets = c->train.lora.targets & ~known;
    dpt_config_key_format(targets_key(), &other, strange);
    return dpt_refuse_both(load, "train.lora.targets", "model.name", err,
                           "train.lora.targets: a %s has no layers %s; its blocks have %s",
                           c->model.name, strange, has);
}

enum dpt_status dpt_config_check_base(const struct dpt_config *config, const char *folder,
                                      const char *hash, struct dpt_err *err)
{
    const char *said = config->train.lora.base_hash;
    return strcmp(said, hash) == 0
               ? DPT_OK
               : dpt_fail(
                     err, DPT_ECONFIG,
                     "'%s' has weights of the hash %s, and the run's adapters belong to weights of "
                     "the hash %s (train.lora.base_hash); name the folder of those weights",
                     folder, hash, said);
}

enum dpt_status dpt_config_note_base(struct dpt_config *config, const char *hash,
                                     struct dpt_err *err)
{
    char *said = config->train.lora.base_hash;
    if (config->train.lora.rank == 0)
        return DPT_OK;
    if (said[0] != '\0')
        DPT_TRY(dpt_wrap(err, dpt_config_check_base(config, config->model.init_from, hash, err),
                         "model.init_from"));
    (void)snprintf(said, sizeof config->train.lora.base_hash, "%s", hash);
    return DPT_OK;
}
