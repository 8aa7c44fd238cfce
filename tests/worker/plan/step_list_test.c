/* The lists of a step, carried out by simulated ranks in random interleavings: they end, weights
 * and gradients are where an action needs them, nothing in use is overwritten. */
#include "worker/plan/step_list.h"

#include "base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS_MAX = 8, UNITS_MAX = 8, BUFFERS_MAX = 16, SLOTS_MAX = 24, COPIES = 3, NOTHING = -1 };

struct world {
    int ranks, n_units, slots;
    int borrows[UNITS_MAX], parts[UNITS_MAX], cross_parts[UNITS_MAX];
    struct dpt_waves waves;
    struct dpt_step_spec spec[RANKS_MAX];
    struct dpt_step_list list[RANKS_MAX];
    int window;
};

/* One rank under way. */
struct rank {
    int at;     /* next action */
    int told;   /* actions done when the last FREE or REDUCE was: tasks know of no other */
    int posted; /* tasks */
    int weights[BUFFERS_MAX], gradients[BUFFERS_MAX]; /* the content of a buffer: a unit */
    int slot_of[BUFFERS_MAX];                         /* of a gradient: its slot */
    bool gathered[UNITS_MAX];                         /* ONCE */
    int place[UNITS_MAX];                             /* gradient buffer; NOTHING */
    int weights_at[UNITS_MAX];
    bool slot_done[SLOTS_MAX];
};

struct setting {
    int ranks, slots, lanes, n_units;
    bool tied;
    enum dpt_weights_plan weights;
    int gathered_max;
    bool prefetch, overlap, cross;
};

static void make_world(struct world *w, struct setting s)
{
    *w = (struct world){.ranks = s.ranks, .n_units = s.n_units, .slots = s.slots, .window = 4};
    w->waves = (struct dpt_waves){s.slots, s.lanes, {0, s.lanes}, s.ranks};
    for (int u = 0; u < s.n_units; u++) {
        w->borrows[u] = s.tied && u == s.n_units - 1 ? 0 : -1;
        w->parts[u] = 1 + u % 3;
        w->cross_parts[u] = 1 + u % 2;
    }
    for (int r = 0; r < s.ranks; r++) {
        struct dpt_err err;
        w->spec[r] = (struct dpt_step_spec){.n_units = s.n_units,
                                            .borrows = w->borrows,
                                            .assignment = dpt_waves_assign(&w->waves, r),
                                            .weights = s.weights,
                                            .gathered_max = s.gathered_max,
                                            .prefetch = s.prefetch,
                                            .overlap = s.overlap,
                                            .waves = &w->waves,
                                            .parts = w->parts,
                                            .cross_parts = s.cross ? w->cross_parts : NULL,
                                            .share = true,
                                            .copies = s.cross ? 0 : COPIES};
        assert_int_equal(dpt_step_list_init(&w->list[r], &w->spec[r], &err), DPT_OK);
    }
}

static void end_world(struct world *w)
{
    for (int r = 0; r < w->ranks; r++)
        dpt_step_list_fini(&w->list[r]);
}

/* A task is over when all ranks have posted it. */
static int finished(const struct world *w, const struct rank *ranks)
{
    int n = ranks[0].posted;
    for (int r = 1; r < w->ranks; r++)
        n = ranks[r].posted < n ? ranks[r].posted : n;
    return n;
}

static int count_before(const struct dpt_step_list *list, enum dpt_task_kind kind, int n)
{
    int found = 0;
    for (int i = 0; i < n; i++)
        found += list->tasks[i].kind == kind;
    return found;
}

static bool post_task(const struct world *w, struct rank *ranks, int r)
{
    struct rank *rank = &ranks[r];
    const struct dpt_step_list *list = &w->list[r];
    const int over = finished(w, ranks);
    if (rank->posted == list->n_tasks || rank->posted - over >= w->window)
        return false;
    const struct dpt_task *t = &list->tasks[rank->posted];
    if (t->actions > rank->told || t->scatters > count_before(list, DPT_TASK_SCATTER, over) ||
        t->crosses > count_before(list, DPT_TASK_CROSS, over))
        return false;
    if (t->kind == DPT_TASK_GATHER && t->buffer >= 0 && !t->idle) {
        rank->weights[t->buffer] = NOTHING; /* being written */
        for (int u = 0; u < w->n_units; u++)
            if (rank->weights_at[u] == t->buffer)
                rank->weights_at[u] = NOTHING;
    }
    if (t->kind == DPT_TASK_SCATTER && !t->idle) {
        assert_int_equal(rank->gradients[t->buffer], t->unit);
        const struct dpt_assignment *assignment = &w->spec[r].assignment;
        assert_int_equal(rank->slot_of[t->buffer],
                         assignment->first + t->wave * assignment->stride);
    }
    rank->posted++;
    return true;
}

static void use_unit(const struct world *w, const struct rank *rank, int r, int unit)
{
    if (w->spec[r].weights == DPT_WEIGHTS_ONCE)
        assert_true(rank->gathered[unit]);
    if (w->spec[r].weights == DPT_WEIGHTS_UNITS) {
        const int at = rank->weights_at[unit];
        assert_true(at >= 0 && at < BUFFERS_MAX);
        assert_int_equal(rank->weights[at], unit);
    }
}

/* One action of a rank's main thread; false: it must wait. */
static bool act_once(const struct world *w, struct rank *ranks, int r)
{
    struct rank *rank = &ranks[r];
    const struct dpt_step_list *list = &w->list[r];
    if (rank->at == list->n_actions)
        return false;
    const struct dpt_action *a = &list->actions[rank->at];
    if (a->kind == DPT_ACTION_REDUCE && rank->told <= rank->at) { /* notifies, and then waits */
        rank->told = rank->at + 1;
        return true;
    }
    if (a->n_tasks > 0 && a->first_task + a->n_tasks > finished(w, ranks))
        return false;
    for (int i = 0; i < a->n_tasks; i++)
        assert_int_equal(list->tasks[a->first_task + i].unit,
                         a->kind == DPT_ACTION_GATHER ? a->unit : list->tasks[a->first_task].unit);
    switch (a->kind) {
    case DPT_ACTION_GATHER:
        assert_int_equal(list->tasks[a->first_task].kind, DPT_TASK_GATHER);
        rank->gathered[a->unit] = true;
        if (a->buffer >= 0) {
            rank->weights[a->buffer] = a->unit;
            rank->weights_at[a->unit] = a->buffer;
        }
        break;
    case DPT_ACTION_RESERVE:
        for (int i = 0; i < a->n_tasks; i++)
            assert_int_equal(list->tasks[a->first_task + i].buffer, a->buffer);
        rank->gradients[a->buffer] = a->unit;
        rank->slot_of[a->buffer] = a->slot;
        rank->place[a->unit] = a->buffer;
        break;
    case DPT_ACTION_FORWARD:
    case DPT_ACTION_BACKWARD:
        use_unit(w, rank, r, a->unit);
        if (w->borrows[a->unit] >= 0)
            use_unit(w, rank, r, w->borrows[a->unit]);
        if (a->kind == DPT_ACTION_BACKWARD) {
            assert_int_equal(rank->gradients[rank->place[a->unit]], a->unit);
            if (w->borrows[a->unit] >= 0)
                assert_int_equal(rank->gradients[rank->place[w->borrows[a->unit]]],
                                 w->borrows[a->unit]);
        }
        break;
    case DPT_ACTION_END_SLOT:
        assert_false(rank->slot_done[a->slot]);
        rank->slot_done[a->slot] = true;
        break;
    default:
        break;
    }
    rank->at++;
    if (a->kind == DPT_ACTION_FREE)
        rank->told = rank->at;
    return true;
}

static void run_step_lists(const struct world *w, uint64_t seed)
{
    struct rank ranks[RANKS_MAX];
    memset(ranks, 0, sizeof ranks);
    for (int r = 0; r < w->ranks; r++) {
        memset(ranks[r].weights, NOTHING, sizeof ranks[r].weights);
        memset(ranks[r].gradients, NOTHING, sizeof ranks[r].gradients);
        memset(ranks[r].weights_at, NOTHING, sizeof ranks[r].weights_at);
        memset(ranks[r].place, NOTHING, sizeof ranks[r].place);
    }
    const struct dpt_rng_key key = dpt_rng_key(seed, DPT_RNG_TEST, 21, 0, 0);
    int stuck = 0;
    for (uint64_t i = 0; stuck < 2 * w->ranks; i++) {
        uint32_t draw[4];
        dpt_philox(key, i, draw);
        const int first = (int)(draw[0] % (uint32_t)(2 * w->ranks));
        stuck = 0;
        while (stuck < 2 * w->ranks) { /* the first of all threads, from here on, that can move */
            const int who = (first + stuck) % (2 * w->ranks);
            if (who % 2 ? post_task(w, ranks, who / 2) : act_once(w, ranks, who / 2))
                break;
            stuck++;
        }
    }
    bool done[SLOTS_MAX] = {false};
    for (int r = 0; r < w->ranks; r++) {
        assert_int_equal(ranks[r].at, w->list[r].n_actions); /* else it is a deadlock */
        assert_int_equal(ranks[r].posted, w->list[r].n_tasks);
        for (int s = 0; s < w->slots; s++) {
            assert_false(done[s] && ranks[r].slot_done[s]);
            done[s] = done[s] || ranks[r].slot_done[s];
        }
    }
    for (int s = 0; s < w->slots; s++)
        assert_true(done[s]);
}

static void same_tasks_everywhere(const struct world *w)
{
    for (int r = 1; r < w->ranks; r++) {
        assert_int_equal(w->list[r].n_tasks, w->list[0].n_tasks);
        for (int i = 0; i < w->list[0].n_tasks; i++) {
            const struct dpt_task *a = &w->list[0].tasks[i], *b = &w->list[r].tasks[i];
            assert_true(a->kind == b->kind && a->unit == b->unit && a->wave == b->wave &&
                        a->part == b->part && a->n_parts == b->n_parts &&
                        a->scatters == b->scatters && a->crosses == b->crosses);
            assert_int_equal(b->idle, b->kind != DPT_TASK_SHARE && b->kind != DPT_TASK_CROSS &&
                                          r >= dpt_waves_active(&w->waves, b->wave));
        }
    }
}

/* How many tasks of the kind there are up to the last of the unit. */
static int count_to_last(const struct dpt_step_list *list, enum dpt_task_kind kind, int unit)
{
    int last = 0;
    for (int i = 0; i < list->n_tasks; i++)
        if (list->tasks[i].kind == kind && list->tasks[i].unit == unit)
            last = i + 1;
    return count_before(list, kind, last);
}

static void every_part_is_scattered_once(const struct world *w, bool cross)
{
    const struct dpt_step_list *list = &w->list[0];
    int per_wave = 0, per_step = 0;
    for (int i = 0; i < list->n_tasks; i++) {
        const struct dpt_task *t = &list->tasks[i];
        const bool cut = t->kind == DPT_TASK_SCATTER || t->kind == DPT_TASK_CROSS;
        /* A unit's parts are adjacent; behind them are the parts made from its sums. */
        if (cut && t->part > 0)
            assert_true(list->tasks[i - 1].unit == t->unit && list->tasks[i - 1].kind == t->kind &&
                        list->tasks[i - 1].part == t->part - 1);
        if (t->kind == DPT_TASK_CROSS || t->kind == DPT_TASK_SHARE)
            assert_int_equal(t->scatters, count_to_last(list, DPT_TASK_SCATTER, t->unit));
        if (t->kind == DPT_TASK_SHARE)
            assert_int_equal(t->crosses, count_to_last(list, DPT_TASK_CROSS, t->unit));
    }
    for (int u = 0; u < w->n_units; u++) {
        per_wave += w->parts[u];
        per_step += w->cross_parts[u];
    }
    assert_int_equal(count_before(list, DPT_TASK_SCATTER, list->n_tasks),
                     per_wave * dpt_waves_count(&w->waves));
    assert_int_equal(count_before(list, DPT_TASK_CROSS, list->n_tasks), cross ? per_step : 0);
    assert_int_equal(count_before(list, DPT_TASK_SHARE, list->n_tasks), w->n_units);
    assert_int_equal(count_before(list, DPT_TASK_COPY, list->n_tasks),
                     cross ? 0 : COPIES * w->n_units);
}

static void lists_come_to_their_end(void **state)
{
    (void)state;
    uint64_t seed = 0;
    for (int ranks = 1; ranks <= RANKS_MAX; ranks++)
        for (int slots = ranks; slots <= 3 * ranks; slots += 1 + ranks / 2)
            for (int weights = DPT_WEIGHTS_HELD; weights <= DPT_WEIGHTS_UNITS; weights++)
                for (int variant = 0; variant < 8; variant++) {
                    const int gathered_max = 1 + variant / 2;
                    const bool cross = (variant + ranks) % 2 == 0;
                    struct world w;
                    make_world(&w, (struct setting){ranks, slots, 1 + (slots - 1) * (variant % 2),
                                                    4 + variant % 3, variant != 5,
                                                    (enum dpt_weights_plan)weights, gathered_max,
                                                    variant != 3 && variant != 6,
                                                    variant != 5 && variant != 6, cross});
                    same_tasks_everywhere(&w);
                    every_part_is_scattered_once(&w, cross);
                    run_step_lists(&w, ++seed);
                    end_world(&w);
                }
}

static int count_tasks(const struct dpt_step_list *list, enum dpt_task_kind kind, int unit)
{
    int n = 0;
    for (int i = 0; i < list->n_tasks; i++)
        n += list->tasks[i].kind == kind && (unit < 0 || list->tasks[i].unit == unit);
    return n;
}

/* What is in a buffer is not gathered again: two blocks, the head and the tied embedding fit into
 * three shared buffers and its own; with two, each slot brings all but those that are still there.
 */
static void gathered_units_are_not_gathered_again(void **state)
{
    (void)state;
    struct world w;
    make_world(&w, (struct setting){2, 8, 8, 4, true, DPT_WEIGHTS_UNITS, 3, true, true, false});
    assert_int_equal(count_tasks(&w.list[0], DPT_TASK_GATHER, -1), 4);
    end_world(&w);
    make_world(&w, (struct setting){2, 8, 8, 6, true, DPT_WEIGHTS_UNITS, 2, true, true, false});
    assert_int_equal(count_tasks(&w.list[0], DPT_TASK_GATHER, 0), 1);
    /* Units 1 … 5 forward; back, 5 and 4 are there, 3, 2, 1 come; in the next slot 1 and 2 are. */
    assert_int_equal(count_tasks(&w.list[0], DPT_TASK_GATHER, -1), 1 + 8 + 3 * 6);
    end_world(&w);
    make_world(&w, (struct setting){2, 8, 8, 6, true, DPT_WEIGHTS_ONCE, 2, true, true, false});
    assert_int_equal(count_tasks(&w.list[0], DPT_TASK_GATHER, -1), 6);
    end_world(&w);
}

/* With prefetch the unit after the next may come as soon as there is room, without only when the
 * one before it has been used. */
static void prefetch_is_early(void **state)
{
    (void)state;
    for (int prefetch = 0; prefetch < 2; prefetch++) {
        struct world w;
        make_world(&w, (struct setting){2, 2, 2, 6, true, DPT_WEIGHTS_UNITS, 2, prefetch != 0, true,
                                        false});
        const struct dpt_step_list *list = &w.list[0];
        int used[UNITS_MAX] = {0};
        for (int a = 0; a < list->n_actions; a++)
            if (list->actions[a].kind == DPT_ACTION_FORWARD)
                used[list->actions[a].unit] = a;
        for (int i = 0; i < list->n_tasks; i++) {
            const struct dpt_task *t = &list->tasks[i];
            if (t->kind == DPT_TASK_GATHER && t->unit == 3 && t->actions <= used[3])
                assert_int_equal(t->actions <= used[2], prefetch);
        }
        end_world(&w);
    }
}

/* What is gathered once comes at the step's beginning, or without prefetch a unit at a time. */
static void without_prefetch_nothing_is_early(void **state)
{
    (void)state;
    for (int prefetch = 0; prefetch < 2; prefetch++) {
        struct world w;
        make_world(&w, (struct setting){2, 4, 4, 6, true, DPT_WEIGHTS_ONCE, 2, prefetch != 0, true,
                                        false});
        const struct dpt_step_list *list = &w.list[0];
        int used = 0;
        for (int a = 0; a < list->n_actions; a++) {
            const struct dpt_action *action = &list->actions[a];
            if (action->kind == DPT_ACTION_GATHER)
                assert_int_equal(list->tasks[action->first_task].actions, prefetch ? 0 : used);
            if (action->kind == DPT_ACTION_FREE)
                used = a + 1;
        }
        assert_int_equal(used > 0, !prefetch);
        assert_int_equal(count_tasks(list, DPT_TASK_GATHER, -1), 6);
        end_world(&w);
    }
}

/* Without overlap a unit's gradient is waited for where it is let go, all parts of it. */
static void without_overlap_scatters_are_waited_for(void **state)
{
    (void)state;
    for (int overlap = 0; overlap < 2; overlap++) {
        struct world w;
        make_world(&w, (struct setting){3, 7, 7, 6, true, DPT_WEIGHTS_UNITS, 2, overlap != 0,
                                        overlap != 0, false});
        for (int r = 0; r < w.ranks; r++)
            for (int a = 0; a < w.list[r].n_actions; a++) {
                const struct dpt_action *action = &w.list[r].actions[a];
                if (action->kind != DPT_ACTION_REDUCE)
                    continue;
                assert_int_equal(action->n_tasks, overlap ? 0 : w.parts[action->unit]);
                for (int i = 0; i < action->n_tasks; i++) {
                    const struct dpt_task *t = &w.list[r].tasks[action->first_task + i];
                    assert_true(t->kind == DPT_TASK_SCATTER && t->unit == action->unit &&
                                t->part == i && t->actions == a + 1);
                }
            }
        end_world(&w);
    }
}

static void an_evaluation_goes_forward(void **state)
{
    (void)state;
    const int borrows[] = {-1, -1, -1, 0};
    struct dpt_err err;
    struct dpt_step_list list;
    const struct dpt_step_spec spec = {.n_units = 4,
                                       .borrows = borrows,
                                       .forward_only = true,
                                       .weights = DPT_WEIGHTS_UNITS,
                                       .gathered_max = 2,
                                       .prefetch = true};
    assert_int_equal(dpt_step_list_init(&list, &spec, &err), DPT_OK);
    assert_int_equal(count_tasks(&list, DPT_TASK_GATHER, -1), 4);
    assert_int_equal(list.n_tasks, 4);
    int forward = 0;
    for (int a = 0; a < list.n_actions; a++)
        if (list.actions[a].kind == DPT_ACTION_FORWARD)
            assert_int_equal(list.actions[a].unit, forward++);
    assert_int_equal(forward, 4);
    dpt_step_list_fini(&list);
}

/* The buffers that a unit is gathered to, as a set of bits; unit -1: those of all units. */
static unsigned weight_buffers(const struct dpt_step_list *list, int unit)
{
    unsigned buffers = 0;
    for (int a = 0; a < list->n_actions; a++) {
        const struct dpt_action *action = &list->actions[a];
        if (action->kind == DPT_ACTION_GATHER && action->buffer >= 0 &&
            (unit < 0 || action->unit == unit))
            buffers |= 1u << action->buffer;
    }
    return buffers;
}

static void buffers_are_counted(void **state)
{
    (void)state;
    struct world w;
    int own;
    make_world(&w, (struct setting){2, 4, 4, 5, true, DPT_WEIGHTS_UNITS, 2, true, true, false});
    assert_int_equal(weight_buffers(&w.list[0], -1), 7);
    assert_int_equal(weight_buffers(&w.list[0], 0), 1);     /* a borrowed unit's own buffer */
    assert_int_equal(weight_buffers(&w.list[0], 4) & 1, 0); /* the others share the rest */
    assert_int_equal(dpt_step_list_gradient_buffers(&w.spec[0], &own), 3);
    assert_int_equal(own, 1);
    end_world(&w);
    make_world(&w, (struct setting){2, 4, 4, 5, false, DPT_WEIGHTS_ONCE, 2, true, true, false});
    assert_int_equal(weight_buffers(&w.list[0], -1), 0);
    assert_int_equal(dpt_step_list_gradient_buffers(&w.spec[0], &own), 2);
    assert_int_equal(own, 0);
    end_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_come_to_their_end),
        cmocka_unit_test(gathered_units_are_not_gathered_again),
        cmocka_unit_test(prefetch_is_early),
        cmocka_unit_test(an_evaluation_goes_forward),
        cmocka_unit_test(buffers_are_counted),
        cmocka_unit_test(without_prefetch_nothing_is_early),
        cmocka_unit_test(without_overlap_scatters_are_waited_for),
    };
    return cmocka_run_group_tests_name("schedule", tests, NULL, NULL);
}
