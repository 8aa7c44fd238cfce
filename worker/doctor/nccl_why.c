/* Why NCCL chose an algorithm and protocol (nccl_tuning.h).
 *
 * NCCL takes the pair whose predicted time is least. Its table, which the log has, gives latency
 * and bandwidth; NCCL corrects the times of trees and, between nodes, of rings, adds the latencies
 * of grouped calls, and leaves out what an operation or type cannot use. So a pair of the table may
 * look faster than the one that was chosen, and the reason says so. */
#include "worker/doctor/nccl_words.h"

#include <stdio.h>
#include <string.h>

/* NCCL 2.20 and 2.21 print the start value of their search if nothing enabled fits. */
static const double nothing_fits_us = 3.6e9;

/* A collective's times in the table of its communicator. */
struct row {
    const struct dpt_nccl_table *table;
    int collective;
    double bytes; /* of an all-gather or reduce-scatter: of all ranks */
};

/* False: the log has no table for the choice, or does not name its collective or its ranks. */
static bool find_row(const struct dpt_nccl_tuning *tuning, const struct dpt_nccl_choice *choice,
                     struct row *ret)
{
    const int collective = dpt_nccl_find_collective(choice->collective);
    if (choice->table < 0 || choice->algorithm < 0 || collective < 0)
        return false;
    const bool is_gathered = strcmp(choice->collective, "AllGather") == 0 ||
                             strcmp(choice->collective, "ReduceScatter") == 0;
    const struct dpt_nccl_table *table = &tuning->table[choice->table];
    const int parts = choice->per_rank && is_gathered ? table->ranks : 1;
    *ret = (struct row){table, collective, (double)choice->bytes * parts};
    return parts > 0;
}

/* < 0: the pair is not enabled. */
static double predict_us(const struct row *row, int algorithm, int protocol)
{
    const struct dpt_nccl_cell *cell = &row->table->cell[row->collective][algorithm][protocol];
    return cell->gb_per_s > 0 ? cell->latency_us + row->bytes / (1000.0 * cell->gb_per_s) : -1;
}

double dpt_nccl_choice_us(const struct dpt_nccl_tuning *tuning,
                          const struct dpt_nccl_choice *choice)
{
    struct row row;
    if (choice->time_us >= 0 && choice->time_us < nothing_fits_us)
        return choice->time_us;
    return find_row(tuning, choice, &row) ? predict_us(&row, choice->algorithm, choice->protocol)
                                          : -1;
}

/* Another pair than the choice, with the least time; false: none is enabled. */
static bool find_rival(const struct row *row, const struct dpt_nccl_choice *choice,
                       int *ret_algorithm, int *ret_protocol)
{
    double least = -1;
    for (int a = 0; a < DPT_NCCL_ALGORITHMS; a++)
        for (int p = 0; p < DPT_NCCL_PROTOCOLS; p++) {
            const double us = predict_us(row, a, p);
            if (us < 0 || (least >= 0 && us >= least) ||
                (a == choice->algorithm && p == choice->protocol))
                continue;
            least = us;
            *ret_algorithm = a;
            *ret_protocol = p;
        }
    return least >= 0;
}

/* By the table: the choice beside the best of the others. */
static void compare(const struct row *row, const struct dpt_nccl_choice *choice, char *ret,
                    size_t bytes)
{
    int algorithm = 0, protocol = 0;
    const double own = predict_us(row, choice->algorithm, choice->protocol);
    const bool has_rival = find_rival(row, choice, &algorithm, &protocol);
    const double rival = has_rival ? predict_us(row, algorithm, protocol) : -1;
    if (own < 0)
        (void)snprintf(ret, bytes, "the table of the log does not enable it");
    else if (!has_rival)
        (void)snprintf(ret, bytes, "the only one that is enabled");
    else if (own <= rival)
        (void)snprintf(ret, bytes, "least predicted time; next %s %s %.1f us",
                       dpt_nccl_algorithm_name(algorithm), dpt_nccl_protocol_name(protocol), rival);
    else
        (void)snprintf(
            ret, bytes,
            "by the table %s %s takes %.1f us, this %.1f us: for reasons that the log lacks",
            dpt_nccl_algorithm_name(algorithm), dpt_nccl_protocol_name(protocol), rival, own);
}

static void explain(const struct dpt_nccl_tuning *tuning, const struct dpt_nccl_choice *choice,
                    char *ret, size_t bytes)
{
    struct row row;
    if (choice->algorithm < 0)
        (void)snprintf(ret, bytes, "the buffers are registered; the table is not asked");
    else if (choice->time_us >= nothing_fits_us)
        (void)snprintf(ret, bytes, "nothing that is enabled fits: NCCL's fallback");
    else if (find_row(tuning, choice, &row))
        compare(&row, choice, ret, bytes);
    else if (choice->time_us >= 0)
        (void)snprintf(ret, bytes, "least predicted time");
    else
        (void)snprintf(ret, bytes, "not known: %s",
                       choice->table < 0 ? "the log has no table of its communicator"
                                         : "the log has no line with its number of ranks");
}

void dpt_nccl_choice_why(const struct dpt_nccl_tuning *tuning, const struct dpt_nccl_choice *choice,
                         char ret_text[DPT_NCCL_WHY_BYTES])
{
    char why[DPT_NCCL_WHY_BYTES / 2], set[DPT_NCCL_WHY_BYTES / 2] = "";
    explain(tuning, choice, why, sizeof why);
    if (choice->algorithm >= 0 && (tuning->algo[0] != '\0' || tuning->proto[0] != '\0'))
        (void)snprintf(set, sizeof set, "%s%.36s%s%s%.36s set by the environment; ",
                       tuning->algo[0] != '\0' ? "NCCL_ALGO=" : "", tuning->algo,
                       tuning->algo[0] != '\0' && tuning->proto[0] != '\0' ? ", " : "",
                       tuning->proto[0] != '\0' ? "NCCL_PROTO=" : "", tuning->proto);
    (void)snprintf(ret_text, DPT_NCCL_WHY_BYTES, "%s%s", set, why);
}
