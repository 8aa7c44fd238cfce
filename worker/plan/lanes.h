/* Slots, lanes and the fixed tree in which a step's gradient is summed under `accumulate: local`.
 *
 * A step has G slots, which are divided evenly and in order among L lanes. A lane's slots are added
 * one after another; lanes are added in one binary tree that depends on L alone: the node over
 * lanes [a, b) splits at a + (the largest power of two below b - a). Plan positions own runs of
 * lanes, assigned evenly and in order; each adds the maximal whole subtrees it owns. Everything
 * here is pure index math. */
#ifndef DPT_WORKER_PLAN_LANES_H
#define DPT_WORKER_PLAN_LANES_H

enum { DPT_LANES_MAX = 4096, DPT_TREE_DEPTH_MAX = 13, DPT_COVER_MAX = 2 * DPT_TREE_DEPTH_MAX };

struct dpt_range {
    int first, end; /* [first, end) */
};

/* Share i of `n` equal shares of `total` items in order. The sizes of shares differ by at most one;
 * the larger shares come first. */
struct dpt_range dpt_share(int total, int n, int i);

/* The share that has item `x`. */
int dpt_share_of(int total, int n, int x);

/* Slots of lane `lane`; lanes of plan position `position` of `world`. (Both are dpt_share.) */
struct dpt_range dpt_lane_slots(int slots, int lanes, int lane);
struct dpt_range dpt_position_lanes(int lanes, int world, int position);

/* The lane at which tree node `node` splits; node.end - node.first >= 2. */
int dpt_tree_split(struct dpt_range node);

/* The maximal nodes of the tree over [0, lanes) inside `run`, in lane order; returns their number
 * (0 for an empty run). */
int dpt_tree_cover(int lanes, struct dpt_range run, struct dpt_range ret[DPT_COVER_MAX]);

/* The number of joins after lane `lane` of `run` is complete. A rank completes its lanes in order
 * and keeps their sums on a stack: it pushes the lane's buffer, and then `joins` times adds the top
 * into the buffer below it and drops the top. At the end of the run the stack has the sums of
 * dpt_tree_cover(run), bottom to top. */
int dpt_tree_joins_after(int lanes, struct dpt_range run, int lane);

/* The same for sums of whole nodes that arrive in lane order at a gatherer or an owner: the number
 * of joins after `node`, a node of the tree inside `run`, is pushed. */
int dpt_tree_joins_at(int lanes, struct dpt_range run, struct dpt_range node);

/* The highest number of buffers in use at once for `run`, including the buffer that is being
 * filled. */
int dpt_tree_buffers(int lanes, struct dpt_range run);

#endif
