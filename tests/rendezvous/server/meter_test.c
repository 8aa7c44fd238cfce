/* The buckets of connections. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "rendezvous/server/meter.h"

#include <string.h>

static struct dpt_meter meter;
enum { FD = 9 };
static const uint64_t first = (UINT64_C(1) << 32) | 1, second = first + 1;

static int setup(void **state)
{
    (void)state;
    memset(&meter, 0, sizeof meter);
    return 0;
}

/* Messages of `bytes` bytes that the connection may send at this time. */
static int count_allowed(uint64_t conn, size_t bytes, int64_t now_ms)
{
    int n = 0;
    while (n < 100000 && dpt_meter_take(&meter, FD, conn, bytes, now_ms))
        n++;
    return n;
}

static void messages_are_bounded_and_come_back(void **state)
{
    (void)state;
    assert_int_equal(count_allowed(first, 10, 1000), DPT_METER_MESSAGES_MAX);
    assert_int_equal(count_allowed(first, 10, 1000), 0);
    assert_int_equal(count_allowed(first, 10, 1007), 7 * DPT_METER_MESSAGES_PER_MS);
    assert_int_equal(count_allowed(first, 10, 1007 + 3600 * 1000), DPT_METER_MESSAGES_MAX);
}

static void bytes_are_bounded(void **state)
{
    (void)state;
    enum { MIB = 1 << 20 };
    assert_int_equal(count_allowed(first, 8 * MIB, 1000), DPT_METER_BYTES_MAX / (8 * MIB));
    assert_true(dpt_meter_take(&meter, FD, first, 0, 1000)); /* a small message still passes */
    assert_int_equal(count_allowed(first, 8 * MIB, 1000 + 128), 1);
    assert_false(dpt_meter_take(&meter, FD, first, (size_t)DPT_METER_BYTES_MAX + 1, 1 << 30));
}

static void next_connection_has_full_buckets(void **state)
{
    (void)state;
    assert_int_equal(count_allowed(first, 10, 1000), DPT_METER_MESSAGES_MAX);
    assert_int_equal(count_allowed(second, 10, 1000), DPT_METER_MESSAGES_MAX);
}

static void other_descriptors_are_not_metered(void **state)
{
    (void)state;
    for (int i = 0; i < 2 * DPT_METER_MESSAGES_MAX; i++) {
        assert_true(dpt_meter_take(&meter, -1, first, 10, 1000));
        assert_true(dpt_meter_take(&meter, DPT_PEERS_FDS_MAX, first, 10, 1000));
    }
}

int main(void)
{
#define CASE(test) cmocka_unit_test_setup(test, setup)
    const struct CMUnitTest tests[] = {
        CASE(messages_are_bounded_and_come_back),
        CASE(bytes_are_bounded),
        CASE(next_connection_has_full_buckets),
        CASE(other_descriptors_are_not_metered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
