/* Sizes of a model: see shape.h. */
#include "worker/planner/shape.h"

#include <math.h>
#include <stdbool.h>

enum {
    LAYERS_MAX = 254, /* the limit of model.n_layer */
    INNER_MAX = 262144,
    HEAD = 128,
    SMALL_HEAD = 64,
    KV_HEADS = 8,
    LARGE_WIDTH = HEAD * KV_HEADS /* narrower models have small heads */
};

#define WIDTH_OF_LAYERS 102.4 /* Llama 3 70B: 8,192 / 80 */
#define INNER_OF_WIDTH  3.5   /* Llama 3: 28,672 / 8,192 */

static int inner_of(int width)
{
    return (int)(INNER_OF_WIDTH * width);
}

static struct dpt_shape_of_llama shape_of(int layers, int width)
{
    const int heads = width / (width < LARGE_WIDTH || width % HEAD != 0 ? SMALL_HEAD : HEAD);
    return (struct dpt_shape_of_llama){.n_layer = layers,
                                       .n_embd = width,
                                       .n_head = heads,
                                       .n_kv_head = heads % KV_HEADS == 0 ? KV_HEADS : heads,
                                       .n_inner = inner_of(width),
                                       .vocab = DPT_SHAPE_VOCAB};
}

double dpt_shape_count(const struct dpt_shape_of_llama *s)
{
    const double width = s->n_embd, kv = width / s->n_head * s->n_kv_head,
                 attention = 2 * width * width + 2 * width * kv, mlp = 3 * width * s->n_inner;
    return 2 * width * s->vocab + width + s->n_layer * (attention + mlp + 2 * width);
}

/* The layers whose model in Llama's proportions is closest to the number. */
static int closest_layers(double parameters, int *ret_width)
{
    int closest = 1;
    double least = INFINITY;
    for (int layers = 1; layers <= LAYERS_MAX; layers++) {
        const int step = WIDTH_OF_LAYERS * layers < LARGE_WIDTH ? SMALL_HEAD : LARGE_WIDTH,
                  rounded = (int)lround(WIDTH_OF_LAYERS * layers / step) * step,
                  width = rounded > 0 ? rounded : step;
        const struct dpt_shape_of_llama shape = shape_of(layers, width);
        const double distance = fabs(dpt_shape_count(&shape) - parameters);
        if (distance < least) {
            least = distance;
            closest = layers;
            *ret_width = width;
        }
    }
    return closest;
}

enum dpt_status dpt_shape_given(int layers, int width, struct dpt_shape_of_llama *ret,
                                struct dpt_err *err)
{
    if (width % SMALL_HEAD != 0)
        return dpt_fail(err, DPT_EINVAL, "--width: expected a multiple of %d, got %d", SMALL_HEAD,
                        width);
    *ret = shape_of(layers, width);
    return DPT_OK;
}

enum dpt_status dpt_shape_fit(double parameters, int layers, int width,
                              struct dpt_shape_of_llama *ret, struct dpt_err *err)
{
    struct dpt_shape_of_llama shape;
    const bool given = layers > 0;
    if (!given)
        layers = closest_layers(parameters, &width);
    DPT_TRY(dpt_shape_given(layers, width, &shape, err));
    shape.n_inner = 0;
    const double inner = (parameters - dpt_shape_count(&shape)) / (3.0 * width * layers);
    if (inner < 0.5 || inner > INNER_MAX)
        return dpt_fail(err, DPT_EINVAL,
                        "--params: no model of %d layers of width %d and %d tokens has %.4g "
                        "parameters: expected %.3g to %.3g; give %s",
                        layers, width, shape.vocab, parameters,
                        dpt_shape_count(&shape) + 3.0 * width * layers,
                        dpt_shape_count(&shape) + 3.0 * width * layers * INNER_MAX,
                        given ? "other --layers and --width" : "--model or --config");
    shape.n_inner = (int)lround(inner);
    *ret = shape;
    return DPT_OK;
}
