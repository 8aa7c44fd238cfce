/* The transfers of partial sums of a bucket and their order of addition: canonical reduce-scatter
 * by direct exchange, then an all-gather, host by host.
 *
 * A bucket (a range of blocks of the flat gradient) is cut into one piece a rank, in whole blocks,
 * nearly equal (dpt_layout_piece). In the end a piece's owner has the piece's sum in tree order.
 * First each host sends a piece's sums of its own lanes to one of its ranks: the owner, if it is on
 * this host, else the host's rank number `piece mod ranks of the host`. That rank joins them to the
 * host's maximal subtrees, and only these are sent between hosts to the owner. Pure. */
#ifndef DPT_WORKER_PLAN_REDUCE_TRANSFERS_H
#define DPT_WORKER_PLAN_REDUCE_TRANSFERS_H

#include "worker/plan/world.h"

#include <stdbool.h>
#include <stdint.h>

/* One partial sum in flight: subtree `node` of piece `piece`, from rank `from` to rank `to`. from
 * == to: the sum is already at its place. */
struct dpt_transfer {
    int piece; /* == rank of its owner */
    int from, to;
    struct dpt_range node;
};

/* Stage 1 (inside hosts) and stage 2 (between hosts) of the reduction, all pieces, in an order that
 * is the same on every rank: by piece, then by lane. So the sums of one piece arrive at one rank in
 * tree order (see dpt_tree_joins_at). Returns the number of transfers and writes the first `max` of
 * them to the caller's array; max 0 only counts. Stage 2 has transfers only if there are several
 * hosts. */
int dpt_reduce_stage1(const struct dpt_world *world, struct dpt_transfer *ret, int max);
int dpt_reduce_stage2(const struct dpt_world *world, struct dpt_transfer *ret, int max);

/* The number of lane buffers that a rank needs: the depth of the stack of its own lanes. With
 * several hosts it is at least the number of subtrees of its host's lanes. */
int dpt_reduce_buffers(const struct dpt_world *world, int position);

/* Bytes that a rank sends in one reduction of `numel` f32 elements: in both stages and, with
 * `gather`, in the all-gather. An element has `far_bytes` bytes between hosts, else four. */
int64_t dpt_reduce_bytes_sent(const struct dpt_world *world, int64_t numel, int64_t block, int rank,
                              bool gather, int far_bytes);

#endif
