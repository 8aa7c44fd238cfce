/* Slots, lanes and the fixed tree in which a step's gradient is summed under `accumulate: local`.
 *
 * A step has G slots, shared evenly and in order to L lanes. A lane's slots are added one after
 * another; lanes are added in one binary tree that depends on L alone: the node over lanes [a, b)
 * splits at a + (the largest power of two below b - a). Plan positions own runs of lanes, assigned
 * evenly and in order; each adds the maximal whole subtrees it owns. Everything here is pure index
 * math. */
#ifndef DPT_WORKER_PLAN_LANES_H
#define DPT_WORKER_PLAN_LANES_H

enum { DPT_LANES_MAX = 4096, DPT_TREE_DEPTH_MAX = 13, DPT_COVER_MAX = 2 * DPT_TREE_DEPTH_MAX };

struct dpt_range {
    int first, end; /* [first, end) */
};

/* Item i of `n` equal shares of `total` things in order: shares differ by at most one, the larger
 * ones first. */
struct dpt_range dpt_share(int total, int n, int i);

/* Which share holds thing `x`. */
int dpt_share_of(int total, int n, int x);

/* Slots of lane `lane`; lanes of plan position `position` of `world`. (Both are dpt_share.) */
struct dpt_range dpt_lane_slots(int slots, int lanes, int lane);
struct dpt_range dpt_position_lanes(int lanes, int world, int position);

/* Where the tree node over `node` splits; node.end - node.first >= 2. */
int dpt_tree_split(struct dpt_range node);

/* The maximal nodes of the tree over [0, lanes) inside `run`, in lane order; returns their number
 * (0 for an empty run). */
int dpt_tree_cover(int lanes, struct dpt_range run, struct dpt_range ret[DPT_COVER_MAX]);

/* The sums a rank makes while its lanes complete in order. After lane `lane` of `run` is complete,
 * the steps say which partial sums to join: push the lane's buffer; then `joins` times: add the top
 * into the one below it and drop the top. What is left at the end of the run is
 * dpt_tree_cover(run), bottom to top. */
int dpt_tree_joins_after(int lanes, struct dpt_range run, int lane);

/* The same for sums that arrive as whole nodes in lane order (what a gatherer or owner receives):
 * how many joins follow after `node`, a node of the tree inside `run`, has been pushed. */
int dpt_tree_joins_at(int lanes, struct dpt_range run, struct dpt_range node);

/* Highest number of buffers alive at once for `run`, the one being filled included. */
int dpt_tree_buffers(int lanes, struct dpt_range run);

#endif
