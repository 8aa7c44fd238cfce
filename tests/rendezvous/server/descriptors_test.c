/* The lines about descriptors: when they are written, how often, and what they say. */
#include "rendezvous/server/descriptors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

static char logged[4096];
static int n_lines;

static void keep_line(void *ctx, const char *line, size_t bytes)
{
    (void)ctx;
    assert_true(bytes < sizeof logged);
    memcpy(logged, line, bytes);
    logged[bytes] = '\0';
    n_lines++;
}

static int setup(void **state)
{
    (void)state;
    n_lines = 0;
    dpt_log_set_sink(keep_line, NULL);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    dpt_log_set_sink(NULL, NULL);
    return 0;
}

static void last_descriptor_is_reported_once_a_minute(void **state)
{
    (void)state;
    struct dpt_descriptors descriptors = {.n = 300};
    dpt_descriptors_accepted(&descriptors, 298, 1000);
    assert_int_equal(n_lines, 0);
    for (int i = 0; i < 100; i++)
        dpt_descriptors_accepted(&descriptors, 299, 1000 + i);
    assert_int_equal(n_lines, 1);
    assert_non_null(strstr(logged, "all 300 descriptors are in use"));
    assert_non_null(strstr(logged, "`ulimit -Hn`"));
    dpt_descriptors_accepted(&descriptors, 299, 1000 + DPT_DESCRIPTORS_PAUSE_MS);
    assert_int_equal(n_lines, 2);
}

static void closed_guest_is_reported(void **state)
{
    (void)state;
    struct dpt_descriptors descriptors = {.n = 300};
    struct dpt_guest_owner owner = {.key = {{0xab, 0xcd, 0xef, 0x01}}, .n_guests = 200};
    dpt_descriptors_closed(&descriptors, &owner, true, 1000);
    assert_int_equal(n_lines, 1);
    assert_non_null(strstr(logged, "one of 200 of the machine with key abcdef01, "));
    memset(owner.key.bytes, 0, sizeof owner.key.bytes);
    memcpy(&owner.key.bytes[10], (uint8_t[]){0xff, 0xff, 192, 0, 2, 1}, 6);
    dpt_descriptors_closed(&descriptors, &owner, false, 1001);
    assert_int_equal(n_lines, 1);
    dpt_descriptors_closed(&descriptors, &owner, false, 1000 + DPT_DESCRIPTORS_PAUSE_MS);
    assert_non_null(strstr(logged, "2 connection(s)"));
    assert_non_null(strstr(logged, "the machine with address ::ffff:192.0.2.1, "));
}

/* The limit of this process is lowered for good, so this is the last case. */
static void low_limit_is_a_warning(void **state)
{
    (void)state;
    struct dpt_descriptors descriptors;
    const struct rlimit low = {.rlim_cur = 200, .rlim_max = 300};
    dpt_descriptors_raise(1);
    assert_int_equal(n_lines, 0);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    dpt_descriptors_raise(199);
    assert_int_equal(n_lines, 0);
    dpt_descriptors_init(&descriptors);
    assert_int_equal(descriptors.n, 300);
    dpt_descriptors_raise(200);
    assert_int_equal(n_lines, 1);
    assert_non_null(strstr(logged, "300 descriptors (`ulimit -Hn`): there is room for 199 nodes"));
}

int main(void)
{
#define CASE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(last_descriptor_is_reported_once_a_minute),
        CASE(closed_guest_is_reported),
        CASE(low_limit_is_a_warning),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
