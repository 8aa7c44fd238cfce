/* The figures of `dpt-bench scaling` over all rounds; the table, the JSON and the page. */
#include "worker/bench/bench_scaling.h"

#include "worker/bench/chart.h"

#include <errno.h>
#include <stdio.h>

enum { NOTE_BYTES = 160 };

static const double mib = 1024.0 * 1024.0;

static const char *cause_word(const struct scaling_bench *b, const struct scaling_world *w)
{
    const char *words[SCALING_CAUSES + 1] = {[SCALING_PROCESSORS] = b->cuda ? "devices" : "cores",
                                             [SCALING_COMMUNICATION] = "communication",
                                             [SCALING_IMBALANCE] = "imbalance",
                                             [SCALING_STRAGGLER] = "straggler",
                                             [SCALING_COMPUTATION] = "computation",
                                             [SCALING_CAUSES] = "none"};
    return words[scaling_bottleneck(&w->point, &w->loss)];
}

static void conclude_world(const struct scaling_bench *b, struct scaling_world *w)
{
    const struct scaling_world *base = &b->worlds[w->base];
    double speed_up[SPREAD_REPEATS_MAX], efficiency[SPREAD_REPEATS_MAX];
    w->step = spread_of(w->step_ms, w->n_runs);
    w->point.ranks = w->ranks;
    w->point.step_ms = w->step.median;
    w->point.exposed_ms = spread_of(w->exposed_ms, w->n_runs).median;
    w->point.late_ms = spread_of(w->late_ms, w->n_runs).median;
    for (int i = 0; i < w->n_runs; i++) {
        const struct scaling_point own = {.ranks = w->ranks, .step_ms = w->step_ms[i]},
                                   least = {.ranks = base->ranks, .step_ms = base->step_ms[i]};
        speed_up[i] = scaling_speed_up(b->args.weak, &least, &own);
        efficiency[i] = scaling_efficiency(b->args.weak, &least, &own);
    }
    w->speed_up = spread_of(speed_up, w->n_runs);
    w->efficiency = spread_of(efficiency, w->n_runs);
    w->bound = scaling_bound(b->processors, &base->point, &w->point);
    const struct scaling_terms terms = {.weak = b->args.weak, .processors = b->processors};
    /* The ideal step is that of the efficiency, which is measured in pairs. */
    struct scaling_point beside = base->point;
    beside.step_ms =
        w->step.median * w->efficiency.median * (b->args.weak ? 1 : (double)w->ranks / base->ranks);
    w->loss = scaling_loss_of(&terms, &beside, &w->point);
    w->tokens_per_s = (double)w->global_batch * (double)b->args.seq_len * 1e3 / w->step.median;
    w->dollars_per_1m = bench_dollars_per_1m(b->args.price.value, w->hosts, w->tokens_per_s);
}

/* The base comes first, so its point is there when others are compared with it. */
void scaling_conclude(struct scaling_bench *b)
{
    for (int i = 0; i < b->n; i++)
        conclude_world(b, &b->worlds[i]);
}

/* "8 ranks on 2 cores …"; "" if the processors do not limit the efficiency. */
static void bound_note(const struct scaling_bench *b, const struct scaling_world *w,
                       char ret[NOTE_BYTES])
{
    ret[0] = '\0';
    if (w->bound >= 1)
        return;
    const char *what = b->cuda ? "devices" : "cores";
    const int n = b->cuda ? b->devices : b->cores;
    char threads[48] = "";
    if (!b->cuda && b->args.threads > 1)
        (void)snprintf(threads, sizeof threads, " of %d threads", (int)b->args.threads);
    (void)snprintf(ret, NOTE_BYTES, "%d ranks%s on %d %s: efficiency is bounded by %s at %.1f %%",
                   w->ranks, threads, n, what, what, 100 * w->bound);
}

static bool has_price(const struct scaling_bench *b)
{
    return b->args.price.value > 0;
}

static void print_scaling_head(const struct scaling_bench *b)
{
    const struct scaling_args *a = &b->args;
    printf("%s scaling: %.2f M parameters, %s, %d samples of %d tokens %s in micro-batches of "
           "%d\n%d runs of %d steps in each world, in turn; %d cores; load of the machine %.1f "
           "before, %.1f after\n\n",
           a->weak ? "weak" : "strong", (double)b->parameters * 1e-6, a->precision, (int)a->batch,
           (int)a->seq_len, a->weak ? "for each rank and step" : "a step", (int)a->micro_batch,
           (int)a->rounds, (int)a->steps, b->cores, b->load_before, b->load_after);
    printf("%-18s %5s %9s %17s %9s %8s %10s %17s %8s %10s %9s %9s", "strategy", "ranks", "step ms",
           "runs", "tokens/s", "speed-up", "efficiency", "runs", "of bound", "exposed ms",
           "late ms", "sent MiB");
    if (has_price(b))
        printf(" %11s", "$/1M tokens");
    printf("  bottleneck\n");
}

static void print_world(const struct scaling_bench *b, const struct scaling_world *w)
{
    char steps[32], efficiency[32];
    (void)snprintf(steps, sizeof steps, "%.1f … %.1f", w->step.min, w->step.max);
    (void)snprintf(efficiency, sizeof efficiency, "%.1f … %.1f", 100 * w->efficiency.min,
                   100 * w->efficiency.max);
    printf("%-18s %5d %9.1f %19s %9.0f %8.2f %9.1f%% %19s %7.1f%% %10.1f %9.1f %9.2f", w->label,
           w->ranks, w->step.median, steps, w->tokens_per_s, w->speed_up.median,
           100 * w->efficiency.median, efficiency, 100 * w->efficiency.median / w->bound,
           w->point.exposed_ms, w->point.late_ms, (double)w->sent_bytes / mib);
    if (has_price(b))
        printf(" %11.6f", w->dollars_per_1m);
    printf("  %s\n", cause_word(b, w));
}

void scaling_print(const struct scaling_bench *b)
{
    char note[NOTE_BYTES];
    print_scaling_head(b);
    for (int i = 0; i < b->n; i++)
        print_world(b, &b->worlds[i]);
    printf("\n");
    for (int i = 0; i < b->n; i++) {
        bound_note(b, &b->worlds[i], note);
        if (note[0] && b->worlds[i].base == 0)
            printf("%s\n", note);
    }
    printf("of bound: efficiency over the efficiency that the %s allow; exposed: transfers that no "
           "computation hides; late: waits for ranks that come later, mean over the ranks\n",
           b->cuda ? "devices" : "cores");
}

static json_t *spread_json(const struct spread *s)
{
    return json_pack("{s:f, s:f, s:f, s:f, s:f}", "median", s->median, "min", s->min, "max", s->max,
                     "mean", s->mean, "deviation", s->deviation);
}

static json_t *world_json(const struct scaling_bench *b, const struct scaling_world *w)
{
    const double *ms = w->loss.ms;
    json_t *lost =
        json_pack("{s:f, s:f, s:f, s:f, s:f}", "processors", ms[SCALING_PROCESSORS],
                  "communication", ms[SCALING_COMMUNICATION], "imbalance", ms[SCALING_IMBALANCE],
                  "straggler", ms[SCALING_STRAGGLER], "computation", ms[SCALING_COMPUTATION]);
    json_t *row = json_pack(
        "{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:o, s:o, s:o, s:f, s:f, s:f, s:f, s:f, s:f, s:o, "
        "s:I, s:s, s:s}",
        "strategy", w->label, "ranks", w->ranks, "nodes", w->nodes, "hosts", w->hosts,
        "global_batch", w->global_batch, "waves", w->waves, "runs", w->n_runs, "step_ms",
        spread_json(&w->step), "speed_up", spread_json(&w->speed_up), "efficiency",
        spread_json(&w->efficiency), "efficiency_bound", w->bound, "efficiency_of_bound",
        w->efficiency.median / w->bound, "tokens_per_s", w->tokens_per_s, "exposed_ms",
        w->point.exposed_ms, "late_ms", w->point.late_ms, "ideal_ms", w->loss.ideal_ms, "lost_ms",
        lost, "sent_bytes", (json_int_t)w->sent_bytes, "bottleneck", cause_word(b, w),
        "weights_hash", w->hash);
    if (has_price(b))
        (void)json_object_set_new(row, "dollars_per_1m_tokens", json_real(w->dollars_per_1m));
    return row;
}

json_t *scaling_json(const struct scaling_bench *b)
{
    const struct scaling_args *a = &b->args;
    json_t *rows = json_array(), *notes = json_array();
    for (int i = 0; i < b->n; i++) {
        char note[NOTE_BYTES];
        (void)json_array_append_new(rows, world_json(b, &b->worlds[i]));
        bound_note(b, &b->worlds[i], note);
        if (note[0] && b->worlds[i].base == 0)
            (void)json_array_append_new(notes, json_string(note));
    }
    return json_pack("{s:s, s:s, s:I, s:s, s:s, s:I, s:I, s:I, s:I, s:i, s:f, s:I, s:I, s:f, s:f, "
                     "s:o, s:o}",
                     "bench", "scaling", "mode", a->weak ? "weak" : "strong", "parameters",
                     (json_int_t)b->parameters, "model", a->preset ? a->preset : a->model,
                     "precision", a->precision, "batch", (json_int_t)a->batch, "micro_batch",
                     (json_int_t)a->micro_batch, "seq_len", (json_int_t)a->seq_len, "threads",
                     (json_int_t)a->threads, "cores", b->cores, "processors", b->processors,
                     "rounds", (json_int_t)a->rounds, "steps", (json_int_t)a->steps, "load_before",
                     b->load_before, "load_after", b->load_after, "notes", notes, "rows", rows);
}

/* ---- the page ---- */

static void write_charts(const struct scaling_bench *b, FILE *out)
{
    static char labels[SCALING_LINES_MAX][64];
    struct chart time = {.title = "Time of a step", .axis = "milliseconds", .n = b->n},
                 speed = {.title = "Efficiency", .axis = "percent", .n = b->n};
    for (int i = 0; i < b->n; i++) {
        const struct scaling_world *w = &b->worlds[i];
        (void)snprintf(labels[i], sizeof labels[i], "%s, %d", w->label, w->ranks);
        time.label[i] = speed.label[i] = labels[i];
        time.value[i] = w->step.median;
        time.part[i] = w->point.exposed_ms + w->point.late_ms;
        time.mark[i] = w->loss.ideal_ms;
        speed.value[i] = 100 * w->efficiency.median;
        speed.mark[i] = 100 * w->bound;
    }
    time.value_name = "computes";
    time.part_name = "waits for transfers and for late ranks";
    time.mark_name = "ideal";
    speed.value_name = "efficiency, strategy and ranks";
    speed.mark_name = b->cuda ? "the devices' bound" : "the cores' bound";
    chart_write(out, &time);
    chart_write(out, &speed);
}

static void write_scaling_row(const struct scaling_bench *b, const struct scaling_world *w,
                              FILE *out)
{
    (void)fputs("<tr><td>", out);
    chart_text(out, w->label);
    (void)fprintf(out,
                  "</td><td>%d</td><td>%.1f</td><td>%.1f … %.1f</td><td>%.0f</td><td>%.2f</td>"
                  "<td>%.1f%%</td><td>%.1f … %.1f</td><td>%.1f%%</td><td>%.1f</td><td>%.1f</td>"
                  "<td>%.2f</td>",
                  w->ranks, w->step.median, w->step.min, w->step.max, w->tokens_per_s,
                  w->speed_up.median, 100 * w->efficiency.median, 100 * w->efficiency.min,
                  100 * w->efficiency.max, 100 * w->efficiency.median / w->bound,
                  w->point.exposed_ms, w->point.late_ms, (double)w->sent_bytes / mib);
    if (has_price(b))
        (void)fprintf(out, "<td>%.6f</td>", w->dollars_per_1m);
    (void)fprintf(out, "<td>%s</td></tr>\n", cause_word(b, w));
}

static void write_scaling_table(const struct scaling_bench *b, FILE *out)
{
    (void)fputs("<h2>Figures</h2>\n<div class=\"scroll\"><table>\n<tr><th>strategy</th>"
                "<th>ranks</th><th>step ms</th><th>runs</th><th>tokens/s</th><th>speed-up</th>"
                "<th>efficiency</th><th>runs</th><th>of bound</th><th>exposed ms</th>"
                "<th>late ms</th><th>sent MiB</th>",
                out);
    if (has_price(b))
        (void)fputs("<th>$ per 1M tokens</th>", out);
    (void)fputs("<th>bottleneck</th></tr>\n", out);
    for (int i = 0; i < b->n; i++)
        write_scaling_row(b, &b->worlds[i], out);
    (void)fputs("</table></div>\n", out);
}

static void write_notes(const struct scaling_bench *b, FILE *out)
{
    for (int i = 0; i < b->n; i++) {
        char note[NOTE_BYTES];
        bound_note(b, &b->worlds[i], note);
        if (note[0] && b->worlds[i].base == 0)
            (void)fprintf(out, "<p>%s.</p>\n", note);
    }
}

enum dpt_status scaling_page(const struct scaling_bench *b, const char *path, struct dpt_err *err)
{
    const struct scaling_args *a = &b->args;
    FILE *out = fopen(path, "we");
    if (!out)
        return dpt_fail_errno(err, errno, "write '%s'", path);
    chart_page_begin(out, a->weak ? "dpt: weak scaling" : "dpt: strong scaling");
    (void)fprintf(out, "<p>A model of %.2f M parameters (", (double)b->parameters * 1e-6);
    chart_text(out, a->preset ? a->preset : a->model);
    (void)fprintf(
        out,
        "), %s, %d samples of %d tokens %s. Medians of %d runs of %d steps each; the runs "
        "of the worlds alternate. Load of the machine %.1f before, %.1f after.</p>\n",
        a->precision, (int)a->batch, (int)a->seq_len, a->weak ? "for each rank and step" : "a step",
        (int)a->rounds, (int)a->steps, b->load_before, b->load_after);
    write_notes(b, out);
    write_charts(b, out);
    write_scaling_table(b, out);
    chart_page_end(out);
    const bool failed = ferror(out) != 0;
    if (fclose(out) != 0 || failed)
        return dpt_fail(err, DPT_EIO, "write '%s': not all of it could be written", path);
    return DPT_OK;
}
