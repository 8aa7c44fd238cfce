/* dpt-ckpt diff (diff.h). */
#include "worker/ckpt/diff.h"

#include "checkpoint/reader.h"
#include "worker/ckpt/open.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 1 << 20 }; /* elements that are read at once */

struct sides {
    struct dpt_checkpoint *a, *b;
    float *of_a, *of_b; /* [CHUNK] */
    struct dpt_ckpt_difference found;
};

/* What a tensor's elements differ by. */
struct distance {
    bool same_bits;
    double largest, squares, of_a; /* sums of squares of the difference, and of a */
};

static bool is_param(const struct dpt_tensor_at *at)
{
    return at->kind == DPT_KIND_PARAM;
}

static const struct dpt_tensor_at *find(const struct dpt_checkpoint *checkpoint, const char *name)
{
    for (int i = 0; i < checkpoint->n_tensors; i++)
        if (is_param(&checkpoint->tensors[i]) &&
            strcmp(checkpoint->tensors[i].entry->name, name) == 0)
            return &checkpoint->tensors[i];
    return NULL;
}

static bool same_shape(const struct dpt_safetensors_entry *a, const struct dpt_safetensors_entry *b)
{
    bool same = a->ndim == b->ndim;
    for (int d = 0; same && d < a->ndim; d++)
        same = a->dim[d] == b->dim[d];
    return same;
}

static struct dpt_checkpoint_tensor tensor_of(const struct dpt_safetensors_entry *entry)
{
    struct dpt_checkpoint_tensor tensor = {.name = entry->name, .ndim = entry->ndim};
    memcpy(tensor.dim, entry->dim, sizeof tensor.dim);
    return tensor;
}

/* A NaN counts as the largest. */
static double larger(double a, double b)
{
    return isnan(b) || b > a ? b : a;
}

static void add_chunk(struct distance *d, const float *a, const float *b, int64_t n)
{
    d->same_bits = d->same_bits && memcmp(a, b, (size_t)n * sizeof *a) == 0;
    for (int64_t i = 0; i < n; i++) {
        const double difference = a[i] == b[i] ? 0 : fabs((double)b[i] - (double)a[i]);
        d->largest = larger(d->largest, difference);
        d->squares += difference * difference;
        d->of_a += (double)a[i] * (double)a[i];
    }
}

static enum dpt_status compare_tensor(struct sides *s, const struct dpt_safetensors_entry *entry,
                                      struct dpt_err *err)
{
    const struct dpt_checkpoint_tensor tensor = tensor_of(entry);
    const int64_t numel = (entry->end - entry->begin) / (int64_t)sizeof(float);
    struct distance d = {.same_bits = true};
    for (int64_t at = 0; at < numel; at += CHUNK) {
        const int64_t end = at + CHUNK < numel ? at + CHUNK : numel;
        const struct dpt_checkpoint_piece of_a = {.first = at, .end = end, .param = s->of_a},
                                          of_b = {.first = at, .end = end, .param = s->of_b};
        DPT_TRY(dpt_checkpoint_read_pieces(s->a, &tensor, &of_a, 1, err));
        DPT_TRY(dpt_checkpoint_read_pieces(s->b, &tensor, &of_b, 1, err));
        add_chunk(&d, s->of_a, s->of_b, end - at);
    }
    s->found.equal += d.same_bits;
    s->found.other += !d.same_bits;
    if (!d.same_bits && d.of_a != 0)
        (void)printf("%-48s  differs by %.3g at most, %.3g of its norm\n", entry->name, d.largest,
                     fabs(sqrt(d.squares / d.of_a))); /* no sign of a NaN */
    else if (!d.same_bits)
        (void)printf("%-48s  differs by %.3g at most, was zero\n", entry->name, d.largest);
    return DPT_OK;
}

static enum dpt_status compare(struct sides *s, struct dpt_err *err)
{
    for (int i = 0; i < s->a->n_tensors; i++) {
        const struct dpt_tensor_at *a = &s->a->tensors[i];
        if (!is_param(a))
            continue;
        const struct dpt_tensor_at *b = find(s->b, a->entry->name);
        if (b && same_shape(a->entry, b->entry)) {
            DPT_TRY(compare_tensor(s, a->entry, err));
            continue;
        }
        s->found.apart++;
        (void)printf("%-48s  %s\n", a->entry->name,
                     b ? "has another shape in the second" : "is only in the first");
    }
    for (int i = 0; i < s->b->n_tensors; i++) {
        const struct dpt_tensor_at *b = &s->b->tensors[i];
        if (!is_param(b) || find(s->a, b->entry->name))
            continue;
        s->found.apart++;
        (void)printf("%-48s  is only in the second\n", b->entry->name);
    }
    return DPT_OK;
}

enum dpt_status dpt_ckpt_diff(const char *a, const char *b, struct dpt_ckpt_difference *ret,
                              struct dpt_err *err)
{
    struct sides s = {0};
    enum dpt_status status = dpt_ckpt_open(a, &s.a, err);
    if (status == DPT_OK)
        status = dpt_ckpt_open(b, &s.b, err);
    if (status != DPT_OK)
        goto out;
    s.of_a = malloc(CHUNK * sizeof *s.of_a);
    s.of_b = malloc(CHUNK * sizeof *s.of_b);
    if (!s.of_a || !s.of_b) {
        status = dpt_fail(err, DPT_ENOMEM, "room for two parts of a tensor: out of memory");
        goto out;
    }
    status = compare(&s, err);
    if (status == DPT_OK)
        *ret = s.found;
out:
    free(s.of_a);
    free(s.of_b);
    dpt_checkpoint_close(&s.a);
    dpt_checkpoint_close(&s.b);
    return status;
}
