/* The picture of the lanes' tree (pattern_picture.h). */
#include "worker/bench/pattern_picture.h"
#include "worker/bench/pattern_svg.h"
#include "worker/plan/lanes.h"

#include <stdio.h>

enum {
    LANE_GAP = 40,
    LEVEL_GAP = 46,
    FRAME_TOP = 60,
    FRAME_SIDE = 34,
    RADIUS = 12,
    FRAMES = 3,
    ROW_LANES_MAX = 8
};

struct tree_scene {
    int lanes, n_ranks;
    struct svg_strip strip;
    int depth; /* levels above the lanes */
};

static int depth_of(struct dpt_range node)
{
    if (node.end - node.first == 1)
        return 0;
    const int split = dpt_tree_split(node);
    const int left = depth_of((struct dpt_range){node.first, split}),
              right = depth_of((struct dpt_range){split, node.end});
    return 1 + (left > right ? left : right);
}

/* The rank that has all lanes of a node; -1: several ranks have them. */
static int rank_of_node(const struct tree_scene *s, struct dpt_range node)
{
    const int first = dpt_share_of(s->lanes, s->n_ranks, node.first);
    return first == dpt_share_of(s->lanes, s->n_ranks, node.end - 1) ? first : -1;
}

static double node_x(struct dpt_range node)
{
    return FRAME_SIDE + (node.first + node.end - 1) / 2.0 * LANE_GAP;
}

static double node_y(const struct tree_scene *s, struct dpt_range node)
{
    return FRAME_TOP + (s->depth - depth_of(node)) * LEVEL_GAP;
}

/* Frame 0 has the sums of lanes, frame 1 also those that a rank joins alone, frame 2 all. */
static bool is_there(const struct tree_scene *s, struct dpt_range node, int frame)
{
    return frame == 2 || node.end - node.first == 1 || (frame == 1 && rank_of_node(s, node) >= 0);
}

static void write_node(FILE *out, const struct tree_scene *s, struct dpt_range node, int frame)
{
    const double x = node_x(node), y = node_y(s, node);
    const int rank = rank_of_node(s, node);
    if (is_there(s, node, frame))
        (void)fprintf(out, "<circle class=\"sum\" fill=\"%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"%d\"/>\n",
                      rank >= 0 ? svg_color(rank) : "#8a8f98", x, y, RADIUS);
    else
        (void)fprintf(out, "<circle class=\"node\" cx=\"%.1f\" cy=\"%.1f\" r=\"%d\"/>\n", x, y,
                      RADIUS - 4);
    if (node.end - node.first == 1)
        (void)fprintf(out,
                      "<text class=\"small\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">"
                      "lane %d</text>\n",
                      x, y + RADIUS + 13, node.first);
}

/* At most DPT_TREE_DEPTH_MAX levels deep. */
static void write_subtree(FILE *out, const struct tree_scene *s, struct dpt_range node, int frame)
{
    if (node.end - node.first > 1) {
        const int split = dpt_tree_split(node);
        const struct dpt_range children[] = {{node.first, split}, {split, node.end}};
        for (int i = 0; i < 2; i++) {
            (void)fprintf(out, "<path class=\"edge\" d=\"M%.1f %.1f L%.1f %.1f\"/>\n",
                          node_x(children[i]), node_y(s, children[i]), node_x(node),
                          node_y(s, node));
            write_subtree(out, s, children[i], frame);
        }
    }
    write_node(out, s, node, frame);
}

void lane_tree_picture_write(FILE *out, int lanes, int n_ranks)
{
    static const char *const titles[FRAMES] = {"1. each rank adds the slots of its lanes",
                                               "2. each rank joins whole subtrees of its lanes",
                                               "3. the owner of a piece joins the ranks' sums"};
    char title[128];
    struct tree_scene s = {.lanes = lanes, .n_ranks = n_ranks};
    const struct dpt_range root = {0, lanes};
    (void)snprintf(title, sizeof title, "the tree of %d lanes on %d ranks", lanes, n_ranks);
    s.depth = depth_of(root);
    s.strip = (struct svg_strip){
        .title = title,
        .about = "The shape depends on the number of lanes alone, so every world has the same sum.",
        .frames = FRAMES,
        .per_row = lanes <= ROW_LANES_MAX ? FRAMES : 1,
        .width = 2 * FRAME_SIDE + (lanes - 1) * LANE_GAP + 12,
        .height = FRAME_TOP + s.depth * LEVEL_GAP + 48};
    svg_begin(out, &s.strip);
    for (int rank = 0; rank < n_ranks; rank++) {
        char name[16];
        (void)snprintf(name, sizeof name, "r%d", rank);
        svg_legend(out, SVG_MARGIN + rank * 64 - 10, SVG_SAMPLE_NODE, svg_color(rank), name);
    }
    svg_legend(out, SVG_MARGIN + n_ranks * 64 - 10, SVG_SAMPLE_NODE, "#8a8f98",
               "the piece's owner");
    for (int frame = 0; frame < FRAMES; frame++) {
        svg_frame_begin(out, &s.strip, frame, titles[frame]);
        write_subtree(out, &s, root, frame);
        svg_frame_end(out);
    }
    svg_end(out);
}
