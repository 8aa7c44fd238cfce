/* The table of config keys: path, type, place in struct dpt_config, range or words, scope, default,
 * help. Loading, validation, printing, --help and docs/config.md are made from it; a new key is a
 * new line here. */
#include "base/config_table.h"

#include <string.h>

static const struct dpt_choice devices[] = {
    {"auto", DPT_DEVICE_AUTO}, {"cpu", DPT_DEVICE_CPU}, {"cuda", DPT_DEVICE_CUDA}, {0}};
static const struct dpt_choice numa_uses[] = {{"auto", DPT_NUMA_AUTO}, {"off", DPT_NUMA_OFF}, {0}};
static const struct dpt_choice models[] = {{"gpt2", 0}, {"llama", 0}, {"resnet", 0}, {0}};
static const struct dpt_choice presets[] = {{"", 0},
                                            {"gpt2-124m", 0},
                                            {"gpt2-350m", 0},
                                            {"gpt2-774m", 0},
                                            {"gpt2-1558m", 0},
                                            {"smollm2-135m", 0},
                                            {"smollm2-360m", 0},
                                            {"smollm2-1.7b", 0},
                                            {"llama-3.2-1b", 0},
                                            {"small_resnet", 0},
                                            {"resnet18", 0},
                                            {"resnet34", 0},
                                            {"resnet50", 0},
                                            {0}};
static const struct dpt_choice stems[] = {
    {"cifar", DPT_STEM_CIFAR}, {"imagenet", DPT_STEM_IMAGENET}, {0}};
static const struct dpt_choice residual_blocks[] = {
    {"basic", DPT_RESIDUAL_BLOCK_BASIC}, {"bottleneck", DPT_RESIDUAL_BLOCK_BOTTLENECK}, {0}};
static const struct dpt_choice rope_scalings[] = {
    {"none", DPT_ROPE_SCALING_NONE}, {"llama3", DPT_ROPE_SCALING_LLAMA3}, {0}};
static const struct dpt_choice data_kinds[] = {{"text", DPT_DATA_TEXT},
                                               {"tokens", DPT_DATA_TOKENS},
                                               {"classification", DPT_DATA_CLASSIFICATION},
                                               {"cifar10", DPT_DATA_CIFAR10},
                                               {"images", DPT_DATA_IMAGES},
                                               {0}};
static const struct dpt_choice tokenizers[] = {
    {"bytes", DPT_TOKENIZER_BYTES}, {"gpt2", DPT_TOKENIZER_GPT2}, {"hf", DPT_TOKENIZER_HF}, {0}};
static const struct dpt_choice augments[] = {{"auto", DPT_AUGMENT_AUTO},
                                             {"none", DPT_AUGMENT_NONE},
                                             {"crop_flip", DPT_AUGMENT_CROP_FLIP},
                                             {"resized_crop_flip", DPT_AUGMENT_RESIZED_CROP_FLIP},
                                             {0}};
static const struct dpt_choice damaged_images[] = {
    {"refuse", DPT_DAMAGED_IMAGES_REFUSE}, {"skip", DPT_DAMAGED_IMAGES_SKIP}, {0}};
static const struct dpt_choice precisions[] = {{"fp32", DPT_PRECISION_FP32},
                                               {"tf32", DPT_PRECISION_TF32},
                                               {"bf16", DPT_PRECISION_BF16},
                                               {"fp16", DPT_PRECISION_FP16},
                                               {0}};
static const struct dpt_choice reductions[] = {
    {"canonical", DPT_REDUCTION_CANONICAL}, {"fast", DPT_REDUCTION_FAST}, {0}};
static const struct dpt_choice divergences[] = {{"stop", DPT_DIVERGENCE_STOP},
                                                {"skip", DPT_DIVERGENCE_SKIP},
                                                {"continue", DPT_DIVERGENCE_CONTINUE},
                                                {0}};
static const struct dpt_choice accumulates[] = {{"auto", DPT_ACCUMULATE_AUTO},
                                                {"local", DPT_ACCUMULATE_LOCAL},
                                                {"reduce", DPT_ACCUMULATE_REDUCE},
                                                {0}};
static const struct dpt_choice pack_weights[] = {{"auto", DPT_PACK_WEIGHTS_AUTO},
                                                 {"on", DPT_PACK_WEIGHTS_ON},
                                                 {"off", DPT_PACK_WEIGHTS_OFF},
                                                 {0}};
static const struct dpt_choice activation_checkpointings[] = {
    {"none", DPT_ACTIVATION_CHECKPOINTING_NONE},
    {"full", DPT_ACTIVATION_CHECKPOINTING_FULL},
    {"selective", DPT_ACTIVATION_CHECKPOINTING_SELECTIVE},
    {0}};
static const struct dpt_choice lora_targets[] = {
    {"all", DPT_LORA_ALL},         {"q_proj", DPT_LORA_Q_PROJ},
    {"k_proj", DPT_LORA_K_PROJ},   {"v_proj", DPT_LORA_V_PROJ},
    {"o_proj", DPT_LORA_O_PROJ},   {"gate_proj", DPT_LORA_GATE_PROJ},
    {"up_proj", DPT_LORA_UP_PROJ}, {"down_proj", DPT_LORA_DOWN_PROJ},
    {"c_attn", DPT_LORA_C_ATTN},   {"c_proj", DPT_LORA_C_PROJ},
    {"c_fc", DPT_LORA_C_FC},       {0}};
static const struct dpt_choice optimizers[] = {{"adamw", 0}, {"adam", 0}, {"sgd", 0}, {0}};
static const struct dpt_choice schedules[] = {{"constant", DPT_SCHEDULE_CONSTANT},
                                              {"linear", DPT_SCHEDULE_LINEAR},
                                              {"cosine", DPT_SCHEDULE_COSINE},
                                              {0}};
static const struct dpt_choice lr_scalings[] = {
    {"none", DPT_LR_SCALING_NONE}, {"linear", DPT_LR_SCALING_LINEAR}, {0}};
static const struct dpt_choice strategies[] = {
    {"ddp", 0},   {"simple", 0}, {"simple_ga", 0}, {"hook", 0}, {"async", 0}, {"bucket_async", 0},
    {"zero1", 0}, {"zero2", 0},  {"zero3", 0},     {"fsdp", 0}, {0}};
static const struct dpt_choice shardings[] = {{"", DPT_SHARDING_NULL},
                                              {"full_shard", DPT_SHARDING_FULL_SHARD},
                                              {"shard_grad_op", DPT_SHARDING_SHARD_GRAD_OP},
                                              {"hybrid_shard", DPT_SHARDING_HYBRID_SHARD},
                                              {"no_shard", DPT_SHARDING_NO_SHARD},
                                              {0}};
static const struct dpt_choice redundancies[] = {
    {"none", DPT_REDUNDANCY_NONE}, {"shadow", DPT_REDUNDANCY_SHADOW}, {0}};
static const struct dpt_choice backends[] = {
    {"nccl", DPT_BACKEND_NCCL}, {"host", DPT_BACKEND_HOST}, {0}};
static const struct dpt_choice offloads[] = {
    {"none", DPT_OFFLOAD_NONE}, {"optimizer", DPT_OFFLOAD_OPTIMIZER}, {0}};
static const struct dpt_choice compressions[] = {{"none", DPT_COMPRESSION_NONE},
                                                 {"bf16", DPT_COMPRESSION_BF16},
                                                 {"fp16", DPT_COMPRESSION_FP16},
                                                 {"powersgd", DPT_COMPRESSION_POWERSGD},
                                                 {0}};

_Static_assert(offsetof(struct dpt_config, cluster.nnodes_max) ==
                   offsetof(struct dpt_config, cluster.nnodes_min) + sizeof(int),
               "a RANGE key is two neighbours");
_Static_assert(offsetof(struct dpt_config, optimizer.beta2) ==
                   offsetof(struct dpt_config, optimizer.beta1) + sizeof(double),
               "a DOUBLE_PAIR key is two neighbours");

/* clang-format off */
#define AT(member)                                                                                 \
    .offset = offsetof(struct dpt_config, member), .size = sizeof(((struct dpt_config *)0)->member)
#define TRAJECTORY  .scope = DPT_CONFIG_TRAJECTORY
#define RUN         .scope = DPT_CONFIG_RUN
#define NODE        .scope = DPT_CONFIG_NODE
#define AUTO        DPT_KEY_AUTO
#define NULLABLE    DPT_KEY_NULL

const struct dpt_key dpt_config_keys[] = {
    {"run", DPT_KEY_TEXT, AT(run),
     RUN, .def = "demo",
     .help = "rendezvous run id (letters, digits, '.', '_', '-'); a second user's run of that "
             "name is refused"},
    {"seed", DPT_KEY_UINT64, AT(seed),
     TRAJECTORY, .def = "42",
     .help = "seed of initial weights, dropout, data order and how images are varied"},

    {"cluster.nnodes", DPT_KEY_RANGE, AT(cluster.nnodes_min),
     .min = 1, .max = 1024, RUN, .def = "1",
     .help = "nodes: N, or \"MIN:MAX\" to go on with at least MIN and take up to MAX"},
    {"cluster.gpus_per_node", DPT_KEY_INT, AT(cluster.gpus_per_node),
     .flags = AUTO, .min = 1, .max = 64, NODE, .def = "auto",
     .help = "rank processes a node starts; auto: one per GPU, on CPU one"},
    {"cluster.device", DPT_KEY_CHOICE, AT(cluster.device),
     .choices = devices, NODE, .def = "auto",
     .help = "where ranks compute; cuda needs a build with it (docs/gpu.md)"},
    {"cluster.numa", DPT_KEY_CHOICE, AT(cluster.numa),
     .choices = numa_uses, NODE, .def = "auto",
     .help = "auto: a rank stays on the cores beside its GPU, ranks without one share out the "
             "machine's NUMA nodes, where no rank has fewer cores for it"},
    {"cluster.backend", DPT_KEY_CHOICE, AT(cluster.backend),
     .choices = backends, RUN, .def = "nccl",
     .help = "how gradients go between ranks whose state is on GPUs: nccl, from device to device, "
             "or host, through the hosts' memory (docs/gpu-communication.md)"},
    {"cluster.cuda_graphs", DPT_KEY_BOOL, AT(cluster.cuda_graphs),
     NODE, .def = "true",
     .help = "give a GPU each unit's forward and backward as one thing, after the first two slots "
             "of a generation; not with dropout or log.op_times"},
    {"cluster.threads", DPT_KEY_INT, AT(cluster.threads),
     .flags = AUTO, .min = 1, .max = 128, NODE, .def = "auto",
     .help = "compute threads a rank; auto: in each generation the cores that the worker may use "
             "(affinity, CPU quota), divided among the ranks of its host that have the same"},
    {"cluster.pack_weights", DPT_KEY_CHOICE, AT(cluster.pack_weights),
     .choices = pack_weights, NODE, .def = "auto",
     .help = "keep the weights of a step also in the form that products read, two more copies "
             "(of what a rank holds whole: the weights with ddp, the base of train.lora with every "
             "strategy); auto: when its host's ranks take at most half the memory available for "
             "it and, with ddp, a rank computes two or more slots a step"},
    {"cluster.timeout_s", DPT_KEY_DOUBLE, AT(cluster.timeout_s),
     .min = 0.2, .max = 600, RUN, .def = "5",
     .help = "the one timeout: heartbeats, leases, joins and aborts derive from it"},
    {"cluster.first_step_s", DPT_KEY_DOUBLE, AT(cluster.first_step_s),
     .min = 0, .max = 604800, RUN, .def = "1800",
     .help = "longest time that the first step of a run may take before its generation is formed "
             "anew; 0: any time"},
    {"cluster.wait_s", DPT_KEY_DOUBLE, AT(cluster.wait_s),
     .min = 0, .max = 604800, RUN, .def = "0",
     .help = "longest time that a run waits for its minimum of nodes; then what no checkpoint has "
             "is saved and the run fails; 0: for ever"},
    {"cluster.drain_s", DPT_KEY_DOUBLE, AT(cluster.drain_s),
     .min = 1, .max = 3600, RUN, .def = "8",
     .help = "how long a node that is told to end may take to finish its step and hand over or "
             "save what only it holds: what the platform gives between its notice and the end, "
             "less 2 s (cloud preemption: 30 to 120 s)"},
    {"cluster.max_restarts", DPT_KEY_INT, AT(cluster.max_restarts),
     .min = 0, .max = 1000000, RUN, .def = "100",
     .help = "crashes the run survives; refills with progress"},
    {"cluster.rdzv", DPT_KEY_TEXT, AT(cluster.rdzv),
     .flags = NULLABLE, NODE, .def = "null",
     .help = "HOST:PORT of dpt-rdzv; null: 127.0.0.1:29500, or the embedded server of a single "
             "node"},
    {"cluster.interface", DPT_KEY_TEXT, AT(cluster.interface),
     .flags = NULLABLE, NODE, .def = "null",
     .help = "network interface of the data plane; null: the one routed to the peers"},
    {"cluster.host_group", DPT_KEY_TEXT, AT(cluster.host_group),
     .flags = NULLABLE, NODE, .def = "null",
     .help = "ranks of one host share memory only inside a group"},

    {"model.name", DPT_KEY_CHOICE_TEXT, AT(model.name),
     .choices = models, TRAJECTORY, .def = "gpt2",
     .help = "architecture"},
    {"model.preset", DPT_KEY_CHOICE_TEXT, AT(model.preset),
     .flags = NULLABLE | DPT_KEY_ALIAS, .choices = presets, TRAJECTORY, .def = "null",
     .help = "published sizes by name; a size written beside it wins"},
    {"model.n_layer", DPT_KEY_INT, AT(model.n_layer),
     .min = 1, .max = 254, TRAJECTORY, .def = "4",
     .help = "transformer blocks; resnet: residual blocks, in three stages of as many unless "
             "model.stages says otherwise, 18 where neither is given"},
    {"model.n_head", DPT_KEY_INT, AT(model.n_head),
     .min = 1, .max = 1024, TRAJECTORY, .def = "4",
     .help = "attention heads; divides n_embd"},
    {"model.n_embd", DPT_KEY_INT, AT(model.n_embd),
     .min = 1, .max = 65536, TRAJECTORY, .def = "128",
     .help = "width"},
    {"model.context", DPT_KEY_INT, AT(model.context),
     .min = 1, .max = 1048576, TRAJECTORY, .def = "256",
     .help = "positions the model knows; seq_len may be shorter"},
    {"model.vocab", DPT_KEY_INT, AT(model.vocab),
     .flags = AUTO, .min = 2, .max = 16777216, TRAJECTORY, .def = "auto",
     .help = "distinct tokens; auto: the preset's, else 256 for byte tokens, else 50257; not with "
             "text by the hf tokenizer, whose number it must hold"},
    {"model.dropout", DPT_KEY_DOUBLE, AT(model.dropout),
     .flags = DPT_KEY_OPEN_MAX, .min = 0, .max = 1, TRAJECTORY, .def = "0",
     .help = "probability that an activation is dropped; in a llama attention's probabilities "
             "alone"},
    {"model.labels", DPT_KEY_INT, AT(model.labels),
     .min = 0, .max = 65536, TRAJECTORY, .def = "0",
     .help = "classes that the model tells texts or images apart by, 2 or more, with data.kind: "
             "classification, cifar10 or images; 0: it predicts the next token"},
    {"model.n_kv_head", DPT_KEY_INT, AT(model.n_kv_head),
     .flags = AUTO, .min = 1, .max = 1024, TRAJECTORY, .def = "auto",
     .help = "llama: heads of keys and values, each for n_head / n_kv_head heads of queries; auto: "
             "the preset's, else n_head"},
    {"model.head_size", DPT_KEY_INT, AT(model.head_size),
     .flags = AUTO, .min = 2, .max = 256, TRAJECTORY, .def = "auto",
     .help = "llama: channels of a head; auto: n_embd / n_head"},
    {"model.n_inner", DPT_KEY_INT, AT(model.n_inner),
     .flags = AUTO, .min = 1, .max = 262144, TRAJECTORY, .def = "auto",
     .help = "llama: width of the MLP (intermediate_size); auto: the preset's, else 8/3 n_embd, "
             "rounded up to a multiple of 64"},
    {"model.norm_eps", DPT_KEY_DOUBLE, AT(model.norm_eps),
     .flags = DPT_KEY_OPEN_MIN, .min = 0, .max = 1, TRAJECTORY, .def = "1e-5",
     .help = "llama: added to the mean square in RMS norms"},
    {"model.tied_head", DPT_KEY_BOOL, AT(model.tied_head),
     TRAJECTORY, .def = "true",
     .help = "llama: the head's matrix is the embedding's; false: it has its own"},
    {"model.attention_bias", DPT_KEY_BOOL, AT(model.attention_bias),
     TRAJECTORY, .def = "false",
     .help = "llama: biases of the attention's four products"},
    {"model.mlp_bias", DPT_KEY_BOOL, AT(model.mlp_bias),
     TRAJECTORY, .def = "false",
     .help = "llama: biases of the MLP's three products"},
    {"model.rope_theta", DPT_KEY_DOUBLE, AT(model.rope_theta),
     .min = 1, .max = 1e12, TRAJECTORY, .def = "10000",
     .help = "llama: base of the rotary embeddings' wave lengths"},
    {"model.rope_scaling", DPT_KEY_CHOICE, AT(model.rope_scaling),
     .choices = rope_scalings, TRAJECTORY, .def = "none",
     .help = "llama: llama3 slows down the waves that are long beside rope_original_context"},
    {"model.rope_factor", DPT_KEY_DOUBLE, AT(model.rope_factor),
     .min = 1, .max = 1e6, TRAJECTORY, .def = "8",
     .help = "with rope_scaling: llama3, by how much"},
    {"model.rope_low_freq_factor", DPT_KEY_DOUBLE, AT(model.rope_low_freq_factor),
     .flags = DPT_KEY_OPEN_MIN, .min = 0, .max = 1e6, TRAJECTORY, .def = "1",
     .help = "with rope_scaling: llama3, waves longer than rope_original_context / this are slowed "
             "down by the whole factor"},
    {"model.rope_high_freq_factor", DPT_KEY_DOUBLE, AT(model.rope_high_freq_factor),
     .flags = DPT_KEY_OPEN_MIN, .min = 0, .max = 1e6, TRAJECTORY, .def = "4",
     .help = "with rope_scaling: llama3, waves shorter than rope_original_context / this stay as "
             "they are"},
    {"model.rope_original_context", DPT_KEY_INT, AT(model.rope_original_context),
     .min = 1, .max = 1048576, TRAJECTORY, .def = "8192",
     .help = "with rope_scaling: llama3, the context of the model's first training"},
    {"model.width", DPT_KEY_INT, AT(model.width),
     .min = 1, .max = 4096, TRAJECTORY, .def = "64",
     .help = "resnet: channels of the stem and of the first stage; each stage has twice those of "
             "the one before, and bottlenecks end in four times as many"},
    {"model.stem", DPT_KEY_CHOICE, AT(model.stem),
     .choices = stems, TRAJECTORY, .def = "cifar",
     .help = "resnet: what images meet first; cifar: a convolution of 3x3, for images of 32x32; "
             "imagenet: one of 7x7 with stride 2 and a maximum over 3x3 with stride 2"},
    {"model.block", DPT_KEY_CHOICE, AT(model.block),
     .choices = residual_blocks, TRAJECTORY, .def = "basic",
     .help = "resnet: a block's convolutions; basic: 3x3, 3x3; bottleneck: 1x1, 3x3, 1x1"},
    {"model.stages", DPT_KEY_STEPS, AT(model.stages),
     .flags = DPT_KEY_ANY_ORDER, .min = 1, .max = 254, TRAJECTORY, .def = "[]",
     .help = "resnet: blocks of each stage, such as [3, 4, 6, 3]; each but the first halves the "
             "image; []: three stages of n_layer / 3"},
    {"model.batch_norm_momentum", DPT_KEY_DOUBLE, AT(model.batch_norm_momentum),
     .flags = DPT_KEY_OPEN_MIN, .min = 0, .max = 1, TRAJECTORY, .def = "0.1",
     .help = "resnet: how far a micro-batch's mean and variance move the running ones that "
             "evaluation uses (PyTorch's momentum)"},
    {"model.init_from", DPT_KEY_TEXT, AT(model.init_from),
     .flags = NULLABLE, NODE, .def = "null",
     .help = "folder of Hugging Face's GPT-2 or Llama to start from: its config.json sets the "
             "sizes, nodes compare the hash of the weights (docs/models.md); null: weights drawn "
             "from the seed"},

    {"data.kind", DPT_KEY_CHOICE, AT(data.kind),
     .choices = data_kinds, TRAJECTORY, .def = "text",
     .help = "text: one file; tokens: .bin shards; classification: a table of texts and labels, "
             "one .csv, .tsv or .jsonl file; cifar10: files in CIFAR-10's binary version; images: "
             "a folder with a sub-folder of .jpg and .png files for each class "
             "(docs/your-own-data.md)"},
    {"data.train", DPT_KEY_TEXT, AT(data.train),
     .flags = NULLABLE, NODE, .def = "null",
     .help = "training data: the file, a glob of the files (tokens, cifar10) or the folder "
             "(images); nodes compare its content hash"},
    {"data.val", DPT_KEY_TEXT, AT(data.val),
     .flags = NULLABLE, NODE, .def = "null",
     .help = "validation data, of the same kind; nodes compare its content hash when they "
             "evaluate"},
    {"data.text_column", DPT_KEY_TEXT, AT(data.text_column),
     NODE, .def = "text",
     .help = "classification: column of the texts, by its name in the first row or its key in a "
             ".jsonl file; a number, from 1: by its place in a file whose first row is data"},
    {"data.label_column", DPT_KEY_TEXT, AT(data.label_column),
     NODE, .def = "label",
     .help = "classification: column of the labels, likewise"},
    {"data.first_label", DPT_KEY_INT, AT(data.first_label),
     .min = -1000000, .max = 1000000, NODE, .def = "0",
     .help = "classification: the least label in the files, class 0; the last is first_label + "
             "model.labels - 1"},
    {"data.train_samples", DPT_KEY_INT64, AT(data.train_samples),
     .min = 0, .max = 1e9, TRAJECTORY, .def = "0",
     .help = "classification: rows of data.train that are read, from the first on; 0: all"},
    {"data.val_samples", DPT_KEY_INT64, AT(data.val_samples),
     .min = 0, .max = 1e9, RUN, .def = "0",
     .help = "classification: rows of data.val that are read, from the first on; 0: all"},
    {"data.tokenizer", DPT_KEY_CHOICE, AT(data.tokenizer),
     .choices = tokenizers, TRAJECTORY, .def = "bytes",
     .help = "how text becomes tokens; hf: as a tokenizer.json of Hugging Face's says "
             "(docs/your-own-data.md)"},
    {"data.vocab_bpe", DPT_KEY_TEXT, AT(data.vocab_bpe),
     .flags = NULLABLE, NODE, .def = "null",
     .help = "merges of the gpt2 tokenizer: OpenAI's file, known by its hash"},
    {"data.encoder_json", DPT_KEY_TEXT, AT(data.encoder_json),
     .flags = NULLABLE, NODE, .def = "null",
     .help = "vocabulary of the gpt2 tokenizer: OpenAI's file, known by its hash"},
    {"data.any_vocab", DPT_KEY_BOOL, AT(data.any_vocab),
     NODE, .def = "false",
     .help = "take another vocabulary in the form of OpenAI's two files"},
    {"data.tokenizer_json", DPT_KEY_TEXT, AT(data.tokenizer_json),
     .flags = NULLABLE, NODE, .def = "null",
     .help = "file of the hf tokenizer; nodes compare the hash of the tokens it gives"},
    {"data.image_size", DPT_KEY_INT, AT(data.image_size),
     .flags = AUTO, .min = 1, .max = 1024, TRAJECTORY, .def = "auto",
     .help = "images: height and width of a sample; auto: 224, with cifar10 32, its only size"},
    {"data.resize", DPT_KEY_INT, AT(data.resize),
     .flags = AUTO, .min = 1, .max = 2048, TRAJECTORY, .def = "auto",
     .help = "images: what the shorter side is resized to, before the middle image_size x "
             "image_size is cut out; auto: 8/7 image_size, 256 for 224"},
    {"data.augment", DPT_KEY_CHOICE, AT(data.augment),
     .choices = augments, TRAJECTORY, .def = "auto",
     .help = "cifar10, images: how training varies an image; crop_flip: moved by up to "
             "crop_padding pixels, mirrored half of the time; resized_crop_flip (images): a part "
             "of 8 to 100 % of the area, mirrored half of the time; auto: crop_flip with cifar10, "
             "resized_crop_flip with images"},
    {"data.crop_padding", DPT_KEY_INT, AT(data.crop_padding),
     .min = 0, .max = 512, TRAJECTORY, .def = "4",
     .help = "with augment: crop_flip, how far an image is moved at most; black comes in"},
    {"data.damaged_images", DPT_KEY_CHOICE, AT(data.damaged_images),
     .choices = damaged_images, RUN, .def = "refuse",
     .help = "images: what becomes of a file that cannot be decoded; refuse: the run does not "
             "start; skip: it is left out, for which every process decodes all files first"},

    {"train.steps", DPT_KEY_INT64, AT(train.steps),
     .flags = AUTO, .min = 1, .max = DPT_CONFIG_RUN_STEPS_MAX, TRAJECTORY, .def = "200",
     .help = "optimizer steps of the whole run; auto: those of train.epochs; part of the "
             "trajectory unless the schedule is constant or has schedule_steps"},
    {"train.epochs", DPT_KEY_INT64, AT(train.epochs),
     .min = 0, .max = 1e6, TRAJECTORY, .def = "0",
     .help = "passes over data.train, instead of train.steps: of each, as many steps as it has "
             "whole global batches; with data.val an evaluation after each; 0: train.steps counts"},
    {"train.epoch_steps", DPT_KEY_INT64, AT(train.epoch_steps),
     .flags = AUTO, .min = 1, .max = DPT_CONFIG_RUN_STEPS_MAX, TRAJECTORY, .def = "auto",
     .help = "with train.epochs, steps of one: not to be given; the worker writes here what it "
             "counts in data.train, so that nodes and checkpoints compare it"},
    {"train.global_batch", DPT_KEY_INT, AT(train.global_batch),
     .min = 1, .max = 16777216, TRAJECTORY, .def = "32",
     .help = "samples a step; a multiple of micro_batch, at most 4096 times it"},
    {"train.micro_batch", DPT_KEY_INT, AT(train.micro_batch),
     .min = 1, .max = 65536, TRAJECTORY, .def = "4",
     .help = "samples of one forward and backward pass: a slot"},
    {"train.seq_len", DPT_KEY_INT, AT(train.seq_len),
     .min = 1, .max = 1048576, TRAJECTORY, .def = "64",
     .help = "tokens of a sample (classification: the most, longer texts are cut); at most "
             "model.context; of images always 1: leave it out"},
    {"train.precision", DPT_KEY_CHOICE, AT(train.precision),
     .choices = precisions, TRAJECTORY, .def = "fp32",
     .help = "arithmetic of forward and backward; weights in memory and in checkpoints, sums and "
             "gradients are fp32; tf32 (cluster.device cuda): fp32 whose matrix products take "
             "their operands with 10 bits of mantissa"},
    {"train.loss_scale", DPT_KEY_DOUBLE, AT(train.loss_scale),
     .min = 1, .max = 0x1p40, TRAJECTORY, .def = "65536",
     .help = "fp16: what the loss is multiplied by at first; a power of two"},
    {"train.loss_scale_growth", DPT_KEY_DOUBLE, AT(train.loss_scale_growth),
     .min = 1, .max = 65536, TRAJECTORY, .def = "2",
     .help = "fp16: what the scale grows by after loss_scale_interval good steps; a power of two"},
    {"train.loss_scale_backoff", DPT_KEY_DOUBLE, AT(train.loss_scale_backoff),
     .flags = DPT_KEY_OPEN_MIN | DPT_KEY_OPEN_MAX, .min = 0, .max = 1, TRAJECTORY, .def = "0.5",
     .help = "fp16: what the scale shrinks by after an overflow, whose step is skipped; a power of "
             "two"},
    {"train.loss_scale_interval", DPT_KEY_INT64, AT(train.loss_scale_interval),
     .min = 1, .max = 1e12, TRAJECTORY, .def = "2000",
     .help = "fp16: good steps in a row after which the scale grows"},
    {"train.on_divergence", DPT_KEY_CHOICE, AT(train.on_divergence),
     .choices = divergences, TRAJECTORY, .def = "stop",
     .help = "a step whose loss or gradient is not finite: stop ends the run before it, skip "
             "leaves it out, continue applies it; checkpoints that are not finite are never "
             "committed"},
    {"train.divergence_limit", DPT_KEY_INT64, AT(train.divergence_limit),
     .min = 1, .max = 1e12, RUN, .def = "10",
     .help = "with on_divergence: skip, steps in a row that are left out; the next one ends the "
             "run"},
    {"train.reduction", DPT_KEY_CHOICE, AT(train.reduction),
     .choices = reductions, TRAJECTORY, .def = "canonical",
     .help = "canonical: gradients are summed in one fixed order; fast: in the one that is "
             "quickest in the present world, so that every world trains other bits"},
    {"train.accumulate", DPT_KEY_CHOICE, AT(train.accumulate),
     .choices = accumulates, TRAJECTORY, .def = "auto",
     .help = "which fixed order: lanes added in a tree (local) or slot by slot (reduce); auto: "
             "the strategy's"},
    {"train.lanes", DPT_KEY_INT, AT(train.lanes),
     .flags = AUTO, .min = 1, .max = 4096, TRAJECTORY, .def = "auto",
     .help = "partial sums of a step under accumulate: local, and there the largest world that can "
             "share one (under reduce it is one rank a slot); auto: min(slots, 16), or with "
             "reduction: fast as many as ranks"},
    {"train.activation_checkpointing", DPT_KEY_CHOICE, AT(train.activation_checkpointing),
     .choices = activation_checkpointings, RUN, .def = "none",
     .help = "recompute activations in the backward pass: all but each unit's input (full), or "
             "what is cheap, the norms' outputs and GELU's or SwiGLU's (selective); bits stay the "
             "same"},
    {"train.grad_clip", DPT_KEY_DOUBLE, AT(train.grad_clip),
     .min = 0, .max = 1e30, TRAJECTORY, .def = "1",
     .help = "largest global L2 norm of the gradient; 0: off"},
    {"train.log_every", DPT_KEY_INT64, AT(train.log_every),
     .min = 1, .max = 1e12, RUN, .def = "1",
     .help = "steps between lines of metrics.jsonl, and on standard output"},
    {"train.verify_every", DPT_KEY_INT64, AT(train.verify_every),
     .min = 0, .max = 1e12, RUN, .def = "0",
     .help = "steps after which ranks that hold the same weights compare them, and stop the run "
             "when one differs; 0: never"},
    {"train.eval_every", DPT_KEY_INT64, AT(train.eval_every),
     .min = 0, .max = 1e12, RUN, .def = "0",
     .help = "steps between evaluations on data.val, and one after the last step; 0: never"},
    {"train.eval_tokens", DPT_KEY_INT64, AT(train.eval_tokens),
     .min = 1, .max = 1e12, RUN, .def = "1048576",
     .help = "most tokens of an evaluation: it reads data.val in order, from the start, in whole "
             "sequences of seq_len (classification, cifar10, images: it reads all of data.val, or "
             "what data.val_samples says)"},
    {"train.eval_only", DPT_KEY_BOOL, AT(train.eval_only),
     RUN, .def = "false",
     .help = "train nothing: evaluate one checkpoint of checkpoint.dir on data.val and end "
             "(dpt-worker --eval)"},
    {"train.eval_step", DPT_KEY_INT64, AT(train.eval_step),
     .flags = AUTO, .min = 1, .max = 1e12, RUN, .def = "auto",
     .help = "with eval_only: the step of that checkpoint; auto: the newest (--step N)"},
    {"train.lora.rank", DPT_KEY_INT, AT(train.lora.rank),
     .min = 0, .max = 1024, TRAJECTORY, .def = "0",
     .help = "train adapters of this rank beside the weights of model.init_from, which stay as "
             "they are (docs/lora.md); 0: train all weights"},
    {"train.lora.alpha", DPT_KEY_DOUBLE, AT(train.lora.alpha),
     .flags = DPT_KEY_OPEN_MIN, .min = 0, .max = 1e6, TRAJECTORY, .def = "16",
     .help = "what an adapter adds is multiplied by alpha / rank"},
    {"train.lora.targets", DPT_KEY_WORDS, AT(train.lora.targets),
     .choices = lora_targets, TRAJECTORY, .def = "all",
     .help = "linear layers that have adapters: one or a list; all: those of every block"},
    {"train.lora.base_hash", DPT_KEY_TEXT, AT(train.lora.base_hash),
     .flags = NULLABLE, TRAJECTORY, .def = "null",
     .help = "hash of the weights of model.init_from: not to be given; the worker writes it here, "
             "so that nodes and checkpoints compare it"},

    {"optimizer.name", DPT_KEY_CHOICE_TEXT, AT(optimizer.name),
     .choices = optimizers, TRAJECTORY, .def = "adamw",
     .help = "update rule"},
    {"optimizer.lr", DPT_KEY_DOUBLE, AT(optimizer.lr),
     .min = 0, .max = 1000, TRAJECTORY, .def = "3e-4",
     .help = "peak learning rate"},
    {"optimizer.min_lr", DPT_KEY_DOUBLE, AT(optimizer.min_lr),
     .min = 0, .max = 1000, TRAJECTORY, .def = "0",
     .help = "learning rate at the schedule's end; at most lr"},
    {"optimizer.schedule", DPT_KEY_CHOICE, AT(optimizer.schedule),
     .choices = schedules, TRAJECTORY, .def = "cosine",
     .help = "learning rate between warm-up and the last step"},
    {"optimizer.warmup_steps", DPT_KEY_INT64, AT(optimizer.warmup_steps),
     .min = 0, .max = 1e12, TRAJECTORY, .def = "0",
     .help = "steps of linear warm-up; at most train.steps"},
    {"optimizer.schedule_steps", DPT_KEY_INT64, AT(optimizer.schedule_steps),
     .flags = AUTO, .min = 1, .max = 1e12, TRAJECTORY, .def = "auto",
     .help = "steps after the warm-up in which linear or cosine comes down to min_lr, PyTorch's "
             "total_iters and T_max; auto: those up to the run's last step"},
    {"optimizer.betas", DPT_KEY_DOUBLE_PAIR, AT(optimizer.beta1),
     .flags = DPT_KEY_OPEN_MAX, .min = 0, .max = 1, TRAJECTORY, .def = "[0.9, 0.95]",
     .help = "decay of the first and second moment"},
    {"optimizer.eps", DPT_KEY_DOUBLE, AT(optimizer.eps),
     .flags = DPT_KEY_OPEN_MIN, .min = 0, .max = 1, TRAJECTORY, .def = "1e-8",
     .help = "added to the root of the second moment"},
    {"optimizer.weight_decay", DPT_KEY_DOUBLE, AT(optimizer.weight_decay),
     .min = 0, .max = 1000, TRAJECTORY, .def = "0.1",
     .help = "weight decay of matrices: decoupled (adamw), or added to the gradient (adam, sgd)"},
    {"optimizer.momentum", DPT_KEY_DOUBLE, AT(optimizer.momentum),
     .flags = DPT_KEY_OPEN_MAX, .min = 0, .max = 1, TRAJECTORY, .def = "0.9",
     .help = "sgd: decay of the velocity; 0: none is kept"},
    {"optimizer.nesterov", DPT_KEY_BOOL, AT(optimizer.nesterov),
     TRAJECTORY, .def = "false",
     .help = "sgd: step from where the momentum leads"},
    {"optimizer.lr_scaling", DPT_KEY_CHOICE, AT(optimizer.lr_scaling),
     .choices = lr_scalings, TRAJECTORY, .def = "none",
     .help = "linear: lr and min_lr are multiplied by train.global_batch / base_batch, the whole "
             "schedule with its warm-up"},
    {"optimizer.base_batch", DPT_KEY_INT, AT(optimizer.base_batch),
     .flags = AUTO, .min = 1, .max = 16777216, TRAJECTORY, .def = "auto",
     .help = "with lr_scaling: linear, the global batch that lr was chosen for; auto: none is "
             "named"},

    {"strategy.name", DPT_KEY_CHOICE_TEXT, AT(strategy.name),
     .choices = strategies, RUN, .def = "ddp",
     .help = "what happens between the model's units; simple, simple_ga, hook, async and "
             "bucket_async are ddp done worse, to learn from (docs/strategies.md)"},
    {"strategy.bucket_mib", DPT_KEY_DOUBLE, AT(strategy.bucket_mib),
     .flags = DPT_KEY_OPEN_MIN, .min = 0, .max = 16384, RUN, .def = "25",
     .help = "gradients reduced together (ddp, bucket_async)"},
    {"strategy.first_bucket_mib", DPT_KEY_DOUBLE, AT(strategy.first_bucket_mib),
     .flags = DPT_KEY_OPEN_MIN, .min = 0, .max = 16384, RUN, .def = "1",
     .help = "the first bucket, small so that the reduction starts early (ddp)"},
    {"strategy.overlap", DPT_KEY_BOOL, AT(strategy.overlap),
     RUN, .def = "true",
     .help = "reduce while the backward pass goes on; false: nothing is computed while gradients "
             "travel, and prefetch is off"},
    {"strategy.sharding", DPT_KEY_CHOICE, AT(strategy.sharding),
     .flags = NULLABLE, .choices = shardings, RUN, .def = "null",
     .help = "what fsdp shards"},
    {"strategy.redundancy", DPT_KEY_CHOICE, AT(strategy.redundancy),
     .choices = redundancies, RUN, .def = "none",
     .help = "shadow: a buddy on another node keeps each shard"},

    {"strategy.offload", DPT_KEY_CHOICE, AT(strategy.offload),
     .choices = offloads, NODE, .def = "none",
     .help = "with cluster.device cuda, optimizer: masters, moments and gradients are kept, "
             "reduced and applied in the host's memory, and the GPU holds the weights it computes "
             "with; none: the GPU does it all (docs/gpu.md)"},
    {"strategy.rebuild_mib", DPT_KEY_DOUBLE, AT(strategy.rebuild_mib),
     .min = 0, .max = 1048576, RUN, .def = "16",
     .help = "after a loss: shadows of up to so much a rank are made before training goes on, "
             "larger ones so much a step (a unit at least) while it does"},
    {"strategy.prefetch", DPT_KEY_BOOL, AT(strategy.prefetch),
     RUN, .def = "true",
     .help = "sharded state: gather the weights of a unit while others are computed; false where "
             "not given with overlap false, or gathered_units_max 1"},
    {"strategy.gathered_units_max", DPT_KEY_INT, AT(strategy.gathered_units_max),
     .min = 1, .max = 256, RUN, .def = "2",
     .help = "sharded weights: units gathered at once, beside a tied embedding, which has a place "
             "of its own; 2 at least for prefetch; 256: each unit once a step"},

    {"strategy.compression", DPT_KEY_CHOICE, AT(strategy.compression),
     .choices = compressions, TRAJECTORY, .def = "none",
     .help = "bf16, fp16: gradients are rounded to 16 bits, in every world alike, and so travel "
             "between hosts in half the bytes; fp16 scales the loss (train.loss_scale); powersgd: "
             "matrices as products of two narrow ones, outside the one trajectory"},
    {"strategy.powersgd_rank", DPT_KEY_INT, AT(strategy.powersgd_rank),
     .min = 1, .max = 64, TRAJECTORY, .def = "1",
     .help = "powersgd: columns of the narrow matrices"},
    {"strategy.powersgd_start_step", DPT_KEY_INT64, AT(strategy.powersgd_start_step),
     .min = 0, .max = 1e12, TRAJECTORY, .def = "1000",
     .help = "powersgd: steps before the first that is compressed"},

    {"checkpoint.dir", DPT_KEY_TEXT, AT(checkpoint.dir),
     .flags = NULLABLE, NODE, .def = "null",
     .help = "where step-NNNNNNNN folders go; null: no checkpoints"},
    {"checkpoint.every_steps", DPT_KEY_INT64, AT(checkpoint.every_steps),
     .min = 0, .max = 1e12, RUN, .def = "0",
     .help = "steps between checkpoints; 0: at the end and when a run is stopped"},
    {"checkpoint.keep", DPT_KEY_INT, AT(checkpoint.keep),
     .min = 1, .max = 1000000, RUN, .def = "3",
     .help = "newest checkpoints to keep"},
    {"checkpoint.keep_steps", DPT_KEY_STEPS, AT(checkpoint.keep_steps),
     .min = 1, .max = 1e12, RUN, .def = "[]",
     .help = "steps whose checkpoints are never removed, beside those of keep"},
    {"checkpoint.keep_best", DPT_KEY_INT, AT(checkpoint.keep_best),
     .min = 0, .max = 1000000, RUN, .def = "0",
     .help = "checkpoints to keep for their validation loss, beside those of keep: the best of "
             "those that were evaluated (train.eval_every); 0: none"},

    {"log.dir", DPT_KEY_TEXT, AT(log.dir),
     NODE, .def = "runs/demo",
     .help = "metrics.jsonl, events.jsonl, summary.json, node-ID/rank-R.log"},
    {"log.op_times", DPT_KEY_BOOL, AT(log.op_times),
     NODE, .def = "false",
     .help = "time the kernels by class: node-ID/rank-R.op_times.json at the run's end"},
    {"log.wait_s", DPT_KEY_DOUBLE, AT(log.wait_s),
     .min = 0, .max = 604800, NODE, .def = "60",
     .help = "longest time that a rank which stood still waits for its agent's leave to write its "
             "account of memory and times; then they are left out"},
};
/* clang-format on */

const size_t dpt_config_n_keys = sizeof dpt_config_keys / sizeof *dpt_config_keys;
_Static_assert(sizeof dpt_config_keys / sizeof *dpt_config_keys <= DPT_CONFIG_KEYS_MAX, "origins");

size_t dpt_config_key_index(const char *path)
{
    size_t i = 0;
    while (i < dpt_config_n_keys && strcmp(dpt_config_keys[i].path, path) != 0)
        i++;
    return i;
}
