/* A bounded JSON array of generations. */
#include "worker/train/state/generation_history.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

void dpt_history_init(struct dpt_history *history)
{
    memcpy(history->json, "[]", sizeof "[]");
}

static enum dpt_status parse_history(const char *json, json_t **ret, struct dpt_err *err)
{
    json_error_t error;
    json_t *array = json_loads(json, JSON_REJECT_DUPLICATES, &error);
    if (!json_is_array(array)) {
        json_decref(array);
        return dpt_fail(err, DPT_ECORRUPT, "the run's history is not a JSON array: %s",
                        array ? "another type" : error.text);
    }
    *ret = array;
    return DPT_OK;
}

/* Prints the array. Drops the oldest entries until the text fits. */
static enum dpt_status print_history(struct dpt_history *history, json_t *array,
                                     struct dpt_err *err)
{
    for (;;) {
        char *text = json_dumps(array, JSON_COMPACT);
        if (!text)
            return dpt_fail_nomem(err, "the run's history");
        size_t bytes = strlen(text) + 1;
        if (bytes <= sizeof history->json)
            memcpy(history->json, text, bytes);
        free(text);
        if (bytes <= sizeof history->json)
            return DPT_OK;
        /* Drops an eighth at a time: printing again for each dropped entry would take too long. */
        for (size_t n = json_array_size(array) / 8 + 1; n > 0; n--)
            if (json_array_remove(array, 0) != 0)
                return dpt_fail(err, DPT_ECORRUPT,
                                "an entry of the run's history is longer than %d bytes",
                                DPT_HISTORY_BYTES);
    }
}

enum dpt_status dpt_history_load(struct dpt_history *history, const char *json, struct dpt_err *err)
{
    json_t *array = NULL;
    DPT_TRY(parse_history(json, &array, err));
    enum dpt_status status = print_history(history, array, err);
    json_decref(array);
    return status;
}

/* Appends `more` (NULL: DPT_ENOMEM) to `array` and prints the result as the history. Takes both
 * arrays. */
static enum dpt_status extend_history(struct dpt_history *history, json_t *array, json_t *more,
                                      struct dpt_err *err)
{
    enum dpt_status status = json_array_extend(array, more) == 0
                                 ? print_history(history, array, err)
                                 : dpt_fail_nomem(err, "the run's history");
    json_decref(more);
    json_decref(array);
    return status;
}

/* ---- generations that the log has and the checkpoint lacks ---- */

static json_int_t integer_of(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

static bool is_kind(const json_t *object, const char *kind)
{
    const char *is = json_string_value(json_object_get(object, "kind"));
    return is && strcmp(is, kind) == 0;
}

/* Makes an entry of a generation's event. NULL: the event has another kind, the line is torn, or
 * there is no memory. */
static json_t *entry_of_event(const char *line, size_t bytes)
{
    json_t *event = json_loadb(line, bytes, 0, NULL), *entry = NULL;
    const char *kind = json_string_value(json_object_get(event, "kind"));
    const char *cause = json_string_value(json_object_get(event, "cause"));
    if (kind && cause && !is_kind(event, "redundancy") &&
        json_is_integer(json_object_get(event, "resume_step")))
        entry = json_pack("{s:I, s:I, s:I, s:s, s:s, s:I}", "generation",
                          integer_of(event, "generation"), "step", integer_of(event, "resume_step"),
                          "world_size", integer_of(event, "world_size"), "kind", kind, "cause",
                          cause, "steps_lost", integer_of(event, "steps_lost"));
    json_decref(event);
    return entry;
}

/* Whether this entry is the last of the history. */
static bool is_last_entry(const json_t *array, const json_t *entry)
{
    const size_t n = json_array_size(array);
    const json_t *last = json_array_get(array, n > 0 ? n - 1 : 0);
    const char *kind = json_string_value(json_object_get(last, "kind"));
    return kind && is_kind(entry, kind) &&
           integer_of(last, "generation") == integer_of(entry, "generation") &&
           integer_of(last, "step") == integer_of(entry, "step");
}

/* Finds the entries of `events` that `array` lacks; NULL: no memory. */
static json_t *find_missing(const json_t *array, const char *events, size_t bytes)
{
    const bool empty = json_array_size(array) == 0;
    json_t *missing = json_array();
    bool found = false, good = missing != NULL;
    for (const char *end; good && (end = memchr(events, '\n', bytes)) != NULL;) {
        json_t *entry = entry_of_event(events, (size_t)(end - events));
        bytes -= (size_t)(end + 1 - events);
        events = end + 1;
        const bool begins = empty && is_kind(entry, "start") && integer_of(entry, "step") == 0;
        const bool meets = !empty && is_last_entry(array, entry);
        if (begins || meets)
            good = json_array_clear(missing) == 0;
        found = found || begins || meets;
        if (entry && found && !meets)
            good = good && json_array_append(missing, entry) == 0;
        json_decref(entry);
    }
    if (good)
        return missing;
    json_decref(missing);
    return NULL;
}

enum dpt_status dpt_history_add_events(struct dpt_history *history, const char *events,
                                       size_t bytes, struct dpt_err *err)
{
    json_t *array = NULL;
    DPT_TRY(parse_history(history->json, &array, err));
    return extend_history(history, array, find_missing(array, events, bytes), err);
}

struct dpt_history_totals dpt_history_totals(const struct dpt_history *history)
{
    static const char *const kinds[] = {"rank_lost", "node_lost", "comm_error", "stalled",
                                        "server_restart"};
    struct dpt_history_totals totals = {0, 0};
    json_t *array = json_loads(history->json, 0, NULL);
    for (size_t i = 0; i < json_array_size(array); i++) {
        const json_t *entry = json_array_get(array, i);
        const int64_t lost = integer_of(entry, "steps_lost");
        for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++)
            totals.recoveries += is_kind(entry, kinds[k]);
        if (lost > 0 && lost <= INT64_MAX - totals.steps_lost)
            totals.steps_lost += lost;
    }
    json_decref(array);
    return totals;
}

enum dpt_status dpt_history_append(struct dpt_history *history, const struct dpt_history_entry *e,
                                   struct dpt_err *err)
{
    json_t *array = NULL;
    DPT_TRY(parse_history(history->json, &array, err));
    json_t *more =
        json_pack("[{s:I, s:I, s:i, s:s, s:s, s:I}]", "generation", (json_int_t)e->generation,
                  "step", (json_int_t)e->step, "world_size", e->world_size, "kind", e->kind,
                  "cause", e->cause, "steps_lost", (json_int_t)e->steps_lost);
    return extend_history(history, array, more, err);
}
