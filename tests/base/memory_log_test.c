/* The log of allocations: the pieces that exist, the newest events, what had no room. */
#include "base/memory_log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <pthread.h>

enum { PIECES = 4, EVENTS = 6 };

static char memory[16][8]; /* addresses */

struct scene {
    struct dpt_account account;
    struct dpt_memory_history history;
};

static void begin(struct scene *s)
{
    struct dpt_err err;
    *s = (struct scene){.history = {.piece = NULL}};
    assert_int_equal(dpt_memory_log_create(PIECES, EVENTS, &s->account.log, &err), DPT_OK);
}

static void end(struct scene *s)
{
    dpt_memory_history_fini(&s->history);
    dpt_memory_log_destroy(&s->account.log);
    assert_null(s->account.log);
}

static void look(struct scene *s)
{
    struct dpt_err err;
    dpt_memory_history_fini(&s->history);
    assert_int_equal(dpt_memory_log_read(s->account.log, &s->history, &err), DPT_OK);
}

static void pieces_exist_until_their_release(void **state)
{
    (void)state;
    struct scene s;
    begin(&s);
    dpt_account_add(&s.account, DPT_MEMORY_WEIGHTS, memory[0], 100, 128);
    dpt_account_add(&s.account, DPT_MEMORY_MOMENTS, memory[1], 50, 64);
    dpt_account_add(&s.account, DPT_MEMORY_COMM, NULL, 7, 7);
    dpt_account_sub(&s.account, DPT_MEMORY_WEIGHTS, memory[0], 100, 128);
    look(&s);
    assert_int_equal(s.history.n_pieces, 2);
    assert_int_equal(s.history.piece[0].number, 2);
    assert_ptr_equal(s.history.piece[0].at, memory[1]);
    assert_int_equal(s.history.piece[0].bytes, 50);
    assert_int_equal(s.history.piece[0].reserved, 64);
    assert_int_equal(s.history.piece[0].tag, DPT_MEMORY_MOMENTS);
    assert_int_equal(s.history.piece[1].number, 3);
    assert_null(s.history.piece[1].at);
    assert_int_equal(s.history.n_events, 4);
    assert_false(s.history.event[0].released);
    assert_true(s.history.event[3].released);
    assert_int_equal(s.history.event[3].piece.number, 1);
    assert_int_equal(s.history.event[3].piece.reserved, 128);
    for (size_t i = 1; i < s.history.n_events; i++)
        assert_true(s.history.event[i].at_ns >= s.history.event[i - 1].at_ns);
    assert_int_equal(s.history.dropped, 0);
    end(&s);
}

/* Memory was freed and given to another allocation before the account heard of the release. */
static void older_piece_of_an_address_is_released(void **state)
{
    (void)state;
    struct scene s;
    begin(&s);
    dpt_account_add(&s.account, DPT_MEMORY_DATA, memory[0], 8, 8);
    dpt_account_add(&s.account, DPT_MEMORY_DATA, memory[0], 8, 8);
    dpt_account_sub(&s.account, DPT_MEMORY_DATA, memory[0], 8, 8);
    look(&s);
    assert_int_equal(s.history.n_pieces, 1);
    assert_int_equal(s.history.piece[0].number, 2);
    end(&s);
}

static void newest_events_are_kept(void **state)
{
    (void)state;
    struct scene s;
    begin(&s);
    for (int i = 0; i < EVENTS; i++) {
        dpt_account_add(&s.account, DPT_MEMORY_DATA, memory[i], 8, 8);
        dpt_account_sub(&s.account, DPT_MEMORY_DATA, memory[i], 8, 8);
    }
    look(&s);
    assert_int_equal(s.history.n_pieces, 0);
    assert_int_equal(s.history.n_events, EVENTS);
    assert_int_equal(s.history.dropped, EVENTS);
    assert_int_equal(s.history.event[0].piece.number, EVENTS / 2 + 1);
    assert_int_equal(s.history.event[EVENTS - 1].piece.number, EVENTS);
    end(&s);
}

static void pieces_without_room_are_counted(void **state)
{
    (void)state;
    struct scene s;
    begin(&s);
    for (int i = 0; i < PIECES + 1; i++)
        dpt_account_add(&s.account, DPT_MEMORY_DATA, memory[i], 8, 8);
    dpt_account_sub(&s.account, DPT_MEMORY_DATA, memory[PIECES], 8, 8); /* not in the log */
    look(&s);
    assert_int_equal(s.history.n_pieces, PIECES);
    assert_int_equal(s.history.n_events, PIECES + 1);
    assert_int_equal(s.history.dropped, 1);
    struct dpt_memory_use use;
    dpt_account_read(&s.account, &use);
    assert_int_equal(use.all, 8 * PIECES);
    end(&s);
}

static void *allocate_and_release(void *ctx)
{
    for (int i = 0; i < 1000; i++) {
        dpt_account_add(ctx, DPT_MEMORY_SUMS, &i, 8, 8);
        dpt_account_sub(ctx, DPT_MEMORY_SUMS, &i, 8, 8);
    }
    return NULL;
}

static void threads_share_a_log(void **state)
{
    (void)state;
    struct scene s;
    pthread_t thread[3];
    begin(&s);
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, allocate_and_release, &s.account), 0);
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_join(thread[i], NULL), 0);
    look(&s);
    assert_int_equal(s.history.n_pieces, 0);
    assert_int_equal(s.history.dropped, 6000 - EVENTS);
    end(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_exist_until_their_release),
        cmocka_unit_test(older_piece_of_an_address_is_released),
        cmocka_unit_test(newest_events_are_kept),
        cmocka_unit_test(pieces_without_room_are_counted),
        cmocka_unit_test(threads_share_a_log),
    };
    return cmocka_run_group_tests_name("log of allocations", tests, NULL, NULL);
}
