/* The reference: the ops' mathematics in double precision, written as simply as possible. Tests
 * compare the devices with it. Shapes and meanings are those of kernels/ops.h; gradients overwrite.
 * ref_test.c compares each backward with finite differences of its forward. */
#ifndef DPT_TESTS_KERNELS_REF_H
#define DPT_TESTS_KERNELS_REF_H

#include "kernels/ops.h"

/* 0 or 1/(1-p) for element `i` of the mask. */
double ref_drop(const struct dpt_dropout *d, int64_t i);

void ref_linear(int64_t n, int64_t in, int64_t out, bool out_in, const double *x, const double *w,
                const double *bias, double *y);
void ref_linear_grad(int64_t n, int64_t in, int64_t out, bool out_in, const double *x,
                     const double *w, const double *dy, double *dx, double *dw, double *dbias);

double ref_gelu(double x);
double ref_gelu_slope(double x);

void ref_layernorm(int64_t n, int64_t c, double eps, const double *x, const double *gamma,
                   const double *beta, double *y, double *mean, double *rstd);
void ref_layernorm_grad(int64_t n, int64_t c, const double *x, const double *gamma,
                        const double *mean, const double *rstd, const double *dy, double *dx,
                        double *dgamma, double *dbeta);

void ref_rmsnorm(int64_t n, int64_t c, double eps, const double *x, const double *gamma, double *y,
                 double *rstd);
void ref_rmsnorm_grad(int64_t n, int64_t c, const double *x, const double *gamma,
                      const double *rstd, const double *dy, double *dx, double *dgamma);

struct ref_heads {
    int64_t b, t, heads, kv_heads, head_size;
};
void ref_attention(const struct ref_heads *h, const struct dpt_dropout *d, const double *qkv,
                   double *y, double *lse);
void ref_attention_grad(const struct ref_heads *h, const struct dpt_dropout *d, const double *qkv,
                        const double *dy, double *dqkv);

/* The table of positions first … first + t - 1. ref_rope rotates the first `heads` heads of each
 * row of x (n, stride). */
void ref_rope_table(const struct dpt_rope_table *a, double *cosines, double *sines);
void ref_rope(const struct dpt_rope *a, const double *cosines, const double *sines, double *x);

double ref_silu(double x);
double ref_silu_slope(double x);

/* wpe and dwpe may be NULL. */
void ref_embedding(int64_t b, int64_t t, int64_t c, const struct dpt_dropout *d,
                   const int32_t *tokens, const double *wte, const double *wpe, double *y);
void ref_embedding_grad(int64_t b, int64_t t, int64_t c, int64_t v, int64_t context,
                        const struct dpt_dropout *d, const int32_t *tokens, const double *dy,
                        double *dwte, double *dwpe);

/* A head of n rows: logits = x w^T + bias. */
struct ref_head {
    int64_t n, c, v;
    const double *x, *w, *bias; /* (n, c), (v, c), (v) or NULL */
    const int32_t *targets;
};
void ref_head(const struct ref_head *h, double *loss);
void ref_head_grad(const struct ref_head *h, double dloss, double *dx, double *dw, double *dbias);

/* right[row] = 1 if the target is the first of the largest logits, else 0. */
void ref_head_right(const struct ref_head *h, double *right);

void ref_last_token(int64_t b, int64_t t, int64_t c, const int32_t *lengths, const double *x,
                    double *y);
void ref_last_token_grad(int64_t b, int64_t t, int64_t c, const int32_t *lengths, const double *dy,
                         double *dx);

/* ref_images.c */
void ref_conv(const struct dpt_windows *a, int64_t in, int64_t out, const double *x,
              const double *weight, double *y);
void ref_conv_grad(const struct dpt_windows *a, int64_t in, int64_t out, const double *x,
                   const double *weight, const double *dy, double *dx, double *dw);

struct ref_batchnorm {
    int64_t n, c;
    double eps;
    const double *gamma, *beta, *residual; /* residual or NULL */
    bool relu;
};
void ref_batchnorm(const struct ref_batchnorm *a, const double *x, double *y, double *mean,
                   double *rstd, double *var);
void ref_batchnorm_eval(const struct ref_batchnorm *a, const double *x, const double *mean,
                        const double *var, double *y);
void ref_batchnorm_grad(const struct ref_batchnorm *a, const double *x, const double *y,
                        const double *mean, const double *rstd, const double *dy, double *dx,
                        double *dresidual, double *dgamma, double *dbeta);

/* Forward and backward. */
void ref_maxpool(const struct dpt_windows *a, int64_t c, const double *x, const double *dy,
                 double *y, double *dx);
void ref_avgpool(int64_t b, int64_t pixels, int64_t c, const double *x, const double *dy, double *y,
                 double *dx);

/* One step of PyTorch's torch.optim.AdamW; updates p, m, v. */
void ref_adamw(const struct dpt_adamw *a, double *p, double *m, double *v, const double *grad);
void ref_sgd(const struct dpt_sgd *a, double *p, double *m, const double *grad);

/* Ordered sums (dpt_ordered_sum) of REF_SUM_PARTS vectors in three orders: the tree of lanes; one
 * after another; the last two first. */
enum { REF_SUM_PARTS = 11, REF_SUMS = 3 };
extern const uint8_t ref_sum_joins[REF_SUMS][REF_SUM_PARTS];
void ref_ordered_sum(int64_t n, const float *const parts[REF_SUM_PARTS], int sum,
                     enum dpt_dtype dtype, float *ret);

#endif
