/* The server's screen, word for word. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "rendezvous/server/announce.h"

#include <string.h>

static char text[4096];

static void print_text(const struct dpt_announce *announce)
{
    FILE *out = fmemopen(text, sizeof text, "w");
    assert_non_null(out);
    dpt_announce_print(announce, out);
    assert_int_equal(fclose(out), 0);
}

static struct dpt_announce facts(void)
{
    return (struct dpt_announce){.version = "1.2.3",
                                 .endpoint = "127.0.0.1:29500",
                                 .port = 29500,
                                 .addresses = {{"10.0.0.7", "eth0"}, {"[fd00::7]", "wg0"}},
                                 .n_addresses = 2};
}

static void closed_server_names_the_flag(void **state)
{
    (void)state;
    const struct dpt_announce closed = facts();
    print_text(&closed);
    assert_string_equal(
        text,
        "dpt-rdzv 1.2.3 listening on 127.0.0.1:29500 (this host only; --insecure lets others in)\n"
        "  On this machine:\n"
        "    dpt-worker --nnodes 1 --rdzv-endpoint 127.0.0.1:29500 --config FILE\n"
        "  Other machines cannot connect: there are no keys yet. Inside a network that you trust, "
        "start it so:\n"
        "    dpt-rdzv --port 29500 --insecure\n"
        "  and on two machines:\n"
        "    dpt-worker --nnodes 2 --rdzv-endpoint 10.0.0.7:29500 --config FILE    # on one\n"
        "    dpt-worker --nnodes 2 --rdzv-endpoint 10.0.0.7:29500 --rdzv-id RUN    # on the other; "
        "RUN: run of FILE\n");
}

static void open_server_lists_addresses(void **state)
{
    (void)state;
    struct dpt_announce open = facts();
    open.open = open.anywhere = true;
    open.endpoint = "*:29500";
    print_text(&open);
    assert_string_equal(
        text,
        "dpt-rdzv 1.2.3 listening on *:29500 without keys: any process that reaches it can join "
        "and stop "
        "runs\n"
        "  Addresses of this machine: 10.0.0.7:29500 (eth0), [fd00::7]:29500 (wg0)\n"
        "  For a run of two machines:\n"
        "    dpt-worker --nnodes 2 --rdzv-endpoint 10.0.0.7:29500 --config FILE    # on one\n"
        "    dpt-worker --nnodes 2 --rdzv-endpoint 10.0.0.7:29500 --rdzv-id RUN    # on the other; "
        "RUN: run of FILE\n");
    open.n_addresses = 0;
    print_text(&open);
    assert_non_null(strstr(text, "no address but localhost"));
    assert_non_null(strstr(text, "--rdzv-endpoint HEAD:29500"));
}

static void one_address_is_what_it_is_bound_to(void **state)
{
    (void)state;
    struct dpt_announce bound = facts();
    bound.open = true;
    bound.endpoint = "10.0.0.9:29500";
    print_text(&bound);
    assert_null(strstr(text, "10.0.0.7"));
    assert_non_null(strstr(text, "--rdzv-endpoint 10.0.0.9:29500 "));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(closed_server_names_the_flag),
        cmocka_unit_test(open_server_lists_addresses),
        cmocka_unit_test(one_address_is_what_it_is_bound_to),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
