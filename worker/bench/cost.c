/* The cost of measured work (cost.h). */
#include "worker/bench/cost.h"

#include <stdio.h>

static const double hour_s = 3600, million = 1e6;

double bench_dollars(double price, int machines, double seconds)
{
    return price * machines * seconds / hour_s;
}

double bench_dollars_per_1m(double price, int machines, double per_s)
{
    return bench_dollars(price, machines, million / per_s);
}

void bench_cost_tell(double price, double dollars, json_t *report)
{
    if (price == 0)
        return;
    printf("Cost: $%.6g for the measured steps of all runs, at $%.6g a machine and hour\n", dollars,
           price);
    (void)json_object_set_new(report, "price", json_real(price));
    (void)json_object_set_new(report, "dollars", json_real(dollars));
}
