/* Connections before their first message: how many an address may have, and what they may send. */
#include "rendezvous/server/newcomers.h"

#include <arpa/inet.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

static struct dpt_newcomers *newcomers;

static int setup(void **state)
{
    (void)state;
    newcomers = calloc(1, sizeof *newcomers);
    if (newcomers != NULL)
        dpt_newcomers_init(newcomers, DPT_PEERS_FDS_MAX);
    return newcomers != NULL ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    free(newcomers);
    return 0;
}

static struct in6_addr address_of(const char *text)
{
    struct in6_addr address;
    assert_int_equal(inet_pton(AF_INET6, text, &address), 1);
    return address;
}

static bool take(int fd, const char *text)
{
    const struct in6_addr address = address_of(text);
    return dpt_newcomers_take(newcomers, fd, &address, 0);
}

static void stranger_has_a_share(void **state)
{
    (void)state;
    int fd = 3;
    for (int i = 0; i < DPT_NEWCOMERS_OF_ADDRESS; i++)
        assert_true(take(fd++, "::ffff:192.0.2.1"));
    assert_false(take(fd, "::ffff:192.0.2.1"));
    dpt_newcomers_gone(newcomers, fd);
    assert_true(take(fd++, "::ffff:192.0.2.2")); /* another one */
    assert_int_equal(newcomers->n_new, DPT_NEWCOMERS_OF_ADDRESS + 1);
    dpt_newcomers_gone(newcomers, 3);
    assert_true(take(3, "::ffff:192.0.2.1"));
    assert_false(take(fd, "::ffff:192.0.2.1"));
    dpt_newcomers_gone(newcomers, fd);
    dpt_newcomers_heard(newcomers, 3); /* it is a machine that is let in, perhaps with others */
    for (int i = 0; i < DPT_NEWCOMERS_OF_ADDRESS; i++)
        assert_true(take(fd++, "::ffff:192.0.2.1"));
    while (newcomers->n_new < DPT_PEERS_FDS_MAX / 16 + 1) /* one is of the other address */
        assert_true(take(fd++, "::ffff:192.0.2.1"));
    assert_false(take(fd, "::ffff:192.0.2.1"));
}

/* 300 descriptors: 18 of an address, 150 in all. */
static void few_descriptors_have_few_newcomers(void **state)
{
    (void)state;
    int fd = 3;
    dpt_newcomers_init(newcomers, 300);
    for (int i = 0; i < 18; i++)
        assert_true(take(fd++, "::ffff:192.0.2.1"));
    assert_false(take(fd, "::ffff:192.0.2.1"));
    dpt_newcomers_gone(newcomers, fd);
    dpt_newcomers_heard(newcomers, 3);
    assert_true(take(fd++, "::ffff:192.0.2.1"));
    assert_false(take(fd, "::ffff:192.0.2.1"));
    dpt_newcomers_gone(newcomers, fd);
    while (newcomers->n_new < 150)
        assert_true(take(fd++, "::1"));
    assert_false(take(fd, "::1"));
}

/* If the server is full, the oldest of more than an eighth goes, so that a new node gets in. */
static void oldest_newcomer_of_a_full_server_goes(void **state)
{
    (void)state;
    const struct in6_addr address = address_of("::1");
    dpt_newcomers_init(newcomers, 300);
    for (int i = 0; i < 37; i++)
        assert_true(dpt_newcomers_take(newcomers, 3 + i, &address, 100 - i));
    assert_int_equal(dpt_newcomers_excess(newcomers, 400), -1); /* members alone are too many */
    assert_true(dpt_newcomers_take(newcomers, 40, &address, 100));
    assert_int_equal(dpt_newcomers_excess(newcomers, 300 - 64 - 38), -1);
    assert_int_equal(dpt_newcomers_excess(newcomers, 300 - 64 - 37), 39);
    dpt_newcomers_heard(newcomers, 39);
    assert_true(dpt_newcomers_take(newcomers, 41, &address, 100));
    assert_int_equal(dpt_newcomers_excess(newcomers, 300 - 64 - 37), 38);
}

static void addresses_of_one_network_count_together(void **state)
{
    (void)state;
    char text[] = "2001:db8:0:1::1000";
    for (int i = 0; i < DPT_NEWCOMERS_OF_ADDRESS; i++) {
        text[14] = (char)('0' + i % 10);
        text[15] = (char)('0' + i / 10);
        assert_true(take(3 + i, text));
    }
    assert_false(take(3 + DPT_NEWCOMERS_OF_ADDRESS, "2001:db8:0:1:ffff::1"));
    assert_true(take(4 + DPT_NEWCOMERS_OF_ADDRESS, "2001:db8:0:2::1"));
}

static void loopback_is_bounded_by_the_total(void **state)
{
    (void)state;
    int fd = 3;
    for (int i = 0; i < DPT_NEWCOMERS_MAX; i++)
        assert_true(take(fd++, i % 2 == 0 ? "::1" : "::ffff:127.0.0.1"));
    assert_false(take(fd, "::1"));
    assert_false(take(fd + 1, "::ffff:192.0.2.1"));
    dpt_newcomers_heard(newcomers, 3);
    dpt_newcomers_heard(newcomers, 3);
    assert_int_equal(newcomers->n_new, DPT_NEWCOMERS_MAX + 1);
    for (; fd >= 0; fd--)
        dpt_newcomers_gone(newcomers, fd);
    dpt_newcomers_gone(newcomers, DPT_NEWCOMERS_MAX + 4);
    assert_int_equal(newcomers->n_new, 0);
    assert_int_equal(newcomers->fd_end, 0);
}

static void odd_descriptors(void **state)
{
    (void)state;
    assert_false(take(-1, "::1"));
    assert_false(take(DPT_PEERS_FDS_MAX, "::1"));
    dpt_newcomers_heard(newcomers, DPT_PEERS_FDS_MAX);
    dpt_newcomers_gone(newcomers, -1);
    assert_true(
        dpt_newcomers_take(newcomers, 5, NULL, 0)); /* the peer was gone before it was asked */
    assert_true(take(5, "::1"));                    /* its end was not reported */
    assert_int_equal(newcomers->n_new, 1);
}

/* ---- real connections ---- */

/* A TCP connection over loopback; ret[1] is the end of the server. */
static void connect_pair(int ret[2])
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof at;
    const int listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ret[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(listening >= 0 && ret[0] >= 0);
    assert_int_equal(bind(listening, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(listening, 1), 0);
    assert_int_equal(getsockname(listening, (struct sockaddr *)&at, &bytes), 0);
    assert_int_equal(connect(ret[0], (struct sockaddr *)&at, sizeof at), 0);
    ret[1] = accept(listening, NULL, NULL);
    assert_true(ret[1] >= 0);
    close(listening);
}

static bool take_real(int fd)
{
    struct in6_addr address, expected = address_of("::ffff:127.0.0.1");
    assert_true(dpt_newcomers_address(fd, &address));
    assert_memory_equal(&address, &expected, sizeof address);
    return dpt_newcomers_take(newcomers, fd, &address, 100000);
}

/* The server has not closed the connection. Nothing was sent to this end. */
static bool is_open(int fd)
{
    char byte;
    return recv(fd, &byte, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN;
}

static void send_and_receive(const int pair[2], size_t bytes)
{
    static uint8_t data[4096];
    for (size_t done = 0; done < bytes; done += sizeof data) {
        assert_int_equal(send(pair[0], data, sizeof data, MSG_NOSIGNAL), sizeof data);
        assert_int_equal(recv(pair[1], data, sizeof data, MSG_WAITALL), sizeof data);
    }
}

/* The port was closed and opened again for a new key: the earlier connections count no more, and no
 * look closes their descriptors, which may be those of other files. */
static void connections_are_forgotten_with_their_port(void **state)
{
    (void)state;
    int fd = 100, pair[2];
    connect_pair(pair);
    assert_true(take_real(pair[1]));
    for (int i = 0; i < DPT_NEWCOMERS_OF_ADDRESS; i++)
        assert_true(take(fd++, "::ffff:192.0.2.1"));
    assert_true(take(fd, "::ffff:192.0.2.2"));
    dpt_newcomers_heard(newcomers, fd);
    assert_false(take(fd + 1, "::ffff:192.0.2.1"));
    dpt_newcomers_forget(newcomers);
    assert_int_equal(newcomers->n_new, 0);
    assert_int_equal(newcomers->fd_end, 0);
    dpt_newcomers_gone(newcomers, 100); /* reported late */
    dpt_newcomers_look(newcomers, 100000 + 10 * DPT_NEWCOMER_MS);
    assert_true(is_open(pair[0]));
    for (int i = 0; i < DPT_NEWCOMERS_OF_ADDRESS; i++)
        assert_true(take(100 + i, i % 2 == 0 ? "::ffff:192.0.2.1" : "::ffff:192.0.2.2"));
    assert_int_equal(newcomers->n_new, DPT_NEWCOMERS_OF_ADDRESS);
    dpt_newcomers_forget(newcomers);
    dpt_newcomers_forget(newcomers);
    assert_int_equal(newcomers->n_new, 0);
    close(pair[0]);
    close(pair[1]);
}

static void newcomer_that_sends_much_is_closed(void **state)
{
    (void)state;
    int much[2], little[2], member[2];
    char byte;
    int64_t now_ms = 100000;
    connect_pair(much);
    connect_pair(little);
    assert_true(take_real(much[1]) && take_real(little[1]));
    send_and_receive(much, 2 * DPT_NEWCOMER_BYTES_MAX);
    send_and_receive(little, DPT_NEWCOMER_BYTES_MAX / 2);
    dpt_newcomers_look(newcomers, now_ms); /* its first message may be on the way: once more */
    dpt_newcomers_look(newcomers, now_ms + 1);
    assert_true(is_open(much[0]));
    dpt_newcomers_look(newcomers, now_ms += DPT_NEWCOMERS_LOOK_MS);
    assert_int_equal(recv(much[0], &byte, 1, 0), 0); /* the end */
    assert_true(is_open(little[0]));
    dpt_newcomers_gone(newcomers, much[1]);
    send_and_receive(little, DPT_NEWCOMER_BYTES_MAX);
    connect_pair(member); /* the address has a member: nothing is closed */
    assert_true(take_real(member[1]));
    dpt_newcomers_heard(newcomers, member[1]);
    for (int i = 0; i < 3; i++)
        dpt_newcomers_look(newcomers, now_ms += DPT_NEWCOMERS_LOOK_MS);
    assert_true(is_open(little[0]) && is_open(member[0]));
    for (int i = 0; i < 2; i++) {
        close(much[i]);
        close(little[i]);
        close(member[i]);
    }
    struct in6_addr address;
    assert_false(dpt_newcomers_address(little[1], &address));
}

/* No machine that is admitted speaks over it, and so it is closed, with a member at its address
 * too. */
static void newcomer_without_a_machine_is_closed(void **state)
{
    (void)state;
    int token[2], member[2];
    char byte;
    int64_t now_ms = 100000;
    connect_pair(token);
    connect_pair(member);
    assert_true(take_real(token[1]) && take_real(member[1]));
    dpt_newcomers_heard(newcomers, member[1]);
    dpt_newcomers_look(newcomers, now_ms += DPT_NEWCOMER_MS - 1);
    assert_true(is_open(token[0]));
    dpt_newcomers_look(newcomers, now_ms + DPT_NEWCOMERS_LOOK_MS);
    assert_int_equal(recv(token[0], &byte, 1, 0), 0); /* the end */
    assert_true(is_open(member[0]));
    for (int i = 0; i < 2; i++) {
        close(token[i]);
        close(member[i]);
    }
}

int main(void)
{
#define CASE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(stranger_has_a_share),
        CASE(few_descriptors_have_few_newcomers),
        CASE(oldest_newcomer_of_a_full_server_goes),
        CASE(addresses_of_one_network_count_together),
        CASE(loopback_is_bounded_by_the_total),
        CASE(odd_descriptors),
        CASE(connections_are_forgotten_with_their_port),
        CASE(newcomer_that_sends_much_is_closed),
        CASE(newcomer_without_a_machine_is_closed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
