/* The folders of a worker: one run claims them, its workers share them, other runs are refused. A
 * worker takes them over when no worker holds them, and loses them when it was suspended. */
#include "worker/agent/claims.h"

#include "base/clock.h"
#include "base/fs.h"
#include "tests/tmp.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { TIMEOUT_MS = 1000, LIMIT_MS = 30000 };

static struct dpt_err err;
static char root[64], logs[80], checkpoints[80], text[DPT_ERR_TEXT_BYTES];

static int setup_claims(void **state)
{
    (void)state;
    if (!test_make_dir(root, sizeof root, "test-claims"))
        return -1;
    (void)snprintf(logs, sizeof logs, "%s/log", root);
    (void)snprintf(checkpoints, sizeof checkpoints, "%s/checkpoints", root);
    return 0;
}

static int teardown_claims(void **state)
{
    (void)state;
    return dpt_fs_remove_tree(root, &err) == DPT_OK ? 0 : -1;
}

static struct dpt_claims *begin_claims(const char *run, uint64_t server, bool embedded)
{
    struct dpt_claims *claims = NULL;
    const struct dpt_claims_options options = {.dir = {logs, checkpoints},
                                               .run = run,
                                               .server = server,
                                               .embedded = embedded,
                                               .timeout_ms = TIMEOUT_MS};
    assert_int_equal(dpt_claims_create(&options, &claims, &err), DPT_OK);
    return claims;
}

/* Waits until it is no longer pending. */
static enum dpt_claims_state settle(struct dpt_claims *claims)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    const int64_t limit_ms = dpt_now_ms() + LIMIT_MS;
    enum dpt_claims_state state;
    while ((state = dpt_claims_state(claims, text)) == DPT_CLAIMS_PENDING) {
        assert_true(dpt_now_ms() < limit_ms);
        (void)nanosleep(&pause, NULL); /* tidy: pause of a bounded poll */
    }
    return state;
}

static void await_state(struct dpt_claims *claims, enum dpt_claims_state state)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    const int64_t limit_ms = dpt_now_ms() + LIMIT_MS;
    while (dpt_claims_state(claims, text) != state) {
        assert_true(dpt_now_ms() < limit_ms);
        (void)nanosleep(&pause, NULL); /* tidy: pause of a bounded poll */
    }
}

static struct dpt_claim_seen look(const char *dir)
{
    struct dpt_claim_seen seen;
    assert_int_equal(dpt_claim_look(dir, &seen, &err), DPT_OK);
    return seen;
}

static void held_and_released(void **state)
{
    (void)state;
    struct dpt_claims *claims = begin_claims("a", 7, true);
    assert_int_equal(settle(claims), DPT_CLAIMS_HELD);
    assert_true(dpt_claims_until_ms(claims) > dpt_now_ms());
    int64_t number = 0;
    char token[DPT_CLAIM_TOKEN_BYTES];
    assert_true(dpt_claims_get(claims, 1, &number, token));
    assert_int_equal(number, 1);
    assert_string_equal(look(checkpoints).record.token, token);
    assert_string_equal(look(logs).record.run, "a");
    dpt_claims_destroy(&claims, LIMIT_MS);
    assert_null(claims);
    assert_true(look(checkpoints).record.released && look(logs).record.released);
    /* The same run goes on at once, another never. */
    claims = begin_claims("a", 8, true);
    assert_int_equal(settle(claims), DPT_CLAIMS_HELD);
    assert_int_equal(look(logs).number, 2);
    dpt_claims_destroy(&claims, LIMIT_MS);
    claims = begin_claims("b", 9, true);
    assert_int_equal(settle(claims), DPT_CLAIMS_REFUSED);
    assert_non_null(strstr(text, "belongs to run a (host "));
    assert_non_null(strstr(text, "and this is run b"));
    assert_non_null(strstr(text, "if that run has ended, remove OWNER.00000002 there"));
    dpt_claims_destroy(&claims, LIMIT_MS);
    assert_int_equal(look(logs).number, 2);
}

/* A run that only evaluates may write into a folder that no run has claimed, or a run of its name,
 * living or not. */
static void check_claims_nothing(void **state)
{
    (void)state;
    assert_int_equal(dpt_claims_check(logs, "a", &err), DPT_OK); /* no folder */
    assert_false(dpt_fs_exists(logs));
    assert_int_equal(dpt_fs_mkdirs(logs, &err), DPT_OK);
    assert_int_equal(dpt_claims_check(logs, "a", &err), DPT_OK);
    struct dpt_claims *claims = begin_claims("a", 7, true);
    assert_int_equal(settle(claims), DPT_CLAIMS_HELD);
    for (int lives = 1; lives >= 0; lives--) {
        assert_int_equal(dpt_claims_check(logs, "a", &err), DPT_OK);
        assert_int_equal(dpt_claims_check(logs, "b", &err), DPT_EREFUSED);
        assert_non_null(strstr(err.text, "belongs to run a (host "));
        assert_non_null(strstr(err.text, "and this is run b; name another folder"));
        if (lives)
            dpt_claims_destroy(&claims, LIMIT_MS);
    }
    char path[128];
    (void)snprintf(path, sizeof path, "%s/OWNER.00000001", logs);
    assert_int_equal(dpt_fs_write_file_atomic(path, "?", 1, &err), DPT_OK);
    assert_int_equal(dpt_claims_check(logs, "a", &err), DPT_EREFUSED);
    assert_non_null(strstr(err.text, "has an owner that cannot be read (OWNER.00000001)"));
    assert_int_equal(dpt_claims_check(path, "a", &err), DPT_EIO); /* no folder, but a file */
}

/* The same command is started twice at one moment, each with a separate server: one trains. */
static void two_starts_at_one_moment(void **state)
{
    (void)state;
    enum { ROUNDS = 20 };
    for (int i = 0; i < ROUNDS; i++) {
        struct dpt_claims *a = begin_claims("a", 7 + 2 * (uint64_t)i, true);
        struct dpt_claims *b = begin_claims("a", 8 + 2 * (uint64_t)i, true);
        const enum dpt_claims_state state_a = settle(a), state_b = settle(b);
        assert_int_equal((state_a == DPT_CLAIMS_HELD) + (state_b == DPT_CLAIMS_HELD), 1);
        assert_int_equal((state_a == DPT_CLAIMS_REFUSED) + (state_b == DPT_CLAIMS_REFUSED), 1);
        dpt_claims_destroy(&a, LIMIT_MS);
        dpt_claims_destroy(&b, LIMIT_MS);
    }
}

/* A folder that is refused leaves those before it as they were. */
static void a_refusal_takes_nothing(void **state)
{
    (void)state;
    struct dpt_claims *claims = NULL;
    struct dpt_claims_options options = {
        .dir = {"", checkpoints}, .run = "a", .server = 7, .timeout_ms = TIMEOUT_MS};
    assert_int_equal(dpt_claims_create(&options, &claims, &err), DPT_OK);
    assert_int_equal(settle(claims), DPT_CLAIMS_HELD);
    dpt_claims_destroy(&claims, LIMIT_MS);
    claims = begin_claims("b", 8, true);
    assert_int_equal(settle(claims), DPT_CLAIMS_REFUSED);
    assert_non_null(strstr(text, "belongs to run a"));
    dpt_claims_destroy(&claims, LIMIT_MS);
    assert_int_equal(look(logs).number, 0);
}

static void one_folder_for_both(void **state)
{
    (void)state;
    struct dpt_claims *claims = NULL;
    char same[96];
    (void)snprintf(same, sizeof same, "%s/../log/", logs);
    const struct dpt_claims_options options = {
        .dir = {logs, same}, .run = "a", .server = 7, .timeout_ms = TIMEOUT_MS};
    assert_int_equal(dpt_claims_create(&options, &claims, &err), DPT_OK);
    assert_int_equal(settle(claims), DPT_CLAIMS_HELD);
    int64_t number = 0;
    char token[DPT_CLAIM_TOKEN_BYTES];
    assert_true(dpt_claims_get(claims, 1, &number, token));
    assert_true(!look(logs).shared);
    dpt_claims_destroy(&claims, LIMIT_MS);
}

static void workers_of_one_server_share(void **state)
{
    (void)state;
    struct dpt_claims *a = begin_claims("a", 7, false), *b;
    assert_int_equal(settle(a), DPT_CLAIMS_HELD);
    b = begin_claims("a", 7, false);
    assert_int_equal(settle(b), DPT_CLAIMS_HELD);
    assert_true(look(logs).shared && look(logs).number == 1);
    dpt_claims_destroy(&a, LIMIT_MS);
    assert_false(look(logs).record.released); /* b lives */
    assert_int_equal(dpt_claims_state(b, text), DPT_CLAIMS_HELD);
    dpt_claims_destroy(&b, LIMIT_MS);
}

static void second_start_of_same_command_is_refused(void **state)
{
    (void)state;
    struct dpt_claims *a = begin_claims("a", 7, true), *b;
    assert_int_equal(settle(a), DPT_CLAIMS_HELD);
    b = begin_claims("a", 8, true);
    assert_int_equal(settle(b), DPT_CLAIMS_REFUSED);
    assert_non_null(strstr(text, "in use by run a (host "));
    dpt_claims_destroy(&b, LIMIT_MS);
    assert_int_equal(dpt_claims_state(a, text), DPT_CLAIMS_HELD);
    dpt_claims_destroy(&a, LIMIT_MS);
}

/* The server restarted: a worker that finds it first waits for the others to find it. */
static void server_began_anew(void **state)
{
    (void)state;
    struct dpt_claims *a = begin_claims("a", 7, false), *b;
    assert_int_equal(settle(a), DPT_CLAIMS_HELD);
    b = begin_claims("a", 8, false);
    dpt_claims_set_server(a, 8);
    assert_int_equal(settle(b), DPT_CLAIMS_HELD);
    assert_int_equal(look(logs).number, 1);
    dpt_claims_destroy(&b, LIMIT_MS);
    dpt_claims_destroy(&a, LIMIT_MS);
}

/* kill -9 of the holder: its process is known to have ended, so no worker waits for its lease. */
static void a_killed_holder_is_followed(void **state)
{
    (void)state;
    int fds[2];
    char byte;
    assert_int_equal(pipe(fds), 0);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct dpt_claims *claims = begin_claims("a", 7, true);
        if (settle(claims) != DPT_CLAIMS_HELD || write(fds[1], "", 1) != 1)
            _exit(1);
        for (;;)
            (void)pause();
    }
    assert_int_equal(read(fds[0], &byte, 1), 1);
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_int_equal(look(logs).record.pid, child); /* it names its owner still */
    struct dpt_claims *claims = begin_claims("b", 8, true);
    assert_int_equal(settle(claims), DPT_CLAIMS_REFUSED);
    dpt_claims_destroy(&claims, LIMIT_MS);
    claims = begin_claims("a", 8, true);
    assert_int_equal(settle(claims), DPT_CLAIMS_HELD);
    assert_int_equal(look(logs).number, 2);
    dpt_claims_destroy(&claims, LIMIT_MS);
    assert_int_equal(close(fds[0]), 0);
    assert_int_equal(close(fds[1]), 0);
}

/* Of another host nothing is known but that its record does not move. */
static void a_holder_elsewhere_that_is_silent(void **state)
{
    (void)state;
    struct dpt_claim_record r = {.server = 7, .lease_ms = 300, .pid = 1};
    dpt_claim_describe_self(&r);
    (void)snprintf(r.run, sizeof r.run, "a");
    (void)snprintf(r.token, sizeof r.token, "0123");
    r.process[0] = 'x';
    assert_int_equal(dpt_fs_mkdirs(logs, &err), DPT_OK);
    assert_int_equal(dpt_claim_take(logs, 1, &r, &err), DPT_OK);
    const int64_t began_ms = dpt_now_ms();
    struct dpt_claims *claims = begin_claims("a", 8, true);
    assert_int_equal(settle(claims), DPT_CLAIMS_HELD);
    assert_true(dpt_now_ms() - began_ms >= 300);
    assert_int_equal(look(logs).number, 2);
    dpt_claims_destroy(&claims, LIMIT_MS);
}

/* Both folders are watched at the same time: their waits do not add up. */
static void two_holders_that_are_silent(void **state)
{
    (void)state;
    enum { LEASE_MS = 1500 };
    struct dpt_claim_record r = {.server = 7, .lease_ms = LEASE_MS, .pid = 1};
    dpt_claim_describe_self(&r);
    (void)snprintf(r.run, sizeof r.run, "a");
    (void)snprintf(r.token, sizeof r.token, "0123");
    r.process[0] = 'x';
    assert_int_equal(dpt_fs_mkdirs(logs, &err), DPT_OK);
    assert_int_equal(dpt_fs_mkdirs(checkpoints, &err), DPT_OK);
    int64_t fastest_ms = INT64_MAX;
    for (int64_t i = 0; i < 3 && fastest_ms >= 2 * LEASE_MS; i++) { /* on a busy machine, too */
        assert_int_equal(dpt_claim_take(logs, 1 + 2 * i, &r, &err), DPT_OK);
        assert_int_equal(dpt_claim_take(checkpoints, 1 + 2 * i, &r, &err), DPT_OK);
        const int64_t began_ms = dpt_now_ms();
        struct dpt_claims *claims = begin_claims("a", 8, true);
        assert_int_equal(settle(claims), DPT_CLAIMS_HELD);
        const int64_t took_ms = dpt_now_ms() - began_ms;
        assert_true(took_ms >= LEASE_MS);
        fastest_ms = took_ms < fastest_ms ? took_ms : fastest_ms;
        dpt_claims_destroy(&claims, LIMIT_MS);
    }
    assert_true(fastest_ms < 2 * LEASE_MS);
}

/* Who is taken for dead and lives finds out with its next beat, and writes nothing from then on. */
static void lost(void **state)
{
    (void)state;
    struct dpt_claims *claims = begin_claims("a", 7, true);
    assert_int_equal(settle(claims), DPT_CLAIMS_HELD);
    struct dpt_claim_record other = look(checkpoints).record;
    (void)snprintf(other.token, sizeof other.token, "4567");
    assert_int_equal(dpt_claim_take(checkpoints, 2, &other, &err), DPT_OK);
    await_state(claims, DPT_CLAIMS_LOST);
    assert_non_null(strstr(text, "taken over"));
    assert_true(dpt_claims_until_ms(claims) <= dpt_now_ms());
    dpt_claims_destroy(&claims, LIMIT_MS);
    assert_false(look(checkpoints).record.released); /* it is not its own to release */
}

/* The claim's file becomes a folder, which no one can write to; or a file again. */
static void break_claim(const char *dir, bool broken)
{
    char path[128], aside[128];
    (void)snprintf(path, sizeof path, "%s/OWNER.00000001", dir);
    (void)snprintf(aside, sizeof aside, "%s/aside", dir);
    if (!broken)
        assert_int_equal(rmdir(path), 0);
    if (broken) {
        assert_int_equal(mkdir(aside, 0777), 0);
        assert_int_equal(renameat2(AT_FDCWD, aside, AT_FDCWD, path, RENAME_EXCHANGE), 0);
    } else
        assert_int_equal(rename(aside, path), 0);
}

static void await_until_after(struct dpt_claims *claims, int64_t after_ms)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    const int64_t limit_ms = dpt_now_ms() + LIMIT_MS;
    while (dpt_claims_until_ms(claims) <= after_ms) {
        assert_true(dpt_now_ms() < limit_ms);
        (void)nanosleep(&pause, NULL); /* tidy: pause of a bounded poll */
    }
}

/* While one folder's claim is renewed, no other worker takes the run over. While none is renewed,
 * the permission to write ends before a lease is over; it returns with the disk if no worker took
 * over. */
static void renewals_that_fail(void **state)
{
    (void)state;
    struct dpt_claims *claims = begin_claims("a", 7, true);
    assert_int_equal(settle(claims), DPT_CLAIMS_HELD);
    break_claim(logs, true);
    await_until_after(claims, dpt_now_ms() + TIMEOUT_MS);
    break_claim(checkpoints, true);
    const int64_t broken_ms = dpt_now_ms();
    const struct timespec pause = {.tv_nsec = 1000000};
    while (dpt_now_ms() < broken_ms + TIMEOUT_MS) {
        assert_true(dpt_claims_until_ms(claims) < broken_ms + TIMEOUT_MS);
        (void)nanosleep(&pause, NULL); /* tidy: pause of a bounded poll */
    }
    assert_int_equal(dpt_claims_state(claims, text), DPT_CLAIMS_HELD); /* no worker took over */
    break_claim(checkpoints, false);
    await_until_after(claims, broken_ms + TIMEOUT_MS);
    struct dpt_claim_record other = look(checkpoints).record;
    (void)snprintf(other.token, sizeof other.token, "4567");
    assert_int_equal(dpt_claim_take(logs, 2, &other, &err), DPT_OK);
    await_state(claims, DPT_CLAIMS_LOST);
    dpt_claims_destroy(&claims, LIMIT_MS);
}

/* The folder was removed and another run's claim is the first in it: the holder neither writes its
 * record over that one nor goes on. */
static void emptied_and_taken_by_another(void **state)
{
    (void)state;
    struct dpt_claims *claims = begin_claims("a", 7, true);
    assert_int_equal(settle(claims), DPT_CLAIMS_HELD);
    struct dpt_claim_record other = look(checkpoints).record;
    (void)snprintf(other.token, sizeof other.token, "4567");
    (void)snprintf(other.run, sizeof other.run, "b");
    bool taken = false;
    for (const int64_t limit_ms = dpt_now_ms() + LIMIT_MS; !taken;) { /* it may be quicker */
        assert_true(dpt_now_ms() < limit_ms);
        taken = dpt_fs_remove_tree(checkpoints, &err) == DPT_OK &&
                dpt_fs_mkdirs(checkpoints, &err) == DPT_OK &&
                dpt_claim_take(checkpoints, 1, &other, &err) == DPT_OK;
    }
    await_state(claims, DPT_CLAIMS_LOST);
    assert_non_null(strstr(text, "was taken over by a worker of run b"));
    dpt_claims_destroy(&claims, LIMIT_MS);
    const struct dpt_claim_seen seen = look(checkpoints);
    assert_string_equal(seen.record.token, other.token);
    assert_false(seen.record.released);
}

static void a_folder_that_cannot_be(void **state)
{
    (void)state;
    struct dpt_claims *claims = NULL;
    char path[96];
    (void)snprintf(path, sizeof path, "%s/file", root);
    assert_int_equal(dpt_fs_write_file_atomic(path, "x", 1, &err), DPT_OK);
    const struct dpt_claims_options options = {
        .dir = {logs, path}, .run = "a", .server = 7, .timeout_ms = TIMEOUT_MS};
    assert_int_not_equal(dpt_claims_create(&options, &claims, &err), DPT_OK);
    assert_non_null(strstr(err.text, path));
    assert_null(claims);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup_claims, teardown_claims)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(held_and_released),
        TEST(check_claims_nothing),
        TEST(two_starts_at_one_moment),
        TEST(a_refusal_takes_nothing),
        TEST(one_folder_for_both),
        TEST(workers_of_one_server_share),
        TEST(second_start_of_same_command_is_refused),
        TEST(server_began_anew),
        TEST(a_killed_holder_is_followed),
        TEST(a_holder_elsewhere_that_is_silent),
        TEST(two_holders_that_are_silent),
        TEST(lost),
        TEST(renewals_that_fail),
        TEST(emptied_and_taken_by_another),
        TEST(a_folder_that_cannot_be),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
