/* Members of JSON objects in a tokenizer.json. */
#include "worker/data/hf_parts.h"

enum dpt_status dpt_hf_bool(const json_t *object, const char *where, const char *key, bool *ret,
                            struct dpt_err *err)
{
    const json_t *value = json_object_get(object, key);
    if (value && !json_is_boolean(value) && !json_is_null(value))
        return dpt_fail(err, DPT_ECONFIG, "%s.%s: expected true or false", where, key);
    *ret = json_is_true(value);
    return DPT_OK;
}

const char *dpt_hf_type(const json_t *object)
{
    const char *type = json_string_value(json_object_get(object, "type"));
    return type ? type : "";
}
