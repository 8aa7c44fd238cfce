/* The rows of settings.h. */
#include "tests/worker/train/settings.h"

#define UNSHADOWED "ddp zero1 zero2 zero3 no_shard full_shard shard_grad_op"
#define SHADOWED   "zero1+shadow zero2+shadow full_shard+shadow"
#define COVERED    "hybrid_shard " SHADOWED
#define VARIANTS   "simple simple_ga hook async bucket_async" /* of ddp */
#define EVERY      UNSHADOWED " " COVERED

#define LOCAL    " train.accumulate=local"
#define REDUCE   " train.accumulate=reduce"
#define BF16     " train.precision=bf16"
#define LANES    " train.lanes=4" /* of several slots each */
#define FULL     " train.activation_checkpointing=full"
#define PART     " train.activation_checkpointing=selective"
#define IN_TIME  " strategy.overlap=false strategy.prefetch=false"
#define VERIFIED " train.verify_every=1"
#define SGD      " optimizer.name=sgd"
#define ONE_UNIT " strategy.gathered_units_max=1 strategy.prefetch=false"
/* The loss's gradient by a logit is at most 1/(tokens of a step) times the scale, and at the start
 * of training not much less; fp16 ends at 65504. So with 224 tokens this overflows in the first
 * three steps, and then, growing after every second step, again and again. */
#define FP16         " train.precision=fp16 train.loss_scale=33554432 train.loss_scale_interval=2"
#define SENT_AS_BF16 " strategy.compression=bf16"
#define SENT_AS_FP16 " strategy.compression=fp16 train.loss_scale=1024"

enum {
    ONE_HASH = STORY_ONE_HASH,
    HEALING = STORY_HEALING,
    RESUME = STORY_RESUME,
    LOSS = STORY_LOSS,
    JOIN = STORY_JOIN
};

const struct settings settings[] = {
    /* All strategies in both orders of addition: no world of 2, 3 or 4 divides 11 slots. */
    {"local", .keys = LOCAL LANES, .stories = ONE_HASH | LOSS, .strategies = EVERY " " VARIANTS,
     .worlds = {1, 4}, .two_hosts_from = 3, .kept_by = VARIANTS},
    {"reduce", .keys = REDUCE LANES, .stories = ONE_HASH | HEALING,
     .strategies = EVERY " " VARIANTS, .worlds = {1, 4}, .two_hosts_from = 3},
    {"local-bf16", .keys = LOCAL BF16 LANES, .stories = ONE_HASH,
     .strategies = EVERY " dp " VARIANTS, .worlds = {1, 4}, .two_hosts_from = 3},
    {"reduce-bf16", .keys = REDUCE BF16 LANES, .stories = ONE_HASH | LOSS | JOIN,
     .strategies = EVERY " " VARIANTS, .worlds = {1, 4}, .two_hosts_from = 3, .evaluates = true,
     .kept_by = COVERED " " VARIANTS},

    /* ddp in worlds on one host and on two: lanes of one slot and of several, precisions. */
    {"ddp", .stories = ONE_HASH | HEALING | RESUME, .strategies = "ddp", .worlds = {1, 4},
     .slots = 7, .both_hosts = true, .refused = "optimizer.lr=2.0e-2"},
    {"ddp-8", .stories = ONE_HASH, .strategies = "ddp", .worlds = {1, 4}, .slots = 8, .steps = 6,
     .both_hosts = true},
    {"ddp-lanes", .keys = " train.lanes=3", .stories = ONE_HASH, .strategies = "ddp",
     .worlds = {1, 3}, .slots = 8, .both_hosts = true},
    {"ddp-lanes-7", .keys = " train.lanes=3", .stories = ONE_HASH, .strategies = "ddp",
     .worlds = {1, 3}, .slots = 7},
    {"bf16", .keys = BF16, .stories = ONE_HASH | HEALING | RESUME, .strategies = "ddp",
     .worlds = {1, 4}, .slots = 7, .two_hosts_from = 3, .refused = "train.precision=fp32"},
    {"bf16-lanes", .keys = BF16 LANES, .stories = ONE_HASH, .strategies = "ddp", .worlds = {1, 4},
     .slots = 8, .steps = 6, .two_hosts_from = 3},
    {"fp16", .keys = FP16, .stories = ONE_HASH | HEALING | RESUME, .strategies = "ddp",
     .worlds = {1, 4}, .slots = 7, .steps = 8, .two_hosts_from = 3,
     .refused = "train.loss_scale_interval=3"},
    {"fp16-8", .keys = FP16, .stories = ONE_HASH, .strategies = "ddp", .worlds = {1, 4}, .slots = 8,
     .steps = 8, .two_hosts_from = 3},
    {"fp16-local", .keys = FP16 LOCAL, .stories = ONE_HASH | LOSS, .strategies = EVERY,
     .worlds = {3, 4}, .slots = 7, .steps = 8, .kept_by = COVERED, .as = "fp16"},
    {"fp16-reduce", .keys = FP16 REDUCE, .stories = ONE_HASH, .strategies = EVERY " dp",
     .worlds = {3, 4}, .slots = 7, .steps = 8},

    /* Gradients in 16 bits on their way. Some strategies send slots: lanes of one slot then. */
    {"sent-bf16", .keys = SENT_AS_BF16, .stories = ONE_HASH | HEALING, .strategies = "ddp",
     .worlds = {1, 4}, .slots = 7, .two_hosts_from = 3, .refused = "strategy.compression=none"},
    {"sent-bf16-lanes", .keys = SENT_AS_BF16 LANES, .stories = ONE_HASH, .strategies = "ddp",
     .worlds = {1, 4}, .slots = 7, .two_hosts_from = 3},
    {"sent-bf16-reduce", .keys = SENT_AS_BF16 REDUCE LANES, .stories = ONE_HASH,
     .strategies = "ddp", .worlds = {1, 4}, .slots = 7, .two_hosts_from = 3},
    {"sent-fp16", .keys = SENT_AS_FP16, .stories = ONE_HASH, .strategies = "ddp", .worlds = {1, 4},
     .slots = 7, .two_hosts_from = 3},
    {"sent-fp16-lanes", .keys = SENT_AS_FP16 LANES, .stories = ONE_HASH, .strategies = "ddp",
     .worlds = {1, 4}, .slots = 7, .two_hosts_from = 3},
    {"sent-fp16-reduce", .keys = SENT_AS_FP16 REDUCE LANES, .stories = ONE_HASH | RESUME,
     .strategies = "ddp", .worlds = {1, 4}, .slots = 7, .two_hosts_from = 3},
    {"bf16-sent-bf16", .keys = BF16 SENT_AS_BF16 LOCAL, .stories = ONE_HASH,
     .strategies = UNSHADOWED, .worlds = {3, 3}, .slots = 7},
    {"bf16-sent-bf16-reduce", .keys = BF16 SENT_AS_BF16 REDUCE, .stories = ONE_HASH,
     .strategies = UNSHADOWED, .worlds = {3, 3}, .slots = 7},

    /* Optimizers, seeds, epochs. */
    {"seed", .keys = " seed=8", .stories = ONE_HASH, .strategies = "ddp", .worlds = {2, 2},
     .slots = 7},
    {"sgd", .keys = " optimizer.name=sgd optimizer.momentum=0", .stories = ONE_HASH,
     .strategies = "ddp", .worlds = {1, 3}, .slots = 7},
    {"sgd-momentum", .keys = " optimizer.name=sgd optimizer.momentum=0.9", .stories = ONE_HASH,
     .strategies = "ddp", .worlds = {1, 3}, .slots = 7},
    {"sgd-nesterov", .keys = " optimizer.name=sgd optimizer.momentum=0.9 optimizer.nesterov=true",
     .stories = ONE_HASH, .strategies = "ddp", .worlds = {1, 3}, .slots = 7},
    {"adam", .keys = " optimizer.name=adam", .stories = ONE_HASH, .strategies = "ddp",
     .worlds = {1, 3}, .slots = 7},
    {"epochs", .keys = " train.epochs=2 train.epoch_steps=2", .stories = ONE_HASH,
     .strategies = "ddp", .worlds = {1, 3}, .slots = 7},
    {"adam-epochs", .keys = " optimizer.name=adam train.epochs=2 train.epoch_steps=2",
     .stories = ONE_HASH, .strategies = "ddp", .worlds = {1, 3}, .slots = 7},

    /* Settings that change no bit. */
    {"verified", .keys = VERIFIED LOCAL, .stories = ONE_HASH, .strategies = EVERY " dp",
     .worlds = {2, 4}, .slots = 7, .two_hosts_from = 3, .as = "ddp"},
    {"buckets-tiny", .keys = " strategy.bucket_mib=0.0001 strategy.first_bucket_mib=0.0001",
     .stories = ONE_HASH, .strategies = "ddp", .worlds = {2, 3}, .slots = 7, .as = "ddp"},
    {"buckets-first", .keys = " strategy.bucket_mib=0.05 strategy.first_bucket_mib=0.003",
     .stories = ONE_HASH, .strategies = "ddp", .worlds = {2, 3}, .slots = 7, .as = "ddp"},
    {"buckets-one", .keys = " strategy.bucket_mib=25 strategy.first_bucket_mib=25",
     .stories = ONE_HASH, .strategies = "ddp", .worlds = {2, 3}, .slots = 7, .as = "ddp"},
    {"no-overlap", .keys = " strategy.overlap=false", .stories = ONE_HASH, .strategies = "ddp",
     .worlds = {1, 3}, .slots = 7, .two_hosts_from = 3, .as = "ddp"},
    {"no-overlap-local", .keys = IN_TIME LOCAL, .stories = ONE_HASH,
     .strategies = "dp zero1 zero1+shadow zero2 zero3 hybrid_shard full_shard+shadow",
     .worlds = {2, 4}, .slots = 7, .one_world = true, .evaluates = true, .as = "ddp"},
    {"no-overlap-reduce", .keys = IN_TIME REDUCE, .stories = ONE_HASH,
     .strategies = "ddp no_shard simple_ga zero1 zero2+shadow full_shard shard_grad_op "
                   "hybrid_shard",
     .worlds = {2, 4}, .slots = 7, .one_world = true, .evaluates = true},
    {"recomputed", .keys = FULL LOCAL, .stories = ONE_HASH, .strategies = UNSHADOWED,
     .worlds = {1, 3}, .slots = 7, .one_world = true, .as = "ddp"},
    {"recomputed-in-part", .keys = PART LOCAL, .stories = ONE_HASH, .strategies = UNSHADOWED,
     .worlds = {1, 3}, .slots = 7, .one_world = true, .as = "ddp"},
    {"bf16-recomputed", .keys = BF16 FULL LOCAL, .stories = ONE_HASH, .strategies = UNSHADOWED,
     .worlds = {1, 3}, .slots = 7, .one_world = true, .as = "bf16"},
    {"bf16-recomputed-in-part", .keys = BF16 PART LOCAL, .stories = ONE_HASH,
     .strategies = UNSHADOWED, .worlds = {1, 3}, .slots = 7, .one_world = true, .as = "bf16"},
    {"packed", .keys = " cluster.pack_weights=on cluster.threads=2", .stories = ONE_HASH,
     .strategies = "ddp", .worlds = {1, 2}, .slots = 7, .two_hosts_from = 3, .evaluates = true,
     .as = "ddp"},
    {"packed-bf16", .keys = BF16 " cluster.pack_weights=on cluster.threads=1",
     .stories = ONE_HASH | HEALING, .strategies = "ddp", .worlds = {1, 2}, .slots = 7,
     .two_hosts_from = 3, .evaluates = true, .as = "bf16"},
    {"unpacked", .keys = " cluster.pack_weights=off cluster.threads=1", .stories = ONE_HASH,
     .strategies = "ddp", .worlds = {1, 2}, .slots = 7, .two_hosts_from = 3, .evaluates = true,
     .as = "ddp"},
    {"unpacked-bf16", .keys = BF16 " cluster.pack_weights=off cluster.threads=2",
     .stories = ONE_HASH, .strategies = "ddp", .worlds = {1, 2}, .slots = 7, .two_hosts_from = 3,
     .evaluates = true, .as = "bf16"},

    /* Other models. */
    {"llama", MODEL_LLAMA, .keys = LOCAL LANES, .stories = ONE_HASH | RESUME, .strategies = EVERY,
     .worlds = {1, 3}},
    {"llama-untied", MODEL_LLAMA_UNTIED, .keys = LOCAL LANES, .stories = ONE_HASH | HEALING,
     .strategies = EVERY, .worlds = {1, 3}},
    /* Whole gradients of slots are added where a lane has one, an embedding's rows included. */
    {"llama-lanes", MODEL_LLAMA_UNTIED, .keys = LOCAL " train.lanes=11", .stories = ONE_HASH,
     .strategies = EVERY, .worlds = {1, 3}},
    {"llama-bf16-reduce", MODEL_LLAMA, .keys = REDUCE BF16 LANES, .stories = ONE_HASH,
     .strategies = EVERY, .worlds = {1, 3}},
    {"labels", MODEL_GPT2_LABELS, .keys = LOCAL LANES, .stories = ONE_HASH | RESUME,
     .strategies = EVERY, .worlds = {1, 3}, .evaluates = true},
    {"labels-bf16", MODEL_GPT2_LABELS, .keys = LOCAL BF16 FULL LANES, .stories = ONE_HASH,
     .strategies = "ddp", .worlds = {2, 2}, .evaluates = true},
    {"llama-labels", MODEL_LLAMA_LABELS, .keys = LOCAL LANES, .stories = HEALING},
    {"llama-labels-reduce", MODEL_LLAMA_LABELS, .keys = REDUCE LANES, .stories = ONE_HASH,
     .strategies = EVERY, .worlds = {1, 3}, .evaluates = true},
    {"resnet", MODEL_RESNET, .keys = LOCAL LANES, .stories = ONE_HASH | HEALING | RESUME | LOSS,
     .strategies = EVERY, .worlds = {1, 4}, .evaluates = true, .kept_by = COVERED},
    /* fp16's scale of the loss is not the scale of running statistics. */
    {"resnet-fp16", MODEL_RESNET, .keys = LOCAL LANES " train.precision=fp16", .stories = ONE_HASH,
     .strategies = "ddp zero1 zero3 hybrid_shard full_shard+shadow", .worlds = {3, 3}},
    {"resnet-sent-bf16", MODEL_RESNET, .keys = REDUCE LANES SENT_AS_BF16, .stories = ONE_HASH,
     .strategies = "ddp zero1 zero3 hybrid_shard full_shard+shadow", .worlds = {3, 3}},
    {"resnet-zero2", MODEL_RESNET, .keys = LOCAL LANES, .stories = RESUME, .under = "zero2"},
    {"lora", MODEL_GPT2_LORA, .keys = LOCAL LANES, .stories = ONE_HASH | HEALING,
     .strategies = EVERY, .worlds = {1, 3}},
    {"llama-lora", MODEL_LLAMA_LORA, .keys = LOCAL LANES, .stories = RESUME},
    {"llama-lora-bf16-reduce", MODEL_LLAMA_LORA, .keys = REDUCE BF16 LANES, .stories = ONE_HASH,
     .strategies = EVERY, .worlds = {1, 3}},
    /* The head is trained beside the adapters. The base, which predicts tokens, has none. */
    {"llama-labels-lora", MODEL_LLAMA_LABELS_LORA, .keys = LOCAL LANES, .stories = ONE_HASH,
     .strategies = EVERY, .worlds = {1, 3}},
    /* A model of one block is one unit. */
    {"llama-lora-one-unit", MODEL_LLAMA_LORA, .keys = LOCAL LANES " model.n_layer=1",
     .stories = ONE_HASH, .strategies = EVERY, .worlds = {1, 3}},

    /* Published weights. */
    {"folder", .keys = LOCAL LANES, .stories = ONE_HASH, .strategies = EVERY, .worlds = {1, 4},
     .from_folder = true},
    {"llama-folder", MODEL_LLAMA_UNTIED, .keys = LOCAL LANES, .stories = ONE_HASH,
     .strategies = EVERY, .worlds = {1, 4}, .from_folder = true},

    /* A device computes, and the host has the state. */
    {"offloaded", .place = PLACE_OFFLOADED, .keys = LOCAL, .stories = ONE_HASH | HEALING,
     .strategies = UNSHADOWED, .worlds = {2, 3}, .one_world = true, .evaluates = true},
    {"offloaded-bf16", .place = PLACE_OFFLOADED, .keys = LOCAL BF16, .stories = ONE_HASH,
     .strategies = COVERED, .worlds = {2, 3}, .one_world = true, .evaluates = true},
    {"offloaded-reduce", .place = PLACE_OFFLOADED, .keys = REDUCE, .stories = ONE_HASH,
     .strategies = COVERED, .worlds = {2, 3}, .one_world = true, .evaluates = true},
    {"offloaded-reduce-bf16", .place = PLACE_OFFLOADED, .keys = REDUCE BF16,
     .stories = ONE_HASH | RESUME, .strategies = UNSHADOWED, .worlds = {2, 3}, .one_world = true,
     .evaluates = true, .under = "full_shard+shadow"},
    {"offloaded-recomputed", .place = PLACE_OFFLOADED, .keys = LOCAL FULL, .stories = ONE_HASH,
     .strategies = "ddp", .worlds = {2, 2}},

    /* The state is on the device, too. */
    {"device", .place = PLACE_DEVICE, .keys = LOCAL, .stories = ONE_HASH, .strategies = EVERY,
     .worlds = {1, 4}, .evaluates = true},
    {"device-bf16", .place = PLACE_DEVICE, .keys = LOCAL BF16, .stories = ONE_HASH,
     .strategies = EVERY, .worlds = {1, 4}, .evaluates = true},
    {"device-reduce", .place = PLACE_DEVICE, .keys = REDUCE, .stories = ONE_HASH,
     .strategies = EVERY, .worlds = {1, 4}, .evaluates = true},
    {"device-reduce-bf16", .place = PLACE_DEVICE, .keys = REDUCE BF16, .stories = ONE_HASH,
     .strategies = EVERY, .worlds = {1, 4}, .evaluates = true},
    {"device-variants", .place = PLACE_DEVICE, .keys = LOCAL, .stories = ONE_HASH,
     .strategies = "hook bucket_async", .worlds = {1, 4}, .evaluates = true},
    {"device-variants-bf16", .place = PLACE_DEVICE, .keys = LOCAL BF16, .stories = ONE_HASH,
     .strategies = "async simple_ga", .worlds = {1, 4}, .evaluates = true},
    {"device-llama", MODEL_LLAMA, PLACE_DEVICE, .keys = LOCAL, .stories = ONE_HASH,
     .strategies = "ddp zero1 zero2 full_shard", .worlds = {1, 4}, .evaluates = true},
    {"device-llama-untied", MODEL_LLAMA_UNTIED, PLACE_DEVICE, .keys = LOCAL, .stories = ONE_HASH,
     .strategies = "ddp zero1 zero2 full_shard", .worlds = {1, 4}, .evaluates = true},
    /* Sums of squares leave running statistics out. */
    {"device-resnet", MODEL_RESNET, PLACE_DEVICE, .keys = LOCAL, .stories = ONE_HASH,
     .strategies = "ddp zero1 full_shard full_shard+shadow", .worlds = {3, 3}},
    {"device-lora", MODEL_GPT2_LORA, PLACE_DEVICE, .keys = LOCAL, .stories = ONE_HASH,
     .strategies = "ddp zero1 zero2 full_shard", .worlds = {1, 4}, .evaluates = true},
    {"device-llama-lora-bf16", MODEL_LLAMA_LORA, PLACE_DEVICE, .keys = LOCAL BF16,
     .stories = ONE_HASH, .strategies = "ddp zero1 zero2 full_shard", .worlds = {1, 4},
     .evaluates = true},
    {"offloaded-lora", MODEL_GPT2_LORA, PLACE_OFFLOADED, .keys = LOCAL, .stories = ONE_HASH,
     .strategies = "ddp zero1 zero2 full_shard", .worlds = {1, 4}, .evaluates = true},
    {"offloaded-llama-lora-bf16", MODEL_LLAMA_LORA, PLACE_OFFLOADED, .keys = LOCAL BF16,
     .stories = ONE_HASH, .strategies = "ddp zero1 zero2 full_shard", .worlds = {1, 4},
     .evaluates = true},
    {"device-by-host", .place = PLACE_DEVICE_BY_HOST, .keys = LOCAL, .stories = ONE_HASH,
     .strategies = "ddp hook bucket_async", .worlds = {2, 3}, .evaluates = true},
    {"device-by-host-bf16", .place = PLACE_DEVICE_BY_HOST, .keys = LOCAL BF16, .stories = ONE_HASH,
     .strategies = "async no_shard simple_ga", .worlds = {2, 3}, .evaluates = true},

    /* Much at once. */
    {"device-lanes", .place = PLACE_DEVICE, .keys = LOCAL BF16 LANES FULL VERIFIED,
     .stories = ONE_HASH, .strategies = "ddp", .worlds = {1, 4}, .evaluates = true},
    {"device-by-host-lanes", .place = PLACE_DEVICE_BY_HOST, .keys = LOCAL BF16 LANES FULL VERIFIED,
     .stories = ONE_HASH, .strategies = "ddp", .worlds = {2, 3}, .evaluates = true},
    {"device-sgd", .place = PLACE_DEVICE, .keys = LOCAL BF16 FULL VERIFIED SENT_AS_BF16 SGD,
     .stories = ONE_HASH, .strategies = "ddp", .worlds = {1, 4}, .evaluates = true},
    {"device-by-host-sgd", .place = PLACE_DEVICE_BY_HOST,
     .keys = LOCAL BF16 FULL VERIFIED SENT_AS_BF16 SGD, .stories = ONE_HASH, .strategies = "ddp",
     .worlds = {2, 3}, .evaluates = true},
    {"device-one-unit", .place = PLACE_DEVICE,
     .keys = REDUCE BF16 FULL VERIFIED SENT_AS_BF16 SGD ONE_UNIT, .stories = ONE_HASH,
     .strategies = "full_shard+shadow zero1+shadow hybrid_shard", .worlds = {2, 4},
     .evaluates = true},
    {"device-one-unit-fp16", .place = PLACE_DEVICE,
     .keys = REDUCE BF16 FULL VERIFIED SENT_AS_FP16 SGD ONE_UNIT, .stories = ONE_HASH,
     .strategies = "zero2 ddp", .worlds = {2, 4}, .evaluates = true},
};

const size_t settings_n = sizeof settings / sizeof settings[0];
