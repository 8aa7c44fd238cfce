/* dpt-ckpt diff (diff.h). */
#include "worker/ckpt/diff.h"

#include "checkpoint/reader.h"
#include "worker/ckpt/open.h"
#include "worker/weights/foreign_tensor.h"
#include "worker/weights/published.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 1 << 20 }; /* number of elements read at once */

/* One side of the comparison: a checkpoint or a folder. */
struct side {
    struct dpt_checkpoint *checkpoint;
    struct dpt_published *folder;
    float *values; /* [CHUNK] */
};

struct sides {
    struct side a, b;
    struct dpt_ckpt_difference found;
};

struct distance {
    bool same_bits;
    /* Sums of squares: of the difference, and of the tensor in `a`. */
    double largest, squares, of_a;
};

/* ---- a side ---- */

static enum dpt_status open_side(const char *path, struct side *side, struct dpt_err *err)
{
    side->values = malloc(CHUNK * sizeof *side->values);
    if (!side->values)
        return dpt_fail_nomem(err, "room for a part of a tensor");
    if (dpt_ckpt_is_folder(path))
        return dpt_published_open(path, NULL, &side->folder, err);
    const enum dpt_status status = dpt_ckpt_open(path, &side->checkpoint, err);
    if (status != DPT_ENOENT || dpt_ckpt_names_one(path))
        return status;
    return dpt_fail(
        err, DPT_ENOENT,
        "'%s' has neither a complete checkpoint nor the weights of a Hugging Face folder "
        "(model.safetensors, or its index and shards) nor adapters (" DPT_NAME_ADAPTER_CONFIG
        ", " DPT_NAME_ADAPTERS ")",
        path);
}

static void close_side(struct side *side)
{
    free(side->values);
    dpt_published_close(&side->folder);
    dpt_checkpoint_close(&side->checkpoint);
}

static int n_tensors(const struct side *side)
{
    return side->folder ? dpt_published_n_tensors(side->folder) : side->checkpoint->n_tensors;
}

/* Tensor `i` of the side; NULL: it is not a master. */
static const struct dpt_safetensors_entry *tensor_at(const struct side *side, int i)
{
    if (side->folder)
        return dpt_published_tensor(side->folder, i);
    const struct dpt_tensor_at *at = &side->checkpoint->tensors[i];
    return at->kind == DPT_KIND_PARAM ? at->entry : NULL;
}

/* The tensor's name in the base model, for names of weights and of adapters. Folders that hold only
 * the base model, and PEFT's files for it, lack the prefix "transformer." or "model.". */
static const char *base_name(const char *name)
{
    static const char peft[] = "base_model.model.";
    const size_t n = sizeof peft - 1;
    return dpt_foreign_tensor_base_name(strncmp(name, peft, n) == 0 ? name + n : name);
}

/* The index of the master with this name, else of a master with the same base name; -1: there is
 * none. */
static int find_master(const struct side *side, const char *name)
{
    int found = -1;
    for (int i = 0; i < n_tensors(side); i++) {
        const struct dpt_safetensors_entry *entry = tensor_at(side, i);
        if (entry && strcmp(entry->name, name) == 0)
            return i;
        if (entry && found < 0 && strcmp(base_name(entry->name), base_name(name)) == 0)
            found = i;
    }
    return found;
}

/* The index in `to` of the counterpart of tensor `i` of `from`; -1: `to` has none. Each tensor has
 * at most one counterpart, even if a side has both names. */
static int other_of(const struct side *from, int i, const struct side *to)
{
    const int other = find_master(to, tensor_at(from, i)->name);
    return other >= 0 && find_master(from, tensor_at(to, other)->name) == i ? other : -1;
}

/* Reads elements [first, end) of tensor `i` to side->values. */
static enum dpt_status read_side(struct side *side, int i, int64_t first, int64_t end,
                                 struct dpt_err *err)
{
    if (side->folder)
        return dpt_published_read_tensor(side->folder, i, first, end, side->values, err);
    const struct dpt_safetensors_entry *entry = tensor_at(side, i);
    struct dpt_checkpoint_tensor tensor = {.name = entry->name, .ndim = entry->ndim};
    memcpy(tensor.dim, entry->dim, sizeof tensor.dim);
    const struct dpt_checkpoint_piece piece = {.first = first, .end = end, .param = side->values};
    return dpt_checkpoint_read_pieces(side->checkpoint, &tensor, &piece, 1, err);
}

/* ---- comparing ---- */

static bool same_shape(const struct dpt_safetensors_entry *a, const struct dpt_safetensors_entry *b)
{
    return a->ndim == b->ndim && memcmp(a->dim, b->dim, (size_t)a->ndim * sizeof *a->dim) == 0;
}

static int64_t numel_of(const struct dpt_safetensors_entry *entry)
{
    int64_t n = 1;
    for (int d = 0; d < entry->ndim; d++)
        n *= entry->dim[d];
    return n;
}

/* NaN is larger than every number. */
static double larger_difference(double a, double b)
{
    return isnan(b) || b > a ? b : a;
}

static void add_chunk(struct distance *d, const float *a, const float *b, int64_t n)
{
    d->same_bits = d->same_bits && memcmp(a, b, (size_t)n * sizeof *a) == 0;
    for (int64_t i = 0; i < n; i++) {
        const double difference = a[i] == b[i] ? 0 : fabs((double)b[i] - (double)a[i]);
        d->largest = larger_difference(d->largest, difference);
        d->squares += difference * difference;
        d->of_a += (double)a[i] * (double)a[i];
    }
}

/* Compares tensor `a` of the first side with tensor `b` of the second. The two have the same base
 * name and shape. */
static enum dpt_status compare_tensor(struct sides *s, int a, int b, struct dpt_err *err)
{
    const struct dpt_safetensors_entry *entry = tensor_at(&s->a, a);
    const int64_t numel = numel_of(entry);
    struct distance d = {.same_bits = true};
    for (int64_t at = 0; at < numel; at += CHUNK) {
        const int64_t end = at + CHUNK < numel ? at + CHUNK : numel;
        DPT_TRY(read_side(&s->a, a, at, end, err));
        DPT_TRY(read_side(&s->b, b, at, end, err));
        add_chunk(&d, s->a.values, s->b.values, end - at);
    }
    s->found.equal += d.same_bits;
    s->found.other += !d.same_bits;
    if (!d.same_bits && d.of_a != 0)
        (void)printf("%-48s  differs by %.3g at most, %.3g of its norm\n", entry->name, d.largest,
                     fabs(sqrt(d.squares / d.of_a))); /* fabs removes the sign of a NaN */
    else if (!d.same_bits)
        (void)printf("%-48s  differs by %.3g at most, was zero\n", entry->name, d.largest);
    return DPT_OK;
}

static enum dpt_status compare_checkpoints(struct sides *s, struct dpt_err *err)
{
    for (int i = 0; i < n_tensors(&s->a); i++) {
        const struct dpt_safetensors_entry *entry = tensor_at(&s->a, i);
        const int b = entry ? other_of(&s->a, i, &s->b) : -1;
        if (!entry)
            continue;
        if (b >= 0 && same_shape(entry, tensor_at(&s->b, b))) {
            DPT_TRY(compare_tensor(s, i, b, err));
            continue;
        }
        s->found.apart++;
        (void)printf("%-48s  %s\n", entry->name,
                     b >= 0 ? "has another shape in the second" : "is only in the first");
    }
    for (int i = 0; i < n_tensors(&s->b); i++) {
        const struct dpt_safetensors_entry *entry = tensor_at(&s->b, i);
        if (!entry || other_of(&s->b, i, &s->a) >= 0)
            continue;
        s->found.apart++;
        (void)printf("%-48s  is only in the second\n", entry->name);
    }
    return DPT_OK;
}

enum dpt_status dpt_ckpt_diff(const char *a, const char *b, struct dpt_ckpt_difference *ret,
                              struct dpt_err *err)
{
    struct sides s = {0};
    enum dpt_status status = open_side(a, &s.a, err);
    if (status == DPT_OK)
        status = open_side(b, &s.b, err);
    if (status == DPT_OK)
        status = compare_checkpoints(&s, err);
    if (status == DPT_OK)
        *ret = s.found;
    close_side(&s.a);
    close_side(&s.b);
    return status;
}
