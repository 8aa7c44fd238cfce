/* The server's port is closed, and opened again at each of its addresses, on real sockets. */
#include "rendezvous/server/bind.h"
#include "tests/logged.h"
#include "tests/rendezvous/server/zmtp.h"

#include <errno.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

#include <cmocka.h>

enum { WAIT_MS = 20000, NEWCOMERS = 8, LATE_MS = DPT_REBIND_MAX_MS };

static void *context, *router, *monitor;
static struct dpt_bound bound;
static const struct dpt_server_options localhost = {.address = "localhost"};

static int setup(void **state)
{
    (void)state;
    static const char name[] = "inproc://bind-test";
    const int one = 1, zero = 0;
    context = zmq_ctx_new();
    router = zmq_socket(context, ZMQ_ROUTER);
    monitor = zmq_socket(context, ZMQ_PAIR);
    const bool made =
        zmq_setsockopt(router, ZMQ_IPV6, &one, sizeof one) == 0 &&
        zmq_setsockopt(router, ZMQ_LINGER, &zero, sizeof zero) == 0 &&
        zmq_setsockopt(monitor, ZMQ_LINGER, &zero, sizeof zero) == 0 &&
        zmq_socket_monitor(router, name,
                           ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_CLOSED) == 0 &&
        zmq_connect(monitor, name) == 0;
    return made ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    (void)zmq_socket_monitor(router, NULL, 0);
    (void)zmq_close(router);
    (void)zmq_close(monitor);
    return zmq_ctx_term(context);
}

/* The next event of the monitor; 0: none within this time. */
static int next_event(long ms)
{
    zmq_pollitem_t item = {.socket = monitor, .events = ZMQ_POLLIN};
    uint8_t frame[512];
    uint16_t number = 0;
    if (zmq_poll(&item, 1, ms) <= 0)
        return 0;
    assert_int_equal(zmq_recv(monitor, frame, sizeof frame, 0), 6);
    memcpy(&number, frame, sizeof number);
    assert_true(zmq_recv(monitor, frame, sizeof frame, 0) >= 0); /* the address */
    return number;
}

static void wait_event(int wanted)
{
    for (int number; (number = next_event(WAIT_MS)) != wanted;)
        if (number == 0)
            fail_msg("no event %d within %d ms", wanted, WAIT_MS);
}

static void bind_localhost(void)
{
    struct dpt_err err;
    assert_int_equal(dpt_server_bind(router, &localhost, 0, &bound, &err), DPT_OK);
    if (!bound.addresses[1].listens)
        skip(); /* no IPv6 here */
}

/* Closes the port; returns when libzmq has reported it. */
static void close_port(void)
{
    dpt_server_unbind(router, &bound, 1);
    assert_int_equal(bound.n_closing, 2);
    wait_event(ZMQ_EVENT_CLOSED);
    assert_false(dpt_server_note_closed(&bound));
    wait_event(ZMQ_EVENT_CLOSED);
    assert_true(dpt_server_note_closed(&bound));
    assert_false(dpt_server_note_closed(&bound)); /* of a later try that failed */
}

static struct sockaddr_in6 loopback6(int port)
{
    return (struct sockaddr_in6){.sin6_family = AF_INET6,
                                 .sin6_port = htons((uint16_t)port),
                                 .sin6_addr = IN6ADDR_LOOPBACK_INIT};
}

/* Another program that listens on ::1. Port 0: any. *ret_port: the port. */
static int listen_on_loopback6(int port, int *ret_port)
{
    struct sockaddr_in6 at = loopback6(port);
    socklen_t bytes = sizeof at;
    const int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (const struct sockaddr *)&at, sizeof at) != 0)
        skip();
    assert_int_equal(listen(fd, 1), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &bytes), 0);
    *ret_port = ntohs(at.sin6_port);
    return fd;
}

static int listen_on_loopback4(int port)
{
    const struct sockaddr_in at = {.sin_family = AF_INET,
                                   .sin_port = htons((uint16_t)port),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (const struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(fd, 1), 0);
    return fd;
}

static void expect_reached(int port)
{
    const struct sockaddr_in6 at = loopback6(port);
    const int v4 = zmtp_dial(port), v6 = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(v6, (const struct sockaddr *)&at, sizeof at), 0);
    wait_event(ZMQ_EVENT_ACCEPTED); /* no other program has taken them */
    wait_event(ZMQ_EVENT_ACCEPTED);
    close(v4);
    close(v6);
}

/* The server counts connections by these events, and forgets all when the last address is closed:
 * each was reported as accepted before that, and each ends. Whether libzmq reports its end does not
 * matter (4.3.4 does not). */
static void connections_are_reported_before_their_port_closes(void **state)
{
    (void)state;
    int fds[NEWCOMERS], n_accepted = 0, n_closed = 0, n_ends = 0;
    bind_localhost();
    for (int i = 0; i < NEWCOMERS; i++)
        fds[i] = zmtp_dial(bound.port);
    for (; n_accepted < NEWCOMERS; n_accepted++)
        wait_event(ZMQ_EVENT_ACCEPTED);
    dpt_server_unbind(router, &bound, 1);
    while (n_closed < 2) {
        const int number = next_event(WAIT_MS);
        assert_int_not_equal(number, 0);
        assert_int_not_equal(number, ZMQ_EVENT_ACCEPTED);
        n_closed += number == ZMQ_EVENT_CLOSED;
        n_ends += number == ZMQ_EVENT_DISCONNECTED;
    }
    for (int i = 0; i < NEWCOMERS; i++) {
        assert_true(zmtp_wait_closed(fds[i], NULL));
        close(fds[i]);
    }
    for (int number; (number = next_event(0)) != 0; n_ends += number == ZMQ_EVENT_DISCONNECTED)
        assert_int_not_equal(number, ZMQ_EVENT_ACCEPTED);
    print_message("libzmq reported the end of %d of %d connections\n", n_ends, NEWCOMERS);
}

static void port_opens_again_at_each_address(void **state)
{
    (void)state;
    struct dpt_err err;
    bind_localhost();
    const int port = bound.port;
    expect_reached(port);
    dpt_server_unbind(router, &bound, 1);
    assert_int_equal(dpt_server_bind_again(router, &bound, 2, &err), DPT_OK);
    assert_false(bound.addresses[0].listens); /* libzmq has not closed it yet */
    wait_event(ZMQ_EVENT_CLOSED);
    wait_event(ZMQ_EVENT_CLOSED);
    assert_false(dpt_server_note_closed(&bound));
    assert_true(dpt_server_note_closed(&bound));
    assert_int_equal(dpt_server_bind_again(router, &bound, 3, &err), DPT_OK);
    assert_int_equal(bound.unbound_ms, 0);
    assert_true(bound.addresses[0].listens && bound.addresses[1].listens);
    expect_reached(port);
    close_port(); /* and a second time */
    assert_int_equal(dpt_server_bind_again(router, &bound, 4, &err), DPT_OK);
    expect_reached(port);
    assert_int_equal(dpt_server_bind_again(router, &bound, 5, &err), DPT_OK); /* it stands */
}

/* An address is still taken when the other one is free again: it is tried until it is free, too. */
static void address_that_is_free_later_is_bound_later(void **state)
{
    (void)state;
    struct dpt_err err;
    int port;
    bind_localhost();
    close_port();
    const int other = listen_on_loopback6(bound.port, &port);
    assert_int_equal(dpt_server_bind_again(router, &bound, 2, &err), DPT_OK);
    assert_true(bound.addresses[0].listens && !bound.addresses[1].listens);
    assert_int_not_equal(bound.unbound_ms, 0);
    close(other);
    assert_int_equal(dpt_server_bind_again(router, &bound, 3, &err), DPT_OK);
    assert_int_equal(bound.unbound_ms, 0);
    expect_reached(bound.port);
}

static void address_that_stays_taken_is_said_and_left_out(void **state)
{
    (void)state;
    struct dpt_err err;
    char words[160];
    int port;
    bind_localhost();
    close_port();
    const int other = listen_on_loopback6(bound.port, &port);
    test_log_begin();
    assert_int_equal(dpt_server_bind_again(router, &bound, LATE_MS, &err), DPT_OK);
    assert_int_equal(test_log_count("\n"), 0);
    assert_int_equal(dpt_server_bind_again(router, &bound, 1 + LATE_MS, &err), DPT_OK);
    assert_int_equal(dpt_server_bind_again(router, &bound, 2 + LATE_MS, &err), DPT_OK);
    test_log_end();
    (void)snprintf(words, sizeof words, "cannot listen on [::1]:%d again: %s", port,
                   strerror(EADDRINUSE));
    assert_int_equal(test_log_count("\n"), 1);
    assert_int_equal(test_log_count(words), 1);
    assert_int_equal(test_log_count("make it available, then start dpt-rdzv again"), 1);
    assert_int_equal(bound.unbound_ms, 0);
    close(zmtp_dial(port));
    wait_event(ZMQ_EVENT_ACCEPTED);
    close(other);
}

static void server_that_listens_nowhere_fails(void **state)
{
    (void)state;
    struct dpt_err err;
    char words[160];
    int port;
    bind_localhost();
    close_port();
    const int others[] = {listen_on_loopback6(bound.port, &port), listen_on_loopback4(bound.port)};
    assert_int_equal(dpt_server_bind_again(router, &bound, LATE_MS, &err), DPT_OK);
    assert_int_equal(dpt_server_bind_again(router, &bound, 1 + LATE_MS, &err), DPT_EEXIST);
    (void)snprintf(words, sizeof words, "cannot listen on 127.0.0.1:%d again: %s", port,
                   strerror(EADDRINUSE));
    assert_non_null(strstr(err.text, words));
    close(others[0]);
    close(others[1]);
}

/* Where localhost is ::1 first, workers would reach the other program. */
static void taken_second_loopback_is_said(void **state)
{
    (void)state;
    struct dpt_err err;
    char words[80];
    int port;
    const int other = listen_on_loopback6(0, &port);
    test_log_begin();
    assert_int_equal(dpt_server_bind(router, &localhost, port, &bound, &err), DPT_OK);
    test_log_end();
    (void)snprintf(words, sizeof words, "not listening on [::1]:%d, which another program has",
                   port);
    assert_int_equal(test_log_count(words), 1);
    assert_string_equal(bound.addresses[1].text, "");
    dpt_server_unbind(router, &bound, 1);
    assert_int_equal(bound.n_closing, 1);
    close(other);
}

int main(void)
{
#define CASE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(connections_are_reported_before_their_port_closes),
        CASE(port_opens_again_at_each_address),
        CASE(address_that_is_free_later_is_bound_later),
        CASE(address_that_stays_taken_is_said_and_left_out),
        CASE(server_that_listens_nowhere_fails),
        CASE(taken_second_loopback_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
