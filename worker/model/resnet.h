/* The ResNet family (He et al. 2016, "Deep Residual Learning"; as in torchvision, the stride of a
 * bottleneck is in its 3x3 convolution): sizes, and the places of parameters and of a slot's
 * activations. Only for this folder.
 *
 * Units: 0 stem, 1 … L blocks, L+1 head. B images of S x S pixels of C channels are (B, S, S, C)
 * here. Images are square; data.image_size is their side. A slot's t is 1. */
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

/* A convolution and the batch norm after it. */
struct dpt_resnet_layer {
    int first_param; /* table index of DPT_RESNET_WEIGHT; the others follow it */
    int64_t in, out, kernel, stride;
    int64_t side_in, side_out; /* pixels of an image's side, before and after the convolution */
};

enum { DPT_RESNET_PATH_MAX = 3 };

/* y = relu(path(x) + shortcut(x)). */
struct dpt_resnet_block {
    int n_path; /* 2, in a bottleneck 3 */
    struct dpt_resnet_layer path[DPT_RESNET_PATH_MAX];
    bool projects;                    /* the shortcut is a layer; else it is x itself */
    struct dpt_resnet_layer shortcut; /* 1x1 */
    /* The saved dstream buffer with the gradient of x, and of y. With a shortcut layer they differ,
     * because its convolution reads one and writes the other. */
    int dx, dy;
};

struct dpt_resnet {
    struct dpt_model base;
    int64_t side; /* of the images */
    struct dpt_resnet_layer stem;
    bool pools;                  /* the stem ends in a maximum over windows */
    int64_t pooled_side;         /* of the first block's input */
    int fc_weight;               /* (labels, features); fc_bias (labels) is the next one */
    int64_t features, last_side; /* of the head's input */
    int n_blocks;
    struct dpt_resnet_block blocks[]; /* [n_blocks] */
};

enum { DPT_RESNET_POOL_KERNEL = 3, DPT_RESNET_POOL_STRIDE = 2 };

/* The default of nn.BatchNorm2d. */
#define DPT_RESNET_EPS 1e-5f

/* A layer's activations. The statistics are the micro-batch's, and are computed in training
 * only. */
struct dpt_resnet_layer_saved {
    void *conv;               /* (B, side_out, side_out, out) */
    float *mean, *rstd, *var; /* (out) */
    /* Shaped like conv: after the norm and its relu; NULL for a shortcut. */
    void *relu;
};

struct dpt_resnet_saved {
    void *dstream[2]; /* each as large as the largest output of a unit */
    void *image;      /* (B, S, S, 3) in the compute dtype; NULL with f32 */
    struct dpt_resnet_layer_saved stem;
    void *pooled;        /* (B, pooled_side, pooled_side, width), where the stem pools */
    uint8_t *pool_taken; /* shaped like `pooled` */
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

/* Pointers into slot->saved and slot->scratch. If ret_bytes is not NULL, *ret_bytes gets the bytes
 * that they cover; for a block including all units before it. */
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

/* The arguments that average the last block's output over its pixels, from the block's output to
 * scratch.a; the head reads the averages. Backward replaces `in` and `out` by gradients. */
struct dpt_avgpool dpt_resnet_average(const struct dpt_unit_call *call);

/* The losses of these averages. */
struct dpt_head_loss dpt_resnet_loss(const struct dpt_unit_call *call);

#endif
