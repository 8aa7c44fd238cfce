/* What the table's ranges cannot say: combinations that cannot be. Every refusal names the nearest
 * legal setting. */
#include "base/config_table.h"

#include "base/parse.h"
#include "base/strategy_traits.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MICRO_BATCH_MAX = 65536 }; /* of the table */

/* A unit's only place is taken while the one before it is computed. */
static bool has_one_place(const struct dpt_config *c)
{
    return dpt_strategy_traits(c).weights == DPT_WEIGHTS_UNITS &&
           c->strategy.gathered_units_max == 1;
}

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
    if (!dpt_config_given(load, "strategy.first_bucket_mib") &&
        c->strategy.first_bucket_mib > c->strategy.bucket_mib)
        c->strategy.first_bucket_mib = c->strategy.bucket_mib;
    if (strcmp(c->strategy.name, "fsdp") == 0 && !dpt_config_given(load, "strategy.sharding"))
        c->strategy.sharding = DPT_SHARDING_FULL_SHARD;
    if (!dpt_config_given(load, "strategy.prefetch") && (has_one_place(c) || !c->strategy.overlap))
        c->strategy.prefetch = false;
}

void dpt_config_nearest_multiples(int n, int of, char ret_text[DPT_CONFIG_NEAREST_BYTES])
{
    int below = n - n % of;
    if (below > 0)
        (void)snprintf(ret_text, DPT_CONFIG_NEAREST_BYTES, "%d or %d", below, below + of);
    else
        (void)snprintf(ret_text, DPT_CONFIG_NEAREST_BYTES, "%d", of);
}

void dpt_config_nearest_divisors(int n, int by, char ret_text[DPT_CONFIG_NEAREST_BYTES])
{
    int below = by < n ? by : n, above = by;
    while (n % below != 0)
        below--;
    while (above < n && n % above != 0)
        above++;
    if (above > n || above == below)
        (void)snprintf(ret_text, DPT_CONFIG_NEAREST_BYTES, "%d", below);
    else
        (void)snprintf(ret_text, DPT_CONFIG_NEAREST_BYTES, "%d or %d", below, above);
}

static enum dpt_status check_names(const struct dpt_config_load *load, struct dpt_err *err)
{
    static const char allowed[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    const struct dpt_config *c = &load->config;
    struct dpt_err why;
    size_t good = strspn(c->run, allowed);
    if (c->run[0] == '.' || c->run[0] == '-')
        return dpt_config_refuse(load, "run", err, "'%s' may not begin with '%c'", c->run,
                                 c->run[0]);
    if (c->run[good] != '\0')
        return dpt_config_refuse(load, "run", err,
                                 "'%s': only letters of a-z and A-Z, digits, '.', '_' and '-' are "
                                 "allowed",
                                 c->run);
    if (c->cluster.rdzv[0] && dpt_parse_endpoint(c->cluster.rdzv, &why) != DPT_OK)
        return dpt_config_refuse(load, "cluster.rdzv", err, "%s", why.text);
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
    if (micro_batch <= MICRO_BATCH_MAX) /* a batch may have no divisor but itself */
        (void)snprintf(larger, sizeof larger, ", or a micro_batch of %d", micro_batch);
    return dpt_config_refuse_both(
        load, "train.global_batch", "train.micro_batch", err,
        "train.global_batch (%d) in micro-batches of train.micro_batch (%d) is %d slots a step, "
        "more than %d; nearest: a global_batch of %d%s",
        c->train.global_batch, c->train.micro_batch, dpt_config_slots(c), DPT_CONFIG_SLOTS_MAX,
        DPT_CONFIG_SLOTS_MAX * c->train.micro_batch, larger);
}

static enum dpt_status check_batch(const struct dpt_config_load *load, struct dpt_err *err)
{
    const struct dpt_config *c = &load->config;
    int slots = dpt_config_slots(c);
    if (c->train.global_batch % c->train.micro_batch != 0) {
        char multiples[DPT_CONFIG_NEAREST_BYTES], divisors[DPT_CONFIG_NEAREST_BYTES];
        dpt_config_nearest_multiples(c->train.global_batch, c->train.micro_batch, multiples);
        dpt_config_nearest_divisors(c->train.global_batch, c->train.micro_batch, divisors);
        return dpt_config_refuse_both(
            load, "train.global_batch", "train.micro_batch", err,
            "train.global_batch (%d) is not a multiple of train.micro_batch (%d); nearest: a "
            "global_batch of %s, or a micro_batch of %s",
            c->train.global_batch, c->train.micro_batch, multiples, divisors);
    }
    if (slots > DPT_CONFIG_SLOTS_MAX)
        return refuse_slots(load, err);
    if (c->train.lanes > slots)
        return dpt_config_refuse_both(
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
        return dpt_config_refuse_both(load, "train.steps", "train.epochs", err,
                                      "train.steps is auto, the steps of train.epochs, and there "
                                      "are no epochs; give one of them a number");
    if (c->train.epochs == 0 && c->train.epoch_steps != DPT_AUTO)
        return dpt_config_refuse_both(load, "train.epoch_steps", "train.epochs", err,
                                      "train.epoch_steps is %lld without train.epochs; write auto",
                                      (long long)c->train.epoch_steps);
    if (c->train.epochs > 0 && c->train.steps != c->train.epochs * c->train.epoch_steps)
        return dpt_config_refuse_both(load, "train.epochs", "train.steps", err,
                                      "train.epochs (%lld) and train.steps (%lld) both say how "
                                      "long the run is; give one of them (train.steps: auto, or "
                                      "train.epochs: 0)",
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
        return dpt_config_refuse_both(
            load, "optimizer.warmup_steps", "train.steps", err,
            "optimizer.warmup_steps (%lld) is more than train.steps (%lld); set it to at most that",
            (long long)c->optimizer.warmup_steps, (long long)c->train.steps);
    if (c->optimizer.lr_scaling == DPT_LR_SCALING_LINEAR && c->optimizer.base_batch == DPT_AUTO)
        return dpt_config_refuse_both(load, "optimizer.lr_scaling", "optimizer.base_batch", err,
                                      "optimizer.lr_scaling: linear needs optimizer.base_batch; "
                                      "name the global batch that optimizer.lr was chosen for");
    if (c->optimizer.schedule_steps != DPT_AUTO && c->optimizer.schedule == DPT_SCHEDULE_CONSTANT)
        return dpt_config_refuse_both(load, "optimizer.schedule_steps", "optimizer.schedule", err,
                                      "optimizer.schedule_steps is %lld, and optimizer.schedule "
                                      "constant decays over no steps; write cosine or linear "
                                      "there, or auto here",
                                      (long long)c->optimizer.schedule_steps);
    if (c->optimizer.nesterov && !(c->optimizer.momentum > 0))
        return dpt_config_refuse_both(load, "optimizer.nesterov", "optimizer.momentum", err,
                                      "optimizer.nesterov has no momentum to look ahead by "
                                      "(optimizer.momentum is 0); set it to e.g. 0.9, or nesterov "
                                      "to false");
    if (c->optimizer.min_lr > c->optimizer.lr)
        return dpt_config_refuse_both(
            load, "optimizer.min_lr", "optimizer.lr", err,
            "optimizer.min_lr (%s) is above optimizer.lr (%s); set it to at most that", min_lr, lr);
    return DPT_OK;
}

/* The powers of two round a positive number, as "2 or 4". */
static void nearest_powers(double value, char ret_text[128])
{
    int exponent;
    (void)frexp(value, &exponent);
    char below[DPT_DOUBLE_TEXT_BYTES], above[DPT_DOUBLE_TEXT_BYTES];
    dpt_format_double(ldexp(1.0, exponent - 1), below);
    dpt_format_double(ldexp(1.0, exponent), above);
    (void)snprintf(ret_text, 128, "%s or %s", below, above);
}

/* Whatever the precision: what is no power of two now would be refused when it matters. */
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
        return dpt_config_refuse(load, keys[i].path, err,
                                 "%s is no power of two, so that gradients could not be scaled "
                                 "back exactly; nearest: %s",
                                 value, nearest);
    }
    return DPT_OK;
}

static enum dpt_status check_evaluation(const struct dpt_config_load *load, struct dpt_err *err)
{
    const struct dpt_config *c = &load->config;
    if (c->train.eval_every > 0 && !c->data.val[0])
        return dpt_config_refuse_both(load, "train.eval_every", "data.val", err,
                                      "train.eval_every is %lld with no data.val; name the "
                                      "validation data, or write 0",
                                      (long long)c->train.eval_every);
    if (c->train.eval_only && !c->data.val[0])
        return dpt_config_refuse_both(load, "train.eval_only", "data.val", err,
                                      "there is no data.val to evaluate on (--eval is "
                                      "train.eval_only); name the validation data");
    if (c->train.eval_only && !c->checkpoint.dir[0])
        return dpt_config_refuse_both(load, "train.eval_only", "checkpoint.dir", err,
                                      "there is no checkpoint.dir to evaluate from (--eval is "
                                      "train.eval_only); name the folder of the checkpoints");
    if (c->train.eval_step != DPT_AUTO && !c->train.eval_only)
        return dpt_config_refuse_both(load, "train.eval_step", "train.eval_only", err,
                                      "train.eval_step (--step) is %lld, but nothing is only "
                                      "evaluated; give --eval too, or write auto",
                                      (long long)c->train.eval_step);
    if (dpt_config_evaluates(c) && !dpt_config_reads_labels(c) &&
        c->train.eval_tokens < c->train.seq_len)
        return dpt_config_refuse_both(
            load, "train.eval_tokens", "train.seq_len", err,
            "train.eval_tokens (%lld) is less than one sequence of train.seq_len (%d); set it to "
            "at least that",
            (long long)c->train.eval_tokens, c->train.seq_len);
    return DPT_OK;
}

/* Copies on other nodes need other nodes. */
static enum dpt_status check_redundancy(const struct dpt_config_load *load, struct dpt_err *err)
{
    const struct dpt_config *c = &load->config;
    const struct dpt_strategy_traits traits = dpt_strategy_traits(c);
    const bool hybrid = traits.state == DPT_STATE_PER_NODE, shadow = traits.shadow;
    if (shadow && traits.state != DPT_STATE_SHARDED)
        return dpt_config_refuse_both(load, "strategy.redundancy", "strategy.name", err,
                                      "strategy.redundancy shadow keeps a second copy of shards, "
                                      "but with %s every %s holds the whole state already; write "
                                      "none",
                                      hybrid ? "hybrid_shard" : c->strategy.name,
                                      hybrid ? "node" : "rank");
    if (shadow && c->cluster.nnodes_max < 2)
        return dpt_config_refuse_both(load, "strategy.redundancy", "cluster.nnodes", err,
                                      "strategy.redundancy shadow keeps each shard on another node "
                                      "too, but cluster.nnodes is 1; write none, or nnodes 2");
    if (hybrid && c->cluster.nnodes_max < 2)
        return dpt_config_refuse_both(load, "strategy.sharding", "cluster.nnodes", err,
                                      "strategy.sharding hybrid_shard replicates across nodes, but "
                                      "cluster.nnodes is 1; write full_shard, or nnodes 2");
    return DPT_OK;
}

/* When gradients are reduced is what the teaching variants of ddp are told apart by. */
static enum dpt_status check_overlap(const struct dpt_config_load *load, struct dpt_err *err)
{
    static const struct {
        const char *name, *without;
    } overlapping[] = {
        {"hook", "simple_ga"}, {"async", "simple_ga"}, {"bucket_async", "ddp or simple_ga"}};
    const struct dpt_config *c = &load->config;
    for (size_t i = 0; i < sizeof overlapping / sizeof *overlapping; i++)
        if (!c->strategy.overlap && strcmp(c->strategy.name, overlapping[i].name) == 0)
            return dpt_config_refuse_both(
                load, "strategy.overlap", "strategy.name", err,
                "strategy.overlap false reduces after the backward pass, but %s is the strategy "
                "that reduces in it; write true, or strategy.name %s",
                c->strategy.name, overlapping[i].without);
    return DPT_OK;
}

static enum dpt_status check_prefetch(const struct dpt_config_load *load, struct dpt_err *err)
{
    const struct dpt_config *c = &load->config;
    if (c->strategy.prefetch && has_one_place(c))
        return dpt_config_refuse_both(load, "strategy.prefetch", "strategy.gathered_units_max", err,
                                      "strategy.prefetch gathers a unit while the one before it is "
                                      "computed, but strategy.gathered_units_max is 1, a place for "
                                      "that one only; set it to 2, or prefetch to false");
    if (c->strategy.prefetch && !c->strategy.overlap &&
        dpt_strategy_traits(c).state != DPT_STATE_REPLICATED)
        return dpt_config_refuse_both(load, "strategy.prefetch", "strategy.overlap", err,
                                      "strategy.prefetch gathers weights while others are "
                                      "computed, but strategy.overlap false waits for all that is "
                                      "sent; write true there, or prefetch: false");
    return DPT_OK;
}

/* Only where a rank adds up its slots by itself is there an order to leave open. */
static enum dpt_status check_reduction(const struct dpt_config_load *load, struct dpt_err *err)
{
    const struct dpt_config *c = &load->config;
    const struct dpt_strategy_traits traits = dpt_strategy_traits(c);
    if (!traits.order_open)
        return DPT_OK;
    if (!traits.takes_open_order || traits.shadow)
        return dpt_config_refuse_both(
            load, "train.reduction", "strategy.name", err,
            "train.reduction fast has nothing to gain with strategy.name %s%s, where every slot's "
            "gradient goes to its owners and is added as it comes; write canonical",
            c->strategy.name, traits.takes_open_order ? " and shadows" : "");
    if (c->train.accumulate == DPT_ACCUMULATE_REDUCE)
        return dpt_config_refuse_both(load, "train.accumulate", "train.reduction", err,
                                      "train.accumulate reduce is an order of addition, and "
                                      "train.reduction fast leaves it open; write auto, or "
                                      "reduction canonical");
    if (c->train.lanes != DPT_AUTO)
        return dpt_config_refuse_both(load, "train.lanes", "train.reduction", err,
                                      "train.lanes (%d) are sums of the canonical order, and "
                                      "train.reduction fast has one a rank; write auto, or "
                                      "reduction canonical",
                                      c->train.lanes);
    return DPT_OK;
}

/* What is rounded is a slot (`reduce`) or a lane (`local`), the same in every world. */
static enum dpt_status check_compression(const struct dpt_config_load *load, struct dpt_err *err)
{
    const struct dpt_config *c = &load->config;
    if (c->strategy.compression == DPT_COMPRESSION_NONE)
        return DPT_OK;
    const struct dpt_strategy_traits traits = dpt_strategy_traits(c);
    const bool powersgd = traits.powersgd, local = traits.order == DPT_ACCUMULATE_LOCAL;
    if (powersgd && !traits.takes_powersgd)
        return dpt_config_refuse_both(load, "strategy.compression", "strategy.name", err,
                                      "strategy.compression powersgd needs the whole gradient on "
                                      "every rank, which %s does not give; write strategy.name "
                                      "ddp, or compression none, bf16 or fp16",
                                      c->strategy.name);
    if (powersgd && !local)
        return dpt_config_refuse_both(load, "strategy.compression", "train.accumulate", err,
                                      "strategy.compression powersgd compresses the sum of a "
                                      "rank's slots once a step, and train.accumulate reduce sends "
                                      "each; write local there, or none, bf16 or fp16 here");
    if (powersgd && c->train.precision == DPT_PRECISION_FP16)
        return dpt_config_refuse_both(load, "strategy.compression", "train.precision", err,
                                      "strategy.compression powersgd keeps what it has not sent "
                                      "for the next step, whose loss train.precision fp16 may "
                                      "scale otherwise; write bf16 or fp32 there");
    if (!traits.takes_16_bits)
        return dpt_config_refuse_both(load, "strategy.compression", "strategy.name", err,
                                      "strategy.compression is of ddp, zero1 to zero3 and fsdp, "
                                      "not of %s; write ddp there, or none here",
                                      c->strategy.name);
    if (c->train.reduction != DPT_REDUCTION_CANONICAL)
        return dpt_config_refuse_both(load, "strategy.compression", "train.reduction", err,
                                      "strategy.compression rounds in a fixed order, which "
                                      "train.reduction fast gives up; write canonical there, or "
                                      "none here");
    const int slots = dpt_config_slots(c), lanes = dpt_config_lanes(c);
    if (traits.by_node)
        return dpt_config_refuse_both(load, "strategy.compression", "train.accumulate", err,
                                      "strategy.compression is not of hybrid_shard under "
                                      "train.accumulate local, whose nodes send fp32 sums once a "
                                      "step; write accumulate: reduce, or compression: none");
    if (local && traits.route != DPT_GRADIENT_LANES && lanes != slots)
        return dpt_config_refuse_both(
            load, "strategy.compression", "train.accumulate", err,
            "strategy.compression rounds whole lanes under train.accumulate local, but this "
            "strategy sends slots, %d of them for %d lanes; write train.lanes: %d, accumulate: "
            "reduce, or compression: none",
            slots, lanes, slots);
    return DPT_OK;
}

static enum dpt_status check_offload(const struct dpt_config_load *load, struct dpt_err *err)
{
    const struct dpt_config *c = &load->config;
    if (c->strategy.offload == DPT_OFFLOAD_OPTIMIZER && c->cluster.device != DPT_DEVICE_CUDA)
        return dpt_config_refuse_both(load, "strategy.offload", "cluster.device", err,
                                      "strategy.offload optimizer keeps on the host what a GPU "
                                      "need not hold, and without cluster.device cuda all is on "
                                      "the host; write none");
    const struct dpt_strategy_traits traits = dpt_strategy_traits(c);
    if (!traits.on_device)
        return DPT_OK;
    if (!traits.takes_device)
        return dpt_config_refuse_both(load, "strategy.offload", "strategy.name", err,
                                      "strategy.offload none keeps the training state on the GPU, "
                                      "which simple, ddp's other teaching variants under "
                                      "train.accumulate reduce, and powersgd do not do yet; write "
                                      "optimizer there, or cluster.device cpu");
    if (!traits.by_nccl && !traits.takes_host_backend)
        return dpt_config_refuse_both(load, "cluster.backend", "strategy.name", err,
                                      "cluster.backend host brings the gradients of ddp and its "
                                      "like under train.accumulate local to the host, and no "
                                      "others; write nccl, or strategy.offload: optimizer");
    return DPT_OK;
}

static enum dpt_status check_precision(const struct dpt_config_load *load, struct dpt_err *err)
{
    if (load->config.train.precision == DPT_PRECISION_TF32 &&
        load->config.cluster.device != DPT_DEVICE_CUDA)
        return dpt_config_refuse_both(load, "train.precision", "cluster.device", err,
                                      "train.precision tf32 is a GPU's way to multiply fp32, and "
                                      "cluster.device is not cuda; write cuda there, or fp32 here");
    return DPT_OK;
}

static enum dpt_status check_strategy(const struct dpt_config_load *load, struct dpt_err *err)
{
    const struct dpt_config *c = &load->config;
    const bool fsdp = strcmp(c->strategy.name, "fsdp") == 0;
    if (c->strategy.sharding != DPT_SHARDING_NULL && !fsdp)
        return dpt_config_refuse_both(load, "strategy.sharding", "strategy.name", err,
                                      "strategy.sharding says what fsdp shards, but strategy.name "
                                      "is %s; write fsdp there, or null here",
                                      c->strategy.name);
    if (c->strategy.sharding == DPT_SHARDING_NULL && fsdp)
        return dpt_config_refuse_both(load, "strategy.sharding", "strategy.name", err,
                                      "strategy.sharding is null with strategy.name fsdp; name "
                                      "what it shards, or leave the key out for full_shard");
    DPT_TRY(check_overlap(load, err));
    DPT_TRY(check_prefetch(load, err));
    DPT_TRY(check_reduction(load, err));
    DPT_TRY(check_compression(load, err));
    DPT_TRY(check_offload(load, err));
    return check_redundancy(load, err);
}

static enum dpt_status check_divergence(const struct dpt_config_load *load, struct dpt_err *err)
{
    const struct dpt_config *c = &load->config;
    if (c->train.on_divergence == DPT_DIVERGENCE_SKIP &&
        c->strategy.compression == DPT_COMPRESSION_POWERSGD)
        return dpt_config_refuse_both(load, "train.on_divergence", "strategy.compression", err,
                                      "train.on_divergence skip leaves a gradient out, and "
                                      "strategy.compression powersgd would keep it as its error; "
                                      "write stop here, or bf16 there");
    return DPT_OK;
}

/* checkpoint.keep_steps may name any step: those of another every_steps, from before it was
 * changed, stay pinned. */
static enum dpt_status check_kept(const struct dpt_config_load *load, struct dpt_err *err)
{
    const struct dpt_config *c = &load->config;
    if (c->checkpoint.keep_best > 0 && !dpt_config_evaluates(c))
        return dpt_config_refuse_both(load, "checkpoint.keep_best", "train.eval_every", err,
                                      "checkpoint.keep_best is %d with train.eval_every 0: no "
                                      "checkpoint has a validation loss; write 0 here, or evaluate "
                                      "every checkpoint.every_steps",
                                      c->checkpoint.keep_best);
    return DPT_OK;
}

static enum dpt_status check_rest(const struct dpt_config_load *load, struct dpt_err *err)
{
    const struct dpt_config *c = &load->config;
    if (c->cluster.nnodes_max * (int64_t)c->cluster.gpus_per_node > DPT_CONFIG_WORLD_MAX)
        return dpt_config_refuse_both(
            load, "cluster.nnodes", "cluster.gpus_per_node", err,
            "cluster.nnodes (up to %d) times cluster.gpus_per_node (%d) is more than %d ranks; "
            "at most %d nodes",
            c->cluster.nnodes_max, c->cluster.gpus_per_node, DPT_CONFIG_WORLD_MAX,
            DPT_CONFIG_WORLD_MAX / c->cluster.gpus_per_node);
    if (c->strategy.first_bucket_mib > c->strategy.bucket_mib)
        return dpt_config_refuse_both(
            load, "strategy.first_bucket_mib", "strategy.bucket_mib", err,
            "strategy.first_bucket_mib (%g) is more than strategy.bucket_mib (%g); set it to at "
            "most that",
            c->strategy.first_bucket_mib, c->strategy.bucket_mib);
    /* A null that is written means no checkpoints, whatever else is said of them. */
    if (c->checkpoint.every_steps > 0 && !c->checkpoint.dir[0] &&
        !dpt_config_given(load, "checkpoint.dir"))
        return dpt_config_refuse(load, "checkpoint.every_steps", err,
                                 "it is %lld and there is no checkpoint.dir; name a folder, or "
                                 "write checkpoint.dir: null for no checkpoints",
                                 (long long)c->checkpoint.every_steps);
    return DPT_OK;
}

/* Published weights know the tokens of one tokenizer, and the default is seldom that one. A
 * vocabulary of bytes has no room for another. */
static enum dpt_status check_published(const struct dpt_config_load *load, struct dpt_err *err)
{
    enum { BYTES_VOCAB = 256 };
    const struct dpt_config *c = &load->config;
    if (!c->model.init_from[0] || !dpt_config_reads_text(c) || c->model.vocab <= BYTES_VOCAB ||
        dpt_config_given(load, "data.tokenizer"))
        return DPT_OK;
    return dpt_config_refuse(
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
        return dpt_config_refuse_both(
            load, "data.tokenizer", "data.tokenizer_json", err,
            "data.tokenizer: hf needs data.tokenizer_json; name the file, or set data.tokenizer: "
            "bytes");
    if (gpt2 && (!c->data.vocab_bpe[0] || !c->data.encoder_json[0]))
        return dpt_config_refuse_both(
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
    DPT_TRY(check_precision(load, err));
    DPT_TRY(check_length(load, err));
    DPT_TRY(check_optimizer(load, err));
    DPT_TRY(check_loss_scale(load, err));
    DPT_TRY(check_divergence(load, err));
    DPT_TRY(check_evaluation(load, err));
    DPT_TRY(check_kept(load, err));
    DPT_TRY(check_strategy(load, err));
    return check_rest(load, err);
}
