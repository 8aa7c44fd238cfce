/* Remedies for lost time (remedy.h). */
#include "worker/report/remedy.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { LANES_AUTO_MAX = 16 }; /* docs/config.md */

/* Forms of data parallelism that ddp replaces. */
static const struct {
    const char *strategy, *text;
} slow_forms[] = {
    {"simple", "With strategy.name: ddp buckets are sent during the backward pass"},
    {"simple_ga", "With strategy.name: ddp buckets are sent during the backward pass"},
    {"hook", "With strategy.name: ddp no tensor is waited for alone"},
    {"async", "With strategy.name: ddp buckets are sent, not single tensors"},
    {"dp", "With strategy.name: ddp ranks reduce to each other, and not to one rank"},
};

static void DPT_PRINTF(3, 4)
    advise(struct report_remedy *remedy, const char *key, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    remedy->key = key;
    (void)vsnprintf(remedy->text, sizeof remedy->text, fmt, ap);
    va_end(ap);
}

static bool is_word(const char *word, const char *other)
{
    return strcmp(word, other) == 0;
}

static const char *slow_form_text(const struct report_run_times *run)
{
    for (size_t i = 0; i < sizeof slow_forms / sizeof *slow_forms; i++)
        if (is_word(slow_forms[i].strategy, run->strategy))
            return slow_forms[i].text;
    return NULL;
}

/* Whether the memory of a rank may grow by half: twice the micro-batch, or whole weights. */
static bool has_room(const struct report_run_times *run)
{
    return run->setup.memory_free == 0 || run->memory_peak <= 0 ||
           run->setup.memory_free >= run->memory_peak / 2;
}

/* Ranks of one host send fp32 to each other. */
static bool can_compress(const struct report_setup *setup)
{
    return setup->hosts != 1 && setup->may_compress != REPORT_FACT_NO &&
           (!setup->compression[0] || is_word(setup->compression, "none"));
}

static bool advise_fewer_gathers(const struct report_run_times *run, struct report_remedy *ret)
{
    if (run->setup.gathers_units == REPORT_FACT_NO || !has_room(run))
        return false;
    if (is_word(run->strategy, "full_shard"))
        advise(ret, "strategy.sharding",
               "With strategy.sharding: shard_grad_op the weights are gathered once per step");
    else if (is_word(run->strategy, "zero3"))
        advise(ret, "strategy.name",
               "With strategy.name: zero2 the weights are gathered once per step");
    else
        return false;
    return true;
}

/* Where the sum of the micro-batches is sent once a step, more of them need no memory, but for
 * further lanes (train.lanes: auto, at most LANES_AUTO_MAX). */
static void advise_larger_global_batch(const struct report_run_times *run,
                                       struct report_remedy *ret)
{
    const struct report_setup *setup = &run->setup;
    const int slots = setup->micro_batch > 0 ? setup->global_batch / setup->micro_batch : 0;
    char lanes[64] = "";
    if (slots > 0 && slots < LANES_AUTO_MAX && !has_room(run))
        (void)snprintf(lanes, sizeof lanes, ", and train.lanes: %d keeps its memory", slots);
    advise(ret, "train.global_batch", "%s train.global_batch computes longer for each exchange%s",
           setup->hosts == 1
               ? "All ranks are on one host, where compression saves no bytes: a larger"
               : "A larger",
           lanes);
}

/* Where each micro-batch is sent, only a larger one computes longer for each exchange. */
static void advise_larger_batch(const struct report_run_times *run, struct report_remedy *ret)
{
    const struct report_setup *setup = &run->setup;
    if (setup->sends_slots != REPORT_FACT_YES)
        advise_larger_global_batch(run, ret);
    else if (has_room(run))
        advise(ret, "train.micro_batch",
               "The gradient of each micro-batch is sent: a larger train.micro_batch, with "
               "train.global_batch in proportion, computes longer for each exchange");
    else if (is_word(setup->activation_checkpointing, "none"))
        advise(ret, "train.activation_checkpointing",
               "The memory has no room for a larger train.micro_batch, which would compute longer "
               "for each exchange: train.activation_checkpointing: full makes room");
    else
        advise(ret, "train.micro_batch",
               "A larger train.micro_batch would compute longer for each exchange, and needs "
               "machines with more memory");
}

static void advise_on_communication(const struct report_run_times *run, struct report_remedy *ret)
{
    const struct report_setup *setup = &run->setup;
    if (slow_form_text(run))
        advise(ret, "strategy.name", "%s", slow_form_text(run));
    else if (setup->overlap == REPORT_FACT_NO)
        advise(ret, "strategy.overlap",
               "strategy.overlap: true sends gradients during the backward pass");
    else if (advise_fewer_gathers(run, ret))
        return;
    else if (can_compress(setup))
        advise(ret, "strategy.compression", "%s halves the bytes between %s",
               setup->hosts > 1 ? "strategy.compression: bf16"
                                : "If the ranks are on several hosts, strategy.compression: bf16",
               setup->hosts > 1 ? "hosts" : "them");
    else
        advise_larger_batch(run, ret);
}

static void advise_on_imbalance(const struct report_verdict_facts *facts, struct report_remedy *ret)
{
    const struct report_setup *setup = &facts->run->setup;
    const long long micro_batch = setup->micro_batch, ranks = facts->run->world_size,
                    of_all = micro_batch * ranks;
    if (facts->knows_work && facts->work_excess_percent < REPORT_WORK_EXCESS_PERCENT)
        advise(ret, "cluster.threads",
               "The ranks have the same work: look for other processes on their nodes; set "
               "cluster.threads to the cores that each has");
    else if (setup->global_batch == 0 || of_all <= 0)
        advise(ret, "train.global_batch",
               "Make train.global_batch a multiple of train.micro_batch times the number of ranks");
    else if (setup->global_batch % of_all != 0)
        advise(ret, "train.global_batch",
               "Make train.global_batch (%d) a multiple of train.micro_batch times the number of "
               "ranks (%lld x %lld), such as %lld",
               setup->global_batch, micro_batch, ranks,
               (setup->global_batch / of_all + 1) * of_all);
    else
        advise(ret, "data.train",
               "Each rank has as many micro-batches as the others: give the samples of data.train "
               "more even lengths");
}

static void advise_on_data(const struct report_setup *setup, struct report_remedy *ret)
{
    const bool may_prepare = !setup->data[0] || is_word(setup->data, "text");
    advise(ret, "data.train", "Put data.train on a faster disk%s",
           may_prepare ? ", or prepare it once with dpt-data" : "");
}

/* More ranks divide the step as long as it has a micro-batch for each. */
static void advise_on_compute(const struct report_run_times *run, struct report_remedy *ret)
{
    const struct report_setup *setup = &run->setup;
    const bool divides = setup->global_batch == 0 || setup->micro_batch == 0 ||
                         setup->global_batch / setup->micro_batch > run->world_size;
    const char *more = divides ? ", and more ranks divide it" : "";
    if (is_word(setup->precision, "bf16") || is_word(setup->precision, "fp16")) {
        const bool twice =
            setup->activation_checkpointing[0] && !is_word(setup->activation_checkpointing, "none");
        if (twice && has_room(run))
            advise(ret, "train.activation_checkpointing",
                   "train.activation_checkpointing: none computes nothing twice, and takes more "
                   "memory%s",
                   more);
        else if (divides)
            advise(ret, "cluster.nnodes", "More ranks (cluster.nnodes) divide it");
        else
            advise(ret, "train.micro_batch",
                   "Each rank has one micro-batch: with a smaller train.micro_batch more ranks "
                   "divide it");
    } else if (is_word(setup->precision, "tf32")) {
        advise(ret, "train.precision", "train.precision: bf16 makes it faster%s", more);
    } else if (is_word(setup->device, "cuda")) {
        advise(ret, "train.precision", "train.precision: bf16 or tf32 makes it faster%s", more);
    } else if (is_word(setup->device, "cpu")) {
        advise(ret, "train.precision",
               "train.precision: bf16 makes it faster on a processor that multiplies bf16%s", more);
    } else {
        advise(ret, "train.precision",
               "train.precision: bf16 or tf32 makes it faster where the device has them%s", more);
    }
}

void report_remedy_find(const struct dpt_report_verdict *verdict,
                        const struct report_verdict_facts *facts, struct report_remedy *ret)
{
    switch (verdict->cause) {
    case REPORT_COMMUNICATION:
        advise_on_communication(facts->run, ret);
        return;
    case REPORT_STRAGGLER:
        advise(ret, "cluster.threads",
               "Look for other processes, a lower clock or a worse device there; set "
               "cluster.threads to the cores that it has, or take its node out of the run");
        return;
    case REPORT_IMBALANCE:
        advise_on_imbalance(facts, ret);
        return;
    case REPORT_DATA:
        advise_on_data(&facts->run->setup, ret);
        return;
    case REPORT_CHECKPOINT:
        advise(ret, "checkpoint.every_steps",
               "Raise checkpoint.every_steps, or put checkpoint.dir on a faster disk");
        return;
    case REPORT_EVALUATION:
        advise(ret, "train.eval_every",
               "Raise train.eval_every, or lower train.eval_tokens or data.val_samples");
        return;
    case REPORT_COMPUTE:
    case REPORT_CAUSES:
        break;
    }
    advise_on_compute(facts->run, ret);
}

void report_remedies_of_communication(const struct report_run_times *run, char *text, size_t bytes)
{
    const struct report_setup *setup = &run->setup;
    const bool slots = setup->sends_slots == REPORT_FACT_YES, slow = slow_form_text(run) != NULL;
    (void)snprintf(text, bytes, "a larger batch (%s%s)%s%s%s",
                   slots ? "train.micro_batch" : "train.global_batch",
                   slots && !has_room(run) ? ", if there were more memory" : "",
                   can_compress(setup) && !slow ? ", compression (strategy.compression)" : "",
                   slow                                ? ", overlap (strategy.name: ddp)"
                   : setup->overlap == REPORT_FACT_YES ? ""
                                                       : ", overlap (strategy.overlap: true)",
                   setup->hosts == 1 ? ". Compression saves no bytes on one host" : "");
}
