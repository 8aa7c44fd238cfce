/* state.json and the index (state_json.h). */
#include "checkpoint/state_json.h"

#include "base/parse.h"
#include "checkpoint/names.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void dpt_state_json_fini(struct dpt_state_json *copy)
{
    free(copy->history_json);
    json_decref(copy->root);
    *copy = (struct dpt_state_json){0};
}

/* Adds the members that only some states have. False: out of memory, or a string is not UTF-8. */
static bool add_optional_members(json_t *root, const struct dpt_checkpoint_state *state)
{
    int failed = 0;
    if (state->scaler.scale != 0 || state->scaler.good_steps != 0 ||
        state->scaler.skipped_steps != 0)
        failed |= json_object_set_new(
            root, "scaler",
            json_pack("{s:f, s:I, s:I, s:I}", "scale", state->scaler.scale, "good_steps",
                      (json_int_t)state->scaler.good_steps, "skipped_steps",
                      (json_int_t)state->scaler.skipped_steps, "diverged_in_row",
                      (json_int_t)state->scaler.diverged_in_row));
    if (state->epoch.has)
        failed |= json_object_set_new(
            root, "epoch",
            json_pack("{s:I, s:I, s:f, s:I, s:f}", "from", (json_int_t)state->epoch.from,
                      "finite_steps", (json_int_t)state->epoch.finite_steps, "loss_sum",
                      state->epoch.loss_sum, "timed_steps", (json_int_t)state->epoch.timed_steps,
                      "seconds", state->epoch.seconds));
    if (state->has_val_loss)
        failed |= json_object_set_new(root, "val_loss", json_real(state->val_loss));
    if (state->rescue.node)
        failed |= json_object_set_new(root, "rescue",
                                      json_pack("{s:s, s:s, s:I}", "run", state->rescue.run, "node",
                                                state->rescue.node, "generation",
                                                (json_int_t)state->rescue.generation));
    return failed == 0;
}

enum dpt_status dpt_state_json_print(const struct dpt_checkpoint_state *state, char **ret_text,
                                     struct dpt_err *err)
{
    json_error_t why;
    json_t *history = json_loads(state->history_json, JSON_REJECT_DUPLICATES, &why);
    if (!json_is_array(history)) {
        json_decref(history);
        return dpt_fail(err, DPT_EINVAL, "the run's history is not a JSON array");
    }
    char seed[24]; /* as text: JSON numbers of 64 bits without sign are not portable */
    (void)snprintf(seed, sizeof seed, "%" PRIu64, state->seed);
    json_t *root =
        json_pack_ex(&why, 0, "{s:i, s:I, s:I, s:s, s:s, s:s*, s:s*, s:s, s:o}", "version",
                     (int)DPT_CHECKPOINT_VERSION, "step", (json_int_t)state->step, "samples",
                     (json_int_t)state->samples, "seed", seed, "weights_hash", state->weights_hash,
                     "data_digest", state->data_digest, "fingerprint", state->fingerprint,
                     "config_yaml", state->config_yaml, "history", history);
    if (!root)
        return dpt_fail(err, DPT_EINVAL, "the run's state does not fit JSON: %s", why.text);
    char *text = add_optional_members(root, state) ? json_dumps(root, JSON_INDENT(1)) : NULL;
    json_decref(root);
    if (!text)
        return dpt_fail_nomem(err, "the run's state");
    *ret_text = text;
    return DPT_OK;
}

/* The trainer checks the range of these numbers. */
static enum dpt_status parse_scaler(json_t *root, struct dpt_checkpoint_state *state,
                                    struct dpt_err *err)
{
    json_t *scaler = json_object_get(root, "scaler");
    json_int_t good, skipped, diverged = 0; /* absent in older checkpoints */
    json_error_t why;
    if (!scaler)
        return DPT_OK;
    if (json_unpack_ex(scaler, &why, 0, "{s:F, s:I, s:I, s?I}", "scale", &state->scaler.scale,
                       "good_steps", &good, "skipped_steps", &skipped, "diverged_in_row",
                       &diverged) != 0)
        return dpt_fail(err, DPT_ECORRUPT, "'" DPT_NAME_STATE "': scaler: %s", why.text);
    state->scaler.good_steps = good;
    state->scaler.skipped_steps = skipped;
    state->scaler.diverged_in_row = diverged;
    return DPT_OK;
}

static enum dpt_status parse_epoch(json_t *root, struct dpt_checkpoint_state *state,
                                   struct dpt_err *err)
{
    json_t *epoch = json_object_get(root, "epoch");
    json_int_t from, finite, timed;
    json_error_t why;
    if (!epoch)
        return DPT_OK;
    if (json_unpack_ex(epoch, &why, 0, "{s:I, s:I, s:F, s:I, s:F}", "from", &from, "finite_steps",
                       &finite, "loss_sum", &state->epoch.loss_sum, "timed_steps", &timed,
                       "seconds", &state->epoch.seconds) != 0)
        return dpt_fail(err, DPT_ECORRUPT, "'" DPT_NAME_STATE "': epoch: %s", why.text);
    if (from < 0 || from >= state->step || finite < 0 || finite > state->step - from || timed < 0 ||
        timed > state->step - from || !(state->epoch.seconds >= 0))
        return dpt_fail(err, DPT_ECORRUPT, "'" DPT_NAME_STATE "': epoch: a number is out of range");
    state->epoch.has = true;
    state->epoch.from = from;
    state->epoch.finite_steps = finite;
    state->epoch.timed_steps = timed;
    return DPT_OK;
}

static enum dpt_status parse_rescue(json_t *root, struct dpt_checkpoint_state *state,
                                    struct dpt_err *err)
{
    json_t *rescue = json_object_get(root, "rescue");
    json_int_t generation;
    json_error_t why;
    if (!rescue)
        return DPT_OK;
    if (json_unpack_ex(rescue, &why, 0, "{s:s, s:s, s:I}", "run", &state->rescue.run, "node",
                       &state->rescue.node, "generation", &generation) != 0)
        return dpt_fail(err, DPT_ECORRUPT, "'" DPT_NAME_STATE "': rescue: %s", why.text);
    state->rescue.generation = (uint64_t)generation;
    return DPT_OK;
}

static enum dpt_status parse_state(json_t *root, struct dpt_checkpoint_state *state,
                                   struct dpt_err *err)
{
    int version;
    json_int_t step, samples;
    const char *seed;
    json_t *history, *val_loss = NULL;
    json_error_t why;
    if (json_unpack_ex(root, &why, 0, "{s:i}", "version", &version) != 0)
        return dpt_fail(err, DPT_ECORRUPT, "'" DPT_NAME_STATE "': %s", why.text);
    if (version != DPT_CHECKPOINT_VERSION)
        return dpt_fail(err, DPT_EVERSION,
                        "'" DPT_NAME_STATE "' has version %d, this program reads version %d",
                        version, DPT_CHECKPOINT_VERSION);
    if (json_unpack_ex(root, &why, 0, "{s:I, s:I, s:s, s:s, s?s, s?s, s:s, s:o, s?o}", "step",
                       &step, "samples", &samples, "seed", &seed, "weights_hash",
                       &state->weights_hash, "data_digest", &state->data_digest, "fingerprint",
                       &state->fingerprint, "config_yaml", &state->config_yaml, "history", &history,
                       "val_loss", &val_loss) != 0)
        return dpt_fail(err, DPT_ECORRUPT, "'" DPT_NAME_STATE "': %s", why.text);
    if (step < 0 || samples < 0 || !json_is_array(history) ||
        dpt_parse_u64(seed, UINT64_MAX, &state->seed, NULL) != DPT_OK ||
        (val_loss && !json_is_number(val_loss)))
        return dpt_fail(err, DPT_ECORRUPT,
                        "'" DPT_NAME_STATE "': step, samples, seed, history or val_loss is out of "
                        "range");
    state->step = step;
    state->samples = samples;
    state->has_val_loss = val_loss != NULL;
    state->val_loss = val_loss ? json_number_value(val_loss) : 0;
    DPT_TRY(parse_scaler(root, state, err));
    DPT_TRY(parse_epoch(root, state, err));
    return parse_rescue(root, state, err);
}

enum dpt_status dpt_state_json_parse(const char *text, size_t bytes, struct dpt_state_json *ret,
                                     struct dpt_err *err)
{
    json_error_t why;
    struct dpt_state_json copy = {.root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &why)};
    if (!copy.root)
        return dpt_fail(err, DPT_ECORRUPT, "'" DPT_NAME_STATE "': line %d: %s", why.line, why.text);
    enum dpt_status status = parse_state(copy.root, &copy.state, err);
    if (status == DPT_OK) {
        copy.history_json = json_dumps(json_object_get(copy.root, "history"), JSON_COMPACT);
        copy.state.history_json = copy.history_json;
        status = copy.history_json ? DPT_OK : dpt_fail_nomem(err, "'" DPT_NAME_STATE "'");
    }
    if (status != DPT_OK)
        dpt_state_json_fini(&copy);
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

enum dpt_status dpt_index_parse(const char *text, size_t bytes, struct dpt_index *ret,
                                struct dpt_err *err)
{
    json_error_t why;
    json_t *map, *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &why);
    json_int_t total;
    if (!root)
        return dpt_fail(err, DPT_ECORRUPT, "'" DPT_NAME_INDEX "': line %d: %s", why.line, why.text);
    const bool fits = json_unpack(root, "{s:{s:I}, s:o}", "metadata", "total_size", &total,
                                  "weight_map", &map) == 0 &&
                      json_is_object(map);
    if (fits)
        *ret = (struct dpt_index){
            .map = json_incref(map), .n = (int)json_object_size(map), .total_bytes = total};
    json_decref(root);
    return fits ? DPT_OK
                : dpt_fail(err, DPT_ECORRUPT,
                           "'" DPT_NAME_INDEX "': no total_size or no weight_map");
}

void dpt_index_fini(struct dpt_index *index)
{
    json_decref(index->map);
    *index = (struct dpt_index){0};
}

enum dpt_status dpt_index_check(const struct dpt_index *index, const char *tensor, const char *file,
                                struct dpt_err *err)
{
    const char *found = json_string_value(json_object_get(index->map, tensor));
    if (!found || strcmp(found, file) != 0)
        return dpt_fail(err, DPT_ECORRUPT,
                        "'" DPT_NAME_INDEX "' maps tensor '%s' to '%.100s', it is in '%s'", tensor,
                        found ? found : "nothing", file);
    return DPT_OK;
}
