/* See ref.h. */
#include "tests/kernels/ref.h"

#include "tests/kernels/harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double *zeroed(double *p, int64_t n)
{
    memset(p, 0, (size_t)n * sizeof *p);
    return p;
}

static double *scratch(int64_t n)
{
    double *p = calloc((size_t)n, sizeof *p);
    DPT_ASSERT(p);
    return p;
}

double ref_drop(const struct dpt_dropout *d, int64_t i)
{
    if (d->p == 0.0f)
        return 1.0;
    uint64_t at = d->first + (uint64_t)i;
    uint32_t words[4];
    dpt_philox(d->key, at / 4, words);
    return (double)words[at % 4] >= (double)d->p * 4294967296.0 ? 1.0 / (1.0 - (double)d->p) : 0.0;
}

/* (rows, columns) to (columns, rows). */
static void turn(int64_t rows, int64_t columns, const double *from, double *to)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++)
            to[c * rows + r] = from[r * columns + c];
}

/* y += a x: the innermost loop of every product here, over neighbours, so that it is vectorised. */
static void add_times(int64_t n, double a, const double *restrict x, double *restrict y)
{
    for (int64_t i = 0; i < n; i++)
        y[i] += a * x[i];
}

/* A weight in both orders: (in, out) and (out, in). */
struct weight {
    const double *by_input, *by_output;
    double *turned;
};

static struct weight read_weight(int64_t in, int64_t out, bool out_in, const double *w)
{
    double *turned = scratch(in * out);
    turn(out_in ? out : in, out_in ? in : out, w, turned);
    return (struct weight){out_in ? turned : w, out_in ? w : turned, turned};
}

void ref_linear(int64_t n, int64_t in, int64_t out, bool out_in, const double *x, const double *w,
                const double *bias, double *y)
{
    const struct weight weight = read_weight(in, out, out_in, w);
    for (int64_t r = 0; r < n; r++) {
        for (int64_t o = 0; o < out; o++)
            y[r * out + o] = bias ? bias[o] : 0.0;
        for (int64_t i = 0; i < in; i++)
            add_times(out, x[r * in + i], weight.by_input + i * out, y + r * out);
    }
    free(weight.turned);
}

void ref_linear_grad(int64_t n, int64_t in, int64_t out, bool out_in, const double *x,
                     const double *w, const double *dy, double *dx, double *dw, double *dbias)
{
    const struct weight weight = read_weight(in, out, out_in, w);
    double *by_input = zeroed(out_in ? weight.turned : dw, in * out);
    zeroed(dx, n * in);
    zeroed(dbias, out);
    for (int64_t r = 0; r < n; r++) {
        for (int64_t o = 0; o < out; o++)
            add_times(in, dy[r * out + o], weight.by_output + o * in, dx + r * in);
        for (int64_t i = 0; i < in; i++)
            add_times(out, x[r * in + i], dy + r * out, by_input + i * out);
        add_times(out, 1.0, dy + r * out, dbias);
    }
    if (out_in)
        turn(in, out, by_input, dw);
    free(weight.turned);
}

static const double SQRT_2_OVER_PI = 0.79788456080286535588;

double ref_gelu(double x)
{
    return 0.5 * x * (1.0 + tanh(SQRT_2_OVER_PI * (x + 0.044715 * x * x * x)));
}

double ref_gelu_slope(double x)
{
    double th = tanh(SQRT_2_OVER_PI * (x + 0.044715 * x * x * x));
    return 0.5 * (1.0 + th) +
           0.5 * x * (1.0 - th * th) * SQRT_2_OVER_PI * (1.0 + 3.0 * 0.044715 * x * x);
}

void ref_layernorm(int64_t n, int64_t c, double eps, const double *x, const double *gamma,
                   const double *beta, double *y, double *mean, double *rstd)
{
    for (int64_t r = 0; r < n; r++) {
        double sum = 0.0, squares = 0.0;
        for (int64_t j = 0; j < c; j++)
            sum += x[r * c + j];
        mean[r] = sum / (double)c;
        for (int64_t j = 0; j < c; j++)
            squares += (x[r * c + j] - mean[r]) * (x[r * c + j] - mean[r]);
        rstd[r] = 1.0 / sqrt(squares / (double)c + eps);
        for (int64_t j = 0; j < c; j++)
            y[r * c + j] = (x[r * c + j] - mean[r]) * rstd[r] * gamma[j] + beta[j];
    }
}

void ref_layernorm_grad(int64_t n, int64_t c, const double *x, const double *gamma,
                        const double *mean, const double *rstd, const double *dy, double *dx,
                        double *dgamma, double *dbeta)
{
    zeroed(dgamma, c);
    zeroed(dbeta, c);
    for (int64_t r = 0; r < n; r++) {
        double sum = 0.0, dot = 0.0;
        for (int64_t j = 0; j < c; j++) {
            double hat = (x[r * c + j] - mean[r]) * rstd[r], g = dy[r * c + j];
            sum += g * gamma[j];
            dot += g * gamma[j] * hat;
            dgamma[j] += g * hat;
            dbeta[j] += g;
        }
        for (int64_t j = 0; j < c; j++) {
            double hat = (x[r * c + j] - mean[r]) * rstd[r];
            dx[r * c + j] =
                rstd[r] * (dy[r * c + j] * gamma[j] - sum / (double)c - hat * dot / (double)c);
        }
    }
}

void ref_rmsnorm(int64_t n, int64_t c, double eps, const double *x, const double *gamma, double *y,
                 double *rstd)
{
    for (int64_t r = 0; r < n; r++) {
        double squares = 0.0;
        for (int64_t j = 0; j < c; j++)
            squares += x[r * c + j] * x[r * c + j];
        rstd[r] = 1.0 / sqrt(squares / (double)c + eps);
        for (int64_t j = 0; j < c; j++)
            y[r * c + j] = x[r * c + j] * rstd[r] * gamma[j];
    }
}

void ref_rmsnorm_grad(int64_t n, int64_t c, const double *x, const double *gamma,
                      const double *rstd, const double *dy, double *dx, double *dgamma)
{
    zeroed(dgamma, c);
    for (int64_t r = 0; r < n; r++) {
        const double cubed = rstd[r] * rstd[r] * rstd[r];
        double dot = 0.0;
        for (int64_t j = 0; j < c; j++) {
            dot += dy[r * c + j] * gamma[j] * x[r * c + j];
            dgamma[j] += dy[r * c + j] * x[r * c + j] * rstd[r];
        }
        for (int64_t j = 0; j < c; j++)
            dx[r * c + j] =
                rstd[r] * dy[r * c + j] * gamma[j] - cubed * x[r * c + j] * dot / (double)c;
    }
}

/* Elements of a row of qkv. */
static int64_t row_of(const struct ref_heads *h)
{
    return (h->heads + 2 * h->kv_heads) * h->head_size;
}

/* Where query head bh = b*heads + h, and its key and value head, begin in qkv. */
static void find_head(const struct ref_heads *h, int64_t bh, int64_t *q, int64_t *k, int64_t *v)
{
    const int64_t row = bh / h->heads * h->t * row_of(h), head = bh % h->heads;
    *q = row + head * h->head_size;
    *k = row + (h->heads + head / (h->heads / h->kv_heads)) * h->head_size;
    *v = *k + h->kv_heads * h->head_size;
}

/* p (T, T) and scores' scale of a head; returns rows of probabilities before dropout. */
static void probabilities(const struct ref_heads *h, const double *q, const double *k, double *p,
                          double *lse)
{
    const int64_t t = h->t, ld = row_of(h);
    for (int64_t i = 0; i < t; i++) {
        double max = -INFINITY, sum = 0.0;
        for (int64_t s = 0; s <= i; s++) {
            double dot = 0.0;
            for (int64_t j = 0; j < h->head_size; j++)
                dot += q[i * ld + j] * k[s * ld + j];
            p[i * t + s] = dot / sqrt((double)h->head_size);
            max = fmax(max, p[i * t + s]);
        }
        for (int64_t s = 0; s <= i; s++)
            sum += exp(p[i * t + s] - max);
        for (int64_t s = 0; s < t; s++)
            p[i * t + s] = s <= i ? exp(p[i * t + s] - max) / sum : 0.0;
        lse[i] = max + log(sum);
    }
}

void ref_attention(const struct ref_heads *h, const struct dpt_dropout *d, const double *qkv,
                   double *y, double *lse)
{
    const int64_t t = h->t, hd = h->head_size, c = h->heads * hd, ld = row_of(h);
    double *p = scratch(t * t);
    zeroed(y, h->b * t * c);
    for (int64_t bh = 0; bh < h->b * h->heads; bh++) {
        int64_t q, k, v;
        find_head(h, bh, &q, &k, &v);
        double *out = y + bh / h->heads * t * c + bh % h->heads * hd;
        probabilities(h, qkv + q, qkv + k, p, lse + bh * t);
        for (int64_t i = 0; i < t; i++)
            for (int64_t s = 0; s <= i; s++) {
                double w = p[i * t + s] * ref_drop(d, (bh * t + i) * t + s);
                for (int64_t j = 0; j < hd; j++)
                    out[i * c + j] += w * qkv[v + s * ld + j];
            }
    }
    free(p);
}

void ref_attention_grad(const struct ref_heads *h, const struct dpt_dropout *d, const double *qkv,
                        const double *dy, double *dqkv)
{
    const int64_t t = h->t, hd = h->head_size, c = h->heads * hd, ld = row_of(h);
    double *p = scratch(t * t), *dp = scratch(t * t), *lse = scratch(t);
    zeroed(dqkv, h->b * t * ld);
    for (int64_t bh = 0; bh < h->b * h->heads; bh++) {
        int64_t q, k, v;
        find_head(h, bh, &q, &k, &v);
        const double *g = dy + bh / h->heads * t * c + bh % h->heads * hd;
        probabilities(h, qkv + q, qkv + k, p, lse);
        for (int64_t i = 0; i < t; i++) {
            double mean = 0.0;
            for (int64_t s = 0; s <= i; s++) {
                double keep = ref_drop(d, (bh * t + i) * t + s), dot = 0.0;
                for (int64_t j = 0; j < hd; j++) {
                    dot += g[i * c + j] * qkv[v + s * ld + j];
                    dqkv[v + s * ld + j] += p[i * t + s] * keep * g[i * c + j];
                }
                dp[i * t + s] = dot * keep;
                mean += dp[i * t + s] * p[i * t + s];
            }
            for (int64_t s = 0; s <= i; s++) {
                double ds = p[i * t + s] * (dp[i * t + s] - mean) / sqrt((double)hd);
                for (int64_t j = 0; j < hd; j++) {
                    dqkv[q + i * ld + j] += ds * qkv[k + s * ld + j];
                    dqkv[k + s * ld + j] += ds * qkv[q + i * ld + j];
                }
            }
        }
    }
    free(p);
    free(dp);
    free(lse);
}

void ref_rope_table(const struct dpt_rope_table *a, double *cosines, double *sines)
{
    for (int64_t i = 0; i < a->t * a->half; i++) {
        const float angle = (float)(a->first + i / a->half) * a->inv_freq[i % a->half];
        cosines[i] = cos((double)angle);
        sines[i] = sin((double)angle);
    }
}

void ref_rope(const struct dpt_rope *a, const double *cosines, const double *sines, double *x)
{
    const int64_t half = a->head_size / 2;
    for (int64_t i = 0; i < a->n * a->heads * half; i++) {
        const int64_t row = i / (a->heads * half), head = i / half % a->heads;
        const int64_t angle = row % a->t * half + i % half;
        double *at = x + row * a->stride + head * a->head_size + i % half;
        const double c = cosines[angle], s = a->inverse ? -sines[angle] : sines[angle];
        const double low = at[0], high = at[half];
        at[0] = low * c - high * s;
        at[half] = high * c + low * s;
    }
}

double ref_silu(double x)
{
    return x / (1.0 + exp(-x));
}

double ref_silu_slope(double x)
{
    const double s = 1.0 / (1.0 + exp(-x));
    return s + x * s * (1.0 - s);
}

void ref_embedding(int64_t b, int64_t t, int64_t c, const struct dpt_dropout *d,
                   const int32_t *tokens, const double *wte, const double *wpe, double *y)
{
    for (int64_t i = 0; i < b * t; i++)
        for (int64_t j = 0; j < c; j++)
            y[i * c + j] = (wte[tokens[i] * c + j] + (wpe ? wpe[i % t * c + j] : 0.0)) *
                           ref_drop(d, i * c + j);
}

void ref_embedding_grad(int64_t b, int64_t t, int64_t c, int64_t v, int64_t context,
                        const struct dpt_dropout *d, const int32_t *tokens, const double *dy,
                        double *dwte, double *dwpe)
{
    zeroed(dwte, v * c);
    if (dwpe)
        zeroed(dwpe, context * c);
    for (int64_t i = 0; i < b * t; i++)
        for (int64_t j = 0; j < c; j++) {
            double g = dy[i * c + j] * ref_drop(d, i * c + j);
            dwte[tokens[i] * c + j] += g;
            if (dwpe)
                dwpe[i % t * c + j] += g;
        }
}

static double logit(const struct ref_head *h, int64_t r, int64_t o)
{
    double sum = h->bias ? h->bias[o] : 0.0;
    for (int64_t j = 0; j < h->c; j++)
        sum += h->x[r * h->c + j] * h->w[o * h->c + j];
    return sum;
}

/* p (v) = probabilities of row r; returns the loss. */
static double softmax(const struct ref_head *h, int64_t r, double *p)
{
    double max = -INFINITY, sum = 0.0;
    for (int64_t o = 0; o < h->v; o++) {
        p[o] = logit(h, r, o);
        max = fmax(max, p[o]);
    }
    double picked = p[h->targets[r]];
    for (int64_t o = 0; o < h->v; o++)
        sum += exp(p[o] - max);
    for (int64_t o = 0; o < h->v; o++)
        p[o] = exp(p[o] - max) / sum;
    return max + log(sum) - picked;
}

void ref_head(const struct ref_head *h, double *loss)
{
    double *p = scratch(h->v);
    for (int64_t r = 0; r < h->n; r++)
        loss[r] = softmax(h, r, p);
    free(p);
}

void ref_head_grad(const struct ref_head *h, double dloss, double *dx, double *dw, double *dbias)
{
    const int64_t c = h->c;
    double *p = scratch(h->v);
    zeroed(dx, h->n * c);
    zeroed(dw, h->v * c);
    if (dbias)
        zeroed(dbias, h->v);
    for (int64_t r = 0; r < h->n; r++) {
        (void)softmax(h, r, p);
        p[h->targets[r]] -= 1.0;
        for (int64_t o = 0; o < h->v; o++) {
            for (int64_t j = 0; j < c; j++) {
                dx[r * c + j] += dloss * p[o] * h->w[o * c + j];
                dw[o * c + j] += dloss * p[o] * h->x[r * c + j];
            }
            if (dbias)
                dbias[o] += dloss * p[o];
        }
    }
    free(p);
}

void ref_head_right(const struct ref_head *h, double *right)
{
    for (int64_t r = 0; r < h->n; r++) {
        int64_t best = 0;
        for (int64_t o = 1; o < h->v; o++)
            if (logit(h, r, o) > logit(h, r, best))
                best = o;
        right[r] = best == h->targets[r] ? 1.0 : 0.0;
    }
}

void ref_last_token(int64_t b, int64_t t, int64_t c, const int32_t *lengths, const double *x,
                    double *y)
{
    for (int64_t i = 0; i < b; i++)
        memcpy(y + i * c, x + (i * t + lengths[i] - 1) * c, (size_t)c * sizeof *y);
}

void ref_last_token_grad(int64_t b, int64_t t, int64_t c, const int32_t *lengths, const double *dy,
                         double *dx)
{
    zeroed(dx, b * t * c);
    for (int64_t i = 0; i < b; i++)
        memcpy(dx + (i * t + lengths[i] - 1) * c, dy + i * c, (size_t)c * sizeof *dx);
}

void ref_adamw(const struct dpt_adamw *a, double *p, double *m, double *v, const double *grad)
{
    for (int64_t i = 0; i < a->n; i++) {
        const double decay = (double)a->weight_decay * p[i];
        const double g = grad[i] * (double)a->grad_scale + (a->l2 ? decay : 0.0);
        p[i] -= a->l2 ? 0.0 : (double)a->lr * decay;
        m[i] = (double)a->beta1 * m[i] + (1.0 - (double)a->beta1) * g;
        v[i] = (double)a->beta2 * v[i] + (1.0 - (double)a->beta2) * g * g;
        p[i] -= (double)a->lr * (m[i] / (double)a->bias1) /
                (sqrt(v[i] / (double)a->bias2) + (double)a->eps);
    }
}

void ref_sgd(const struct dpt_sgd *a, double *p, double *m, const double *grad)
{
    for (int64_t i = 0; i < a->n; i++) {
        double g = grad[i] * (double)a->grad_scale + (double)a->weight_decay * p[i];
        m[i] = (double)a->momentum * m[i] + g;
        p[i] -= (double)a->lr * (a->nesterov ? g + (double)a->momentum * m[i] : m[i]);
    }
}

const uint8_t ref_sum_joins[REF_SUMS][REF_SUM_PARTS] = {{0, 1, 0, 2, 0, 1, 0, 3, 0, 1, 2},
                                                        {0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1},
                                                        {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10}};

void ref_ordered_sum(int64_t n, const float *const parts[REF_SUM_PARTS], int sum,
                     enum dpt_dtype dtype, float *ret)
{
    for (int64_t i = 0; i < n; i++) {
        float stack[REF_SUM_PARTS];
        int depth = 0;
        for (int p = 0; p < REF_SUM_PARTS; p++) {
            stack[depth++] = parts[p][i];
            for (int join = 0; join < ref_sum_joins[sum][p]; join++, depth--) {
                const float both = stack[depth - 2] + stack[depth - 1];
                stack[depth - 2] = dtype == DPT_F32 ? both : float_of(dtype, half_of(dtype, both));
            }
        }
        ret[i] = stack[0];
    }
}
