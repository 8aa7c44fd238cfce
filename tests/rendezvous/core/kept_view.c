/* Durable state, field by field; records with all they point to. */
#include "tests/rendezvous/core/kept_view.h"

#include "rendezvous/core/kept.h"
#include "rendezvous/core/record.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char text[512];

static const char *differ(const char *fmt, ...) DPT_PRINTF(1, 2);
static const char *differ(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return text;
}

#define SAME_NUMBER(run, a, b, field)                                                              \
    if ((a)->field != (b)->field)                                                                  \
    return differ("run %s: " #field " is %lld and %lld", (run), (long long)(a)->field,             \
                  (long long)(b)->field)
#define SAME_TEXT(run, a, b, field)                                                                \
    if (strcmp((a)->field, (b)->field) != 0)                                                       \
    return differ("run %s: " #field " is '%.100s' and '%.100s'", (run), (a)->field, (b)->field)

/* ---- one run ---- */

static const char *spec_difference(const char *run, const Dpt__RunSpec *a, const Dpt__RunSpec *b)
{
    SAME_NUMBER(run, a, b, min_nodes);
    SAME_NUMBER(run, a, b, max_nodes);
    SAME_NUMBER(run, a, b, timeout_ms);
    SAME_NUMBER(run, a, b, max_restarts);
    SAME_NUMBER(run, a, b, max_world);
    SAME_TEXT(run, a, b, config_digest);
    SAME_TEXT(run, a, b, config_yaml);
    SAME_TEXT(run, a, b, user);
    SAME_NUMBER(run, a, b, sharded);
    SAME_NUMBER(run, a, b, first_step_ms);
    SAME_NUMBER(run, a, b, wait_ms);
    SAME_NUMBER(run, a, b, one_checkpoint_dir);
    SAME_NUMBER(run, a, b, drain_ms);
    return NULL;
}

/* A place in a plan before the newest one that ran is as none: a journal need not give it back. */
static uint64_t place_that_counts(const struct kept *kept, const struct kept_node *node)
{
    return node->placed_generation < kept->ran ? 0 : node->placed_generation;
}

static const char *nodes_difference(const struct run *of_a, const struct run *of_b)
{
    const char *run = of_a->name;
    const struct kept *a = &of_a->kept, *b = &of_b->kept;
    SAME_NUMBER(run, a, b, n_nodes);
    const struct kept_node *x = a->first, *y = b->first;
    for (; x != NULL && y != NULL; x = x->after, y = y->after) {
        SAME_TEXT(run, x, y, id);
        SAME_NUMBER(run, x, y, id_hash);
        SAME_NUMBER(run, x, y, incarnation);
        if (place_that_counts(a, x) != place_that_counts(b, y))
            return differ("run %s: the place of node %s", run, x->id);
        SAME_NUMBER(run, x, y, health.checked);
        SAME_NUMBER(run, x, y, health.check_us);
        SAME_NUMBER(run, x, y, health.memory_bytes);
        SAME_NUMBER(run, x, y, health.cores);
        SAME_NUMBER(run, x, y, health.mflops);
        SAME_NUMBER(run, x, y, health.round_trip_us);
        if (memcmp(x->secret, y->secret, sizeof x->secret) != 0 ||
            memcmp(x->key, y->key, sizeof x->key) != 0)
            return differ("run %s: secrets or keys of node %s", run, x->id);
        if (dpt_rdzv_find_kept(of_a, x->id) != x || dpt_rdzv_find_kept(of_b, y->id) != y)
            return differ("run %s: the index does not find member %s", run, x->id);
    }
    return x == NULL && y == NULL ? NULL : differ("run %s: the list of members is cut", run);
}

static const char *departed_difference(const char *run, const struct membership *a,
                                       const struct membership *b)
{
    const size_t n = a->n_departed < a->n_departed_room ? a->n_departed : a->n_departed_room;
    SAME_NUMBER(run, a, b, n_departed);
    SAME_NUMBER(run, a, b, n_departed_room);
    SAME_NUMBER(run, a, b, n_awaited);
    for (size_t i = 0; i < n; i++) {
        const struct departed *x = &a->departed[i], *y = &b->departed[i];
        SAME_NUMBER(run, x, y, id_hash);
        SAME_NUMBER(run, x, y, incarnation);
        SAME_NUMBER(run, x, y, released);
        SAME_NUMBER(run, x, y, last_holder);
        SAME_NUMBER(run, x, y, n_nodes);
        SAME_NUMBER(run, x, y, cut_off);
        SAME_NUMBER(run, x, y, awaited);
        SAME_NUMBER(run, x, y, counter_seen);
        if (memcmp(x->secret, y->secret, sizeof x->secret) != 0 ||
            memcmp(x->key, y->key, sizeof x->key) != 0)
            return differ("run %s: secrets or keys of removed node %zu", run, i);
    }
    return NULL;
}

static const char *run_difference(const struct run *a, const struct run *b)
{
    const char *run = a->name;
    SAME_TEXT(run, a, b, fingerprint);
    SAME_TEXT(run, a, b, data_digest);
    SAME_TEXT(run, a, b, checkpoint_dir_id);
    SAME_NUMBER(run, a, b, generation);
    SAME_NUMBER(run, a, b, formation.generation_floor);
    SAME_NUMBER(run, a, b, formation.ran_before);
    SAME_NUMBER(run, a, b, budget.used);
    SAME_NUMBER(run, a, b, budget.incident_generation);
    SAME_TEXT(run, a, b, budget.first_error);
    SAME_NUMBER(run, a, b, progress.saved_step);
    SAME_TEXT(run, a, b, progress.saved_node);
    SAME_TEXT(run, a, b, progress.saved_host);
    SAME_NUMBER(run, a, b, kept.planned);
    SAME_TEXT(run, a, b, kept.plan_digest);
    SAME_NUMBER(run, a, b, kept.ran);
    SAME_NUMBER(run, a, b, kept.granted_generation);
    SAME_NUMBER(run, a, b, kept.granted_step);
    SAME_NUMBER(run, a, b, kept.cause.kind);
    SAME_NUMBER(run, a, b, kept.cause.detect_ms);
    SAME_TEXT(run, a, b, kept.cause.text);
    SAME_NUMBER(run, a, b, kept.ended);
    SAME_NUMBER(run, a, b, kept.failed);
    SAME_NUMBER(run, a, b, kept.paused);
    SAME_NUMBER(run, a, b, kept.stopped);
    SAME_TEXT(run, a, b, end_text);
    if (memcmp(a->kept.definer, b->kept.definer, sizeof a->kept.definer) != 0)
        return differ("run %s: keys of its definer", run);
    const char *found = spec_difference(run, &a->spec, &b->spec);
    found = found != NULL ? found : nodes_difference(a, b);
    return found != NULL ? found : departed_difference(run, &a->membership, &b->membership);
}

const char *kept_difference(const struct dpt_rdzv *a, const struct dpt_rdzv *b)
{
    SAME_NUMBER("", a, b, n_runs);
    SAME_NUMBER("", a, b, n_epochs);
    SAME_NUMBER("", a, b, n_forgotten);
    SAME_NUMBER("", a, b, generation_floor);
    if (memcmp(a->epochs, b->epochs, sizeof a->epochs) != 0)
        return differ("epochs");
    for (size_t i = 0; i < FORGOTTEN_MAX; i++) {
        const struct forgotten_run *x = &a->forgotten[i], *y = &b->forgotten[i];
        SAME_NUMBER("", x, y, name_hash);
        SAME_NUMBER("", x, y, generation);
        SAME_NUMBER("", x, y, run_generation);
        SAME_NUMBER("", x, y, saved_step);
        SAME_TEXT("", x, y, saved_node);
        SAME_TEXT("", x, y, saved_host);
        SAME_NUMBER("", x, y, ended);
        SAME_NUMBER("", x, y, failed);
        SAME_NUMBER("", x, y, stopped);
        SAME_NUMBER("", x, y, left);
    }
    SAME_NUMBER("", a, b, denied.n);
    for (size_t i = 0; i < a->denied.n; i++) {
        const struct denied *x = &a->denied.list[i], *y = &b->denied.list[i];
        SAME_TEXT("", x, y, run);
        SAME_TEXT("", x, y, node);
    }
    for (size_t i = 0; i < a->n_runs; i++) {
        const struct run *other = dpt_rdzv_find_run(b, a->runs[i]->name);
        const char *found = other == NULL ? differ("run %s is missing", a->runs[i]->name)
                                          : run_difference(a->runs[i], other);
        if (found != NULL)
            return found;
    }
    return NULL;
}

/* ---- records ---- */

struct kept_records {
    struct dpt_rdzv_record *list; /* (n) owned copies */
    size_t n, max;
};

struct kept_records *kept_records_create(void)
{
    struct kept_records *records = calloc(1, sizeof *records);
    DPT_ASSERT(records != NULL);
    return records;
}

void kept_records_add(struct kept_records *records, const struct dpt_rdzv_record *record)
{
    if (records->n == records->max) {
        records->max = records->max == 0 ? 64 : 2 * records->max;
        records->list = realloc(records->list, records->max * sizeof records->list[0]);
        DPT_ASSERT(records->list != NULL);
    }
    struct dpt_err err;
    const enum dpt_status status = dpt_rdzv_record_copy(record, &records->list[records->n++], &err);
    DPT_ASSERT(status == DPT_OK);
}

void kept_records_destroy(struct kept_records **records_at)
{
    struct kept_records *records = *records_at;
    *records_at = NULL;
    for (size_t i = 0; records != NULL && i < records->n; i++)
        dpt_rdzv_record_free(&records->list[i]);
    if (records != NULL)
        free(records->list);
    free(records);
}

void kept_records_cut(struct kept_records *records, size_t n)
{
    DPT_ASSERT(n <= records->n);
    while (records->n > n)
        dpt_rdzv_record_free(&records->list[--records->n]);
}

size_t kept_records_count(const struct kept_records *records)
{
    return records->n;
}

const struct dpt_rdzv_record *kept_record_at(const struct kept_records *records, size_t i)
{
    DPT_ASSERT(i < records->n);
    return &records->list[i];
}

bool kept_record_counts(const struct kept_records *records, size_t i)
{
    const struct dpt_rdzv_record *record = kept_record_at(records, i);
    if (record->kind == DPT_RDZV_RECORD_FORGET || record->kind == DPT_RDZV_RECORD_START ||
        record->kind == DPT_RDZV_RECORD_DENIED || record->kind == DPT_RDZV_RECORD_UNHEALTHY)
        return true;
    for (; i < records->n; i++)
        if (records->list[i].kind == DPT_RDZV_RECORD_FORGET &&
            strcmp(records->list[i].run, record->run) == 0)
            return false;
    return true;
}

const char *kept_records_restore(const struct kept_records *records, struct dpt_rdzv *core)
{
    struct dpt_err err;
    for (size_t i = 0; i < records->n; i++)
        if (kept_record_counts(records, i) &&
            dpt_rdzv_restore(core, &records->list[i], &err) != DPT_OK)
            return differ("the journal is refused: %.400s", err.text);
    return NULL;
}
