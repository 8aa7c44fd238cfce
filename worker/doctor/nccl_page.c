/* What NCCL chose by size, as a page and as JSON (report.h). */
#include "worker/doctor/report.h"

#include <inttypes.h>
#include <string.h>

enum { CHOICES_SHOWN_MAX = 40, TABLES_SHOWN_MAX = 4, TIME_BYTES = 24, PAIR_BYTES = 40 };

/* "Ring LL128", "Copy Engine". */
static void print_pair(const struct dpt_nccl_choice *choice, char ret[PAIR_BYTES])
{
    if (choice->algorithm < 0)
        (void)snprintf(ret, PAIR_BYTES, "%s", choice->method);
    else
        (void)snprintf(ret, PAIR_BYTES, "%s %s", dpt_nccl_algorithm_name(choice->algorithm),
                       dpt_nccl_protocol_name(choice->protocol));
}

static void print_choice(const struct dpt_nccl_tuning *tuning, const struct dpt_nccl_choice *choice,
                         FILE *out)
{
    char pair[PAIR_BYTES], time[TIME_BYTES] = "-", channels[TIME_BYTES] = "-";
    char why[DPT_NCCL_WHY_BYTES];
    const double us = dpt_nccl_choice_us(tuning, choice);
    print_pair(choice, pair);
    dpt_nccl_choice_why(tuning, choice, why);
    if (us >= 0)
        (void)snprintf(time, sizeof time, "%.1f", us);
    if (choice->channels > 0)
        (void)snprintf(channels, sizeof channels, "%d", choice->channels);
    (void)fprintf(out, "  %-13s %12" PRIu64 "  %-20s %8s %7d %12s  %s\n",
                  choice->collective[0] != '\0' ? choice->collective : "-", choice->bytes, pair,
                  channels, choice->count, time, why);
}

/* Rows for the pairs that some collective can use. */
static void print_table(const struct dpt_nccl_table *table, FILE *out)
{
    (void)fprintf(out, "\n  times that NCCL predicts: latency in us / bandwidth in GB/s");
    if (table->ranks > 0)
        (void)fprintf(out, ", %d ranks", table->ranks);
    (void)fprintf(out, "\n  %-20s", "");
    for (int c = 0; c < DPT_NCCL_COLLECTIVES; c++)
        (void)fprintf(out, " %16s", dpt_nccl_collective_name(c));
    (void)fputc('\n', out);
    for (int i = 0; i < DPT_NCCL_ALGORITHMS * DPT_NCCL_PROTOCOLS; i++) {
        const int a = i / DPT_NCCL_PROTOCOLS, p = i % DPT_NCCL_PROTOCOLS;
        char name[PAIR_BYTES];
        bool is_enabled = false;
        for (int c = 0; c < DPT_NCCL_COLLECTIVES; c++)
            is_enabled = is_enabled || table->cell[c][a][p].gb_per_s > 0;
        if (!is_enabled)
            continue;
        (void)snprintf(name, sizeof name, "%s %s", dpt_nccl_algorithm_name(a),
                       dpt_nccl_protocol_name(p));
        (void)fprintf(out, "  %-20s", name);
        for (int c = 0; c < DPT_NCCL_COLLECTIVES; c++)
            if (table->cell[c][a][p].gb_per_s > 0)
                (void)fprintf(out, " %8.1f/%7.1f", (double)table->cell[c][a][p].latency_us,
                              (double)table->cell[c][a][p].gb_per_s);
            else
                (void)fprintf(out, " %16s", "-");
        (void)fputc('\n', out);
    }
}

void dpt_report_print_tuning(const struct dpt_nccl_tuning *tuning, FILE *out)
{
    if (tuning->n_choices > 0)
        (void)fprintf(out, "\n  %-13s %12s  %-20s %8s %7s %12s  %s\n", "collective", "bytes",
                      "choice", "channels", "times", "predicted us", "why");
    for (int i = 0; i < tuning->n_choices && i < CHOICES_SHOWN_MAX; i++)
        print_choice(tuning, &tuning->choice[i], out);
    if (tuning->n_choices > CHOICES_SHOWN_MAX)
        (void)fprintf(out, "  %d more; --json has all\n", tuning->n_choices - CHOICES_SHOWN_MAX);
    if (tuning->choices_left_out > 0)
        (void)fprintf(out, "  %d lines with further choices are left out\n",
                      tuning->choices_left_out);
    if (tuning->tuner[0] != '\0')
        (void)fprintf(out, "  a tuner plugin may have changed the predictions: %s\n",
                      tuning->tuner);
    for (int i = 0; i < tuning->n_tables && i < TABLES_SHOWN_MAX; i++)
        print_table(&tuning->table[i], out);
    const int more =
        tuning->tables_left_out +
        (tuning->n_tables > TABLES_SHOWN_MAX ? tuning->n_tables - TABLES_SHOWN_MAX : 0);
    if (more > 0)
        (void)fprintf(out, "  %d more tables; --json has %d\n", more, tuning->n_tables);
}

/* ---- JSON ---- */

static json_t *json_of_choice(const struct dpt_nccl_tuning *tuning,
                              const struct dpt_nccl_choice *choice)
{
    char why[DPT_NCCL_WHY_BYTES];
    const double us = dpt_nccl_choice_us(tuning, choice);
    const bool has_pair = choice->algorithm >= 0;
    dpt_nccl_choice_why(tuning, choice, why);
    return json_pack("{s:s, s:I, s:s, s:o, s:i, s:i, s:o, s:i, s:o}", "collective",
                     choice->collective, "bytes", (json_int_t)choice->bytes, "algorithm",
                     has_pair ? dpt_nccl_algorithm_name(choice->algorithm) : choice->method,
                     "protocol",
                     has_pair ? json_string(dpt_nccl_protocol_name(choice->protocol)) : json_null(),
                     "channels", choice->channels, "times", choice->count, "predicted_us",
                     us >= 0 ? json_real(us) : json_null(), "table", choice->table, "why",
                     dpt_finding_json_text(why));
}

/* Appends `item` (taken; NULL: no memory); without memory the array becomes NULL. */
static void append(json_t **array, json_t *item)
{
    if (*array && json_array_append_new(*array, item) == 0)
        return;
    if (!*array)
        json_decref(item);
    json_decref(*array);
    *array = NULL;
}

static json_t *json_of_choices(const struct dpt_nccl_tuning *tuning)
{
    json_t *array = json_array();
    for (int i = 0; array && i < tuning->n_choices; i++)
        append(&array, json_of_choice(tuning, &tuning->choice[i]));
    return array;
}

static json_t *json_of_table(const struct dpt_nccl_table *table)
{
    json_t *times = json_array();
    for (int i = 0; i < DPT_NCCL_COLLECTIVES * DPT_NCCL_ALGORITHMS * DPT_NCCL_PROTOCOLS; i++) {
        const int c = i / (DPT_NCCL_ALGORITHMS * DPT_NCCL_PROTOCOLS);
        const int a = i / DPT_NCCL_PROTOCOLS % DPT_NCCL_ALGORITHMS, p = i % DPT_NCCL_PROTOCOLS;
        const struct dpt_nccl_cell *cell = &table->cell[c][a][p];
        if (times && cell->gb_per_s > 0)
            append(&times,
                   json_pack("{s:s, s:s, s:s, s:f, s:f}", "collective", dpt_nccl_collective_name(c),
                             "algorithm", dpt_nccl_algorithm_name(a), "protocol",
                             dpt_nccl_protocol_name(p), "latency_us", (double)cell->latency_us,
                             "gb_per_s", (double)cell->gb_per_s));
    }
    return times ? json_pack("{s:i, s:o}", "ranks", table->ranks, "times", times) : NULL;
}

static json_t *json_of_tables(const struct dpt_nccl_tuning *tuning)
{
    json_t *array = json_array();
    for (int i = 0; array && i < tuning->n_tables; i++)
        append(&array, json_of_table(&tuning->table[i]));
    return array;
}

json_t *dpt_report_json_tuning(const struct dpt_nccl_tuning *tuning)
{
    return json_pack("{s:o, s:i, s:o, s:i, s:s}", "choices", json_of_choices(tuning),
                     "choices_left_out", tuning->choices_left_out, "tables", json_of_tables(tuning),
                     "tables_left_out", tuning->tables_left_out, "tuner", tuning->tuner);
}
