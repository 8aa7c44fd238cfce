/* Table and JSON of the recovery bench. */
#include "worker/bench/bench_recover_report.h"

#include "base/median.h"
#include "worker/bench/bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Rows of a strategy's table: one for each fault, one for trials with a second fault, and one for
 * all trials in which a process died. Columns: the phases of the event, then the times that this
 * bench measured. */
enum { SECOND = REC_FAULT_COUNT, DEATH, ROWS };
enum { NOTICED = REC_PHASE_COUNT, PAUSE, RESUMED, OUTAGE, COLUMNS };
enum { ALL = -1 /* strategies */ };

const char *const recover_fault_names[REC_FAULT_COUNT] = {"kill rank", "kill node", "drain", "join",
                                                          "stop"};
const char *const recover_aim_names[REC_AIM_COUNT] = {"step", "apply", "commit", "prepare",
                                                      "build"};
static const char *const columns[COLUMNS] = {
    "detect_ms", "abort_ms",   "rendezvous_ms", "rebuild_ms", "restore_ms",
    "total_ms",  "noticed_ms", "pause_ms",      "resumed_ms", "outage_ms"};
static const double quantiles[] = {0.5, 0.99, 1};
static const char *const quantile_names[] = {"p50", "p99", "max"};
enum {
    QUANTILES = sizeof quantiles / sizeof *quantiles,
    DETECT_BAR_MS = 500,
    RESUME_BAR_MS = 2000,
    DEATH_BAR_MS = 3000 /* plus the time of a step */
};

static bool is_death(const struct recover_trial *t)
{
    return t->fault == REC_KILL_RANK || t->fault == REC_KILL_NODE || t->doubled;
}

static bool is_in_row(const struct recover_trial *t, int strategy, int row)
{
    if (strategy != ALL && t->strategy != strategy)
        return false;
    return row == DEATH ? is_death(t) : row == (t->doubled ? SECOND : (int)t->fault);
}

static const char *row_name(int row)
{
    return row < REC_FAULT_COUNT ? recover_fault_names[row]
           : row == SECOND       ? "second fault"
                                 : "death";
}

static double trial_column(const struct recover_trial *t, int column)
{
    const double measured[] = {t->noticed_ms, t->pause_ms, t->resumed_ms, t->outage_ms};
    if (!t->measured)
        return NAN;
    if (column >= REC_PHASE_COUNT)
        return measured[column - REC_PHASE_COUNT];
    return t->generation.has_event ? t->generation.phase_ms[column] : NAN;
}

struct view { /* some of the trials */
    const struct recover_trial *trials;
    int n, strategy, row;
};

/* Nearest-rank quantiles of a column; NAN without values. */
static void quantiles_of(const struct view *v, int column, double ret[QUANTILES])
{
    double *values = calloc((size_t)v->n + 1, sizeof *values);
    int count = 0;
    DPT_ASSERT(values);
    for (int i = 0; i < v->n; i++)
        if (is_in_row(&v->trials[i], v->strategy, v->row) &&
            !isnan(trial_column(&v->trials[i], column)))
            values[count++] = trial_column(&v->trials[i], column);
    dpt_sort_doubles(values, count);
    for (int q = 0; q < QUANTILES; q++)
        ret[q] = count > 0 ? values[(int)ceil(quantiles[q] * count) - 1] : NAN;
    free(values);
}

static int trials_of(const struct view *v)
{
    int count = 0;
    for (int i = 0; i < v->n; i++)
        count += is_in_row(&v->trials[i], v->strategy, v->row);
    return count;
}

static void print_recover_row(const struct view *v)
{
    double of[COLUMNS][QUANTILES];
    for (int c = 0; c < COLUMNS; c++)
        quantiles_of(v, c, of[c]);
    for (int q = 0; q < QUANTILES; q++) {
        if (q == 0)
            printf("%-12s %4d  %s", row_name(v->row), trials_of(v), quantile_names[q]);
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

/* True: a kill was detected too late, or the run resumed too late after it. Other faults have no
 * bar: a join is requested, not detected, and a stop is found only when the lease ends. */
static bool over_bar(const struct recover_trial *t)
{
    bool loss = t->fault == REC_KILL_RANK || t->fault == REC_KILL_NODE;
    return loss && t->measured &&
           ((t->generation.has_event && t->generation.phase_ms[REC_DETECT] > DETECT_BAR_MS) ||
            t->resumed_ms > RESUME_BAR_MS + t->step_ms);
}

static int count_over_bar(const struct recover_trial *trials, int n)
{
    int count = 0;
    for (int i = 0; i < n; i++)
        count += over_bar(&trials[i]);
    return count;
}

/* The 99th percentile of what the death of a process costs beyond one step. The cost of a trial is
 * the larger of two times: the total of the event of the generation that continued, and the time
 * that this bench measured from the first fault on. The latter includes a second fault and the work
 * that it undid. */
static double death_p99_ms(const struct recover_trial *trials, int n)
{
    double *values = calloc((size_t)n + 1, sizeof *values);
    int count = 0;
    DPT_ASSERT(values);
    for (int i = 0; i < n; i++) {
        const double event = trial_column(&trials[i], REC_TOTAL), outside = trials[i].outage_ms;
        if (is_death(&trials[i]) && trials[i].measured)
            values[count++] = fmax(isnan(event) ? 0 : event, outside - trials[i].step_ms);
    }
    dpt_sort_doubles(values, count);
    const double p99 = count > 0 ? values[(int)ceil(0.99 * count) - 1] : NAN;
    free(values);
    return p99;
}

void recover_report_sum(const struct recover_trial *trials, struct recover_totals *totals)
{
    for (int i = 0; i < totals->trials; i++) {
        totals->survivors_changed += trials[i].measured && !trials[i].survivors_kept;
        totals->hash_differences += trials[i].differs;
    }
    for (int i = 0; i < totals->n_outcomes; i++) {
        const struct recover_outcome *o = &totals->outcomes[i];
        totals->steps_lost += o->steps_lost;
        totals->steps_repeated += o->steps_repeated + o->steps_skipped;
        /* A run that the bench did not get to compare is not clean, but counts as no difference. */
        totals->hash_differences +=
            o->hash[0] && o->calm_hash[0] && strcmp(o->hash, o->calm_hash) != 0;
    }
}

bool recover_report_is_good(const struct recover_totals *totals)
{
    return totals->clean && totals->hangs == 0 && totals->steps_lost == 0 &&
           totals->steps_repeated == 0 && totals->survivors_changed == 0 &&
           totals->hash_differences == 0;
}

static void print_outcome(const struct recover_trial *trials, const struct recover_totals *totals,
                          int i)
{
    const struct recover_outcome *o = &totals->outcomes[i];
    printf("\n%s, %d nodes of %d\n%-12s %4s  %3s", o->strategy->name, o->nodes,
           o->strategy->ranks_per_node, "fault", "n", "");
    for (int c = 0; c < COLUMNS; c++)
        printf("%14s", columns[c]);
    printf("\n");
    for (int row = 0; row < ROWS; row++) {
        const struct view v = {trials, totals->trials, i, row};
        if (trials_of(&v) > 0)
            print_recover_row(&v);
    }
    printf(
        "%llu generations, %lld steps of %.1f ms: %lld lost, %lld logged twice, %lld never; %lld "
        "applied with a survivor's outcome; shadows rebuilt beside the steps %lld times\n%s after "
        "step %lld, %s undisturbed; %lld steps equal "
        "in loss and norm\n",
        (unsigned long long)o->generations, (long long)o->steps, o->step_ms,
        (long long)o->steps_lost, (long long)o->steps_repeated, (long long)o->steps_skipped,
        (long long)o->outcomes_told, (long long)o->rebuilds,
        o->hash[0] ? o->hash : "no weights_hash", (long long)o->steps,
        o->calm_hash[0] ? o->calm_hash : "none", (long long)o->calm_steps);
}

static void print_landings(const struct recover_trial *trials, int n)
{
    int landed[REC_LANDING_COUNT] = {0}, doubled = 0;
    for (int i = 0; i < n; i++)
        if (trials[i].doubled && trials[i].measured) {
            landed[trials[i].landing]++;
            doubled++;
        }
    printf("second faults: %d; they came while", doubled);
    for (int l = 0; l < REC_LANDING_COUNT; l++)
        printf("%s %s %d", l ? "," : "", recover_landing_names[l], landed[l]);
    printf("\n");
}

void recover_report_print(const struct recover_trial *trials, const struct recover_totals *totals)
{
    for (int i = 0; i < totals->n_outcomes; i++)
        print_outcome(trials, totals, i);
    printf("\n%d trials of %d in %.0f s: %d hangs, %lld steps lost, %lld steps logged twice or "
           "never, %d hash differences, survivors restarted in %d trials; %s\n",
           totals->trials, totals->trials_wanted, totals->seconds, totals->hangs,
           (long long)totals->steps_lost, (long long)totals->steps_repeated,
           totals->hash_differences, totals->survivors_changed,
           totals->clean ? "nothing was left over" : "NOT ended cleanly");
    print_landings(trials, totals->trials);
    printf(
        "death of a process: p99 %.0f ms beyond a step, bar %d, from a trial's first fault to the "
        "first step after its last; kills detected later than %d ms, or the next step later than "
        "%d ms and a step after the last fault: %d; load of the machine %.1f before, "
        "%.1f after\n",
        death_p99_ms(trials, totals->trials), DEATH_BAR_MS, DETECT_BAR_MS, RESUME_BAR_MS,
        count_over_bar(trials, totals->trials), totals->load_before, totals->load_after);
}

/* ---- JSON ---- */

static json_t *number_or_null(double value)
{
    return isnan(value) ? json_null() : json_real(value);
}

static json_t *trial_json(const struct recover_trial *t, const struct recover_totals *totals)
{
    json_t *o = json_pack(
        "{s:s, s:s, s:s, s:s?, s:s?, s:s, s:b, s:I, s:i, s:s, s:o, s:o, s:I, s:I, s:I, s:b, s:b, "
        "s:b, s:o}",
        "strategy", totals->outcomes[t->strategy].strategy->name, "fault",
        recover_fault_names[t->fault], "aim", recover_aim_names[t->aim], "second",
        t->doubled ? recover_fault_names[t->second] : NULL, "aim_second",
        t->doubled ? recover_aim_names[t->aim_second] : NULL, "landing",
        recover_landing_names[t->landing], "measured", t->measured, "generation",
        (json_int_t)t->generation.number, "world_size", t->generation.world, "kind",
        t->generation.kind, "step_ms", number_or_null(t->step_ms), "back_ms",
        number_or_null(t->back_ms), "steps_lost", (json_int_t)t->steps_lost, "first_step",
        (json_int_t)t->first_step, "end_step", (json_int_t)t->end_step, "compared", t->compared,
        "differs", t->differs, "survivors_kept", t->survivors_kept, "load",
        number_or_null(t->load));
    for (int c = 0; c < COLUMNS; c++)
        (void)json_object_set_new(o, columns[c], number_or_null(trial_column(t, c)));
    return o;
}

static json_t *row_json(const struct view *v)
{
    json_t *o = json_pack("{s:s, s:i}", "fault", row_name(v->row), "trials", trials_of(v));
    for (int c = 0; c < COLUMNS; c++) {
        double of[QUANTILES];
        json_t *column = json_object();
        quantiles_of(v, c, of);
        for (int q = 0; q < QUANTILES; q++)
            (void)json_object_set_new(column, quantile_names[q], number_or_null(of[q]));
        (void)json_object_set_new(o, columns[c], column);
    }
    return o;
}

static json_t *rows_json(const struct recover_trial *trials, int n, int strategy)
{
    json_t *rows = json_array();
    for (int row = 0; row < ROWS; row++) {
        const struct view v = {trials, n, strategy, row};
        if (trials_of(&v) > 0)
            (void)json_array_append_new(rows, row_json(&v));
    }
    return rows;
}

static json_t *outcome_json(const struct recover_trial *trials, const struct recover_totals *totals,
                            int i)
{
    const struct recover_outcome *o = &totals->outcomes[i];
    return json_pack("{s:s, s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:s, s:s, s:I, s:o}",
                     "strategy", o->strategy->name, "nodes", o->nodes, "ranks_per_node",
                     o->strategy->ranks_per_node, "generations", (json_int_t)o->generations,
                     "steps", (json_int_t)o->steps, "steps_lost", (json_int_t)o->steps_lost,
                     "steps_logged_twice", (json_int_t)o->steps_repeated, "steps_never_logged",
                     (json_int_t)o->steps_skipped, "outcomes_told", (json_int_t)o->outcomes_told,
                     "shadows_rebuilt", (json_int_t)o->rebuilds, "step_ms", o->step_ms,
                     "weights_hash", o->hash, "calm_hash", o->calm_hash, "calm_steps_equal",
                     (json_int_t)o->calm_steps, "faults", rows_json(trials, totals->trials, i));
}

json_t *recover_report_json(const struct recover_trial *trials, const struct recover_totals *totals)
{
    json_t *strategies = json_array(), *all = json_array();
    for (int i = 0; i < totals->n_outcomes; i++)
        (void)json_array_append_new(strategies, outcome_json(trials, totals, i));
    for (int i = 0; i < totals->trials; i++)
        (void)json_array_append_new(all, trial_json(&trials[i], totals));
    return json_pack(
        "{s:s, s:i, s:f, s:f, s:b, s:I, s:i, s:i, s:f, s:i, s:I, s:I, s:i, s:i, s:i, s:o, s:b, "
        "s:f, "
        "s:f, s:o, s:o, s:o}",
        "bench", "recover", "n_embd", totals->n_embd, "timeout_s", totals->timeout_s, "rebuild_mib",
        totals->rebuild_mib, "one_host", totals->one_host, "seed", (json_int_t)totals->seed,
        "trials_wanted", totals->trials_wanted, "trials", totals->trials, "seconds",
        totals->seconds, "hangs", totals->hangs, "steps_lost", (json_int_t)totals->steps_lost,
        "steps_logged_wrong", (json_int_t)totals->steps_repeated, "hash_differences",
        totals->hash_differences, "survivors_restarted", totals->survivors_changed, "over_bar",
        count_over_bar(trials, totals->trials), "death_p99_ms",
        number_or_null(death_p99_ms(trials, totals->trials)), "clean", totals->clean, "load_before",
        totals->load_before, "load_after", totals->load_after, "strategies", strategies, "faults",
        rows_json(trials, totals->trials, ALL), "all", all);
}
