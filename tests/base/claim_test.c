/* The claim of a folder: which worker may take it, from observations, and its files under
 * contenders, deaths and damage. */
#include "base/claim.h"

#include "base/fs.h"
#include "tests/tmp.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static struct dpt_err err;
static char root[64];

static struct dpt_claim_record make_record(const char *run, char token, uint64_t server)
{
    struct dpt_claim_record r = {.server = server, .lease_ms = 1000};
    dpt_claim_describe_self(&r);
    (void)snprintf(r.run, sizeof r.run, "%s", run);
    memset(r.token, token, sizeof r.token - 1);
    return r;
}

static int setup_claim(void **state)
{
    (void)state;
    return test_make_dir(root, sizeof root, "test-claim") ? 0 : -1;
}

static int teardown_claim(void **state)
{
    (void)state;
    return dpt_fs_remove_tree(root, &err) == DPT_OK ? 0 : -1;
}

/* ---- the rules ---- */

static struct dpt_claim_seen see(const struct dpt_claim_record *owner, uint64_t digest)
{
    return (struct dpt_claim_seen){
        .number = 3, .readable = true, .digest = digest, .record = *owner};
}

static void rules_at_the_first_look(void **state)
{
    (void)state;
    const struct dpt_claim_record me = make_record("a", '1', 7);
    struct dpt_claim_record other = make_record("b", '2', 7),
                            same_server = make_record("a", '2', 7),
                            elsewhere = make_record("a", '2', 8), own = make_record("a", '1', 9);
    struct dpt_claim_record released = elsewhere, other_released = other;
    released.released = other_released.released = true;
    const struct {
        struct dpt_claim_seen seen;
        bool may_live;
        enum dpt_claim_verdict verdict;
    } cases[] = {
        {{.number = 0}, true, DPT_CLAIM_TAKE},
        {see(&other, 1), true, DPT_CLAIM_REFUSED},
        {see(&other, 1), false, DPT_CLAIM_REFUSED}, /* the folder stays the run's */
        {see(&other_released, 1), true, DPT_CLAIM_REFUSED},
        {see(&same_server, 1), true, DPT_CLAIM_JOIN},
        {see(&same_server, 1), false, DPT_CLAIM_TAKE},
        {see(&own, 1), true, DPT_CLAIM_JOIN},
        {see(&released, 1), true, DPT_CLAIM_TAKE},
        {see(&elsewhere, 1), false, DPT_CLAIM_TAKE},
        {see(&elsewhere, 1), true, DPT_CLAIM_WAIT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dpt_claim_watch watch = {.begun = false};
        const enum dpt_claim_verdict verdict =
            dpt_claim_judge(&watch, &me, true, &cases[i].seen, cases[i].may_live, 100);
        if (verdict != cases[i].verdict)
            fail_msg("case %zu: %d", i, (int)verdict);
    }
    /* Of a claim that several held, one that ended says nothing. */
    struct dpt_claim_seen shared = see(&released, 1);
    struct dpt_claim_watch watch = {.begun = false};
    shared.shared = true;
    assert_int_equal(dpt_claim_judge(&watch, &me, true, &shared, false, 100), DPT_CLAIM_WAIT);
}

/* A record that has not changed for its lease has no holder, whatever its content. */
static void still_record_is_taken(void **state)
{
    (void)state;
    const struct dpt_claim_record me = make_record("a", '1', 7), owner = make_record("a", '2', 8);
    struct dpt_claim_watch watch = {.begun = false};
    struct dpt_claim_seen seen = see(&owner, 1);
    seen.shared = true;
    assert_int_equal(dpt_claim_judge(&watch, &me, true, &seen, true, 5000), DPT_CLAIM_WAIT);
    assert_int_equal(dpt_claim_judge(&watch, &me, true, &seen, true, 5999), DPT_CLAIM_WAIT);
    assert_int_equal(dpt_claim_judge(&watch, &me, true, &seen, true, 6000), DPT_CLAIM_TAKE);
}

static void moving_record_refuses(void **state)
{
    (void)state;
    const struct dpt_claim_record me = make_record("a", '1', 7), owner = make_record("a", '2', 8);
    /* A worker is refused as soon as the record changes, because the holder lives. */
    struct dpt_claim_watch watch = {.begun = false};
    struct dpt_claim_seen seen = see(&owner, 1), moved = see(&owner, 2);
    assert_int_equal(dpt_claim_judge(&watch, &me, false, &seen, true, 0), DPT_CLAIM_WAIT);
    assert_int_equal(dpt_claim_judge(&watch, &me, false, &moved, true, 900), DPT_CLAIM_REFUSED);
    /* Otherwise it is refused after a lease, in which the holders could find the restarted server.
     */
    watch = (struct dpt_claim_watch){.begun = false};
    for (uint64_t i = 0; i < 10; i++) {
        seen = see(&owner, i);
        assert_int_equal(dpt_claim_judge(&watch, &me, true, &seen, true, (int64_t)i * 100),
                         DPT_CLAIM_WAIT);
    }
    seen = see(&owner, 11);
    assert_int_equal(dpt_claim_judge(&watch, &me, true, &seen, true, 1000), DPT_CLAIM_REFUSED);
    /* They have found it. */
    watch = (struct dpt_claim_watch){.begun = false};
    struct dpt_claim_record found = owner;
    found.server = 7;
    assert_int_equal(dpt_claim_judge(&watch, &me, true, &moved, true, 0), DPT_CLAIM_WAIT);
    seen = see(&found, 3);
    assert_int_equal(dpt_claim_judge(&watch, &me, true, &seen, true, 100), DPT_CLAIM_JOIN);
}

static void unreadable_record(void **state)
{
    (void)state;
    const struct dpt_claim_record me = make_record("a", '1', 7);
    struct dpt_claim_watch watch = {.begun = false};
    const struct dpt_claim_seen seen = {.number = 1, .digest = 5};
    assert_int_equal(dpt_claim_judge(&watch, &me, false, &seen, true, 0), DPT_CLAIM_WAIT);
    assert_int_equal(dpt_claim_judge(&watch, &me, false, &seen, true, 1000), DPT_CLAIM_REFUSED);
}

/* ---- the files ---- */

static void taken_renewed_and_superseded(void **state)
{
    (void)state;
    const struct dpt_claim_record a = make_record("a", '1', 7), b = make_record("a", '2', 8);
    struct dpt_claim_seen seen, again;
    assert_int_equal(dpt_claim_look(root, &seen, &err), DPT_OK);
    assert_int_equal(seen.number, 0);
    assert_int_equal(dpt_claim_take(root, 1, &a, &err), DPT_OK);
    assert_int_equal(dpt_claim_take(root, 1, &b, &err), DPT_EEXIST);
    assert_int_equal(dpt_claim_look(root, &seen, &err), DPT_OK);
    assert_true(seen.number == 1 && seen.readable && !seen.shared);
    assert_string_equal(seen.record.run, "a");
    assert_string_equal(seen.record.token, a.token);
    assert_string_equal(seen.record.process, a.process);
    assert_true(seen.record.server == 7 && seen.record.lease_ms == 1000 && !seen.record.released);
    assert_int_equal(dpt_claim_renew(root, 1, &a, &err), DPT_OK);
    assert_int_equal(dpt_claim_look(root, &again, &err), DPT_OK);
    assert_true(again.digest != seen.digest); /* though it says the same */
    assert_int_equal(dpt_claim_share(root, 1, &err), DPT_OK);
    assert_int_equal(dpt_claim_look(root, &seen, &err), DPT_OK);
    assert_true(seen.shared);
    assert_int_equal(dpt_claim_check(root, 1, a.token, &err), DPT_OK);
    assert_int_equal(dpt_claim_take(root, 2, &b, &err), DPT_OK);
    assert_int_equal(dpt_claim_renew(root, 1, &a, &err), DPT_EREFUSED);
    assert_non_null(strstr(err.text, "taken over by a worker of run a (host "));
    assert_int_equal(dpt_claim_check(root, 1, a.token, &err), DPT_EREFUSED);
    assert_int_equal(dpt_claim_check(root, 2, a.token, &err), DPT_EREFUSED);
    assert_int_equal(dpt_claim_check(root, 2, b.token, &err), DPT_OK);
    char **names;
    size_t n;
    assert_int_equal(dpt_fs_list(root, &names, &n, &err), DPT_OK);
    assert_int_equal(n, 1); /* outdated files are removed */
    assert_string_equal(names[0], "OWNER.00000002");
    dpt_fs_list_free(&names, n);
}

/* Who stood still between look and take finds its number free again, and does not get the folder.
 */
static void late_contender(void **state)
{
    (void)state;
    const struct dpt_claim_record a = make_record("a", '1', 7), b = make_record("a", '2', 8);
    struct dpt_claim_seen seen;
    for (int64_t number = 1; number <= 3; number++)
        assert_int_equal(dpt_claim_take(root, number, &a, &err), DPT_OK);
    assert_int_equal(dpt_claim_take(root, 2, &b, &err), DPT_EEXIST);
    assert_int_equal(dpt_claim_look(root, &seen, &err), DPT_OK);
    assert_true(seen.number == 3 && strcmp(seen.record.token, a.token) == 0);
    assert_int_equal(dpt_claim_check(root, 3, a.token, &err), DPT_OK);
}

/* A holder goes on in a folder that was emptied under it. */
static void emptied_folder(void **state)
{
    (void)state;
    const struct dpt_claim_record a = make_record("a", '1', 7);
    struct dpt_claim_seen seen;
    char path[128];
    assert_int_equal(dpt_claim_take(root, 1, &a, &err), DPT_OK);
    (void)snprintf(path, sizeof path, "%s/OWNER.00000001", root);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(dpt_claim_check(root, 1, a.token, &err), DPT_OK);
    assert_int_equal(dpt_claim_renew(root, 1, &a, &err), DPT_OK);
    assert_int_equal(dpt_claim_look(root, &seen, &err), DPT_OK);
    assert_int_equal(seen.number, 1);
    assert_int_equal(dpt_fs_remove_tree(root, &err), DPT_OK);
    assert_int_equal(dpt_claim_renew(root, 1, &a, &err), DPT_ENOENT); /* names no owner */
    assert_int_equal(dpt_fs_mkdirs(root, &err), DPT_OK);
}

/* A contender that finds the folder emptied takes the number that the holder has: the holder
 * neither overwrites its record nor takes the number again. */
static void emptied_folder_with_a_contender(void **state)
{
    (void)state;
    const struct dpt_claim_record a = make_record("a", '1', 7), b = make_record("b", '2', 8);
    struct dpt_claim_seen seen;
    char path[128];
    assert_int_equal(dpt_claim_take(root, 1, &a, &err), DPT_OK);
    (void)snprintf(path, sizeof path, "%s/OWNER.00000001", root);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(dpt_claim_take(root, 1, &b, &err), DPT_OK);
    assert_int_equal(dpt_claim_renew(root, 1, &a, &err), DPT_EREFUSED);
    assert_non_null(strstr(err.text, "taken over by a worker of run b (host "));
    assert_int_equal(dpt_claim_check(root, 1, a.token, &err), DPT_EREFUSED);
    assert_int_equal(dpt_claim_look(root, &seen, &err), DPT_OK);
    assert_true(seen.number == 1 && strcmp(seen.record.token, b.token) == 0);
    /* A holder that shares the claim may have created it again. */
    assert_int_equal(dpt_claim_renew(root, 1, &b, &err), DPT_OK);
    /* A lower number than the holder's. */
    assert_int_equal(dpt_claim_renew(root, 5, &a, &err), DPT_EREFUSED);
    assert_int_equal(dpt_claim_look(root, &seen, &err), DPT_OK);
    assert_int_equal(seen.number, 1);
}

/* A record that its holder cannot rewrite, because of the disk, does not change and is taken over.
 * The holder's file stays if it cannot be removed, here because a folder has its name. */
static void renewal_that_fails_sees_who_took_over(void **state)
{
    (void)state;
    const struct dpt_claim_record a = make_record("a", '1', 7), b = make_record("a", '2', 8);
    char path[128];
    (void)snprintf(path, sizeof path, "%s/OWNER.00000001", root);
    assert_int_equal(mkdir(path, 0777), 0);
    const enum dpt_status failed = dpt_claim_renew(root, 1, &a, &err);
    assert_true(failed != DPT_OK && failed != DPT_EREFUSED);
    for (int64_t number = 2; number <= 3; number++) { /* 2 goes when 3 is taken */
        assert_int_equal(dpt_claim_take(root, number, &b, &err), DPT_OK);
        assert_int_equal(dpt_claim_renew(root, 1, &a, &err), DPT_EREFUSED);
        assert_non_null(strstr(err.text, "taken over by a worker of run a (host "));
    }
}

/* Of holders and a contender that all find the folder empty at once, the holders of one claim go
 * on together or none does. */
struct renewer {
    pthread_t thread;
    pthread_barrier_t *begin;
    struct dpt_claim_record record;
    bool takes;
    enum dpt_status status;
};

static void *renew_or_take(void *arg)
{
    struct renewer *r = arg;
    struct dpt_err why;
    (void)pthread_barrier_wait(r->begin);
    r->status = r->takes ? dpt_claim_take(root, 1, &r->record, &why)
                         : dpt_claim_renew(root, 1, &r->record, &why);
    return NULL;
}

static void holders_and_a_contender_after_emptying(void **state)
{
    (void)state;
    enum { HOLDERS = 3, ALL = HOLDERS + 1, TRIES = 50 };
    char path[128];
    (void)snprintf(path, sizeof path, "%s/OWNER.00000001", root);
    for (int i = 0; i < TRIES; i++) {
        struct renewer all[ALL];
        struct dpt_claim_seen seen;
        pthread_barrier_t begin;
        assert_int_equal(pthread_barrier_init(&begin, NULL, ALL), 0);
        for (int k = 0; k < ALL; k++) {
            all[k] = (struct renewer){.begin = &begin,
                                      .record = make_record("a", k < HOLDERS ? '1' : '2', 7),
                                      .takes = k == HOLDERS};
            assert_int_equal(pthread_create(&all[k].thread, NULL, renew_or_take, &all[k]), 0);
        }
        for (int k = 0; k < ALL; k++)
            assert_int_equal(pthread_join(all[k].thread, NULL), 0);
        assert_int_equal(pthread_barrier_destroy(&begin), 0);
        assert_int_equal(dpt_claim_look(root, &seen, &err), DPT_OK);
        const bool contender = strcmp(seen.record.token, all[HOLDERS].record.token) == 0;
        assert_int_equal(all[HOLDERS].status == DPT_OK, contender);
        for (int k = 0; k < HOLDERS && contender; k++)
            assert_int_not_equal(all[k].status, DPT_OK);
        /* Their next beat says it to all. */
        for (int k = 0; k < HOLDERS; k++)
            assert_int_equal(dpt_claim_renew(root, 1, &all[k].record, &err),
                             contender ? DPT_EREFUSED : DPT_OK);
        assert_int_equal(unlink(path), 0);
    }
}

static void damaged_record(void **state)
{
    (void)state;
    static const char *const texts[] = {"", "run a\n", "garbage\n"};
    char path[128];
    (void)snprintf(path, sizeof path, "%s/OWNER.00000004", root);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct dpt_claim_seen seen;
        assert_int_equal(dpt_fs_write_file_atomic(path, texts[i], strlen(texts[i]), &err), DPT_OK);
        assert_int_equal(dpt_claim_look(root, &seen, &err), DPT_OK);
        assert_true(seen.number == 4 && !seen.readable);
    }
}

static void other_names_are_passed_over(void **state)
{
    (void)state;
    static const char *const names[] = {"OWNER", "OWNER.1", "OWNER.00000009.shared",
                                        "OWNER.000000010", "step-00000001"};
    struct dpt_claim_seen seen;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[128];
        (void)snprintf(path, sizeof path, "%s/%s", root, names[i]);
        assert_int_equal(dpt_fs_write_file_atomic(path, "x", 1, &err), DPT_OK);
    }
    assert_int_equal(dpt_claim_look(root, &seen, &err), DPT_OK);
    assert_int_equal(seen.number, 0);
}

/* A process's record outlives it and says so; another's of the same pid is not it. */
static void death_shows(void **state)
{
    (void)state;
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        const struct dpt_claim_record r = make_record("a", '1', 7);
        if (write(fds[1], &r, sizeof r) != (ssize_t)sizeof r)
            _exit(1);
        (void)pause();
        _exit(0);
    }
    struct dpt_claim_record r;
    assert_int_equal(read(fds[0], &r, sizeof r), sizeof r);
    assert_true(dpt_claim_may_live(&r));
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_false(dpt_claim_may_live(&r));
    struct dpt_claim_record me = make_record("a", '1', 7);
    assert_true(dpt_claim_may_live(&me));
    me.process[strlen(me.process) - 1] ^= 1; /* another start */
    assert_false(dpt_claim_may_live(&me));
    me.process[0] ^= 1; /* another boot: nothing is known */
    assert_true(dpt_claim_may_live(&me));
    assert_int_equal(close(fds[0]), 0);
    assert_int_equal(close(fds[1]), 0);
}

/* Of many that take a folder at once one does, again and again. */
enum { CONTENDERS = 8, ROUNDS = 25 };

struct contender {
    pthread_t thread;
    int64_t number;
    struct dpt_claim_record record;
    enum dpt_status status;
};

static void *contend(void *arg)
{
    struct contender *c = arg;
    struct dpt_err why;
    c->status = dpt_claim_take(root, c->number, &c->record, &why);
    return NULL;
}

static void one_of_many_takes_it(void **state)
{
    (void)state;
    for (int64_t number = 1; number <= ROUNDS; number++) {
        struct contender contenders[CONTENDERS];
        struct dpt_claim_seen seen;
        int taken = 0;
        for (int i = 0; i < CONTENDERS; i++) {
            contenders[i] = (struct contender){.number = number,
                                               .record = make_record("a", (char)('a' + i), 7)};
            assert_int_equal(pthread_create(&contenders[i].thread, NULL, contend, &contenders[i]),
                             0);
        }
        for (int i = 0; i < CONTENDERS; i++) {
            assert_int_equal(pthread_join(contenders[i].thread, NULL), 0);
            if (contenders[i].status != DPT_OK)
                continue;
            taken++;
            assert_int_equal(dpt_claim_look(root, &seen, &err), DPT_OK);
            assert_string_equal(seen.record.token, contenders[i].record.token);
        }
        assert_int_equal(taken, 1);
    }
}

#define FILES(f) cmocka_unit_test_setup_teardown(f, setup_claim, teardown_claim)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rules_at_the_first_look),
        cmocka_unit_test(still_record_is_taken),
        cmocka_unit_test(moving_record_refuses),
        cmocka_unit_test(unreadable_record),
        FILES(taken_renewed_and_superseded),
        FILES(late_contender),
        FILES(emptied_folder),
        FILES(emptied_folder_with_a_contender),
        FILES(renewal_that_fails_sees_who_took_over),
        FILES(holders_and_a_contender_after_emptying),
        FILES(damaged_record),
        FILES(other_names_are_passed_over),
        cmocka_unit_test(death_shows),
        FILES(one_of_many_takes_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
