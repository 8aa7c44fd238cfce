/* Causal attention of a head in one pass over tiles of TILE x TILE scores (Dao et al. 2022,
 * "FlashAttention", algorithms 1 and 4): T x T is never stored, backward makes the probabilities
 * anew from the kept log-sum-exp. Backward goes over the query heads of a key and value head one
 * after another, and the sums of dk and dv go on from one to the next.
 *
 * Rows of q, k and v lie far apart in memory, at a stride that throws them on few cache sets; so a
 * head is first copied into dense rows of `hp` floats (hd rounded up to 16, padded with
 * zeros), q scaled by 1/sqrt(hd). */
#include "base/natural_log.h"
#include "kernels/cpu/simd/elem.h"

enum { TILE = 64 };

static int64_t round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* The parts of `work`; forward uses the first half. Rows beyond T, up to a whole tile, are zero. */
struct work {
    float *q, *k, *v; /* (tp, hp) */
    float *kt, *vt;   /* (hd, tp): transposed */
    float *dy, *dq;   /* (tp, hp) */
    float *dk, *dv;   /* (tp, hp) */
    float *o;         /* (TILE, hp) */
    float *s, *ds;    /* (TILE, TILE) */
    float *drop;      /* (TILE) */
    float *row;       /* (tp): sums of dy*y */
};

static size_t lay_out(int64_t t, int64_t hd, bool backward, float *base, struct work *ret)
{
    size_t tp = (size_t)round_up(t, TILE), hp = (size_t)round_up(hd, LANES), used = 0;
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
    return lay_out(t, hd, backward, NULL, &w);
}

/* to (tp, hp) = scale * from (t, hd), zero outside. */
static void copy_rows(const struct dpt_head_rows *a, const elem *from, int64_t ld, float scale,
                      float *to)
{
    int64_t tp = round_up(a->t, TILE), hp = round_up(a->hd, LANES);
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
    int64_t hp = round_up(a->hd, LANES);
    v16 factor = v_set(scale);
    for (int64_t r = 0; r < a->t; r++)
        FOR_LANES(j, n, a->hd)
            e_put(to + r * a->ld + j, n, v_mul(factor, v_load(from + r * hp + j)));
}

/* x[0 … 63] *= mask of row `t`, columns from `s0`, of those below `s1`. */
static void drop_row(const struct dpt_head_rows *a, struct work *w, int64_t t, int64_t s0,
                     int64_t s1, float *x)
{
    uint64_t first = a->drop_first + (uint64_t)(t * a->t + s0);
    SIMD(drop_factors)(s1 - s0, a->dropout, first, w->drop);
    FOR_LANES(j, n, s1 - s0)
        v_put(x + j, n, v_mul(v_get(x + j, n, 0.0f), v_get(w->drop + j, n, 0.0f)));
}

/* s (rows, TILE) = q rows from i0, times k rows from j0; with -inf above the diagonal. */
static void scores(const struct dpt_head_rows *a, const struct work *w, int64_t i0, int64_t rows,
                   int64_t j0)
{
    int64_t tp = round_up(a->t, TILE), hp = round_up(a->hd, LANES);
    const struct simd_product qk = {.rows = rows,
                                    .cols = TILE,
                                    .k = a->hd,
                                    .a = w->q + i0 * hp,
                                    .a_row = hp,
                                    .a_col = 1,
                                    .b = w->kt + j0,
                                    .ldb = tp,
                                    .c = w->s,
                                    .ldc = TILE};
    SIMD(product)(&qk, false);
    if (i0 == j0)
        for (int64_t r = 0; r < rows; r++)
            SIMD(fill)(TILE - 1 - r, -INFINITY, w->s + r * TILE + r + 1);
}

/* One row of scores becomes exp(s - max); running max and sum follow, and the row of o so far is
 * scaled to the new max. */
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

static void attend_tile(const struct dpt_head_rows *a, struct work *w, int64_t i0)
{
    int64_t hp = round_up(a->hd, LANES), rows = least(TILE, a->t - i0);
    float max[TILE], sum[TILE];
    for (int r = 0; r < TILE; r++) {
        max[r] = -3.0e38f; /* finite, so that max - max is never NaN */
        sum[r] = 0.0f;
    }
    SIMD(fill)(TILE * hp, 0.0f, w->o);
    for (int64_t j0 = 0; j0 <= i0; j0 += TILE) {
        int64_t keys = least(TILE, a->t - j0);
        scores(a, w, i0, rows, j0);
        for (int64_t r = 0; r < rows; r++) {
            softmax_row(w->s + r * TILE, &max[r], &sum[r], w->o + r * hp, hp);
            if (a->dropout->p > 0.0f)
                drop_row(a, w, i0 + r, j0, j0 + keys, w->s + r * TILE);
        }
        const struct simd_product pv = {.rows = rows,
                                        .cols = hp,
                                        .k = keys,
                                        .a = w->s,
                                        .a_row = TILE,
                                        .a_col = 1,
                                        .b = w->v + j0 * hp,
                                        .ldb = hp,
                                        .c = w->o,
                                        .ldc = hp};
        SIMD(product)(&pv, true);
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
    lay_out(a->t, a->hd, false, a->work, &w);
    int64_t tp = round_up(a->t, TILE), hp = round_up(a->hd, LANES);
    copy_rows(a, a->q, a->ld, 1.0f / sqrtf((float)a->hd), w.q);
    copy_rows(a, a->k, a->ld, 1.0f, w.k);
    copy_rows(a, a->v, a->ld, 1.0f, w.v);
    SIMD(transpose_f32)(tp, hp, w.k, hp, w.kt, tp);
    for (int64_t i0 = 0; i0 < a->t; i0 += TILE)
        attend_tile(a, &w, i0);
}

/* w->row[t] = sum over channels of dy*y: what each probability's gradient is measured against. */
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

/* From scores s and dp = dy v^T (in ds): s becomes the (dropped) probabilities, ds the gradient of
 * the scores. */
static void grad_rows(const struct dpt_head_rows *a, struct work *w, int64_t i0, int64_t rows,
                      int64_t j0)
{
    int64_t keys = least(TILE, a->t - j0);
    for (int64_t r = 0; r < rows; r++) {
        float *s = w->s + r * TILE, *ds = w->ds + r * TILE;
        v16 lse = v_set(a->lse[i0 + r]), dot = v_set(w->row[i0 + r]);
        bool drop = a->dropout->p > 0.0f;
        if (drop)
            drop_row(a, w, i0 + r, j0, j0 + keys, ds); /* leaves the factors in w->drop */
        for (int64_t j = 0; j < TILE; j += LANES) {
            v16 p = v_exp(v_sub(v_load(s + j), lse));
            v_store(ds + j, v_mul(p, v_sub(v_load(ds + j), dot)));
            if (drop)
                p = v_mul(p, v_load(w->drop + j));
            v_store(s + j, p);
        }
    }
}

static void grad_tile(const struct dpt_head_rows *a, struct work *w, int64_t i0, int64_t j0)
{
    int64_t tp = round_up(a->t, TILE), hp = round_up(a->hd, LANES);
    int64_t rows = least(TILE, a->t - i0), keys = least(TILE, a->t - j0);
    const struct simd_product dp = {.rows = rows,
                                    .cols = TILE,
                                    .k = a->hd,
                                    .a = w->dy + i0 * hp,
                                    .a_row = hp,
                                    .a_col = 1,
                                    .b = w->vt + j0,
                                    .ldb = tp,
                                    .c = w->ds,
                                    .ldc = TILE};
    scores(a, w, i0, rows, j0);
    SIMD(product)(&dp, false);
    grad_rows(a, w, i0, rows, j0);
    const struct simd_product dv = {.rows = keys,
                                    .cols = hp,
                                    .k = rows,
                                    .a = w->s,
                                    .a_row = 1,
                                    .a_col = TILE,
                                    .b = w->dy + i0 * hp,
                                    .ldb = hp,
                                    .c = w->dv + j0 * hp,
                                    .ldc = hp};
    struct simd_product dk = dv;
    dk.a = w->ds;
    dk.b = w->q + i0 * hp;
    dk.c = w->dk + j0 * hp;
    const struct simd_product dq = {.rows = rows,
                                    .cols = hp,
                                    .k = keys,
                                    .a = w->ds,
                                    .a_row = TILE,
                                    .a_col = 1,
                                    .b = w->k + j0 * hp,
                                    .ldb = hp,
                                    .c = w->dq + i0 * hp,
                                    .ldc = hp};
    SIMD(product)(&dv, true);
    SIMD(product)(&dk, true);
    SIMD(product)(&dq, true);
}

/* dq of one query head, and what it adds to dk and dv. */
static void head_grad(const struct dpt_head_rows *a, struct work *w)
{
    int64_t tp = round_up(a->t, TILE), hp = round_up(a->hd, LANES);
    const float scale = 1.0f / sqrtf((float)a->hd);
    copy_rows(a, a->q, a->ld, scale, w->q);
    copy_rows(a, a->dy, a->ldy, 1.0f, w->dy);
    SIMD(fill)(tp * hp, 0.0f, w->dq);
    row_dots(a, w);
    for (int64_t j0 = 0; j0 < a->t; j0 += TILE)
        for (int64_t i0 = j0; i0 < a->t; i0 += TILE)
            grad_tile(a, w, i0, j0);
    store_rows(a, w->dq, scale, a->dq);
}

void ELEM(attention_grad)(const struct dpt_head_rows *a)
{
    struct work w;
    lay_out(a->t, a->hd, true, a->work, &w);
    int64_t tp = round_up(a->t, TILE), hp = round_up(a->hd, LANES);
    struct dpt_head_rows one = *a;
    copy_rows(a, a->k, a->ld, 1.0f, w.k);
    copy_rows(a, a->v, a->ld, 1.0f, w.v);
    SIMD(transpose_f32)(tp, hp, w.k, hp, w.kt, tp);
    SIMD(transpose_f32)(tp, hp, w.v, hp, w.vt, tp);
    SIMD(fill)(tp * hp, 0.0f, w.dk);
    SIMD(fill)(tp * hp, 0.0f, w.dv);
    SIMD(fill)(TILE, 0.0f, w.drop);
    for (int64_t g = 0; g < a->group; g++) {
        one.q = (const elem *)a->q + g * a->hd;
        one.y = (elem *)a->y + g * a->hd;
        one.dy = (const elem *)a->dy + g * a->hd;
        one.dq = (elem *)a->dq + g * a->hd;
        one.lse = a->lse + g * a->t;
        one.drop_first = a->drop_first + (uint64_t)g * (uint64_t)(a->t * a->t);
        head_grad(&one, &w);
    }
    store_rows(a, w.dk, 1.0f, a->dk);
    store_rows(a, w.dv, 1.0f, a->dv);
}
