/* The table of dpt-bench collectives: rows in nccl-tests' form, and the same as JSON. */
#ifndef DPT_WORKER_BENCH_COLLECTIVES_TABLE_H
#define DPT_WORKER_BENCH_COLLECTIVES_TABLE_H

#include "worker/plan/pattern.h"

#include <jansson.h>
#include <stdio.h>

enum { COLLECTIVE_FORMS = 2 }; /* out of place, in place */

struct collective_table {
    enum dpt_collective collective;
    const char *algorithm;
    int n_ranks, n_hosts, warmup, rounds;
};

/* One form of one size. */
struct collective_figure {
    bool measured; /* false: the collective does not have this form */
    double us, median_us, least_us;
    int64_t wrong; /* elements, of all ranks */
};

struct collective_row {
    enum dpt_collective collective;
    int n_ranks;
    int64_t numel; /* floats of the vector */
    struct collective_figure form[COLLECTIVE_FORMS];
};

/* GB/s (1e9 bytes) of a figure. */
double collective_algbw(const struct collective_row *row, const struct collective_figure *figure);
double collective_busbw(const struct collective_row *row, const struct collective_figure *figure);

/* Sums over the rows of a table. */
struct collective_total {
    int n;
    double busbw;
    int64_t wrong;
};
void collective_total_add(struct collective_total *total, const struct collective_row *row);

void collective_print_head(FILE *out, const struct collective_table *table);
void collective_print_row(FILE *out, const struct collective_row *row);
void collective_print_total(FILE *out, const struct collective_total *total);

/* New references; `rows` is taken. */
json_t *collective_row_json(const struct collective_row *row);
json_t *collective_table_json(const struct collective_table *table,
                              const struct collective_total *total, json_t *rows);

#endif
