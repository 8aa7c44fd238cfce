/* The server's key changes while machines are connected. */
#include "base/clock.h"
#include "tests/rendezvous/server/keyed.h"

#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

/* A server elsewhere with the present key of the server. */
static void start_thief(struct test_server *thief)
{
    struct dpt_key_folder stolen;
    struct dpt_err err;
    static char path[160];
    char *secret = NULL;
    (void)snprintf(path, sizeof path, "%s/thief", keyed.dir);
    assert_int_equal(dpt_key_folder_open(path, &stolen, &err), DPT_OK);
    assert_int_equal(dpt_key_folder_read(&keyed.folder, "server.key", &secret, NULL, &err), DPT_OK);
    assert_int_equal(dpt_key_folder_replace(&stolen, "server.key", secret, &err), DPT_OK);
    free(secret);
    transport_start_as(thief, (struct dpt_server_options){.key_dir = path});
}

/* Machines that were there are told the next key, and reach the server with it. From then on they
 * do not talk to a thief of the earlier key. A machine that was not there needs a new token. */
static void server_changes_its_key(void **state)
{
    (void)state;
    struct test_server thief;
    start_thief(&thief);
    const struct dpt_issued_token token = keyed_issue(9, (int64_t)time(NULL));
    struct dpt_keyring own = keyed_ring(keyed.head, NULL),
                       b = keyed_ring(keyed.machine_b, token.text);
    struct dpt_client *client = transport_start_client_with(keyed.server.port, &b);
    struct dpt_err err;
    char other[160], next[DPT_KEY_HEX_BYTES], earlier[DPT_KEY_HEX_BYTES];
    dpt_key_hex(&own.server, earlier);
    (void)transport_expect(client, DPT_CLIENT_UP);
    (void)transport_exchange(client, "b");
    assert_int_equal(keyed_count_lines_in(&b.folder, "servers", earlier), 1);
    const int64_t now_s = (int64_t)time(NULL);
    assert_int_equal(dpt_token_new_server_key(&keyed.folder, now_s, &err), DPT_OK);
    assert_int_equal(dpt_token_new_server_key(&keyed.folder, now_s, &err), DPT_ECONFIG);
    assert_non_null(strstr(err.text, "waiting already"));
    const struct dpt_keyring between = keyed_ring(keyed.head, NULL);
    assert_true(between.has_next && !own.has_next);
    dpt_key_hex(&between.next, next);
    const int64_t end_ms = dpt_now_ms() + WAIT_MS;
    while (keyed_count_lines_in(&b.folder, "servers", next) == 0 && dpt_now_ms() < end_ms) {
        (void)transport_exchange(client, "b");
        transport_wait(client, 20); /* a connection may send a message each millisecond */
    }
    assert_int_equal(keyed_count_lines_in(&b.folder, "servers", next),
                     1); /* it was told, and once */
    assert_true(dpt_client_awaits_new_key(client));
    (void)transport_expect(client, DPT_CLIENT_DOWN); /* the port is closed and opened again */
    keyed_tick_until(client, NULL);
    assert_false(dpt_client_awaits_new_key(client));
    (void)transport_exchange(client, "b");
    dpt_client_destroy(&client);
    assert_int_equal(keyed_count_lines_in(&b.folder, "servers", earlier), 0);
    assert_int_equal(keyed_count_lines_in(&b.folder, "servers", next), 1);
    keyed_expect_served(&between);
    const struct dpt_keyring later = keyed_ring(keyed.head, NULL),
                             noted = keyed_ring(keyed.machine_b, NULL),
                             with_token = keyed_ring(keyed.machine_b, token.text);
    assert_true(dpt_key_equal(&later.server, &between.next) && !later.has_next);
    assert_true(dpt_key_equal(&noted.server, &later.server));
    keyed_expect_served(&later);
    keyed_expect_served(&noted);
    keyed_expect_served(&with_token); /* the command line keeps the token of the earlier key */
    keyed_expect_why(&noted, thief.port, "another key than the file 'servers'");
    assert_true(dpt_key_equal(&with_token.server, &noted.server) && !with_token.has_next);
    transport_stop_server(&thief);
    (void)snprintf(other, sizeof other, "%s/c", keyed.dir);
    const struct dpt_keyring late = keyed_ring(other, token.text);
    keyed_expect_why(&late, keyed.server.port, "another key than the token has");
    const struct dpt_issued_token fresh = keyed_issue(9, (int64_t)time(NULL));
    const struct dpt_keyring c = keyed_ring(other, fresh.text);
    keyed_expect_served(&c);
}

/* The keys of a process of machine b for the server at this port, which b knows by its token. */
static struct dpt_keyring ring_for(int port, const char *token)
{
    char endpoint[64];
    struct dpt_keyring ring;
    struct dpt_err err;
    (void)snprintf(endpoint, sizeof endpoint, "127.0.0.1:%d", port);
    const struct dpt_keyring_options options = {
        .token = token, .key_dir = keyed.machine_b, .endpoint = endpoint};
    assert_int_equal(dpt_keyring_load(&options, &ring, &err), DPT_OK);
    return ring;
}

/* A client of the head's machine is served at this address. */
static void expect_served_at(const char *host, int port)
{
    char endpoint[64];
    struct dpt_client *client;
    struct dpt_err err;
    const struct dpt_keyring ring = keyed_ring(keyed.head, NULL);
    (void)snprintf(endpoint, sizeof endpoint, "%s:%d", host, port);
    assert_int_equal(dpt_client_create(endpoint, SILENCE_MS, &ring, &client, &err), DPT_OK);
    keyed_tick_until(client, NULL);
    (void)transport_exchange(client, "a");
    dpt_client_destroy(&client);
}

static bool has_loopback6(void)
{
    const struct sockaddr_in6 at = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    const int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool has = fd >= 0 && bind(fd, (const struct sockaddr *)&at, sizeof at) == 0;
    if (fd >= 0)
        close(fd);
    return has;
}

/* Two servers have one key folder: both tell their machines the next key, one of them takes it, and
 * the other one follows, at both of its addresses. A token counts for both. */
static void two_servers_change_their_key_together(void **state)
{
    (void)state;
    enum { N = 2 };
    struct test_server other;
    struct dpt_client *clients[N];
    struct dpt_keyring rings[N];
    struct dpt_key_pair next;
    struct dpt_err err;
    char hex[DPT_KEY_HEX_BYTES], path[160];
    const struct dpt_issued_token token = keyed_issue(1, (int64_t)time(NULL));
    transport_start_as(&other,
                       (struct dpt_server_options){.address = "localhost", .key_dir = keyed.head});
    const int ports[N] = {keyed.server.port, other.port};
    for (int i = 0; i < N; i++) {
        rings[i] = ring_for(ports[i], token.text);
        clients[i] = transport_start_client_with(ports[i], &rings[i]);
        keyed_tick_until(clients[i], NULL);
        (void)transport_exchange(clients[i], "b");
    }
    (void)snprintf(path, sizeof path, "%s/c", keyed.dir);
    struct dpt_keyring c = keyed_ring(path, token.text);
    keyed_expect_refused(&c, "was revoked or is used up");
    assert_int_equal(dpt_token_new_server_key(&keyed.folder, (int64_t)time(NULL), &err), DPT_OK);
    assert_int_equal(dpt_keyring_pair(&keyed.folder, DPT_KEYRING_NEXT_KEY, &next, &err), DPT_OK);
    dpt_key_hex(&next.public_key, hex);
    const int64_t end_ms = dpt_now_ms() + WAIT_MS;
    while (keyed_count_lines_in(&rings[0].folder, "servers", hex) < N && dpt_now_ms() < end_ms)
        for (int i = 0; i < N; i++) {
            (void)transport_exchange(clients[i], "b");
            transport_wait(clients[i], 20);
        }
    for (int i = 0; i < N; i++) {
        (void)transport_expect(clients[i], DPT_CLIENT_DOWN);
        keyed_tick_until(clients[i], NULL);
        (void)transport_exchange(clients[i], "b");
        dpt_client_destroy(&clients[i]);
    }
    for (int i = 0; i < N; i++) {
        const struct dpt_keyring later = ring_for(ports[i], "");
        assert_true(dpt_key_equal(&later.server, &next.public_key) && !later.has_next);
    }
    assert_int_equal(dpt_key_folder_state(&keyed.folder, DPT_KEYRING_NEXT_KEY).inode, 0);
    expect_served_at("127.0.0.1", other.port);
    if (has_loopback6())
        expect_served_at("[::1]", other.port);
    transport_stop_server(&other);
}

/* Another process is changing the folder's files: a clear line, and nothing is changed. */
static void locked_folder_stays(void **state)
{
    (void)state;
    static const char locked[] = "is locked by another process of dpt";
    const struct dpt_token_order order = {.right = DPT_RIGHT_JOIN, .hours = 1, .uses = 1};
    struct dpt_issued_token token;
    struct dpt_admission_token revoked;
    struct dpt_admitted_machine machine;
    struct dpt_err err;
    int lock = -1;
    assert_int_equal(dpt_key_folder_lock(&keyed.folder, &lock, &err), DPT_OK);
    assert_int_equal(dpt_token_new_server_key(&keyed.folder, 1, &err), DPT_ECONFIG);
    assert_non_null(strstr(err.text, locked));
    assert_int_equal(dpt_token_issue(&keyed.folder, &order, 1, &token, &err), DPT_ECONFIG);
    assert_non_null(strstr(err.text, locked));
    assert_int_equal(dpt_token_revoke(&keyed.folder, "00000000", &revoked, &err), DPT_ECONFIG);
    assert_non_null(strstr(err.text, locked));
    assert_int_equal(dpt_token_deny_machine(&keyed.folder, "a", &machine, &err), DPT_ECONFIG);
    assert_non_null(strstr(err.text, locked));
    assert_int_equal(dpt_key_folder_state(&keyed.folder, DPT_KEYRING_NEXT_KEY).inode, 0);
    dpt_key_folder_unlock(lock);
    assert_int_equal(dpt_token_issue(&keyed.folder, &order, 1, &token, &err), DPT_OK);
}

int main(void)
{
#define CASE(test) cmocka_unit_test_setup_teardown(test, keyed_setup, keyed_teardown)
    const struct CMUnitTest tests[] = {
        CASE(server_changes_its_key),
        CASE(two_servers_change_their_key_together),
        CASE(locked_folder_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
