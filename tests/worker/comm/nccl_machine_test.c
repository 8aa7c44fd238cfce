/* The machine of NCCL's communicators against a double, fault by fault: the calls, the results for
 * the caller, and the ends. */
#include "tests/worker/comm/nccl_double.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const uint8_t id[DPT_NCCL_ID_BYTES] = {1, 2, 3};
static char memory[64];
static const struct dpt_nccl_piece swap[] = {
    {.kind = DPT_NCCL_SEND, .peer = 1, .from = memory, .count = 8},
    {.kind = DPT_NCCL_RECV, .peer = 1, .to = memory + 8, .count = 8},
};

static struct scene {
    struct nccl_double d;
    struct dpt_nccl_machine *n;
    struct dpt_err err;
} s;
static const struct dpt_nccl_op swap_op = {swap, 2, NULL};

static void open_scene(void)
{
    nccl_double_init(&s.d, 0);
    s.n = nccl_double_machine(&s.d);
}

/* Steps, a ms each, until it is not in progress, at most so long. */
static enum dpt_status step_for(int ms)
{
    enum dpt_status status;
    for (int i = 0; (status = dpt_nccl_machine_step(s.n, &s.err)) == DPT_INPROGRESS && i < ms; i++)
        s.d.now_ms++;
    return status;
}

static void stop(int keep)
{
    dpt_nccl_machine_stop(s.n, keep);
    assert_int_equal(step_for(DOUBLE_TIMEOUT_MS), DPT_OK);
}

static int close_scene(void **state)
{
    (void)state;
    stop(-1);
    dpt_nccl_machine_destroy(&s.n);
    nccl_double_check_clean(&s.d);
    return 0;
}

static void make_communicator(int comm)
{
    assert_int_equal(dpt_nccl_machine_init(s.n, comm, 4, 0, id, &s.err), DPT_OK);
    assert_int_equal(dpt_nccl_state(s.n, comm), DPT_NCCL_CREATING);
    assert_int_equal(step_for(20), DPT_OK);
    assert_int_equal(dpt_nccl_state(s.n, comm), DPT_NCCL_READY);
}

/* Opens the scene with communicator 0 READY. */
static int open_with_ready(void **state)
{
    (void)state;
    open_scene();
    make_communicator(0);
    return 0;
}

static void launch(int comm)
{
    assert_int_equal(dpt_nccl_machine_launch(s.n, comm, &swap_op, &s.err), DPT_OK);
}

static void a_quiet_life(void **state)
{
    (void)state;
    make_communicator(1);
    for (int i = 0; i < 3; i++) {
        launch(0);
        assert_int_equal(dpt_nccl_state(s.n, 0), DPT_NCCL_LAUNCHING);
        launch(1); /* another communicator's own */
        assert_int_equal(step_for(20), DPT_OK);
        assert_int_equal(double_of(s.n, 0)->ops_done, i + 1);
    }
    assert_int_equal(dpt_nccl_machine_split(s.n, 2, 0, 1, 0, &s.err), DPT_OK);
    assert_int_equal(step_for(20), DPT_OK);
    launch(2);
    assert_int_equal(step_for(20), DPT_OK);
    dpt_nccl_machine_close(s.n);
    assert_int_equal(step_for(50), DPT_OK);
    assert_int_equal(s.d.n_destroys, 3);
    assert_int_equal(s.d.n_aborts, 0);
}

static void none_is_destroyed_before_all_are_flushed(void **state)
{
    (void)state;
    make_communicator(1);
    dpt_nccl_machine_close(s.n);
    double_of(s.n, 1)->done_ms += 50;
    assert_int_equal(step_for(40), DPT_INPROGRESS);
    assert_int_equal(dpt_nccl_state(s.n, 0), DPT_NCCL_FINALIZED);
    assert_int_equal(s.d.n_destroys, 0);
    assert_int_equal(step_for(40), DPT_OK);
    assert_int_equal(s.d.n_destroys, 2);
}

static void an_operation_is_done_when_it_is(void **state)
{
    (void)state;
    s.d.script.launch_ms = 50; /* an idle stream before that means nothing */
    s.d.script.op_ms = 70;
    launch(0);
    assert_int_equal(step_for(49), DPT_INPROGRESS);
    assert_int_equal(dpt_nccl_state(s.n, 0), DPT_NCCL_LAUNCHING);
    assert_int_equal(step_for(60), DPT_INPROGRESS);
    assert_int_equal(dpt_nccl_state(s.n, 0), DPT_NCCL_RUNNING);
    assert_int_equal(step_for(60), DPT_OK);
    assert_int_equal(double_of(s.n, 0)->ops_done, 1);
    /* A peer that computes is waited for without a limit. */
    s.d.script.launch_ms = NEVER;
    launch(0);
    assert_int_equal(step_for(100 * DOUBLE_TIMEOUT_MS), DPT_INPROGRESS);
}

static void one_operation_at_a_time(void **state)
{
    (void)state;
    launch(0);
    const int calls = s.d.n_calls;
    assert_int_equal(dpt_nccl_machine_launch(s.n, 0, &swap_op, &s.err), DPT_EINVAL);
    assert_int_equal(s.d.n_calls, calls);
    assert_int_equal(step_for(20), DPT_OK);
    assert_int_equal(dpt_nccl_machine_split(s.n, 1, 0, 0, 0, &s.err), DPT_OK);
    assert_int_equal(dpt_nccl_machine_launch(s.n, 0, &swap_op, &s.err), DPT_EINVAL);
}

static void a_peer_dies_in_init(void **state)
{
    (void)state;
    open_scene();
    s.d.script.create_ms = NEVER;
    assert_int_equal(dpt_nccl_machine_init(s.n, 0, 4, 0, id, &s.err), DPT_OK);
    assert_int_equal(step_for(DOUBLE_CREATE_MS - 1), DPT_INPROGRESS);
    assert_int_equal(step_for(2), DPT_ETIMEOUT);
    assert_non_null(strstr(s.err.text, "within 1200 ms"));
    assert_int_equal(dpt_nccl_machine_step(s.n, &s.err), DPT_ETIMEOUT); /* it stays so */
    assert_int_equal(s.d.n_aborts, 0);                                  /* until the owner stops */
    stop(-1);
    assert_int_equal(s.d.n_aborts, 1);
    s.d.script.create_ms = 5;
    make_communicator(0);
    close_scene(NULL);
}

static void creation_that_is_refused(void **state)
{
    (void)state;
    for (int left = 0; left < 2; left++) {
        open_scene();
        s.d.script.create = DPT_NCCL_EUSAGE;
        s.d.script.child_left = left;
        assert_int_equal(dpt_nccl_machine_init(s.n, 0, 4, 0, id, &s.err), DPT_EINVAL);
        stop(-1);
        assert_int_equal(s.d.n_aborts, left);
        s.d.script.create = DPT_NCCL_OK;
        s.d.script.stream_create = DPT_NCCL_ECUDA;
        assert_int_equal(dpt_nccl_machine_init(s.n, 0, 4, 0, id, &s.err), DPT_EDEVICE);
        close_scene(NULL);
    }
}

static void an_error_in_an_operation(void **state)
{
    (void)state;
    s.d.script.op_ends = DPT_NCCL_EREMOTE;
    launch(0);
    assert_int_equal(step_for(20), DPT_EPEER);
    assert_int_not_equal(dpt_nccl_state(s.n, 0), DPT_NCCL_READY);
    assert_int_equal(dpt_nccl_machine_launch(s.n, 0, &swap_op, &s.err), DPT_EPEER);
    stop(-1);
    s.d.script.op_ends = DPT_NCCL_OK;
    make_communicator(0);
    s.d.script.op = DPT_NCCL_EINTERNAL; /* in the call itself */
    assert_int_equal(dpt_nccl_machine_launch(s.n, 0, &swap_op, &s.err), DPT_EPEER);
    stop(-1);
    s.d.script.op = DPT_NCCL_OK;
    make_communicator(0);
    double_of(s.n, 0)->error = DPT_NCCL_ESYSTEM; /* at rest */
    assert_int_equal(dpt_nccl_machine_step(s.n, &s.err), DPT_EPEER);
    stop(-1);
    make_communicator(0);
    launch(0);
    s.d.now_ms += 2;
    assert_int_equal(dpt_nccl_machine_step(s.n, &s.err), DPT_INPROGRESS);
    double_of(s.n, 0)->stream->broken = true; /* the device is lost */
    assert_int_equal(step_for(20), DPT_EDEVICE);
}

static void stopped_operation_is_not_done(void **state)
{
    (void)state;
    s.d.script.op_ms = 100;
    launch(0);
    assert_int_equal(step_for(50), DPT_INPROGRESS);
    s.d.script.drain_ms = 10; /* the kernel ends later than the revoke says that it is done */
    dpt_nccl_machine_stop(s.n, 0);
    assert_int_equal(s.d.n_revokes, 1);
    for (int i = 0; dpt_nccl_machine_step(s.n, &s.err) == DPT_INPROGRESS; i++) {
        assert_true(i < 30);
        assert_int_equal(dpt_nccl_state(s.n, 0), DPT_NCCL_REVOKING);
        s.d.now_ms++;
    }
    assert_int_equal(dpt_nccl_state(s.n, 0), DPT_NCCL_REVOKED);
    assert_int_equal(double_of(s.n, 0)->ops_done, 0);
}

static void all_are_revoked_before_one_is_freed(void **state)
{
    (void)state;
    for (int i = 1; i < 4; i++)
        make_communicator(i);
    s.d.script.op_ms = NEVER;
    launch(1);
    launch(3);
    assert_int_equal(step_for(20), DPT_INPROGRESS); /* both run */
    dpt_nccl_machine_stop(s.n, -1);
    assert_int_equal(s.d.n_revokes, 4);
    assert_int_equal(s.d.n_aborts, 0);
    assert_int_equal(step_for(50), DPT_OK);
    assert_int_equal(s.d.n_aborts, 4);
}

/* The library's own launching goes on after a revoke: it is aborted, and first. */
static void launching_communicator_is_aborted_not_revoked(void **state)
{
    (void)state;
    for (int i = 1; i < 3; i++)
        make_communicator(i);
    s.d.script.launch_ms = NEVER;
    launch(1);
    assert_int_equal(step_for(20), DPT_INPROGRESS);
    dpt_nccl_machine_stop(s.n, 1); /* would be kept, but is not at rest */
    assert_int_equal(s.d.n_revokes, 2);
    assert_int_equal(step_for(50), DPT_OK);
    assert_int_equal(s.d.n_aborts, 3);
    assert_true(s.d.handles[1].freed_call < s.d.handles[0].freed_call);
    assert_true(s.d.handles[1].freed_call < s.d.handles[2].freed_call);
    assert_int_equal(dpt_nccl_state(s.n, 1), DPT_NCCL_FREE);
}

static void revoke_refused_or_without_end(void **state)
{
    (void)state;
    for (int kind = 0; kind < 4; kind++) {
        open_with_ready(NULL);
        make_communicator(1);
        s.d.script.op_ms = NEVER;
        launch(0);
        if (kind == 0)
            s.d.script.revoke = DPT_NCCL_EUSAGE;
        else if (kind == 1)
            s.d.script.revoke_ends = DPT_NCCL_EINTERNAL;
        else if (kind == 2)
            s.d.script.revoke_ms = NEVER;
        else
            s.d.calls.revoke = NULL; /* an older library */
        assert_int_equal(dpt_nccl_machine_can_shrink(s.n), kind != 3);
        const int64_t start = s.d.now_ms;
        dpt_nccl_machine_stop(s.n, 0); /* would be kept, but is not at rest */
        assert_int_equal(step_for(DOUBLE_TIMEOUT_MS), DPT_OK);
        assert_true(s.d.now_ms - start <= DOUBLE_RUN_MS / 2 + 1);
        assert_int_equal(dpt_nccl_state(s.n, 0), DPT_NCCL_FREE);
        assert_int_equal(s.d.n_aborts, 2);
        close_scene(NULL);
    }
}

static void an_abort_that_takes_long(void **state)
{
    (void)state;
    make_communicator(1);
    s.d.script.abort_takes_ms = 450;
    dpt_nccl_machine_stop(s.n, -1);
    assert_int_equal(step_for(50), DPT_OK);
    assert_int_equal(s.d.n_aborts, 2);
    s.d.script.abort_takes_ms = 0;
}

/* Runs until the process is lost; returns the reason. */
static const char *lose(void)
{
    jmp_buf lost;
    s.d.lost_to = &lost;
    if (setjmp(lost) == 0) {
        dpt_nccl_machine_stop(s.n, -1);
        (void)step_for(3 * DOUBLE_TIMEOUT_MS);
        return NULL;
    }
    free(s.n); /* as the process's memory would be */
    return s.d.lost;
}

static void call_that_never_returns_loses_the_process(void **state)
{
    (void)state;
    open_with_ready(NULL);
    s.d.script.abort_takes_ms = NEVER;
    int64_t start = s.d.now_ms;
    assert_string_equal(lose(), "ncclCommAbort");
    assert_true(s.d.now_ms - start <= DOUBLE_TIMEOUT_MS + DOUBLE_TIMEOUT_MS / 8);
    open_with_ready(NULL);
    s.d.script.revoke_takes_ms = NEVER;
    assert_string_equal(lose(), "ncclCommRevoke");
    /* Abort returns, but a kernel goes on: its memory is not free. */
    open_with_ready(NULL);
    s.d.script.op_ms = s.d.script.revoke_ms = s.d.script.drain_ms = NEVER;
    launch(0);
    assert_int_equal(step_for(20), DPT_INPROGRESS);
    start = s.d.now_ms;
    assert_string_equal(lose(), "a kernel of an aborted communicator");
    assert_true(s.d.now_ms - start <= DOUBLE_TIMEOUT_MS + 2);
}

enum { STATES = 13 };

/* Brings communicator 0 into one of STATES states, and others as that state needs. */
static void bring(int which)
{
    make_communicator(0);
    switch (which) {
    case 1: /* CREATING beside it */
        s.d.script.create_ms = NEVER;
        assert_int_equal(dpt_nccl_machine_init(s.n, 1, 4, 0, id, &s.err), DPT_OK);
        break;
    case 2:
        s.d.script.launch_ms = NEVER;
        launch(0);
        break;
    case 3:
        s.d.script.op_ms = NEVER;
        launch(0);
        assert_int_equal(step_for(20), DPT_INPROGRESS);
        break;
    case 4: /* a split under way, which leaves nothing, or a half-made child */
    case 5:
        s.d.script.create_ms = NEVER;
        s.d.script.child_left = which == 5;
        assert_int_equal(dpt_nccl_machine_split(s.n, 1, 0, 0, 0, &s.err), DPT_OK);
        break;
    case 6: /* a shrink in the same way */
    case 7:
        stop(0);
        s.d.script.create_ms = NEVER;
        s.d.script.child_left = which == 7;
        assert_int_equal(dpt_nccl_machine_shrink(s.n, 1, 0, (const int[]){1, 3}, 2, &s.err),
                         DPT_OK);
        break;
    case 8: /* a split that is complete and not yet seen */
        assert_int_equal(dpt_nccl_machine_split(s.n, 1, 0, 0, 0, &s.err), DPT_OK);
        s.d.now_ms += 50;
        s.d.script.child_left = true;
        break;
    case 9:
        stop(0); /* REVOKED */
        break;
    case 10:
        s.d.script.revoke_ms = NEVER;
        dpt_nccl_machine_stop(s.n, -1);
        break;
    case 11:
        s.d.script.finalize_ms = NEVER;
        dpt_nccl_machine_close(s.n);
        break;
    default: /* READY */
        break;
    }
}

static void stop_from_any_state(void **state)
{
    (void)state;
    for (int which = 0; which < STATES; which++) {
        open_scene();
        bring(which);
        const int64_t start = s.d.now_ms;
        dpt_nccl_machine_stop(s.n, 0);
        dpt_nccl_machine_stop(s.n, -1);
        dpt_nccl_machine_stop(s.n, 0); /* a stop that keeps none is not undone */
        assert_int_equal(step_for(DOUBLE_TIMEOUT_MS), DPT_OK);
        assert_true(s.d.now_ms - start <= DOUBLE_TIMEOUT_MS);
        for (int i = 0; i < DPT_NCCL_COMMS_MAX; i++)
            assert_int_equal(dpt_nccl_state(s.n, i), DPT_NCCL_FREE);
        assert_int_equal(dpt_nccl_machine_step(s.n, &s.err), DPT_OK);
        close_scene(NULL);
    }
}

static void shrinking(void **state)
{
    (void)state;
    make_communicator(1);
    launch(0);
    s.d.now_ms += 2; /* it runs, */
    assert_int_equal(dpt_nccl_machine_step(s.n, &s.err), DPT_INPROGRESS);
    stop(0); /* and is not done */
    assert_int_equal(dpt_nccl_state(s.n, 0), DPT_NCCL_REVOKED);
    assert_int_equal(dpt_nccl_state(s.n, 1), DPT_NCCL_FREE);
    assert_int_equal(dpt_nccl_machine_shrink(s.n, 1, 0, (const int[]){2}, 1, &s.err), DPT_OK);
    assert_int_equal(step_for(50), DPT_OK);
    assert_int_equal(dpt_nccl_state(s.n, 1), DPT_NCCL_READY);
    assert_int_equal(dpt_nccl_state(s.n, 0), DPT_NCCL_REVOKED); /* until others are through, too */
    dpt_nccl_machine_release(s.n, 0);
    launch(1);
    assert_int_equal(step_for(50), DPT_OK);
    assert_int_equal(dpt_nccl_state(s.n, 0), DPT_NCCL_FREE); /* aborted, not destroyed */
    assert_int_equal(s.d.n_destroys, 0);
}

static void a_shrink_that_fails_leaves_room_for_a_new_one(void **state)
{
    (void)state;
    for (int kind = 0; kind < 4; kind++) {
        open_with_ready(NULL);
        stop(0);
        if (kind == 0)
            s.d.script.create = DPT_NCCL_EUSAGE;
        else if (kind == 3)
            s.d.script.create_ms = NEVER;
        else
            s.d.script.create_ends = DPT_NCCL_ESYSTEM;
        s.d.script.child_left = kind == 2;
        enum dpt_status status = dpt_nccl_machine_shrink(s.n, 1, 0, (const int[]){0, 2}, 2, &s.err);
        if (status == DPT_OK)
            status = step_for(DOUBLE_CREATE_MS + 1);
        assert_int_equal(status, kind == 0 ? DPT_EINVAL : kind == 3 ? DPT_ETIMEOUT : DPT_EIO);
        stop(-1);
        s.d.script.create = s.d.script.create_ends = DPT_NCCL_OK;
        s.d.script.create_ms = 5;
        make_communicator(1);
        close_scene(NULL);
    }
}

static void a_close_that_becomes_a_stop(void **state)
{
    (void)state;
    for (int kind = 0; kind < 4; kind++) {
        open_with_ready(NULL);
        make_communicator(1);
        if (kind == 0)
            s.d.script.finalize_ms = NEVER; /* a peer does not follow */
        else if (kind == 1)
            s.d.script.finalize_ends = DPT_NCCL_EREMOTE;
        else if (kind == 2)
            s.d.script.finalize = DPT_NCCL_EINTERNAL;
        else
            launch(0); /* something is in operation */
        const int64_t start = s.d.now_ms;
        dpt_nccl_machine_close(s.n);
        assert_int_equal(step_for(2 * DOUBLE_TIMEOUT_MS), DPT_OK);
        assert_true(s.d.now_ms - start <= DOUBLE_TIMEOUT_MS + 1);
        assert_int_equal(s.d.n_aborts + s.d.n_destroys, 2);
        assert_true(s.d.n_aborts > 0);
        close_scene(NULL);
    }
}

#define IN_SCENE(test) cmocka_unit_test_setup_teardown(test, open_with_ready, close_scene)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_SCENE(a_quiet_life),
        IN_SCENE(none_is_destroyed_before_all_are_flushed),
        IN_SCENE(an_operation_is_done_when_it_is),
        IN_SCENE(one_operation_at_a_time),
        cmocka_unit_test(a_peer_dies_in_init),
        cmocka_unit_test(creation_that_is_refused),
        IN_SCENE(an_error_in_an_operation),
        IN_SCENE(stopped_operation_is_not_done),
        IN_SCENE(all_are_revoked_before_one_is_freed),
        IN_SCENE(launching_communicator_is_aborted_not_revoked),
        cmocka_unit_test(revoke_refused_or_without_end),
        IN_SCENE(an_abort_that_takes_long),
        cmocka_unit_test(call_that_never_returns_loses_the_process),
        cmocka_unit_test(stop_from_any_state),
        IN_SCENE(shrinking),
        cmocka_unit_test(a_shrink_that_fails_leaves_room_for_a_new_one),
        cmocka_unit_test(a_close_that_becomes_a_stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
