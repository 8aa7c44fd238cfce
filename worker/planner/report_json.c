/* A plan as JSON: see report.h. Units are in the names: bytes, seconds, days. */
#include "worker/planner/report.h"

#include <math.h>

/* JSON has no infinity: null. */
static json_t *real_or_null(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *textbook_json(const struct dpt_plan *plan)
{
    struct dpt_report_width rows[DPT_REPORT_WIDTHS];
    json_t *array = json_array();
    const int ranks = plan->machines.shape.machines * plan->machines.shape.each;
    dpt_report_widths(plan, rows);
    for (int i = 0; i < DPT_REPORT_WIDTHS; i++) {
        const struct dpt_textbook_widths w = rows[i].widths;
        const double p = plan->parameters, copy = dpt_textbook_copy(p, w);
        const int status = json_array_append_new(
            array, json_pack("{s:s, s:o, s:o, s:o, s:o, s:o, s:o}", "numbers", rows[i].name,
                             "weights_bytes", real_or_null(p * w.weight), "gradients_bytes",
                             real_or_null(p * w.gradient), "optimizer_bytes",
                             real_or_null(p * w.optimizer), "copy_bytes", real_or_null(copy),
                             "shard_bytes",
                             real_or_null(dpt_textbook_rank(p, w, DPT_TEXTBOOK_ZERO3, ranks)),
                             "all_copies_bytes", real_or_null(copy * ranks)));
        if (status != 0) {
            json_decref(array);
            return NULL;
        }
    }
    return array;
}

/* NULL: no other machine has state to lose. */
static const char *lost_state_source(const struct dpt_plan *plan, const struct dpt_fit *fit)
{
    if (plan->machines.shape.machines == 1)
        return NULL;
    return fit->has_copies ? "memory" : "checkpoint";
}

static json_t *fit_json(const struct dpt_plan *plan, const struct dpt_fit *fit)
{
    const bool limited = plan->machines.memory > 0;
    json_t *object = json_pack("{s:s, s:b, s:s?}", "strategy", fit->strategy->label, "own",
                               fit->own, "refused", fit->refused[0] ? fit->refused : NULL);
    if (!object)
        return NULL;
    if (limited)
        (void)json_object_set_new(object, "least_machines", json_integer(fit->least_machines));
    if (limited)
        (void)json_object_set_new(object, "least_ranks", json_integer(fit->least_ranks));
    if (fit->refused[0])
        return object;
    json_t *tags = json_object();
    for (int t = 0; t < DPT_MEMORY_COUNT; t++)
        (void)json_object_set_new(tags, dpt_memory_tag_name((enum dpt_memory_tag)t),
                                  json_integer((json_int_t)fit->memory.bytes[t]));
    json_t *here = json_pack(
        "{s:i, s:i, s:o, s:I, s:o, s:I, s:o, s:o, s:o, s:s?}", "ranks", fit->memory.ranks, "waves",
        fit->waves, "textbook_bytes", real_or_null(fit->textbook_bytes), "rank_bytes",
        (json_int_t)fit->memory.rank_bytes, "batch_bytes", real_or_null(fit->batch_bytes),
        "machine_bytes", (json_int_t)fit->memory.machine_bytes, "tags", tags, "sent_bytes",
        real_or_null(fit->sent_bytes), "crossing_bytes", real_or_null(fit->crossing_bytes),
        "lost_state_from", lost_state_source(plan, fit));
    (void)json_object_update(object, here);
    json_decref(here);
    if (plan->machines.link > 0) {
        (void)json_object_set_new(object, "link_s", real_or_null(dpt_report_link_s(plan, fit)));
        (void)json_object_set_new(object, "link_limits",
                                  json_boolean(dpt_report_link_limits(plan, fit)));
    }
    if (limited)
        (void)json_object_set_new(object, "fits", json_boolean(fit->fits));
    return object;
}

static json_t *outcome_json(const struct dpt_outcome *outcome)
{
    return json_pack("{s:o, s:o, s:o}", "goodput", real_or_null(outcome->goodput), "days",
                     real_or_null(outcome->days), "price", real_or_null(outcome->price));
}

static json_t *time_json(const struct dpt_estimate *e)
{
    if (!e->has_time)
        return json_null();
    return json_pack(
        "{s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "tokens", real_or_null(e->tokens), "flops_per_token",
        real_or_null(e->flops_per_token), "tokens_per_s", real_or_null(e->tokens_per_s), "waves",
        e->waves > 0 ? json_integer(e->waves) : json_null(), "step_s", real_or_null(e->step_s),
        "days", real_or_null(e->days), "price", real_or_null(e->price));
}

static json_t *failures_json(const struct dpt_estimate *e)
{
    if (!e->has_failures)
        return json_null();
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "mtbf_s",
                     real_or_null(e->mtbf_s), "checkpoint_s", real_or_null(e->save_s), "young_s",
                     real_or_null(e->young_s), "daly_s", real_or_null(e->daly_s), "interval_s",
                     real_or_null(e->interval_s), "restart_s", real_or_null(e->restart_s),
                     "recovery_s", real_or_null(e->recovery_s), "restart",
                     outcome_json(&e->restart), "dpt_checkpoint", outcome_json(&e->reload),
                     "dpt_memory", e->has_copies ? outcome_json(&e->copies) : json_null());
}

json_t *dpt_report_json(const struct dpt_plan *plan)
{
    json_t *fits = json_array();
    for (int i = 0; i < plan->n_fits; i++)
        if (json_array_append_new(fits, fit_json(plan, &plan->fits[i])) != 0) {
            json_decref(fits);
            return NULL;
        }
    return json_pack("{s:s, s:o, s:o, s:i, s:i, s:I, s:o, s:o, s:o, s:o}", "model", plan->what,
                     "parameters", real_or_null(plan->model.parameters), "textbook_parameters",
                     real_or_null(plan->parameters), "machines", plan->machines.shape.machines,
                     "ranks_per_machine", plan->machines.shape.each, "tokens_per_step",
                     (json_int_t)plan->model.tokens_per_step, "textbook", textbook_json(plan),
                     "strategies", fits, "time", time_json(&plan->estimate), "failures",
                     failures_json(&plan->estimate));
}
