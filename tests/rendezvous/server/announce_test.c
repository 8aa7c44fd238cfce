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

#define TOKEN "dpt1-AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"

static struct dpt_announce facts(void)
{
    return (struct dpt_announce){.version = "1.2.3",
                                 .endpoint = "*:29500",
                                 .anywhere = true,
                                 .port = 29500,
                                 .token = TOKEN,
                                 .token_uses = 64,
                                 .token_ends_s = 1795737600,
                                 .key_folder = "/home/u/.dpt",
                                 .is_default_folder = true,
                                 .addresses = {{"10.0.0.7", "eth0"}, {"[fd00::7]", "wg0"}},
                                 .n_addresses = 2};
}

static void commands_have_address_and_token(void **state)
{
    (void)state;
    struct dpt_announce keyed = facts();
    print_text(&keyed);
    assert_string_equal(
        text,
        "dpt-rdzv 1.2.3 listening on *:29500 with keys\n"
        "  Addresses of this machine: 10.0.0.7:29500 (eth0), [fd00::7]:29500 (wg0)\n"
        "  For a run of two machines:\n"
        "    dpt-worker --nnodes 2 --rdzv-endpoint 10.0.0.7:29500 --rdzv-token " TOKEN
        " --config FILE    # on one\n"
        "    dpt-worker --rdzv-endpoint 10.0.0.7:29500 --rdzv-token " TOKEN
        " --rdzv-id RUN    # on the other; RUN: run of FILE\n"
        "  The token admits 64 more machines until 2026-11-27 00:00 UTC, each once and for all. "
        "Another:\n    dpt-rdzv --new-token\n"
        "  Processes with the key folder /home/u/.dpt need no token.\n");
    keyed.n_addresses = 0;
    keyed.token_uses = 1;
    print_text(&keyed);
    assert_non_null(strstr(text, "no address but localhost"));
    assert_non_null(strstr(text, "--rdzv-endpoint HEAD:29500"));
    assert_non_null(strstr(text, "admits 1 more machine until"));
    keyed.token = "TOKEN"; /* the list of tokens is full */
    keyed.token_uses = 0;
    print_text(&keyed);
    assert_non_null(strstr(text, "--rdzv-token TOKEN --config FILE"));
    assert_non_null(strstr(text, "  TOKEN: one of those in the file 'tokens'"));
    assert_null(strstr(text, "more machine"));
    keyed.waits_for_key = true; /* nothing has to leave the list */
    print_text(&keyed);
    assert_non_null(strstr(text, "  TOKEN: none is made before the server has its next key."));
    assert_null(strstr(text, "Remove some"));
}

/* The command works as it stands, with a folder of any name. */
static void command_names_another_key_folder(void **state)
{
    (void)state;
    static const char *const folders[][2] = {
        {"/srv/dpt-keys", "Another:\n    dpt-rdzv --new-token --key-dir /srv/dpt-keys\n"},
        {"/srv/u's $keys", "Another:\n    dpt-rdzv --new-token --key-dir '/srv/u'\\''s $keys'\n"}};
    struct dpt_announce keyed = facts();
    keyed.is_default_folder = false;
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) {
        keyed.key_folder = folders[i][0];
        print_text(&keyed);
        assert_non_null(strstr(text, folders[i][1]));
    }
}

static void open_server_names_no_token(void **state)
{
    (void)state;
    struct dpt_announce open = facts();
    open.token = NULL;
    print_text(&open);
    assert_non_null(strstr(text, "listening on *:29500 without keys\n"));
    assert_non_null(strstr(text, "--rdzv-endpoint 10.0.0.7:29500 --rdzv-token none --config FILE"));
    assert_null(strstr(text, "The token"));
}

static void one_address_is_what_it_is_bound_to(void **state)
{
    (void)state;
    struct dpt_announce bound = facts();
    bound.anywhere = false;
    bound.endpoint = "10.0.0.9:29500";
    print_text(&bound);
    assert_null(strstr(text, "10.0.0.7"));
    assert_non_null(strstr(text, "--rdzv-endpoint 10.0.0.9:29500 "));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(commands_have_address_and_token),
        cmocka_unit_test(command_names_another_key_folder),
        cmocka_unit_test(open_server_names_no_token),
        cmocka_unit_test(one_address_is_what_it_is_bound_to),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
