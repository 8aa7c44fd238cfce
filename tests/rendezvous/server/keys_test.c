/* Server and clients with keys over real sockets. Each "machine" has a separate key folder. */
#include "base/clock.h"
#include "base/err.h"
#include "rendezvous/server/gate.h"
#include "rendezvous/server/newcomers.h"
#include "tests/logged.h"
#include "tests/rendezvous/server/keyed.h"
#include "tests/rendezvous/server/zmtp.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static void same_user_needs_no_token(void **state)
{
    (void)state;
    const struct dpt_keyring ring = keyed_ring(keyed.head, NULL);
    keyed_expect_served(&ring);
}

static void unknown_machine_is_refused(void **state)
{
    (void)state;
    struct dpt_keyring ring = keyed_ring(keyed.head, NULL);
    const struct dpt_keyring b = keyed_ring(keyed.machine_b, NULL);
    ring.machine = b.machine; /* it knows the server's key, and the server does not know its key */
    keyed_expect_refused(&ring, "does not admit this machine's key");
}

static void token_admits_once_and_for_all(void **state)
{
    (void)state;
    const struct dpt_issued_token token = keyed_issue(1, (int64_t)time(NULL));
    char other[160];
    struct dpt_keyring ring = keyed_ring(keyed.machine_b, token.text);
    assert_true(ring.enroll_first);
    keyed_expect_served(&ring);
    assert_int_equal(keyed_count_lines("tokens", "used "), 1);
    assert_int_equal(keyed_count_lines("machines", "define "),
                     2);                      /* the head's own key, and this one */
    ring = keyed_ring(keyed.machine_b, NULL); /* it noted the server */
    assert_int_equal(ring.source, DPT_SERVER_KEY_NOTED);
    keyed_expect_served(&ring);
    ring = keyed_ring(keyed.machine_b, token.text); /* the same command again */
    assert_false(ring.enroll_first);
    keyed_expect_served(&ring);
    (void)snprintf(other, sizeof other, "%s/servers", keyed.machine_b);
    assert_int_equal(unlink(other), 0);
    ring = keyed_ring(keyed.machine_b, token.text); /* it asks again and costs no use */
    assert_true(ring.enroll_first);
    keyed_expect_served(&ring);
    assert_int_equal(keyed_count_lines("tokens", "used "), 1);
    (void)snprintf(other, sizeof other, "%s/c", keyed.dir);
    ring = keyed_ring(other, token.text);
    keyed_expect_refused(&ring, "was revoked or is used up");
}

static void expired_token_says_so(void **state)
{
    (void)state;
    const struct dpt_issued_token token = keyed_issue(9, (int64_t)time(NULL) - 2 * 3600);
    const struct dpt_keyring ring = keyed_ring(keyed.machine_b, token.text);
    struct dpt_keyring holder = ring;
    keyed_expect_refused(&ring, "the token has expired");
    holder.machine = ring.token; /* it gets through no handshake */
    holder.has_token = holder.enroll_first = false;
    keyed_expect_refused(&holder, "does not admit this machine's key");
    assert_int_equal(keyed_count_lines("machines", "define "), 1);
}

/* The server's list no longer has its token. */
static void revoked_token_is_refused(void **state)
{
    (void)state;
    const struct dpt_issued_token token = keyed_issue(9, (int64_t)time(NULL));
    const struct dpt_keyring ring = keyed_ring(keyed.machine_b, token.text);
    struct dpt_err err;
    assert_int_equal(dpt_key_folder_replace(&keyed.folder, "tokens", "", &err), DPT_OK);
    keyed_make_server_look();
    keyed_expect_refused(&ring, "nor the token");
}

/* The server has lost its list: the machine, which noted the server, shows its token again. */
static void forgotten_machine_shows_its_token(void **state)
{
    (void)state;
    const struct dpt_issued_token token = keyed_issue(2, (int64_t)time(NULL));
    struct dpt_keyring ring = keyed_ring(keyed.machine_b, token.text);
    struct dpt_err err;
    keyed_expect_served(&ring);
    assert_int_equal(dpt_key_folder_replace(&keyed.folder, "machines", "", &err), DPT_OK);
    keyed_make_server_look(); /* a machine that is known does not make it look */
    ring = keyed_ring(keyed.machine_b, token.text);
    assert_false(ring.enroll_first);
    keyed_expect_served(&ring);
    assert_int_equal(keyed_count_lines("tokens", "used "), 2);
}

/* A connection that stands is cut off when its machine is denied: its messages get no answer, and
 * the machine does not come back. */
static void denied_machine_is_cut_off(void **state)
{
    (void)state;
    const struct dpt_issued_token token = keyed_issue(2, (int64_t)time(NULL));
    const struct dpt_keyring ring = keyed_ring(keyed.machine_b, token.text);
    struct dpt_admitted_machine machine;
    struct dpt_client *client = transport_start_client_with(keyed.server.port, &ring);
    struct dpt_err err;
    char name[DPT_KEY_HEX_BYTES];
    (void)transport_expect(client, DPT_CLIENT_UP);
    (void)transport_exchange(client, "a");
    assert_int_equal(dpt_token_deny_machine(&keyed.folder, "nobody", &machine, &err), DPT_ECONFIG);
    dpt_key_hex(&ring.machine.public_key, name);
    name[DPT_KEY_SHORT_DIGITS] = '\0';
    assert_int_equal(dpt_token_deny_machine(&keyed.folder, name, &machine, &err), DPT_OK);
    assert_int_equal(dpt_token_deny_machine(&keyed.folder, name, &machine, &err), DPT_ECONFIG);
    keyed_make_server_look();
    const struct dpt_keyring again = keyed_ring(keyed.machine_b, token.text);
    keyed_expect_refused(&again, "does not admit this machine: this machine's key was removed");
    uint8_t buf[512];
    transport_send(client, buf, transport_make_message("a", 1000, NULL, buf, sizeof buf));
    const struct dpt_keyring own = keyed_ring(keyed.head, NULL);
    keyed_expect_served(&own); /* served after the message of the denied machine */
    struct dpt_client_event event;
    assert_int_equal(dpt_client_next(client, &event, &err), DPT_INPROGRESS);
    dpt_client_destroy(&client);
}

/* A client that was connected goes on trying, and is back when its machine is let in again. */
static void denied_client_comes_back(void **state)
{
    (void)state;
    const struct dpt_issued_token token = keyed_issue(1, (int64_t)time(NULL));
    const struct dpt_keyring ring = keyed_ring(keyed.machine_b, token.text);
    struct dpt_client *client = transport_start_client_with(keyed.server.port, &ring);
    struct dpt_admitted_machine machine;
    char line[DPT_ADMISSION_LINE_BYTES], hex[DPT_KEY_HEX_BYTES];
    struct dpt_err err;
    keyed_tick_until(client, NULL);
    dpt_key_hex(&ring.machine.public_key, hex);
    hex[DPT_KEY_SHORT_DIGITS] = '\0';
    assert_int_equal(dpt_token_deny_machine(&keyed.folder, hex, &machine, &err), DPT_OK);
    keyed_make_server_look();
    keyed_tick_until(client, "no longer admits this machine's key");
    struct dpt_keyring later = keyed_ring(keyed.machine_b, NULL);
    keyed_expect_refused(&later, "has denied this key, no token helps");
    dpt_admission_print_machine(DPT_RIGHT_DEFINE, &ring.machine.public_key, "b", "", line);
    assert_int_equal(dpt_key_folder_append(&keyed.folder, "machines", line, NULL, &err), DPT_OK);
    keyed_tick_until(client, NULL);
    dpt_client_destroy(&client);
}

static void client_of_another_server_is_denied(void **state)
{
    (void)state;
    struct dpt_keyring ring = keyed_ring(keyed.head, NULL);
    ring.server = ring.machine.public_key;
    struct dpt_client *client = transport_start_client_with(keyed.server.port, &ring);
    keyed_tick_until(client, "it has another key than this machine expects, or none");
    keyed_tick_until(client, "the server there has another key");
    dpt_client_destroy(&client);
}

static void wrong_servers_are_named(void **state)
{
    (void)state;
    struct test_server open_server;
    const struct dpt_keyring own = keyed_ring(keyed.head, NULL),
                             other = keyed_ring(keyed.machine_b, NULL);
    struct dpt_keyring token = other;
    token.source = DPT_SERVER_KEY_OF_TOKEN;
    keyed_expect_why(&other, keyed.server.port, "another key than this machine's key folder has");
    keyed_expect_why(&token, keyed.server.port, "another key than the token has");
    keyed_expect_why(&(struct dpt_keyring){.open = true}, keyed.server.port,
                     "the server there has keys");
    transport_start_server(&open_server, 0);
    keyed_expect_why(&own, open_server.port, "the server there has no keys (--open)");
    transport_stop_server(&open_server);
}

/* A peer without keys, or that speaks another protocol, does not get through the handshake. */
static void strangers_do_not_get_in(void **state)
{
    (void)state;
    uint8_t junk[512];
    memset(junk, 0x5a, sizeof junk);
    for (int i = 0; i < 20; i++) {
        const int fd = zmtp_dial(keyed.server.port);
        (void)zmtp_send(fd, junk, sizeof junk, 17);
        assert_true(zmtp_wait_closed(fd, NULL));
        close(fd);
    }
    const struct dpt_keyring ring = keyed_ring(keyed.head, NULL);
    keyed_expect_served(&ring);
}

/* A stranger sends a frame of the largest size in place of its handshake: the server ends the
 * connection long before the frame is whole, or the time of a handshake is over. */
static void large_frame_before_the_handshake_is_cut_off(void **state)
{
    (void)state;
    static uint8_t junk[3 * DPT_NEWCOMER_BYTES_MAX];
    const int fd = zmtp_dial_from(9, keyed.server.port);
    const int64_t began_ms = dpt_now_ms();
    zmtp_greet_curve(fd);
    (void)zmtp_send_command(fd, junk, sizeof junk, DPT_MESSAGE_BYTES_MAX);
    assert_true(zmtp_wait_closed(fd, NULL));
    assert_in_range(dpt_now_ms() - began_ms, 1, 4500); /* the handshake may take 10 s */
    close(fd);
    const struct dpt_keyring ring = keyed_ring(keyed.head, NULL);
    keyed_expect_served(&ring);
}

static void kept_token_is_printed_again(void **state)
{
    (void)state;
    const struct dpt_token_order order = {.right = DPT_RIGHT_DEFINE, .hours = 1, .uses = 2},
                                 join = {.right = DPT_RIGHT_JOIN, .hours = 1, .uses = 2};
    const int64_t now_s = (int64_t)time(NULL);
    struct dpt_issued_token first, again, later;
    struct dpt_err err;
    assert_int_equal(dpt_token_current(&keyed.folder, &order, now_s, &first, &err), DPT_OK);
    assert_int_equal(dpt_token_current(&keyed.folder, &order, now_s, &again, &err), DPT_OK);
    assert_string_equal(first.text, again.text);
    assert_int_equal(again.entry.uses - again.entry.used, 2);
    assert_int_equal(dpt_token_current(&keyed.folder, &order, now_s + 3600, &later, &err), DPT_OK);
    assert_string_not_equal(first.text, later.text); /* it has expired */
    assert_int_equal(dpt_token_current(&keyed.folder, &join, now_s, &again, &err), DPT_OK);
    assert_string_not_equal(later.text, again.text); /* another right */
    assert_int_equal(again.entry.right, DPT_RIGHT_JOIN);
}

static void server_refuses_bad_folders(void **state)
{
    (void)state;
    static const struct {
        const char *file, *text, *why;
    } cases[] = {
        {"machines", "define x\n", "line 1: expected define, join or deny"},
        {"tokens", "hello\n", "line 1: expected 'token KEY"},
        {"server.key", "hello\n", "holds no secret key"},
        {"machine.key", "hello\n", "holds no secret key"},
    };
    struct dpt_key_folder other;
    struct dpt_server *made = NULL;
    struct dpt_err err;
    char path[160];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        (void)snprintf(path, sizeof path, "%s/bad-%zu", keyed.dir, i);
        assert_int_equal(dpt_key_folder_open(path, &other, &err), DPT_OK);
        assert_int_equal(dpt_key_folder_replace(&other, cases[i].file, cases[i].text, &err),
                         DPT_OK);
        const struct dpt_server_options options = {
            .address = "127.0.0.1", .key_dir = path, .stop_fd = -1};
        assert_int_equal(dpt_server_create(&options, &made, &err), DPT_ECONFIG);
        if (strstr(err.text, cases[i].why) == NULL || strstr(err.text, cases[i].file) == NULL)
            fail_msg("wanted '%s' in: %s", cases[i].why, err.text);
    }
}

/* A list that is spoilt while the server runs: the old one stays in force until it is mended. */
static void spoilt_list_changes_nothing(void **state)
{
    (void)state;
    const struct dpt_keyring own = keyed_ring(keyed.head, NULL);
    char *text = NULL;
    struct dpt_err err;
    assert_int_equal(dpt_key_folder_read(&keyed.folder, "machines", &text, NULL, &err), DPT_OK);
    assert_int_equal(dpt_key_folder_append(&keyed.folder, "machines", "what is this", NULL, &err),
                     DPT_OK);
    keyed_make_server_look();
    keyed_expect_served(&own);
    assert_int_equal(dpt_key_folder_replace(&keyed.folder, "machines", text, &err), DPT_OK);
    free(text);
    keyed_make_server_look();
    keyed_expect_served(&own);
}

static void path_in_head(const char *name, char ret[160])
{
    (void)snprintf(ret, 160, "%s/%s", keyed.head, name);
}

/* Replaces `machines` at once by a list with this line and mode 0644. */
static void replace_by_readable_list(const char *line)
{
    char fresh[160], machines[160], *text = NULL;
    struct dpt_err err;
    path_in_head("fresh", fresh);
    path_in_head("machines", machines);
    assert_int_equal(dpt_key_folder_read(&keyed.folder, "machines", &text, NULL, &err), DPT_OK);
    assert_int_equal(dpt_key_folder_replace(&keyed.folder, "fresh", text, &err), DPT_OK);
    free(text);
    assert_int_equal(dpt_key_folder_append(&keyed.folder, "fresh", line, NULL, &err), DPT_OK);
    assert_int_equal(chmod(fresh, 0644), 0);
    assert_int_equal(rename(fresh, machines), 0);
}

/* The server is asked until it has looked at its files several times. */
static void exchange_over_looks(struct dpt_client *client)
{
    const int64_t end_ms = dpt_now_ms() + INT64_C(4) * DPT_GATE_RELOAD_MS;
    while (dpt_now_ms() < end_ms) {
        (void)transport_exchange(client, "b");
        transport_wait(client, 20); /* a connection may send a message each millisecond */
    }
}

/* A list with a machine's deny has a mode that lets others in. Nothing but the mode is mended. */
static void list_counts_when_its_mode_is_mended(void **state)
{
    (void)state;
    const struct dpt_issued_token token = keyed_issue(1, (int64_t)time(NULL));
    const struct dpt_keyring ring = keyed_ring(keyed.machine_b, token.text);
    struct dpt_client *client = transport_start_client_with(keyed.server.port, &ring);
    char line[DPT_ADMISSION_LINE_BYTES], machines[160];
    keyed_tick_until(client, NULL);
    test_log_begin();
    dpt_admission_print_machine(DPT_RIGHT_DENY, &ring.machine.public_key, "b", "", line);
    replace_by_readable_list(line);
    keyed_make_server_look();
    exchange_over_looks(client); /* not denied yet */
    path_in_head("machines", machines);
    assert_int_equal(chmod(machines, 0600), 0);
    keyed_tick_until(client, "no longer admits this machine's key");
    test_log_end();
    assert_int_equal(test_log_count("has mode 0644"), 1);
    assert_int_equal(test_log_count("machines' again: it has changed"), 1);
    dpt_client_destroy(&client);
}

/* A new machine.key cannot be listed, because of the mode of the list: it is as soon as that is
 * mended, although machine.key stays as it is; and once. */
static void machine_key_is_listed_when_the_list_is_mended(void **state)
{
    (void)state;
    const struct dpt_keyring earlier = keyed_ring(keyed.head, NULL);
    struct dpt_client *client = transport_start_client_with(keyed.server.port, &earlier);
    char machine_key[160], machines[160];
    keyed_tick_until(client, NULL);
    test_log_begin();
    replace_by_readable_list("# by hand");
    path_in_head("machine.key", machine_key);
    path_in_head("machines", machines);
    assert_int_equal(unlink(machine_key), 0);
    const struct dpt_keyring fresh = keyed_ring(keyed.head, NULL); /* draws another */
    exchange_over_looks(client);
    assert_int_equal(chmod(machines, 0600), 0);
    const int64_t end_ms = dpt_now_ms() + WAIT_MS;
    while (keyed_count_lines("machines", "define ") < 2 && dpt_now_ms() < end_ms)
        exchange_over_looks(client);
    exchange_over_looks(client);
    test_log_end();
    assert_int_equal(keyed_count_lines("machines", "define "), 2);
    assert_int_equal(test_log_count("has mode 0644"), 2); /* `machines`, and for machine.key */
    assert_int_equal(test_log_count("machine.key' again: it can be used now"), 1);
    keyed_expect_served(&fresh);
    dpt_client_destroy(&client);
}

/* The list of tokens is spoilt while the server runs: what a token admits still counts. */
static void uses_count_while_the_list_is_spoilt(void **state)
{
    (void)state;
    const struct dpt_issued_token token = keyed_issue(1, (int64_t)time(NULL));
    struct dpt_keyring ring = keyed_ring(keyed.machine_b, token.text);
    char other[160];
    struct dpt_err err;
    keyed_make_server_look();
    assert_int_equal(dpt_key_folder_append(&keyed.folder, "tokens", "what is this", NULL, &err),
                     DPT_OK);
    keyed_expect_served(&ring);
    assert_int_equal(keyed_count_lines("tokens", "used "), 1);
    (void)snprintf(other, sizeof other, "%s/c", keyed.dir);
    ring = keyed_ring(other, token.text);
    keyed_expect_refused(&ring, "was revoked or is used up");
    assert_int_equal(keyed_count_lines("tokens", "used "), 1);
}

int main(void)
{
#define CASE(test) cmocka_unit_test_setup_teardown(test, keyed_setup, keyed_teardown)
    const struct CMUnitTest tests[] = {
        CASE(same_user_needs_no_token),
        CASE(unknown_machine_is_refused),
        CASE(token_admits_once_and_for_all),
        CASE(expired_token_says_so),
        CASE(revoked_token_is_refused),
        CASE(forgotten_machine_shows_its_token),
        CASE(denied_machine_is_cut_off),
        CASE(wrong_servers_are_named),
        CASE(strangers_do_not_get_in),
        CASE(kept_token_is_printed_again),
        CASE(server_refuses_bad_folders),
        CASE(spoilt_list_changes_nothing),
        CASE(list_counts_when_its_mode_is_mended),
        CASE(machine_key_is_listed_when_the_list_is_mended),
        CASE(uses_count_while_the_list_is_spoilt),
        CASE(large_frame_before_the_handshake_is_cut_off),
        CASE(denied_client_comes_back),
        CASE(client_of_another_server_is_denied),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
