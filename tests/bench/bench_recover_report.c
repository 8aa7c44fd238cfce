/* Table and JSON of the recovery bench. */
#include "tests/bench/bench_recover_report.h"

#include <math.h>
#include <stdlib.h>

/* Rows of the table: the faults, then trials with a second fault. Columns: the event's phases, then
 * what was measured from outside. */
enum { ROWS = REC_FAULT_COUNT + 1, NOTICED = REC_PHASE_COUNT, PAUSE, RESUMED, COLUMNS };

const char *const rec_fault_names[REC_FAULT_COUNT] = {"kill rank", "kill worker", "drain", "join",
                                                      "stop"};
static const char *const columns[COLUMNS] = {"detect_ms",  "abort_ms",   "rendezvous_ms",
                                             "rebuild_ms", "restore_ms", "total_ms",
                                             "noticed_ms", "pause_ms",   "resumed_ms"};
static const double quantiles[] = {0.5, 0.99, 1};
static const char *const quantile_names[] = {"p50", "p99", "max"};
enum {
    QUANTILES = sizeof quantiles / sizeof *quantiles,
    DETECT_BAR_MS = 500,
    RESUME_BAR_MS = 2000
};

static int row_of(const struct rec_trial *t)
{
    return t->doubled ? REC_FAULT_COUNT : (int)t->fault;
}

static const char *row_name(int row)
{
    return row < REC_FAULT_COUNT ? rec_fault_names[row] : "second fault";
}

static double value_of(const struct rec_trial *t, int column)
{
    const double measured[] = {t->noticed_ms, t->pause_ms, t->resumed_ms};
    if (!t->measured)
        return NAN;
    if (column >= REC_PHASE_COUNT)
        return measured[column - REC_PHASE_COUNT];
    return t->generation.has_event ? t->generation.phase_ms[column] : NAN;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Nearest-rank quantiles of a row's column; NAN without values. Returns how many values. */
static int quantiles_of(const struct rec_trial *trials, int n, int row, int column,
                        double ret[QUANTILES])
{
    double *values = calloc((size_t)n + 1, sizeof *values);
    int count = 0;
    DPT_ASSERT(values);
    for (int i = 0; i < n; i++)
        if (row_of(&trials[i]) == row && !isnan(value_of(&trials[i], column)))
            values[count++] = value_of(&trials[i], column);
    qsort(values, (size_t)count, sizeof *values, by_value);
    for (int q = 0; q < QUANTILES; q++)
        ret[q] = count > 0 ? values[(int)ceil(quantiles[q] * count) - 1] : NAN;
    free(values);
    return count;
}

static int trials_of(const struct rec_trial *trials, int n, int row)
{
    int count = 0;
    for (int i = 0; i < n; i++)
        count += row_of(&trials[i]) == row;
    return count;
}

static void print_row(const struct rec_trial *trials, int n, int row)
{
    double of[COLUMNS][QUANTILES];
    for (int c = 0; c < COLUMNS; c++)
        (void)quantiles_of(trials, n, row, c, of[c]);
    for (int q = 0; q < QUANTILES; q++) {
        if (q == 0)
            printf("%-12s %4d  %s", row_name(row), trials_of(trials, n, row), quantile_names[q]);
        else
            printf("%-12s %4s  %s", "", "", quantile_names[q]);
        for (int c = 0; c < COLUMNS; c++)
            if (isnan(of[c][q]))
                printf("%14s", "-");
            else
                printf("%14.0f", of[c][q]);
        printf("\n");
    }
}

/* Losses only: a join is not detected but asked for, a stop takes the lease to find. */
static bool over_bar(const struct rec_trial *t)
{
    bool loss = t->fault == REC_KILL_RANK || t->fault == REC_KILL_WORKER;
    return loss && t->measured &&
           ((t->generation.has_event && t->generation.phase_ms[REC_DETECT] > DETECT_BAR_MS) ||
            t->resumed_ms > RESUME_BAR_MS + t->step_ms);
}

static int count_over_bar(const struct rec_trial *trials, int n)
{
    int count = 0;
    for (int i = 0; i < n; i++)
        count += over_bar(&trials[i]);
    return count;
}

void rec_report_print(const struct rec_trial *trials, const struct rec_totals *totals)
{
    printf("\n%-12s %4s  %3s", "fault", "n", "");
    for (int c = 0; c < COLUMNS; c++)
        printf("%14s", columns[c]);
    printf("\n");
    for (int row = 0; row < ROWS; row++)
        if (trials_of(trials, totals->trials, row) > 0)
            print_row(trials, totals->trials, row);
    printf("\n%d trials of %d, %llu generations, %lld steps: %d hangs, %lld steps lost, %lld steps "
           "logged twice, survivors restarted in %d trials; %s\n",
           totals->trials, totals->trials_wanted, (unsigned long long)totals->generations,
           (long long)totals->steps, totals->hangs, (long long)totals->steps_lost,
           (long long)totals->steps_repeated, totals->survivors_changed,
           totals->clean ? "nothing was left over" : "NOT ended cleanly");
    printf("kills detected later than %d ms, or the next step later than %d ms and a step: %d; "
           "load of the machine %.1f before, %.1f after\n",
           DETECT_BAR_MS, RESUME_BAR_MS, count_over_bar(trials, totals->trials),
           totals->load_before, totals->load_after);
}

static json_t *number(double value)
{
    return isnan(value) ? json_null() : json_real(value);
}

static json_t *trial_json(const struct rec_trial *t)
{
    json_t *o = json_pack(
        "{s:s, s:s?, s:b, s:I, s:i, s:s, s:o, s:o, s:I, s:b, s:o}", "fault",
        rec_fault_names[t->fault], "second", t->doubled ? rec_fault_names[t->second] : NULL,
        "measured", t->measured, "generation", (json_int_t)t->generation.number, "world_size",
        t->generation.world, "kind", t->generation.kind, "step_ms", number(t->step_ms), "back_ms",
        number(t->back_ms), "steps_lost", (json_int_t)t->steps_lost, "survivors_kept",
        t->survivors_kept, "load", number(t->load));
    for (int c = 0; c < COLUMNS; c++)
        (void)json_object_set_new(o, columns[c], number(value_of(t, c)));
    return o;
}

static json_t *row_json(const struct rec_trial *trials, int n, int row)
{
    json_t *o =
        json_pack("{s:s, s:i}", "fault", row_name(row), "trials", trials_of(trials, n, row));
    for (int c = 0; c < COLUMNS; c++) {
        double of[QUANTILES];
        json_t *column = json_object();
        (void)quantiles_of(trials, n, row, c, of);
        for (int q = 0; q < QUANTILES; q++)
            (void)json_object_set_new(column, quantile_names[q], number(of[q]));
        (void)json_object_set_new(o, columns[c], column);
    }
    return o;
}

json_t *rec_report_json(const struct rec_trial *trials, const struct rec_totals *totals)
{
    json_t *rows = json_array(), *all = json_array();
    for (int row = 0; row < ROWS; row++)
        if (trials_of(trials, totals->trials, row) > 0)
            (void)json_array_append_new(rows, row_json(trials, totals->trials, row));
    for (int i = 0; i < totals->trials; i++)
        (void)json_array_append_new(all, trial_json(&trials[i]));
    return json_pack(
        "{s:s, s:i, s:i, s:f, s:I, s:i, s:i, s:i, s:I, s:I, s:I, s:i, s:i, s:I, s:b, s:f, s:f, "
        "s:o, "
        "s:o}",
        "bench", "recover", "nodes", totals->nodes, "n_embd", totals->n_embd, "timeout_s",
        totals->timeout_s, "seed", (json_int_t)totals->seed, "trials_wanted", totals->trials_wanted,
        "trials", totals->trials, "hangs", totals->hangs, "steps", (json_int_t)totals->steps,
        "steps_lost", (json_int_t)totals->steps_lost, "steps_logged_twice",
        (json_int_t)totals->steps_repeated, "survivors_restarted", totals->survivors_changed,
        "over_bar", count_over_bar(trials, totals->trials), "generations",
        (json_int_t)totals->generations, "clean", totals->clean, "load_before", totals->load_before,
        "load_after", totals->load_after, "faults", rows, "all", all);
}
