/* Client and server over real sockets on loopback: connections that come and go, and peers that
 * misbehave. Every wait is for a descriptor. */
#include "base/clock.h"
#include "base/log.h"
#include "rendezvous/client/client.h"
#include "rendezvous/proto/message.h"
#include "rendezvous/server/server.h"
#include "tests/agent/zmtp.h"

#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

enum { WAIT_MS = 20000, SILENCE_MS = 4000 };

/* ---- a server on a thread, at a port that can be chosen ---- */

struct test_server {
    pthread_t thread;
    struct dpt_server *server;
    int stop_fd, port;
    bool failed;
};

static void *serve(void *arg)
{
    struct test_server *s = arg;
    struct dpt_err err;
    s->failed = dpt_server_run(s->server, &err) != DPT_OK;
    return NULL;
}

static void start_as(struct test_server *s, struct dpt_server_options options)
{
    struct dpt_err err;
    *s = (struct test_server){.stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    options.stop_fd = s->stop_fd;
    if (dpt_server_create(&options, &s->server, &err) != DPT_OK)
        fail_msg("%s", err.text);
    s->port = dpt_server_port(s->server);
    assert_int_equal(pthread_create(&s->thread, NULL, serve, s), 0);
}

static void start_server(struct test_server *s, int port)
{
    start_as(s, (struct dpt_server_options){.port = port});
}

static void stop_server(struct test_server *s)
{
    assert_int_equal(eventfd_write(s->stop_fd, 1), 0);
    assert_int_equal(pthread_join(s->thread, NULL), 0);
    assert_false(s->failed);
    dpt_server_destroy(&s->server);
    close(s->stop_fd);
}

/* ---- a client ---- */

static struct dpt_client *start_client(int port)
{
    char endpoint[64];
    struct dpt_client *client;
    struct dpt_err err;
    (void)snprintf(endpoint, sizeof endpoint, "127.0.0.1:%d", port);
    const struct dpt_client_options options = {.endpoint = endpoint, .silence_ms = SILENCE_MS};
    assert_int_equal(dpt_client_create(&options, &client, &err), DPT_OK);
    return client;
}

/* Waits for the next event of a kind, passing over others. */
static struct dpt_client_event expect(struct dpt_client *client, enum dpt_client_event_kind kind)
{
    struct dpt_client_event event;
    struct dpt_err err;
    int64_t deadline_ms = dpt_now_ms() + WAIT_MS;
    for (;;) {
        enum dpt_status status = dpt_client_next(client, &event, &err);
        if (status == DPT_OK && event.kind == kind)
            return event;
        if (status == DPT_OK)
            continue;
        assert_int_equal(status, DPT_INPROGRESS);
        int64_t left_ms = deadline_ms - dpt_now_ms();
        if (left_ms <= 0)
            fail_msg("no event of kind %d within %d ms", (int)kind, WAIT_MS);
        int fds[DPT_CLIENT_FDS];
        dpt_client_fds(client, fds);
        struct pollfd items[DPT_CLIENT_FDS] = {{.fd = fds[0], .events = POLLIN},
                                               {.fd = fds[1], .events = POLLIN}};
        (void)poll(items, DPT_CLIENT_FDS, (int)left_ms);
    }
}

/* A first message of node `node`; without a spec it asks for the run's config. */
static size_t make_message(const char *node, uint64_t counter, Dpt__RunSpec *spec, uint8_t *buf,
                           size_t buf_bytes)
{
    Dpt__Stamp stamp = DPT__STAMP__INIT;
    stamp.run = (char *)(uintptr_t) "transport";
    stamp.node = (char *)(uintptr_t)node;
    stamp.incarnation = 1;
    Dpt__AgentState state = DPT__AGENT_STATE__INIT;
    state.version = DPT_PROTO_VERSION;
    state.software = (char *)(uintptr_t) "dpt test";
    state.stamp = &stamp;
    state.counter = counter;
    state.spec = spec;
    size_t bytes;
    struct dpt_err err;
    assert_int_equal(dpt_message_encode(&state.base, buf, buf_bytes, &bytes, &err), DPT_OK);
    return bytes;
}

static size_t make_state(const char *node, uint64_t counter, uint8_t *buf, size_t buf_bytes)
{
    return make_message(node, counter, NULL, buf, buf_bytes);
}

/* Sends until the connection takes it: for a moment after UP it does not. */
static void send_bytes(struct dpt_client *client, const void *data, size_t bytes)
{
    struct dpt_err err;
    enum dpt_status status = DPT_INPROGRESS;
    for (int64_t end_ms = dpt_now_ms() + WAIT_MS;
         status == DPT_INPROGRESS && dpt_now_ms() < end_ms;)
        status = dpt_client_send(client, data, bytes, &err);
    assert_int_equal(status, DPT_OK);
}

/* Says who we are and returns the epoch of the server's answer. */
static uint64_t exchange(struct dpt_client *client, const char *node)
{
    static uint64_t counter;
    uint8_t buf[512];
    struct dpt_err err;
    send_bytes(client, buf, make_state(node, ++counter, buf, sizeof buf));
    struct dpt_client_event event = expect(client, DPT_CLIENT_MESSAGE);
    Dpt__ServerState *answer = NULL;
    assert_int_equal(dpt_message_decode_server_state(event.message, event.bytes, &answer, &err),
                     DPT_OK);
    assert_string_equal(answer->stamp->run, "transport");
    uint64_t epoch = answer->stamp->epoch;
    dpt_message_free_server_state(&answer);
    assert_int_not_equal(epoch, 0);
    return epoch;
}

/* ---- the tests ---- */

static void test_exchange(void **state)
{
    (void)state;
    struct test_server server;
    start_server(&server, 0);
    struct dpt_client *client = start_client(server.port);
    (void)expect(client, DPT_CLIENT_UP);
    (void)exchange(client, "a");
    dpt_client_destroy(&client);
    assert_null(client);
    stop_server(&server);
}

static void test_server_restarts_on_its_port(void **state)
{
    (void)state;
    struct test_server server;
    start_server(&server, 0);
    int port = server.port;
    struct dpt_client *client = start_client(port);
    (void)expect(client, DPT_CLIENT_UP);
    uint64_t epoch = exchange(client, "a");
    for (int i = 0; i < 3; i++) {
        stop_server(&server);
        (void)expect(client, DPT_CLIENT_DOWN);
        start_server(&server, port);
        (void)expect(client, DPT_CLIENT_UP);
        uint64_t next = exchange(client, "a");
        assert_int_not_equal(next, epoch);
        epoch = next;
    }
    dpt_client_destroy(&client);
    stop_server(&server);
}

static void test_nobody_there(void **state)
{
    (void)state;
    struct test_server server;
    start_server(&server, 0);
    int port = server.port;
    stop_server(&server);
    struct dpt_client *client = start_client(port);
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
    start_server(&server, 0);
    const struct dpt_server_options options = {.port = server.port, .stop_fd = server.stop_fd};
    assert_int_equal(dpt_server_create(&options, &second, &err), DPT_EEXIST);
    char port[16];
    (void)snprintf(port, sizeof port, ":%d ", server.port);
    assert_non_null(strstr(err.text, port));
    assert_non_null(strstr(err.text, "in use"));
    stop_server(&server);
}

static void expect_bind(const char *address, bool insecure, int port, enum dpt_status expected)
{
    struct dpt_server *server = NULL;
    struct dpt_err err;
    const struct dpt_server_options options = {
        .address = address, .port = port, .insecure = insecure, .stop_fd = -1};
    enum dpt_status status = dpt_server_create(&options, &server, &err);
    if (status != expected)
        fail_msg("--bind %s: %s", address, status == DPT_OK ? "taken" : err.text);
    dpt_server_destroy(&server);
}

static void test_binding(void **state)
{
    (void)state;
    expect_bind(NULL, false, 0, DPT_OK);
    expect_bind("localhost", false, 0, DPT_OK);
    expect_bind("127.0.0.5", false, 0, DPT_OK);
    expect_bind(NULL, true, 0, DPT_OK);
    expect_bind("0.0.0.0", true, 0, DPT_OK);
    expect_bind("*", true, 0, DPT_OK);
    expect_bind("0.0.0.0", false, 0, DPT_ECONFIG); /* others would reach it */
    expect_bind("*", false, 0, DPT_ECONFIG);
    expect_bind("::", false, 0, DPT_ECONFIG);
    expect_bind("eth0", true, 0, DPT_ECONFIG);
    expect_bind("head.example.org", true, 0, DPT_ECONFIG);
    expect_bind("203.0.113.7", true, 0, DPT_ECONFIG); /* not ours */
    expect_bind(NULL, false, 65536, DPT_ECONFIG);
    expect_bind(NULL, false, -1, DPT_ECONFIG);
}

static void test_garbage(void **state)
{
    (void)state;
    struct test_server server;
    start_server(&server, 0);
    struct dpt_client *client = start_client(server.port);
    (void)expect(client, DPT_CLIENT_UP);
    uint8_t junk[300];
    memset(junk, 0xee, sizeof junk);
    for (size_t bytes = 0; bytes < sizeof junk; bytes += 7)
        send_bytes(client, junk, bytes);
    uint8_t whole[512];
    size_t bytes = make_state("a", 1, whole, sizeof whole);
    for (size_t cut = 1; cut < bytes; cut++) /* a message that ends early */
        send_bytes(client, whole, cut);
    (void)exchange(client, "b");
    dpt_client_destroy(&client);
    stop_server(&server);
}

static void test_strangers(void **state)
{
    (void)state;
    struct test_server server;
    start_server(&server, 0);
    struct dpt_client *client = start_client(server.port);
    (void)expect(client, DPT_CLIENT_UP);
    uint8_t buf[512], junk[512];
    size_t bytes = make_state("x", 1, buf, sizeof buf);
    memset(junk, 0x5a, sizeof junk);

    int http = zmtp_dial(server.port); /* speaks something else */
    (void)zmtp_send(http, junk, sizeof junk, 17);
    assert_true(zmtp_wait_closed(http, NULL));
    close(http);

    int named = zmtp_dial(server.port); /* has a routing id of its own: its messages are dropped */
    zmtp_handshake(named, "me");
    assert_true(zmtp_send(named, buf, bytes, bytes));

    int big =
        zmtp_dial(server.port); /* announces more than we take: disconnected before it is read */
    zmtp_handshake(big, NULL);
    (void)zmtp_send(big, junk, sizeof junk, (uint64_t)DPT_MESSAGE_BYTES_MAX + 1);
    assert_true(zmtp_wait_closed(big, NULL));
    close(big);

    int half = zmtp_dial(server.port); /* goes away inside a message */
    zmtp_handshake(half, NULL);
    assert_true(zmtp_send(half, junk, 100, 200));
    close(half);

    (void)exchange(client, "b");
    close(named);
    dpt_client_destroy(&client);
    stop_server(&server);
}

/* Makes the run, with a config so long that every answer to one who asks for it is long. */
static void bring_config(struct dpt_client *client, size_t yaml_bytes)
{
    uint8_t *buf = malloc(2 * yaml_bytes);
    char *yaml = malloc(yaml_bytes + 1);
    assert_true(buf != NULL && yaml != NULL);
    memset(yaml, '#', yaml_bytes);
    yaml[yaml_bytes] = '\0';
    Dpt__RunSpec spec = DPT__RUN_SPEC__INIT;
    spec.min_nodes = spec.max_nodes = 2;
    spec.timeout_ms = 5000;
    spec.max_world = 8;
    spec.config_digest = spec.user = (char *)(uintptr_t) "test";
    spec.config_yaml = yaml;
    send_bytes(client, buf, make_message("owner", 1, &spec, buf, 2 * yaml_bytes));
    (void)expect(client, DPT_CLIENT_MESSAGE);
    free(yaml);
    free(buf);
}

/* A peer that asks and asks and reads no answer: the server drops what its queue does not take, and
 * serves the others. */
static void test_full_queue(void **state)
{
    (void)state;
    enum { ASKED = 4000, YAML_BYTES = 50000 };
    struct test_server server;
    start_server(&server, 0);
    struct dpt_client *owner = start_client(server.port), *client = start_client(server.port);
    (void)expect(owner, DPT_CLIENT_UP);
    (void)expect(client, DPT_CLIENT_UP);
    bring_config(owner, YAML_BYTES);
    int deaf = zmtp_dial(server.port);
    zmtp_handshake(deaf, NULL);
    uint8_t buf[512];
    for (uint64_t i = 1; i <= ASKED; i++) {
        size_t bytes = make_state("deaf", i, buf, sizeof buf);
        assert_true(zmtp_send(deaf, buf, bytes, bytes));
    }
    (void)exchange(client, "b");
    (void)exchange(client, "b");
    dpt_client_destroy(&client);
    dpt_client_destroy(&owner);
    stop_server(&server);
    uint64_t received;
    assert_true(zmtp_wait_closed(deaf, &received));
    assert_true(received > 2 * YAML_BYTES);                   /* it was answered, */
    assert_true(received < (uint64_t)ASKED * YAML_BYTES / 2); /* but not for ever */
    close(deaf);
}

/* Time is told to the client, so its patience needs no waiting here. */
static void test_silent_connection_is_replaced(void **state)
{
    (void)state;
    struct test_server server;
    struct dpt_err err;
    start_server(&server, 0);
    struct dpt_client *client = start_client(server.port);
    int64_t now_ms = 1000;
    dpt_client_tick(client, now_ms);
    (void)expect(client, DPT_CLIENT_UP);
    for (int i = 0; i < 3; i++) { /* an answer now and then keeps it */
        now_ms += SILENCE_MS / 4;
        (void)exchange(client, "a");
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
    (void)expect(client, DPT_CLIENT_UP);
    (void)exchange(client, "a");
    dpt_client_destroy(&client);
    stop_server(&server);
}

/* A worker of another version is told so, in words, whatever else its messages hold. */
static void test_other_version(void **state)
{
    (void)state;
    struct test_server server;
    start_server(&server, 0);
    struct dpt_client *client = start_client(server.port);
    (void)expect(client, DPT_CLIENT_UP);
    Dpt__Stamp stamp = DPT__STAMP__INIT;
    stamp.run = (char *)(uintptr_t) "transport";
    stamp.node = (char *)(uintptr_t) "future";
    stamp.incarnation = 1;
    Dpt__AgentState said = DPT__AGENT_STATE__INIT;
    said.version = DPT_PROTO_VERSION + 1;
    said.software = (char *)(uintptr_t) "dpt 9.9.9";
    said.stamp = &stamp;
    said.counter = 1;
    uint8_t buf[512];
    size_t bytes;
    struct dpt_err err;
    assert_int_equal(dpt_message_encode(&said.base, buf, sizeof buf, &bytes, &err), DPT_OK);
    send_bytes(client, buf, bytes);
    struct dpt_client_event event = expect(client, DPT_CLIENT_MESSAGE);
    Dpt__ServerState *answer = NULL;
    assert_int_equal(dpt_message_decode_server_state(event.message, event.bytes, &answer, &err),
                     DPT_OK);
    assert_int_equal(answer->phase, DPT__SERVER_PHASE__SERVER_REFUSED);
    assert_non_null(strstr(answer->text, "dpt 9.9.9"));
    dpt_message_free_server_state(&answer);
    dpt_client_destroy(&client);
    stop_server(&server);
}

/* The socket cannot be replaced for want of descriptors: no connection, until there are some again.
 */
static void test_descriptors_run_out(void **state)
{
    (void)state;
    struct test_server server;
    start_server(&server, 0);
    struct dpt_client *client = start_client(server.port);
    struct dpt_client_event event;
    struct dpt_err err;
    struct rlimit limit, none;
    int64_t now_ms = 1000;
    dpt_client_tick(client, now_ms);
    (void)expect(client, DPT_CLIENT_UP);
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
    (void)expect(client, DPT_CLIENT_UP);
    (void)exchange(client, "a");
    dpt_client_destroy(&client);
    stop_server(&server);
}

static void test_oversized_send(void **state)
{
    (void)state;
    struct dpt_client *client = start_client(1);
    struct dpt_err err;
    assert_int_equal(dpt_client_send(client, "", (size_t)DPT_MESSAGE_BYTES_MAX + 1, &err),
                     DPT_EOVERFLOW);
    dpt_client_destroy(&client);
}

static void test_embedded_server(void **state)
{
    (void)state;
    struct dpt_server_thread *thread;
    struct dpt_err err;
    assert_int_equal(dpt_server_thread_start(&thread, &err), DPT_OK);
    const char *endpoint = dpt_server_thread_endpoint(thread);
    struct dpt_client *client = start_client((int)strtol(strrchr(endpoint, ':') + 1, NULL, 10));
    (void)expect(client, DPT_CLIENT_UP);
    (void)exchange(client, "a");
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

/* The worker that embeds a server tells the run's story itself: the core's lines are at debug. */
static void test_embedded_server_logs_nothing(void **state)
{
    (void)state;
    for (int embedded = 0; embedded < 2; embedded++) {
        struct test_server server;
        logged = 0;
        dpt_log_set_sink(count_line, NULL);
        start_as(&server, (struct dpt_server_options){.embedded = embedded});
        struct dpt_client *client = start_client(server.port);
        (void)expect(client, DPT_CLIENT_UP);
        bring_config(client, 100);
        dpt_client_destroy(&client);
        stop_server(&server);
        dpt_log_set_sink(NULL, NULL);
        if (embedded)
            assert_int_equal(logged, 0);
        else
            assert_true(logged > 0);
    }
}

static void test_endpoints(void **state)
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
        cmocka_unit_test(test_exchange),
        cmocka_unit_test(test_server_restarts_on_its_port),
        cmocka_unit_test(test_nobody_there),
        cmocka_unit_test(test_port_in_use),
        cmocka_unit_test(test_binding),
        cmocka_unit_test(test_garbage),
        cmocka_unit_test(test_strangers),
        cmocka_unit_test(test_full_queue),
        cmocka_unit_test(test_silent_connection_is_replaced),
        cmocka_unit_test(test_other_version),
        cmocka_unit_test(test_descriptors_run_out),
        cmocka_unit_test(test_oversized_send),
        cmocka_unit_test(test_embedded_server),
        cmocka_unit_test(test_embedded_server_logs_nothing),
        cmocka_unit_test(test_endpoints),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
