/* Patterns of collective operations (pattern.h). */
#include "worker/plan/pattern.h"

#include "worker/plan/reduce_transfers.h"

#include <stdlib.h>
#include <string.h>

enum { PART_GRID = 16 };

static const char *const collective_names[DPT_COLLECTIVE_COUNT] = {
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "send_recv"};
static const char *const algorithm_names[DPT_ALGORITHM_COUNT] = {"direct", "ring"};

const char *dpt_collective_name(enum dpt_collective collective)
{
    return collective_names[collective];
}

const char *dpt_algorithm_name(enum dpt_algorithm algorithm)
{
    return algorithm_names[algorithm];
}

/* ---- the list of moves ---- */

/* A list that is written twice: first only counted (both arrays NULL), then filled. */
struct move_list {
    const struct dpt_pattern_spec *spec;
    const struct dpt_world *world;
    struct dpt_move *moves;
    int *first_move;
    int n_moves, n_steps;
};

static void add_move(struct move_list *list, struct dpt_move move)
{
    const int rank = list->spec->rank;
    if (list->spec->of_rank && move.from != rank && move.to != rank)
        return;
    if (list->moves)
        list->moves[list->n_moves] = move;
    list->n_moves++;
}

static void end_step(struct move_list *list)
{
    list->n_steps++;
    if (list->first_move)
        list->first_move[list->n_steps] = list->n_moves;
}

/* The rank at a position, counted around the ring. */
static int ring_rank(const struct dpt_world *world, int position)
{
    const int n = world->size;
    return world->rank_of_position[(position % n + n) % n];
}

/* In step s position p sends the chunk of position p - s - lag. So what arrives in a step is sent
 * on in the next one. */
static void list_ring(struct move_list *list, int lag, bool add)
{
    const struct dpt_world *world = list->world;
    for (int s = 0; s < world->size - 1; s++) {
        for (int p = 0; p < world->size; p++)
            add_move(list, (struct dpt_move){.from = ring_rank(world, p),
                                             .to = ring_rank(world, p + 1),
                                             .chunk = ring_rank(world, p - s - lag),
                                             .add = add});
        end_step(list);
    }
}

static void list_ring_broadcast(struct move_list *list, int root)
{
    const struct dpt_world *world = list->world;
    const int first = dpt_world_position(world, root);
    for (int s = 0; s < world->size - 1; s++) {
        add_move(list, (struct dpt_move){.from = ring_rank(world, first + s),
                                         .to = ring_rank(world, first + s + 1)});
        end_step(list);
    }
}

static void list_send_recv(struct move_list *list)
{
    const struct dpt_world *world = list->world;
    for (int p = 0; p < world->size; p++)
        add_move(list,
                 (struct dpt_move){.from = ring_rank(world, p), .to = ring_rank(world, p + 1)});
    end_step(list);
}

/* Each rank begins with its successor, so that not all send to one rank first. */
static void list_direct_gather(struct move_list *list)
{
    const struct dpt_world *world = list->world;
    for (int i = 1; i < world->size; i++)
        for (int p = 0; p < world->size; p++)
            add_move(list, (struct dpt_move){.from = ring_rank(world, p),
                                             .to = ring_rank(world, p + i),
                                             .chunk = ring_rank(world, p)});
    end_step(list);
}

static void list_direct_broadcast(struct move_list *list, int root)
{
    const struct dpt_world *world = list->world;
    const int first = dpt_world_position(world, root);
    for (int i = 1; i < world->size; i++)
        add_move(list, (struct dpt_move){.from = root, .to = ring_rank(world, first + i)});
    end_step(list);
}

/* A stage of the canonical reduction (reduce_transfers.h). Where every sum is at its place there is
 * no step.
 */
static void list_stage(struct move_list *list, const struct dpt_transfer *transfers, int n)
{
    bool moves = false;
    for (int i = 0; i < n; i++) {
        if (transfers[i].from == transfers[i].to)
            continue;
        moves = true;
        add_move(list, (struct dpt_move){.from = transfers[i].from,
                                         .to = transfers[i].to,
                                         .chunk = transfers[i].piece,
                                         .add = true,
                                         .lanes = transfers[i].node});
    }
    if (moves)
        end_step(list);
}

static enum dpt_status list_direct_reduce(struct move_list *list, struct dpt_err *err)
{
    const int n1 = dpt_reduce_stage1(list->world, NULL, 0),
              n2 = dpt_reduce_stage2(list->world, NULL, 0);
    struct dpt_transfer *transfers = calloc((size_t)(n1 > n2 ? n1 : n2), sizeof *transfers);
    if (!transfers)
        return dpt_fail_nomem(err, "transfers of a pattern");
    list_stage(list, transfers, dpt_reduce_stage1(list->world, transfers, n1));
    list_stage(list, transfers, dpt_reduce_stage2(list->world, transfers, n2));
    free(transfers);
    return DPT_OK;
}

static enum dpt_status list_direct(const struct dpt_pattern_spec *spec, struct move_list *list,
                                   struct dpt_err *err)
{
    if (spec->collective == DPT_COLLECTIVE_ALL_REDUCE ||
        spec->collective == DPT_COLLECTIVE_REDUCE_SCATTER)
        DPT_TRY(list_direct_reduce(list, err));
    if (spec->collective == DPT_COLLECTIVE_ALL_REDUCE ||
        spec->collective == DPT_COLLECTIVE_ALL_GATHER)
        list_direct_gather(list);
    if (spec->collective == DPT_COLLECTIVE_BROADCAST)
        list_direct_broadcast(list, spec->root);
    return DPT_OK;
}

static enum dpt_status list_moves(const struct dpt_pattern_spec *spec, struct move_list *list,
                                  struct dpt_err *err)
{
    if (spec->world->size == 1)
        return DPT_OK;
    if (spec->collective == DPT_COLLECTIVE_SEND_RECV) {
        list_send_recv(list);
        return DPT_OK;
    }
    if (spec->algorithm == DPT_ALGORITHM_DIRECT)
        return list_direct(spec, list, err);
    if (spec->collective == DPT_COLLECTIVE_BROADCAST)
        list_ring_broadcast(list, spec->root);
    if (spec->collective == DPT_COLLECTIVE_ALL_REDUCE ||
        spec->collective == DPT_COLLECTIVE_REDUCE_SCATTER)
        list_ring(list, 1, true);
    if (spec->collective == DPT_COLLECTIVE_ALL_REDUCE ||
        spec->collective == DPT_COLLECTIVE_ALL_GATHER)
        list_ring(list, 0, false);
    return DPT_OK;
}

enum dpt_status dpt_pattern_init(struct dpt_pattern *pattern, const struct dpt_pattern_spec *spec,
                                 struct dpt_err *err)
{
    const struct dpt_world *world = spec->world;
    const bool whole = spec->collective == DPT_COLLECTIVE_BROADCAST ||
                       spec->collective == DPT_COLLECTIVE_SEND_RECV;
    struct move_list list = {.spec = spec, .world = world};
    *pattern = (struct dpt_pattern){
        .spec = *spec, .n_ranks = world->size, .n_chunks = whole ? 1 : world->size};
    DPT_TRY(list_moves(spec, &list, err));
    pattern->moves = calloc((size_t)list.n_moves + 1, sizeof *pattern->moves);
    pattern->first_move = calloc((size_t)list.n_steps + 1, sizeof *pattern->first_move);
    if (!pattern->moves || !pattern->first_move)
        return dpt_fail_nomem(err, "a pattern of %d moves", list.n_moves);
    pattern->n_steps = list.n_steps;
    list = (struct move_list){
        .spec = spec, .world = world, .moves = pattern->moves, .first_move = pattern->first_move};
    return list_moves(spec, &list, err);
}

void dpt_pattern_fini(struct dpt_pattern *pattern)
{
    free(pattern->moves);
    free(pattern->first_move);
    *pattern = (struct dpt_pattern){.n_ranks = 0};
}

struct dpt_interval dpt_pattern_part(int64_t numel, int n_chunks, int chunk, int n_parts, int part)
{
    const struct dpt_interval whole = dpt_layout_piece(numel, 1, n_chunks, chunk);
    const struct dpt_interval cut =
        dpt_layout_piece(whole.end - whole.first, PART_GRID, n_parts, part);
    return (struct dpt_interval){whole.first + cut.first, whole.first + cut.end};
}

bool dpt_pattern_needs(const struct dpt_pattern *pattern, int rank, int chunk)
{
    return pattern->spec.collective != DPT_COLLECTIVE_REDUCE_SCATTER || rank == chunk;
}

int dpt_pattern_sends(const struct dpt_pattern *pattern, int rank)
{
    int n = 0;
    for (int i = 0; i < pattern->first_move[pattern->n_steps]; i++)
        n += pattern->moves[i].from == rank;
    return n;
}

/* ---- the state ---- */

static uint64_t lane_set(struct dpt_range lanes)
{
    uint64_t set = 0;
    DPT_ASSERT(lanes.end <= DPT_PATTERN_LANES_MAX);
    for (int lane = lanes.first; lane < lanes.end; lane++)
        set |= UINT64_C(1) << lane;
    return set;
}

/* The lanes that a rank adds itself. */
static uint64_t lanes_of_rank(const struct dpt_pattern *pattern, int rank)
{
    const struct dpt_world *world = pattern->spec.world;
    return lane_set(dpt_position_lanes(world->lanes, world->size, dpt_world_position(world, rank)));
}

static uint64_t held_at_start(const struct dpt_pattern *pattern, int rank, int chunk)
{
    const enum dpt_collective collective = pattern->spec.collective;
    if ((collective == DPT_COLLECTIVE_ALL_GATHER && rank != chunk) ||
        (collective == DPT_COLLECTIVE_BROADCAST && rank != pattern->spec.root))
        return 0;
    return lanes_of_rank(pattern, rank);
}

void dpt_pattern_start(const struct dpt_pattern *pattern, uint64_t *held)
{
    for (int rank = 0; rank < pattern->n_ranks; rank++)
        for (int chunk = 0; chunk < pattern->n_chunks; chunk++)
            held[rank * pattern->n_chunks + chunk] = held_at_start(pattern, rank, chunk);
}

bool dpt_pattern_apply(const struct dpt_pattern *pattern, int step, uint64_t *held,
                       uint64_t *before)
{
    memcpy(before, held, (size_t)pattern->n_ranks * (size_t)pattern->n_chunks * sizeof *before);
    for (int i = pattern->first_move[step]; i < pattern->first_move[step + 1]; i++) {
        const struct dpt_move *move = &pattern->moves[i];
        const uint64_t has = before[move->from * pattern->n_chunks + move->chunk];
        const uint64_t sent = move->lanes.end > move->lanes.first ? lane_set(move->lanes) : has;
        uint64_t *at = &held[move->to * pattern->n_chunks + move->chunk];
        if (sent == 0 || (sent & ~has) != 0 || (move->add && (*at & sent) != 0))
            return false;
        *at = move->add ? *at | sent : sent;
    }
    return true;
}

uint64_t dpt_pattern_goal(const struct dpt_pattern *pattern, int rank, int chunk)
{
    const struct dpt_world *world = pattern->spec.world;
    if (!dpt_pattern_needs(pattern, rank, chunk))
        return 0;
    switch (pattern->spec.collective) {
    case DPT_COLLECTIVE_ALL_REDUCE:
    case DPT_COLLECTIVE_REDUCE_SCATTER:
        return lane_set((struct dpt_range){0, world->lanes});
    case DPT_COLLECTIVE_ALL_GATHER:
        return lanes_of_rank(pattern, chunk);
    case DPT_COLLECTIVE_BROADCAST:
        return lanes_of_rank(pattern, pattern->spec.root);
    case DPT_COLLECTIVE_SEND_RECV:
        return lanes_of_rank(pattern, ring_rank(world, dpt_world_position(world, rank) - 1));
    case DPT_COLLECTIVE_COUNT:
        break;
    }
    return 0;
}
