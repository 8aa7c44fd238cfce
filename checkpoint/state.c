/* state.json and the index (state.h). */
#include "checkpoint/state.h"

#include "checkpoint/names.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void dpt_state_fini(struct dpt_state_copy *copy)
{
    free(copy->history_json);
    json_decref(copy->root);
    *copy = (struct dpt_state_copy){0};
}

static bool add_scaler(json_t *root, const struct dpt_checkpoint_state *state)
{
    if (state->scaler.scale == 0 && state->scaler.good_steps == 0 &&
        state->scaler.skipped_steps == 0)
        return true;
    json_t *scaler = json_pack("{s:f, s:I, s:I, s:I}", "scale", state->scaler.scale, "good_steps",
                               (json_int_t)state->scaler.good_steps, "skipped_steps",
                               (json_int_t)state->scaler.skipped_steps, "diverged_in_row",
                               (json_int_t)state->scaler.diverged_in_row);
    return scaler && json_object_set_new(root, "scaler", scaler) == 0;
}

static bool add_epoch(json_t *root, const struct dpt_checkpoint_state *state)
{
    if (!state->epoch.has)
        return true;
    json_t *epoch = json_pack(
        "{s:I, s:I, s:f, s:I, s:f}", "from", (json_int_t)state->epoch.from, "finite_steps",
        (json_int_t)state->epoch.finite_steps, "loss_sum", state->epoch.loss_sum, "timed_steps",
        (json_int_t)state->epoch.timed_steps, "seconds", state->epoch.seconds);
    return epoch && json_object_set_new(root, "epoch", epoch) == 0;
}

static bool add_val_loss(json_t *root, const struct dpt_checkpoint_state *state)
{
    return !state->has_val_loss ||
           json_object_set_new(root, "val_loss", json_real(state->val_loss)) == 0;
}

static bool add_rescue(json_t *root, const struct dpt_checkpoint_state *state)
{
    if (!state->rescue.node)
        return true;
    json_t *rescue =
        json_pack("{s:s, s:s, s:I}", "run", state->rescue.run, "node", state->rescue.node,
                  "generation", (json_int_t)state->rescue.generation);
    return rescue && json_object_set_new(root, "rescue", rescue) == 0;
}

enum dpt_status dpt_state_print(const struct dpt_checkpoint_state *state, char **ret_text,
                                struct dpt_err *err)
{
    json_error_t why;
    json_t *history = json_loads(state->history_json, JSON_REJECT_DUPLICATES, &why);
    if (!json_is_array(history)) {
        json_decref(history);
        return dpt_fail(err, DPT_EINVAL, "the run's history is no JSON array");
    }
    char seed[24]; /* as text: JSON numbers of 64 bits without sign are not portable */
    (void)snprintf(seed, sizeof seed, "%" PRIu64, state->seed);
    json_t *root =
        json_pack_ex(&why, 0, "{s:i, s:I, s:I, s:s, s:s, s:s*, s:s*, s:s, s:o}", "version",
                     (int)DPT_CHECKPOINT_VERSION, "step", (json_int_t)state->step, "samples",
                     (json_int_t)state->samples, "seed", seed, "weights_hash", state->weights_hash,
                     "data_digest", state->data_digest, "fingerprint", state->fingerprint,
                     "config_yaml", state->config_yaml, "history", history);
    if (root && !(add_scaler(root, state) && add_epoch(root, state) && add_val_loss(root, state) &&
                  add_rescue(root, state))) {
        json_decref(root);
        return dpt_fail_nomem(err, "the run's state");
    }
    if (!root)
        return dpt_fail(err, DPT_EINVAL, "the run's state does not fit JSON: %s", why.text);
    char *text = json_dumps(root, JSON_INDENT(1));
    json_decref(root);
    if (!text)
        return dpt_fail_nomem(err, "the run's state");
    *ret_text = text;
    return DPT_OK;
}

/* A decimal number of 64 bits and nothing else. */
static bool parse_seed(const char *text, uint64_t *ret)
{
    uint64_t value = 0;
    const char *at = text;
    for (; *at >= '0' && *at <= '9'; at++)
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, (uint64_t)(*at - '0'), &value))
            return false;
    *ret = value;
    return at != text && *at == '\0';
}

/* The trainer checks whether a scaler can have these numbers. */
static enum dpt_status parse_scaler(json_t *root, const char *what,
                                    struct dpt_checkpoint_state *state, struct dpt_err *err)
{
    json_t *scaler = json_object_get(root, "scaler");
    json_int_t good, skipped, diverged = 0; /* absent in older checkpoints */
    json_error_t why;
    if (!scaler)
        return DPT_OK;
    if (json_unpack_ex(scaler, &why, 0, "{s:F, s:I, s:I, s?I}", "scale", &state->scaler.scale,
                       "good_steps", &good, "skipped_steps", &skipped, "diverged_in_row",
                       &diverged) != 0)
        return dpt_fail(err, DPT_ECORRUPT, "'%s': scaler: %s", what, why.text);
    state->scaler.good_steps = good;
    state->scaler.skipped_steps = skipped;
    state->scaler.diverged_in_row = diverged;
    return DPT_OK;
}

static enum dpt_status parse_epoch(json_t *root, const char *what,
                                   struct dpt_checkpoint_state *state, struct dpt_err *err)
{
    json_t *epoch = json_object_get(root, "epoch");
    json_int_t from, finite, timed;
    json_error_t why;
    if (!epoch)
        return DPT_OK;
    if (json_unpack_ex(epoch, &why, 0, "{s:I, s:I, s:F, s:I, s:F}", "from", &from, "finite_steps",
                       &finite, "loss_sum", &state->epoch.loss_sum, "timed_steps", &timed,
                       "seconds", &state->epoch.seconds) != 0)
        return dpt_fail(err, DPT_ECORRUPT, "'%s': epoch: %s", what, why.text);
    if (from < 0 || from >= state->step || finite < 0 || finite > state->step - from || timed < 0 ||
        timed > state->step - from || !(state->epoch.seconds >= 0))
        return dpt_fail(err, DPT_ECORRUPT, "'%s': epoch: a number is out of range", what);
    state->epoch.has = true;
    state->epoch.from = from;
    state->epoch.finite_steps = finite;
    state->epoch.timed_steps = timed;
    return DPT_OK;
}

static enum dpt_status parse_rescue(json_t *root, const char *what,
                                    struct dpt_checkpoint_state *state, struct dpt_err *err)
{
    json_t *rescue = json_object_get(root, "rescue");
    json_int_t generation;
    json_error_t why;
    if (!rescue)
        return DPT_OK;
    if (json_unpack_ex(rescue, &why, 0, "{s:s, s:s, s:I}", "run", &state->rescue.run, "node",
                       &state->rescue.node, "generation", &generation) != 0)
        return dpt_fail(err, DPT_ECORRUPT, "'%s': rescue: %s", what, why.text);
    state->rescue.generation = (uint64_t)generation;
    return DPT_OK;
}

static enum dpt_status parse_state(json_t *root, const char *what,
                                   struct dpt_checkpoint_state *state, struct dpt_err *err)
{
    int version;
    json_int_t step, samples;
    const char *seed;
    json_t *history, *val_loss = NULL;
    json_error_t why;
    if (json_unpack_ex(root, &why, 0, "{s:i}", "version", &version) != 0)
        return dpt_fail(err, DPT_ECORRUPT, "'%s': %s", what, why.text);
    if (version != DPT_CHECKPOINT_VERSION)
        return dpt_fail(err, DPT_EVERSION, "'%s' has version %d, this program reads version %d",
                        what, version, DPT_CHECKPOINT_VERSION);
    if (json_unpack_ex(root, &why, 0, "{s:I, s:I, s:s, s:s, s?s, s?s, s:s, s:o, s?o}", "step",
                       &step, "samples", &samples, "seed", &seed, "weights_hash",
                       &state->weights_hash, "data_digest", &state->data_digest, "fingerprint",
                       &state->fingerprint, "config_yaml", &state->config_yaml, "history", &history,
                       "val_loss", &val_loss) != 0)
        return dpt_fail(err, DPT_ECORRUPT, "'%s': %s", what, why.text);
    if (step < 0 || samples < 0 || !json_is_array(history) || !parse_seed(seed, &state->seed) ||
        (val_loss && !json_is_number(val_loss)))
        return dpt_fail(err, DPT_ECORRUPT,
                        "'%s': step, samples, seed, history or val_loss is out of range", what);
    state->step = step;
    state->samples = samples;
    state->has_val_loss = val_loss != NULL;
    state->val_loss = val_loss ? json_number_value(val_loss) : 0;
    DPT_TRY(parse_scaler(root, what, state, err));
    DPT_TRY(parse_epoch(root, what, state, err));
    return parse_rescue(root, what, state, err);
}

enum dpt_status dpt_state_parse(const char *text, size_t bytes, const char *what,
                                struct dpt_state_copy *ret, struct dpt_err *err)
{
    json_error_t why;
    struct dpt_state_copy copy = {.root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &why)};
    if (!copy.root)
        return dpt_fail(err, DPT_ECORRUPT, "'%s': line %d: %s", what, why.line, why.text);
    enum dpt_status status = parse_state(copy.root, what, &copy.state, err);
    if (status == DPT_OK) {
        copy.history_json = json_dumps(json_object_get(copy.root, "history"), JSON_COMPACT);
        copy.state.history_json = copy.history_json;
        status = copy.history_json ? DPT_OK : dpt_fail_nomem(err, "'%s'", what);
    }
    if (status != DPT_OK)
        dpt_state_fini(&copy);
    else
        *ret = copy;
    return status;
}

enum dpt_status dpt_index_print(const struct dpt_checkpoint_tensor *tensors,
                                const struct dpt_files *files, char **ret_text, struct dpt_err *err)
{
    enum dpt_status status = DPT_OK;
    int64_t total = 0;
    char *text = NULL;
    json_t *map = json_object(), *root = NULL;
    for (int number = 0; number < files->n; number++) {
        const struct dpt_file_layout *file = &files->file[number];
        char name[DPT_CHECKPOINT_NAME_BYTES];
        dpt_files_name(files, DPT_KIND_PARAM, number, name);
        total += file->bytes - (int64_t)file->head_bytes;
        for (int i = file->first; i < file->end; i++)
            if (json_object_set_new(map, tensors[i].name, json_string(name)) != 0) {
                status = dpt_fail(err, DPT_EINVAL, "tensor '%s' does not fit a JSON index",
                                  tensors[i].name);
                goto out;
            }
    }
    root =
        json_pack("{s:{s:I}, s:O}", "metadata", "total_size", (json_int_t)total, "weight_map", map);
    text = root ? json_dumps(root, JSON_INDENT(2)) : NULL;
    if (!text)
        status = dpt_fail_nomem(err, "index of tensors");
    else
        *ret_text = text;
out:
    json_decref(root);
    json_decref(map);
    return status;
}

struct dpt_index {
    json_t *root, *map;
    int64_t total;
    char *what;
};

enum dpt_status dpt_index_parse(const char *text, size_t bytes, const char *what,
                                struct dpt_index **ret, struct dpt_err *err)
{
    json_error_t why;
    json_t *map, *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &why);
    json_int_t total;
    if (!root)
        return dpt_fail(err, DPT_ECORRUPT, "'%s': line %d: %s", what, why.line, why.text);
    if (json_unpack_ex(root, &why, 0, "{s:{s:I}, s:o}", "metadata", "total_size", &total,
                       "weight_map", &map) != 0 ||
        !json_is_object(map)) {
        json_decref(root);
        return dpt_fail(err, DPT_ECORRUPT, "'%s': no total_size or no weight_map", what);
    }
    struct dpt_index *index = calloc(1, sizeof *index);
    char *copy = strdup(what);
    if (!index || !copy) {
        free(index);
        free(copy);
        json_decref(root);
        return dpt_fail_nomem(err, "'%s'", what);
    }
    *index = (struct dpt_index){.root = root, .map = map, .total = total, .what = copy};
    *ret = index;
    return DPT_OK;
}

enum dpt_status dpt_index_check(const struct dpt_index *index, const char *tensor, const char *file,
                                struct dpt_err *err)
{
    const char *found = json_string_value(json_object_get(index->map, tensor));
    if (!found || strcmp(found, file) != 0)
        return dpt_fail(err, DPT_ECORRUPT, "'%s' maps tensor '%s' to '%.100s', it is in '%s'",
                        index->what, tensor, found ? found : "nothing", file);
    return DPT_OK;
}

int64_t dpt_index_total_bytes(const struct dpt_index *index)
{
    return index->total;
}

int dpt_index_n(const struct dpt_index *index)
{
    return (int)json_object_size(index->map);
}

void dpt_index_destroy(struct dpt_index **index)
{
    if (!*index)
        return;
    json_decref((*index)->root);
    free((*index)->what);
    free(*index);
    *index = NULL;
}
