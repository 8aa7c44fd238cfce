/* Shares, lanes and the fixed tree over lanes (lanes.h). */
#include "worker/plan/lanes.h"

#include "base/err.h"

struct dpt_range dpt_share(int total, int n, int i)
{
    DPT_ASSERT(total >= 0 && n >= 1 && i >= 0 && i < n);
    const int each = total / n;
    const int larger = total % n;
    const int first = i * each + (i < larger ? i : larger);
    return (struct dpt_range){first, first + each + (i < larger ? 1 : 0)};
}

int dpt_share_of(int total, int n, int x)
{
    DPT_ASSERT(n >= 1 && x >= 0 && x < total);
    const int each = total / n;
    const int larger = total % n;
    const int in_larger = larger * (each + 1);
    return x < in_larger ? x / (each + 1) : larger + (x - in_larger) / each;
}

struct dpt_range dpt_lane_slots(int slots, int lanes, int lane)
{
    return dpt_share(slots, lanes, lane);
}

struct dpt_range dpt_position_lanes(int lanes, int world, int position)
{
    return dpt_share(lanes, world, position);
}

int dpt_tree_split(struct dpt_range node)
{
    const int n = node.end - node.first;
    DPT_ASSERT(n >= 2);
    int left = 1;
    while (left * 2 < n)
        left *= 2;
    return node.first + left;
}

/* The child of `node` that holds `lane`. */
static struct dpt_range child_with(struct dpt_range node, int lane)
{
    const int split = dpt_tree_split(node);
    return lane < split ? (struct dpt_range){node.first, split}
                        : (struct dpt_range){split, node.end};
}

int dpt_tree_cover(int lanes, struct dpt_range run, struct dpt_range ret[DPT_COVER_MAX])
{
    DPT_ASSERT(lanes >= 1 && lanes <= DPT_LANES_MAX && run.first >= 0 && run.end <= lanes);
    int n = 0;
    for (int lane = run.first; lane < run.end; lane = ret[n - 1].end) {
        struct dpt_range at = {0, lanes};
        while (at.first < lane || at.end > run.end)
            at = child_with(at, lane);
        DPT_ASSERT(n < DPT_COVER_MAX);
        ret[n++] = at;
    }
    return n;
}

int dpt_tree_joins_at(int lanes, struct dpt_range run, struct dpt_range node)
{
    DPT_ASSERT(run.first <= node.first && node.end <= run.end);
    int joins = 0;
    for (struct dpt_range at = {0, lanes}; at.end - at.first > node.end - node.first;
         at = child_with(at, node.first))
        if (at.end == node.end && at.first >= run.first)
            joins++;
    return joins;
}

int dpt_tree_joins_after(int lanes, struct dpt_range run, int lane)
{
    return dpt_tree_joins_at(lanes, run, (struct dpt_range){lane, lane + 1});
}

int dpt_tree_buffers(int lanes, struct dpt_range run)
{
    int alive = 0, most = 0;
    for (int lane = run.first; lane < run.end; lane++) {
        alive++;
        if (alive > most)
            most = alive;
        alive -= dpt_tree_joins_after(lanes, run, lane);
    }
    return most;
}
