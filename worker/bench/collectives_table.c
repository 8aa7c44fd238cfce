/* Rows in nccl-tests' form (collectives_table.h). Columns and widths are those of nccl-tests, so
 * that programs which read its output read this one. */
#include "worker/bench/collectives_table.h"

#include "worker/bench/collective_math.h"

enum { CELL_BYTES = 24 };

static double bytes_of(const struct collective_row *row)
{
    return (double)row->numel * (double)sizeof(float);
}

double collective_algbw(const struct collective_row *row, const struct collective_figure *figure)
{
    return bytes_of(row) / figure->us * 1e-3;
}

double collective_busbw(const struct collective_row *row, const struct collective_figure *figure)
{
    return collective_algbw(row, figure) * collective_bus_factor(row->collective, row->n_ranks);
}

void collective_total_add(struct collective_total *total, const struct collective_row *row)
{
    for (int i = 0; i < COLLECTIVE_FORMS; i++)
        if (row->form[i].measured) {
            total->n++;
            total->busbw += collective_busbw(row, &row->form[i]);
            total->wrong += row->form[i].wrong;
        }
}

void collective_print_head(FILE *out, const struct collective_table *table)
{
    (void)fprintf(out,
                  "# dpt-bench collectives: %s, %s, %d ranks on %d host%s; %d warm-up and %d timed "
                  "rounds\n#\n",
                  dpt_collective_name(table->collective), table->algorithm, table->n_ranks,
                  table->n_hosts, table->n_hosts > 1 ? "s (TCP on loopback)" : "", table->warmup,
                  table->rounds);
    (void)fprintf(out,
                  "# %10s  %12s  %8s  %6s  %6s           out-of-place                       "
                  "in-place\n",
                  "", "", "", "", "");
    (void)fprintf(out, "# %10s  %12s  %8s  %6s  %6s  %7s  %6s  %6s %6s  %7s  %6s  %6s %6s\n",
                  "size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong",
                  "time", "algbw", "busbw", "#wrong");
    (void)fprintf(out, "# %10s  %12s  %8s  %6s  %6s  %7s  %6s  %6s %6s  %7s  %6s  %6s %6s\n", "(B)",
                  "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "", "(us)", "(GB/s)",
                  "(GB/s)", "");
    (void)fflush(out);
}

/* Seven columns: the time with as many digits as fit. */
static void format_time(double us, char ret[CELL_BYTES])
{
    (void)snprintf(ret, CELL_BYTES, us >= 10000 ? "%.0f" : us >= 100 ? "%.1f" : "%.2f", us);
}

void collective_print_row(FILE *out, const struct collective_row *row)
{
    const bool sums = row->collective == DPT_COLLECTIVE_ALL_REDUCE ||
                      row->collective == DPT_COLLECTIVE_REDUCE_SCATTER;
    (void)fprintf(out, "%12lld  %12lld  %8s  %6s  %6d",
                  (long long)row->numel * (long long)sizeof(float),
                  (long long)collective_count(row->collective, row->n_ranks, row->numel), "float",
                  sums ? "sum" : "none", row->collective == DPT_COLLECTIVE_BROADCAST ? 0 : -1);
    for (int i = 0; i < COLLECTIVE_FORMS; i++) {
        const struct collective_figure *figure = &row->form[i];
        char time[CELL_BYTES];
        format_time(figure->us, time);
        if (figure->measured)
            (void)fprintf(out, "  %7s  %6.2f  %6.2f %6lld", time, collective_algbw(row, figure),
                          collective_busbw(row, figure), (long long)figure->wrong);
        else
            (void)fprintf(out, "  %7s  %6s  %6s %6s", "N/A", "N/A", "N/A", "N/A");
    }
    (void)fputs("\n", out);
    (void)fflush(out);
}

void collective_print_total(FILE *out, const struct collective_total *total)
{
    (void)fprintf(out, "# Out of bounds values : %lld %s\n# Avg bus bandwidth    : %g\n#\n",
                  (long long)total->wrong, total->wrong == 0 ? "OK" : "FAILED",
                  total->n > 0 ? total->busbw / total->n : 0);
}

static json_t *figure_json(const struct collective_row *row, const struct collective_figure *figure)
{
    if (!figure->measured)
        return json_null();
    return json_pack("{s:f,s:f,s:f,s:f,s:f,s:I}", "time_us", figure->us, "median_us",
                     figure->median_us, "least_us", figure->least_us, "algbw_gb_per_s",
                     collective_algbw(row, figure), "busbw_gb_per_s", collective_busbw(row, figure),
                     "wrong", (json_int_t)figure->wrong);
}

json_t *collective_row_json(const struct collective_row *row)
{
    return json_pack("{s:I,s:I,s:o,s:o}", "bytes", (json_int_t)row->numel * 4, "count",
                     (json_int_t)collective_count(row->collective, row->n_ranks, row->numel),
                     "out_of_place", figure_json(row, &row->form[0]), "in_place",
                     figure_json(row, &row->form[1]));
}

json_t *collective_table_json(const struct collective_table *table,
                              const struct collective_total *total, json_t *rows)
{
    return json_pack("{s:s,s:s,s:i,s:i,s:i,s:f,s:I,s:o}", "collective",
                     dpt_collective_name(table->collective), "algorithm", table->algorithm, "ranks",
                     table->n_ranks, "hosts", table->n_hosts, "rounds", table->rounds,
                     "avg_busbw_gb_per_s", total->n > 0 ? total->busbw / total->n : 0, "wrong",
                     (json_int_t)total->wrong, "rows", rows);
}
