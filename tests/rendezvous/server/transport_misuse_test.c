/* Peers of the server that misbehave over real sockets: the server refuses or drops their messages,
 * and serves the others. */
#include "tests/rendezvous/server/transport.h"
#include "tests/rendezvous/server/zmtp.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static void test_garbage_reaches_no_machine(void **state)
{
    (void)state;
    struct test_server server;
    transport_start_server(&server, 0);
    struct dpt_client *client = transport_start_client(server.port);
    (void)transport_expect(client, DPT_CLIENT_UP);
    uint8_t junk[300];
    memset(junk, 0xee, sizeof junk);
    for (size_t bytes = 0; bytes < sizeof junk; bytes += 7)
        transport_send(client, junk, bytes);
    uint8_t whole[512];
    size_t bytes = transport_make_message("a", 1, NULL, whole, sizeof whole);
    for (size_t cut = 1; cut < bytes; cut++) /* a message that ends early */
        transport_send(client, whole, cut);
    (void)transport_exchange(client, "b");
    dpt_client_destroy(&client);
    transport_stop_server(&server);
}

static void test_strangers_do_not_disturb_client(void **state)
{
    (void)state;
    struct test_server server;
    transport_start_server(&server, 0);
    struct dpt_client *client = transport_start_client(server.port);
    (void)transport_expect(client, DPT_CLIENT_UP);
    uint8_t buf[512], junk[512];
    size_t bytes = transport_make_message("x", 1, NULL, buf, sizeof buf);
    memset(junk, 0x5a, sizeof junk);

    int http = zmtp_dial(server.port); /* speaks something else */
    (void)zmtp_send(http, junk, sizeof junk, 17);
    assert_true(zmtp_wait_closed(http, NULL));
    close(http);

    int named = zmtp_dial(server.port); /* has a separate routing id: its messages are dropped */
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

    (void)transport_exchange(client, "b");
    close(named);
    dpt_client_destroy(&client);
    transport_stop_server(&server);
}

/* A peer sends requests without an end and reads no answer: the server drops the messages beyond
 * its queue, and serves the others. */
static void test_full_queue(void **state)
{
    (void)state;
    enum { ASKED = 4000, YAML_BYTES = 50000 };
    struct test_server server;
    transport_start_server(&server, 0);
    struct dpt_client *owner = transport_start_client(server.port),
                      *client = transport_start_client(server.port);
    (void)transport_expect(owner, DPT_CLIENT_UP);
    (void)transport_expect(client, DPT_CLIENT_UP);
    transport_bring_config(owner, YAML_BYTES);
    int deaf = zmtp_dial(server.port);
    zmtp_handshake(deaf, NULL);
    uint8_t buf[512];
    for (uint64_t i = 1; i <= ASKED; i++) {
        size_t bytes = transport_make_message("deaf", i, NULL, buf, sizeof buf);
        assert_true(zmtp_send(deaf, buf, bytes, bytes));
    }
    (void)transport_exchange(client, "b");
    (void)transport_exchange(client, "b");
    dpt_client_destroy(&client);
    dpt_client_destroy(&owner);
    transport_stop_server(&server);
    uint64_t received;
    assert_true(zmtp_wait_closed(deaf, &received));
    assert_true(received > 2 * YAML_BYTES);                   /* it was answered, */
    assert_true(received < (uint64_t)ASKED * YAML_BYTES / 2); /* but not for ever */
    close(deaf);
}

/* A worker of another version is refused with a text, whatever else its messages contain. */
static void test_client_of_other_version(void **state)
{
    (void)state;
    struct test_server server;
    transport_start_server(&server, 0);
    struct dpt_client *client = transport_start_client(server.port);
    (void)transport_expect(client, DPT_CLIENT_UP);
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
    transport_send(client, buf, bytes);
    struct dpt_client_event event = transport_expect(client, DPT_CLIENT_MESSAGE);
    Dpt__ServerState *answer = NULL;
    assert_int_equal(dpt_message_decode_server_state(event.message, event.bytes, &answer, &err),
                     DPT_OK);
    assert_int_equal(answer->phase, DPT__SERVER_PHASE__SERVER_REFUSED);
    assert_non_null(strstr(answer->text, "dpt 9.9.9"));
    dpt_message_free_server_state(&answer);
    dpt_client_destroy(&client);
    transport_stop_server(&server);
}

static void test_oversized_send(void **state)
{
    (void)state;
    struct dpt_client *client = transport_start_client(1);
    struct dpt_err err;
    assert_int_equal(dpt_client_send(client, "", (size_t)DPT_MESSAGE_BYTES_MAX + 1, &err),
                     DPT_EOVERFLOW);
    dpt_client_destroy(&client);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_garbage_reaches_no_machine),
        cmocka_unit_test(test_strangers_do_not_disturb_client),
        cmocka_unit_test(test_full_queue),
        cmocka_unit_test(test_client_of_other_version),
        cmocka_unit_test(test_oversized_send),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
