/* Members and guests: how many connections a key may have, and which one is closed. */
#include "rendezvous/server/guests.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { DESCRIPTORS = 300, PLACES = 199 }; /* seven eighths of 300, less 64 */

static struct dpt_guests *guests;
static bool members[DPT_PEERS_FDS_MAX];
static int n_asked;

static int setup(void **state)
{
    (void)state;
    memset(members, 0, sizeof members);
    n_asked = 0;
    guests = calloc(1, sizeof *guests);
    if (guests != NULL)
        dpt_guests_init(guests, DESCRIPTORS, 16);
    return guests != NULL ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    free(guests);
    return 0;
}

static struct dpt_key key_of(int number)
{
    struct dpt_key key = {{0}};
    memcpy(key.bytes, &number, sizeof number);
    return key;
}

static bool is_member(void *ctx, int fd)
{
    (void)ctx;
    n_asked++;
    return members[fd];
}

/* The connection that is closed because of a message. */
static int hear_at(int fd, int key, int64_t now_ms)
{
    const struct dpt_key owner = key_of(key);
    dpt_guests_heard(guests, fd, &owner, members[fd]);
    const int excess = dpt_guests_excess(guests, fd, now_ms, is_member, NULL);
    if (excess >= 0)
        dpt_guests_gone(guests, excess);
    return excess;
}

static int hear(int fd, int key)
{
    return hear_at(fd, key, 1000);
}

static void places_follow_the_descriptors(void **state)
{
    (void)state;
    assert_int_equal(dpt_guests_max(DESCRIPTORS), PLACES);
    assert_int_equal(dpt_guests_max(20000), 17436);
    assert_int_equal(dpt_guests_max(1048576), dpt_guests_max(DPT_PEERS_FDS_MAX));
    assert_int_equal(dpt_guests_max(DPT_PEERS_FDS_MAX), 57280);
    assert_int_equal(dpt_guests_max(0), 1);
}

/* The longest silent guest of the key with the most goes; a key with few loses none. */
static void key_with_the_most_loses_one(void **state)
{
    (void)state;
    for (int i = 0; i < PLACES; i++)
        assert_int_equal(hear(3 + i, 1), -1);
    assert_int_equal(hear(3, 1), -1); /* it speaks again: 4 is the longest silent */
    assert_int_equal(hear(1000, 2), 4);
    assert_int_equal(hear(1001, 2), 5);
    assert_int_equal(hear(1002, 1), 6);
    assert_int_equal(dpt_guests_owner(guests, 3)->n_guests, PLACES - 2);
    assert_int_equal(guests->n_conns, PLACES);
}

static void guest_that_becomes_a_member_stays(void **state)
{
    (void)state;
    for (int i = 0; i < PLACES; i++)
        assert_int_equal(hear(3 + i, 1), -1);
    members[3] = members[5] = true;
    assert_int_equal(hear(3, 1), -1);
    assert_int_equal(hear(5, 1), -1);
    assert_int_equal(hear(1000, 2), 4);
    assert_int_equal(hear(1001, 2), 6);
}

/* A node loses its place in the plan, and sends nothing: the look finds it. */
static void member_that_loses_its_place_is_a_guest(void **state)
{
    (void)state;
    for (int i = 0; i < PLACES; i++) {
        members[3 + i] = true;
        assert_int_equal(hear(3 + i, 1), -1);
    }
    assert_int_equal(hear(1000, 2), -1); /* the only guest of its key */
    assert_int_equal(n_asked, PLACES);
    members[7] = members[8] = false;
    assert_int_equal(hear_at(1001, 3, 1000 + DPT_GUESTS_REVIEW_MS - 1), -1);
    assert_int_equal(n_asked, PLACES);
    assert_int_equal(hear_at(1002, 4, 1000 + DPT_GUESTS_REVIEW_MS), 7);
}

static void key_has_a_bound_with_many_places(void **state)
{
    (void)state;
    dpt_guests_init(guests, DPT_PEERS_FDS_MAX, 16);
    for (int i = 0; i < DPT_GUESTS_OF_KEY; i++)
        assert_int_equal(hear(3 + i, 1), -1);
    assert_int_equal(hear(DPT_GUESTS_OF_KEY + 3, 2), -1);
    assert_int_equal(hear(DPT_GUESTS_OF_KEY + 4, 1), 3);
    members[DPT_GUESTS_OF_KEY + 5] = true;
    assert_int_equal(hear(DPT_GUESTS_OF_KEY + 5, 1), -1);
}

/* All nodes of the largest run that the server takes may have one key. */
static void large_run_has_one_key(void **state)
{
    (void)state;
    dpt_guests_init(guests, DPT_PEERS_FDS_MAX, 2 * DPT_GUESTS_OF_KEY);
    for (int i = 0; i < 2 * DPT_GUESTS_OF_KEY; i++)
        assert_int_equal(hear(3 + i, 1), -1);
    assert_int_equal(hear(2 * DPT_GUESTS_OF_KEY + 3, 1), 3);
}

static void ends_and_odd_descriptors(void **state)
{
    (void)state;
    const struct dpt_key key = key_of(1);
    dpt_guests_gone(guests, 3);
    dpt_guests_heard(guests, -1, &key, false);
    dpt_guests_heard(guests, DPT_PEERS_FDS_MAX, &key, false);
    assert_int_equal(dpt_guests_excess(guests, -1, 1000, is_member, NULL), -1);
    assert_int_equal(dpt_guests_excess(guests, 3, 1000, is_member, NULL), -1);
    assert_int_equal(guests->n_conns, 0);
    for (int i = 0; i < 3 * DPT_GUESTS_BUCKETS; i++) { /* owners are used again */
        assert_int_equal(hear(3, i), -1);
        assert_int_equal(hear(4, i), -1);
    }
    assert_int_equal(guests->n_conns, 2);
    assert_true(guests->n_owners <= 3);
    dpt_guests_gone(guests, 3);
    dpt_guests_gone(guests, 4);
    assert_int_equal(guests->fd_end, 0);
    assert_int_equal(hear(9, 5), -1);
    dpt_guests_forget(guests);
    dpt_guests_gone(guests, 9);
    assert_int_equal(guests->n_conns, 0);
    assert_int_equal(hear(9, 6), -1);
    assert_int_equal(dpt_guests_owner(guests, 9)->n_guests, 1);
}

int main(void)
{
#define CASE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(places_follow_the_descriptors),     CASE(key_with_the_most_loses_one),
        CASE(guest_that_becomes_a_member_stays), CASE(member_that_loses_its_place_is_a_guest),
        CASE(key_has_a_bound_with_many_places),  CASE(large_run_has_one_key),
        CASE(ends_and_odd_descriptors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
