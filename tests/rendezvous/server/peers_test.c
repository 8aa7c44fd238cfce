/* Which connections are open, when messages and monitor events come in any order and descriptor
 * numbers are used again. */
#include "rendezvous/server/peers.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static struct dpt_peers peers;

static int forget_peers(void **state)
{
    (void)state;
    memset(&peers, 0, sizeof peers);
    return 0;
}

enum { FD = 12 };
static const uint64_t first = (UINT64_C(1) << 32) | 0x10, second = first + 1;

static void test_life(void **state)
{
    (void)state;
    assert_false(dpt_peers_heard(&peers, FD, first)); /* never accepted */
    dpt_peers_connected(&peers, FD);
    assert_true(dpt_peers_heard(&peers, FD, first));
    assert_true(dpt_peers_heard(&peers, FD, first));
    assert_int_equal(dpt_peers_disconnected(&peers, FD), first);
    assert_int_equal(dpt_peers_disconnected(&peers, FD), 0);
    assert_false(dpt_peers_heard(&peers, FD, first)); /* a message that was still waiting */
}

static void test_nobody_was_heard(void **state)
{
    (void)state;
    dpt_peers_connected(&peers, FD);
    assert_int_equal(dpt_peers_disconnected(&peers, FD), 0);
}

/* The number was given to the next connection while a message of the last one was still waiting. */
static void test_number_used_again(void **state)
{
    (void)state;
    dpt_peers_connected(&peers, FD);
    assert_true(dpt_peers_heard(&peers, FD, first));
    assert_int_equal(dpt_peers_disconnected(&peers, FD), first);
    dpt_peers_connected(&peers, FD);
    assert_true(dpt_peers_heard(&peers, FD, second));
    assert_false(dpt_peers_heard(&peers, FD, first));
    assert_true(dpt_peers_heard(&peers, FD, second));
    assert_int_equal(dpt_peers_disconnected(&peers, FD), second);
}

/* As before, but the earlier one's only message comes first: the later one takes its place. */
static void test_late_first_message(void **state)
{
    (void)state;
    dpt_peers_connected(&peers, FD);
    (void)dpt_peers_disconnected(&peers, FD);
    dpt_peers_connected(&peers, FD);
    assert_true(dpt_peers_heard(&peers, FD, first)); /* taken for the new one for now */
    assert_true(dpt_peers_heard(&peers, FD, second));
    assert_false(dpt_peers_heard(&peers, FD, first));
    assert_int_equal(dpt_peers_disconnected(&peers, FD), second);
}

static void test_ids_wrap(void **state)
{
    (void)state;
    const uint64_t last = (UINT64_C(1) << 32) | UINT32_MAX, next = UINT64_C(1) << 32;
    dpt_peers_connected(&peers, FD);
    assert_true(dpt_peers_heard(&peers, FD, last));
    assert_true(dpt_peers_heard(&peers, FD, next));
    assert_false(dpt_peers_heard(&peers, FD, last));
}

static void test_unwatched(void **state)
{
    (void)state;
    dpt_peers_connected(&peers, DPT_PEERS_FDS_MAX);
    assert_true(dpt_peers_heard(&peers, DPT_PEERS_FDS_MAX, first));
    assert_true(dpt_peers_heard(&peers, -1, first));
    assert_int_equal(dpt_peers_disconnected(&peers, DPT_PEERS_FDS_MAX), 0);
}

static void test_routing_ids(void **state)
{
    (void)state;
    static const uint8_t given[] = {0, 0x12, 0x34, 0x56, 0x78}, own[] = {'a', 'b', 'c', 'd', 'e'};
    uint8_t back[DPT_PEERS_ROUTING_ID_BYTES];
    uint64_t conn = dpt_peers_conn(given, sizeof given);
    assert_int_equal(conn, UINT64_C(0x112345678));
    dpt_peers_routing_id(conn, back);
    assert_memory_equal(back, given, sizeof given);
    assert_int_equal(dpt_peers_conn(own, sizeof own), 0);
    assert_int_equal(dpt_peers_conn(given, sizeof given - 1), 0);
    assert_int_equal(dpt_peers_conn((const uint8_t[]){0, 0, 0, 0, 0}, 5), UINT64_C(1) << 32);
}

int main(void)
{
#define CASE(test) cmocka_unit_test_setup(test, forget_peers)
    const struct CMUnitTest tests[] = {
        CASE(test_life),
        CASE(test_nobody_was_heard),
        CASE(test_number_used_again),
        CASE(test_late_first_message),
        CASE(test_ids_wrap),
        CASE(test_unwatched),
        CASE(test_routing_ids),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
