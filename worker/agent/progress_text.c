/* Numbers, lines and blocks for the terminal. */
#include "worker/agent/progress_text.h"

#include "base/err.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- numbers ---- */

void dpt_progress_text_count(int64_t number, char ret[DPT_TEXT_NUMBER_BYTES])
{
    char digits[DPT_TEXT_NUMBER_BYTES];
    int n = snprintf(digits, sizeof digits, "%" PRId64, number);
    size_t used = 0;
    for (int i = 0; i < n; i++) {
        ret[used++] = digits[i];
        int left = n - 1 - i;
        if (left > 0 && left % 3 == 0 && digits[i] != '-')
            ret[used++] = ',';
    }
    ret[used] = '\0';
}

void dpt_progress_text_duration(int64_t ms, char ret[DPT_TEXT_NUMBER_BYTES])
{
    enum { BYTES = DPT_TEXT_NUMBER_BYTES };
    const int64_t tenths = (ms + 50) / 100, s = (ms + 500) / 1000;
    if (tenths < 100)
        (void)snprintf(ret, BYTES, "%" PRId64 ".%" PRId64 " s", tenths / 10, tenths % 10);
    else if (s < 100)
        (void)snprintf(ret, BYTES, "%" PRId64 " s", s);
    else if (s < 3600)
        (void)snprintf(ret, BYTES, "%" PRId64 " min %02" PRId64 " s", s / 60, s % 60);
    else
        (void)snprintf(ret, BYTES, "%" PRId64 " h %02" PRId64 " min", s / 3600, s % 3600 / 60);
}

void dpt_progress_text_share(int64_t right, int64_t samples, char ret[DPT_TEXT_NUMBER_BYTES])
{
    (void)snprintf(ret, DPT_TEXT_NUMBER_BYTES, "%.2f%%", 100.0 * (double)right / (double)samples);
}

/* ---- the fields of a step ---- */

/* The fields of a step, in the order of the live line. */
enum field {
    FIELD_STEP,
    FIELD_LOSS,
    FIELD_VAL,
    FIELD_LR,
    FIELD_NORM,
    FIELD_RATE,
    FIELD_WORLD,
    FIELD_ETA,
    FIELD_CHECKPOINT,
    FIELD_COUNT
};
enum { FIELD_BYTES = 64, GAP = 2 };

static void print_rate(double per_s, const char *unit, char ret[FIELD_BYTES])
{
    char number[DPT_TEXT_NUMBER_BYTES] = "?";
    if (per_s > 0 && per_s < 9e15)
        dpt_progress_text_count((int64_t)llround(per_s), number);
    (void)snprintf(ret, FIELD_BYTES, "%s %s", number, unit);
}

/* Fills the fields. A diverging run may have a norm of any length, so each field is cut at
 * FIELD_BYTES. */
static void print_fields(const struct dpt_step_facts *step, const char *rate_unit,
                         char fields[FIELD_COUNT][FIELD_BYTES])
{
    char left[DPT_TEXT_NUMBER_BYTES] = "?", of[DPT_TEXT_NUMBER_BYTES] = "";
    if (step->steps > 0)
        (void)snprintf(of, sizeof of, "/%" PRId64, step->steps);
    if (step->eta_ms >= 0)
        dpt_progress_text_duration(step->eta_ms, left);
    memset(fields, 0, FIELD_COUNT * sizeof fields[0]);
    (void)snprintf(fields[FIELD_STEP], FIELD_BYTES, "step %" PRId64 "%s", step->step, of);
    (void)snprintf(fields[FIELD_LOSS], FIELD_BYTES, "loss %.4f", step->loss);
    (void)snprintf(fields[FIELD_LR], FIELD_BYTES, "lr %.2e", step->lr);
    (void)snprintf(fields[FIELD_NORM], FIELD_BYTES,
                   fabs(step->grad_norm) >= 1e6 ? "norm %.3g" : "norm %.2f", step->grad_norm);
    print_rate(step->tokens_per_s, rate_unit, fields[FIELD_RATE]);
    (void)snprintf(fields[FIELD_WORLD], FIELD_BYTES, "%" PRIu32 " rank%s", step->world_size,
                   step->world_size == 1 ? "" : "s");
    (void)snprintf(fields[FIELD_ETA], FIELD_BYTES, "ETA %s", left);
}

/* ---- the line of a step ---- */

void dpt_progress_text_step(const struct dpt_step_facts *facts, char ret[DPT_TEXT_LINE_BYTES])
{
    char fields[FIELD_COUNT][FIELD_BYTES], elapsed[DPT_TEXT_NUMBER_BYTES];
    print_fields(facts, facts->of_images ? "images/s" : "tokens/s", fields);
    dpt_progress_text_duration(facts->elapsed_ms, elapsed);
    (void)snprintf(ret, DPT_TEXT_LINE_BYTES, "%s  %s  %s  %s  %s  %s  %s  %s", fields[FIELD_STEP],
                   fields[FIELD_LOSS], fields[FIELD_LR], fields[FIELD_NORM], fields[FIELD_RATE],
                   fields[FIELD_WORLD], elapsed, fields[FIELD_ETA]);
}

/* ---- the line of an epoch ---- */

void dpt_progress_text_epoch(const Dpt__StepRecord *step, int64_t epochs, bool whole,
                             char ret[DPT_TEXT_LINE_BYTES])
{
    char part[96] = "", rate[64] = "?";
    /* Without commas, because programs read this line too. */
    if (step->epoch_samples_per_s > 0)
        (void)snprintf(rate, sizeof rate, step->epoch_samples_per_s < 10 ? "%.1f" : "%.0f",
                       step->epoch_samples_per_s);
    if (!whole)
        (void)snprintf(part, sizeof part, " (of steps %" PRId64 "-%" PRId64 ")",
                       step->epoch_first_step, step->step);
    (void)snprintf(ret, DPT_TEXT_LINE_BYTES,
                   "Epoch %" PRId64 "/%" PRId64 " | Avg loss %.4f%s | %.1f s | %s samples/s",
                   step->epoch, epochs, step->epoch_avg_loss, part, step->epoch_seconds, rate);
}

/* ---- the live line ---- */

/* The order in which fields are left out of a narrow line. */
static const enum field dispensable[] = {FIELD_LR,   FIELD_NORM,       FIELD_WORLD, FIELD_VAL,
                                         FIELD_RATE, FIELD_CHECKPOINT, FIELD_ETA,   FIELD_LOSS};
enum { DISPENSABLE_COUNT = sizeof dispensable / sizeof dispensable[0] };

static void print_val(const struct dpt_agent_evaluation *val, char ret[FIELD_BYTES])
{
    char share[DPT_TEXT_NUMBER_BYTES] = "";
    if (val->samples > 0)
        dpt_progress_text_share(val->right, val->samples, share);
    (void)snprintf(ret, FIELD_BYTES, "val %.4f%s%s", val->loss, val->samples > 0 ? " " : "", share);
}

static int fields_width(char fields[FIELD_COUNT][FIELD_BYTES])
{
    int width = 0;
    for (int i = 0; i < FIELD_COUNT; i++)
        if (fields[i][0] != '\0')
            width += (int)strlen(fields[i]) + (width > 0 ? GAP : 0);
    return width;
}

static void add_progress_text(char *line, const char *text)
{
    size_t used = strlen(line);
    (void)snprintf(line + used, DPT_TEXT_LINE_BYTES - used, "%s", text);
}

static void add_bar(char *line, const struct dpt_step_facts *facts, int width, bool utf8)
{
    const double part = facts->steps > 0 ? (double)facts->step / (double)facts->steps : 0;
    const int inner = utf8 ? width : width - 2;
    const int full = (int)(part * inner);
    add_progress_text(line, utf8 ? "" : "[");
    for (int i = 0; i < inner; i++)
        add_progress_text(line, i < full ? (utf8 ? "█" : "#") : (utf8 ? "░" : "."));
    add_progress_text(line, utf8 ? "" : "]");
}

void dpt_progress_text_live(const struct dpt_live_facts *facts, int columns, bool utf8,
                            char ret[DPT_TEXT_LINE_BYTES])
{
    char fields[FIELD_COUNT][FIELD_BYTES];
    const int room = columns - 1; /* a line of full width wraps */
    ret[0] = '\0';
    print_fields(&facts->step, facts->step.of_images ? "img/s" : "tok/s", fields);
    if (facts->val.step > 0)
        print_val(&facts->val, fields[FIELD_VAL]);
    if (facts->checkpoint > 0)
        (void)snprintf(fields[FIELD_CHECKPOINT], FIELD_BYTES, "saved %" PRId64, facts->checkpoint);
    bool wants_bar = facts->step.steps > 0;
    for (int i = 0; i < DISPENSABLE_COUNT; i++) {
        /* The fields that follow in `dispensable` are more important than the bar. */
        if (dispensable[i] == FIELD_WORLD)
            wants_bar = wants_bar && fields_width(fields) + GAP + DPT_TEXT_BAR_MIN <= room;
        if (fields_width(fields) + (wants_bar ? GAP + DPT_TEXT_BAR_MIN : 0) > room)
            fields[dispensable[i]][0] = '\0';
    }
    int width = fields_width(fields);
    if (width > room)
        return;
    int bar = room - width - GAP < DPT_TEXT_BAR_MAX ? room - width - GAP : DPT_TEXT_BAR_MAX;
    if (wants_bar && bar >= DPT_TEXT_BAR_MIN)
        add_bar(ret, &facts->step, bar, utf8);
    for (int i = 0; i < FIELD_COUNT; i++) {
        if (fields[i][0] == '\0')
            continue;
        add_progress_text(ret, ret[0] != '\0' ? "  " : "");
        add_progress_text(ret, fields[i]);
    }
}

/* ---- a recovery ---- */

void dpt_progress_text_recovery(const struct dpt_agent_view *view, uint32_t world_before,
                                char ret[DPT_TEXT_LINE_BYTES])
{
    char before[DPT_TEXT_NUMBER_BYTES] = "", still[DPT_TEXT_NUMBER_BYTES];
    if (world_before > 0)
        (void)snprintf(before, sizeof before, "%" PRIu32 " -> ", world_before);
    if (view->still_ms < 1000)
        (void)snprintf(still, sizeof still, "%" PRId64 " ms", view->still_ms);
    else
        dpt_progress_text_duration(view->still_ms, still);
    (void)snprintf(ret, DPT_TEXT_LINE_BYTES,
                   "%.1024s; training resumed after %s, %" PRId64 " step%s lost, world %s%" PRIu32,
                   view->cause, still, view->steps_lost, view->steps_lost == 1 ? "" : "s", before,
                   view->world_size);
}

/* ---- the closing line ---- */

/* Why this node never held a step. */
static const char *no_step_text(const struct dpt_closing_facts *facts)
{
    if (facts->no_server)
        return "no server answered; nothing was begun";
    if (facts->generation == 0)
        return facts->released ? "nothing was begun" : "it had ended before this node took part";
    return facts->released ? "this node made no step" : "this node was a spare and made no step";
}

void dpt_progress_text_closing(const struct dpt_closing_facts *facts, char ret[DPT_TEXT_LINE_BYTES])
{
    enum { BYTES = DPT_TEXT_LINE_BYTES };
    const char *how = facts->released ? "left the run as asked" : "done";
    if (facts->step >= 0)
        (void)snprintf(ret, BYTES, "%s: run %s, step %" PRId64 ", generation %" PRIu64, how,
                       facts->run, facts->step, facts->generation);
    else if (facts->generation > 0)
        (void)snprintf(ret, BYTES, "%s: run %s, generation %" PRIu64 ": %s", how, facts->run,
                       facts->generation, no_step_text(facts));
    else
        (void)snprintf(ret, BYTES, "%s: run %s: %s", how, facts->run, no_step_text(facts));
}

/* ---- the closing block ---- */

struct number {
    char text[DPT_TEXT_NUMBER_BYTES];
};

static struct number grouped_count(double number)
{
    struct number ret;
    dpt_progress_text_count((int64_t)llround(number), ret.text);
    return ret;
}

/* Appends "  NAME  VALUE"; the last row has no newline. */
static DPT_PRINTF(3, 4) void add_row(char *ret, const char *name, const char *fmt, ...)
{
    char value[256];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(value, sizeof value, fmt, ap);
    va_end(ap);
    const size_t used = strlen(ret);
    (void)snprintf(ret + used, DPT_TEXT_SUMMARY_BYTES - used, "%s  %-16s %s", used > 0 ? "\n" : "",
                   name, value);
}

static void add_accuracy_row(char *ret, int64_t right, int64_t samples)
{
    char share[DPT_TEXT_NUMBER_BYTES];
    if (samples == 0)
        return;
    dpt_progress_text_share(right, samples, share);
    add_row(ret, "accuracy", "%s", share);
}

static void add_time_row(char *ret, int64_t ms)
{
    char total[DPT_TEXT_NUMBER_BYTES];
    dpt_progress_text_duration(ms, total);
    add_row(ret, "total time", "%s", total);
}

static void add_recoveries_row(char *ret, uint32_t recoveries, int64_t steps_lost)
{
    add_row(ret, "recoveries", "%" PRIu32 ", %" PRId64 " step%s lost", recoveries, steps_lost,
            steps_lost == 1 ? "" : "s");
}

static void add_cost_row(char *ret, const Dpt__RunSummary *s)
{
    const bool of_images = s->tokens_per_s == s->samples_per_s;
    if (s->dollars > 0)
        add_row(ret, "cost", "$%.4g for %.4g node-hours, $%.4g per 1M %s", s->dollars,
                (double)s->node_ms / (3600 * 1e3), s->dollars_per_1m_tokens,
                of_images ? "images" : "tokens");
}

void dpt_progress_text_summary(const Dpt__RunSummary *s, char ret[DPT_TEXT_SUMMARY_BYTES])
{
    ret[0] = '\0';
    if (s->start_step > 0)
        add_row(ret, "steps", "%s, from %" PRId64 " on", grouped_count((double)s->steps).text,
                s->start_step);
    else
        add_row(ret, "steps", "%s", grouped_count((double)s->steps).text);
    if (isfinite(s->loss))
        add_row(ret, "last loss", "%.4f", s->loss);
    else
        add_row(ret, "last loss", "not known: no step was made");
    if (isfinite(s->val_loss))
        add_row(ret, "validation loss", "%.4f", s->val_loss);
    add_accuracy_row(ret, s->val_right, s->val_samples);
    add_time_row(ret, s->total_ms);
    add_row(ret, "time of a step", "%.1f ms on average", s->step_ms);
    add_row(ret, "samples/s", "%.1f", s->samples_per_s);
    /* Images have no tokens: both rates are equal then. */
    if (s->tokens_per_s != s->samples_per_s)
        add_row(ret, "tokens/s", "%s", grouped_count(s->tokens_per_s).text);
    add_row(ret, "peak memory", "%.0f MiB a rank", (double)s->peak_bytes_per_rank / (1 << 20));
    if (s->checkpoints_saved > 0)
        add_row(ret, "checkpoints", "%" PRIu32 " saved, the last of step %" PRId64,
                s->checkpoints_saved, s->saved_step);
    else
        add_row(ret, "checkpoints", "none saved");
    add_recoveries_row(ret, s->recoveries, s->steps_lost);
    add_cost_row(ret, s);
    add_row(ret, "weights hash", "%s", s->weights_hash);
}

void dpt_progress_text_left(const struct dpt_left_facts *facts, const struct dpt_live_facts *live,
                            char ret[DPT_TEXT_SUMMARY_BYTES])
{
    const struct dpt_step_facts *newest = &live->step;
    const double seconds = (double)newest->elapsed_ms * 1e-3;
    const int64_t steps_made = facts->step - facts->first_step; /* does not count lost steps */
    ret[0] = '\0';
    if (facts->steps > 0)
        add_row(ret, "steps", "%s of %s", grouped_count((double)facts->step).text,
                grouped_count((double)facts->steps).text);
    else
        add_row(ret, "steps", "%s", grouped_count((double)facts->step).text);
    if (newest->step == facts->step && facts->step > 0)
        add_row(ret, "last loss", "%.4f", newest->loss);
    else if (newest->step > 0)
        add_row(ret, "last loss", "%.4f, of step %" PRId64, newest->loss, newest->step);
    if (live->val.step > 0)
        add_row(ret, "validation loss", "%.4f", live->val.loss);
    add_accuracy_row(ret, live->val.right, live->val.samples);
    add_time_row(ret, newest->elapsed_ms);
    if (steps_made > 0 && seconds > 0) {
        add_row(ret, "time of a step", "%.1f ms on average", 1e3 * seconds / (double)steps_made);
        if (facts->samples_per_step > 0)
            add_row(ret, "samples/s", "%.1f",
                    (double)(steps_made * facts->samples_per_step) / seconds);
    }
    if (newest->tokens_per_s > 0 && !newest->of_images)
        add_row(ret, "tokens/s", "%s", grouped_count(newest->tokens_per_s).text);
    add_row(ret, "checkpoints", "the last of step %" PRId64, facts->step);
    add_recoveries_row(ret, facts->recoveries, facts->steps_lost);
}
