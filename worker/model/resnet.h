/* The ResNet family (He et al. 2016, "Deep Residual Learning"; bottlenecks have their stride in the
 * 3x3 convolution, as torchvision's): sizes, and the places of parameters and of a slot's
 * activations. Inside this folder only.
 *
 * Units: 0 stem, 1 … L blocks, L+1 head. B images of S x S pixels of C channels are (B, S, S, C)
 * here. Images are squares, for data.image_size is. A slot's t is 1. */
#ifndef DPT_WORKER_MODEL_RESNET_H
#define DPT_WORKER_MODEL_RESNET_H

#include "worker/model/kind.h"

/* A convolution's parameters and its batch norm's, in the order of the table. */
enum dpt_resnet_tensor {
    DPT_RESNET_WEIGHT,       /* (out, in, kernel, kernel) */
    DPT_RESNET_GAMMA,        /* (out) */
    DPT_RESNET_BETA,         /* (out) */
    DPT_RESNET_RUNNING_MEAN, /* (out) averaged */
    DPT_RESNET_RUNNING_VAR,  /* (out) averaged */
    DPT_RESNET_TENSORS
};

/* A convolution and the batch norm behind it. */
struct dpt_resnet_layer {
    int first_param; /* DPT_RESNET_WEIGHT's index in the table, the others follow it */
    int64_t in, out, kernel, stride;
    int64_t side_in, side_out; /* pixels of an image's side, before and behind */
};

enum { DPT_RESNET_PATH_MAX = 3 };

/* y = relu(path(x) + shortcut(x)). */
struct dpt_resnet_block {
    int n_path; /* 2, in a bottleneck 3 */
    struct dpt_resnet_layer path[DPT_RESNET_PATH_MAX];
    bool projects;                    /* there is a shortcut, else it is x itself */
    struct dpt_resnet_layer shortcut; /* 1x1 */
    int dx, dy; /* which of the saved dstream is the gradient of x, and of y; with a shortcut two,
                   for its convolution reads one and writes the other */
};

struct dpt_resnet {
    struct dpt_model base;
    int64_t side; /* of the images */
    struct dpt_resnet_layer stem;
    bool pools;                  /* the stem ends in a maximum over windows */
    int64_t pooled_side;         /* of what comes to the blocks */
    int fc_weight;               /* (labels, features); fc_bias (labels) is the next one */
    int64_t features, last_side; /* of what comes to the head */
    int n_blocks;
    struct dpt_resnet_block blocks[]; /* [n_blocks] */
};

enum { DPT_RESNET_POOL_KERNEL = 3, DPT_RESNET_POOL_STRIDE = 2 };

/* nn.BatchNorm2d's. */
#define DPT_RESNET_EPS 1e-5f

/* A layer's activations; statistics are those of the micro-batch, made in training. */
struct dpt_resnet_layer_saved {
    void *conv;               /* (B, side_out, side_out, out) */
    float *mean, *rstd, *var; /* (out) */
    void *relu;               /* as conv: behind the norm and its relu; a shortcut's: NULL */
};

struct dpt_resnet_saved {
    void *dstream[2]; /* each as large as the largest output of a unit */
    void *image;      /* (B, S, S, 3) in the compute dtype; f32: not there */
    struct dpt_resnet_layer_saved stem;
    void *pooled;        /* (B, pooled_side, pooled_side, width), where the stem pools */
    uint8_t *pool_taken; /* of its shape */
};

struct dpt_resnet_block_saved {
    const void *x; /* the block's input: the output of the unit before */
    /* The relu of the path's last layer is the block's output. */
    struct dpt_resnet_layer_saved path[DPT_RESNET_PATH_MAX], shortcut;
};

/* Scratch of one call: each as large as the largest output of a layer. */
struct dpt_resnet_scratch {
    void *a, *b;
};

static inline const struct dpt_resnet *dpt_resnet_of(const struct dpt_unit_call *call)
{
    return (const struct dpt_resnet *)call->model;
}

/* ---- resnet_memory.c ---- */

/* Pointers into slot->saved and slot->scratch. Each returns the bytes that it covers in *ret_bytes,
 * if that is not NULL; a block's, those of all before it, too. */
struct dpt_resnet_saved dpt_resnet_saved(const struct dpt_resnet *m, const struct dpt_slot *slot,
                                         size_t *ret_bytes);
struct dpt_resnet_block_saved dpt_resnet_block_saved(const struct dpt_resnet *m,
                                                     const struct dpt_slot *slot, int block,
                                                     size_t *ret_bytes);
struct dpt_resnet_scratch dpt_resnet_scratch(const struct dpt_resnet *m,
                                             const struct dpt_slot *slot, size_t *ret_bytes);

/* The images in the compute dtype. */
const void *dpt_resnet_images(const struct dpt_unit_call *call);

/* The windows of a layer, and of the stem's maximum, on B images. */
struct dpt_windows dpt_resnet_windows(const struct dpt_resnet_layer *layer, int64_t b);
struct dpt_windows dpt_resnet_pool_windows(const struct dpt_resnet *m, int64_t b);

/* ---- resnet_forward.c, resnet_backward.c ---- */

void dpt_resnet_forward(const struct dpt_unit_call *call);
void dpt_resnet_backward(const struct dpt_unit_call *call);

/* The averages over the pixels of the last block's output, which the head reads: from the block's
 * output to scratch.a. Backward turns `in` and `out` to gradients. */
struct dpt_avgpool dpt_resnet_average(const struct dpt_unit_call *call);

/* The losses of these averages. */
struct dpt_head_loss dpt_resnet_loss(const struct dpt_unit_call *call);

#endif
