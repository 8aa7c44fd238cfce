/* Client and server over real sockets on loopback: connections that come and go. Every wait is for
 * a descriptor. */
#include "base/clock.h"
#include "base/log.h"
#include "tests/rendezvous/server/transport.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

static const struct dpt_keyring no_keys = {.open = true};

static void test_messages_are_exchanged(void **state)
{
    (void)state;
    struct test_server server;
    transport_start_server(&server, 0);
    struct dpt_client *client = transport_start_client(server.port);
    assert_int_equal(dpt_client_round_trip_us(client), 0);
    (void)transport_expect(client, DPT_CLIENT_UP);
    assert_in_range(dpt_client_round_trip_us(client), 1, WAIT_MS * 1000);
    (void)transport_exchange(client, "a");
    dpt_client_destroy(&client);
    assert_null(client);
    transport_stop_server(&server);
}

static void test_server_restarts_on_its_port(void **state)
{
    (void)state;
    struct test_server server;
    transport_start_server(&server, 0);
    int port = server.port;
    struct dpt_client *client = transport_start_client(port);
    (void)transport_expect(client, DPT_CLIENT_UP);
    uint64_t epoch = transport_exchange(client, "a");
    for (int i = 0; i < 3; i++) {
        transport_stop_server(&server);
        (void)transport_expect(client, DPT_CLIENT_DOWN);
        transport_start_server(&server, port);
        (void)transport_expect(client, DPT_CLIENT_UP);
        uint64_t next = transport_exchange(client, "a");
        assert_int_not_equal(next, epoch);
        epoch = next;
    }
    dpt_client_destroy(&client);
    transport_stop_server(&server);
}

static void test_nobody_there(void **state)
{
    (void)state;
    struct test_server server;
    transport_start_server(&server, 0);
    int port = server.port;
    transport_stop_server(&server);
    struct dpt_client *client = transport_start_client(port);
    struct dpt_client_event event;
    struct dpt_err err;
    assert_int_equal(dpt_client_send(client, "x", 1, &err), DPT_INPROGRESS);
    assert_int_equal(dpt_client_next(client, &event, &err), DPT_INPROGRESS);
    int64_t start_ms = dpt_now_ms();
    dpt_client_destroy(&client);
    assert_true(dpt_now_ms() - start_ms < WAIT_MS / 2);
}

static void test_port_in_use(void **state)
{
    (void)state;
    struct test_server server;
    struct dpt_server *second = NULL;
    struct dpt_err err;
    transport_start_server(&server, 0);
    const struct dpt_server_options options = {
        .address = "127.0.0.1", .port = server.port, .open = true, .stop_fd = server.stop_fd};
    assert_int_equal(dpt_server_create(&options, &second, &err), DPT_EEXIST);
    char port[16];
    (void)snprintf(port, sizeof port, ":%d ", server.port);
    assert_non_null(strstr(err.text, port));
    assert_non_null(strstr(err.text, "in use"));
    transport_stop_server(&server);
}

static void expect_bind(const char *address, int port, enum dpt_status expected)
{
    struct dpt_server *server = NULL;
    struct dpt_err err;
    const struct dpt_server_options options = {
        .address = address, .port = port, .open = true, .stop_fd = -1};
    enum dpt_status status = dpt_server_create(&options, &server, &err);
    if (status != expected)
        fail_msg("--bind %s: %s", address, status == DPT_OK ? "taken" : err.text);
    dpt_server_destroy(&server);
}

static void test_bind_addresses(void **state)
{
    (void)state;
    expect_bind(NULL, 0, DPT_OK);
    expect_bind("localhost", 0, DPT_OK);
    expect_bind("127.0.0.5", 0, DPT_OK);
    expect_bind("0.0.0.0", 0, DPT_OK);
    expect_bind("*", 0, DPT_OK);
    expect_bind("eth0", 0, DPT_ECONFIG);
    expect_bind("head.example.org", 0, DPT_ECONFIG);
    expect_bind("203.0.113.7", 0, DPT_ECONFIG); /* not ours */
    expect_bind(NULL, 65536, DPT_ECONFIG);
    expect_bind(NULL, -1, DPT_ECONFIG);
}

/* The client receives the time as an argument, so its patience needs no waiting here. */
static void test_silent_connection_is_replaced(void **state)
{
    (void)state;
    struct test_server server;
    struct dpt_err err;
    transport_start_server(&server, 0);
    struct dpt_client *client = transport_start_client(server.port);
    int64_t now_ms = 1000;
    dpt_client_tick(client, now_ms);
    (void)transport_expect(client, DPT_CLIENT_UP);
    for (int i = 0; i < 3; i++) { /* an answer now and then keeps it */
        now_ms += SILENCE_MS / 4;
        (void)transport_exchange(client, "a");
        dpt_client_tick(client, now_ms);
    }
    now_ms += 10 * SILENCE_MS; /* we were stopped: not the server's fault */
    struct dpt_client_event event;
    dpt_client_tick(client, now_ms);
    assert_int_equal(dpt_client_next(client, &event, &err), DPT_INPROGRESS);
    for (int i = 0; i < 4; i++) {
        now_ms += SILENCE_MS / 4;
        dpt_client_tick(client, now_ms);
    }
    assert_int_equal(dpt_client_next(client, &event, &err), DPT_OK);
    assert_int_equal(event.kind, DPT_CLIENT_DOWN);
    (void)transport_expect(client, DPT_CLIENT_UP);
    (void)transport_exchange(client, "a");
    dpt_client_destroy(&client);
    transport_stop_server(&server);
}

/* The socket cannot be replaced for want of descriptors: no connection, until there are some again.
 */
/* A server that takes connections and sends nothing, as with a full disk: here, because it was
 * asked nothing. An answer ends that, and so does time. */
static void test_silent_server_is_named(void **state)
{
    (void)state;
    struct test_server server;
    char why[DPT_CLIENT_WHY_BYTES];
    transport_start_server(&server, 0);
    struct dpt_client *client = transport_start_client(server.port);
    int64_t now_ms = 1000;
    for (int round = 0; round < 2; round++) {
        dpt_client_tick(client, now_ms);
        (void)transport_expect(client, DPT_CLIENT_UP);
        for (int i = 0; i < 5; i++) {
            dpt_client_why(client, why);
            assert_string_equal(why, "");
            now_ms += SILENCE_MS / 4;
            dpt_client_tick(client, now_ms);
        }
        (void)transport_expect(client, DPT_CLIENT_DOWN);
        dpt_client_why(client, why);
        assert_string_equal(why, DPT_CLIENT_SILENT);
        if (round == 0) {
            (void)transport_expect(client, DPT_CLIENT_UP);
            (void)transport_exchange(client, "a");
        } else {
            now_ms += 10 * SILENCE_MS;
            dpt_client_tick(client, now_ms);
        }
        dpt_client_why(client, why);
        assert_string_equal(why, "");
        dpt_client_destroy(&client);
        client = transport_start_client(server.port);
    }
    dpt_client_destroy(&client);
    transport_stop_server(&server);
}

static void test_descriptors_run_out(void **state)
{
    (void)state;
    struct test_server server;
    transport_start_server(&server, 0);
    struct dpt_client *client = transport_start_client(server.port);
    struct dpt_client_event event;
    struct dpt_err err;
    struct rlimit limit, none;
    int64_t now_ms = 1000;
    dpt_client_tick(client, now_ms);
    (void)transport_expect(client, DPT_CLIENT_UP);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    none = limit;
    none.rlim_cur = 3;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    for (int i = 0; i < 5; i++)
        dpt_client_tick(client, now_ms += SILENCE_MS / 4);
    assert_int_equal(dpt_client_next(client, &event, &err), DPT_OK);
    assert_int_equal(event.kind, DPT_CLIENT_DOWN);
    assert_int_equal(dpt_client_next(client, &event, &err), DPT_INPROGRESS);
    assert_int_equal(dpt_client_send(client, "x", 1, &err), DPT_INPROGRESS);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    dpt_client_tick(client, now_ms);
    (void)transport_expect(client, DPT_CLIENT_UP);
    (void)transport_exchange(client, "a");
    dpt_client_destroy(&client);
    transport_stop_server(&server);
}

static void test_embedded_server(void **state)
{
    (void)state;
    struct dpt_server_thread *thread;
    struct dpt_err err;
    assert_int_equal(dpt_server_thread_start(&thread, &err), DPT_OK);
    const char *endpoint = dpt_server_thread_endpoint(thread);
    const int port = (int)strtol(strrchr(endpoint, ':') + 1, NULL, 10);
    struct dpt_client *client = transport_start_client_with(port, dpt_server_thread_keys(thread));
    (void)transport_expect(client, DPT_CLIENT_UP);
    (void)transport_exchange(client, "a");
    dpt_client_destroy(&client);
    dpt_server_thread_stop(&thread);
    assert_null(thread);
}

static int logged; /* lines of the server's core */

static void count_line(void *ctx, const char *line, size_t bytes)
{
    (void)ctx;
    logged += memmem(line, bytes, "run=transport", strlen("run=transport")) != NULL;
}

/* The worker that embeds a server reports the run's events itself: the core's lines are at
 * debug. */
static void test_embedded_server_logs_nothing(void **state)
{
    (void)state;
    for (int embedded = 0; embedded < 2; embedded++) {
        struct test_server server;
        logged = 0;
        dpt_log_set_sink(count_line, NULL);
        transport_start_as(&server,
                           (struct dpt_server_options){.embedded = embedded, .open = true});
        struct dpt_client *client = transport_start_client(server.port);
        (void)transport_expect(client, DPT_CLIENT_UP);
        transport_bring_config(client, 100);
        dpt_client_destroy(&client);
        transport_stop_server(&server);
        dpt_log_set_sink(NULL, NULL);
        if (embedded)
            assert_int_equal(logged, 0);
        else
            assert_true(logged > 0);
    }
}

static int count_descriptors(void)
{
    int n = 0;
    DIR *dir = opendir("/proc/self/fd");
    assert_non_null(dir);
    while (readdir(dir) != NULL)
        n++;
    (void)closedir(dir);
    return n;
}

/* Each client of a group has its own connection, and takes no more descriptors than it says. One
 * that is destroyed leaves the others alone. */
static void test_clients_of_a_group(void **state)
{
    (void)state;
    enum { CLIENTS = 20 };
    struct test_server server;
    struct dpt_client_group *group;
    struct dpt_client *clients[CLIENTS];
    char endpoint[64];
    struct dpt_err err;
    transport_start_server(&server, 0);
    (void)snprintf(endpoint, sizeof endpoint, "127.0.0.1:%d", server.port);
    assert_int_equal(dpt_client_group_create(CLIENTS, &group, &err), DPT_OK);
    int before = 0;
    for (int i = 0; i < CLIENTS; i++) {
        assert_int_equal(
            dpt_client_create_in(group, endpoint, SILENCE_MS, &no_keys, &clients[i], &err), DPT_OK);
        (void)transport_expect(clients[i], DPT_CLIENT_UP);
        if (i == 0) /* the first socket of a context starts its threads, which have descriptors */
            before = count_descriptors();
        char node[16];
        (void)snprintf(node, sizeof node, "n%d", i);
        (void)transport_exchange(clients[i], node);
    }
    /* The server of this process takes one for each connection. */
    assert_in_range(count_descriptors() - before, CLIENTS - 1,
                    (CLIENTS - 1) * (DPT_CLIENT_GROUP_FDS + 1));
    for (int i = 0; i < CLIENTS; i++) {
        dpt_client_destroy(&clients[i]);
        if (i + 1 < CLIENTS)
            (void)transport_exchange(clients[i + 1], "again");
    }
    dpt_client_group_destroy(&group);
    assert_null(group);
    dpt_client_group_destroy(&group);
    assert_int_equal(dpt_client_group_create(1, &group, &err), DPT_OK);
    assert_int_equal(dpt_client_create_in(group, "host", SILENCE_MS, &no_keys, &clients[0], &err),
                     DPT_ECONFIG);
    dpt_client_group_destroy(&group);
    transport_stop_server(&server);
}

static void test_endpoints_are_checked(void **state)
{
    (void)state;
    static const char *const good[] = {"127.0.0.1:29500", "[::1]:1", "head.example.org:65535",
                                       "a:1"};
    static const char *const bad[] = {
        "",          "host",  "host:", ":29500",  "host:0", "host:65536", "host:1x", "tcp://host:1",
        "::1:29500", "[::1]", "[]:1",  "host:-1", "a b:1",  "host:1/x",   "*:1",     "host: 1"};
    struct dpt_err err;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        if (dpt_client_check_endpoint(good[i], &err) != DPT_OK)
            fail_msg("%s", err.text);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (dpt_client_check_endpoint(bad[i], &err) != DPT_ECONFIG)
            fail_msg("'%s' was taken", bad[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages_are_exchanged),
        cmocka_unit_test(test_server_restarts_on_its_port),
        cmocka_unit_test(test_nobody_there),
        cmocka_unit_test(test_port_in_use),
        cmocka_unit_test(test_bind_addresses),
        cmocka_unit_test(test_silent_connection_is_replaced),
        cmocka_unit_test(test_silent_server_is_named),
        cmocka_unit_test(test_descriptors_run_out),
        cmocka_unit_test(test_embedded_server),
        cmocka_unit_test(test_embedded_server_logs_nothing),
        cmocka_unit_test(test_clients_of_a_group),
        cmocka_unit_test(test_endpoints_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
