/* The head of a trace (trace.h). */
#include "worker/report/head.h"

#include "worker/report/trace_text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS_MAX = 1 << 20, COUNT_MAX = 1 << 30 };
static const int64_t base_max_ns = (int64_t)4000000000000000000;

static int64_t integer_of(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_integer(value) ? (int64_t)json_integer_value(value) : REPORT_UNKNOWN;
}

static int number_of_rank(const json_t *object, const char *key, int64_t least)
{
    const int64_t value = integer_of(object, key);
    return value >= least && value <= RANKS_MAX ? (int)value : REPORT_UNKNOWN;
}

/* Rounded up. */
static int64_t clock_error_ns(const json_t *dpt)
{
    const json_t *value = json_object_get(dpt, "clock_error_us");
    const double us = json_is_number(value) ? json_number_value(value) : -1;
    return us >= 0 && us <= 1e12 ? (int64_t)ceil(us * 1000) : REPORT_UNKNOWN;
}

static enum report_fact fact_of(const json_t *dpt, const char *key)
{
    const json_t *value = json_object_get(dpt, key);
    return json_is_true(value)    ? REPORT_FACT_YES
           : json_is_false(value) ? REPORT_FACT_NO
                                  : REPORT_FACT_UNKNOWN;
}

/* A count; 0: not known. */
static int count_of(const json_t *dpt, const char *key)
{
    const int64_t value = integer_of(dpt, key);
    return value > 0 && value <= COUNT_MAX ? (int)value : 0;
}

static struct report_setup setup_of(const json_t *dpt)
{
    const int64_t free_bytes = integer_of(dpt, "memory_free");
    struct report_setup setup = {.hosts = count_of(dpt, "hosts"),
                                 .overlap = fact_of(dpt, "overlap"),
                                 .may_compress = fact_of(dpt, "may_compress"),
                                 .sends_slots = fact_of(dpt, "sends_slots"),
                                 .gathers_units = fact_of(dpt, "gathers_units"),
                                 .global_batch = count_of(dpt, "global_batch"),
                                 .micro_batch = count_of(dpt, "micro_batch"),
                                 .memory_free = free_bytes > 0 ? free_bytes : 0};
    const struct {
        const char *key;
        char *to;
    } words[] = {{"compression", setup.compression},
                 {"activation_checkpointing", setup.activation_checkpointing},
                 {"precision", setup.precision},
                 {"device", setup.device},
                 {"data", setup.data}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        const char *word = json_string_value(json_object_get(dpt, words[i].key));
        (void)snprintf(words[i].to, sizeof setup.data, "%s", word ? word : "");
    }
    return setup;
}

enum dpt_status report_head_parse(const char *path, const char *text, struct report_head *ret,
                                  struct dpt_err *err)
{
    json_error_t why;
    json_t *root = json_loads(text, 0, &why);
    if (!root)
        return dpt_fail(err, DPT_EPROTO, "'%s' is not a trace: its head is not JSON: %s", path,
                        why.text);
    const json_t *ranks = json_object_get(root, "distributedInfo"),
                 *dpt = json_object_get(root, "dpt");
    const char *strategy = json_string_value(json_object_get(dpt, "strategy")),
               *id = json_string_value(json_object_get(dpt, "generation_id"));
    struct report_head head = {.rank = number_of_rank(ranks, "rank", 0),
                               .world_size = number_of_rank(ranks, "world_size", 1),
                               .setup = setup_of(dpt),
                               .is_dpt = json_is_object(dpt),
                               .generation = integer_of(dpt, "generation"),
                               .window = integer_of(dpt, "window"),
                               .clock_error_ns = clock_error_ns(dpt)};
    const int64_t dropped = integer_of(dpt, "dropped_events"),
                  of_gpu = integer_of(dpt, "dropped_device_records"),
                  base_ns = integer_of(root, "baseTimeNanoseconds");
    head.dropped_events = (dropped > 0 ? dropped : 0) + (of_gpu > 0 ? of_gpu : 0);
    head.base_ns = base_ns > 0 && base_ns <= base_max_ns ? base_ns : 0;
    (void)snprintf(head.strategy, sizeof head.strategy, "%s", strategy ? strategy : "");
    (void)snprintf(head.generation_id, sizeof head.generation_id, "%s", id ? id : "");
    json_decref(root);
    *ret = head;
    return DPT_OK;
}

enum dpt_status report_head_read(const char *path, struct report_head *ret, struct dpt_err *err)
{
    char *text;
    DPT_TRY(report_text_read(path, NULL, &text, err));
    const enum dpt_status status = report_head_parse(path, text, ret, err);
    free(text);
    return status;
}
