/* A small model with its memory, for the tests of models and optimizers. Every failure fails the
 * test (cmocka). */
#ifndef DPT_TESTS_WORKER_MODEL_MODEL_RIG_H
#define DPT_TESTS_WORKER_MODEL_MODEL_RIG_H

#include "worker/model/model.h"

struct rig_size {
    int n_layer, n_head, n_embd, context, vocab;
    int b, t;
    int threads;
    double dropout;
    enum dpt_precision precision;
};

/* Owns everything. The buffers saved and scratch end with guard words, which rig_close checks. */
struct rig {
    struct dpt_config config;
    struct dpt_model *model;
    struct dpt_device *dev;
    const struct dpt_ops *ops;
    struct dpt_stream *stream;
    int64_t n, numel; /* B*T (images: B); elements of the flat vectors */
    int64_t losses;   /* B*T, with labels B */
    int classes;      /* targets are below it: the vocabulary, or the number of labels */
    float *flat, *grad;
    void *copy;      /* flat in the compute dtype; NULL: f32 */
    float *base;     /* with adapters the base's flat vector; else NULL */
    void *base_copy; /* base in the compute dtype; NULL: f32 */
    const void *base_weights[DPT_UNITS_MAX];
    const void *weights[DPT_UNITS_MAX];
    float *grads[DPT_UNITS_MAX];
    int32_t *tokens, *targets;
    float *images;        /* (B, S, S, 3); NULL: the model reads tokens */
    int64_t pixels;       /* S*S*3 */
    int32_t *lengths;     /* (B), with labels: T for the first sample, less for the others */
    float *right;         /* (B) */
    struct dpt_slot slot; /* ready to run: TRAIN, seed 5, step 0, slot 0, dloss 1/losses, share 1,
                             no announce */
    size_t saved_bytes, scratch_bytes;
};

/* The table of kernels for rigs that are opened later; NULL, the default: the device chooses. */
struct dpt_cpu_kernels;
extern const struct dpt_cpu_kernels *rig_kernels;

/* The model family of rigs that rig_open opens; GPT-2 until main reads its argument.
 *
 * LLAMA: heads of 32 channels, one head of keys and values for three heads if that divides, and any
 * n_embd, also an odd one. UNTIED: in addition biases and scaled rotary embeddings. LABELS: five
 * labels. LORA: trains adapters of rank 3, of all linear layers; with labels of queries and values.
 * RESNET: n_layer blocks in two stages, n_embd / 4 as width, images of about t/2 pixels a side;
 * DEEP: with bottlenecks and the large stem. */
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
/* Sets rig_family from argv: its name in lower case without "rig_". Another word ends the program.
 */
void rig_choose(int argc, char **argv);
bool rig_is_gpt2(void);
bool rig_is_lora(void);
bool rig_reads_images(void);

/* All weights are random (those of norms around one), because a one or a zero could hide an error.
 * Gradients are NaN, so that a test sees whether they are overwritten. */
void rig_open(struct rig *rig, const struct rig_size *size);
void rig_open_checkpointing(struct rig *rig, const struct rig_size *size,
                            enum dpt_activation_checkpointing checkpointing);
/* `config` has its model and precision set. */
void rig_open_config(struct rig *rig, const struct dpt_config *config, int b, int t, int threads);
void rig_close(struct rig *rig);

/* Changes the samples by the number `by` (> 0): all images; all tokens, if `by` is below the
 * vocabulary; all targets, if 5*by is no multiple of the classes. */
void rig_vary(struct rig *rig, int by);

/* Uninitialised memory, 64-byte aligned, never NULL; free(). */
void *rig_memory(size_t bytes);

/* Runs all units forward, and backward in TRAIN mode, with the weights that are now in `flat`, and
 * syncs. Returns the mean loss. */
double rig_run(struct rig *rig);

/* Mean loss of the present weights in the slot's mode. */
double rig_mean_loss(const struct rig *rig);

#endif
