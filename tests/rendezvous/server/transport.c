/* The server and the clients of the transport's tests. */
#include "tests/rendezvous/server/transport.h"

#include "base/clock.h"

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cmocka.h>

static void *serve(void *arg)
{
    struct test_server *s = arg;
    struct dpt_err err;
    s->failed = dpt_server_run(s->server, &err) != DPT_OK;
    return NULL;
}

static void start(struct test_server *s, struct dpt_server_options options,
                  const struct dpt_journal *journal)
{
    struct dpt_err err;
    *s = (struct test_server){.stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    options.stop_fd = s->stop_fd;
    if (options.address == NULL)
        options.address = "127.0.0.1";
    if (dpt_server_create(&options, &s->server, &err) != DPT_OK)
        fail_msg("%s", err.text);
    if (journal != NULL && dpt_server_use_journal(s->server, journal, &err) != DPT_OK)
        fail_msg("%s", err.text);
    s->port = dpt_server_port(s->server);
    assert_int_equal(pthread_create(&s->thread, NULL, serve, s), 0);
}

void transport_start_as(struct test_server *s, struct dpt_server_options options)
{
    start(s, options, NULL);
}

void transport_start_with(struct test_server *s, const struct dpt_journal *journal)
{
    start(s, (struct dpt_server_options){.open = true}, journal);
}

void transport_start_server(struct test_server *s, int port)
{
    transport_start_as(s, (struct dpt_server_options){.port = port, .open = true});
}

void transport_stop_server(struct test_server *s)
{
    assert_int_equal(eventfd_write(s->stop_fd, 1), 0);
    assert_int_equal(pthread_join(s->thread, NULL), 0);
    assert_false(s->failed);
    dpt_server_destroy(&s->server);
    close(s->stop_fd);
}

struct dpt_client *transport_start_client(int port)
{
    return transport_start_client_with(port, &(struct dpt_keyring){.open = true});
}

struct dpt_client *transport_start_client_with(int port, const struct dpt_keyring *keys)
{
    char endpoint[64];
    struct dpt_client *client;
    struct dpt_err err;
    (void)snprintf(endpoint, sizeof endpoint, "127.0.0.1:%d", port);
    assert_int_equal(dpt_client_create(endpoint, SILENCE_MS, keys, &client, &err), DPT_OK);
    return client;
}

void transport_wait(struct dpt_client *client, int64_t ms)
{
    int fds[DPT_CLIENT_FDS];
    dpt_client_fds(client, fds);
    struct pollfd items[DPT_CLIENT_FDS] = {{.fd = fds[0], .events = POLLIN},
                                           {.fd = fds[1], .events = POLLIN}};
    (void)poll(items, DPT_CLIENT_FDS, (int)ms);
}

/* Waits for the next event of the client, or its failure. */
static enum dpt_status wait_event(struct dpt_client *client, int64_t deadline_ms,
                                  struct dpt_client_event *ret, struct dpt_err *err)
{
    for (;;) {
        enum dpt_status status = dpt_client_next(client, ret, err);
        if (status != DPT_INPROGRESS)
            return status;
        int64_t left_ms = deadline_ms - dpt_now_ms();
        if (left_ms <= 0)
            fail_msg("no event within %d ms", WAIT_MS);
        transport_wait(client, left_ms);
    }
}

struct dpt_client_event transport_expect(struct dpt_client *client, enum dpt_client_event_kind kind)
{
    struct dpt_client_event event;
    struct dpt_err err;
    const int64_t deadline_ms = dpt_now_ms() + WAIT_MS;
    for (;;) {
        if (wait_event(client, deadline_ms, &event, &err) != DPT_OK)
            fail_msg("%s", err.text);
        if (event.kind == kind)
            return event;
    }
}

enum dpt_status transport_expect_failure(struct dpt_client *client, struct dpt_err *err)
{
    struct dpt_client_event event;
    enum dpt_status status = DPT_OK;
    for (const int64_t deadline_ms = dpt_now_ms() + WAIT_MS; status == DPT_OK;)
        status = wait_event(client, deadline_ms, &event, err);
    return status;
}

size_t transport_make_message(const char *node, uint64_t counter, Dpt__RunSpec *spec, uint8_t *buf,
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

void transport_send(struct dpt_client *client, const void *data, size_t bytes)
{
    struct dpt_err err;
    enum dpt_status status = DPT_INPROGRESS;
    for (int64_t end_ms = dpt_now_ms() + WAIT_MS;
         status == DPT_INPROGRESS && dpt_now_ms() < end_ms;)
        status = dpt_client_send(client, data, bytes, &err);
    assert_int_equal(status, DPT_OK);
}

uint64_t transport_exchange(struct dpt_client *client, const char *node)
{
    static uint64_t counter;
    uint8_t buf[512];
    struct dpt_err err;
    transport_send(client, buf, transport_make_message(node, ++counter, NULL, buf, sizeof buf));
    struct dpt_client_event event = transport_expect(client, DPT_CLIENT_MESSAGE);
    Dpt__ServerState *answer = NULL;
    assert_int_equal(dpt_message_decode_server_state(event.message, event.bytes, &answer, &err),
                     DPT_OK);
    assert_string_equal(answer->stamp->run, "transport");
    uint64_t epoch = answer->stamp->epoch;
    dpt_message_free_server_state(&answer);
    assert_int_not_equal(epoch, 0);
    return epoch;
}

void transport_bring_config(struct dpt_client *client, size_t yaml_bytes)
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
    transport_send(client, buf, transport_make_message("owner", 1, &spec, buf, 2 * yaml_bytes));
    (void)transport_expect(client, DPT_CLIENT_MESSAGE);
    free(yaml);
    free(buf);
}
