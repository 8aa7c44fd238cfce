/* A small model with its memory, for the tests of models and optimizers. Every failure ends the
 * test (cmocka). */
#ifndef DPT_TESTS_WORKER_MODEL_RIG_H
#define DPT_TESTS_WORKER_MODEL_RIG_H

#include "worker/model/model.h"

struct rig_size {
    int n_layer, n_head, n_embd, context, vocab;
    int b, t;
    int threads;
    double dropout;
    enum dpt_precision precision;
};

/* Owns everything. saved and scratch end in guard words, which rig_close checks. */
struct rig {
    struct dpt_config config;
    struct dpt_model *model;
    struct dpt_device *dev;
    const struct dpt_ops *ops;
    struct dpt_stream *stream;
    int64_t n, numel; /* B*T, of images B; of the flat vectors */
    int64_t losses;   /* B*T, with labels B */
    int classes;      /* that targets are of: the vocabulary, or the labels */
    float *flat, *grad;
    void *copy;      /* flat in the compute dtype; NULL: f32 */
    float *base;     /* of adapters, the base's flat vector; else NULL */
    void *base_copy; /* in the compute dtype; NULL: f32 */
    const void *base_weights[DPT_UNITS_MAX];
    const void *weights[DPT_UNITS_MAX];
    float *grads[DPT_UNITS_MAX];
    int32_t *tokens, *targets;
    float *images;        /* (B, S, S, 3); NULL: it reads tokens */
    int64_t pixels;       /* S*S*3 */
    int32_t *lengths;     /* (B), with labels; T of the first sample, fewer of the others */
    float *right;         /* (B) */
    struct dpt_slot slot; /* ready to run: TRAIN, seed 5, step 0, slot 0, dloss 1/losses, share 1,
                             no announce */
    size_t saved_bytes, scratch_bytes;
};

/* The table of kernels of rigs that are opened; NULL, until a test sets it: the device's choice. */
struct dpt_cpu_kernels;
extern const struct dpt_cpu_kernels *rig_kernels;

/* The family of the models that rigs of sizes have; GPT-2, until main reads its argument. Llamas
 * have heads of 32 channels, keys and values for each third head where that divides, and an odd
 * n_embd if it is given; untied ones also biases, and scaled rotary embeddings. With labels there
 * are five. Of lora adapters of rank 3 are trained: of all linear layers, with labels of queries
 * and values. Residual networks have n_layer blocks in two stages, a quarter of n_embd as width and
 * images of about t/2 pixels a side; deep ones bottlenecks and the large stem. */
enum rig_family {
    RIG_GPT2,
    RIG_LLAMA,
    RIG_LLAMA_UNTIED,
    RIG_GPT2_LABELS,
    RIG_LLAMA_LABELS,
    RIG_GPT2_LORA,
    RIG_LLAMA_LORA,
    RIG_LLAMA_LABELS_LORA,
    RIG_RESNET,
    RIG_RESNET_DEEP
};
extern enum rig_family rig_family;
/* Sets it from the name in small letters, without "rig_"; ends the program on another word. */
void rig_choose(int argc, char **argv);
bool rig_is_gpt2(void);
bool rig_is_lora(void);
bool rig_reads_images(void);

/* Weights: every value random (norms round one), so that nothing hides behind a one or a zero.
 * Gradients: filled with NaN, to show that they are overwritten. */
void rig_open(struct rig *rig, const struct rig_size *size);
void rig_open_checkpointing(struct rig *rig, const struct rig_size *size,
                            enum dpt_activation_checkpointing checkpointing);
/* Of a config whose model and precision are set. */
void rig_open_config(struct rig *rig, const struct dpt_config *config, int b, int t, int threads);
void rig_close(struct rig *rig);

/* Other samples, which `by` decides: no image, and no token with `by` below the vocabulary, is as
 * before; nor is a target with 5*by no multiple of the classes. */
void rig_vary(struct rig *rig, int by);

/* Uninitialised memory, 64-byte aligned, never NULL; free(). */
void *rig_memory(size_t bytes);

/* All units forward, and backward in TRAIN mode, with the weights that are in flat now, then sync.
 * Returns the mean loss. */
double rig_run(struct rig *rig);

/* Mean loss at the present weights in the slot's mode. */
double rig_mean_loss(const struct rig *rig);

#endif
