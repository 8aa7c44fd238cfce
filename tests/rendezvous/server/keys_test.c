/* Server and clients with keys over real sockets. Each "machine" has a separate key folder. */
#include "base/clock.h"
#include "base/fs.h"
#include "rendezvous/keys/enroll.h"
#include "rendezvous/server/newcomers.h"
#include "rendezvous/server/tokens.h"
#include "tests/rendezvous/server/transport.h"
#include "tests/rendezvous/server/zmtp.h"
#include "tests/tmp.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[96], head[128], machine_b[128];
static struct test_server server;
static struct dpt_key_folder folder; /* of the server */

static int setup(void **state)
{
    (void)state;
    struct dpt_err err;
    if (!test_make_dir(dir, sizeof dir, "server-keys"))
        return -1;
    (void)snprintf(head, sizeof head, "%s/head", dir);
    (void)snprintf(machine_b, sizeof machine_b, "%s/b", dir);
    transport_start_as(&server, (struct dpt_server_options){.key_dir = head});
    return dpt_key_folder_open(head, &folder, &err) == DPT_OK ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    struct dpt_err err;
    transport_stop_server(&server);
    return dpt_fs_remove_tree(dir, &err) == DPT_OK ? 0 : -1;
}

/* The keys of a process with this key folder. */
static struct dpt_keyring ring_of(const char *key_dir, const char *token)
{
    char endpoint[64];
    struct dpt_keyring ring;
    struct dpt_err err;
    (void)snprintf(endpoint, sizeof endpoint, "127.0.0.1:%d", server.port);
    const struct dpt_keyring_options options = {
        .token = token != NULL ? token : "", .key_dir = key_dir, .endpoint = endpoint};
    if (dpt_keyring_load(&options, &ring, &err) != DPT_OK)
        fail_msg("%s", err.text);
    return ring;
}

static struct dpt_issued_token issue(int64_t uses, int64_t now_s)
{
    const struct dpt_token_order order = {.right = DPT_RIGHT_DEFINE, .hours = 1, .uses = uses};
    struct dpt_issued_token token;
    struct dpt_err err;
    if (dpt_token_issue(&folder, &order, now_s, &token, &err) != DPT_OK)
        fail_msg("%s", err.text);
    return token;
}

/* Ticks until the client is denied with these words, or, with NULL, has a connection again. */
static void tick_until(struct dpt_client *client, const char *why)
{
    char text[DPT_CLIENT_DENIAL_BYTES] = "";
    struct dpt_client_event event = {.kind = DPT_CLIENT_DOWN};
    struct dpt_err err;
    for (const int64_t end_ms = dpt_now_ms() + WAIT_MS; dpt_now_ms() < end_ms;) {
        dpt_client_tick(client, dpt_now_ms());
        while (dpt_client_next(client, &event, &err) == DPT_OK && event.kind != DPT_CLIENT_UP)
            ;
        const bool denied = dpt_client_is_denied(client, text);
        if (why == NULL ? event.kind == DPT_CLIENT_UP && !denied : strstr(text, why) != NULL)
            return;
        event.kind = DPT_CLIENT_DOWN;
        transport_wait(client, 20);
    }
    fail_msg("wanted '%s', and the client says: %s", why != NULL ? why : "a connection", text);
}

static void expect_served(const struct dpt_keyring *ring)
{
    struct dpt_client *client = transport_start_client_with(server.port, ring);
    tick_until(client, NULL);
    (void)transport_exchange(client, "a");
    dpt_client_destroy(&client);
}

static void expect_refused(const struct dpt_keyring *ring, const char *why)
{
    struct dpt_client *client = transport_start_client_with(server.port, ring);
    struct dpt_err err;
    assert_int_equal(transport_expect_failure(client, &err), DPT_EREFUSED);
    if (strstr(err.text, why) == NULL)
        fail_msg("wanted '%s' in: %s", why, err.text);
    dpt_client_destroy(&client);
}

/* Lines of a file of a key folder that begin with `word`. */
static size_t count_lines_in(const struct dpt_key_folder *of, const char *name, const char *word)
{
    char *text = NULL;
    struct dpt_err err;
    size_t n = 0;
    assert_int_equal(dpt_key_folder_read(of, name, &text, NULL, &err), DPT_OK);
    for (const char *at = text; (at = strstr(at, word)) != NULL; at++)
        n += at == text || at[-1] == '\n';
    free(text);
    return n;
}

static size_t count_lines(const char *name, const char *word)
{
    return count_lines_in(&folder, name, word);
}

static void same_user_needs_no_token(void **state)
{
    (void)state;
    const struct dpt_keyring ring = ring_of(head, NULL);
    expect_served(&ring);
}

static void unknown_machine_is_refused(void **state)
{
    (void)state;
    struct dpt_keyring ring = ring_of(head, NULL);
    const struct dpt_keyring b = ring_of(machine_b, NULL);
    ring.machine = b.machine; /* it knows the server's key, and the server does not know its key */
    expect_refused(&ring, "does not admit this machine's key");
}

static void token_admits_once_and_for_all(void **state)
{
    (void)state;
    const struct dpt_issued_token token = issue(1, (int64_t)time(NULL));
    char other[160];
    struct dpt_keyring ring = ring_of(machine_b, token.text);
    assert_true(ring.enroll_first);
    expect_served(&ring);
    assert_int_equal(count_lines("tokens", "used "), 1);
    assert_int_equal(count_lines("machines", "define "), 2); /* the head's own key, and this one */
    ring = ring_of(machine_b, NULL);                         /* it noted the server */
    assert_int_equal(ring.source, DPT_SERVER_KEY_NOTED);
    expect_served(&ring);
    ring = ring_of(machine_b, token.text); /* the same command again */
    assert_false(ring.enroll_first);
    expect_served(&ring);
    (void)snprintf(other, sizeof other, "%s/servers", machine_b);
    assert_int_equal(unlink(other), 0);
    ring = ring_of(machine_b, token.text); /* it asks again and costs no use */
    assert_true(ring.enroll_first);
    expect_served(&ring);
    assert_int_equal(count_lines("tokens", "used "), 1);
    (void)snprintf(other, sizeof other, "%s/c", dir);
    ring = ring_of(other, token.text);
    expect_refused(&ring, "the token is used up (it admits 1 machine)");
}

static void expired_token_says_so(void **state)
{
    (void)state;
    const struct dpt_issued_token token = issue(9, (int64_t)time(NULL) - 2 * 3600);
    const struct dpt_keyring ring = ring_of(machine_b, token.text);
    expect_refused(&ring, "the token expired 36");
    assert_int_equal(count_lines("machines", "define "), 1);
}

/* The server reads lists that have changed at the latest when an unknown key asks. */
static void make_server_look(void)
{
    char path[160];
    struct dpt_keyring stranger = ring_of(head, NULL);
    (void)snprintf(path, sizeof path, "%s/stranger", dir);
    stranger.machine = ring_of(path, NULL).machine;
    expect_refused(&stranger, "does not admit this machine's key");
}

/* The server's list no longer has its token. */
static void revoked_token_is_refused(void **state)
{
    (void)state;
    const struct dpt_issued_token token = issue(9, (int64_t)time(NULL));
    const struct dpt_keyring ring = ring_of(machine_b, token.text);
    struct dpt_err err;
    assert_int_equal(dpt_key_folder_replace(&folder, "tokens", "", &err), DPT_OK);
    make_server_look();
    expect_refused(&ring, "nor the token");
}

/* The server has lost its list: the machine, which noted the server, shows its token again. */
static void forgotten_machine_shows_its_token(void **state)
{
    (void)state;
    const struct dpt_issued_token token = issue(2, (int64_t)time(NULL));
    struct dpt_keyring ring = ring_of(machine_b, token.text);
    struct dpt_err err;
    expect_served(&ring);
    assert_int_equal(dpt_key_folder_replace(&folder, "machines", "", &err), DPT_OK);
    make_server_look(); /* a machine that is known does not make it look */
    ring = ring_of(machine_b, token.text);
    assert_false(ring.enroll_first);
    expect_served(&ring);
    assert_int_equal(count_lines("tokens", "used "), 2);
}

/* A connection that stands is cut off when its machine is denied: its messages get no answer, and
 * the machine does not come back. */
static void denied_machine_is_cut_off(void **state)
{
    (void)state;
    const struct dpt_issued_token token = issue(1, (int64_t)time(NULL));
    const struct dpt_keyring ring = ring_of(machine_b, token.text);
    struct dpt_admitted_machine machine;
    struct dpt_client *client = transport_start_client_with(server.port, &ring);
    struct dpt_err err;
    char name[DPT_KEY_HEX_BYTES];
    (void)transport_expect(client, DPT_CLIENT_UP);
    (void)transport_exchange(client, "a");
    assert_int_equal(dpt_token_deny_machine(&folder, "nobody", &machine, &err), DPT_ECONFIG);
    dpt_key_hex(&ring.machine.public_key, name);
    name[DPT_KEY_SHORT_DIGITS] = '\0';
    assert_int_equal(dpt_token_deny_machine(&folder, name, &machine, &err), DPT_OK);
    assert_int_equal(dpt_token_deny_machine(&folder, name, &machine, &err), DPT_ECONFIG);
    make_server_look();
    const struct dpt_keyring again = ring_of(machine_b, token.text);
    expect_refused(&again, "does not admit this machine: this machine's key was removed");
    uint8_t buf[512];
    transport_send(client, buf, transport_make_message("a", 1000, NULL, buf, sizeof buf));
    const struct dpt_keyring own = ring_of(head, NULL);
    expect_served(&own); /* served after the message of the denied machine */
    struct dpt_client_event event;
    assert_int_equal(dpt_client_next(client, &event, &err), DPT_INPROGRESS);
    dpt_client_destroy(&client);
}

/* A client that was connected goes on trying, and is back when its machine is let in again. */
static void denied_client_comes_back(void **state)
{
    (void)state;
    const struct dpt_issued_token token = issue(1, (int64_t)time(NULL));
    const struct dpt_keyring ring = ring_of(machine_b, token.text);
    struct dpt_client *client = transport_start_client_with(server.port, &ring);
    struct dpt_admitted_machine machine;
    char line[DPT_ADMISSION_LINE_BYTES], hex[DPT_KEY_HEX_BYTES];
    struct dpt_err err;
    tick_until(client, NULL);
    dpt_key_hex(&ring.machine.public_key, hex);
    hex[DPT_KEY_SHORT_DIGITS] = '\0';
    assert_int_equal(dpt_token_deny_machine(&folder, hex, &machine, &err), DPT_OK);
    make_server_look();
    tick_until(client, "no longer admits this machine's key");
    dpt_admission_print_machine(DPT_RIGHT_DEFINE, &ring.machine.public_key, "b", "", line);
    assert_int_equal(dpt_key_folder_append(&folder, "machines", line, &err), DPT_OK);
    tick_until(client, NULL);
    dpt_client_destroy(&client);
}

static void client_of_another_server_is_denied(void **state)
{
    (void)state;
    struct dpt_keyring ring = ring_of(head, NULL);
    ring.server = ring.machine.public_key;
    struct dpt_client *client = transport_start_client_with(server.port, &ring);
    tick_until(client, "the server there has another key");
    dpt_client_destroy(&client);
}

/* A server that is not the one of the token, and a server without keys: no connection, and the
 * reason. */
static void expect_why(const struct dpt_keyring *ring, int port, const char *why)
{
    struct dpt_client *client = transport_start_client_with(port, ring);
    char text[DPT_CLIENT_WHY_BYTES] = "";
    struct dpt_client_event event;
    struct dpt_err err;
    for (const int64_t end_ms = dpt_now_ms() + WAIT_MS; text[0] == '\0' && dpt_now_ms() < end_ms;) {
        dpt_client_tick(client, dpt_now_ms());
        assert_int_equal(dpt_client_next(client, &event, &err), DPT_INPROGRESS);
        transport_wait(client, 50);
        dpt_client_why(client, text);
    }
    if (strstr(text, why) == NULL)
        fail_msg("wanted '%s' in: %s", why, text);
    dpt_client_destroy(&client);
}

static void wrong_servers_are_named(void **state)
{
    (void)state;
    struct test_server open_server;
    const struct dpt_keyring own = ring_of(head, NULL), other = ring_of(machine_b, NULL);
    struct dpt_keyring token = other;
    token.source = DPT_SERVER_KEY_OF_TOKEN;
    expect_why(&other, server.port, "another key than this machine's key folder has");
    expect_why(&token, server.port, "another key than the token has");
    expect_why(&(struct dpt_keyring){.open = true}, server.port, "the server there has keys");
    transport_start_server(&open_server, 0);
    expect_why(&own, open_server.port, "the server there has no keys (--open)");
    transport_stop_server(&open_server);
}

/* Over a connection with a token's key every message but the request is answered with a refusal,
 * and reaches no run. */
static void token_connection_reaches_no_run(void **state)
{
    (void)state;
    const struct dpt_issued_token token = issue(1, (int64_t)time(NULL));
    struct dpt_keyring ring = ring_of(machine_b, token.text);
    ring.machine = ring.token; /* the token's key in place of the machine's own */
    ring.has_token = ring.enroll_first = false;
    struct dpt_client *client = transport_start_client_with(server.port, &ring);
    (void)transport_expect(client, DPT_CLIENT_UP);
    uint8_t buf[512];
    transport_send(client, buf, transport_make_message("a", 1, NULL, buf, sizeof buf));
    const struct dpt_client_event event = transport_expect(client, DPT_CLIENT_MESSAGE);
    struct dpt_enroll_answer answer;
    struct dpt_err err;
    assert_int_equal(dpt_enroll_answer_decode(event.message, event.bytes, &answer, &err), DPT_OK);
    assert_false(answer.admitted);
    assert_non_null(strstr(answer.text, "malformed"));
    dpt_client_destroy(&client);
}

/* A peer without keys, or that speaks another protocol, does not get through the handshake. */
static void strangers_do_not_get_in(void **state)
{
    (void)state;
    uint8_t junk[512];
    memset(junk, 0x5a, sizeof junk);
    for (int i = 0; i < 20; i++) {
        const int fd = zmtp_dial(server.port);
        (void)zmtp_send(fd, junk, sizeof junk, 17);
        assert_true(zmtp_wait_closed(fd, NULL));
        close(fd);
    }
    const struct dpt_keyring ring = ring_of(head, NULL);
    expect_served(&ring);
}

/* A stranger sends a frame of the largest size in place of its handshake: the server ends the
 * connection long before the frame is whole, or the time of a handshake is over. */
static void large_frame_before_the_handshake_is_cut_off(void **state)
{
    (void)state;
    static uint8_t junk[3 * DPT_NEWCOMER_BYTES_MAX];
    const int fd = zmtp_dial_from(9, server.port);
    const int64_t began_ms = dpt_now_ms();
    zmtp_greet_curve(fd);
    (void)zmtp_send_command(fd, junk, sizeof junk, DPT_MESSAGE_BYTES_MAX);
    assert_true(zmtp_wait_closed(fd, NULL));
    assert_in_range(dpt_now_ms() - began_ms, 1, 4500); /* the handshake may take 10 s */
    close(fd);
    const struct dpt_keyring ring = ring_of(head, NULL);
    expect_served(&ring);
}

/* ---- the server's key changes ---- */

/* Machines that were there are told the next key, and reach the server with it. A machine that was
 * not needs a new token. */
static void server_changes_its_key(void **state)
{
    (void)state;
    const struct dpt_issued_token token = issue(9, (int64_t)time(NULL));
    struct dpt_keyring own = ring_of(head, NULL), b = ring_of(machine_b, token.text);
    struct dpt_client *client = transport_start_client_with(server.port, &b);
    struct dpt_err err;
    char other[160], next[DPT_KEY_HEX_BYTES];
    (void)transport_expect(client, DPT_CLIENT_UP);
    (void)transport_exchange(client, "b");
    const int64_t now_s = (int64_t)time(NULL);
    assert_int_equal(dpt_token_new_server_key(&folder, now_s, &err), DPT_OK);
    assert_int_equal(dpt_token_new_server_key(&folder, now_s, &err), DPT_ECONFIG);
    assert_non_null(strstr(err.text, "waiting already"));
    const struct dpt_keyring between = ring_of(head, NULL);
    assert_true(between.has_other && !own.has_other);
    dpt_key_hex(&between.other, next);
    const int64_t end_ms = dpt_now_ms() + WAIT_MS;
    while (count_lines_in(&b.folder, "servers", next) == 0 && dpt_now_ms() < end_ms) {
        (void)transport_exchange(client, "b");
        transport_wait(client, 20); /* a connection may send a message each millisecond */
    }
    assert_int_equal(count_lines_in(&b.folder, "servers", next), 1); /* it was told, and once */
    (void)transport_expect(client, DPT_CLIENT_DOWN); /* the port is closed and opened again */
    tick_until(client, NULL);
    (void)transport_exchange(client, "b");
    dpt_client_destroy(&client);
    expect_served(&between);
    const struct dpt_keyring later = ring_of(head, NULL), noted = ring_of(machine_b, NULL),
                             with_token = ring_of(machine_b, token.text);
    assert_true(dpt_key_equal(&later.server, &between.other) && !later.has_other);
    assert_true(dpt_key_equal(&noted.server, &later.server));
    expect_served(&later);
    expect_served(&noted);
    expect_served(&with_token); /* the command line keeps the token of the earlier key */
    (void)snprintf(other, sizeof other, "%s/c", dir);
    const struct dpt_keyring late = ring_of(other, token.text);
    expect_why(&late, server.port, "another key than the token has");
    const struct dpt_issued_token fresh = issue(9, (int64_t)time(NULL));
    const struct dpt_keyring c = ring_of(other, fresh.text);
    expect_served(&c);
}

static void kept_token_is_printed_again(void **state)
{
    (void)state;
    const struct dpt_token_order order = {.right = DPT_RIGHT_DEFINE, .hours = 1, .uses = 2},
                                 join = {.right = DPT_RIGHT_JOIN, .hours = 1, .uses = 2};
    const int64_t now_s = (int64_t)time(NULL);
    struct dpt_issued_token first, again, later;
    struct dpt_err err;
    assert_int_equal(dpt_token_current(&folder, &order, now_s, &first, &err), DPT_OK);
    assert_int_equal(dpt_token_current(&folder, &order, now_s, &again, &err), DPT_OK);
    assert_string_equal(first.text, again.text);
    assert_int_equal(again.entry.uses - again.entry.used, 2);
    assert_int_equal(dpt_token_current(&folder, &order, now_s + 3600, &later, &err), DPT_OK);
    assert_string_not_equal(first.text, later.text); /* it has expired */
    assert_int_equal(dpt_token_current(&folder, &join, now_s, &again, &err), DPT_OK);
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
        (void)snprintf(path, sizeof path, "%s/bad-%zu", dir, i);
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
    const struct dpt_keyring own = ring_of(head, NULL);
    char *text = NULL;
    struct dpt_err err;
    assert_int_equal(dpt_key_folder_read(&folder, "machines", &text, NULL, &err), DPT_OK);
    assert_int_equal(dpt_key_folder_append(&folder, "machines", "what is this", &err), DPT_OK);
    make_server_look();
    expect_served(&own);
    assert_int_equal(dpt_key_folder_replace(&folder, "machines", text, &err), DPT_OK);
    free(text);
    make_server_look();
    expect_served(&own);
}

int main(void)
{
#define CASE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(same_user_needs_no_token),
        CASE(unknown_machine_is_refused),
        CASE(token_admits_once_and_for_all),
        CASE(expired_token_says_so),
        CASE(revoked_token_is_refused),
        CASE(forgotten_machine_shows_its_token),
        CASE(denied_machine_is_cut_off),
        CASE(wrong_servers_are_named),
        CASE(token_connection_reaches_no_run),
        CASE(strangers_do_not_get_in),
        CASE(kept_token_is_printed_again),
        CASE(server_refuses_bad_folders),
        CASE(spoilt_list_changes_nothing),
        CASE(large_frame_before_the_handshake_is_cut_off),
        CASE(server_changes_its_key),
        CASE(denied_client_comes_back),
        CASE(client_of_another_server_is_denied),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
