/* The lists of strategies that send gradients bucket by bucket: when each bucket goes, its tasks,
 * the actions that wait for them; equal on every member. */
#include "worker/plan/step_list.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { UNITS = 3, BUCKETS = 5, MEMBERS = 3 };

static const int borrows[UNITS] = {-1, -1, -1}, bucket_unit[BUCKETS] = {0, 0, 1, 2, 2},
                 parts[BUCKETS] = {1, 2, 1, 3, 1};

static struct dpt_step_spec spec_of(const struct dpt_waves *waves, int member,
                                    struct dpt_bucket_traits buckets)
{
    return (struct dpt_step_spec){.n_units = UNITS,
                                  .borrows = borrows,
                                  .assignment = dpt_waves_assign(waves, member),
                                  .weights = DPT_WEIGHTS_HELD,
                                  .gathered_max = 1,
                                  .overlap = true,
                                  .waves = waves,
                                  .parts = parts,
                                  .share = true,
                                  .n_buckets = BUCKETS,
                                  .bucket_unit = bucket_unit,
                                  .buckets = buckets};
}

static void make_list(const struct dpt_step_spec *spec, struct dpt_step_list *list)
{
    struct dpt_err err;
    assert_int_equal(dpt_step_list_init(list, spec, &err), DPT_OK);
}

/* Buckets go from the last to the first, in each slot: an announced bucket behind the backward that
 * completes it, else all behind the last backward. */
static void check_actions(const struct dpt_step_list *list, const struct dpt_step_spec *spec,
                          int slots)
{
    int bucket = BUCKETS, backward = UNITS, n_slots = 0;
    for (int i = 0; i < list->n_actions; i++) {
        const struct dpt_action *a = &list->actions[i];
        if (a->kind == DPT_ACTION_BACKWARD)
            assert_int_equal(a->unit, --backward);
        if (a->kind == DPT_ACTION_REDUCE) {
            assert_int_equal(a->unit, --bucket);
            assert_int_equal(backward, spec->buckets.announced ? bucket_unit[bucket] : 0);
        }
        if (a->kind == DPT_ACTION_END_SLOT) {
            const bool reduced = spec->waves || n_slots == slots - 1;
            assert_int_equal(bucket, reduced ? 0 : BUCKETS);
            bucket = BUCKETS;
            backward = UNITS;
            n_slots++;
        }
    }
    assert_int_equal(n_slots, slots);
}

/* What a REDUCE lets go is scattered part by part when it is done; the REDUCE waits for exactly its
 * scatters and its share, if it waits. */
static void check_tasks(const struct dpt_step_list *list, const struct dpt_step_spec *spec)
{
    int scatters = 0, shares = 0;
    for (int i = 0; i < list->n_tasks; i++) {
        const struct dpt_task *t = &list->tasks[i];
        scatters += t->kind == DPT_TASK_SCATTER;
        if (t->kind == DPT_TASK_SHARE) {
            assert_true(t->scatters <= scatters);
            assert_true(spec->buckets.each_slot || t->wave == dpt_waves_count(spec->waves) - 1);
            shares++;
        } else if (!t->idle) {
            const struct dpt_action *a = &list->actions[t->actions - 1];
            assert_int_equal(a->kind, DPT_ACTION_REDUCE);
            assert_int_equal(a->unit, t->unit);
            if (spec->buckets.waits)
                assert_true(i >= a->first_task && i < a->first_task + a->n_tasks);
            else
                assert_int_equal(a->n_tasks, 0);
        }
    }
    const int waves = dpt_waves_count(spec->waves);
    assert_int_equal(scatters, 8 * waves);
    assert_int_equal(shares, BUCKETS * (spec->buckets.each_slot ? waves : 1));
}

/* A slot is written over the one before only when all of that has been taken. */
static void check_reserves(const struct dpt_step_list *list, const struct dpt_step_spec *spec)
{
    int wave = 0, reserves = 0;
    for (int i = 0; i < list->n_actions; i++) {
        const struct dpt_action *a = &list->actions[i];
        wave += a->kind == DPT_ACTION_END_SLOT;
        if (a->kind != DPT_ACTION_RESERVE)
            continue;
        reserves++;
        assert_int_equal(a->unit, -1);
        assert_int_equal(a->n_tasks, 8);
        for (int t = a->first_task; t < a->first_task + a->n_tasks; t++) {
            assert_int_equal(list->tasks[t].kind, DPT_TASK_SCATTER);
            assert_int_equal(list->tasks[t].wave, wave - 1);
        }
    }
    assert_int_equal(reserves, spec->buckets.waits ? 0 : spec->assignment.n - 1);
}

static void buckets_go_when_they_are_whole(void **state)
{
    (void)state;
    static const struct dpt_bucket_traits kinds[] = {{.announced = true},
                                                     {.announced = true, .waits = true},
                                                     {.waits = true},
                                                     {.waits = true, .each_slot = true},
                                                     {.announced = false}};
    const struct dpt_waves waves = {.slots = 7, .lanes = 1, .run = {0, 1}, .members = MEMBERS};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        struct dpt_step_list first, list;
        const struct dpt_step_spec of_first = spec_of(&waves, 0, kinds[k]);
        make_list(&of_first, &first);
        for (int member = 0; member < MEMBERS; member++) {
            const struct dpt_step_spec spec = spec_of(&waves, member, kinds[k]);
            make_list(&spec, &list);
            check_actions(&list, &spec, spec.assignment.n);
            check_tasks(&list, &spec);
            check_reserves(&list, &spec);
            assert_int_equal(list.n_tasks, first.n_tasks); /* the same on all, idle or not */
            for (int i = 0; i < list.n_tasks; i++) {
                assert_int_equal(list.tasks[i].kind, first.tasks[i].kind);
                assert_int_equal(list.tasks[i].unit, first.tasks[i].unit);
                assert_int_equal(list.tasks[i].idle, list.tasks[i].kind == DPT_TASK_SCATTER &&
                                                         list.tasks[i].wave >= spec.assignment.n);
            }
            dpt_step_list_fini(&list);
        }
        dpt_step_list_fini(&first);
    }
}

/* Sums of lanes go to a reducer: there are no tasks, and buckets go in the last slot alone. */
static void lanes_go_in_the_last_slot(void **state)
{
    (void)state;
    for (int announced = 0; announced < 2; announced++) {
        const struct dpt_waves waves = {.slots = 4, .lanes = 1, .run = {0, 1}, .members = 1};
        struct dpt_step_spec spec =
            spec_of(&waves, 0, (struct dpt_bucket_traits){.announced = announced == 1});
        struct dpt_step_list list;
        spec.waves = NULL;
        make_list(&spec, &list);
        check_actions(&list, &spec, 4);
        assert_int_equal(list.n_tasks, 0);
        dpt_step_list_fini(&list);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buckets_go_when_they_are_whole),
        cmocka_unit_test(lanes_go_in_the_last_slot),
    };
    return cmocka_run_group_tests_name("bucket_lists", tests, NULL, NULL);
}
