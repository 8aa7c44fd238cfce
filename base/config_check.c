/* Impossible combinations of keys. Every refusal names the nearest legal setting. */
#include "base/config_table.h"

#include "base/parse.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MICRO_BATCH_MAX = 65536 }; /* the limit in the table */

static bool is_hf_text(const struct dpt_config *c)
{
    return dpt_config_reads_text(c) && c->data.tokenizer == DPT_TOKENIZER_HF;
}

void dpt_config_resolve(struct dpt_config_load *load)
{
    struct dpt_config *c = &load->config;
    dpt_config_resolve_model(load);
    dpt_config_resolve_images(load);
    if (c->train.epochs > 0 &&
        (c->train.steps == DPT_AUTO || !dpt_config_given(load, "train.steps")))
        c->train.steps = c->train.epochs * c->train.epoch_steps;
    dpt_config_resolve_strategy(load);
}

static enum dpt_status check_names(const struct dpt_config_load *load, struct dpt_err *err)
{
    static const char allowed[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    const struct dpt_config *c = &load->config;
    struct dpt_err why;
    size_t good = strspn(c->run, allowed);
    if (c->run[0] == '.' || c->run[0] == '-')
        return dpt_refuse_key(load, "run", err, "'%s' may not begin with '%c'", c->run, c->run[0]);
    if (c->run[good] != '\0')
        return dpt_refuse_key(
            load, "run", err,
            "'%s': only letters of a-z and A-Z, digits, '.', '_' and '-' are allowed", c->run);
    if (c->cluster.rdzv[0] && dpt_parse_endpoint(c->cluster.rdzv, &why) != DPT_OK)
        return dpt_refuse_key(load, "cluster.rdzv", err, "%s", why.text);
    return DPT_OK;
}

static enum dpt_status refuse_slots(const struct dpt_config_load *load, struct dpt_err *err)
{
    const struct dpt_config *c = &load->config;
    char larger[64] = "";
    int micro_batch = c->train.global_batch / DPT_CONFIG_SLOTS_MAX;
    while (c->train.global_batch % micro_batch != 0 ||
           c->train.global_batch / micro_batch > DPT_CONFIG_SLOTS_MAX)
        micro_batch++;
    if (micro_batch <= MICRO_BATCH_MAX) /* else global_batch has no divisor in the range */
        (void)snprintf(larger, sizeof larger, ", or a micro_batch of %d", micro_batch);
    return dpt_refuse_both(load, "train.global_batch", "train.micro_batch", err,
                           "train.global_batch (%d) in micro-batches of train.micro_batch (%d) is "
                           "%d slots a step, more than %d; nearest: a global_batch of %d%s",
                           c->train.global_batch, c->train.micro_batch, dpt_config_slots(c),
                           DPT_CONFIG_SLOTS_MAX, DPT_CONFIG_SLOTS_MAX * c->train.micro_batch,
                           larger);
}

static enum dpt_status check_batch(const struct dpt_config_load *load, struct dpt_err *err)
{
    const struct dpt_config *c = &load->config;
    int slots = dpt_config_slots(c);
    if (c->train.global_batch % c->train.micro_batch != 0) {
        char multiples[DPT_CONFIG_NEAREST_BYTES], divisors[DPT_CONFIG_NEAREST_BYTES];
        dpt_config_nearest_multiples(c->train.global_batch, c->train.micro_batch, multiples);
        dpt_config_nearest_divisors(c->train.global_batch, c->train.micro_batch, divisors);
        return dpt_refuse_both(load, "train.global_batch", "train.micro_batch", err,
                               "train.global_batch (%d) is not a multiple of train.micro_batch "
                               "(%d); nearest: a global_batch of %s, or a micro_batch of %s",
                               c->train.global_batch, c->train.micro_batch, multiples, divisors);
    }
    if (slots > DPT_CONFIG_SLOTS_MAX)
        return refuse_slots(load, err);
    if (c->train.lanes > slots)
        return dpt_refuse_both(
            load, "train.lanes", "train.global_batch", err,
            "train.lanes (%d) is more than the slots of a step (train.global_batch / "
            "train.micro_batch = %d); set it to at most %d, or auto",
            c->train.lanes, slots, slots);
    return DPT_OK;
}

static enum dpt_status check_length(const struct dpt_config_load *load, struct dpt_err *err)
{
    const struct dpt_config *c = &load->config;
    if (c->train.epochs == 0 && c->train.steps == DPT_AUTO)
        return dpt_refuse_both(load, "train.steps", "train.epochs", err,
                               "train.steps is auto, the steps of train.epochs, and there are no "
                               "epochs; give one of them a number");
    if (c->train.epochs == 0 && c->train.epoch_steps != DPT_AUTO)
        return dpt_refuse_both(load, "train.epoch_steps", "train.epochs", err,
                               "train.epoch_steps is %lld without train.epochs; write auto",
                               (long long)c->train.epoch_steps);
    if (c->train.epochs > 0 && c->train.steps != c->train.epochs * c->train.epoch_steps)
        return dpt_refuse_both(load, "train.epochs", "train.steps", err,
                               "train.epochs (%lld) and train.steps (%lld) both give the length of "
                               "the run; give only one (train.steps: auto, or train.epochs: 0)",
                               (long long)c->train.epochs, (long long)c->train.steps);
    return DPT_OK;
}

static enum dpt_status check_optimizer(const struct dpt_config_load *load, struct dpt_err *err)
{
    const struct dpt_config *c = &load->config;
    char lr[DPT_DOUBLE_TEXT_BYTES], min_lr[DPT_DOUBLE_TEXT_BYTES];
    dpt_format_double(c->optimizer.lr, lr);
    dpt_format_double(c->optimizer.min_lr, min_lr);
    if (c->train.steps != DPT_AUTO && c->optimizer.warmup_steps > c->train.steps)
        return dpt_refuse_both(
            load, "optimizer.warmup_steps", "train.steps", err,
            "optimizer.warmup_steps (%lld) is more than train.steps (%lld); set it to at most that",
            (long long)c->optimizer.warmup_steps, (long long)c->train.steps);
    if (c->optimizer.lr_scaling == DPT_LR_SCALING_LINEAR && c->optimizer.base_batch == DPT_AUTO)
        return dpt_refuse_both(load, "optimizer.lr_scaling", "optimizer.base_batch", err,
                               "optimizer.lr_scaling: linear needs optimizer.base_batch; name the "
                               "global batch that optimizer.lr was chosen for");
    if (c->optimizer.schedule_steps != DPT_AUTO && c->optimizer.schedule == DPT_SCHEDULE_CONSTANT)
        return dpt_refuse_both(load, "optimizer.schedule_steps", "optimizer.schedule", err,
                               "optimizer.schedule_steps is %lld, and optimizer.schedule constant "
                               "decays over no steps; write cosine or linear there, or auto here",
                               (long long)c->optimizer.schedule_steps);
    if (c->optimizer.nesterov && !(c->optimizer.momentum > 0))
        return dpt_refuse_both(
            load, "optimizer.nesterov", "optimizer.momentum", err,
            "optimizer.nesterov needs momentum, and optimizer.momentum is 0; set it "
            "to e.g. 0.9, or nesterov to false");
    if (c->optimizer.min_lr > c->optimizer.lr)
        return dpt_refuse_both(
            load, "optimizer.min_lr", "optimizer.lr", err,
            "optimizer.min_lr (%s) is above optimizer.lr (%s); set it to at most that", min_lr, lr);
    return DPT_OK;
}

/* The powers of two below and above a positive number, as "2 or 4". */
static void nearest_powers(double value, char ret_text[128])
{
    int exponent;
    (void)frexp(value, &exponent);
    char below[DPT_DOUBLE_TEXT_BYTES], above[DPT_DOUBLE_TEXT_BYTES];
    dpt_format_double(ldexp(1.0, exponent - 1), below);
    dpt_format_double(ldexp(1.0, exponent), above);
    (void)snprintf(ret_text, 128, "%s or %s", below, above);
}

/* Checks the loss scale with every precision, so that a later change to fp16 is not refused. */
static enum dpt_status check_loss_scale(const struct dpt_config_load *load, struct dpt_err *err)
{
    const struct dpt_config *c = &load->config;
    const struct {
        const char *path;
        double value;
    } keys[] = {{"train.loss_scale", c->train.loss_scale},
                {"train.loss_scale_growth", c->train.loss_scale_growth},
                {"train.loss_scale_backoff", c->train.loss_scale_backoff}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        int exponent;
        if (frexp(keys[i].value, &exponent) == 0.5)
            continue;
        char value[DPT_DOUBLE_TEXT_BYTES], nearest[128];
        dpt_format_double(keys[i].value, value);
        nearest_powers(keys[i].value, nearest);
        return dpt_refuse_key(
            load, keys[i].path, err,
            "%s is no power of two, so gradients cannot be scaled back exactly; nearest: %s", value,
            nearest);
    }
    return DPT_OK;
}

static enum dpt_status check_evaluation(const struct dpt_config_load *load, struct dpt_err *err)
{
    const struct dpt_config *c = &load->config;
    if (c->train.eval_every > 0 && !c->data.val[0])
        return dpt_refuse_both(
            load, "train.eval_every", "data.val", err,
            "train.eval_every is %lld with no data.val; name the validation data, or write 0",
            (long long)c->train.eval_every);
    if (c->train.eval_only && !c->data.val[0])
        return dpt_refuse_both(load, "train.eval_only", "data.val", err,
                               "there is no data.val to evaluate on (--eval is train.eval_only); "
                               "name the validation data");
    if (c->train.eval_only && !c->checkpoint.dir[0])
        return dpt_refuse_both(load, "train.eval_only", "checkpoint.dir", err,
                               "there is no checkpoint.dir to evaluate from (--eval is "
                               "train.eval_only); name the folder of the checkpoints");
    if (c->train.eval_step != DPT_AUTO && !c->train.eval_only)
        return dpt_refuse_both(load, "train.eval_step", "train.eval_only", err,
                               "train.eval_step (--step) is %lld, but nothing is only evaluated; "
                               "give --eval too, or write auto",
                               (long long)c->train.eval_step);
    if (dpt_config_evaluates(c) && !dpt_config_reads_labels(c) &&
        c->train.eval_tokens < c->train.seq_len)
        return dpt_refuse_both(load, "train.eval_tokens", "train.seq_len", err,
                               "train.eval_tokens (%lld) is less than one sequence of "
                               "train.seq_len (%d); set it to at least that",
                               (long long)c->train.eval_tokens, c->train.seq_len);
    return DPT_OK;
}

/* checkpoint.keep_steps may name any step, because an earlier part of the run may have had another
 * checkpoint.every_steps. */
static enum dpt_status check_kept(const struct dpt_config_load *load, struct dpt_err *err)
{
    const struct dpt_config *c = &load->config;
    if (c->checkpoint.keep_best > 0 && !dpt_config_evaluates(c))
        return dpt_refuse_both(
            load, "checkpoint.keep_best", "train.eval_every", err,
            "checkpoint.keep_best is %d with train.eval_every 0: no checkpoint has a validation "
            "loss; write 0 here, or evaluate every checkpoint.every_steps",
            c->checkpoint.keep_best);
    return DPT_OK;
}

static enum dpt_status check_rest(const struct dpt_config_load *load, struct dpt_err *err)
{
    const struct dpt_config *c = &load->config;
    if (c->cluster.nnodes_max * (int64_t)c->cluster.gpus_per_node > DPT_CONFIG_WORLD_MAX)
        return dpt_refuse_both(load, "cluster.nnodes", "cluster.gpus_per_node", err,
                               "cluster.nnodes (up to %d) times cluster.gpus_per_node (%d) is more "
                               "than %d ranks; at most %d nodes",
                               c->cluster.nnodes_max, c->cluster.gpus_per_node,
                               DPT_CONFIG_WORLD_MAX,
                               DPT_CONFIG_WORLD_MAX / c->cluster.gpus_per_node);
    if (c->strategy.first_bucket_mib > c->strategy.bucket_mib)
        return dpt_refuse_both(load, "strategy.first_bucket_mib", "strategy.bucket_mib", err,
                               "strategy.first_bucket_mib (%g) is more than strategy.bucket_mib "
                               "(%g); set it to at most that",
                               c->strategy.first_bucket_mib, c->strategy.bucket_mib);
    /* If the config gives checkpoint.dir: null, the run writes no checkpoints, whatever the other
     * keys are. */
    if (c->checkpoint.every_steps > 0 && !c->checkpoint.dir[0] &&
        !dpt_config_given(load, "checkpoint.dir"))
        return dpt_refuse_key(load, "checkpoint.every_steps", err,
                              "it is %lld and there is no checkpoint.dir; name a folder, or write "
                              "checkpoint.dir: null for no checkpoints",
                              (long long)c->checkpoint.every_steps);
    return DPT_OK;
}

/* Published weights need their own tokenizer, which is rarely the default. A vocabulary of 256
 * tokens belongs to the tokenizer of bytes. */
static enum dpt_status check_published(const struct dpt_config_load *load, struct dpt_err *err)
{
    const struct dpt_config *c = &load->config;
    if (!c->model.init_from[0] || !dpt_config_reads_text(c) || c->model.vocab <= DPT_VOCAB_BYTES ||
        dpt_config_given(load, "data.tokenizer"))
        return DPT_OK;
    return dpt_refuse_key(
        load, "data.tokenizer", err,
        "the weights of model.init_from ('%.80s') have a vocabulary of %d tokens, and no key names "
        "their tokenizer; set data.tokenizer: hf and data.tokenizer_json: %.80s/tokenizer.json, or "
        "data.tokenizer: gpt2 or bytes if the weights know its tokens",
        c->model.init_from, c->model.vocab, c->model.init_from);
}

static enum dpt_status check_data(const struct dpt_config_load *load, struct dpt_err *err)
{
    const struct dpt_config *c = &load->config;
    DPT_TRY(check_published(load, err));
    DPT_TRY(dpt_config_check_images(load, err));
    DPT_TRY(dpt_config_check_classes(load, err));
    const bool gpt2 = dpt_config_reads_text(c) && c->data.tokenizer == DPT_TOKENIZER_GPT2;
    if (is_hf_text(c) && !c->data.tokenizer_json[0])
        return dpt_refuse_both(load, "data.tokenizer", "data.tokenizer_json", err,
                               "data.tokenizer: hf needs data.tokenizer_json; name the file, or "
                               "set data.tokenizer: bytes");
    if (gpt2 && (!c->data.vocab_bpe[0] || !c->data.encoder_json[0]))
        return dpt_refuse_both(
            load, "data.tokenizer", c->data.vocab_bpe[0] ? "data.encoder_json" : "data.vocab_bpe",
            err, "data.tokenizer: gpt2 needs %s; name OpenAI's file, or set data.tokenizer: bytes",
            c->data.vocab_bpe[0] ? "data.encoder_json" : "data.vocab_bpe");
    return DPT_OK;
}

enum dpt_status dpt_config_check(const struct dpt_config_load *load, struct dpt_err *err)
{
    DPT_TRY(check_names(load, err));
    DPT_TRY(dpt_config_check_model(load, err));
    DPT_TRY(dpt_config_check_lora(load, err));
    DPT_TRY(check_data(load, err));
    DPT_TRY(check_batch(load, err));
    DPT_TRY(check_length(load, err));
    DPT_TRY(check_optimizer(load, err));
    DPT_TRY(check_loss_scale(load, err));
    DPT_TRY(check_evaluation(load, err));
    DPT_TRY(check_kept(load, err));
    DPT_TRY(dpt_config_check_strategy(load, err));
    return check_rest(load, err);
}
