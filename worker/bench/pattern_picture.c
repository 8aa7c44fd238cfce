/* Strips of frames of a pattern's steps (pattern_picture.h). */
#include "worker/bench/pattern_picture.h"

#include "worker/bench/pattern_svg.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum {
    NODE_RADIUS = 15,
    LABELS_MAX = 16, /* more moves in a frame have no numbers: their colours suffice */
    TEXT_BYTES = 256,
    PATH_BYTES = 512,
    TREE_LANES_MIN = 8
};

/* The places of a frame. */
struct scene {
    const struct dpt_pattern *pattern;
    struct svg_strip strip;
    double cx, cy, radius, cell;
    double x[PATTERN_PICTURE_RANKS_MAX], y[PATTERN_PICTURE_RANKS_MAX];
};

/* Ranks are on a circle in the order of positions. Two are beside each other, four on the corners
 * of a square. */
static double angle_of(const struct dpt_pattern *pattern, int rank)
{
    const int n = pattern->n_ranks;
    const double pi = acos(-1);
    const double first = n == 2 ? pi : -pi / 2 - (n % 2 == 0 ? pi / n : 0);
    return first + 2 * pi * dpt_world_position(pattern->spec.world, rank) / n;
}

static void place_scene(const struct dpt_pattern *pattern, struct scene *scene)
{
    const int n = pattern->n_ranks;
    scene->pattern = pattern;
    scene->radius = n <= 4 ? 76 : 70 + 12 * (n - 4);
    scene->cell = n <= 6 ? 13 : n <= 10 ? 9 : 7;
    const double side = scene->cell * pattern->n_chunks;
    scene->strip.width = (int)(2 * (scene->radius + NODE_RADIUS + 14 + side / 2) + side / 2) + 20;
    scene->strip.height = (int)(2 * (scene->radius + NODE_RADIUS + 14 + scene->cell)) + 56;
    scene->strip.frames = pattern->n_steps + 1;
    scene->strip.per_row = 1080 / scene->strip.width > 0 ? 1080 / scene->strip.width : 1;
    scene->cx = scene->strip.width / 2.0;
    scene->cy = (scene->strip.height + 24) / 2.0;
    for (int rank = 0; rank < n; rank++) {
        const double angle = angle_of(pattern, rank);
        scene->x[rank] = scene->cx + scene->radius * cos(angle);
        scene->y[rank] = scene->cy + scene->radius * sin(angle);
    }
}

/* ---- a frame ---- */

static int lanes_in(uint64_t set)
{
    int n = 0;
    for (; set != 0; set &= set - 1)
        n++;
    return n;
}

/* The share of the sum that the rank has; of a chunk that is not added, all or nothing. */
static double share_of(const struct dpt_pattern *pattern, uint64_t held)
{
    const bool sums = pattern->spec.collective == DPT_COLLECTIVE_ALL_REDUCE ||
                      pattern->spec.collective == DPT_COLLECTIVE_REDUCE_SCATTER;
    return sums ? (double)lanes_in(held) / pattern->spec.world->lanes : held != 0;
}

/* A chunk of a rank, at its upper left corner. */
struct cell {
    double x, y;
    int chunk;
    uint64_t held;
    bool is_final;
};

static void write_cell(FILE *out, const struct scene *s, const struct cell *cell)
{
    const double filled = s->cell * share_of(s->pattern, cell->held), width = s->cell - 2;
    if (filled > 0)
        (void)fprintf(out,
                      "<rect fill=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>",
                      svg_color(cell->chunk), cell->x, cell->y + s->cell - filled, width, filled);
    if (cell->is_final)
        (void)fputs("<rect class=\"done\"", out);
    else
        (void)fprintf(out, "<rect class=\"cell\" stroke=\"%s\"", svg_color(cell->chunk));
    (void)fprintf(out, " x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>\n", cell->x,
                  cell->y, width, s->cell);
}

static void write_cells(FILE *out, const struct scene *s, const uint64_t *held, int rank)
{
    const struct dpt_pattern *pattern = s->pattern;
    const double angle = angle_of(pattern, rank), width = s->cell * pattern->n_chunks;
    const double x = s->x[rank] + cos(angle) * (NODE_RADIUS + 10 + width / 2) - width / 2,
                 y = s->y[rank] + sin(angle) * (NODE_RADIUS + 14 + s->cell / 2) - s->cell / 2;
    for (int chunk = 0; chunk < pattern->n_chunks; chunk++) {
        const uint64_t has = held[rank * pattern->n_chunks + chunk],
                       goal = dpt_pattern_goal(pattern, rank, chunk);
        write_cell(out, s,
                   &(struct cell){.x = x + chunk * s->cell,
                                  .y = y,
                                  .chunk = chunk,
                                  .held = has,
                                  .is_final = goal != 0 && has == goal});
    }
}

static void write_rank(FILE *out, const struct scene *s, const uint64_t *held, int rank)
{
    const struct dpt_world *world = s->pattern->spec.world;
    const int host = world->host_of_position[dpt_world_position(world, rank)];
    (void)fprintf(out,
                  "<circle class=\"node host%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"%d\"/>"
                  "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">r%d</text>\n",
                  host % 2, s->x[rank], s->y[rank], NODE_RADIUS, s->x[rank], s->y[rank] + 4.5,
                  rank);
    write_cells(out, s, held, rank);
}

struct point {
    double x, y;
};

/* The point at `distance` from `from` towards `to`. */
static struct point point_towards(struct point from, struct point to, double distance)
{
    const double dx = to.x - from.x, dy = to.y - from.y, length = sqrt(dx * dx + dy * dy);
    return (struct point){from.x + dx / length * distance, from.y + dy / length * distance};
}

static void write_number(FILE *out, struct point at, int chunk)
{
    (void)fprintf(out,
                  "<circle class=\"paper\" cx=\"%.1f\" cy=\"%.1f\" r=\"7\"/>"
                  "<text class=\"small\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%d</text>\n",
                  at.x, at.y, at.x, at.y + 3.5, chunk);
}

/* An arrow bent to one side, so that the two directions of a pair are apart. `turn` counts the
 * moves of one pair in one step. */
static void write_move(FILE *out, const struct scene *s, const struct dpt_move *move, int turn,
                       bool numbered)
{
    const struct point from = {s->x[move->from], s->y[move->from]},
                       to = {s->x[move->to], s->y[move->to]};
    const struct point half = {(from.x + to.x) / 2, (from.y + to.y) / 2};
    const struct point aside = {half.x - (to.y - from.y), half.y + (to.x - from.x)};
    const struct point bend = point_towards(half, aside, 13 + 15 * turn);
    const struct point begin = point_towards(from, bend, NODE_RADIUS + 2),
                       tip = point_towards(to, bend, NODE_RADIUS + 2),
                       neck = point_towards(to, bend, NODE_RADIUS + 10);
    const struct point across = {(tip.y - neck.y) / 2, (neck.x - tip.x) / 2};
    const char *color = svg_color(move->chunk);
    (void)fprintf(out,
                  "<path class=\"move%s\" stroke=\"%s\" d=\"M%.1f %.1f Q%.1f %.1f %.1f %.1f\"/>"
                  "<path fill=\"%s\" d=\"M%.1f %.1f L%.1f %.1f L%.1f %.1f z\"/>\n",
                  move->add ? "" : " copy", color, begin.x, begin.y, bend.x, bend.y, neck.x, neck.y,
                  color, tip.x, tip.y, neck.x + across.x, neck.y + across.y, neck.x - across.x,
                  neck.y - across.y);
    const double t = 0.36 + 0.2 * turn, u = 1 - t; /* not in the middle, where arrows cross */
    if (numbered)
        write_number(out,
                     (struct point){u * u * begin.x + 2 * u * t * bend.x + t * t * neck.x,
                                    u * u * begin.y + 2 * u * t * bend.y + t * t * neck.y},
                     move->chunk);
}

/* The number of moves before move `i` of its step between the same ranks. */
static int turn_of(const struct dpt_pattern *pattern, int step, int i)
{
    int turn = 0;
    for (int j = pattern->first_move[step]; j < i; j++)
        turn += pattern->moves[j].from == pattern->moves[i].from &&
                pattern->moves[j].to == pattern->moves[i].to;
    return turn;
}

static void write_moves(FILE *out, const struct scene *s, int step)
{
    const struct dpt_pattern *pattern = s->pattern;
    const int first = pattern->first_move[step], end = pattern->first_move[step + 1];
    const bool numbered = pattern->n_chunks > 1 && end - first <= LABELS_MAX;
    for (int i = first; i < end; i++)
        write_move(out, s, &pattern->moves[i], turn_of(pattern, step, i), numbered);
}

static void write_step(FILE *out, const struct scene *s, const uint64_t *held, int step)
{
    const struct dpt_pattern *pattern = s->pattern;
    char title[TEXT_BYTES] = "before";
    if (step >= 0)
        (void)snprintf(title, sizeof title, "step %d of %d: %s", step + 1, pattern->n_steps,
                       pattern->moves[pattern->first_move[step]].add ? "send and add"
                                                                     : "send and store");
    svg_frame_begin(out, &s->strip, step + 1, title);
    if (step >= 0)
        write_moves(out, s, step);
    for (int rank = 0; rank < pattern->n_ranks; rank++)
        write_rank(out, s, held, rank);
    svg_frame_end(out);
}

/* ---- a strip ---- */

static int count_hosts(const struct dpt_world *world)
{
    return world->host_of_position[world->size - 1] + 1;
}

static void describe_pattern(const struct dpt_pattern *pattern, char title[TEXT_BYTES],
                             char about[TEXT_BYTES])
{
    const int hosts = count_hosts(pattern->spec.world);
    int least = dpt_pattern_sends(pattern, 0), most = least;
    for (int rank = 1; rank < pattern->n_ranks; rank++) {
        const int sends = dpt_pattern_sends(pattern, rank);
        least = sends < least ? sends : least;
        most = sends > most ? sends : most;
    }
    (void)snprintf(title, TEXT_BYTES, "%s, %s: %d ranks%s",
                   dpt_collective_name(pattern->spec.collective),
                   dpt_algorithm_name(pattern->spec.algorithm), pattern->n_ranks,
                   hosts > 1 ? " on two hosts (solid and dashed nodes)" : "");
    const double times = (double)most / pattern->n_chunks;
    if (least == most)
        (void)snprintf(about, TEXT_BYTES,
                       "%d steps; each rank sends %d chunks, %.3g times the vector",
                       pattern->n_steps, most, times);
    else
        (void)snprintf(about, TEXT_BYTES,
                       "%d steps; a rank sends %d to %d chunks, at most %.3g times the vector",
                       pattern->n_steps, least, most, times);
}

enum dpt_status pattern_picture_write(FILE *out, const struct dpt_pattern *pattern,
                                      struct dpt_err *err)
{
    struct scene s = {.pattern = pattern};
    char title[TEXT_BYTES], about[TEXT_BYTES];
    const size_t cells = (size_t)pattern->n_ranks * (size_t)pattern->n_chunks;
    DPT_ASSERT(pattern->n_ranks <= PATTERN_PICTURE_RANKS_MAX);
    uint64_t *held = calloc(2 * cells, sizeof *held);
    if (!held)
        return dpt_fail_nomem(err, "a picture of %d ranks", pattern->n_ranks);
    place_scene(pattern, &s);
    describe_pattern(pattern, title, about);
    s.strip.title = title;
    s.strip.about = about;
    svg_begin(out, &s.strip);
    svg_legend(out, SVG_MARGIN, SVG_SAMPLE_SOLID, svg_color(0), "added");
    svg_legend(out, SVG_MARGIN + 110, SVG_SAMPLE_DASHED, svg_color(0), "stored");
    svg_legend(out, SVG_MARGIN + 220, SVG_SAMPLE_CELL, svg_color(0),
               "a chunk of a rank, filled by the share of the sum that it has; framed when final");
    dpt_pattern_start(pattern, held);
    write_step(out, &s, held, -1);
    for (int step = 0; step < pattern->n_steps; step++) {
        const bool possible = dpt_pattern_apply(pattern, step, held, held + cells);
        DPT_ASSERT(possible); /* every pattern is tested for every number of ranks */
        write_step(out, &s, held, step);
    }
    svg_end(out);
    free(held);
    return DPT_OK;
}

/* ---- all pictures ---- */

static enum dpt_status open_picture(const char *dir, const char *name, FILE **ret,
                                    struct dpt_err *err)
{
    char path[PATH_BYTES];
    if (snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path)
        return dpt_fail(err, DPT_EOVERFLOW, "the path of the folder '%.80s…' is too long", dir);
    *ret = fopen(path, "w");
    if (!*ret)
        return dpt_fail_errno(err, errno, "create '%s'", path);
    (void)printf("%s\n", path);
    return DPT_OK;
}

static enum dpt_status close_picture(FILE *out, const char *name, struct dpt_err *err)
{
    const bool good = ferror(out) == 0;
    if (fclose(out) != 0 || !good)
        return dpt_fail_errno(err, errno, "write '%s'", name);
    return DPT_OK;
}

/* A pattern of `n_ranks` ranks with one lane each. */
static enum dpt_status write_one(const char *dir, enum dpt_collective collective,
                                 enum dpt_algorithm algorithm, int n_ranks, int hosts,
                                 struct dpt_err *err)
{
    int ranks[PATTERN_PICTURE_RANKS_MAX], host_of[PATTERN_PICTURE_RANKS_MAX];
    char name[TEXT_BYTES];
    struct dpt_pattern pattern;
    FILE *out = NULL;
    for (int i = 0; i < n_ranks; i++) {
        ranks[i] = i;
        host_of[i] = dpt_share_of(n_ranks, hosts, i);
    }
    const struct dpt_world world = {
        .lanes = n_ranks, .size = n_ranks, .rank_of_position = ranks, .host_of_position = host_of};
    (void)snprintf(name, sizeof name, "%s-%s%s.svg", dpt_collective_name(collective),
                   dpt_algorithm_name(algorithm), hosts > 1 ? "-hosts" : "");
    enum dpt_status status =
        dpt_pattern_init(&pattern,
                         &(struct dpt_pattern_spec){
                             .collective = collective, .algorithm = algorithm, .world = &world},
                         err);
    if (status == DPT_OK)
        status = open_picture(dir, name, &out, err);
    if (status == DPT_OK) {
        status = pattern_picture_write(out, &pattern, err);
        const enum dpt_status closed = close_picture(out, name, status == DPT_OK ? err : NULL);
        status = status == DPT_OK ? closed : status;
    }
    dpt_pattern_fini(&pattern);
    return status;
}

static enum dpt_status write_tree(const char *dir, int n_ranks, struct dpt_err *err)
{
    static const char name[] = "lane-tree.svg";
    FILE *out = NULL;
    DPT_TRY(open_picture(dir, name, &out, err));
    lane_tree_picture_write(out, n_ranks > TREE_LANES_MIN ? n_ranks : TREE_LANES_MIN, n_ranks);
    return close_picture(out, name, err);
}

enum dpt_status pattern_pictures_write(const char *dir, int n_ranks, struct dpt_err *err)
{
    if (mkdir(dir, 0777) != 0 && errno != EEXIST)
        return dpt_fail_errno(err, errno, "create the folder '%s'", dir);
    for (int c = 0; c < DPT_COLLECTIVE_COUNT; c++)
        for (int a = 0; a < DPT_ALGORITHM_COUNT; a++)
            if (c != DPT_COLLECTIVE_SEND_RECV || a == DPT_ALGORITHM_DIRECT)
                DPT_TRY(
                    write_one(dir, (enum dpt_collective)c, (enum dpt_algorithm)a, n_ranks, 1, err));
    if (n_ranks > 2)
        DPT_TRY(write_one(dir, DPT_COLLECTIVE_ALL_REDUCE, DPT_ALGORITHM_DIRECT, n_ranks, 2, err));
    return write_tree(dir, n_ranks, err);
}
