/* The table of config keys: path, type, place in struct dpt_config, range or words, scope, default,
 * help. Loading, validation, printing, --help and docs/config.md are made from it; a new key is a
 * new line here. */
#include "base/config_table.h"

#include <string.h>

_Static_assert(offsetof(struct dpt_config, cluster.nnodes_max) ==
                   offsetof(struct dpt_config, cluster.nnodes_min) + sizeof(int),
               "a RANGE key is two neighbours");
_Static_assert(offsetof(struct dpt_config, optimizer.beta2) ==
                   offsetof(struct dpt_config, optimizer.beta1) + sizeof(double),
               "a DOUBLE_PAIR key is two neighbours");

/* clang-format off */
#define AT(member_)                                                                                \
    .offset = offsetof(struct dpt_config, member_),                                                \
    .size = sizeof(((struct dpt_config *)0)->member_)
/* KEY: the path of the key is the path of its member. PAIR: the key sets two neighbouring
 * members. */
#define KEY(type_, member_)             .path = #member_, .type = DPT_KEY_##type_, AT(member_)
#define PAIR(path_, type_, first_)                                                                 \
    .path = path_, .type = DPT_KEY_##type_, .offset = offsetof(struct dpt_config, first_),         \
    .size = 2 * sizeof(((struct dpt_config *)0)->first_)
#define FROM_TO(min_, max_)             .min = min_, .max = max_
#define WORDS(...)                      .choices = (const struct dpt_choice[]){__VA_ARGS__, {0}}
#define TRAJECTORY                      .scope = DPT_CONFIG_TRAJECTORY
#define RUN                             .scope = DPT_CONFIG_RUN
#define NODE                            .scope = DPT_CONFIG_NODE
#define AUTO                            DPT_KEY_AUTO
#define NULLABLE                        DPT_KEY_NULL

const struct dpt_key dpt_config_keys[] = {
    {KEY(TEXT, run), RUN, .def = "demo",
     .help = "rendezvous run id (letters, digits, '.', '_', '-'); a second user's run of that "
             "name is refused"},
    {KEY(UINT64, seed), TRAJECTORY, .def = "42",
     .help = "seed of initial weights, dropout, data order and how images are varied"},

    {PAIR("cluster.nnodes", RANGE, cluster.nnodes_min), RUN, .def = "1", FROM_TO(1, DPT_MESH_MAX),
     .help = "nodes: N, or \"MIN:MAX\" to go on with at least MIN and take up to MAX"},
    {KEY(INT, cluster.gpus_per_node), NODE, .def = "auto", FROM_TO(1, 64), .flags = AUTO,
     .help = "rank processes a node starts; auto: one per GPU, on CPU one"},
    {KEY(CHOICE, cluster.device), NODE, .def = "auto",
     WORDS({"auto", DPT_DEVICE_AUTO}, {"cpu", DPT_DEVICE_CPU}, {"cuda", DPT_DEVICE_CUDA}),
     .help = "where ranks compute; cuda needs a build with it (docs/gpu.md)"},
    {KEY(CHOICE, cluster.numa), NODE, .def = "auto",
     WORDS({"auto", DPT_NUMA_AUTO}, {"off", DPT_NUMA_OFF}),
     .help = "auto: a rank stays on the cores beside its GPU; ranks without a GPU are divided "
             "among the machine's NUMA nodes if no rank has fewer cores by that; off: on any core"},
    {KEY(CHOICE, cluster.backend), RUN, .def = "nccl",
     WORDS({"nccl", DPT_BACKEND_NCCL}, {"host", DPT_BACKEND_HOST}),
     .help = "how gradients go between ranks whose state is on GPUs: nccl, from device to device, "
             "or host, through the hosts' memory (docs/gpu-communication.md)"},
    {KEY(BOOL, cluster.cuda_graphs), NODE, .def = "true",
     .help = "submit each unit's forward and backward pass to a GPU as one CUDA graph, after the "
             "first two slots of a generation; not with dropout or log.op_times"},
    {KEY(INT, cluster.threads), NODE, .def = "auto", FROM_TO(1, 128), .flags = AUTO,
     .help = "compute threads of a rank; auto: in each generation, the cores that the worker may "
             "use (affinity, CPU quota), divided among the ranks of its host that may use the "
             "same cores"},
    {KEY(CHOICE, cluster.pack_weights), NODE, .def = "auto",
     WORDS({"auto", DPT_PACK_WEIGHTS_AUTO}, {"on", DPT_PACK_WEIGHTS_ON},
           {"off", DPT_PACK_WEIGHTS_OFF}),
     .help = "keep the weights of a step also in the layout that matrix products read, which "
             "takes two more copies (of what a rank holds whole: the weights with ddp, the base "
             "of train.lora with every strategy); auto: if its host's ranks need at most half the "
             "available memory for it and, with ddp, a rank computes two or more slots a step"},
    {KEY(DOUBLE, cluster.timeout_s), RUN, .def = "5", FROM_TO(0.2, 600),
     .help = "the base of all timeouts: heartbeats, leases, joins and aborts derive from it"},
    {KEY(DOUBLE, cluster.first_step_s), RUN, .def = "1800", FROM_TO(0, 604800),
     .help = "longest time that the first step of a run may take before a new generation is "
             "formed; 0: no limit"},
    {KEY(DOUBLE, cluster.wait_s), RUN, .def = "0", FROM_TO(0, 604800),
     .help = "longest time that a run waits for its minimum of nodes; then the state that no "
             "checkpoint has is saved and the run fails; 0: no limit"},
    {KEY(DOUBLE, cluster.drain_s), RUN, .def = "8", FROM_TO(1, 3600),
     .help = "time that a node has after a signal to finish its step and to hand over or save the "
             "state that only it holds; set it to the platform's notice (cloud preemption: 30 to "
             "120 s) less 2 s"},
    {KEY(INT, cluster.max_restarts), RUN, .def = "100", FROM_TO(0, 1000000),
     .help = "crashes that the run survives; progress refills the budget"},
    {KEY(TEXT, cluster.rdzv), NODE, .def = "null", .flags = NULLABLE,
     .help = "HOST:PORT of dpt-rdzv; null: 127.0.0.1:29500, or a single node's embedded server"},
    {KEY(TEXT, cluster.interface), NODE, .def = "null", .flags = NULLABLE,
     .help = "network interface of the data plane; null: the one routed to the peers"},
    {KEY(TEXT, cluster.host_group), NODE, .def = "null", .flags = NULLABLE,
     .help = "ranks of one host share memory only if their groups are equal"},
    {KEY(TEXT, cluster.rack), NODE, .def = "null", .flags = NULLABLE,
     .help = "name of this machine's rack: its ranks are neighbours; shadows are in another rack"},
    {KEY(INT, cluster.mesh_max), RUN, .def = "256", FROM_TO(1, DPT_MESH_MAX),
     .help = "ranks of the largest world in which each rank has a connection to every other; in a "
             "larger world a rank has at most 2 log2 W connections between hosts, and ranks relay "
             "(docs/collectives.md)"},
    {KEY(CHOICE, cluster.encrypt), RUN, .def = "none",
     WORDS({"none", DPT_ENCRYPT_NONE}, {"mac", DPT_ENCRYPT_MAC}, {"data", DPT_ENCRYPT_DATA}),
     .help = "what data connections between hosts protect beyond their first message: none; mac, "
             "so that bytes changed on the way end the attempt; data, encrypted, too. Not NCCL's "
             "own traffic (docs/security.md)"},
    {KEY(BOOL, cluster.health_check), NODE, .def = "true",
     .help = "test each core of the machine with matrix products before the worker joins; the "
             "server refuses a node whose products are wrong (docs/membership.md)"},

    {KEY(CHOICE_TEXT, model.name), TRAJECTORY, .def = "gpt2",
     WORDS({"gpt2", 0}, {"llama", 0}, {"resnet", 0}),
     .help = "architecture"},
    {KEY(CHOICE_TEXT, model.preset), TRAJECTORY, .def = "null", .flags = NULLABLE | DPT_KEY_ALIAS,
     WORDS({"", 0}, {"gpt2-124m", 0}, {"gpt2-350m", 0}, {"gpt2-774m", 0}, {"gpt2-1558m", 0},
           {"smollm2-135m", 0}, {"smollm2-360m", 0}, {"smollm2-1.7b", 0}, {"llama-3.2-1b", 0},
           {"small_resnet", 0}, {"resnet18", 0}, {"resnet34", 0}, {"resnet50", 0}),
     .help = "published sizes by name; a size written beside it wins"},
    {KEY(INT, model.n_layer), TRAJECTORY, .def = "4", FROM_TO(1, 254),
     .help = "transformer blocks; resnet: residual blocks, in three stages of equal size unless "
             "model.stages says otherwise, 18 where neither is given"},
    {KEY(INT, model.n_head), TRAJECTORY, .def = "4", FROM_TO(1, 1024),
     .help = "attention heads; divides n_embd"},
    {KEY(INT, model.n_embd), TRAJECTORY, .def = "128", FROM_TO(1, 65536),
     .help = "width"},
    {KEY(INT, model.context), TRAJECTORY, .def = "256", FROM_TO(1, 1048576),
     .help = "most positions of a sequence; seq_len may be shorter"},
    {KEY(INT, model.vocab), TRAJECTORY, .def = "auto", FROM_TO(2, 16777216), .flags = AUTO,
     .help = "number of distinct tokens; auto: the preset's, else 256 for byte tokens, else "
             "50257; text with the hf tokenizer needs a number, at least that of its tokens"},
    {KEY(DOUBLE, model.dropout), TRAJECTORY, .def = "0", FROM_TO(0, 1), .flags = DPT_KEY_OPEN_MAX,
     .help = "probability that an activation is dropped; llama: of attention probabilities only"},
    {KEY(INT, model.labels), TRAJECTORY, .def = "0", FROM_TO(0, 65536),
     .help = "number of classes, 2 or more, with data.kind: classification, cifar10 or images; 0: "
             "the model predicts the next token"},
    {KEY(INT, model.n_kv_head), TRAJECTORY, .def = "auto", FROM_TO(1, 1024), .flags = AUTO,
     .help = "llama: heads of keys and values, each for n_head / n_kv_head heads of queries; "
             "auto: the preset's, else n_head"},
    {KEY(INT, model.head_size), TRAJECTORY, .def = "auto", FROM_TO(2, 256), .flags = AUTO,
     .help = "llama: channels of a head; auto: n_embd / n_head"},
    {KEY(INT, model.n_inner), TRAJECTORY, .def = "auto", FROM_TO(1, 262144), .flags = AUTO,
     .help = "llama: width of the MLP (intermediate_size); auto: the preset's, else 8/3 n_embd, "
             "rounded up to a multiple of 64"},
    {KEY(DOUBLE, model.norm_eps), TRAJECTORY, .def = "1e-5", FROM_TO(0, 1),
     .flags = DPT_KEY_OPEN_MIN,
     .help = "llama: added to the mean square in RMS norms"},
    {KEY(BOOL, model.tied_head), TRAJECTORY, .def = "true",
     .help = "llama: the head's matrix is the embedding's; false: it has its own"},
    {KEY(BOOL, model.attention_bias), TRAJECTORY, .def = "false",
     .help = "llama: biases of the attention's four products"},
    {KEY(BOOL, model.mlp_bias), TRAJECTORY, .def = "false",
     .help = "llama: biases of the MLP's three products"},
    {KEY(DOUBLE, model.rope_theta), TRAJECTORY, .def = "10000", FROM_TO(1, 1e12),
     .help = "llama: base of the rotary embeddings' wave lengths"},
    {KEY(CHOICE, model.rope_scaling), TRAJECTORY, .def = "none",
     WORDS({"none", DPT_ROPE_SCALING_NONE}, {"llama3", DPT_ROPE_SCALING_LLAMA3}),
     .help = "llama: llama3 lowers the frequencies of waves that are long beside "
             "rope_original_context"},
    {KEY(DOUBLE, model.rope_factor), TRAJECTORY, .def = "8", FROM_TO(1, 1e6),
     .help = "with rope_scaling: llama3, divisor of the lowered frequencies"},
    {KEY(DOUBLE, model.rope_low_freq_factor), TRAJECTORY, .def = "1", FROM_TO(0, 1e6),
     .flags = DPT_KEY_OPEN_MIN,
     .help = "with rope_scaling: llama3, the frequencies of waves longer than "
             "rope_original_context / this are divided by the whole factor"},
    {KEY(DOUBLE, model.rope_high_freq_factor), TRAJECTORY, .def = "4", FROM_TO(0, 1e6),
     .flags = DPT_KEY_OPEN_MIN,
     .help = "with rope_scaling: llama3, waves shorter than rope_original_context / this are not "
             "changed"},
    {KEY(INT, model.rope_original_context), TRAJECTORY, .def = "8192", FROM_TO(1, 1048576),
     .help = "with rope_scaling: llama3, context of the model's first training"},
    {KEY(INT, model.width), TRAJECTORY, .def = "64", FROM_TO(1, 4096),
     .help = "resnet: channels of the stem and of the first stage; each further stage has twice "
             "as many, and bottleneck blocks end in four times as many"},
    {KEY(CHOICE, model.stem), TRAJECTORY, .def = "cifar",
     WORDS({"cifar", DPT_STEM_CIFAR}, {"imagenet", DPT_STEM_IMAGENET}),
     .help = "resnet: first layers; cifar: 3x3 convolution, for images of 32x32; imagenet: 7x7 "
             "convolution with stride 2, then 3x3 max pooling with stride 2"},
    {KEY(CHOICE, model.block), TRAJECTORY, .def = "basic",
     WORDS({"basic", DPT_RESIDUAL_BLOCK_BASIC}, {"bottleneck", DPT_RESIDUAL_BLOCK_BOTTLENECK}),
     .help = "resnet: a block's convolutions; basic: 3x3, 3x3; bottleneck: 1x1, 3x3, 1x1"},
    {KEY(STEPS, model.stages), TRAJECTORY, .def = "[]", FROM_TO(1, 254), .flags = DPT_KEY_ANY_ORDER,
     .help = "resnet: blocks of each stage, such as [3, 4, 6, 3]; each stage after the first "
             "halves the image; []: three stages of n_layer / 3"},
    {KEY(DOUBLE, model.batch_norm_momentum), TRAJECTORY, .def = "0.1", FROM_TO(0, 1),
     .flags = DPT_KEY_OPEN_MIN,
     .help = "resnet: weight of a micro-batch's mean and variance in the running statistics that "
             "evaluation uses (PyTorch's momentum)"},
    {KEY(TEXT, model.init_from), NODE, .def = "null", .flags = NULLABLE,
     .help = "folder of a Hugging Face GPT-2 or Llama to start from: its config.json sets the "
             "sizes, nodes compare the hash of the weights (docs/models.md); null: weights drawn "
             "from the seed"},

    {KEY(CHOICE, data.kind), TRAJECTORY, .def = "text",
     WORDS({"text", DPT_DATA_TEXT}, {"tokens", DPT_DATA_TOKENS},
           {"classification", DPT_DATA_CLASSIFICATION}, {"cifar10", DPT_DATA_CIFAR10},
           {"images", DPT_DATA_IMAGES}),
     .help = "text: one file; tokens: .bin shards; classification: a table of texts and labels, "
             "one .csv, .tsv or .jsonl file; cifar10: files in CIFAR-10's binary version; images: "
             "a folder with a sub-folder of .jpg and .png files for each class "
             "(docs/your-own-data.md)"},
    {KEY(TEXT, data.train), NODE, .def = "null", .flags = NULLABLE,
     .help = "training data: the file, a glob of the files (tokens, cifar10) or the folder "
             "(images); nodes compare its content hash"},
    {KEY(TEXT, data.val), NODE, .def = "null", .flags = NULLABLE,
     .help = "validation data, of the same kind; nodes compare its content hash when they "
             "evaluate"},
    {KEY(TEXT, data.text_column), NODE, .def = "text",
     .help = "classification: column of the texts, by its name in the first row or its key in a "
             ".jsonl file; a number, from 1: by its place in a file whose first row is data"},
    {KEY(TEXT, data.label_column), NODE, .def = "label",
     .help = "classification: column of the labels, given as text_column is"},
    {KEY(INT, data.first_label), NODE, .def = "0", FROM_TO(-1000000, 1000000),
     .help = "classification: smallest label in the files, which is class 0; the largest is "
             "first_label + model.labels - 1"},
    {KEY(INT64, data.train_samples), TRAJECTORY, .def = "0", FROM_TO(0, 1e9),
     .help = "classification: number of rows of data.train that are read, from the first; 0: all"},
    {KEY(INT64, data.val_samples), RUN, .def = "0", FROM_TO(0, 1e9),
     .help = "classification: number of rows of data.val that are read, from the first; 0: all"},
    {KEY(CHOICE, data.tokenizer), TRAJECTORY, .def = "bytes",
     WORDS({"bytes", DPT_TOKENIZER_BYTES}, {"gpt2", DPT_TOKENIZER_GPT2}, {"hf", DPT_TOKENIZER_HF}),
     .help = "how text becomes tokens; hf: as a Hugging Face tokenizer.json defines "
             "(docs/your-own-data.md)"},
    {KEY(TEXT, data.vocab_bpe), NODE, .def = "null", .flags = NULLABLE,
     .help = "merges of the gpt2 tokenizer: OpenAI's file, checked by its hash"},
    {KEY(TEXT, data.encoder_json), NODE, .def = "null", .flags = NULLABLE,
     .help = "vocabulary of the gpt2 tokenizer: OpenAI's file, checked by its hash"},
    {KEY(BOOL, data.any_vocab), NODE, .def = "false",
     .help = "accept another vocabulary in the format of OpenAI's two files"},
    {KEY(TEXT, data.tokenizer_json), NODE, .def = "null", .flags = NULLABLE,
     .help = "file of the hf tokenizer; nodes compare the hash of the tokens it gives"},
    {KEY(INT, data.image_size), TRAJECTORY, .def = "auto", FROM_TO(1, 1024), .flags = AUTO,
     .help = "images: height and width of a sample; auto: 224, with cifar10 32, its only size"},
    {KEY(INT, data.resize), TRAJECTORY, .def = "auto", FROM_TO(1, 2048), .flags = AUTO,
     .help = "images: length of the shorter side after resizing, before the middle image_size x "
             "image_size is cut out; auto: 8/7 image_size, 256 for 224"},
    {KEY(CHOICE, data.augment), TRAJECTORY, .def = "auto",
     WORDS({"auto", DPT_AUGMENT_AUTO}, {"none", DPT_AUGMENT_NONE},
           {"crop_flip", DPT_AUGMENT_CROP_FLIP},
           {"resized_crop_flip", DPT_AUGMENT_RESIZED_CROP_FLIP}),
     .help = "cifar10, images: random changes of training images; crop_flip: shifted by up to "
             "crop_padding pixels, mirrored half of the time; resized_crop_flip (images): a part "
             "of 8 to 100 % of the area, mirrored half of the time; auto: crop_flip with cifar10, "
             "resized_crop_flip with images"},
    {KEY(INT, data.crop_padding), TRAJECTORY, .def = "4", FROM_TO(0, 512),
     .help = "with augment: crop_flip, largest shift in pixels; the border is black"},
    {KEY(CHOICE, data.damaged_images), RUN, .def = "refuse",
     WORDS({"refuse", DPT_DAMAGED_IMAGES_REFUSE}, {"skip", DPT_DAMAGED_IMAGES_SKIP}),
     .help = "images: action for a file that cannot be decoded; refuse: the run does not start; "
             "skip: the file is left out, for which every process decodes all files first"},

    {KEY(INT64, train.steps), TRAJECTORY, .def = "200", FROM_TO(1, DPT_CONFIG_RUN_STEPS_MAX),
     .flags = AUTO,
     .help = "optimizer steps of the whole run; auto: those of train.epochs; part of the "
             "trajectory unless the schedule is constant or has schedule_steps"},
    {KEY(INT64, train.epochs), TRAJECTORY, .def = "0", FROM_TO(0, 1e6),
     .help = "passes over data.train, instead of train.steps; an epoch has as many steps as "
             "data.train has whole global batches; with data.val an evaluation follows each; 0: "
             "train.steps counts"},
    {KEY(INT64, train.epoch_steps), TRAJECTORY, .def = "auto", FROM_TO(1, DPT_CONFIG_RUN_STEPS_MAX),
     .flags = AUTO,
     .help = "steps of one epoch; do not set it: the worker counts data.train and writes the "
             "number here, so that nodes and checkpoints compare it"},
    {KEY(INT, train.global_batch), TRAJECTORY, .def = "32", FROM_TO(1, 16777216),
     .help = "samples a step; a multiple of micro_batch, at most 4096 times it"},
    {KEY(INT, train.micro_batch), TRAJECTORY, .def = "4", FROM_TO(1, 65536),
     .help = "samples of one forward and backward pass: a slot"},
    {KEY(INT, train.seq_len), TRAJECTORY, .def = "64", FROM_TO(1, 1048576),
     .help = "tokens of a sample, at most model.context (classification: longer texts are cut); "
             "leave it out for images"},
    {KEY(CHOICE, train.precision), TRAJECTORY, .def = "fp32",
     WORDS({"fp32", DPT_PRECISION_FP32}, {"tf32", DPT_PRECISION_TF32},
           {"bf16", DPT_PRECISION_BF16}, {"fp16", DPT_PRECISION_FP16}),
     .help = "arithmetic of forward and backward; weights in memory and in checkpoints, sums and "
             "gradients are fp32; tf32 (cluster.device cuda): fp32 whose matrix products take "
             "their operands with 10 bits of mantissa"},
    {KEY(DOUBLE, train.loss_scale), TRAJECTORY, .def = "65536", FROM_TO(1, 0x1p40),
     .help = "fp16: first factor of the loss; a power of two"},
    {KEY(DOUBLE, train.loss_scale_growth), TRAJECTORY, .def = "2", FROM_TO(1, 65536),
     .help = "fp16: factor by which the scale grows after loss_scale_interval good steps; a power "
             "of two"},
    {KEY(DOUBLE, train.loss_scale_backoff), TRAJECTORY, .def = "0.5", FROM_TO(0, 1),
     .flags = DPT_KEY_OPEN_MIN | DPT_KEY_OPEN_MAX,
     .help = "fp16: factor by which the scale shrinks after an overflow, whose step is skipped; a "
             "power of two"},
    {KEY(INT64, train.loss_scale_interval), TRAJECTORY, .def = "2000", FROM_TO(1, 1e12),
     .help = "fp16: good steps in a row after which the scale grows"},
    {KEY(CHOICE, train.on_divergence), TRAJECTORY, .def = "stop",
     WORDS({"stop", DPT_DIVERGENCE_STOP}, {"skip", DPT_DIVERGENCE_SKIP},
           {"continue", DPT_DIVERGENCE_CONTINUE}),
     .help = "a step whose loss or gradient is not finite: stop ends the run before it, skip "
             "leaves it out, continue applies it; checkpoints that are not finite are never "
             "committed"},
    {KEY(INT64, train.divergence_limit), RUN, .def = "10", FROM_TO(1, 1e12),
     .help = "with on_divergence: skip, most steps in a row that are left out; one more ends the "
             "run"},
    {KEY(CHOICE, train.reduction), TRAJECTORY, .def = "canonical",
     WORDS({"canonical", DPT_REDUCTION_CANONICAL}, {"fast", DPT_REDUCTION_FAST},
           {"ring", DPT_REDUCTION_RING}),
     .help = "canonical: gradients are added in one fixed order; fast: in the order that is "
             "fastest in the present world, so that the bits of the weights depend on the world; "
             "ring: as fast, but each rank sends to the next one only (ddp on CPUs)"},
    {KEY(CHOICE, train.accumulate), TRAJECTORY, .def = "auto",
     WORDS({"auto", DPT_ACCUMULATE_AUTO}, {"local", DPT_ACCUMULATE_LOCAL},
           {"reduce", DPT_ACCUMULATE_REDUCE}),
     .help = "the fixed order of addition: lanes added in a tree (local) or slot by slot "
             "(reduce); auto: the strategy's"},
    {KEY(INT, train.lanes), TRAJECTORY, .def = "auto", FROM_TO(1, 4096), .flags = AUTO,
     .help = "partial sums of a step under accumulate: local, and the largest world there (under "
             "reduce it is one rank a slot); auto: min(slots, 16), or with reduction: fast or ring "
             "one a rank"},
    {KEY(CHOICE, train.activation_checkpointing), RUN, .def = "none",
     WORDS({"none", DPT_ACTIVATION_CHECKPOINTING_NONE},
           {"full", DPT_ACTIVATION_CHECKPOINTING_FULL},
           {"selective", DPT_ACTIVATION_CHECKPOINTING_SELECTIVE}),
     .help = "recompute activations in the backward pass: all but each unit's input (full), or "
             "what is cheap, the norms' outputs and GELU's or SwiGLU's (selective); bits stay the "
             "same"},
    {KEY(DOUBLE, train.grad_clip), TRAJECTORY, .def = "1", FROM_TO(0, 1e30),
     .help = "largest global L2 norm of the gradient; 0: off"},
    {KEY(INT64, train.log_every), RUN, .def = "1", FROM_TO(1, 1e12),
     .help = "steps between lines of metrics.jsonl and of standard output"},
    {KEY(INT64, train.verify_every), RUN, .def = "0", FROM_TO(0, 1e12),
     .help = "steps between comparisons of the weights of ranks that hold the same part; a "
             "difference stops the run; 0: never"},
    {KEY(INT64, train.eval_every), RUN, .def = "0", FROM_TO(0, 1e12),
     .help = "steps between evaluations on data.val; one more follows the last step; 0: never"},
    {KEY(INT64, train.eval_tokens), RUN, .def = "1048576", FROM_TO(1, 1e12),
     .help = "most tokens of an evaluation, which reads data.val from its start in whole "
             "sequences of seq_len (classification, cifar10, images: all of data.val, or "
             "data.val_samples rows)"},
    {KEY(BOOL, train.eval_only), RUN, .def = "false",
     .help = "train nothing: evaluate one checkpoint of checkpoint.dir on data.val and end "
             "(dpt-worker --eval)"},
    {KEY(INT64, train.eval_step), RUN, .def = "auto", FROM_TO(1, 1e12), .flags = AUTO,
     .help = "with eval_only: the step of that checkpoint; auto: the newest (--step N)"},
    {KEY(INT, train.lora.rank), TRAJECTORY, .def = "0", FROM_TO(0, 1024),
     .help = "train adapters of this rank beside the weights of model.init_from, which stay as "
             "they are (docs/lora.md); 0: train all weights"},
    {KEY(DOUBLE, train.lora.alpha), TRAJECTORY, .def = "16", FROM_TO(0, 1e6),
     .flags = DPT_KEY_OPEN_MIN,
     .help = "the output of an adapter is multiplied by alpha / rank"},
    {KEY(WORDS, train.lora.targets), TRAJECTORY, .def = "all",
     WORDS({"all", DPT_LORA_ALL}, {"q_proj", DPT_LORA_Q_PROJ}, {"k_proj", DPT_LORA_K_PROJ},
           {"v_proj", DPT_LORA_V_PROJ}, {"o_proj", DPT_LORA_O_PROJ},
           {"gate_proj", DPT_LORA_GATE_PROJ}, {"up_proj", DPT_LORA_UP_PROJ},
           {"down_proj", DPT_LORA_DOWN_PROJ}, {"c_attn", DPT_LORA_C_ATTN},
           {"c_proj", DPT_LORA_C_PROJ}, {"c_fc", DPT_LORA_C_FC}),
     .help = "linear layers that have adapters: one or a list; all: those of every block"},
    {KEY(TEXT, train.lora.base_hash), TRAJECTORY, .def = "null", .flags = NULLABLE,
     .help = "hash of the weights of model.init_from; do not set it: the worker writes it here, "
             "so that nodes and checkpoints compare it"},

    {KEY(CHOICE_TEXT, optimizer.name), TRAJECTORY, .def = "adamw",
     WORDS({"adamw", 0}, {"adam", 0}, {"sgd", 0}),
     .help = "update rule"},
    {KEY(DOUBLE, optimizer.lr), TRAJECTORY, .def = "3e-4", FROM_TO(0, 1000),
     .help = "peak learning rate"},
    {KEY(DOUBLE, optimizer.min_lr), TRAJECTORY, .def = "0", FROM_TO(0, 1000),
     .help = "learning rate at the schedule's end; at most lr"},
    {KEY(CHOICE, optimizer.schedule), TRAJECTORY, .def = "cosine",
     WORDS({"constant", DPT_SCHEDULE_CONSTANT}, {"linear", DPT_SCHEDULE_LINEAR},
           {"cosine", DPT_SCHEDULE_COSINE}),
     .help = "learning rate between warm-up and the last step"},
    {KEY(INT64, optimizer.warmup_steps), TRAJECTORY, .def = "0", FROM_TO(0, 1e12),
     .help = "steps of linear warm-up; at most train.steps"},
    {KEY(INT64, optimizer.schedule_steps), TRAJECTORY, .def = "auto", FROM_TO(1, 1e12),
     .flags = AUTO,
     .help = "steps of decay after the warm-up, down to min_lr (PyTorch's total_iters and T_max); "
             "auto: until the run's last step"},
    {PAIR("optimizer.betas", DOUBLE_PAIR, optimizer.beta1), TRAJECTORY, .def = "[0.9, 0.95]",
     FROM_TO(0, 1),
     .flags = DPT_KEY_OPEN_MAX,
     .help = "decay of the first and second moment"},
    {KEY(DOUBLE, optimizer.eps), TRAJECTORY, .def = "1e-8", FROM_TO(0, 1),
     .flags = DPT_KEY_OPEN_MIN,
     .help = "added to the root of the second moment"},
    {KEY(DOUBLE, optimizer.weight_decay), TRAJECTORY, .def = "0.1", FROM_TO(0, 1000),
     .help = "weight decay of matrices: decoupled (adamw), or added to the gradient (adam, sgd)"},
    {KEY(DOUBLE, optimizer.momentum), TRAJECTORY, .def = "0.9", FROM_TO(0, 1),
     .flags = DPT_KEY_OPEN_MAX,
     .help = "sgd: decay of the velocity; 0: none is kept"},
    {KEY(BOOL, optimizer.nesterov), TRAJECTORY, .def = "false",
     .help = "sgd: Nesterov momentum"},
    {KEY(CHOICE, optimizer.lr_scaling), TRAJECTORY, .def = "none",
     WORDS({"none", DPT_LR_SCALING_NONE}, {"linear", DPT_LR_SCALING_LINEAR}),
     .help = "linear: lr and min_lr are multiplied by train.global_batch / base_batch, warm-up "
             "included"},
    {KEY(INT, optimizer.base_batch), TRAJECTORY, .def = "auto", FROM_TO(1, 16777216), .flags = AUTO,
     .help = "with lr_scaling: linear, the global batch that lr was chosen for; auto: not given"},

    {KEY(CHOICE_TEXT, strategy.name), RUN, .def = "ddp",
     WORDS({"ddp", 0}, {"simple", 0}, {"simple_ga", 0}, {"hook", 0}, {"async", 0},
           {"bucket_async", 0}, {"dp", 0}, {"zero1", 0}, {"zero2", 0}, {"zero3", 0}, {"fsdp", 0}),
     .help = "how the state is divided and gradients are reduced; simple, simple_ga, hook, async "
             "and bucket_async are slower forms of ddp to learn from, and dp keeps the state on "
             "one rank, as torch.nn.DataParallel does (docs/strategies.md)"},
    {KEY(DOUBLE, strategy.bucket_mib), RUN, .def = "25", FROM_TO(0, 16384),
     .flags = DPT_KEY_OPEN_MIN,
     .help = "size of the buckets in which gradients are reduced (ddp, bucket_async)"},
    {KEY(DOUBLE, strategy.first_bucket_mib), RUN, .def = "1", FROM_TO(0, 16384),
     .flags = DPT_KEY_OPEN_MIN,
     .help = "size of the first bucket, small so that the reduction starts early (ddp)"},
    {KEY(BOOL, strategy.overlap), RUN, .def = "true",
     .help = "reduce during the backward pass; false: no computation while gradients are sent, "
             "and no prefetch"},
    {KEY(CHOICE, strategy.sharding), RUN, .def = "null", .flags = NULLABLE,
     WORDS({"", DPT_SHARDING_NULL}, {"full_shard", DPT_SHARDING_FULL_SHARD},
           {"shard_grad_op", DPT_SHARDING_SHARD_GRAD_OP},
           {"hybrid_shard", DPT_SHARDING_HYBRID_SHARD}, {"no_shard", DPT_SHARDING_NO_SHARD}),
     .help = "what fsdp shards"},
    {KEY(CHOICE, strategy.redundancy), RUN, .def = "none",
     WORDS({"none", DPT_REDUNDANCY_NONE}, {"shadow", DPT_REDUNDANCY_SHADOW}),
     .help = "shadow: a rank on another node, the shadow holder, keeps a second copy of each "
             "shard"},

    {KEY(CHOICE, strategy.offload), NODE, .def = "none",
     WORDS({"none", DPT_OFFLOAD_NONE}, {"optimizer", DPT_OFFLOAD_OPTIMIZER}),
     .help = "with cluster.device cuda, optimizer: masters, moments and gradients are kept, "
             "reduced and applied in host memory, and the GPU holds only the weights it computes "
             "with; none: the GPU does everything (docs/gpu.md)"},
    {KEY(DOUBLE, strategy.rebuild_mib), RUN, .def = "16", FROM_TO(0, 1048576),
     .help = "after a loss: shadows of up to this size a rank are copied before training goes on, "
             "larger ones during training, this much a step (at least one unit)"},
    {KEY(BOOL, strategy.prefetch), RUN, .def = "true",
     .help = "sharded state: gather the weights of a unit while others are computed; if not "
             "given, false with overlap: false or gathered_units_max: 1"},
    {KEY(INT, strategy.gathered_units_max), RUN, .def = "2", FROM_TO(1, 256),
     .help = "sharded weights: units gathered at once, in addition to a tied embedding; at least "
             "2 for prefetch; 256: gather each unit once a step"},

    {KEY(CHOICE, strategy.compression), TRAJECTORY, .def = "none",
     WORDS({"none", DPT_COMPRESSION_NONE}, {"bf16", DPT_COMPRESSION_BF16},
           {"fp16", DPT_COMPRESSION_FP16}, {"powersgd", DPT_COMPRESSION_POWERSGD}),
     .help = "bf16, fp16: gradients are rounded to 16 bits, alike in every world, and take half "
             "the bytes between hosts; fp16 scales the loss (train.loss_scale); powersgd: "
             "matrices as products of two narrow ones, with bits that depend on the world"},
    {KEY(INT, strategy.powersgd_rank), TRAJECTORY, .def = "1", FROM_TO(1, 64),
     .help = "powersgd: columns of the narrow matrices"},
    {KEY(INT64, strategy.powersgd_start_step), TRAJECTORY, .def = "1000", FROM_TO(0, 1e12),
     .help = "powersgd: number of steps before compression begins"},

    {KEY(TEXT, checkpoint.dir), NODE, .def = "null", .flags = NULLABLE,
     .help = "folder of the step-NNNNNNNN folders; null: no checkpoints"},
    {KEY(INT64, checkpoint.every_steps), RUN, .def = "0", FROM_TO(0, 1e12),
     .help = "steps between checkpoints; 0: only at the end and when a run is stopped"},
    {KEY(INT, checkpoint.keep), RUN, .def = "3", FROM_TO(1, 1000000),
     .help = "newest checkpoints to keep"},
    {KEY(STEPS, checkpoint.keep_steps), RUN, .def = "[]", FROM_TO(1, 1e12),
     .help = "steps whose checkpoints are never removed, in addition to keep"},
    {KEY(INT, checkpoint.keep_best), RUN, .def = "0", FROM_TO(0, 1000000),
     .help = "checkpoints to keep for their validation loss, in addition to keep: the best of "
             "those that were evaluated (train.eval_every); 0: none"},

    {KEY(TEXT, log.dir), NODE, .def = "runs/demo",
     .help = "folder of metrics.jsonl, events.jsonl, summary.json, node-ID/rank-R.log"},
    {KEY(BOOL, log.tensorboard), NODE, .def = "true",
     .help = "write the numbers of metrics.jsonl to event files of TensorBoard in log.dir, too"},
    {KEY(BOOL, log.op_times), NODE, .def = "false",
     .help = "measure the time of kernels by class: node-ID/rank-R.op_times.json at the run's end"},
    {KEY(INT64, log.memory_every), NODE, .def = "0", FROM_TO(0, 1e12),
     .help = "steps between lines about the memory of a rank in its log, also after the first step "
             "and at the end (docs/memory.md); 0: none"},
    {KEY(BOOL, log.memory_snapshot), NODE, .def = "false",
     .help = "write node-ID/rank-R.memory.pickle at the run's end, for pytorch.org/memory_viz"},
    {KEY(DOUBLE, log.price_per_hour), NODE, .def = "0", FROM_TO(0, 1e6),
     .help = "dollars of an hour of a node, for the cost of the run in its summary; 0: none"},
    {KEY(DOUBLE, log.wait_s), NODE, .def = "60", FROM_TO(0, 604800),
     .help = "longest time that a rank which was suspended waits for its agent's permission to "
             "write its account of memory and times; then they are left out"},

    {KEY(TEXT, trace.dir), NODE, .def = "null", .flags = NULLABLE,
     .help = "folder of traces for dpt-trace and Holistic Trace Analysis "
             "(docs/tracing.md): profile/STRATEGY/rank_R/worker_R.TIME.pt.trace.json.gz; null: "
             "nothing is traced"},
    {KEY(INT64, trace.wait), NODE, .def = "1", FROM_TO(0, 1e12),
     .help = "steps of the run before a window of traced steps"},
    {KEY(INT64, trace.warmup), NODE, .def = "1", FROM_TO(0, 1e6),
     .help = "steps after wait that are recorded and dropped"},
    {KEY(INT64, trace.active), NODE, .def = "3", FROM_TO(1, 1e6),
     .help = "steps after warmup that are recorded and written as one file of each rank"},
    {KEY(INT64, trace.repeat), NODE, .def = "1", FROM_TO(0, 1e12),
     .help = "windows of wait, warmup and active steps; 0: until the end of the run"},
    {KEY(STEPS, trace.ranks), NODE, .def = "[]", FROM_TO(0, 1023),
     .help = "ranks that are traced; []: all"},
    {KEY(BOOL, trace.memory), NODE, .def = "true",
     .help = "record each allocation and release of a rank, and the bytes of each kind of memory "
             "at the begin of each step"},
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

const struct dpt_key *dpt_config_key(const char *path)
{
    const size_t i = dpt_config_key_index(path);
    DPT_ASSERT(i < dpt_config_n_keys);
    return &dpt_config_keys[i];
}
