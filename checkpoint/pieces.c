/* Cuts ranges of a flat vector into pieces of tensors, and divides pieces among writers that hold
 * the same ones (checkpoint.h). */
#include "checkpoint/checkpoint.h"

#include "checkpoint/layout/layout.h"

void dpt_checkpoint_whole_tensors(const struct dpt_checkpoint_tensor *tensors, int n,
                                  struct dpt_checkpoint_piece *ret)
{
    for (int i = 0; i < n; i++)
        ret[i] = (struct dpt_checkpoint_piece){.tensor = i,
                                               .end = dpt_checkpoint_numel(&tensors[i]),
                                               .param = tensors[i].param,
                                               .m = tensors[i].m,
                                               .v = tensors[i].v};
}

int dpt_checkpoint_cut(const struct dpt_checkpoint_vector *vector,
                       const struct dpt_checkpoint_range *ranges, int n_ranges,
                       struct dpt_checkpoint_piece *ret, int max)
{
    int n = 0;
    for (int r = 0, i = 0; r < n_ranges && i < vector->n;) {
        const int64_t first = vector->offset[i];
        const struct dpt_checkpoint_range *range = &ranges[r];
        const struct dpt_interval tensor = {first,
                                            first + dpt_checkpoint_numel(&vector->tensors[i])};
        const struct dpt_interval both =
            dpt_interval_intersect((struct dpt_interval){range->first, range->end}, tensor);
        const int64_t skip = both.first - range->first;
        if (both.first < both.end && n++ < max)
            ret[n - 1] =
                (struct dpt_checkpoint_piece){.tensor = i,
                                              .first = both.first - tensor.first,
                                              .end = both.end - tensor.first,
                                              .param = range->param ? range->param + skip : NULL,
                                              .m = range->m ? range->m + skip : NULL,
                                              .v = range->v ? range->v + skip : NULL};
        if (range->end <= tensor.end)
            r++;
        else
            i++;
    }
    return n;
}

/* Where part `part` of `n_parts` of the pieces begins: a piece and an element of its tensor,
 * rounded down to the first element of a block of the weights hash. */
struct cut {
    int piece;
    int64_t element;
};

static struct cut cut_at(const struct dpt_checkpoint_piece *pieces, int n, int64_t total, int part,
                         int n_parts)
{
    int64_t left = total / n_parts * part + total % n_parts * part / n_parts;
    int i = 0;
    while (i < n && left >= pieces[i].end - pieces[i].first) {
        left -= pieces[i].end - pieces[i].first;
        i++;
    }
    if (i == n)
        return (struct cut){n, 0};
    int64_t element = pieces[i].first + left;
    element -= element % DPT_WEIGHTS_HASH_BLOCK;
    return (struct cut){i, element > pieces[i].first ? element : pieces[i].first};
}

int dpt_checkpoint_divide(const struct dpt_checkpoint_piece *pieces, int n, int replica,
                          int n_replicas, struct dpt_checkpoint_piece *ret)
{
    DPT_ASSERT(replica >= 0 && replica < n_replicas);
    int64_t total = 0;
    int n_ret = 0;
    for (int i = 0; i < n; i++)
        total += pieces[i].end - pieces[i].first;
    const struct cut from = cut_at(pieces, n, total, replica, n_replicas);
    const struct cut to = cut_at(pieces, n, total, replica + 1, n_replicas);
    for (int i = from.piece; i < n && i <= to.piece; i++) {
        struct dpt_checkpoint_piece piece = pieces[i];
        const int64_t skip = i == from.piece ? from.element - piece.first : 0;
        if (i == to.piece)
            piece.end = to.element;
        piece.first += skip;
        if (piece.first >= piece.end)
            continue;
        piece.param = piece.param ? piece.param + skip : NULL;
        piece.m = piece.m ? piece.m + skip : NULL;
        piece.v = piece.v ? piece.v + skip : NULL;
        ret[n_ret++] = piece;
    }
    return n_ret;
}
