/* The run's configuration: one YAML file. One table (config_table.c) has the type, range and
 * default of every key; loading, validation, `--help` and docs/config.md are made from it.
 *
 * Each key has one of three scopes:
 *
 *   run         The value is equal on every node. A worker with another value is refused; the
 *               message names the keys.
 *   trajectory  Like run, and the value changes the bits of the weights. Resume refuses another
 *               value without `--allow-change KEY`.
 *   node        Each node has its own value (device, threads, paths). */
#ifndef DPT_BASE_CONFIG_H
#define DPT_BASE_CONFIG_H

#include "base/encrypt.h"
#include "base/err.h"
#include "base/world_limits.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum {
    DPT_CONFIG_NAME_BYTES = 64,
    DPT_CONFIG_PATH_BYTES = 1024,
    DPT_CONFIG_TEXT_BYTES_MAX = 65536, /* longest config file and longest canonical text */
    DPT_CONFIG_OVERRIDES_MAX = 64
};

enum dpt_device_kind { DPT_DEVICE_AUTO, DPT_DEVICE_CPU, DPT_DEVICE_CUDA };
enum dpt_numa_use { DPT_NUMA_AUTO, DPT_NUMA_OFF };
enum dpt_pack_weights { DPT_PACK_WEIGHTS_AUTO, DPT_PACK_WEIGHTS_ON, DPT_PACK_WEIGHTS_OFF };
enum dpt_precision {
    DPT_PRECISION_FP32,
    DPT_PRECISION_BF16,
    DPT_PRECISION_FP16,
    DPT_PRECISION_TF32 /* like fp32, but matrix products round their operands to TF32 */
};
enum { DPT_CONFIG_STEPS_MAX = 16 };
/* A list of n numbers, ascending except in model.stages. Elements after the n-th are zero. */
struct dpt_config_steps {
    int64_t n, step[DPT_CONFIG_STEPS_MAX];
};
enum dpt_reduction { DPT_REDUCTION_CANONICAL, DPT_REDUCTION_FAST, DPT_REDUCTION_RING };
enum dpt_divergence { DPT_DIVERGENCE_STOP, DPT_DIVERGENCE_SKIP, DPT_DIVERGENCE_CONTINUE };
enum dpt_accumulate { DPT_ACCUMULATE_AUTO, DPT_ACCUMULATE_LOCAL, DPT_ACCUMULATE_REDUCE };
enum dpt_data_kind {
    DPT_DATA_TEXT,
    DPT_DATA_TOKENS,
    DPT_DATA_CLASSIFICATION,
    DPT_DATA_CIFAR10,
    DPT_DATA_IMAGES
};
enum dpt_augment {
    DPT_AUGMENT_AUTO, /* loading replaces it if the config reads images */
    DPT_AUGMENT_NONE,
    DPT_AUGMENT_CROP_FLIP,
    DPT_AUGMENT_RESIZED_CROP_FLIP
};
enum dpt_damaged_images { DPT_DAMAGED_IMAGES_REFUSE, DPT_DAMAGED_IMAGES_SKIP };
enum dpt_tokenizer { DPT_TOKENIZER_BYTES, DPT_TOKENIZER_GPT2, DPT_TOKENIZER_HF };
enum dpt_rope_scaling { DPT_ROPE_SCALING_NONE, DPT_ROPE_SCALING_LLAMA3 };
enum dpt_stem {
    DPT_STEM_CIFAR,   /* 3x3, stride 1 */
    DPT_STEM_IMAGENET /* 7x7, stride 2, then a max pool of 3x3, stride 2 */
};
enum dpt_residual_block {
    DPT_RESIDUAL_BLOCK_BASIC,     /* 3x3, 3x3 */
    DPT_RESIDUAL_BLOCK_BOTTLENECK /* 1x1, 3x3, 1x1 with DPT_BOTTLENECK_EXPANSION times the width */
};
enum { DPT_BOTTLENECK_EXPANSION = 4 };
enum dpt_schedule { DPT_SCHEDULE_CONSTANT, DPT_SCHEDULE_LINEAR, DPT_SCHEDULE_COSINE };
enum dpt_lr_scaling { DPT_LR_SCALING_NONE, DPT_LR_SCALING_LINEAR };
enum dpt_activation_checkpointing {
    DPT_ACTIVATION_CHECKPOINTING_NONE,
    DPT_ACTIVATION_CHECKPOINTING_FULL,
    DPT_ACTIVATION_CHECKPOINTING_SELECTIVE
};
enum dpt_sharding {
    DPT_SHARDING_NULL, /* the strategy is not fsdp */
    DPT_SHARDING_FULL_SHARD,
    DPT_SHARDING_SHARD_GRAD_OP,
    DPT_SHARDING_HYBRID_SHARD,
    DPT_SHARDING_NO_SHARD
};
enum dpt_compression {
    DPT_COMPRESSION_NONE,
    DPT_COMPRESSION_BF16,
    DPT_COMPRESSION_FP16,
    DPT_COMPRESSION_POWERSGD
};
enum dpt_redundancy { DPT_REDUNDANCY_NONE, DPT_REDUNDANCY_SHADOW };
enum dpt_offload { DPT_OFFLOAD_NONE, DPT_OFFLOAD_OPTIMIZER };
enum dpt_backend { DPT_BACKEND_NCCL, DPT_BACKEND_HOST };
/* Linear layers that have adapters (train.lora.targets): a set of bits. */
enum dpt_lora_target {
    DPT_LORA_ALL = 0, /* all linear layers of the model */
    DPT_LORA_Q_PROJ = 1,
    DPT_LORA_K_PROJ = 2,
    DPT_LORA_V_PROJ = 4,
    DPT_LORA_O_PROJ = 8,
    DPT_LORA_GATE_PROJ = 16,
    DPT_LORA_UP_PROJ = 32,
    DPT_LORA_DOWN_PROJ = 64,
    DPT_LORA_C_ATTN = 128,
    DPT_LORA_C_PROJ = 256,
    DPT_LORA_C_FC = 512
};
enum { DPT_VOCAB_BYTES = 256, DPT_VOCAB_GPT2 = 50257 }; /* tokens of two tokenizers */
enum { DPT_AUTO = 0 }; /* the value of an integer key that is `auto` */

/* The sections of a config, in the order of the file. Strings are fixed arrays. */
struct dpt_config_cluster {
    int nnodes_min, nnodes_max; /* "MIN:MAX", or N for N:N */
    int gpus_per_node;          /* ranks that a node starts; DPT_AUTO: one per GPU, on CPU one */
    enum dpt_device_kind device;
    enum dpt_numa_use numa;
    enum dpt_backend backend; /* carries gradients between GPUs */
    bool cuda_graphs;
    /* Compute threads of a rank; DPT_AUTO: in each generation its share of the host's cores. */
    int threads;
    enum dpt_pack_weights pack_weights;
    double timeout_s, first_step_s, wait_s; /* first_step_s and wait_s: 0 = no limit */
    double drain_s;                         /* time of a leaving node from the signal to its end */
    int max_restarts;
    char rdzv[256];     /* HOST:PORT; "" = null */
    char interface[64]; /* for the data plane; "" = the interface routed to the server */
    /* Ranks of one host with different groups do not share memory; "" = null. */
    char host_group[64];
    char rack[64];            /* ranks of one rack are neighbours in the world; "" = null */
    int mesh_max;             /* ranks of the largest world that is a mesh */
    enum dpt_encrypt encrypt; /* of data connections between hosts */
    bool health_check;        /* of the machine, at the start of a worker */
};

struct dpt_config_model {
    char name[32]; /* "gpt2", "llama", "resnet" */
    /* A preset fills the sizes below, except those that the config gives; "" = no preset. */
    char preset[32];
    /* Loading replaces DPT_AUTO; vocab: by the preset's, else 256 for byte tokens, else 50,257. */
    int n_layer, n_head, n_embd, context, vocab;
    double dropout;
    int labels; /* classes; 0: the model predicts the next token */
    /* For llama. Loading replaces DPT_AUTO. */
    int n_kv_head, head_size, n_inner;
    double norm_eps;
    bool tied_head, attention_bias, mlp_bias;
    double rope_theta;
    enum dpt_rope_scaling rope_scaling;
    double rope_factor, rope_low_freq_factor, rope_high_freq_factor; /* of rope_scaling */
    int rope_original_context;
    /* For resnet. After loading n_layer is the sum of the stages. */
    int width; /* channels of the stem, and of a block's inner layers in the first stage */
    enum dpt_stem stem;
    enum dpt_residual_block block;
    struct dpt_config_steps stages; /* number of blocks in each stage; not empty after loading */
    double batch_norm_momentum;
    char init_from[DPT_CONFIG_PATH_BYTES];
};

struct dpt_config_data {
    enum dpt_data_kind kind;
    /* A file (text, classification), a glob of .bin files (tokens, cifar10) or a folder
     * (images). */
    char train[DPT_CONFIG_PATH_BYTES];
    char val[DPT_CONFIG_PATH_BYTES];
    /* For classification: names of columns, or numbers from 1 in files without names. */
    char text_column[DPT_CONFIG_NAME_BYTES], label_column[DPT_CONFIG_NAME_BYTES];
    int first_label;                    /* this label in the files is class 0 */
    int64_t train_samples, val_samples; /* number of rows, from the first; 0: all */
    enum dpt_tokenizer tokenizer;
    char vocab_bpe[DPT_CONFIG_PATH_BYTES]; /* for tokenizer gpt2; "" = null */
    char encoder_json[DPT_CONFIG_PATH_BYTES];
    bool any_vocab;                             /* accepts files other than OpenAI's */
    char tokenizer_json[DPT_CONFIG_PATH_BYTES]; /* for tokenizer hf */
    /* For cifar10 and images. Loading replaces auto. */
    int image_size; /* height and width of a sample */
    int resize;     /* shorter side of an image before the crop; only for kind images */
    enum dpt_augment augment;
    int crop_padding; /* pixels on each side, with augment: crop_flip */
    enum dpt_damaged_images damaged_images;
};

struct dpt_config_lora {
    int rank; /* rank of the adapters; 0: no adapters, all weights are trained */
    double alpha;
    int targets; /* enum dpt_lora_target, joined */
    /* Hex hash of the weights of model.init_from; "": not known yet. */
    char base_hash[DPT_CONFIG_NAME_BYTES];
};

struct dpt_config_train {
    int64_t steps;       /* DPT_AUTO: follows from train.epochs when the samples are counted */
    int64_t epochs;      /* passes over data.train; 0: the run has `steps` */
    int64_t epoch_steps; /* per epoch; DPT_AUTO without epochs, and until samples are counted */
    int global_batch, micro_batch, seq_len;
    enum dpt_precision precision;
    double loss_scale, loss_scale_growth, loss_scale_backoff; /* for fp16; powers of two */
    int64_t loss_scale_interval;
    enum dpt_divergence on_divergence;
    int64_t divergence_limit; /* `skip` leaves out at most this many steps in a row */
    enum dpt_reduction reduction;
    enum dpt_accumulate accumulate;
    int lanes; /* DPT_AUTO: min(G, 16), G = global_batch / micro_batch */
    enum dpt_activation_checkpointing activation_checkpointing;
    double grad_clip; /* global L2 norm; 0 = off */
    int64_t log_every;
    int64_t verify_every; /* 0 = never */
    int64_t eval_every;   /* 0 = never */
    int64_t eval_tokens;  /* an evaluation reads at most this many tokens of data.val */
    bool eval_only;       /* no training: evaluate one checkpoint, then end */
    int64_t eval_step; /* eval_only evaluates the checkpoint of this step; DPT_AUTO: the newest */
    struct dpt_config_lora lora;
};

struct dpt_config_optimizer {
    char name[32]; /* "adamw", "adam", "sgd" */
    double lr, min_lr;
    enum dpt_schedule schedule;
    int64_t warmup_steps;
    int64_t schedule_steps; /* steps of decay after the warm-up; DPT_AUTO: until the last step */
    double beta1, beta2, eps, weight_decay;
    double momentum; /* for sgd */
    bool nesterov;
    enum dpt_lr_scaling lr_scaling;
    int base_batch; /* DPT_AUTO: not given */
};

struct dpt_config_strategy {
    char name[32]; /* "ddp" */
    double bucket_mib, first_bucket_mib;
    bool overlap;
    enum dpt_sharding sharding;
    enum dpt_redundancy redundancy;
    enum dpt_offload offload;
    /* A shadow of at most this size is copied before training continues. Of a larger shadow, this
     * much is copied during each step. */
    double rebuild_mib;
    bool prefetch;                    /* gather a unit while the one before it is computed */
    int gathered_units_max;           /* units gathered at once */
    enum dpt_compression compression; /* of gradients between ranks */
    int powersgd_rank;
    int64_t powersgd_start_step;
};

struct dpt_config_checkpoint {
    char dir[DPT_CONFIG_PATH_BYTES]; /* "" = no checkpoints */
    int64_t every_steps;             /* 0 = only at the end and when a run is stopped */
    int keep;
    struct dpt_config_steps keep_steps;
    int keep_best; /* number of checkpoints kept for their validation loss; 0: none */
};

struct dpt_config_log {
    char dir[DPT_CONFIG_PATH_BYTES];
    bool tensorboard;
    bool op_times;
    int64_t memory_every; /* 0 = no lines */
    bool memory_snapshot;
    double price_per_hour; /* dollars of a node; 0 = not told */
    double wait_s;
};

struct dpt_config_trace {
    char dir[DPT_CONFIG_PATH_BYTES]; /* "" = nothing is traced */
    int64_t wait, warmup, active, repeat;
    struct dpt_config_steps ranks; /* n 0 = all */
    bool memory;
};

/* A plain value. dpt_config_load writes it; afterwards it is read-only. */
struct dpt_config {
    char run[DPT_CONFIG_NAME_BYTES];
    uint64_t seed;
    struct dpt_config_cluster cluster;
    struct dpt_config_model model;
    struct dpt_config_data data;
    struct dpt_config_train train;
    struct dpt_config_optimizer optimizer;
    struct dpt_config_strategy strategy;
    struct dpt_config_checkpoint checkpoint;
    struct dpt_config_log log;
    struct dpt_config_trace trace;
};

/* Fills `ret` with the defaults of the table. */
void dpt_config_defaults(struct dpt_config *ret);

/* Sizes of a model from another file: a config.json, or a checkpoint. */
enum { DPT_CONFIG_SIZES_MAX = 24, DPT_CONFIG_SIZE_BYTES = 64 };
struct dpt_config_size {
    const char *key, *name; /* path of the key here, name of the size in the file; static */
    char value[DPT_CONFIG_SIZE_BYTES];
};
struct dpt_config_sizes {
    char source[DPT_CONFIG_PATH_BYTES + 64]; /* for errors: "'DIR/config.json'" */
    bool binding;   /* true: a contradiction is an error; false: the config takes precedence */
    bool over_text; /* the sizes replace model keys of the config's text, but not those of --set */
    int n;
    struct dpt_config_size key[DPT_CONFIG_SIZES_MAX];
};

/* What a config is loaded from. */
struct dpt_config_input {
    const char *text; /* YAML */
    size_t bytes;
    const char *name;             /* name of the text, for errors */
    const char *const *overrides; /* "train.steps=5", applied in this order after the text */
    size_t n_overrides;
    const struct dpt_config_sizes *sizes; /* NULL: no other file has sizes */
};

/* Loads the text over the defaults, applies the overrides and the sizes, then validates ranges and
 * combinations. Errors are DPT_ECONFIG and have file:line:column, the key's path, the fault, the
 * nearest known name of an unknown key, and the nearest legal setting of an impossible combination.
 * A contradiction between the config and binding sizes names both values. */
DPT_MUST_USE enum dpt_status dpt_config_load(const struct dpt_config_input *input,
                                             struct dpt_config *ret, struct dpt_err *err);

/* Like dpt_config_load, from a string and without sizes. */
DPT_MUST_USE enum dpt_status dpt_config_load_text(const char *yaml, const char *name,
                                                  const char *const *overrides, size_t n_overrides,
                                                  struct dpt_config *ret, struct dpt_err *err);

/* Reads the text and the overrides over the defaults. Checks ranges, but no combinations, and
 * derives no value. For a caller that needs a key before the whole config can be loaded. */
DPT_MUST_USE enum dpt_status dpt_config_parse(const struct dpt_config_input *input,
                                              struct dpt_config *ret, struct dpt_err *err);

/* The config as canonical YAML: every key in table order with its value. Equal configs give equal
 * text, and dpt_config_load reads the text back to an equal config. `ret_text` has
 * DPT_CONFIG_TEXT_BYTES_MAX bytes. */
DPT_MUST_USE enum dpt_status dpt_config_print(const struct dpt_config *config, char *ret_text,
                                              struct dpt_err *err);

enum dpt_config_scope {
    DPT_CONFIG_TRAJECTORY, /* equal on all nodes; part of the trajectory */
    DPT_CONFIG_RUN,        /* equal on all nodes; may change between runs */
    DPT_CONFIG_NODE        /* each node has its own */
};

/* Writes into `ret_keys` ("train.lanes (8, here 4), …") the keys of scope <= `scope` in which a and
 * b differ; "" if there are none. Returns their number. `allowed`: paths of keys that are not
 * compared, then NULL; or NULL for none. */
int dpt_config_diff(const struct dpt_config *a, const struct dpt_config *b,
                    enum dpt_config_scope scope, const char *const *allowed, char *ret_keys,
                    size_t keys_bytes);

/* The number of edits from one name to the other, for texts of fewer than 128 bytes. */
size_t dpt_config_edit_distance(const char *a, const char *b);

/* DPT_ECONFIG: no key has this path; the nearest is named. */
DPT_MUST_USE enum dpt_status dpt_config_check_path(const char *path, struct dpt_err *err);

/* Prints the table of keys as a part of `--help`. */
void dpt_config_help(FILE *out);

/* With train.epochs: sets train.epoch_steps to the whole global batches in the `samples` of
 * data.train, and train.steps to epochs times that. No effect without epochs. Every node calls it
 * after it has opened its data and before it compares or prints the config. DPT_ECONFIG: the
 * samples do not fill a global batch; or the number is not train.epoch_steps of the config (from
 * another node or a checkpoint); or there are more steps, or a longer warm-up, than the limit. */
DPT_MUST_USE enum dpt_status dpt_config_count_epochs(struct dpt_config *config, int64_t samples,
                                                     struct dpt_err *err);

/* Whether `step` completed steps end an epoch. */
bool dpt_config_ends_epoch(const struct dpt_config *config, int64_t step);

/* The most slots of a step. A message of the commit has a loss for each slot. */
enum { DPT_CONFIG_SLOTS_MAX = 4096 };

/* The word for the strategy in names of folders: strategy.sharding of fsdp, else strategy.name.
 * Static, or of the config. */
const char *dpt_config_strategy_word(const struct dpt_config *config);

/* Derived numbers, defined only here. Slots: G = global_batch / micro_batch. Lanes: train.lanes,
 * with auto replaced. */
int dpt_config_slots(const struct dpt_config *config);
int dpt_config_lanes(const struct dpt_config *config);
/* Lanes in a world of `world_size` ranks: those of the config, or one per rank (reduction fast,
 * powersgd). */
int dpt_config_lanes_of(const struct dpt_config *config, int world_size);
/* Ranks of the largest world that trains: one per lane, or one per slot with `accumulate: reduce`;
 * at most DPT_CONFIG_WORLD_MAX. */
enum { DPT_CONFIG_WORLD_MAX = DPT_MESH_MAX };
int dpt_config_world_max(const struct dpt_config *config);
/* Whether strategy.compression: bf16 is allowed beside the strategy, train.reduction, .accumulate
 * and .lanes of the config. */
bool dpt_config_may_round(const struct dpt_config *config);

/* Whether the linear layers of this name ("q_proj") have adapters; false without train.lora. */
bool dpt_config_adapts(const struct dpt_config *config, const char *layer);

/* Compares `hash`, the hex hash of the weights in `folder`, with train.lora.base_hash. DPT_ECONFIG:
 * they differ; the line names the folder and both hashes. */
DPT_MUST_USE enum dpt_status dpt_config_check_base(const struct dpt_config *config,
                                                   const char *folder, const char *hash,
                                                   struct dpt_err *err);

/* With train.lora: sets train.lora.base_hash to `hash`, the hex hash of the weights of
 * model.init_from on this node. No effect without adapters. Every node calls it before it compares
 * or prints the config. DPT_ECONFIG: the config (from another node or a checkpoint) has another
 * hash. */
DPT_MUST_USE enum dpt_status dpt_config_note_base(struct dpt_config *config, const char *hash,
                                                  struct dpt_err *err);

/* Whether data.train and data.val are text, which data.tokenizer converts to tokens. */
bool dpt_config_reads_text(const struct dpt_config *config);

/* Whether samples are images, and whether they have labels (images and texts of classification). */
bool dpt_config_reads_images(const struct dpt_config *config);
bool dpt_config_reads_labels(const struct dpt_config *config);

/* Whether the run reads data.val. */
bool dpt_config_evaluates(const struct dpt_config *config);

/* Whether the loss has a dynamic scale: gradients are computed or sent in fp16. */
bool dpt_config_scales_loss(const struct dpt_config *config);

/* DPT_ECONFIG: `ranks` ranks on a node with `gpus` GPUs (0: no GPU is used) would use NCCL and
 * share a GPU. */
DPT_MUST_USE enum dpt_status dpt_config_check_gpus(const struct dpt_config *config, int ranks,
                                                   int gpus, struct dpt_err *err);

#endif
