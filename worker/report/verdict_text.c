/* The paragraph of a verdict (verdict.h). */
#include "worker/report/verdict.h"

#include <stdio.h>
#include <string.h>

struct remedy {
    const char *key, *text; /* the config key to change; a sentence that names it */
};

/* Communication by strategy. */
static const struct {
    const char *strategy;
    struct remedy remedy;
} communication[] = {
    {"simple",
     {"strategy.name", "With strategy.name: ddp buckets are sent during the backward pass"}},
    {"simple_ga",
     {"strategy.name", "With strategy.name: ddp buckets are sent during the backward pass"}},
    {"hook", {"strategy.name", "With strategy.name: ddp no tensor is waited for alone"}},
    {"async", {"strategy.name", "With strategy.name: ddp buckets are sent, not single tensors"}},
    {"full_shard",
     {"strategy.sharding",
      "With strategy.sharding: shard_grad_op the weights are gathered once per step"}},
    {"zero3",
     {"strategy.name", "With strategy.name: zero2 the weights are gathered once per step"}},
};

/* Of all strategies, if their gradients are sent after the backward pass. */
static const struct remedy overlap = {
    "strategy.overlap", "strategy.overlap: true sends gradients during the backward pass"};

/* Of the other strategies. Ranks of one host send fp32 to each other. */
static const struct remedy of_one_host = {
    "train.global_batch", "All ranks are on one host, where compression saves no bytes: a larger "
                          "train.global_batch computes longer for each exchange"};
static const struct remedy of_hosts = {"strategy.compression",
                                       "strategy.compression: bf16 halves the bytes between hosts"};
static const struct remedy of_unknown_hosts = {
    "strategy.compression",
    "If the ranks are on several hosts, strategy.compression: bf16 halves the bytes between them"};

/* Work below this excess is the same. */
static const double excess_percent_min = 1;

static struct remedy remedy_of_communication(const struct report_verdict_facts *facts)
{
    if (facts->setup.overlap == REPORT_OVERLAP_OFF)
        return overlap;
    for (size_t row = 0; row < sizeof communication / sizeof *communication; row++)
        if (strcmp(communication[row].strategy, facts->strategy) == 0)
            return communication[row].remedy;
    return facts->setup.hosts == 1  ? of_one_host
           : facts->setup.hosts > 1 ? of_hosts
                                    : of_unknown_hosts;
}

static struct remedy remedy_of(const struct dpt_report_verdict *v,
                               const struct report_verdict_facts *facts)
{
    switch (v->cause) {
    case REPORT_COMMUNICATION:
        return remedy_of_communication(facts);
    case REPORT_STRAGGLER:
        return (struct remedy){"cluster.threads",
                               "Look for other processes, a lower clock or a worse device there; "
                               "set cluster.threads to the cores that it has, or take its node "
                               "out of the run"};
    case REPORT_IMBALANCE:
        if (facts->knows_work && facts->work_excess_percent < excess_percent_min)
            return (struct remedy){"cluster.threads",
                                   "The ranks have the same work: look for other processes on "
                                   "their nodes; set cluster.threads to the cores that each has"};
        return (struct remedy){"train.global_batch",
                               "Make train.global_batch a multiple of train.micro_batch times the "
                               "number of ranks"};
    case REPORT_DATA:
        return (struct remedy){"data.train",
                               "Put data.train on a faster disk, or prepare it once with dpt-data"};
    case REPORT_CHECKPOINT:
        return (struct remedy){"checkpoint.every_steps",
                               "Raise checkpoint.every_steps, or put checkpoint.dir on a faster "
                               "disk"};
    case REPORT_COMPUTE:
    case REPORT_CAUSES:
        break;
    }
    return (struct remedy){"train.precision",
                           "train.precision: bf16 or tf32 makes it faster where the device has "
                           "them, and more ranks divide it"};
}

/* The text after "The bottleneck is ". */
static void write_finding(const struct dpt_report_verdict *v,
                          const struct report_verdict_facts *facts, char *text, size_t bytes)
{
    switch (v->cause) {
    case REPORT_COMMUNICATION:
        (void)snprintf(text, bytes, "communication that computation does not hide");
        break;
    case REPORT_STRAGGLER:
        (void)snprintf(text, bytes,
                       "rank %d, a straggler: it computes longer than the other ranks, which wait "
                       "for it",
                       v->rank);
        break;
    case REPORT_IMBALANCE:
        if (facts->work_excess_percent >= excess_percent_min)
            (void)snprintf(text, bytes,
                           "imbalance: the last rank of a step has %.0f %% more work than the "
                           "others, which wait for it",
                           facts->work_excess_percent);
        else
            (void)snprintf(text, bytes,
                           "imbalance: a different rank is late in each step, and the others wait "
                           "for it");
        break;
    case REPORT_DATA:
        if (facts->is_of_one_rank)
            (void)snprintf(text, bytes,
                           "data: rank %d waits for its micro-batches, and the others wait for it",
                           v->rank);
        else
            (void)snprintf(text, bytes, "data: the ranks wait for their micro-batches");
        break;
    case REPORT_CHECKPOINT:
        (void)snprintf(text, bytes, "the checkpoint: training waits until it is written");
        break;
    case REPORT_COMPUTE:
    case REPORT_CAUSES:
        (void)snprintf(text, bytes, "computation: no wait takes %.0f %% of the step",
                       REPORT_CAUSE_PERCENT);
        break;
    }
}

/* Names only remedies that the run does not have already and that save time where it runs. */
static void write_warning(const struct report_verdict_facts *facts,
                          struct dpt_report_verdict *verdict)
{
    const bool one_host = facts->setup.hosts == 1;
    (void)snprintf(verdict->warning, sizeof verdict->warning,
                   "%.0f %% of the step is exposed communication (more than %.0f %%). "
                   "Remedies: a larger batch (train.global_batch)%s%s.%s",
                   verdict->exposed_percent, REPORT_EXPOSED_WARN_PERCENT,
                   one_host ? "" : ", compression (strategy.compression)",
                   facts->setup.overlap == REPORT_OVERLAP_ON ? ""
                                                             : ", overlap (strategy.overlap: true)",
                   one_host ? " Compression saves no bytes on one host." : "");
}

void report_verdict_write(struct dpt_report_verdict *verdict,
                          const struct report_verdict_facts *facts)
{
    char finding[256];
    const struct remedy remedy = remedy_of(verdict, facts);
    write_finding(verdict, facts, finding, sizeof finding);
    (void)snprintf(verdict->key, sizeof verdict->key, "%s", remedy.key);
    (void)snprintf(verdict->text, sizeof verdict->text,
                   "The bottleneck is %s. This takes %.1f ms of the mean step of %.1f ms "
                   "(%.0f %%). %s.",
                   finding, facts->lost_ms, facts->step_ms, verdict->share[verdict->cause],
                   remedy.text);
    verdict->warning[0] = '\0';
    if (verdict->exposed_percent > REPORT_EXPOSED_WARN_PERCENT)
        write_warning(facts, verdict);
}
