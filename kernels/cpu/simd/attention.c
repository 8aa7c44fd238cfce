/* Causal attention of a head in one pass over tiles of TILE x TILE scores (Dao et al. 2022,
 * "FlashAttention", algorithms 1 and 4). The T x T scores are never stored. Backward computes the
 * probabilities again from the stored log-sum-exp. It processes the query heads of a key and value
 * head one after another and accumulates dk and dv over all of them.
 *
 * Rows of q, k and v are far apart in memory, at a stride that maps them to few cache sets.
 * Therefore a head is first copied into dense rows of `hp` floats; the copy scales q by
 * 1/sqrt(hd). */
#include "base/exact_math.h"
#include "base/extremes.h"
#include "kernels/cpu/simd/elem.h"

enum { TILE = 64 };

static int64_t attention_round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

/* The parts of `work`; forward uses the first half. tp and hp are T and hd, rounded up to whole
 * tiles and vectors. Rows and channels beyond T and hd are zero. */
struct work {
    int64_t tp, hp;
    float *q, *k, *v; /* (tp, hp) */
    float *kt, *vt;   /* (hd, tp): transposed */
    float *dy, *dq;   /* (tp, hp) */
    float *dk, *dv;   /* (tp, hp) */
    float *o;         /* (TILE, hp) */
    float *s, *ds;    /* (TILE, TILE) */
    float *drop;      /* (TILE) */
    float *row;       /* (tp): sums of dy*y */
};

static size_t attention_lay_out(int64_t t, int64_t hd, bool backward, float *base, struct work *ret)
{
    ret->tp = attention_round_up(t, TILE);
    ret->hp = attention_round_up(hd, LANES);
    size_t tp = (size_t)ret->tp, hp = (size_t)ret->hp, used = 0;
    struct part {
        float **at;
        size_t floats;
    } parts[] = {
        {&ret->q, tp * hp},      {&ret->k, tp * hp},   {&ret->v, tp * hp},  {&ret->kt, hp * tp},
        {&ret->s, TILE * TILE},  {&ret->o, TILE * hp}, {&ret->drop, TILE},  {&ret->vt, hp * tp},
        {&ret->dy, tp * hp},     {&ret->dq, tp * hp},  {&ret->dk, tp * hp}, {&ret->dv, tp * hp},
        {&ret->ds, TILE * TILE}, {&ret->row, tp},
    };
    enum { FORWARD_PARTS = 7, PARTS = sizeof parts / sizeof *parts };
    for (int i = 0; i < (backward ? PARTS : FORWARD_PARTS); i++) {
        *parts[i].at = base ? base + used : NULL;
        used += (parts[i].floats + LANES - 1) / LANES * LANES;
    }
    return used;
}

size_t ELEM(attention_work)(int64_t t, int64_t hd, bool backward)
{
    struct work w;
    return attention_lay_out(t, hd, backward, NULL, &w);
}

/* to (tp, hp) = scale * from (t, hd), zero outside. */
static void copy_rows(const struct dpt_head_rows *a, const elem *from, int64_t ld, float scale,
                      float *to)
{
    int64_t tp = attention_round_up(a->t, TILE), hp = attention_round_up(a->hd, LANES);
    v16 factor = v_set(scale);
    for (int64_t r = 0; r < a->t; r++)
        for (int64_t j = 0; j < hp; j += LANES) {
            int64_t n = a->hd - j < LANES ? a->hd - j : LANES;
            v_store(to + r * hp + j, v_mul(factor, e_get(from + r * ld + j, n, 0.0f)));
        }
    SIMD(fill)((tp - a->t) * hp, 0.0f, to + a->t * hp);
}

static void store_rows(const struct dpt_head_rows *a, const float *from, float scale, elem *to)
{
    int64_t hp = attention_round_up(a->hd, LANES);
    v16 factor = v_set(scale);
    for (int64_t r = 0; r < a->t; r++)
        FOR_LANES(j, n, a->hd)
            e_put(to + r * a->ld + j, n, v_mul(factor, v_load(from + r * hp + j)));
}

/* x[0 … 63] *= the dropout factors of row `t`, columns from `s0` on. Only columns below `s1` are
 * multiplied. */
static void drop_row(const struct dpt_head_rows *a, struct work *w, int64_t t, int64_t s0,
                     int64_t s1, float *x)
{
    uint64_t first = a->drop_first + (uint64_t)(t * a->t + s0);
    SIMD(drop_factors)(s1 - s0, a->dropout, first, w->drop);
    FOR_LANES(j, n, s1 - s0)
        v_put(x + j, n, v_mul(v_get(x + j, n, 0.0f), v_get(w->drop + j, n, 0.0f)));
}

/* A tile of scores: `rows` queries from i0 and `keys` keys from j0. */
struct tile {
    int64_t i0, rows, j0, keys;
};

static struct tile tile_at(const struct dpt_head_rows *a, int64_t i0, int64_t j0)
{
    return (struct tile){i0, dpt_min_i64(TILE, a->t - i0), j0, dpt_min_i64(TILE, a->t - j0)};
}

/* ret (rows, TILE) = the tile's rows of x (tp, hp) times its columns of y (hd, tp). */
static void tile_products(const struct dpt_head_rows *a, const struct work *w,
                          const struct tile *at, const float *x, const float *y, float *ret)
{
    const struct simd_product p = {.rows = at->rows,
                                   .cols = TILE,
                                   .k = a->hd,
                                   .a = x + at->i0 * w->hp,
                                   .a_row = w->hp,
                                   .a_col = 1,
                                   .b = y + at->j0,
                                   .ldb = w->tp,
                                   .c = ret,
                                   .ldc = TILE};
    SIMD(product)(&p, false);
}

/* w->s = q k^T for a tile, with -inf above the diagonal. */
static void tile_scores(const struct dpt_head_rows *a, const struct work *w, const struct tile *at)
{
    tile_products(a, w, at, w->q, w->kt, w->s);
    if (at->i0 == at->j0)
        for (int64_t r = 0; r < at->rows; r++)
            SIMD(fill)(TILE - 1 - r, -INFINITY, w->s + r * TILE + r + 1);
}

/* Not transposed: ret (rows, hp) += p (rows, keys) times x (keys, hp). Transposed: ret (keys, hp)
 * += p^T times x (rows, hp). Rows of p are TILE apart. */
static void add_products(const struct work *w, const struct tile *at, bool transposed,
                         const float *p, const float *x, float *ret)
{
    const struct simd_product sum = {.rows = transposed ? at->keys : at->rows,
                                     .cols = w->hp,
                                     .k = transposed ? at->rows : at->keys,
                                     .a = p,
                                     .a_row = transposed ? 1 : TILE,
                                     .a_col = transposed ? TILE : 1,
                                     .b = x,
                                     .ldb = w->hp,
                                     .c = ret,
                                     .ldc = w->hp};
    SIMD(product)(&sum, true);
}

/* Replaces one row of scores by exp(s - max). Updates the running max and sum, and scales the row
 * of o to the new max. */
static void softmax_row(float *s, float *max, float *sum, float *o, int64_t hp)
{
    v16 most = v_set(*max), total = v_set(0.0f);
    for (int64_t j = 0; j < TILE; j += LANES)
        most = v_max(most, v_load(s + j));
    float new_max = v_greatest(most);
    v16 shift = v_set(new_max);
    for (int64_t j = 0; j < TILE; j += LANES) {
        v16 p = v_exp(v_sub(v_load(s + j), shift));
        total = v_add(total, p);
        v_store(s + j, p);
    }
    float factor[LANES];
    v16 f = v_exp(v_set(*max - new_max));
    v_store(factor, f);
    *sum = fmaf(*sum, factor[0], v_sum(total));
    *max = new_max;
    for (int64_t j = 0; j < hp; j += LANES)
        v_store(o + j, v_mul(f, v_load(o + j)));
}

static void attend_rows(const struct dpt_head_rows *a, struct work *w, int64_t i0)
{
    const int64_t hp = w->hp, rows = dpt_min_i64(TILE, a->t - i0);
    float max[TILE], sum[TILE];
    for (int r = 0; r < TILE; r++) {
        max[r] = -3.0e38f; /* finite, so that max - max is never NaN */
        sum[r] = 0.0f;
    }
    SIMD(fill)(TILE * hp, 0.0f, w->o);
    for (int64_t j0 = 0; j0 <= i0; j0 += TILE) {
        const struct tile at = tile_at(a, i0, j0);
        tile_scores(a, w, &at);
        for (int64_t r = 0; r < rows; r++) {
            softmax_row(w->s + r * TILE, &max[r], &sum[r], w->o + r * hp, hp);
            if (a->dropout->p > 0.0f)
                drop_row(a, w, i0 + r, j0, j0 + at.keys, w->s + r * TILE);
        }
        add_products(w, &at, false, w->s, w->v + j0 * hp, w->o);
    }
    for (int64_t r = 0; r < rows; r++) {
        v16 scale = v_set(1.0f / sum[r]);
        FOR_LANES(j, n, a->hd)
            e_put((elem *)a->y + (i0 + r) * a->ldy + j, n, v_mul(scale, v_load(w->o + r * hp + j)));
        a->lse[i0 + r] = max[r] + (float)dpt_natural_log((double)sum[r]);
    }
}

void ELEM(attention)(const struct dpt_head_rows *a)
{
    struct work w;
    attention_lay_out(a->t, a->hd, false, a->work, &w);
    copy_rows(a, a->q, a->ld, 1.0f / sqrtf((float)a->hd), w.q);
    copy_rows(a, a->k, a->ld, 1.0f, w.k);
    copy_rows(a, a->v, a->ld, 1.0f, w.v);
    SIMD(transpose_f32)(w.tp, w.hp, w.k, w.hp, w.kt, w.tp);
    for (int64_t i0 = 0; i0 < a->t; i0 += TILE)
        attend_rows(a, &w, i0);
}

/* w->row[t] = sum over channels of dy*y. The gradient of each score of row t subtracts it from the
 * gradient of the probability. */
static void row_dots(const struct dpt_head_rows *a, struct work *w)
{
    for (int64_t t = 0; t < a->t; t++) {
        const elem *dy = (const elem *)a->dy + t * a->ldy, *y = (const elem *)a->y + t * a->ldy;
        v16 sum = v_set(0.0f);
        FOR_LANES(j, n, a->hd)
            sum = v_fma(e_get(dy + j, n, 0.0f), e_get(y + j, n, 0.0f), sum);
        w->row[t] = v_sum(sum);
    }
}

/* Reads the scores in s and dp = dy v^T in ds. Writes the probabilities (after dropout) to s and
 * the gradient of the scores to ds. */
static void score_gradients(const struct dpt_head_rows *a, struct work *w, const struct tile *at)
{
    for (int64_t r = 0; r < at->rows; r++) {
        float *s = w->s + r * TILE, *ds = w->ds + r * TILE;
        const int64_t query = at->i0 + r;
        v16 lse = v_set(a->lse[query]), dot = v_set(w->row[query]);
        bool drop = a->dropout->p > 0.0f;
        if (drop) /* stores the factors in w->drop */
            drop_row(a, w, query, at->j0, at->j0 + at->keys, ds);
        for (int64_t j = 0; j < TILE; j += LANES) {
            v16 p = v_exp(v_sub(v_load(s + j), lse));
            v_store(ds + j, v_mul(p, v_sub(v_load(ds + j), dot)));
            if (drop)
                p = v_mul(p, v_load(w->drop + j));
            v_store(s + j, p);
        }
    }
}

static void add_tile_gradients(const struct dpt_head_rows *a, struct work *w, int64_t i0,
                               int64_t j0)
{
    const struct tile at = tile_at(a, i0, j0);
    const int64_t hp = w->hp;
    tile_scores(a, w, &at);
    tile_products(a, w, &at, w->dy, w->vt, w->ds);
    score_gradients(a, w, &at);
    add_products(w, &at, true, w->s, w->dy + i0 * hp, w->dv + j0 * hp);
    add_products(w, &at, true, w->ds, w->q + i0 * hp, w->dk + j0 * hp);
    add_products(w, &at, false, w->ds, w->k + j0 * hp, w->dq + i0 * hp);
}

/* Computes dq of one query head, and adds the head's part to dk and dv. */
static void add_head_gradients(const struct dpt_head_rows *a, struct work *w)
{
    const float scale = 1.0f / sqrtf((float)a->hd);
    copy_rows(a, a->q, a->ld, scale, w->q);
    copy_rows(a, a->dy, a->ldy, 1.0f, w->dy);
    SIMD(fill)(w->tp * w->hp, 0.0f, w->dq);
    row_dots(a, w);
    for (int64_t j0 = 0; j0 < a->t; j0 += TILE)
        for (int64_t i0 = j0; i0 < a->t; i0 += TILE)
            add_tile_gradients(a, w, i0, j0);
    store_rows(a, w->dq, scale, a->dq);
}

void ELEM(attention_grad)(const struct dpt_head_rows *a)
{
    struct work w;
    attention_lay_out(a->t, a->hd, true, a->work, &w);
    struct dpt_head_rows one = *a;
    copy_rows(a, a->k, a->ld, 1.0f, w.k);
    copy_rows(a, a->v, a->ld, 1.0f, w.v);
    SIMD(transpose_f32)(w.tp, w.hp, w.k, w.hp, w.kt, w.tp);
    SIMD(transpose_f32)(w.tp, w.hp, w.v, w.hp, w.vt, w.tp);
    SIMD(fill)(w.tp * w.hp, 0.0f, w.dk);
    SIMD(fill)(w.tp * w.hp, 0.0f, w.dv);
    SIMD(fill)(TILE, 0.0f, w.drop);
    for (int64_t g = 0; g < a->group; g++) {
        one.q = (const elem *)a->q + g * a->hd;
        one.y = (elem *)a->y + g * a->hd;
        one.dy = (const elem *)a->dy + g * a->hd;
        one.dq = (elem *)a->dq + g * a->hd;
        one.lse = a->lse + g * a->t;
        one.drop_first = a->drop_first + (uint64_t)g * (uint64_t)(a->t * a->t);
        add_head_gradients(&one, &w);
    }
    store_rows(a, w.dk, 1.0f, a->dk);
    store_rows(a, w.dv, 1.0f, a->dv);
}
