/* The measurement of a link: the count of a stream, percentiles, and a peer that is none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "worker/doctor/deadline_socket.h"
#include "worker/doctor/probe.h"

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MS INT64_C(1000000)

static struct dpt_err err;

/* A token bucket lets 10 MB through at once, then 1 MB each 100 ms: the rate is 10 MB/s. */
static void burst_at_the_beginning_is_not_counted(void **state)
{
    (void)state;
    struct dpt_probe_count count = {0};
    int64_t bytes, ns;
    dpt_probe_count_add(&count, 1000 * MS, 10000000, 1000);
    for (int i = 1; i <= 10; i++)
        dpt_probe_count_add(&count, (1000 + 100 * i) * MS, 1000000, 1000);
    dpt_probe_count_end(&count, &bytes, &ns);
    assert_int_equal(ns, 800 * MS);
    assert_int_equal(bytes, 8000000);
}

/* The bytes were sent before a fifth of the time was over: all count. */
static void short_stream_counts_as_a_whole(void **state)
{
    (void)state;
    struct dpt_probe_count count = {0};
    int64_t bytes, ns;
    for (int i = 0; i <= 10; i++)
        dpt_probe_count_add(&count, (1000 + i) * MS, 1 << 20, 1000);
    dpt_probe_count_end(&count, &bytes, &ns);
    assert_int_equal(ns, 10 * MS);
    assert_int_equal(bytes, 11 << 20);
}

static void stream_of_one_message_has_a_time(void **state)
{
    (void)state;
    struct dpt_probe_count count = {0};
    int64_t bytes, ns;
    dpt_probe_count_add(&count, 5 * MS, 77, 1000);
    dpt_probe_count_end(&count, &bytes, &ns);
    assert_int_equal(bytes, 77);
    assert_int_equal(ns, 1);
}

static void percentiles_are_of_the_nearest_rank(void **state)
{
    (void)state;
    int64_t values[100];
    for (int i = 0; i < 100; i++)
        values[i] = i + 1;
    assert_int_equal(dpt_probe_percentile(values, 100, 50), 50);
    assert_int_equal(dpt_probe_percentile(values, 100, 99), 99);
    assert_int_equal(dpt_probe_percentile(values, 1, 99), 1);
    assert_int_equal(dpt_probe_percentile(values, 3, 50), 2);
}

/* ---- a node, and a process that sends something else ---- */

/* Sends `text` as the first line of a connection; returns the node's answer. */
static void answer_to(const char *text, char ret[DPT_WIRE_LINE_BYTES])
{
    int fds[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    assert_int_equal(send(fds[0], text, strlen(text), 0), (ssize_t)strlen(text));
    assert_int_equal(shutdown(fds[0], SHUT_WR), 0);
    (void)!dpt_probe_serve(fds[1], 50, &err);
    if (dpt_wire_hear(fds[0], dpt_now_ms() + 1000, ret, &err) != DPT_OK)
        ret[0] = '\0';
    (void)close(fds[0]);
}

static void wrong_orders_are_refused(void **state)
{
    (void)state;
    char line[DPT_WIRE_LINE_BYTES];
    static const char *const wrong[] = {
        "GET / HTTP/1.1\r\n",
        "dpt-doctor 2 hello\n",
        "dpt-doctor 1 dance\n",
        "dpt-doctor 1 serve\n",
        "dpt-doctor 1 serve 99 1\n",    /* too short */
        "dpt-doctor 1 serve 60001 1\n", /* too long */
        "dpt-doctor 1 measure\n",
        "dpt-doctor 1 measure 127.0.0.1:1 1000\n",
        "dpt-doctor 1 measure 127.0.0.1:1 1000 0\n",
        "dpt-doctor 1 measure 127.0.0.1:1 1000 99999999999999\n",
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        answer_to(wrong[i], line);
        assert_true(strncmp(line, "fail ", 5) == 0 || line[0] == '\0');
    }
    answer_to("dpt-doctor 1 hello\n", line);
    assert_true(strncmp(line, "ok ", 3) == 0 && strlen(line) > 3);
    answer_to("dpt-doctor 1 measure no-port 1000 1000\n", line);
    assert_non_null(strstr(line, "fail "));
}

static void line_without_end_is_refused(void **state)
{
    (void)state;
    char text[2 * DPT_WIRE_LINE_BYTES], line[DPT_WIRE_LINE_BYTES];
    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    answer_to(text, line);
    assert_non_null(strstr(line, "no dpt-doctor sends"));
}

static void *serve_one(void *fd)
{
    static struct dpt_err why; /* read after the thread has ended */
    (void)!dpt_probe_serve(*(const int *)fd, 50, &why);
    return why.text;
}

/* A peer that answers each wait in time, but never ends, does not hold a node: 2,021 pings with
 * this pause would take 40 s. */
static void endless_pings_are_given_up(void **state)
{
    (void)state;
    static const char order[] = "dpt-doctor 1 serve 100 1000\n";
    char line[DPT_WIRE_LINE_BYTES], ping[DPT_PROBE_PING_BYTES] = "p";
    int fds[2], pings = 0;
    pthread_t thread;
    void *why;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    assert_int_equal(pthread_create(&thread, NULL, serve_one, &fds[1]), 0);
    assert_int_equal(send(fds[0], order, strlen(order), 0), (ssize_t)strlen(order));
    assert_int_equal(dpt_wire_hear(fds[0], dpt_now_ms() + 5000, line, &err), DPT_OK);
    while (dpt_wire_send(fds[0], ping, sizeof ping, dpt_now_ms() + 5000, &err) == DPT_OK &&
           dpt_wire_recv(fds[0], ping, sizeof ping, dpt_now_ms() + 5000, &err) == DPT_OK &&
           ping[0] == 'p' && pings++ < DPT_PROBE_PINGS_MAX)
        assert_int_not_equal(poll(NULL, 0, 20), -1); /* the pause is the input */
    (void)close(fds[0]);
    assert_int_equal(pthread_join(thread, &why), 0);
    assert_true(pings > 0 && pings < 500);
    assert_non_null(strstr(why, "pings"));
}

/* Waits end at their deadlines. */
static void silent_peer_is_given_up(void **state)
{
    (void)state;
    char line[DPT_WIRE_LINE_BYTES];
    int fd = -1, port = 0;
    char endpoint[32];
    const int64_t began_ms = dpt_now_ms();
    assert_int_equal(dpt_wire_listen("127.0.0.1", 0, &fd, &port, &err), DPT_OK);
    (void)snprintf(endpoint, sizeof endpoint, "127.0.0.1:%d", port);
    /* The kernel accepts the connection, and no program answers. */
    assert_int_equal(dpt_probe_hello(endpoint, 50, line, sizeof line, &err), DPT_ETIMEOUT);
    assert_non_null(strstr(err.text, endpoint));
    (void)close(fd);
    assert_int_equal(dpt_probe_hello(endpoint, 50, line, sizeof line, &err), DPT_EREFUSED);
    assert_non_null(strstr(err.text, "nothing listens there; start dpt-doctor net --listen"));
    assert_true(dpt_now_ms() - began_ms < 10000);
}

static void bad_endpoints_are_refused(void **state)
{
    (void)state;
    char line[DPT_WIRE_LINE_BYTES];
    int fd = -1, port = 0;
    assert_int_equal(dpt_probe_hello("nowhere", 50, line, sizeof line, &err), DPT_EINVAL);
    assert_int_equal(dpt_probe_hello("no-such-name.invalid:1", 50, line, sizeof line, &err),
                     DPT_ENOENT);
    assert_int_equal(dpt_wire_listen("not-an-address", 0, &fd, &port, &err), DPT_EINVAL);
    assert_int_equal(fd, -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(burst_at_the_beginning_is_not_counted),
        cmocka_unit_test(short_stream_counts_as_a_whole),
        cmocka_unit_test(stream_of_one_message_has_a_time),
        cmocka_unit_test(percentiles_are_of_the_nearest_rank),
        cmocka_unit_test(wrong_orders_are_refused),
        cmocka_unit_test(line_without_end_is_refused),
        cmocka_unit_test(endless_pings_are_given_up),
        cmocka_unit_test(silent_peer_is_given_up),
        cmocka_unit_test(bad_endpoints_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
