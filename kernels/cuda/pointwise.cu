/* Ops over independent elements: GELU, SwiGLU, sums with dropout, conversions, filling. A thread
 * computes N adjacent elements (elem.cuh), or the four elements that share a block of random words.
 * The assignment of elements to threads changes no bit. */
#include "kernels/cuda/elem.cuh"
#include "kernels/cuda/launch.h"

enum { THREADS = 256 };

/* Functions of an element x, or of elements x and y. */
struct gelu_op {
    static constexpr bool TAKES_Y = false;
    static __device__ inline float combined(float x, float)
    {
        return gelu_of(x);
    }
};

/* y times d/dx x s(2u) = s + x s (1-s) 2u'. 1-s is computed as e s, so that nothing cancels
 * (kernels/cpu/simd). */
struct gelu_grad_op {
    static constexpr bool TAKES_Y = true;
    static __device__ inline float combined(float x, float y)
    {
        const float a = (float)GELU_A, b3 = (float)(3.0 * GELU_B), a2 = (float)(-LOG2_E * GELU_A),
                    b2 = (float)(-LOG2_E * GELU_B);
        const float square = x * x;
        const float e = exp2_near(x * fmaf(b2, square, a2));
        const float s = reciprocal_near(1.0f + e);
        return y * fmaf((x * s) * (e * s), fmaf(b3, square, a), s);
    }
};

struct add_op {
    static constexpr bool TAKES_Y = true;
    static __device__ inline float combined(float x, float y)
    {
        return x + y;
    }
};

template <typename OP, typename E, bool WHOLE>
static __global__ void map(int64_t n, const E *x, const E *y, E *to)
{
    enum { N = some<E>::N };
    GRID_LOOP(g, (n + N - 1) / N) {
        float v[N], w[N] = {};
        get<N, WHOLE>(x, g * N, n, v);
        if (OP::TAKES_Y)
            get<N, WHOLE>(y, g * N, n, w);
#pragma unroll
        for (int k = 0; k < N; k++)
            v[k] = OP::combined(v[k], w[k]);
        put<N, WHOLE>(to, g * N, n, v);
    }
}

/* A row of x is gate and up, c elements each, in ceil(c / N) groups. GRAD: dy is given, and `out`
 * has the shape of x. 1-s is computed as e s, as above. */
template <typename E, bool WHOLE, bool GRAD>
static __global__ void swiglu(int64_t n, int64_t c, const E *x, const E *dy, E *out)
{
    enum { N = some<E>::N };
    const int64_t groups = (c + N - 1) / N;
    GRID_LOOP(i, n * groups) {
        const int64_t row = i / groups, at = i % groups * N;
        const E *gate = x + 2 * row * c, *up = gate + c;
        float g[N], u[N], d[N];
        get<N, WHOLE>(gate, at, c, g);
        get<N, WHOLE>(up, at, c, u);
        if (GRAD)
            get<N, WHOLE>(dy + row * c, at, c, d);
#pragma unroll
        for (int k = 0; k < N; k++) {
            const float e = exp2_near((float)-LOG2_E * g[k]), s = reciprocal_near(1.0f + e);
            const float silu = g[k] * s;
            if (GRAD) {
                g[k] = (d[k] * u[k]) * fmaf(silu, e * s, s);
                u[k] = d[k] * silu;
            } else
                g[k] = silu * u[k];
        }
        put<N, WHOLE>(GRAD ? out + 2 * row * c : out + row * c, at, c, g);
        if (GRAD)
            put<N, WHOLE>(out + (2 * row + 1) * c, at, c, u);
    }
}

/* y = a + mask(b), or mask(b) if a is NULL. Item g is one block of four random words, for elements
 * 4g - first%4 and the next three. */
template <typename E>
static __global__ void drop_add(int64_t n, struct drop d, const E *a, const E *b, E *y)
{
    const int64_t skip = (int64_t)(d.first % 4);
    GRID_LOOP(g, (n + skip + 3) / 4) {
        uint32_t words[4];
        dpt_philox(d.key, d.first / 4 + (uint64_t)g, words);
#pragma unroll
        for (int w = 0; w < 4; w++) {
            const int64_t i = 4 * g - skip + w;
            if (i < 0 || i >= n)
                continue;
            float x = widened(b[i]) * (words[w] >= d.below ? d.keep : 0.0f);
            if (a)
                x = widened(a[i]) + x;
            y[i] = rounded<E>(x);
        }
    }
}

template <typename E> static __global__ void repeat_row(int64_t n, int64_t cols, const E *row, E *y)
{
    GRID_LOOP(i, n)
        y[i] = row[i % cols];
}

template <typename E>
static __global__ void ordered_sum(int64_t n, int n_parts, const float *const *parts,
                                   const uint8_t *joins, float *dst)
{
    GRID_LOOP(i, n) {
        float below[DPT_SUM_DEPTH_MAX];
        int depth = 0;
        float top = parts[0][i];
        for (int p = 1; p < n_parts; p++) {
            below[depth++] = top;
            top = parts[p][i];
            for (int join = joins[p]; join > 0; join--)
                top = widened(rounded<E>(below[--depth] + top));
        }
        dst[i] = top;
    }
}

/* Widens exactly as half.h, NaNs included. */
template <typename E> static __device__ inline float exactly(E x)
{
    return widened(x);
}

static __device__ inline float exactly(f16 x)
{
    return dpt_f32_of_f16(x.bits);
}

/* A thread converts four elements, because four f32 are sixteen bytes. Exactly as half.h, NaNs
 * included. */
template <typename FROM, typename TO, bool WHOLE>
static __global__ void convert(int64_t n, const FROM *src, TO *dst)
{
    GRID_LOOP(g, (n + 3) / 4) {
        const struct held<4, FROM> h = load<4, WHOLE>(src, g * 4, n);
        FROM from[4];
        TO to[4];
        memcpy(from, &h.bits, sizeof from);
#pragma unroll
        for (int k = 0; k < 4; k++)
            to[k] = rounded<TO>(exactly(from[k]));
        if (WHOLE) {
            words<sizeof to> bits;
            memcpy(&bits, to, sizeof to);
            *(words<sizeof to> *)(dst + g * 4) = bits;
        } else
            for (int k = 0; k < 4 && g * 4 + k < n; k++)
                dst[g * 4 + k] = to[k];
    }
}

template <typename E> static __global__ void round_to(int64_t n, float *x)
{
    GRID_LOOP(i, n)
        x[i] = exactly(rounded<E>(x[i]));
}

template <typename E> static __global__ void scale(int64_t n, float factor, E *x)
{
    GRID_LOOP(i, n)
        x[i] = rounded<E>(widened(x[i]) * factor);
}

static __global__ void fill(int64_t n, float value, float *dst)
{
    GRID_LOOP(i, n)
        dst[i] = value;
}

/* --- random values --- */

static __global__ void fill_normal(int64_t n, struct dpt_normal of, float *dst)
{
    GRID_LOOP(at, n) {
        const uint64_t i = of.first + (uint64_t)at;
        uint32_t words[4];
        float pair[2];
        dpt_philox(of.key, i / 4, words);
        const bool second = i & 2;
        dpt_draw_normal_pair(second ? words[2] : words[0], second ? words[3] : words[1], pair);
        dst[at] = of.mean + of.std * (i & 1 ? pair[1] : pair[0]);
    }
}

static __global__ void fill_uniform(int64_t n, struct dpt_uniform of, float *dst)
{
    GRID_LOOP(at, n) {
        const uint64_t i = of.first + (uint64_t)at;
        uint32_t words[4];
        dpt_philox(of.key, i / 4, words);
        dst[at] = of.bound * dpt_draw_uniform(words[i % 4]);
    }
}

/* --- posting --- */

template <typename OP, typename E>
static void post_map(void *queue, int64_t n, const E *x, const E *y, E *to)
{
    enum { N = some<E>::N };
    FOR_WHOLE((are_whole_rows<N, E>(n, x, y, to)),
              POST((map<OP, E, WHOLE>), ceil_div(n, N), n, x, y, to));
}

/* y may be NULL for an op of x alone. */
template <typename OP>
static void launch_map(void *queue, int64_t n, enum dpt_dtype dtype, const void *x, const void *y,
                       void *to)
{
    FOR_ELEM(dtype, (post_map<OP, E>(queue, n, (const E *)x, (const E *)y, (E *)to)));
}

void dpt_launch_gelu_forward(void *queue, const struct dpt_gelu *a)
{
    launch_map<gelu_op>(queue, a->n, a->dtype, a->x, NULL, a->out);
}

void dpt_launch_gelu_backward(void *queue, const struct dpt_gelu *a)
{
    launch_map<gelu_grad_op>(queue, a->n, a->dtype, a->x, a->dy, a->out);
}

template <typename E, bool GRAD> static void post_swiglu(void *queue, const struct dpt_swiglu *a)
{
    enum { N = some<E>::N };
    const E *const x = (const E *)a->x, *const dy = (const E *)a->dy;
    E *const out = (E *)a->out;
    FOR_WHOLE((are_whole_rows<N, E>(a->c, x, dy, out)),
              POST((swiglu<E, WHOLE, GRAD>), a->n * ceil_div(a->c, N), a->n, a->c, x, dy, out));
}

void dpt_launch_swiglu_forward(void *queue, const struct dpt_swiglu *a)
{
    FOR_ELEM(a->dtype, (post_swiglu<E, false>(queue, a)));
}

void dpt_launch_swiglu_backward(void *queue, const struct dpt_swiglu *a)
{
    FOR_ELEM(a->dtype, (post_swiglu<E, true>(queue, a)));
}

static void launch_drop_add(void *queue, const struct dpt_residual *a)
{
    const int64_t groups = (a->n + (int64_t)(a->dropout.first % 4) + 3) / 4;
    FOR_ELEM(a->dtype, POST(drop_add<E>, groups, a->n, drop_of(&a->dropout), (const E *)a->a,
                            (const E *)a->b, (E *)a->y));
}

void dpt_launch_residual(void *queue, const struct dpt_residual *a)
{
    if (a->dropout.p > 0.0f)
        launch_drop_add(queue, a);
    else
        launch_map<add_op>(queue, a->n, a->dtype, a->a, a->b, a->y);
}

void dpt_launch_dropout_backward(void *queue, const struct dpt_dropout_backward *a)
{
    const struct dpt_residual alone = {a->n, a->dtype, a->dropout, NULL, a->dy, a->dx};
    launch_drop_add(queue, &alone);
}

void dpt_launch_add(void *queue, int64_t n, const float *a, const float *b, float *dst)
{
    launch_map<add_op>(queue, n, DPT_F32, a, b, dst);
}

void dpt_launch_repeat_row(void *queue, enum dpt_dtype dtype, int64_t rows, int64_t cols,
                           const void *row, void *y)
{
    FOR_ELEM(dtype, POST(repeat_row<E>, rows * cols, rows * cols, cols, (const E *)row, (E *)y));
}

void dpt_launch_ordered_sum(void *queue, const struct dpt_ordered_sum *a)
{
    FOR_ELEM(a->dtype, POST(ordered_sum<E>, a->n, a->n, a->n_parts, a->parts, a->joins, a->dst));
}

template <typename FROM, typename TO>
static void post_convert(void *queue, int64_t n, const FROM *src, TO *dst)
{
    FOR_WHOLE(n % 4 == 0 && is_whole<4>(src) && is_whole<4>(dst),
              POST((convert<FROM, TO, WHOLE>), ceil_div(n, 4), n, src, dst));
}

void dpt_launch_cast(void *queue, int64_t n, const float *src, enum dpt_dtype dtype, void *dst)
{
    FOR_ELEM(dtype, post_convert(queue, n, src, (E *)dst));
}

void dpt_launch_widen(void *queue, int64_t n, enum dpt_dtype dtype, const void *src, float *dst)
{
    FOR_ELEM(dtype, post_convert(queue, n, (const E *)src, dst));
}

void dpt_launch_round_to(void *queue, int64_t n, enum dpt_dtype dtype, float *x)
{
    if (n == 0 || dtype == DPT_F32)
        return;
    FOR_ELEM(dtype, POST(round_to<E>, n, n, x));
}

void dpt_launch_scale(void *queue, int64_t n, enum dpt_dtype dtype, float factor, void *x)
{
    FOR_ELEM(dtype, POST(scale<E>, n, n, factor, (E *)x));
}

void dpt_launch_fill(void *queue, int64_t n, float value, float *dst)
{
    POST(fill, n, n, value, dst);
}

void dpt_launch_fill_normal(void *queue, int64_t n, const struct dpt_normal *of, float *dst)
{
    POST(fill_normal, n, n, *of, dst);
}

void dpt_launch_fill_uniform(void *queue, int64_t n, const struct dpt_uniform *of, float *dst)
{
    POST(fill_uniform, n, n, *of, dst);
}
