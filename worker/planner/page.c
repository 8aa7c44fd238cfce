/* A plan for the terminal: see report.h. */
#include "worker/planner/report.h"

#include "base/number.h"

#include <stdio.h>
#include <string.h>

#define GB 1e9

enum { HOUR_S = 3600, MINUTE_S = 60 };

/* A column of GB: three digits or more. */
static void print_gb(FILE *out, int width, double bytes)
{
    char text[DPT_NUMBER_BYTES];
    const double gb = bytes / GB;
    (void)fprintf(out, " %*s", width,
                  dpt_number_grouped(gb,
                                     gb >= 100  ? 0
                                     : gb >= 10 ? 1
                                     : gb >= 1  ? 2
                                                : 4,
                                     text));
}

void dpt_report_widths(const struct dpt_plan *plan, struct dpt_report_width ret[DPT_REPORT_WIDTHS])
{
    const int moments = plan->model.moments;
    const struct dpt_report_width rows[DPT_REPORT_WIDTHS] = {
        {"8 bytes (fp64)", dpt_textbook_plain(8, moments)},
        {"4 bytes (fp32)", dpt_textbook_plain(4, moments)},
        {"2 bytes (bf16)", dpt_textbook_plain(2, moments)},
        {"mixed precision", dpt_textbook_mixed(moments)},
    };
    memcpy(ret, rows, sizeof rows);
}

static void print_head(const struct dpt_plan *plan, FILE *out)
{
    static const char *const precisions[] = {[DPT_PRECISION_FP32] = "fp32",
                                             [DPT_PRECISION_BF16] = "bf16",
                                             [DPT_PRECISION_FP16] = "fp16",
                                             [DPT_PRECISION_TF32] = "tf32"};
    char number[DPT_NUMBER_BYTES], steps[DPT_NUMBER_BYTES];
    const struct dpt_world_shape shape = plan->machines.shape;
    (void)fprintf(out, "model     %s: %s parameters", plan->what,
                  dpt_number_grouped(plan->model.parameters, 0, number));
    if (plan->model.layers > 0)
        (void)fprintf(out, ", %d layers of width %d", plan->model.layers, plan->model.channels);
    (void)fprintf(out, "\nbatch     %d x %d tokens a micro-batch, %s a step, %s\n",
                  plan->model.micro_batch, plan->model.seq_len,
                  dpt_number_grouped((double)plan->model.tokens_per_step, 0, steps),
                  precisions[plan->model.precision]);
    (void)fprintf(out, "machines  %d with %d rank%s each", shape.machines, shape.each,
                  shape.each == 1 ? "" : "s");
    if (plan->machines.memory > 0)
        (void)fprintf(out, ", %s GB of memory a rank",
                      dpt_number_grouped(plan->machines.memory / GB, 1, number));
    (void)fputc('\n', out);
}

static void print_textbook(const struct dpt_plan *plan, FILE *out)
{
    struct dpt_report_width rows[DPT_REPORT_WIDTHS];
    char parameters[DPT_NUMBER_BYTES];
    const int ranks = plan->machines.shape.machines * plan->machines.shape.each;
    dpt_report_widths(plan, rows);
    (void)fprintf(out,
                  "\nTextbook, GB for %s parameters: weights + gradients + optimizer = one copy\n"
                  "%-17s %10s %10s %10s %10s %12s %12s\n",
                  dpt_number_grouped(plan->parameters, 0, parameters), "bytes of a number",
                  "weights", "gradients", "optimizer", "one copy", "rank, shards", "all, copies");
    for (int i = 0; i < DPT_REPORT_WIDTHS; i++) {
        const struct dpt_textbook_widths w = rows[i].widths;
        const double copy = dpt_textbook_copy(plan->parameters, w);
        (void)fprintf(out, "%-17s", rows[i].name);
        print_gb(out, 10, plan->parameters * w.weight);
        print_gb(out, 10, plan->parameters * w.gradient);
        print_gb(out, 10, plan->parameters * w.optimizer);
        print_gb(out, 10, copy);
        print_gb(out, 12, dpt_textbook_rank(plan->parameters, w, DPT_TEXTBOOK_ZERO3, ranks));
        print_gb(out, 12, copy * ranks);
        (void)fputc('\n', out);
    }
    (void)fprintf(out,
                  "rank, shards: one copy divided among all ranks, %d here (full_shard). all, "
                  "copies: a copy on each of them (ddp).\n",
                  ranks);
}

double dpt_report_link_s(const struct dpt_plan *plan, const struct dpt_fit *fit)
{
    return plan->machines.link > 0 ? fit->crossing_bytes / plan->machines.link : 0;
}

bool dpt_report_link_limits(const struct dpt_plan *plan, const struct dpt_fit *fit)
{
    return plan->estimate.has_time && dpt_report_link_s(plan, fit) > plan->estimate.step_s;
}

static void print_least(const struct dpt_plan *plan, const struct dpt_fit *fit, FILE *out)
{
    char text[DPT_NUMBER_BYTES];
    if (plan->machines.memory <= 0)
        (void)snprintf(text, sizeof text, "-");
    else if (fit->least_machines == 0)
        (void)snprintf(text, sizeof text, "none");
    else
        (void)snprintf(text, sizeof text, "%dx%d", fit->least_machines, plan->machines.shape.each);
    (void)fprintf(out, " %9s", text);
}

static void print_fit(const struct dpt_plan *plan, const struct dpt_fit *fit, FILE *out)
{
    const struct dpt_machines *m = &plan->machines;
    (void)fprintf(out, "%-18s%c", fit->strategy->label, fit->own ? '*' : ' ');
    if (fit->refused[0]) {
        (void)fprintf(out, "%*s", 46, "refused here");
        print_least(plan, fit, out);
        (void)fputc('\n', out);
        return;
    }
    print_gb(out, 9, fit->textbook_bytes);
    print_gb(out, 9, (double)fit->memory.rank_bytes);
    print_gb(out, 9, fit->batch_bytes);
    print_gb(out, 9, (double)fit->memory.machine_bytes);
    (void)fprintf(out, " %5s", m->memory <= 0 ? "-" : fit->fits ? "yes" : "no");
    print_least(plan, fit, out);
    print_gb(out, 9, fit->sent_bytes);
    if (m->link > 0)
        (void)fprintf(out, " %9.3g", dpt_report_link_s(plan, fit));
    else
        (void)fprintf(out, " %9s", "-");
    (void)fprintf(out, "%s %s\n", dpt_report_link_limits(plan, fit) ? "!" : " ",
                  m->shape.machines == 1 ? "-"
                  : fit->has_copies      ? "memory"
                                         : "checkpoint");
}

/* What the rows do not show. `fewest`: ranks of the strategy with the fewest. */
static void print_notes(const struct dpt_plan *plan, int fewest, FILE *out)
{
    const int all = plan->machines.shape.machines * plan->machines.shape.each,
              waves = plan->estimate.waves;
    if (fewest < all)
        (void)fprintf(out,
                      "The config has slots or lanes for %d ranks; %d of the %d ranks are "
                      "spares under some strategies.\n",
                      fewest, all - fewest, all);
    if (plan->strategy_unlisted)
        (void)fputs("The config's strategy is none of these.\n", out);
    if (plan->model.cuda)
        (void)fputs(
            "cluster.device is cuda: state, gradients and activations have these sizes on a "
            "GPU, too. Its workspace has\nno formula; the CPU's is counted.\n",
            out);
    for (int i = 0; i < plan->n_fits; i++) {
        const struct dpt_fit *fit = &plan->fits[i];
        if (fit->refused[0])
            (void)fprintf(out, "%s: %s\n", fit->strategy->label, fit->refused);
        else if (waves > 0 && fit->waves > waves)
            (void)fprintf(out,
                          "%s: %d ranks train, in %d waves a step; the time below is of %d: "
                          "multiply it by %.3g.\n",
                          fit->strategy->label, fit->memory.ranks, fit->waves, waves,
                          (double)fit->waves / waves);
    }
}

static void print_fits(const struct dpt_plan *plan, FILE *out)
{
    const int all = plan->machines.shape.machines * plan->machines.shape.each;
    int fewest = all;
    (void)fprintf(out,
                  "\nMemory of the rank that holds most, GB, without the program itself\n"
                  "%-19s %9s %9s %9s %9s %5s %9s %9s %9s  %s\n",
                  "strategy", "textbook", "dpt", "of batch", "machine", "fits", "least", "sends",
                  "link s", "lost state from");
    for (int i = 0; i < plan->n_fits; i++) {
        const struct dpt_fit *fit = &plan->fits[i];
        print_fit(plan, fit, out);
        if (!fit->refused[0] && fit->memory.ranks < fewest)
            fewest = fit->memory.ranks;
    }
    (void)fputs("of batch: activations, workspace and data, part of dpt. least: the smallest world "
                "that fits, machines x ranks.\nsends: GB that a rank sends in a step. link s: the "
                "seconds of a step that the link of a machine is busy, at most;\n!: longer than "
                "computing the step. lost state from: the source of a lost machine's part. *: the "
                "strategy of\nthe config.\n",
                out);
    print_notes(plan, fewest, out);
}

static void print_days(double days, double price, FILE *out)
{
    char text[DPT_NUMBER_BYTES];
    (void)fprintf(out, "%s days",
                  dpt_number_grouped(days,
                                     days >= 100 ? 0
                                     : days >= 1 ? 1
                                                 : 4,
                                     text));
    if (price > 0)
        (void)fprintf(out, ", %s dollars", dpt_number_grouped(price, price >= 100 ? 0 : 2, text));
    (void)fputc('\n', out);
}

static void print_time(const struct dpt_plan *plan, FILE *out)
{
    const struct dpt_estimate *e = &plan->estimate;
    char tokens[DPT_NUMBER_BYTES], rate[DPT_NUMBER_BYTES];
    (void)fprintf(out, "\nTime without failures: %s tokens at %s tokens/s, %.3g s a step",
                  dpt_number_grouped(e->tokens, 0, tokens),
                  dpt_number_grouped(e->tokens_per_s, 0, rate), e->step_s);
    if (plan->machines.tokens_per_s <= 0)
        (void)fprintf(out, " (%.3g FLOPs a token, MFU %.0f %%, %d wave%s a step)",
                      e->flops_per_token,
                      100 * (plan->machines.mfu > 0 ? plan->machines.mfu : DPT_ESTIMATE_MFU),
                      e->waves, e->waves == 1 ? "" : "s");
    (void)fputs("\n  ", out);
    print_days(e->days, e->price, out);
    (void)fputs("  Transfers are taken to be hidden behind computing.\n", out);
}

static void print_outcome(const char *name, const struct dpt_outcome *outcome, FILE *out)
{
    (void)fprintf(out, "  %-48s goodput %6.2f %%  ", name, 100 * outcome->goodput);
    print_days(outcome->days, outcome->price, out);
}

static const char *format_hours(double hours, char ret[DPT_NUMBER_BYTES])
{
    if (hours >= 100)
        return dpt_number_grouped(hours, 0, ret);
    (void)snprintf(ret, DPT_NUMBER_BYTES, "%.3g", hours);
    return ret;
}

static void print_failures(const struct dpt_plan *plan, FILE *out)
{
    const struct dpt_estimate *e = &plan->estimate;
    char one[DPT_NUMBER_BYTES], all[DPT_NUMBER_BYTES];
    (void)fprintf(out,
                  "\nFailures: mean time between failures %s hours of a machine, %s hours of all\n"
                  "  a checkpoint takes %.1f s; best interval: %.1f min (Young 1974), %.1f min "
                  "(Daly 2006); taken: %.1f min\n",
                  format_hours(plan->machines.mtbf_h, one), format_hours(e->mtbf_s / HOUR_S, all),
                  e->save_s, e->young_s / MINUTE_S, e->daly_s / MINUTE_S, e->interval_s / MINUTE_S);
    char restart[80], reload[80], copies[80];
    (void)snprintf(restart, sizeof restart, "restart of the job, %.0f s", e->restart_s);
    (void)snprintf(reload, sizeof reload, "dpt, state from the checkpoint, %.0f s",
                   e->recovery_s + e->save_s);
    (void)snprintf(copies, sizeof copies, "dpt, state in other machines' memory, %.0f s",
                   e->recovery_s);
    print_outcome(restart, &e->restart, out);
    print_outcome(reload, &e->reload, out);
    if (e->has_copies)
        print_outcome(copies, &e->copies, out);
    (void)fputs("  A spare machine is taken to replace each lost one at once.\n", out);
}

void dpt_report_print(const struct dpt_plan *plan, FILE *out)
{
    print_head(plan, out);
    print_textbook(plan, out);
    print_fits(plan, out);
    if (plan->estimate.has_time)
        print_time(plan, out);
    if (plan->estimate.has_failures)
        print_failures(plan, out);
}
