/* The members of config.json and the config's keys (hf_config.h). */
#include "worker/model/hf_config.h"

#include "base/config_table.h"
#include "base/parse.h"
#include "worker/model/hf_json.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MLP_FACTOR = 4 /* of GPT-2's width */ };

/* A member that is a key of the config. `usual` is its value if a file lacks it or has null; NULL:
 * the file must have the member. */
struct member {
    const char *name, *key, *usual;
    bool written_only; /* written, not read: the user sets it, or it repeats another member */
};

/* A member that has the same value in all our models; `value` is JSON. */
struct constant {
    const char *name, *value;
    bool checked; /* a file with another value has another architecture */
};

static const struct member gpt2_members[] = {
    {"n_positions", "model.context", NULL, false}, {"n_ctx", "model.context", NULL, true},
    {"n_embd", "model.n_embd", NULL, false},       {"n_layer", "model.n_layer", NULL, false},
    {"n_head", "model.n_head", NULL, false},       {"vocab_size", "model.vocab", NULL, false},
    {"resid_pdrop", "model.dropout", NULL, true},  {"embd_pdrop", "model.dropout", NULL, true},
    {"attn_pdrop", "model.dropout", NULL, true},
};

static const struct constant gpt2_constants[] = {
    {"activation_function", "\"gelu_new\"", true},
    {"layer_norm_epsilon", "1e-5", true},
    {"scale_attn_weights", "true", true},
    {"tie_word_embeddings", "true", true},
    {"n_inner", "null", false}, /* check_inner */
    {"initializer_range", "0.02", false},
    {"use_cache", "true", false},
};

/* The defaults of absent members are LlamaConfig's. */
static const struct member llama_members[] = {
    {"hidden_size", "model.n_embd", NULL, false},
    {"intermediate_size", "model.n_inner", NULL, false},
    {"num_hidden_layers", "model.n_layer", NULL, false},
    {"num_attention_heads", "model.n_head", NULL, false},
    {"num_key_value_heads", "model.n_kv_head", "auto", false},
    {"head_dim", "model.head_size", "auto", false},
    {"max_position_embeddings", "model.context", NULL, false},
    {"vocab_size", "model.vocab", NULL, false},
    {"rms_norm_eps", "model.norm_eps", "1e-6", false},
    {"attention_bias", "model.attention_bias", "false", false},
    {"mlp_bias", "model.mlp_bias", "false", false},
    {"tie_word_embeddings", "model.tied_head", "false", false},
    {"attention_dropout", "model.dropout", NULL, true},
};

/* A member of the file's top level or, in files of newer releases of transformers, of
 * rope_parameters. */
static const struct member rope_theta = {"rope_theta", "model.rope_theta", "10000", false};

/* Members of rope_scaling or rope_parameters, with rope_type llama3. */
static const struct member rope_members[] = {
    {"factor", "model.rope_factor", NULL, false},
    {"low_freq_factor", "model.rope_low_freq_factor", NULL, false},
    {"high_freq_factor", "model.rope_high_freq_factor", NULL, false},
    {"original_max_position_embeddings", "model.rope_original_context", NULL, false},
};

static const struct constant llama_constants[] = {
    {"hidden_act", "\"silu\"", true}, {"initializer_range", "0.02", false},
    {"bos_token_id", "null", false},  {"eos_token_id", "null", false},
    {"use_cache", "true", false},
};

/* torchvision writes no config.json: members have the names of the arguments of its ResNet, or of
 * our keys. */
static const struct member resnet_members[] = {
    {"block", "model.block", NULL, false},
    {"layers", "model.stages", NULL, false},
    {"width", "model.width", "64", false},
    {"stem", "model.stem", NULL, false},
    {"num_classes", "model.labels", NULL, true},
    {"batch_norm_momentum", "model.batch_norm_momentum", NULL, true},
    {"image_size", "data.image_size", NULL, true},
};

static const struct constant resnet_constants[] = {{"batch_norm_eps", "1e-5", true}};

#define COUNT(table) (int)(sizeof(table) / sizeof(table)[0])

static const struct family {
    const char *name; /* model.name */
    const char *type; /* model_type; transformers' "resnet" has other names of tensors */
    const struct member *members;
    int n_members;
    const struct constant *constants;
    int n_constants;
    /* The architecture without labels (NULL: the family has no tokens), and with labels. */
    const char *next_token, *classifier;
} families[] = {
    {"gpt2", "gpt2", gpt2_members, COUNT(gpt2_members), gpt2_constants, COUNT(gpt2_constants),
     "GPT2LMHeadModel", "GPT2ForSequenceClassification"},
    {"llama", "llama", llama_members, COUNT(llama_members), llama_constants, COUNT(llama_constants),
     "LlamaForCausalLM", "LlamaForSequenceClassification"},
    {"resnet", "torchvision_resnet", resnet_members, COUNT(resnet_members), resnet_constants,
     COUNT(resnet_constants), NULL, "ResNet"},
};

static const struct family *family_of(const char *name)
{
    for (int i = 0; i < COUNT(families); i++)
        if (strcmp(families[i].name, name) == 0)
            return &families[i];
    return NULL;
}

static const struct family *family_of_type(const char *type)
{
    for (int i = 0; i < COUNT(families); i++)
        if (strcmp(families[i].type, type) == 0)
            return &families[i];
    return NULL;
}

static bool is_llama(const struct family *family)
{
    return family->members == llama_members;
}

static bool has_tokens(const struct family *family)
{
    return family->next_token != NULL;
}

static const struct dpt_key *key_of(const struct member *member)
{
    return &dpt_config_keys[dpt_config_key_index(member->key)];
}

/* ---- reading ---- */

struct reading {
    const char *path;
    const json_t *root;
    struct dpt_config_sizes *said;
};

static void note_said_key(struct dpt_config_sizes *said, const char *key, const char *name,
                          const char *value)
{
    DPT_ASSERT(said->n < DPT_CONFIG_SIZES_MAX);
    said->key[said->n] = (struct dpt_config_size){.key = key, .name = name};
    (void)snprintf(said->key[said->n].value, sizeof said->key[said->n].value, "%s", value);
    said->n++;
}

/* Formats a list as "[3, 4]". False: the value is not a list of integers, or is too long. */
static bool list_text(const json_t *list, char ret[DPT_CONFIG_SIZE_BYTES])
{
    size_t used = (size_t)snprintf(ret, DPT_CONFIG_SIZE_BYTES, "[");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *value = json_array_get(list, i);
        if (!json_is_integer(value))
            return false;
        used += (size_t)snprintf(ret + used, DPT_CONFIG_SIZE_BYTES - used, "%s%lld",
                                 i > 0 ? ", " : "", (long long)json_integer_value(value));
        if (used >= DPT_CONFIG_SIZE_BYTES - 1)
            return false;
    }
    (void)snprintf(ret + used, DPT_CONFIG_SIZE_BYTES - used, "]");
    return json_is_array(list);
}

/* Formats a value as the config writes it. False: the value does not have the key's type. */
static bool value_text(enum dpt_key_type type, const json_t *value, char ret[DPT_CONFIG_SIZE_BYTES])
{
    _Static_assert((int)DPT_CONFIG_SIZE_BYTES >= (int)DPT_DOUBLE_TEXT_BYTES, "a number fits");
    if (type == DPT_KEY_STEPS)
        return list_text(value, ret);
    if (type == DPT_KEY_CHOICE) {
        (void)snprintf(ret, DPT_CONFIG_SIZE_BYTES, "%s",
                       json_is_string(value) ? json_string_value(value) : "");
        return ret[0] != '\0' && strpbrk(ret, "{}[],:#&*!|>'\"%@`") == NULL;
    }
    if (json_is_integer(value))
        (void)snprintf(ret, DPT_CONFIG_SIZE_BYTES, "%lld", (long long)json_integer_value(value));
    else if (json_is_real(value))
        dpt_format_double(json_real_value(value), ret);
    else if (json_is_boolean(value))
        (void)snprintf(ret, DPT_CONFIG_SIZE_BYTES, "%s", json_is_true(value) ? "true" : "false");
    else
        return false;
    return true;
}

/* The words of an error for a value that is not of the key's type. */
static const char *kind_text(enum dpt_key_type type)
{
    if (type == DPT_KEY_STEPS)
        return "no list of a few integers";
    return type == DPT_KEY_CHOICE ? "no word" : "no number and no truth value";
}

static enum dpt_status read_member(struct reading *r, const json_t *object,
                                   const struct member *member, struct dpt_err *err)
{
    const json_t *value = json_object_get(object, member->name);
    const enum dpt_key_type type = key_of(member)->type;
    char text[DPT_CONFIG_SIZE_BYTES], odd[DPT_HF_SHOWN_BYTES];
    if (!value || json_is_null(value)) {
        if (!member->usual)
            return dpt_fail(err, DPT_ECONFIG, "'%s': it has no %s", r->path, member->name);
        note_said_key(r->said, member->key, member->name, member->usual);
        return DPT_OK;
    }
    if (!value_text(type, value, text))
        return dpt_fail(err, DPT_ECONFIG, "'%s': %s is %s, which is %s", r->path, member->name,
                        dpt_hf_json_shown(value, odd), kind_text(type));
    note_said_key(r->said, member->key, member->name, text);
    return DPT_OK;
}

static enum dpt_status check_constant(const struct reading *r, const struct constant *constant,
                                      struct dpt_err *err)
{
    const json_t *is = json_object_get(r->root, constant->name);
    char odd[DPT_HF_SHOWN_BYTES];
    if (!is)
        return DPT_OK;
    json_t *ours = json_loads(constant->value, JSON_DECODE_ANY, NULL);
    DPT_ASSERT(ours); /* the table is part of the program */
    const bool same = json_is_number(is) && json_is_number(ours)
                          ? json_number_value(is) == json_number_value(ours)
                          : json_equal(is, ours) == 1;
    json_decref(ours);
    return same ? DPT_OK
                : dpt_fail(err, DPT_ECONFIG, "'%s': %s is %s, only %s is supported", r->path,
                           constant->name, dpt_hf_json_shown(is, odd), constant->value);
}

/* The inner width of GPT-2's MLP is four times n_embd; n_inner is null or this number. */
static enum dpt_status check_inner(const struct reading *r, struct dpt_err *err)
{
    const json_t *inner = json_object_get(r->root, "n_inner");
    const json_t *embd = json_object_get(r->root, "n_embd");
    char odd[DPT_HF_SHOWN_BYTES];
    if (!inner || json_is_null(inner) ||
        (json_is_integer(inner) && json_is_integer(embd) &&
         json_integer_value(inner) % MLP_FACTOR == 0 &&
         json_integer_value(inner) / MLP_FACTOR == json_integer_value(embd)))
        return DPT_OK;
    return dpt_fail(err, DPT_ECONFIG, "'%s': n_inner is %s, only null and %d n_embd are supported",
                    r->path, dpt_hf_json_shown(inner, odd), MLP_FACTOR);
}

static enum dpt_status read_rope(struct reading *r, struct dpt_err *err)
{
    const json_t *parameters = json_object_get(r->root, "rope_parameters");
    const bool newer = json_is_object(parameters);
    const json_t *scaling = newer ? parameters : json_object_get(r->root, "rope_scaling");
    const json_t *type = json_object_get(scaling, "rope_type");
    char odd[DPT_HF_SHOWN_BYTES];
    if (!type)
        type = json_object_get(scaling, "type");
    DPT_TRY(read_member(r, json_object_get(parameters, rope_theta.name) ? parameters : r->root,
                        &rope_theta, err));
    const char *word = json_string_value(type);
    if (!scaling || json_is_null(scaling) || (newer && !type) ||
        (word && strcmp(word, "default") == 0)) {
        note_said_key(r->said, "model.rope_scaling", newer ? "rope_parameters" : "rope_scaling",
                      "none");
        return DPT_OK;
    }
    if (!word || strcmp(word, "llama3") != 0)
        return dpt_fail(err, DPT_ECONFIG,
                        "'%s': %s is %s, only the rope_types default and llama3 are supported",
                        r->path, newer ? "rope_parameters" : "rope_scaling",
                        dpt_hf_json_shown(scaling, odd));
    note_said_key(r->said, "model.rope_scaling", "rope_type", "llama3");
    for (int i = 0; i < COUNT(rope_members); i++)
        DPT_TRY(read_member(r, scaling, &rope_members[i], err));
    return DPT_OK;
}

static enum dpt_status read_root(struct reading *r, struct dpt_err *err)
{
    const json_t *type = json_object_get(r->root, "model_type");
    const char *word = json_string_value(type);
    const struct family *family = word ? family_of_type(word) : NULL;
    char odd[DPT_HF_SHOWN_BYTES];
    if (!family)
        return dpt_fail(err, DPT_ECONFIG,
                        "'%s': model_type is %s; weights of gpt2 and llama are read, and of "
                        "torchvision_resnet",
                        r->path, type ? dpt_hf_json_shown(type, odd) : "not there");
    note_said_key(r->said, "model.name", "model_type", family->name);
    for (int i = 0; i < family->n_constants; i++)
        if (family->constants[i].checked)
            DPT_TRY(check_constant(r, &family->constants[i], err));
    for (int i = 0; i < family->n_members; i++)
        if (!family->members[i].written_only)
            DPT_TRY(read_member(r, r->root, &family->members[i], err));
    if (!has_tokens(family))
        return DPT_OK;
    if (is_llama(family))
        return read_rope(r, err);
    static const struct constant by_layer = {"scale_attn_by_inverse_layer_idx", "false", true};
    DPT_TRY(check_constant(r, &by_layer, err));
    return check_inner(r, err);
}

enum dpt_status dpt_hf_config_read(const char *path, struct dpt_config_sizes *ret,
                                   struct dpt_err *err)
{
    struct dpt_config_sizes said = {.binding = true};
    json_t *root;
    DPT_TRY(dpt_hf_json_load(path, &root, err));
    (void)snprintf(said.source, sizeof said.source, "'%s'", path);
    struct reading r = {.path = path, .root = root, .said = &said};
    enum dpt_status status = read_root(&r, err);
    json_decref(root);
    if (status == DPT_OK)
        *ret = said;
    return status;
}

bool dpt_hf_config_has_tokens(const struct dpt_config_sizes *said)
{
    const struct family *family = NULL;
    for (int i = 0; i < said->n; i++)
        if (strcmp(said->key[i].key, "model.name") == 0)
            family = family_of(said->key[i].value);
    DPT_ASSERT(family);
    return has_tokens(family);
}

static void say_saved(struct dpt_config_sizes *said, const struct dpt_config *saved,
                      const struct member *member)
{
    char value[DPT_CONFIG_VALUE_BYTES];
    dpt_config_key_format(key_of(member), saved, value);
    note_said_key(said, member->key, member->key, value);
}

void dpt_hf_config_said(const struct dpt_config *saved, const char *source,
                        struct dpt_config_sizes *ret)
{
    static const struct member scaling = {"rope_scaling", "model.rope_scaling", NULL, false};
    const struct family *family = family_of(saved->model.name);
    *ret = (struct dpt_config_sizes){.binding = false};
    (void)snprintf(ret->source, sizeof ret->source, "%s", source);
    if (!family)
        return;
    note_said_key(ret, "model.name", "model.name", family->name);
    for (int i = 0; i < family->n_members; i++)
        if (!family->members[i].written_only)
            say_saved(ret, saved, &family->members[i]);
    if (!is_llama(family))
        return;
    say_saved(ret, saved, &rope_theta);
    say_saved(ret, saved, &scaling);
    for (int i = 0; i < COUNT(rope_members); i++)
        say_saved(ret, saved, &rope_members[i]);
}

/* ---- writing ---- */

static json_t *list_of(const struct dpt_config_steps *numbers)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < numbers->n; i++)
        if (json_array_append_new(list, json_integer(numbers->step[i])) != 0) {
            json_decref(list);
            return NULL;
        }
    return list;
}

/* NULL: no memory. */
static json_t *member_json(const struct member *member, const struct dpt_config *config)
{
    const struct dpt_key *key = key_of(member);
    const void *at = (const char *)config + key->offset;
    switch (key->type) {
    case DPT_KEY_CHOICE:
        return json_string(dpt_config_key_choice(key, config)->name);
    case DPT_KEY_STEPS:
        return list_of(at);
    case DPT_KEY_INT:
        return json_integer(*(const int *)at);
    case DPT_KEY_DOUBLE:
        return json_real(*(const double *)at);
    default:
        DPT_ASSERT(key->type == DPT_KEY_BOOL);
        return json_boolean(*(const bool *)at);
    }
}

/* json_object_set_new takes the value, and also fails if it is NULL. */
static bool write_members(json_t *object, const struct member *members, int n,
                          const struct dpt_config *config)
{
    for (int i = 0; i < n; i++)
        if (json_object_set_new(object, members[i].name, member_json(&members[i], config)) != 0)
            return false;
    return true;
}

static bool write_rope(json_t *root, const struct dpt_config *config)
{
    const bool scaled = config->model.rope_scaling == DPT_ROPE_SCALING_LLAMA3;
    json_t *scaling = scaled ? json_pack("{s:s}", "rope_type", "llama3") : json_null();
    if (scaled && scaling && !write_members(scaling, rope_members, COUNT(rope_members), config)) {
        json_decref(scaling);
        return false;
    }
    return json_object_set_new(root, "rope_scaling", scaling) == 0 &&
           write_members(root, &rope_theta, 1, config);
}

static bool write_root(json_t *root, const struct family *family, const struct dpt_config *config,
                       const struct dpt_hf_beside *beside, const char *dtype)
{
    const bool labels = config->model.labels > 0, tokens = has_tokens(family);
    const char *architecture = labels ? family->classifier : family->next_token;
    if (json_object_set_new(root, "model_type", json_string(family->type)) != 0 ||
        json_object_set_new(root, "architectures", json_pack("[s]", architecture)) != 0 ||
        json_object_set_new(root, "torch_dtype", json_string(dtype)) != 0 ||
        (labels && !dpt_hf_labels_write(beside->label_names, config->model.labels, root)) ||
        (labels && tokens && !dpt_hf_pad_write(config, root)))
        return false;
    for (int i = 0; i < family->n_constants; i++)
        if (json_object_set_new(root, family->constants[i].name,
                                json_loads(family->constants[i].value, JSON_DECODE_ANY, NULL)) != 0)
            return false;
    if (!write_members(root, family->members, family->n_members, config))
        return false;
    if (is_llama(family))
        return write_rope(root, config);
    return !tokens || dpt_hf_end_of_text_write(config, root);
}

enum dpt_status dpt_hf_config_print(const struct dpt_config *config,
                                    const struct dpt_hf_beside *beside, const char *dtype,
                                    char **ret_json, struct dpt_err *err)
{
    const struct family *family = family_of(config->model.name);
    if (!family)
        return dpt_fail(err, DPT_ECONFIG, "model.name: '%s' has no config.json",
                        config->model.name);
    json_t *root = json_object();
    const bool written = root && write_root(root, family, config, beside, dtype) &&
                         (!beside->tokens || !has_tokens(family) ||
                          dpt_hf_tokens_write(beside->tokens, config->model.labels == 0, root));
    char *text = written
                     ? json_dumps(root, JSON_INDENT(2) | JSON_SORT_KEYS | JSON_REAL_PRECISION(12))
                     : NULL;
    json_decref(root);
    if (text == NULL)
        return dpt_fail_nomem(err, "config.json of the model");
    *ret_json = text;
    return DPT_OK;
}
