/* The groups of the collectives of hybrid_shard in the traces of a run. */
#include "tests/worker/train/trace_view.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 4, STEPS = 6, SLOTS = 11 };

static struct dpt_config traced_config(void)
{
    struct dpt_config config = rig_make_config(2 * SLOTS, STEPS, "");
    rig_choose(&config, "hybrid_shard");
    config.train.accumulate = DPT_ACCUMULATE_LOCAL;
    (void)snprintf(config.trace.dir, sizeof config.trace.dir, "%s/traces", rig_dir("groups"));
    return config;
}

static const char *word_in(const json_t *object, const char *key)
{
    return json_string_value(json_object_get(object, key));
}

/* The groups of hybrid_shard's tasks that a rank takes part in, by their names in its trace. */
struct groups {
    int node, across;
};

/* The rank's tasks of each group, which has two of the four ranks: all-gathers and
 * reduce-scatters. */
static struct groups groups_of(const json_t *trace)
{
    struct groups groups = {0};
    size_t tasks[2][2] = {{0}}, i;
    const json_t *event;
    json_array_foreach(json_object_get(trace, "traceEvents"), i, event)
    {
        const json_t *args = json_object_get(event, "args");
        const char *group = word_in(args, "Process Group Description");
        if (!group)
            continue;
        const int name = (int)strtol(word_in(args, "Process Group Name"), NULL, 10);
        const json_int_t size = json_integer_value(json_object_get(args, "Group size"));
        const bool gathers = strcmp(word_in(args, "Collective name"), "_allgather_base") == 0,
                   across = strcmp(group, "across_nodes_pg") == 0;
        int *known = across ? &groups.across : &groups.node;
        if (!json_object_get(args, "unit")) { /* a commit */
            assert_string_equal(group, "default_pg");
            assert_int_equal(name, 0);
            assert_int_equal(size, 4);
            continue;
        }
        assert_true(across || strcmp(group, "node_pg") == 0);
        assert_int_equal(size, 2);
        assert_true(*known == 0 || *known == name);
        *known = name;
        tasks[across][gathers]++;
    }
    for (i = 0; i < 4; i++)
        assert_true(tasks[i / 2][i % 2] > 0);
    return groups;
}

/* On two nodes of two ranks each task has the group of the ranks that exchange. */
static void test_groups_of_nodes(void **state)
{
    (void)state;
    char hash[64];
    bool pairs[2][2] = {{false}};
    const struct dpt_config config = traced_config();
    rig_undisturbed(&config, "groups", RANKS, true, hash);
    for (int rank = 0; rank < RANKS; rank++) {
        json_t *trace = trace_view_only("groups", "hybrid_shard", rank);
        const struct groups groups = groups_of(trace);
        assert_in_range(groups.node, 1, 2);
        assert_in_range(groups.across, 3, 4);
        assert_false(pairs[groups.node - 1][groups.across - 3]);
        pairs[groups.node - 1][groups.across - 3] = true;
        json_decref(trace);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_groups_of_nodes)};
    return cmocka_run_group_tests_name("groups in traces", tests, rig_setup, rig_teardown);
}
