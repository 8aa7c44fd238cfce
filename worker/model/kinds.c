/* Models by name (model.h). */
#include "worker/model/kind.h"

#include <string.h>

static const struct dpt_model_kind *const kinds[] = {&dpt_gpt2_kind, &dpt_llama_kind,
                                                     &dpt_resnet_kind};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

static const struct dpt_model_kind *kind_of(const struct dpt_config *config)
{
    for (int i = 0; i < KINDS; i++)
        if (strcmp(config->model.name, kinds[i]->name) == 0)
            return kinds[i];
    return NULL;
}

bool dpt_model_takes_any_context(const struct dpt_config *config)
{
    const struct dpt_model_kind *kind = kind_of(config);
    return kind != NULL && kind->any_context;
}

enum dpt_status dpt_model_create(const struct dpt_config *config, struct dpt_model **ret,
                                 struct dpt_err *err)
{
    const struct dpt_model_kind *kind = kind_of(config);
    struct dpt_model *model = NULL;
    if (kind != NULL) {
        DPT_TRY(kind->create(config, &model, err));
        if (config->train.lora.rank > 0)
            return dpt_lora_create(config, model, ret, err);
        *ret = model;
        return DPT_OK;
    }
    return dpt_fail(err, DPT_ECONFIG,
                    "model.name: no model '%s'; this version has '%s', '%s' and '%s'",
                    config->model.name, kinds[0]->name, kinds[1]->name, kinds[2]->name);
}
