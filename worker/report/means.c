/* Means over the ranks (means.h). */
#include "worker/report/means.h"

#include <math.h>
#include <string.h>

#define COLUMN(name)                                                                               \
    {                                                                                              \
#name, offsetof(struct dpt_report_means, name)                                             \
    }
const struct report_mean_column report_mean_columns[] = {
    COLUMN(step_ms),         COLUMN(compute_percent), COLUMN(non_compute_percent),
    COLUMN(idle_percent),    COLUMN(overlap_percent), COLUMN(comm_overhead_percent),
    COLUMN(exposed_percent), COLUMN(wait_ms),         COLUMN(data_wait_ms),
    COLUMN(checkpoint_ms),   COLUMN(all_reduce_ms),   COLUMN(collective_bytes),
    COLUMN(memory_peak_mib),
};
const size_t report_n_mean_columns = sizeof report_mean_columns / sizeof *report_mean_columns;

double report_mean_get(const struct dpt_report_means *means, size_t column)
{
    double value;
    memcpy(&value, (const char *)means + report_mean_columns[column].offset, sizeof value);
    return value;
}

void report_mean_set(struct dpt_report_means *means, size_t column, double value)
{
    memcpy((char *)means + report_mean_columns[column].offset, &value, sizeof value);
}

double report_step_ms(const struct dpt_report_rank *rank)
{
    double sum = 0;
    for (size_t s = 0; s < rank->n_steps; s++)
        sum += (double)rank->step_ns[s];
    return sum / 1e6 / (double)rank->n_steps;
}

static double per_step_ms(const struct dpt_report_rank *rank, int64_t ns)
{
    return (double)ns / 1e6 / (double)rank->n_steps;
}

struct dpt_report_means report_means_of_rank(const struct dpt_report_rank *rank)
{
    double bytes = 0;
    for (int kind = 0; kind < REPORT_COLLECTIVES; kind++)
        bytes += rank->collective[kind].bytes;
    return (struct dpt_report_means){
        .step_ms = report_step_ms(rank),
        .compute_percent = rank->time.compute_percent,
        .non_compute_percent = rank->time.non_compute_percent,
        .idle_percent = rank->time.idle_percent,
        .overlap_percent = rank->time.overlap_percent,
        .comm_overhead_percent = rank->time.comm_overhead_percent,
        .exposed_percent = rank->time.exposed_percent,
        .wait_ms = per_step_ms(rank, rank->phases.peer_wait_ns),
        .data_wait_ms = per_step_ms(rank, rank->phases.data_wait_ns),
        .checkpoint_ms = per_step_ms(rank, rank->phases.checkpoint_ns),
        .all_reduce_ms = per_step_ms(rank, rank->collective[REPORT_ALL_REDUCE].time_ns),
        .collective_bytes = bytes / (double)rank->n_steps,
        .memory_peak_mib = rank->memory.peak == REPORT_UNKNOWN
                               ? (double)NAN
                               : (double)rank->memory.peak / (1 << 20),
    };
}

/* A value that some ranks do not have is the mean of the others. */
void report_means_find(struct dpt_report *report)
{
    for (size_t column = 0; column < report_n_mean_columns; column++) {
        double sum = 0;
        size_t n = 0;
        for (size_t r = 0; r < report->n_ranks; r++) {
            const struct dpt_report_means of_rank = report_means_of_rank(&report->ranks[r]);
            const double value = report_mean_get(&of_rank, column);
            if (isfinite(value)) {
                sum += value;
                n++;
            }
        }
        report_mean_set(&report->means, column, n > 0 ? sum / (double)n : (double)NAN);
    }
}
