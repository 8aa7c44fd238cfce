/* The number of steps of a run with train.epochs. An epoch uses only samples that fill whole global
 * batches, from the start of its permutation (drop_last). So no sample is used twice in an
 * epoch. */
#include "base/config_table.h"

#include <stdio.h>

enum { SAMPLES_BYTES = 96 };

static void format_samples(const struct dpt_config *c, int64_t samples,
                           char ret_text[SAMPLES_BYTES])
{
    const bool most = c->data.kind == DPT_DATA_CLASSIFICATION;
    if (dpt_config_reads_images(c))
        (void)snprintf(ret_text, SAMPLES_BYTES, "%lld images", (long long)samples);
    else
        (void)snprintf(ret_text, SAMPLES_BYTES, "%lld samples of %s%d tokens", (long long)samples,
                       most ? "at most " : "", c->train.seq_len);
}

enum dpt_status dpt_config_count_epochs(struct dpt_config *config, int64_t samples,
                                        struct dpt_err *err)
{
    const int64_t epochs = config->train.epochs, said = config->train.epoch_steps;
    const int64_t counted = samples / config->train.global_batch;
    char what[SAMPLES_BYTES];
    if (epochs == 0)
        return DPT_OK;
    format_samples(config, samples, what);
    if (counted < 1)
        return dpt_fail(err, DPT_ECONFIG,
                        "data.train ('%s') has %s, less than one train.global_batch (%d): an epoch "
                        "has no step; name more data, or a smaller global_batch%s",
                        config->data.train, what, config->train.global_batch,
                        dpt_config_reads_labels(config) ? "" : " or seq_len");
    if (said != DPT_AUTO && said != counted)
        return dpt_fail(err, DPT_ECONFIG,
                        "data.train ('%s') has %s, an epoch of %lld steps, and the config says "
                        "train.epoch_steps %lld; name the run's data, or write auto",
                        config->data.train, what, (long long)counted, (long long)said);
    if (counted > (int64_t)DPT_CONFIG_RUN_STEPS_MAX / epochs)
        return dpt_fail(err, DPT_ECONFIG,
                        "train.epochs (%lld) of %lld steps are more than %.0f steps; give less",
                        (long long)epochs, (long long)counted, DPT_CONFIG_RUN_STEPS_MAX);
    if (config->optimizer.warmup_steps > epochs * counted)
        return dpt_fail(err, DPT_ECONFIG,
                        "optimizer.warmup_steps (%lld) is more than the %lld steps of train.epochs "
                        "(%lld); set it to at most that",
                        (long long)config->optimizer.warmup_steps, (long long)(epochs * counted),
                        (long long)epochs);
    config->train.epoch_steps = counted;
    config->train.steps = epochs * counted;
    return DPT_OK;
}

bool dpt_config_ends_epoch(const struct dpt_config *config, int64_t step)
{
    return config->train.epoch_steps > 0 && step > 0 && step % config->train.epoch_steps == 0;
}
