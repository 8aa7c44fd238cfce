/* The durable state, which records change. */
#include "rendezvous/core/apply.h"

#include "rendezvous/core/kept.h"

#include <stdio.h>
#include <string.h>

static enum dpt_status contradict(struct dpt_err *err, const struct dpt_rdzv_record *record,
                                  const char *why)
{
    return dpt_fail(err, DPT_ECORRUPT, "record %d of run '%s', generation %llu, step %lld: %s",
                    (int)record->kind, record->run, (unsigned long long)record->generation,
                    (long long)record->step, why);
}

/* ---- nodes ---- */

/* This incarnation of a node; NULL: it is not there. */
static struct kept_node *find_incarnation(const struct run *run, const char *id,
                                          uint64_t incarnation)
{
    struct kept_node *node = dpt_rdzv_index_find(&run->kept.ids, dpt_rdzv_id_hash(id));
    return node != NULL && node->incarnation == incarnation ? node : NULL;
}

static enum dpt_status apply_joined(struct run *run, const struct dpt_rdzv_record *record,
                                    struct dpt_err *err)
{
    if (record->node[0] == '\0' || dpt_rdzv_find_kept(run, record->node) != NULL)
        return contradict(err, record, "the node is there already");
    struct kept_node *node = dpt_rdzv_kept_add(&run->kept, record->node);
    if (node == NULL)
        return dpt_fail_nomem(err, "members of run '%s'", run->name);
    node->incarnation = record->incarnation;
    memcpy(node->secret, record->secret, sizeof node->secret);
    memcpy(node->key, record->key, sizeof node->key);
    node->health = record->health;
    struct departed *departed =
        dpt_rdzv_departed_as(run, node->id_hash, node->incarnation, node->secret);
    if (departed != NULL)
        dpt_rdzv_departed_drop(&run->membership, departed);
    return DPT_OK;
}

static enum dpt_status apply_removed(struct run *run, const struct dpt_rdzv_record *record,
                                     struct dpt_err *err)
{
    struct kept_node *node = find_incarnation(run, record->node, record->incarnation);
    if (node == NULL)
        return contradict(err, record, "the removed node is not there");
    struct departed departed = {.id_hash = node->id_hash,
                                .incarnation = node->incarnation,
                                .released = (record->flags & DPT_RDZV_FLAG_RELEASED) != 0,
                                .last_holder = (record->flags & DPT_RDZV_FLAG_LAST_HOLDER) != 0,
                                .n_nodes = record->count,
                                .cut_off = (record->flags & DPT_RDZV_FLAG_CUT_OFF) != 0,
                                .awaited = (record->flags & DPT_RDZV_FLAG_AWAITED) != 0,
                                .counter_seen = record->number};
    memcpy(departed.secret, node->secret, sizeof departed.secret);
    memcpy(departed.key, node->key, sizeof departed.key);
    if (!dpt_rdzv_departed_add(&run->membership, &departed))
        return dpt_fail_nomem(err, "removed nodes of run '%s'", run->name);
    dpt_rdzv_kept_drop(&run->kept, node);
    return DPT_OK;
}

/* ---- generations ---- */

static bool cause_of(const char *name, enum cause_kind *ret)
{
    for (int kind = 0; kind < CAUSE_COUNT; kind++)
        if (strcmp(name, dpt_rdzv_cause_name((enum cause_kind)kind)) == 0) {
            *ret = (enum cause_kind)kind;
            return true;
        }
    return false;
}

static enum dpt_status apply_generation(struct run *run, const struct dpt_rdzv_record *record,
                                        struct dpt_err *err)
{
    enum cause_kind kind;
    if (record->generation <= run->generation)
        return contradict(err, record, "a generation's number is used again");
    if (!cause_of(record->cause, &kind))
        return contradict(err, record, "its cause is unknown");
    run->generation = record->generation;
    run->kept.cause = dpt_rdzv_cause(kind, record->detect_ms, "%s", record->text);
    return DPT_OK;
}

static enum dpt_status put_plan(struct run *run, const struct dpt_rdzv_record *record,
                                struct dpt_err *err)
{
    struct kept *kept = &run->kept;
    const struct dpt_rdzv_member *members = record->members;
    if (record->n_members == 0 && !record->is_outdated)
        return contradict(err, record, "the plan has no members");
    for (size_t i = 0; i < record->n_members; i++)
        if (find_incarnation(run, members[i].node, members[i].incarnation) == NULL)
            return contradict(err, record, "a member of the plan is not there");
    for (size_t i = 0; i < record->n_members; i++)
        find_incarnation(run, members[i].node, members[i].incarnation)->placed_generation =
            record->generation;
    kept->planned = record->generation;
    (void)snprintf(kept->plan_digest, sizeof kept->plan_digest, "%s", record->digest);
    return DPT_OK;
}

static enum dpt_status apply_plan(struct run *run, const struct dpt_rdzv_record *record,
                                  struct dpt_err *err)
{
    if (record->generation != run->generation || record->generation <= run->kept.planned)
        return contradict(err, record, "it is not the plan of the newest generation");
    enum cause_kind kind;
    if (!cause_of(record->cause, &kind))
        return contradict(err, record, "its cause is unknown");
    DPT_TRY(put_plan(run, record, err));
    run->kept.cause = dpt_rdzv_cause(kind, record->detect_ms, "%s", record->text);
    return DPT_OK;
}

/* Nodes outside of a generation that runs cannot return with the newest state. */
static void note_ran(struct run *run, uint64_t generation)
{
    run->kept.ran = generation;
    dpt_rdzv_departed_await_none(&run->membership);
}

static enum dpt_status apply_runs(struct run *run, const struct dpt_rdzv_record *record,
                                  struct dpt_err *err)
{
    if (record->generation != run->kept.planned || record->generation <= run->kept.ran)
        return contradict(err, record, "the generation that runs has no plan");
    note_ran(run, record->generation);
    return DPT_OK;
}

static enum dpt_status apply_adopted(struct run *run, const struct dpt_rdzv_record *record,
                                     struct dpt_err *err)
{
    if (record->generation < run->generation || record->generation == 0)
        return contradict(err, record, "a newer generation than the adopted one was formed");
    DPT_TRY(put_plan(run, record, err));
    run->generation = record->generation;
    note_ran(run, record->generation);
    return DPT_OK;
}

/* ---- checkpoints, restarts, the end ---- */

static enum dpt_status apply_grant(struct run *run, const struct dpt_rdzv_record *record,
                                   struct dpt_err *err)
{
    struct kept *kept = &run->kept;
    if (record->generation != kept->planned ||
        (record->generation == kept->granted_generation && record->step <= kept->granted_step))
        return contradict(err, record, "a checkpoint is granted twice, or to an old generation");
    kept->granted_generation = record->generation;
    kept->granted_step = record->step;
    return DPT_OK;
}

static enum dpt_status apply_saved(struct run *run, const struct dpt_rdzv_record *record,
                                   struct dpt_err *err)
{
    if (record->step <= run->progress.saved_step)
        return contradict(err, record, "a newer checkpoint is known");
    struct progress *progress = &run->progress;
    progress->saved_step = record->step;
    (void)snprintf(progress->saved_node, sizeof progress->saved_node, "%s", record->node);
    (void)snprintf(progress->saved_host, sizeof progress->saved_host, "%s", record->host);
    return DPT_OK;
}

static enum dpt_status apply_crash(struct run *run, const struct dpt_rdzv_record *record,
                                   struct dpt_err *err)
{
    if (record->count < run->budget.used)
        return contradict(err, record, "a crash gives restarts back");
    run->budget.used = record->count;
    if (record->generation != 0)
        run->budget.incident_generation = record->generation;
    return DPT_OK;
}

static enum dpt_status apply_refill(struct run *run, const struct dpt_rdzv_record *record,
                                    struct dpt_err *err)
{
    if (record->count >= run->budget.used)
        return contradict(err, record, "no restart is given back");
    run->budget.used = record->count;
    return DPT_OK;
}

static enum dpt_status apply_error(struct run *run, const struct dpt_rdzv_record *record,
                                   struct dpt_err *err)
{
    (void)err;
    (void)snprintf(run->budget.first_error, sizeof run->budget.first_error, "%s", record->text);
    return DPT_OK;
}

static enum dpt_status apply_end(struct run *run, const struct dpt_rdzv_record *record,
                                 struct dpt_err *err)
{
    (void)err;
    run->kept.ended = true;
    run->kept.failed = record->text[0] != '\0';
    (void)snprintf(run->end_text, sizeof run->end_text, "%s", record->text);
    return DPT_OK;
}

/* ---- orders of an operator ---- */

static enum dpt_status apply_paused(struct run *run, const struct dpt_rdzv_record *record,
                                    struct dpt_err *err)
{
    if (run->kept.paused == (record->count != 0))
        return contradict(err, record, "the run is paused, or goes on, already");
    run->kept.paused = record->count != 0;
    return DPT_OK;
}

static enum dpt_status apply_stopped(struct run *run, const struct dpt_rdzv_record *record,
                                     struct dpt_err *err)
{
    if (run->kept.stopped == (record->count != 0))
        return contradict(err, record, "the run is being stopped, or is not, already");
    run->kept.stopped = record->count != 0;
    return DPT_OK;
}

static enum dpt_status apply_denied(struct dpt_rdzv *core, const struct dpt_rdzv_record *record,
                                    struct dpt_err *err)
{
    struct deny_list *denied = &core->denied;
    const size_t at = dpt_rdzv_find_denied(core, record->text, record->node);
    if ((at < denied->n) == (record->count != 0) || (record->count != 0 && at == DENIED_MAX))
        return contradict(err, record, "the node is denied, or allowed, already");
    if (record->count != 0) {
        struct denied *entry = &denied->list[denied->n++];
        (void)snprintf(entry->run, sizeof entry->run, "%s", record->text);
        (void)snprintf(entry->node, sizeof entry->node, "%s", record->node);
        return DPT_OK;
    }
    denied->n--;
    memmove(&denied->list[at], &denied->list[at + 1], (denied->n - at) * sizeof denied->list[0]);
    return DPT_OK;
}

/* ---- the server ---- */

static enum dpt_status apply_run(struct dpt_rdzv *core, const struct dpt_rdzv_record *record,
                                 struct dpt_err *err)
{
    if (core->n_runs == DPT_RDZV_RUNS_MAX || record->run[0] == '\0' || record->spec == NULL)
        return contradict(err, record, "there are too many runs, or it has no config");
    return dpt_rdzv_run_add(core, record)
               ? DPT_OK
               : dpt_fail_nomem(err, "run '%s' of the rendezvous server", record->run);
}

/* All of an ended run that counts later is in this one record, so a journal need not give the
 * others back. */
static void apply_forget(struct dpt_rdzv *core, const struct dpt_rdzv_record *record)
{
    for (size_t i = core->n_runs; i-- > 0;)
        if (strcmp(core->runs[i]->name, record->run) == 0)
            dpt_rdzv_run_drop(core, i);
    struct forgotten_run *earlier = dpt_rdzv_find_forgotten(core, record->run);
    struct forgotten_run *entry = &core->forgotten[core->n_forgotten++ % FORGOTTEN_MAX];
    if (earlier != NULL)
        *earlier = (struct forgotten_run){0}; /* this run began above its generations */
    core->generation_floor = dpt_rdzv_newer(core->generation_floor, entry->generation);
    *entry = (struct forgotten_run){.name_hash = dpt_rdzv_id_hash(record->run),
                                    .generation = record->generation,
                                    .run_generation = record->number,
                                    .saved_step = record->step,
                                    .ended = (record->flags & DPT_RDZV_FLAG_ENDED) != 0,
                                    .failed = (record->flags & DPT_RDZV_FLAG_FAILED) != 0,
                                    .stopped = (record->flags & DPT_RDZV_FLAG_STOPPED) != 0,
                                    .left = (record->flags & DPT_RDZV_FLAG_LEFT) != 0};
    (void)snprintf(entry->saved_node, sizeof entry->saved_node, "%s", record->node);
    (void)snprintf(entry->saved_host, sizeof entry->saved_host, "%s", record->host);
}

typedef enum dpt_status apply_fn(struct run *, const struct dpt_rdzv_record *, struct dpt_err *);

static apply_fn *const apply_to_run[DPT_RDZV_RECORD_COUNT] = {
    [DPT_RDZV_RECORD_JOINED] = apply_joined,
    [DPT_RDZV_RECORD_REMOVED] = apply_removed,
    [DPT_RDZV_RECORD_GENERATION] = apply_generation,
    [DPT_RDZV_RECORD_PLAN] = apply_plan,
    [DPT_RDZV_RECORD_RUNS] = apply_runs,
    [DPT_RDZV_RECORD_ADOPTED] = apply_adopted,
    [DPT_RDZV_RECORD_GRANT] = apply_grant,
    [DPT_RDZV_RECORD_SAVED] = apply_saved,
    [DPT_RDZV_RECORD_CRASH] = apply_crash,
    [DPT_RDZV_RECORD_REFILL] = apply_refill,
    [DPT_RDZV_RECORD_ERROR] = apply_error,
    [DPT_RDZV_RECORD_END] = apply_end,
    [DPT_RDZV_RECORD_PAUSED] = apply_paused,
    [DPT_RDZV_RECORD_STOPPED] = apply_stopped};

enum dpt_status dpt_rdzv_apply(struct dpt_rdzv *core, const struct dpt_rdzv_record *record,
                               struct dpt_err *err)
{
    struct run *run = dpt_rdzv_find_run(core, record->run);
    const bool is_new = record->kind == DPT_RDZV_RECORD_RUN;
    if (record->kind == DPT_RDZV_RECORD_START) {
        core->epochs[core->n_epochs++ % EPOCHS_MAX] = record->number;
        return DPT_OK;
    }
    if (record->kind == DPT_RDZV_RECORD_DENIED)
        return apply_denied(core, record, err);
    if (record->kind == DPT_RDZV_RECORD_UNHEALTHY)
        return DPT_OK; /* it is history */
    if (record->kind == DPT_RDZV_RECORD_FORGET) {
        apply_forget(core, record);
        return DPT_OK;
    }
    if ((run == NULL) != is_new)
        return contradict(err, record,
                          is_new ? "the run is known already" : "no such run is known");
    if (is_new)
        return apply_run(core, record, err);
    if (run->kept.ended && record->kind != DPT_RDZV_RECORD_REMOVED &&
        record->kind != DPT_RDZV_RECORD_SAVED)
        return contradict(err, record, "the run has ended");
    if ((unsigned)record->kind >= DPT_RDZV_RECORD_COUNT || apply_to_run[record->kind] == NULL)
        return contradict(err, record, "its kind is unknown");
    return apply_to_run[record->kind](run, record, err);
}

enum dpt_status dpt_rdzv_restore(struct dpt_rdzv *core, const struct dpt_rdzv_record *record,
                                 struct dpt_err *err)
{
    DPT_ASSERT(!core->started);
    return dpt_rdzv_apply(core, record, err);
}

void dpt_rdzv_decide(struct dpt_rdzv *core, struct dpt_rdzv_record record)
{
    struct dpt_err err;
    record.at_ms = core->now_ms;
    struct dpt_rdzv_record *kept = dpt_outbox_record(&core->out, &record);
    if (kept == NULL)
        return; /* no memory: the step fails */
    const enum dpt_status status = dpt_rdzv_apply(core, kept, &err);
    DPT_ASSERT(status == DPT_OK || status == DPT_ENOMEM);
    if (status == DPT_ENOMEM)
        core->out.no_memory = true;
    else if (kept->kind == DPT_RDZV_RECORD_RUN) /* the message's spec may be freed sooner */
        kept->spec = &dpt_rdzv_find_run(core, kept->run)->spec;
}

void dpt_rdzv_record(const struct run *run, struct dpt_rdzv_record record)
{
    record.run = run->name;
    dpt_rdzv_decide(run->core, record);
}
