/* The cost of measured work: time on machines, at a price of a machine and hour. */
#ifndef DPT_WORKER_BENCH_COST_H
#define DPT_WORKER_BENCH_COST_H

#include "worker/bench/bench.h"

#include <jansson.h>

/* The price that a user gives: struct dpt_bench_real with these bounds; 0: not given. `of`: whose
 * hour it is, for the help. */
#define BENCH_PRICE_RANGE .min = 0, .max = 1e6
#define BENCH_PRICE_OPTION(target, of)                                                             \
    {                                                                                              \
        "--price", "DOLLARS", "price of an hour of " of, .set = dpt_bench_set_real,                \
                                                         .ctx = &(target)                          \
    }

/* Dollars of `machines` machines that are busy for this time. */
double bench_dollars(double price, int machines, double seconds);

/* Dollars of a million tokens or images at this rate of all machines together. per_s > 0. */
double bench_dollars_per_1m(double price, int machines, double per_s);

/* Prints the cost of all measured steps of a bench and adds it to its report, as "price" and
 * "dollars"; no effect if price is 0. */
void bench_cost_tell(double price, double dollars, json_t *report);

#endif
