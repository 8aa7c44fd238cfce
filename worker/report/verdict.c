/* Names the bottleneck (verdict.h). */
#include "worker/report/verdict.h"

#include <math.h>
#include <string.h>

/* Work is uneven if the last rank has this much more than the others. */
static const double work_excess_min = 0.02;
/* Uneven work is the cause if it explains this part of the lost time. */
static const double explained_min = 0.5;
/* One rank waits for data if the mean of the others waits for less than this part of its time. */
static const double shared_wait_min = 0.5;

/* Means over the steps, in ns. */
struct sums {
    double step;                                        /* of all ranks */
    double own, data, save, evaluation, late, transfer; /* of the last rank of each step */
    double persistent;     /* the part of `late` that one rank has in all steps */
    double data_elsewhere; /* mean wait for data of the other ranks */
    double work_excess;    /* of the last rank over the others, as a share */
    bool knows_work;       /* the traces say it; else the excess is 0 */
    double exposed, wait;  /* exposed transfer, and wait for late peers, mean over the ranks */
    int last_rank;         /* that is the last by its mean over the steps */
    int data_rank;         /* that waits longest for data */
};

static const struct report_step_times *times_at(const struct report_run_times *t, size_t rank,
                                                size_t step)
{
    return &t->at[rank * t->n_steps + step];
}

/* The time in which the other ranks may have to wait for this one. */
static double busy_ns(const struct report_step_times *t)
{
    return t->own_ns + t->data_ns + t->save_ns + t->evaluation_ns;
}

static size_t last_rank_of(const struct report_run_times *t, size_t step)
{
    size_t last = 0;
    for (size_t r = 1; r < t->n_ranks; r++)
        if (busy_ns(times_at(t, r, step)) > busy_ns(times_at(t, last, step)))
            last = r;
    return last;
}

/* Mean of a member over the ranks other than `but`. */
static double mean_of_others(const struct report_run_times *t, size_t but, size_t step,
                             size_t member)
{
    double sum = 0;
    for (size_t r = 0; r < t->n_ranks; r++) {
        double value;
        memcpy(&value, (const char *)times_at(t, r, step) + member, sizeof value);
        sum += r == but ? 0 : value;
    }
    return t->n_ranks > 1 ? sum / (double)(t->n_ranks - 1) : 0;
}

/* Adds a step, in which the ranks wait for the last one. */
static void add_step(const struct report_run_times *t, size_t step, struct sums *s)
{
    const size_t last = last_rank_of(t, step);
    const struct report_step_times *of_last = times_at(t, last, step);
    const double others =
        t->n_ranks > 1 ? mean_of_others(t, last, step, offsetof(struct report_step_times, own_ns))
                       : of_last->own_ns;
    const double late = fmax(0, of_last->own_ns - others), n = (double)t->n_steps;
    s->own += (of_last->own_ns - late) / n;
    s->late += late / n;
    s->data += of_last->data_ns / n;
    s->save += of_last->save_ns / n;
    s->evaluation += of_last->evaluation_ns / n;
    s->transfer += of_last->transfer_ns / n;
    for (size_t r = 0; r < t->n_ranks; r++) {
        s->step += times_at(t, r, step)->step_ns / (n * (double)t->n_ranks);
        s->exposed += times_at(t, r, step)->transfer_ns / (n * (double)t->n_ranks);
        s->wait += times_at(t, r, step)->wait_ns / (n * (double)t->n_ranks);
    }
}

/* The rank with the largest sum of a member over the steps. */
static size_t largest_rank(const struct report_run_times *t, size_t member)
{
    size_t largest = 0;
    double most = -1;
    for (size_t r = 0; r < t->n_ranks; r++) {
        double sum = 0;
        for (size_t step = 0; step < t->n_steps; step++) {
            double value;
            memcpy(&value, (const char *)times_at(t, r, step) + member, sizeof value);
            sum += value;
        }
        if (sum > most) {
            most = sum;
            largest = r;
        }
    }
    return largest;
}

/* The excess of one rank in a member over the mean of the others, as a mean over the steps. */
static double excess_of(const struct report_run_times *t, size_t rank, size_t member,
                        double *ret_others)
{
    double excess = 0, others = 0;
    for (size_t step = 0; step < t->n_steps; step++) {
        double value;
        memcpy(&value, (const char *)times_at(t, rank, step) + member, sizeof value);
        const double rest = mean_of_others(t, rank, step, member);
        excess += (value - rest) / (double)t->n_steps;
        others += rest / (double)t->n_steps;
    }
    *ret_others = others;
    return excess;
}

/* Compares the work of each step's last rank with that of the others. */
static void compare_work(const struct report_run_times *t, struct sums *s)
{
    double more = 0, others = 0;
    for (size_t step = 0; step < t->n_steps; step++) {
        const size_t last = last_rank_of(t, step);
        const double mean = mean_of_others(t, last, step, offsetof(struct report_step_times, work));
        more += times_at(t, last, step)->work - mean;
        others += mean;
    }
    s->knows_work = others > 0;
    s->work_excess = others > 0 ? more / others : 0;
}

static struct sums sum_up(const struct report_run_times *t)
{
    struct sums s = {0};
    double others;
    for (size_t step = 0; step < t->n_steps; step++)
        add_step(t, step, &s);
    const size_t slow = largest_rank(t, offsetof(struct report_step_times, own_ns)),
                 starved = largest_rank(t, offsetof(struct report_step_times, data_ns));
    s.last_rank = t->rank[slow];
    s.data_rank = t->rank[starved];
    if (t->n_ranks > 1) {
        s.persistent =
            fmax(0, excess_of(t, slow, offsetof(struct report_step_times, own_ns), &others));
        compare_work(t, &s);
        (void)excess_of(t, starved, offsetof(struct report_step_times, data_ns), &others);
        s.data_elsewhere = others;
    }
    return s;
}

/* Whether the lost time comes from uneven work. */
static bool work_is_uneven(const struct sums *s)
{
    if (s->work_excess >= work_excess_min)
        return s->own * s->work_excess >= explained_min * s->late;
    return s->persistent < explained_min * s->late;
}

void report_verdict_find(const struct report_run_times *times, struct dpt_report_verdict *ret)
{
    const struct sums s = sum_up(times);
    const double percent = s.step > 0 ? 100 / s.step : 0;
    *ret = (struct dpt_report_verdict){.cause = REPORT_COMPUTE, .rank = -1};
    ret->exposed_percent = s.exposed * percent;
    ret->wait_percent = s.wait * percent;
    ret->share[REPORT_COMPUTE] = s.own * percent;
    ret->share[REPORT_COMMUNICATION] = s.transfer * percent;
    ret->share[work_is_uneven(&s) ? REPORT_IMBALANCE : REPORT_STRAGGLER] = s.late * percent;
    ret->share[REPORT_DATA] = s.data * percent;
    ret->share[REPORT_CHECKPOINT] = s.save * percent;
    ret->share[REPORT_EVALUATION] = s.evaluation * percent;
    for (int cause = 0; cause < REPORT_CAUSES; cause++)
        if (cause != REPORT_COMPUTE && ret->share[cause] >= REPORT_CAUSE_PERCENT &&
            (ret->cause == REPORT_COMPUTE || ret->share[cause] > ret->share[ret->cause]))
            ret->cause = (enum dpt_report_cause)cause;
    const bool is_of_one_rank = times->n_ranks > 1 && s.data_elsewhere < shared_wait_min * s.data;
    if (ret->cause == REPORT_STRAGGLER)
        ret->rank = s.last_rank;
    if (ret->cause == REPORT_DATA && is_of_one_rank)
        ret->rank = s.data_rank;
    report_verdict_write(
        ret, &(struct report_verdict_facts){.step_ms = s.step / 1e6,
                                            .lost_ms = ret->share[ret->cause] * s.step / 1e8,
                                            .work_excess_percent = 100 * s.work_excess,
                                            .knows_work = s.knows_work,
                                            .is_of_one_rank = is_of_one_rank,
                                            .run = times});
}
