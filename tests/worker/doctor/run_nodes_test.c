/* The nodes of a run: which addresses are taken, what is said of nodes without one, and which nodes
 * are measured as one. */
#include "worker/doctor/net.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

enum { NODES_MAX = DPT_MATRIX_NODES_MAX + 2 };

static Dpt__NodeInfo info[NODES_MAX], *list[NODES_MAX];
static Dpt__ControlReply reply;
static struct dpt_run_nodes run;
static struct dpt_net_nodes found;

static int begin(void **state)
{
    (void)state;
    dpt__control_reply__init(&reply);
    reply.run = (char *)"demo";
    reply.nodes = list;
    return 0;
}

static Dpt__NodeInfo *add_node(const char *node, const char *host, const char *address)
{
    Dpt__NodeInfo *to = &info[reply.n_nodes];
    dpt__node_info__init(to);
    to->node = (char *)node;
    to->host_name = (char *)host;
    to->address = (char *)address;
    to->role = DPT__NODE_ROLE__NODE_TRAINS;
    list[reply.n_nodes++] = to;
    return to;
}

static void take(void)
{
    struct dpt_err err;
    if (dpt_run_nodes_take(&reply, &run, &err) != DPT_OK)
        fail_msg("%s", err.text);
    assert_string_equal(run.run, "demo");
}

/* A member may report any text as its address, and the address becomes a word of a command. */
static void only_numeric_addresses_are_taken(void **state)
{
    static const char *const wrong[] = {
        "-oProxyCommand=x", "host", "10.0.0.1; ls", "10.0.0.256", "$(ls)", "::g", "10.0.0.1 "};
    (void)state;
    (void)add_node("a", "gpu1", "192.0.2.1");
    (void)add_node("b", "gpu2", "2001:db8::2");
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        (void)add_node("c", "gpu3", wrong[i]);
    take();
    assert_string_equal(run.node[0].address, "192.0.2.1");
    assert_string_equal(run.node[1].address, "2001:db8::2");
    for (int i = 2; i < run.n; i++) {
        assert_string_equal(run.node[i].address, "");
        assert_non_null(strstr(run.node[i].why, "is not numeric"));
    }
}

static void nodes_without_an_address_say_why(void **state)
{
    (void)state;
    (void)add_node("a", "gpu1", "");
    add_node("b", "", "")->role = DPT__NODE_ROLE__NODE_AWAITED;
    add_node("c", "", "")->role = DPT__NODE_ROLE__NODE_DENIED;
    take();
    assert_int_equal(run.n, 2); /* a denied id is no node */
    assert_non_null(strstr(run.node[0].why, "have not told where they listen yet"));
    assert_non_null(strstr(run.node[1].why, "has not come back"));
}

static void too_many_nodes_are_refused(void **state)
{
    struct dpt_err err;
    (void)state;
    for (int i = 0; i < DPT_MATRIX_NODES_MAX; i++)
        (void)add_node("n", "", "192.0.2.1");
    take();
    assert_int_equal(run.n, DPT_MATRIX_NODES_MAX);
    (void)add_node("n", "", "192.0.2.1");
    assert_int_equal(dpt_run_nodes_take(&reply, &run, &err), DPT_EREFUSED);
    assert_non_null(strstr(err.text, "more than 64 nodes"));
    assert_non_null(strstr(err.text, "--peers"));
}

static void nodes_of_one_address_are_one(void **state)
{
    const struct dpt_doctor_args args = {.peer_port = 29600};
    (void)state;
    (void)add_node("a", "gpu1", "192.0.2.1");
    (void)add_node("b", "gpu2", "fd00::2");
    (void)add_node("c", "gpu1", "192.0.2.1");
    (void)add_node("d", "", "");
    (void)add_node("e", "", "");
    take();
    dpt_net_list_run(&args, &run, &found);
    assert_int_equal(found.n, 4);
    assert_string_equal(found.node[0].endpoint, "192.0.2.1:29600");
    assert_string_equal(found.node[0].name, "c, a gpu1");
    assert_string_equal(found.node[1].endpoint, "[fd00::2]:29600");
    assert_string_equal(found.node[1].name, "b gpu2");
    assert_string_equal(found.node[2].endpoint, "");
    assert_string_equal(found.node[2].name, "d");
    assert_non_null(strstr(found.node[3].why, "not told"));
}

static void one_node_has_no_pair(void **state)
{
    static struct dpt_matrix matrix;
    const struct dpt_doctor_args args = {.peer_port = 1};
    struct dpt_err err;
    (void)state;
    (void)add_node("a", "gpu1", "192.0.2.1");
    take();
    assert_int_equal(dpt_net_measure_run(&args, &run, &matrix, &err), DPT_ENOENT);
    assert_non_null(strstr(err.text, "run 'demo' has 1 node"));
    (void)add_node("b", "gpu1", "192.0.2.1");
    take();
    assert_int_equal(dpt_net_measure_run(&args, &run, &matrix, &err), DPT_ENOENT);
    assert_non_null(strstr(err.text, "2 nodes at one address; with --shell"));
}

int main(void)
{
#define T(test) cmocka_unit_test_setup(test, begin)
    const struct CMUnitTest tests[] = {
        T(only_numeric_addresses_are_taken),
        T(nodes_without_an_address_say_why),
        T(too_many_nodes_are_refused),
        T(nodes_of_one_address_are_one),
        T(one_node_has_no_pair),
    };
    return cmocka_run_group_tests_name("nodes of a run", tests, NULL, NULL);
}
