/* Slots in waves and their sum steps, against sums written down as text: which contributions are
 * added to which, in which order, is the same for every number of members. */
#include "worker/plan/waves.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { SLOTS_MAX = 20, SUMS_MAX = DPT_COVER_MAX, TEXT_BYTES = 512, STEPS_MAX = 2 * SLOTS_MAX };

static void each_slot_has_one_member(void **state)
{
    (void)state;
    for (int slots = 1; slots <= SLOTS_MAX; slots++)
        for (int lanes = 1; lanes <= slots; lanes++)
            for (int members = 1; members <= 8 && members <= slots; members++) {
                const struct dpt_waves w = {slots, lanes, {0, lanes}, members};
                int owner[SLOTS_MAX], n = 0;
                memset(owner, -1, sizeof owner);
                for (int m = 0; m < members; m++) {
                    const struct dpt_assignment assignment = dpt_waves_assign(&w, m);
                    for (int i = 0; i < assignment.n; i++, n++) {
                        const int slot = assignment.first + i * assignment.stride;
                        assert_true(slot < slots && owner[slot] < 0);
                        owner[slot] = m;
                        assert_int_equal(slot / members, i); /* of wave i */
                        assert_true(m < dpt_waves_active(&w, i));
                    }
                    assert_int_equal(dpt_assignment_end(&assignment),
                                     slots - (slots - 1 - m) % members);
                }
                assert_int_equal(n, slots);
                assert_int_equal(dpt_waves_count(&w), (slots + members - 1) / members);
            }
}

/* Carries out the sum steps with text for numbers. */
static void sum_as_text(const struct dpt_waves *w, char ret[SUMS_MAX][TEXT_BYTES])
{
    struct dpt_sum_step steps[STEPS_MAX];
    int first[SLOTS_MAX + 1];
    const int n = dpt_waves_sum_steps(w, steps, first), sums = dpt_waves_sums(w);
    assert_true(n <= STEPS_MAX && sums <= SUMS_MAX);
    for (int wave = 0; wave < dpt_waves_count(w); wave++)
        for (int i = first[wave]; i < first[wave + 1]; i++) {
            char term[TEXT_BYTES], *sum = ret[steps[i].sum];
            assert_true(steps[i].sum < sums);
            if (steps[i].kind == DPT_SUM_JOIN) {
                assert_true(steps[i].sum + 1 < sums);
                memcpy(term, ret[steps[i].sum + 1], TEXT_BYTES);
            } else {
                const struct dpt_assignment assignment = dpt_waves_assign(w, steps[i].member);
                (void)snprintf(term, sizeof term, "%d",
                               assignment.first + wave * assignment.stride);
            }
            char both[2 * TEXT_BYTES + 8];
            if (steps[i].kind == DPT_SUM_SET)
                (void)snprintf(both, sizeof both, "%s", term);
            else
                (void)snprintf(both, sizeof both, "(%s+%s)", sum, term);
            assert_true(strlen(both) < TEXT_BYTES);
            memcpy(sum, both, strlen(both) + 1);
        }
    assert_int_equal(first[dpt_waves_count(w)], n);
}

/* The definition: lanes' slots one after another, lanes by recursion over the tree. */
static void node_text(const struct dpt_waves *w, struct dpt_range node, char ret[TEXT_BYTES])
{
    if (node.end - node.first == 1) {
        const struct dpt_range slots = dpt_lane_slots(w->slots, w->lanes, node.first);
        (void)snprintf(ret, TEXT_BYTES, "%d", slots.first);
        for (int s = slots.first + 1; s < slots.end; s++) {
            char longer[TEXT_BYTES + 16];
            (void)snprintf(longer, sizeof longer, "(%s+%d)", ret, s);
            memcpy(ret, longer, strlen(longer) + 1);
        }
        return;
    }
    char left[TEXT_BYTES], right[TEXT_BYTES], both[2 * TEXT_BYTES + 8];
    const int split = dpt_tree_split(node);
    node_text(w, (struct dpt_range){node.first, split}, left);
    node_text(w, (struct dpt_range){split, node.end}, right);
    (void)snprintf(both, sizeof both, "(%s+%s)", left, right);
    memcpy(ret, both, strlen(both) + 1);
}

static void sums_are_the_definition(void **state)
{
    (void)state;
    for (int slots = 1; slots <= SLOTS_MAX; slots++)
        for (int lanes = 1; lanes <= slots; lanes++)
            for (int members = 1; members <= 8; members++) {
                const struct dpt_waves w = {slots, lanes, {0, lanes}, members};
                char sums[SUMS_MAX][TEXT_BYTES] = {{0}}, expected[TEXT_BYTES];
                sum_as_text(&w, sums);
                node_text(&w, (struct dpt_range){0, lanes}, expected);
                assert_string_equal(sums[0], expected);
            }
}

/* A run of lanes leaves the sums of the nodes that cover it. */
static void runs_leave_their_cover(void **state)
{
    (void)state;
    for (int lanes = 1; lanes <= 13; lanes++)
        for (int first = 0; first < lanes; first++)
            for (int end = first + 1; end <= lanes; end++) {
                const struct dpt_waves w = {SLOTS_MAX, lanes, {first, end}, 3};
                char sums[SUMS_MAX][TEXT_BYTES] = {{0}}, expected[TEXT_BYTES];
                struct dpt_range cover[DPT_COVER_MAX];
                sum_as_text(&w, sums);
                const int n = dpt_tree_cover(lanes, w.run, cover);
                for (int i = 0; i < n; i++) {
                    node_text(&w, cover[i], expected);
                    assert_string_equal(sums[i], expected);
                }
            }
}

static void reduce_is_one_lane(void **state)
{
    (void)state;
    const struct dpt_waves w = {5, 1, {0, 1}, 2};
    char sums[SUMS_MAX][TEXT_BYTES] = {{0}};
    sum_as_text(&w, sums);
    assert_string_equal(sums[0], "((((0+1)+2)+3)+4)");
    assert_int_equal(dpt_waves_sums(&w), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_slot_has_one_member),
        cmocka_unit_test(sums_are_the_definition),
        cmocka_unit_test(runs_leave_their_cover),
        cmocka_unit_test(reduce_is_one_lane),
    };
    return cmocka_run_group_tests_name("waves", tests, NULL, NULL);
}
