/* The members of adapter_config.json (peft_config.h). */
#include "worker/model/peft_config.h"

#include "worker/model/kind.h"

#include <jansson.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char suffix[] = ".lora_A.weight";

static bool has_name(const json_t *names, const char *name, size_t n)
{
    for (size_t i = 0; i < json_array_size(names); i++) {
        const json_t *one = json_array_get(names, i);
        if (json_string_length(one) == n && strncmp(json_string_value(one), name, n) == 0)
            return true;
    }
    return false;
}

/* The last parts of the names of the layers with adapters; PEFT finds the layers by them. */
static json_t *target_modules(const struct dpt_model *model)
{
    json_t *names = json_array();
    bool ok = names != NULL;
    for (int i = 0; i < dpt_model_n_params(model) && ok; i++) {
        const char *name = dpt_model_param(model, i)->name, *end = strstr(name, suffix), *at = end;
        while (at != NULL && at > name && at[-1] != '.')
            at--;
        if (at != NULL && !has_name(names, at, (size_t)(end - at)))
            ok = json_array_append_new(names, json_stringn(at, (size_t)(end - at))) == 0;
    }
    if (ok)
        return names;
    json_decref(names);
    return NULL;
}

/* A folder by its absolute path: a relative path means another folder to a program that runs in
 * another folder. */
static const char *base_path(const char *init_from, char room[PATH_MAX])
{
    struct stat st;
    const bool is_folder = stat(init_from, &st) == 0 && S_ISDIR(st.st_mode);
    return is_folder && realpath(init_from, room) ? room : init_from;
}

enum dpt_status dpt_peft_config_print(const struct dpt_config *config,
                                      const struct dpt_model *model, char **ret_json,
                                      struct dpt_err *err)
{
    const bool labels = config->model.labels > 0, out_in = dpt_model_base(model)->kind->out_in;
    char path[PATH_MAX];
    json_t *head = labels ? json_pack("[s]", "score") : json_null();
    json_t *root =
        json_pack("{s:s, s:s, s:s, s:i, s:f, s:f, s:s, s:b, s:b, s:b, s:o, s:o}", "peft_type",
                  "LORA", "task_type", labels ? "SEQ_CLS" : "CAUSAL_LM", "base_model_name_or_path",
                  base_path(config->model.init_from, path), "r", config->train.lora.rank,
                  "lora_alpha", config->train.lora.alpha, "lora_dropout", 0.0, "bias", "none",
                  "fan_in_fan_out", (int)!out_in, "inference_mode", 1, "init_lora_weights", 1,
                  "target_modules", target_modules(model), "modules_to_save", head);
    char *text =
        root ? json_dumps(root, JSON_INDENT(2) | JSON_SORT_KEYS | JSON_REAL_PRECISION(12)) : NULL;
    json_decref(root);
    if (text == NULL)
        return dpt_fail_nomem(err, "adapter_config.json of the model");
    *ret_json = text;
    return DPT_OK;
}
