/* The CSV and the lines of a difference (diff.h). */
#include "worker/report/diff.h"
#include "worker/report/summary.h"

enum { TOP = 10, LISTED = 10 };

static const char *category_word(enum report_category category)
{
    static const char *const words[] = {[REPORT_CPU_OP] = "cpu_op",
                                        [REPORT_ANNOTATION] = "annotation",
                                        [REPORT_KERNEL] = "kernel",
                                        [REPORT_OTHER] = "other"};
    return words[category];
}

static const char *change_word(const struct report_diff_row *row)
{
    if (row->calls[0] == 0)
        return "added";
    return row->calls[1] == 0 ? "removed" : "";
}

void report_diff_csv_print(const struct report_diff *diff, FILE *out)
{
    (void)fputs("category,name,a_calls,b_calls,diff_calls,a_ms,b_ms,diff_ms,a_step_ms,b_step_ms,"
                "diff_step_ms,change\n",
                out);
    for (size_t i = 0; i < diff->n; i++) {
        const struct report_diff_row *row = &diff->rows[i];
        (void)fprintf(out, "%s,", category_word(row->category));
        report_csv_text(row->name, out);
        (void)fprintf(out, ",%lld,%lld,%lld,%.6f,%.6f,%.6f,%.6f,%.6f,%.6f,%s\n",
                      (long long)row->calls[0], (long long)row->calls[1],
                      (long long)(row->calls[1] - row->calls[0]), (double)row->ns[0] / 1e6,
                      (double)row->ns[1] / 1e6, (double)(row->ns[1] - row->ns[0]) / 1e6,
                      report_diff_step_ms(diff, row, 0), report_diff_step_ms(diff, row, 1),
                      report_diff_change_ms(diff, row), change_word(row));
    }
}

static void list_rows(const struct report_diff *diff, int absent_side, FILE *out)
{
    int n = 0;
    for (size_t i = 0; i < diff->n; i++)
        if (diff->rows[i].calls[absent_side] == 0 && n++ < LISTED)
            (void)fprintf(out, "  %-10s %s (%lld)\n", category_word(diff->rows[i].category),
                          diff->rows[i].name, (long long)diff->rows[i].calls[1 - absent_side]);
    if (n > LISTED)
        (void)fprintf(out, "  and %d more, which are in diff.csv\n", n - LISTED);
    if (n == 0)
        (void)fputs("  none\n", out);
}

void report_diff_terminal_print(const struct report_diff *diff, FILE *out)
{
    (void)fprintf(
        out,
        "A: %lld steps, B: %lld steps (sums over the ranks). Times are those of a step of "
        "a rank.\n",
        (long long)diff->rank_steps[0], (long long)diff->rank_steps[1]);
    (void)fprintf(out, "%-10s %12s %12s %12s %10s %10s  %s\n", "category", "A ms", "B ms",
                  "change ms", "A calls", "B calls", "name");
    for (size_t i = 0; i < diff->n && i < TOP; i++) {
        const struct report_diff_row *row = &diff->rows[i];
        (void)fprintf(out, "%-10s %12.3f %12.3f %+12.3f %10lld %10lld  %s\n",
                      category_word(row->category), report_diff_step_ms(diff, row, 0),
                      report_diff_step_ms(diff, row, 1), report_diff_change_ms(diff, row),
                      (long long)row->calls[0], (long long)row->calls[1], row->name);
    }
    (void)fputs("Added in B:\n", out);
    list_rows(diff, 0, out);
    (void)fputs("Removed from A:\n", out);
    list_rows(diff, 1, out);
}
