/* See mutants.h. */
#include "tests/kernels/mutants.h"

#include <string.h>

static const struct dpt_ops *right;

static void no_bias(struct dpt_stream *s, const struct dpt_linear_forward *a)
{
    struct dpt_linear_forward wrong = *a;
    wrong.bias = NULL;
    right->linear_forward(s, &wrong);
}

static void lost_row_of_dw(struct dpt_stream *s, const struct dpt_linear_backward *a)
{
    struct dpt_linear_backward wrong = *a;
    wrong.n--;
    wrong.dx = NULL;
    right->linear_backward(s, a);
    right->linear_backward(s, &wrong);
}

static void weight_turned(struct dpt_stream *s, const struct dpt_linear_forward *a)
{
    struct dpt_linear_forward wrong = *a;
    wrong.out_in = !a->out_in;
    right->linear_forward(s, &wrong);
}

static void gradient_turned(struct dpt_stream *s, const struct dpt_linear_backward *a)
{
    struct dpt_linear_backward wrong = *a;
    wrong.out_in = !a->out_in;
    right->linear_backward(s, &wrong);
}

static void other_eps(struct dpt_stream *s, const struct dpt_layernorm_forward *a)
{
    struct dpt_layernorm_forward wrong = *a;
    wrong.eps = 1e-3f;
    right->layernorm_forward(s, &wrong);
}

static void no_residual(struct dpt_stream *s, const struct dpt_layernorm_backward *a)
{
    struct dpt_layernorm_backward wrong = *a;
    wrong.add_dx = false;
    right->layernorm_backward(s, &wrong);
}

static void lost_row_of_dgamma(struct dpt_stream *s, const struct dpt_layernorm_backward *a)
{
    struct dpt_layernorm_backward wrong = *a;
    wrong.n--;
    wrong.add_dx = false;
    right->layernorm_backward(s, a);
    right->layernorm_backward(s, &wrong);
}

static void forgotten_tail(struct dpt_stream *s, const struct dpt_gelu *a)
{
    struct dpt_gelu wrong = *a;
    wrong.n--;
    right->gelu_forward(s, &wrong);
}

static void slope_of_dy(struct dpt_stream *s, const struct dpt_gelu *a)
{
    struct dpt_gelu wrong = *a;
    wrong.x = a->dy;
    wrong.dy = a->x;
    right->gelu_backward(s, &wrong);
}

static void undropped(struct dpt_stream *s, const struct dpt_attention *a)
{
    struct dpt_attention wrong = *a;
    wrong.dropout.p = 0.0f;
    right->attention_forward(s, &wrong);
}

static void shifted_mask(struct dpt_stream *s, const struct dpt_attention *a)
{
    struct dpt_attention wrong = *a;
    wrong.dropout.first++;
    right->attention_backward(s, &wrong);
}

static void one_key_head(struct dpt_stream *s, const struct dpt_attention *a)
{
    struct dpt_attention wrong = *a;
    wrong.kv_heads = 1;
    right->attention_forward(s, &wrong);
}

static void lost_query_head(struct dpt_stream *s, const struct dpt_rope *a)
{
    struct dpt_rope wrong = *a;
    wrong.heads--;
    right->rope(s, &wrong);
}

static void never_back(struct dpt_stream *s, const struct dpt_rope *a)
{
    struct dpt_rope wrong = *a;
    wrong.inverse = false;
    right->rope(s, &wrong);
}

static void late_angles(struct dpt_stream *s, const struct dpt_rope_table *a)
{
    struct dpt_rope_table wrong = *a;
    wrong.first++;
    right->rope_table(s, &wrong);
}

static void lost_row_of_gates(struct dpt_stream *s, const struct dpt_swiglu *a)
{
    struct dpt_swiglu wrong = *a;
    wrong.n--;
    right->swiglu_forward(s, &wrong);
}

/* Gate and up are a row each, and not the halves of one row. */
static void other_halves(struct dpt_stream *s, const struct dpt_swiglu *a)
{
    struct dpt_swiglu wrong = *a;
    wrong.n = 1;
    wrong.c *= a->n;
    right->swiglu_backward(s, &wrong);
}

static void shifted_residual(struct dpt_stream *s, const struct dpt_residual *a)
{
    struct dpt_residual wrong = *a;
    wrong.dropout.first++;
    right->residual(s, &wrong);
}

static void kept_gradient(struct dpt_stream *s, const struct dpt_dropout_backward *a)
{
    struct dpt_dropout_backward wrong = *a;
    wrong.dropout.p = 0.0f;
    right->dropout_backward(s, &wrong);
}

static void late_places(struct dpt_stream *s, const struct dpt_embedding_forward *a)
{
    struct dpt_embedding_forward wrong = *a;
    wrong.wpe = (const char *)a->wpe + (size_t)a->c * dpt_dtype_bytes(a->dtype);
    right->embedding_forward(s, &wrong);
}

static void places_of_tokens(struct dpt_stream *s, const struct dpt_embedding_forward *a)
{
    struct dpt_embedding_forward wrong = *a;
    wrong.wpe = a->wte;
    right->embedding_forward(s, &wrong);
}

static void lost_sample(struct dpt_stream *s, const struct dpt_embedding_backward *a)
{
    struct dpt_embedding_backward wrong = *a;
    wrong.b--;
    right->embedding_backward(s, &wrong);
}

static void other_dloss(struct dpt_stream *s, const struct dpt_head_loss *a)
{
    struct dpt_head_loss wrong = *a;
    wrong.dloss *= 1.0001f;
    right->head_loss(s, &wrong);
}

static void lost_row_of_loss(struct dpt_stream *s, const struct dpt_head_loss *a)
{
    struct dpt_head_loss wrong = *a;
    wrong.n--;
    right->head_loss(s, &wrong);
}

/* As if the targets were those of the next rows. */
static void right_of_the_next(struct dpt_stream *s, const struct dpt_head_loss *a)
{
    struct dpt_head_loss wrong = *a, unsaid = *a;
    wrong.n--;
    wrong.targets++;
    wrong.dx = wrong.dw = NULL;
    unsaid.right = NULL;
    right->head_loss(s, a);
    right->head_loss(s, &wrong);
    right->head_loss(s, &unsaid);
}

static void lost_bias(struct dpt_stream *s, const struct dpt_head_loss *a)
{
    struct dpt_head_loss wrong = *a;
    wrong.bias = wrong.dbias = NULL;
    right->head_loss(s, &wrong);
}

static void bias_of_the_next(struct dpt_stream *s, const struct dpt_head_loss *a)
{
    struct dpt_head_loss wrong = *a;
    wrong.bias = (const char *)a->bias + dpt_dtype_bytes(a->dtype);
    right->head_loss(s, &wrong);
}

static void shorter_samples(struct dpt_stream *s, const struct dpt_last_token *a)
{
    struct dpt_last_token wrong = *a;
    wrong.t--;
    right->last_token_forward(s, &wrong);
}

static void lost_last_token(struct dpt_stream *s, const struct dpt_last_token *a)
{
    struct dpt_last_token wrong = *a;
    wrong.b--;
    right->last_token_backward(s, &wrong);
}

static void other_beta(struct dpt_stream *s, const struct dpt_adamw *a)
{
    struct dpt_adamw wrong = *a;
    wrong.beta2 *= 1.001f;
    right->adamw(s, &wrong);
}

static void decoupled_decay(struct dpt_stream *s, const struct dpt_adamw *a)
{
    struct dpt_adamw wrong = *a;
    wrong.l2 = false;
    right->adamw(s, &wrong);
}

static void plain_momentum(struct dpt_stream *s, const struct dpt_sgd *a)
{
    struct dpt_sgd wrong = *a;
    wrong.nesterov = false;
    right->sgd(s, &wrong);
}

static void no_slope(struct dpt_stream *s, const struct dpt_linear_backward *a)
{
    struct dpt_linear_backward wrong = *a;
    wrong.gelu_x = NULL;
    right->linear_backward(s, &wrong);
}

/* The norm of the input, and not of the sum. */
static void norm_of_a(struct dpt_stream *s, const struct dpt_residual_norm *a)
{
    right->residual_norm(s, a);
    right->layernorm_forward(s, &(struct dpt_layernorm_forward){.n = a->n,
                                                                .c = a->c,
                                                                .eps = a->eps,
                                                                .dtype = a->dtype,
                                                                .x = a->a,
                                                                .gamma = a->gamma,
                                                                .beta = a->beta,
                                                                .y = a->y,
                                                                .mean = a->mean,
                                                                .rstd = a->rstd});
}

static void lost_image(struct dpt_stream *s, const struct dpt_conv_forward *a)
{
    struct dpt_conv_forward wrong = *a;
    wrong.of.b--;
    right->conv_forward(s, &wrong);
}

/* Windows that begin a pixel late. */
static void late_windows(struct dpt_stream *s, const struct dpt_conv_forward *a)
{
    struct dpt_conv_forward wrong = *a;
    wrong.x = (const char *)a->x + (size_t)a->in * dpt_dtype_bytes(a->dtype);
    wrong.of.b--;
    right->conv_forward(s, a);
    right->conv_forward(s, &wrong);
}

static void lost_shortcut(struct dpt_stream *s, const struct dpt_conv_backward *a)
{
    struct dpt_conv_backward wrong = *a;
    wrong.add_dx = false;
    right->conv_backward(s, &wrong);
}

static void lost_image_of_dw(struct dpt_stream *s, const struct dpt_conv_backward *a)
{
    struct dpt_conv_backward wrong = *a;
    wrong.of.b--;
    wrong.dx = NULL;
    right->conv_backward(s, a);
    right->conv_backward(s, &wrong);
}

static void other_eps_of_batch(struct dpt_stream *s, const struct dpt_batchnorm_forward *a)
{
    struct dpt_batchnorm_forward wrong = *a;
    wrong.eps = 1e-3f;
    right->batchnorm_forward(s, &wrong);
}

static void no_relu(struct dpt_stream *s, const struct dpt_batchnorm_forward *a)
{
    struct dpt_batchnorm_forward wrong = *a;
    wrong.relu = false;
    right->batchnorm_forward(s, &wrong);
}

static void no_shortcut(struct dpt_stream *s, const struct dpt_batchnorm_forward *a)
{
    struct dpt_batchnorm_forward wrong = *a;
    wrong.residual = NULL;
    right->batchnorm_forward(s, &wrong);
}

/* From the statistics. */
static void lost_row_of_batch(struct dpt_stream *s, const struct dpt_batchnorm_forward *a)
{
    struct dpt_batchnorm_forward shorter = *a;
    right->batchnorm_forward(s, a);
    shorter.n--;
    right->batchnorm_forward(s, &shorter);
}

static void relu_forgotten_backward(struct dpt_stream *s, const struct dpt_batchnorm_backward *a)
{
    struct dpt_batchnorm_backward wrong = *a;
    wrong.y = NULL;
    right->batchnorm_backward(s, &wrong);
}

static void sums_for_means(struct dpt_stream *s, const struct dpt_batchnorm_backward *a)
{
    struct dpt_batchnorm_backward wrong = *a;
    wrong.share = 1.0f;
    right->batchnorm_backward(s, &wrong);
}

static void lost_windows(struct dpt_stream *s, const struct dpt_maxpool *a)
{
    struct dpt_maxpool wrong = *a;
    wrong.of.b--;
    right->maxpool_backward(s, &wrong);
}

static void lost_pixel(struct dpt_stream *s, const struct dpt_avgpool *a)
{
    struct dpt_avgpool wrong = *a;
    wrong.b = 1;
    wrong.pixels--;
    right->avgpool_forward(s, a);
    right->avgpool_forward(s, &wrong);
}

#define INSTALL(op, wrong)                                                                         \
    static void install_##wrong(struct dpt_ops *ops)                                               \
    {                                                                                              \
        ops->op = wrong;                                                                           \
    }
INSTALL(linear_forward, no_bias)
INSTALL(linear_backward, lost_row_of_dw)
INSTALL(linear_backward, no_slope)
INSTALL(linear_forward, weight_turned)
INSTALL(linear_backward, gradient_turned)
INSTALL(layernorm_forward, other_eps)
INSTALL(layernorm_backward, no_residual)
INSTALL(layernorm_backward, lost_row_of_dgamma)
INSTALL(gelu_forward, forgotten_tail)
INSTALL(gelu_backward, slope_of_dy)
INSTALL(attention_forward, undropped)
INSTALL(attention_backward, shifted_mask)
INSTALL(attention_forward, one_key_head)
INSTALL(rope, lost_query_head)
INSTALL(rope, never_back)
INSTALL(rope_table, late_angles)
INSTALL(swiglu_forward, lost_row_of_gates)
INSTALL(swiglu_backward, other_halves)
INSTALL(residual, shifted_residual)
INSTALL(residual_norm, norm_of_a)
INSTALL(dropout_backward, kept_gradient)
INSTALL(embedding_forward, late_places)
INSTALL(embedding_forward, places_of_tokens)
INSTALL(embedding_backward, lost_sample)
INSTALL(head_loss, other_dloss)
INSTALL(head_loss, lost_row_of_loss)
INSTALL(head_loss, right_of_the_next)
INSTALL(head_loss, lost_bias)
INSTALL(head_loss, bias_of_the_next)
INSTALL(last_token_forward, shorter_samples)
INSTALL(last_token_backward, lost_last_token)
INSTALL(conv_forward, lost_image)
INSTALL(conv_forward, late_windows)
INSTALL(conv_backward, lost_shortcut)
INSTALL(conv_backward, lost_image_of_dw)
INSTALL(batchnorm_forward, other_eps_of_batch)
INSTALL(batchnorm_forward, no_relu)
INSTALL(batchnorm_forward, no_shortcut)
INSTALL(batchnorm_forward, lost_row_of_batch)
INSTALL(batchnorm_backward, relu_forgotten_backward)
INSTALL(batchnorm_backward, sums_for_means)
INSTALL(maxpool_backward, lost_windows)
INSTALL(avgpool_forward, lost_pixel)
INSTALL(adamw, other_beta)
INSTALL(adamw, decoupled_decay)
INSTALL(sgd, plain_momentum)

const struct op_mutant op_mutants[] = {
    {"linear without its bias", "linear 129x33x193", install_no_bias},
    {"a row lost from dw", "linear 129x33x193", install_lost_row_of_dw},
    {"GELU's slope forgotten", "mlp 33x64x48", install_no_slope},
    {"a weight turned", "linear 129x33x193", install_weight_turned},
    {"a weight not turned", "linear 129x33x193 out_in", install_weight_turned},
    {"a weight's gradient turned", "linear 129x33x193", install_gradient_turned},
    {"a weight's gradient not turned", "linear 129x33x193 out_in", install_gradient_turned},
    {"a row lost from dw (out, in)", "linear 129x33x193 out_in", install_lost_row_of_dw},
    {"another eps", "layernorm 33x48 add", install_other_eps},
    {"dx overwritten, not added to", "layernorm 33x48 add", install_no_residual},
    {"another eps of the root mean square", "rmsnorm 33x48 add", install_other_eps},
    {"dx of RMS norm overwritten", "rmsnorm 33x48 add", install_no_residual},
    {"a row lost from dgamma", "rmsnorm 100x768", install_lost_row_of_dgamma},
    {"the last element forgotten", "gelu 70001", install_forgotten_tail},
    {"operands exchanged", "gelu 70001", install_slope_of_dy},
    {"probabilities not dropped", "attention 2x65x2x17 drop", install_undropped},
    {"attention's mask off by one", "attention 2x65x2x17 drop", install_shifted_mask},
    {"one key head for all", "attention 2x65x6/2x18 drop", install_one_key_head},
    {"a head not rotated", "rope 3x65x5x64", install_lost_query_head},
    {"a gradient not rotated back", "rope 3x65x5x64", install_never_back},
    {"positions of angles off by one", "rope 3x65x5x64", install_late_angles},
    {"a row of gates lost", "swiglu 67x1033", install_lost_row_of_gates},
    {"gates behind one another", "swiglu 67x1033", install_other_halves},
    {"the residual's mask off by one", "residual 70003 drop", install_shifted_residual},
    {"the norm of what came in", "residual_norm 65x768", install_norm_of_a},
    {"the root mean square of what came in", "residual_rmsnorm 65x768", install_norm_of_a},
    {"a gradient not dropped", "residual 70003 drop", install_kept_gradient},
    {"positions off by one", "embedding 3x17x130 drop", install_late_places},
    {"a sample lost", "embedding 3x17x130 drop", install_lost_sample},
    {"positions where there are none", "tokens 2x64x768", install_places_of_tokens},
    {"a sample lost from tokens alone", "tokens 3x17x130 drop", install_lost_sample},
    {"another factor of the loss", "head 65x48x3333", install_other_dloss},
    {"a row of the loss lost", "head 65x48x3333", install_lost_row_of_loss},
    {"predictions held against other targets", "head 33x24x2", install_right_of_the_next},
    {"a head without its bias", "head 64x512x10 bias", install_lost_bias},
    {"biases of other labels", "head 600x24x133 bias", install_bias_of_the_next},
    {"rows of shorter samples", "last_token 5x77x131", install_shorter_samples},
    {"the gradient of a sample lost", "last_token 5x77x131", install_lost_last_token},
    {"an image lost", "conv 2x8x8 64-200 k3 s2", install_lost_image},
    {"windows a pixel late", "conv 2x13x11 16-24 k3 add", install_late_windows},
    {"a shortcut's gradient overwritten", "conv 2x13x11 17-19 k3 s2 add", install_lost_shortcut},
    {"the same, of single pixels", "conv 3x9x10 24-40 k1 s2 add", install_lost_shortcut},
    {"an image lost from dw", "conv 2x5x5 3-8 k7 s2", install_lost_image_of_dw},
    {"another eps of batch norm", "batchnorm 1003x45", install_other_eps_of_batch},
    {"relu forgotten", "batchnorm 777x64 relu", install_no_relu},
    {"relu forgotten in evaluation", "batchnorm 65x77 relu residual eval", install_no_relu},
    {"the shortcut forgotten", "batchnorm 640x133 relu residual", install_no_shortcut},
    {"a row lost from statistics", "batchnorm 1003x45", install_lost_row_of_batch},
    {"relu forgotten backward", "batchnorm 777x64 relu", install_relu_forgotten_backward},
    {"running statistics summed", "batchnorm 1003x45", install_sums_for_means},
    {"an image's windows lost", "maxpool 3x7x9x21 k3 s2", install_lost_windows},
    {"a pixel lost from a mean", "avgpool 3x49x515", install_lost_pixel},
    {"another beta2", "adamw 40007", install_other_beta},
    {"Adam's decay decoupled", "adamw 40007 l2", install_decoupled_decay},
    {"no Nesterov", "sgd 40007 nesterov", install_plain_momentum},
};
const int op_mutant_count = sizeof op_mutants / sizeof *op_mutants;

bool mutant_is_caught(const struct op_mutant *m, struct test_stream *t,
                      const double tolerance[DPT_DTYPE_COUNT])
{
    const struct op_case *c = NULL;
    for (int i = 0; i < op_case_count; i++)
        if (strcmp(op_cases[i].name, m->of) == 0)
            c = &op_cases[i];
    DPT_ASSERT(c);
    struct dpt_ops ops = *t->ops;
    struct test_stream wronged = *t;
    right = t->ops;
    wronged.ops = &ops;
    m->install(&ops);
    return case_compare(c, DPT_F32, t, tolerance, false) == 0 &&
           case_compare(c, DPT_F32, &wronged, tolerance, true) > 0 && wronged.errors == t->errors;
}
