/* Records before messages: a message leaves after the commit of the records before it, or never. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/log.h"
#include "rendezvous/server/turn.h"

#include <string.h>

/* A journal whose commits end with `next`. */
struct double_journal {
    enum dpt_status next;
    unsigned added, commits;
};

static enum dpt_status add(void *ctx, const struct dpt_rdzv_record *record, struct dpt_err *err)
{
    struct double_journal *journal = ctx;
    (void)record;
    (void)err;
    journal->added++;
    return DPT_OK;
}

static enum dpt_status commit(void *ctx, struct dpt_err *err)
{
    struct double_journal *journal = ctx;
    journal->commits++;
    return journal->next == DPT_OK ? DPT_OK : dpt_fail(err, journal->next, "the disk is full");
}

static struct double_journal disk;
static const struct dpt_journal journal = {.ctx = &disk, .add = add, .commit = commit};
static struct dpt_turn turn;
static char logged[4096];

static void take_log(void *ctx, const char *line, size_t bytes)
{
    (void)ctx;
    strncat(logged, line,
            bytes < sizeof logged - strlen(logged) - 1 ? bytes
                                                       : sizeof logged - strlen(logged) - 1);
}

static int setup(void **state)
{
    (void)state;
    disk = (struct double_journal){.next = DPT_OK};
    turn = (struct dpt_turn){.journal = &journal};
    logged[0] = '\0';
    dpt_log_set_sink(take_log, NULL);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    dpt_log_set_sink(NULL, NULL);
    dpt_turn_fini(&turn);
    return 0;
}

static void decide(size_t n)
{
    static const struct dpt_rdzv_record records[3];
    struct dpt_err err;
    const struct dpt_rdzv_output out = {.records = records, .n_records = n};
    assert_int_equal(dpt_turn_add(&turn, &out, &err), DPT_OK);
}

/* Whether the turn keeps a message to `conn`. */
static bool holds(uint64_t conn)
{
    zmq_msg_t frame;
    assert_int_equal(zmq_msg_init_size(&frame, 100), 0);
    if (dpt_turn_hold(&turn, conn, &frame))
        return true;
    (void)zmq_msg_close(&frame);
    return false;
}

static void end_turn(int64_t now_ms)
{
    struct dpt_err err;
    assert_int_equal(dpt_turn_end(&turn, now_ms, &err), DPT_OK);
}

/* The connection of the next message that may leave; 0: none. */
static uint64_t released(void)
{
    uint64_t conn;
    zmq_msg_t frame;
    if (!dpt_turn_release(&turn, &conn, &frame))
        return 0;
    assert_int_equal(zmq_msg_size(&frame), 100);
    (void)zmq_msg_close(&frame);
    return conn;
}

static void turn_without_records_holds_nothing(void **state)
{
    (void)state;
    decide(0);
    assert_false(holds(1));
    end_turn(0);
    assert_int_equal(disk.commits, 0);
    turn.journal = NULL; /* --state-dir none */
    decide(2);
    assert_false(holds(1));
    assert_int_equal(disk.added, 0);
}

static void messages_leave_in_order_after_one_commit(void **state)
{
    (void)state;
    assert_false(holds(1));
    decide(2);
    for (uint64_t conn = 1; conn <= 200; conn++) {
        assert_true(holds(conn));
        decide(1);
        assert_int_equal(released(), 0);
    }
    end_turn(0);
    assert_int_equal(disk.commits, 1);
    assert_int_equal(disk.added, 202);
    for (uint64_t conn = 1; conn <= 200; conn++)
        assert_int_equal(released(), conn);
    assert_int_equal(released(), 0);
    assert_false(holds(1)); /* the next turn */
}

static void full_disk_lets_no_message_out(void **state)
{
    (void)state;
    disk.next = DPT_ENOSPC;
    decide(1);
    assert_true(holds(1));
    end_turn(1000);
    assert_int_equal(released(), 0);
    assert_non_null(strstr(logged, "the disk is full; the server answers nobody"));
    /* Later turns, with records or without. */
    assert_true(holds(2));
    end_turn(1001); /* too soon for another try */
    assert_int_equal(disk.commits, 1);
    decide(1);
    assert_true(holds(3));
    end_turn(1000 + DPT_TURN_RETRY_MS);
    assert_int_equal(disk.commits, 2);
    assert_int_equal(released(), 0);
    /* Room again: the messages that could not leave are gone, later ones leave. */
    disk.next = DPT_OK;
    end_turn(1000 + 2 * DPT_TURN_RETRY_MS);
    assert_int_equal(released(), 0);
    assert_non_null(strstr(logged, "the journal can be written again"));
    assert_non_null(strstr(logged, "3 messages were dropped"));
    assert_false(holds(4));
}

/* It is reported again after a while, and not at each try. */
static void long_failure_is_reported_seldom(void **state)
{
    (void)state;
    unsigned lines = 0;
    disk.next = DPT_EIO;
    decide(1);
    for (int64_t now_ms = 0; now_ms <= 2 * DPT_TURN_REPORT_MS; now_ms += DPT_TURN_RETRY_MS)
        end_turn(now_ms);
    for (const char *at = logged; (at = strstr(at, "answers nobody")) != NULL; at++)
        lines++;
    assert_int_equal(lines, 3);
    assert_int_equal(disk.commits, 2 * DPT_TURN_REPORT_MS / DPT_TURN_RETRY_MS + 1);
}

static void damaged_journal_ends_the_server(void **state)
{
    (void)state;
    struct dpt_err err;
    disk.next = DPT_ECORRUPT;
    decide(1);
    assert_true(holds(1));
    assert_int_equal(dpt_turn_end(&turn, 0, &err), DPT_ECORRUPT);
    assert_int_equal(released(), 0);
}

static void large_turn_ends_early(void **state)
{
    (void)state;
    decide(1);
    for (int i = 0; i < DPT_TURN_FULL; i++) {
        assert_false(dpt_turn_is_full(&turn));
        assert_true(holds(1));
    }
    assert_true(dpt_turn_is_full(&turn));
    end_turn(0);
    while (released() != 0)
        continue;
    assert_false(dpt_turn_is_full(&turn));
}

/* Records of one turn are bounded, too: the journal takes only so many. */
static void turn_of_many_records_ends_early(void **state)
{
    (void)state;
    for (int i = 0; i < DPT_TURN_FULL; i += 2) {
        assert_false(dpt_turn_is_full(&turn));
        decide(2);
    }
    assert_true(dpt_turn_is_full(&turn));
    end_turn(0);
    assert_int_equal(disk.commits, 1);
    assert_false(dpt_turn_is_full(&turn));
}

static void step_that_answers_all_nodes_loses_no_message(void **state)
{
    (void)state;
    int n = 0;
    decide(1);
    for (int i = 0; i < DPT_TURN_FULL - 1 + DPT_NODES_MAX; i++)
        assert_true(holds(1));
    end_turn(0);
    while (released() != 0)
        n++;
    assert_int_equal(n, DPT_TURN_FULL - 1 + DPT_NODES_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(turn_without_records_holds_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(messages_leave_in_order_after_one_commit, setup, teardown),
        cmocka_unit_test_setup_teardown(full_disk_lets_no_message_out, setup, teardown),
        cmocka_unit_test_setup_teardown(long_failure_is_reported_seldom, setup, teardown),
        cmocka_unit_test_setup_teardown(damaged_journal_ends_the_server, setup, teardown),
        cmocka_unit_test_setup_teardown(large_turn_ends_early, setup, teardown),
        cmocka_unit_test_setup_teardown(turn_of_many_records_ends_early, setup, teardown),
        cmocka_unit_test_setup_teardown(step_that_answers_all_nodes_loses_no_message, setup,
                                        teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
