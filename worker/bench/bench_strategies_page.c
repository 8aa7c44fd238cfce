/* The page of `dpt-bench strategies`: three charts and the table. */
#include "worker/bench/bench_strategies.h"

#include "base/strategy_traits.h"
#include "worker/bench/chart.h"

#include <errno.h>

static const double mib = 1024.0 * 1024.0;

static struct chart chart_of(const struct strategies_bench *b, const char *title, const char *axis)
{
    struct chart c = {.title = title, .axis = axis, .n = b->n};
    for (int i = 0; i < b->n; i++) {
        c.label[i] = b->strategies[i].label;
        c.mark[i] = -1;
    }
    return c;
}

static void write_charts(const struct strategies_bench *b, FILE *out)
{
    struct chart time = chart_of(b, "Time of a step", "milliseconds");
    struct chart sent = chart_of(b, "Bytes that a rank sends in a step", "MiB");
    struct chart held = chart_of(b, "Memory that a rank holds at most", "MiB");
    for (int i = 0; i < b->n; i++) {
        const struct strategies_strategy *s = &b->strategies[i];
        time.value[i] = s->step_ms;
        time.part[i] = s->step_ms * s->wait_share;
        sent.value[i] = (double)s->sent_bytes / mib;
        sent.mark[i] = (double)s->sends_bytes / mib;
        held.value[i] = (double)s->held_bytes / mib;
        held.mark[i] = (double)s->holds_bytes / mib;
    }
    time.value_name = "computes";
    time.part_name = "waits for communication (exposed)";
    sent.value_name = "counted by the communicator";
    sent.mark_name = "by the strategy's plan";
    held.value_name = "counted as it is allocated";
    held.mark_name = "by the formula";
    chart_write(out, &time);
    chart_write(out, &sent);
    chart_write(out, &held);
}

static void write_strategy_row(const struct strategies_strategy *s, FILE *out)
{
    (void)fputs("<tr><td>", out);
    chart_text(out, s->label);
    (void)fprintf(
        out,
        "</td><td>%s</td><td>%d</td><td>%.1f</td><td>%.0f</td><td>%.1f%%</td>"
        "<td>%.2f</td><td>%.2f</td><td>%.1f</td><td>%.1f</td><td>%.1f</"
        "td><td><code>%.16s</code></td>"
        "</tr>\n",
        dpt_strategy_traits(&s->config).order == DPT_ACCUMULATE_LOCAL ? "local" : "reduce",
        s->nodes, s->step_ms, s->tokens_per_s, 100 * s->wait_share, (double)s->sent_bytes / mib,
        (double)s->sends_bytes / mib, (double)s->held_bytes / mib, (double)s->holds_bytes / mib,
        (double)s->peak_bytes / mib, s->runs[0].hash);
}

static void write_strategies_table(const struct strategies_bench *b, FILE *out)
{
    (void)fputs("<h2>Figures</h2>\n<div class=\"scroll\"><table>\n<tr><th>strategy</th>"
                "<th>order</th><th>nodes</th><th>step ms</th><th>tokens/s</th><th>waits</th>"
                "<th>sent MiB</th><th>formula</th><th>held MiB</th><th>formula</th><th>process</th>"
                "<th>weights_hash</th></tr>\n",
                out);
    for (int i = 0; i < b->n; i++)
        write_strategy_row(&b->strategies[i], out);
    (void)fputs("</table></div>\n", out);
}

static void write_verdict(const struct strategies_bench *b, FILE *out)
{
    const bool one = strategies_one_hash(b, DPT_ACCUMULATE_LOCAL) &&
                     strategies_one_hash(b, DPT_ACCUMULATE_REDUCE);
    (void)fprintf(out, "<p>%s</p>\n",
                  one ? "All strategies of one order of addition ended with one hash."
                      : "Strategies of one order of addition did NOT end with one hash.");
}

enum dpt_status strategies_page(const struct strategies_bench *b, const char *path,
                                struct dpt_err *err)
{
    const struct strategies_args *a = &b->args;
    FILE *out = fopen(path, "we");
    if (!out)
        return dpt_fail_errno(err, errno, "write '%s'", path);
    chart_page_begin(out, "dpt: strategies");
    (void)fprintf(out, "<p>GPT-2 of %.2f M parameters (", (double)b->parameters * 1e-6);
    chart_text(out, a->model);
    (void)fprintf(
        out,
        "), %s, %d ranks on %d host%s, %d samples of %d tokens a step in micro-batches of "
        "%d. Medians of %d runs of %d steps each; the runs of the strategies alternate. "
        "Load of the machine %.1f before, %.1f after.</p>\n",
        a->precision, (int)a->ranks, (int)a->hosts, a->hosts > 1 ? "s" : "", (int)a->global_batch,
        (int)a->seq_len, (int)a->micro_batch, (int)a->rounds, (int)a->steps, b->load_before,
        b->load_after);
    write_verdict(b, out);
    write_charts(b, out);
    write_strategies_table(b, out);
    chart_page_end(out);
    const bool failed = ferror(out) != 0;
    if (fclose(out) != 0 || failed)
        return dpt_fail(err, DPT_EIO, "write '%s': not all of it could be written", path);
    return DPT_OK;
}
