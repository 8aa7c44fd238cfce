/* Speed-up, efficiency and the causes of lost time of worlds of different size. Pure.
 *
 * All figures are relative to the smallest world, the base: N ranks are ideally N / N_base times as
 * fast. Strong scaling: the global batch is constant. Weak scaling: the batch of a rank is. */
#ifndef DPT_WORKER_BENCH_SCALING_FIGURES_H
#define DPT_WORKER_BENCH_SCALING_FIGURES_H

#include <stdbool.h>

/* One world: means or medians of a step. */
struct scaling_point {
    int ranks;
    double step_ms;
    double exposed_ms; /* of transfers that no computation hides */
    double late_ms;    /* waits for ranks that come later, mean over the ranks */
    double busiest;    /* slots of the rank that has most, over the mean; >= 1 */
};

/* processors: ranks that can compute at the same time, GPUs or cores / threads of a rank. */
struct scaling_terms {
    bool weak;
    double processors;
};

/* The work done in a time, over that of the base in the same time. */
double scaling_speed_up(bool weak, const struct scaling_point *base,
                        const struct scaling_point *point);
/* Speed-up over the ideal speed-up. */
double scaling_efficiency(bool weak, const struct scaling_point *base,
                          const struct scaling_point *point);
/* The efficiency that the processors allow: below 1 if the world has more ranks than processors. */
double scaling_bound(double processors, const struct scaling_point *base,
                     const struct scaling_point *point);

/* What a step is longer for than the ideal step, in the order in which it is attributed. */
enum scaling_cause {
    SCALING_PROCESSORS,    /* ranks share processors */
    SCALING_COMMUNICATION, /* exposed transfers, beyond the base's */
    SCALING_IMBALANCE,     /* ranks wait for those with more slots */
    SCALING_STRAGGLER,     /* ranks wait for others for other reasons */
    SCALING_COMPUTATION,   /* a rank computes longer than its share of the base's computation */
    SCALING_CAUSES
};

struct scaling_loss {
    double ideal_ms; /* the base's step, divided by the ideal speed-up */
    double ms[SCALING_CAUSES];
};

/* Attributes step_ms - ideal_ms; the causes add up to it. While ranks share processors, ranks also
 * wait because others have their turn: waits then count only as far as they are longer than the
 * time that sharing costs. COMPUTATION is the rest, and may be negative. */
struct scaling_loss scaling_loss_of(const struct scaling_terms *terms,
                                    const struct scaling_point *base,
                                    const struct scaling_point *point);

/* The cause of the largest loss; SCALING_CAUSES if the step is at most 5 % longer than ideal. */
enum scaling_cause scaling_bottleneck(const struct scaling_point *point,
                                      const struct scaling_loss *loss);

#endif
