/* Goodput: the share of the wall time in which a run makes progress, while machines fail at random
 * (a Poisson process) and the run saves its state at a fixed interval. Pure.
 *
 * Sources: J. W. Young, "A first order approximation to the optimum checkpoint interval",
 * Communications of the ACM 17(9), 1974. J. T. Daly, "A higher order estimate of the optimum
 * checkpoint interval for restart dumps", Future Generation Computer Systems 22(3), 2006. */
#ifndef DPT_WORKER_PLANNER_GOODPUT_H
#define DPT_WORKER_PLANNER_GOODPUT_H

/* Seconds. */
struct dpt_failure_times {
    double mtbf_s;     /* mean time between two failures of any machine */
    double interval_s; /* training between two saves */
    double save_s;     /* a save, which stops training */
    double recover_s;  /* from a failure until training continues at the last save */
};

/* The mean time between failures of any of `machines` machines. */
double dpt_goodput_mtbf(double machine_mtbf_s, int machines);

/* The interval with the greatest goodput: Young's sqrt(2 save mtbf), and Daly's estimate of higher
 * order, which is mtbf where a save takes 2 mtbf or more. */
double dpt_goodput_young(double save_s, double mtbf_s);
double dpt_goodput_daly(double save_s, double mtbf_s);

/* Daly's complete model: interval / (mtbf e^(recover/mtbf) (e^((interval+save)/mtbf) - 1)).
 * Failures may also happen during a save and a recovery. */
double dpt_goodput(const struct dpt_failure_times *times);

/* The same where every step's result is on another machine, too: a failure costs the step in flight
 * and `times->recover_s`. This is dpt_goodput with an interval of one step and a save that takes no
 * time, multiplied by interval / (interval + save) for the saves to disk. */
double dpt_goodput_replicated(const struct dpt_failure_times *times, double step_s);

#endif
