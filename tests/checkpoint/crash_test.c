/* The write path is interrupted at every system call: by the death of the process, a failing call,
 * a full disk. The newest checkpoint is then the old or the new one, and whole. The order of the
 * calls shows that this holds after a power failure too. */
#include "tests/checkpoint/checkpoint_fixture.h"

#include "base/fs.h"
#include "base/log.h"
#include "checkpoint/fault.h"
#include "tests/every.h"

#include <errno.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { DIED = 77, STEPS_MAX = 1000, OPS_MAX = 512 };

static struct dpt_err err;
static int countdown;
static int injected_errno;       /* 0: die instead */
static int n_files;              /* of each kind; 0: as many as writers */
static bool no_exchange;         /* as a file system without RENAME_EXCHANGE */
static enum dpt_fault_op wanted; /* DPT_FAULT_COUNT: any operation counts */

static int hook(enum dpt_fault_op op, const char *path)
{
    (void)path;
    if ((wanted == DPT_FAULT_COUNT || op == wanted) && countdown-- == 0) {
        if (injected_errno == 0)
            _exit(DIED);
        return injected_errno;
    }
    return no_exchange && op == DPT_FAULT_EXCHANGE ? EINVAL : 0;
}

static void set_hook(int at, int error, enum dpt_fault_op op)
{
    countdown = at;
    injected_errno = error;
    wanted = op;
    dpt_fault_hook = hook;
}

static int quiet(void **state)
{
    dpt_log_set_level(DPT_LOG_ERROR);
    no_exchange = false;
    n_files = 0;
    return make_fast_root(state);
}

static int done(void **state)
{
    dpt_fault_hook = NULL;
    return remove_root(state);
}

static void write_step(int64_t step, int n_writers)
{
    struct model model;
    model_init(&model, step, 1);
    OK(model_write(&model, root, step, n_writers, &err));
    model_fini(&model);
}

static enum dpt_status write_model(const struct model *model, int64_t step, int n_writers,
                                   struct dpt_err *ret)
{
    return model_write_files(model, root, step, n_writers, n_files > 0 ? n_files : n_writers, ret);
}

/* In a child process, which dies before its `at`-th operation. True: it finished before that. */
static bool write_and_die(const struct model *model, int64_t step, int n_writers, int at)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        set_hook(at, 0, DPT_FAULT_COUNT);
        _exit(write_model(model, step, n_writers, NULL) == DPT_OK ? 0 : 1);
    }
    int code;
    assert_int_equal(waitpid(pid, &code, 0), pid);
    assert_true(WIFEXITED(code));
    assert_true(WEXITSTATUS(code) == 0 || WEXITSTATUS(code) == DIED);
    return WEXITSTATUS(code) == 0;
}

static void die_at_every_step(int n_writers, int64_t before, int64_t step)
{
    struct model model;
    int64_t newest;
    bool seen_old = false, seen_new = false;
    model_init(&model, step, 1);
    int at = 0;
    for (bool ended = false; !ended; at += dpt_test_sanitized_every()) {
        assert_true(at < STEPS_MAX);
        if (before >= 0 && !dpt_fs_exists(in_root("step-00000010")))
            write_step(10, 1);
        ended = write_and_die(&model, step, n_writers, at);
        OK(dpt_checkpoint_newest(root, &newest, &err));
        if (newest != before && newest != step)
            fail_msg("died before operation %d: the newest is %lld", at, (long long)newest);
        if (newest >= 0)
            OK(model_check(root, newest, 1, &err));
        seen_old |= newest == before;
        seen_new |= newest == step;
        assert_true(!ended || newest == step);
        /* The next run removes the leftovers and continues. */
        OK(dpt_checkpoint_clean(root, 99, "next", &err));
        if (!ended && newest == step && before != step)
            OK(dpt_fs_remove_tree(in_root("step-00000020"), &err));
    }
    assert_true(seen_old && seen_new);
    assert_true(at > 20 * n_writers / 2);
    model_fini(&model);
}

static void death(void **state)
{
    (void)state;
    die_at_every_step(2, 10, 20);
}

/* Three writers write into one file of each kind. */
static void death_in_shared_files(void **state)
{
    (void)state;
    n_files = 1;
    die_at_every_step(3, 10, 20);
}

static void death_of_the_first(void **state)
{
    (void)state;
    die_at_every_step(1, -1, 20);
}

/* Replaces a complete checkpoint of the same step, which exists at every moment. */
static void death_while_replacing(void **state)
{
    (void)state;
    write_step(20, 2);
    die_at_every_step(1, 20, 20);
}

/* Without RENAME_EXCHANGE the step is absent for a moment, but the older checkpoint is there. */
static void death_while_renaming(void **state)
{
    (void)state;
    struct model model;
    int64_t newest;
    no_exchange = true;
    model_init(&model, 20, 1);
    write_step(10, 1);
    for (int at = 0;; at++) {
        write_step(20, 1);
        const bool ended = write_and_die(&model, 20, 1, at);
        OK(dpt_checkpoint_newest(root, &newest, &err));
        assert_true(newest == 10 || newest == 20);
        OK(model_check(root, newest, 1, &err));
        OK(dpt_checkpoint_clean(root, 99, "next", &err));
        if (ended)
            break;
    }
    model_fini(&model);
}

/* Each call in turn fails with EIO. The attempt is reported as dropped, the older checkpoint stays
 * the newest, no file remains, and the next attempt succeeds. Only removals of old files may fail
 * without an error. */
static void fail_every_call(int n_writers)
{
    struct model model;
    int64_t newest;
    int failures = 0;
    model_init(&model, 20, 1);
    for (int at = 0;; at++) {
        assert_true(at < STEPS_MAX);
        write_step(10, 1);
        set_hook(at, EIO, DPT_FAULT_COUNT);
        enum dpt_status status = write_model(&model, 20, n_writers, &err);
        const bool reached = countdown < 0;
        dpt_fault_hook = NULL;
        if (!reached) {
            OK(status);
            break;
        }
        OK(dpt_checkpoint_newest(root, &newest, NULL));
        if (status != DPT_OK) {
            failures++;
            assert_int_equal(status, DPT_EIO);
            assert_non_null(strstr(err.text, "checkpoint of step 20 in '"));
            assert_non_null(strstr(err.text, "' dropped: "));
            assert_int_equal(newest, 10);
        } else {
            assert_int_equal(newest, 20);
            OK(dpt_fs_remove_tree(in_root("step-00000020"), &err));
        }
        char **names;
        size_t n;
        OK(dpt_checkpoint_clean(root, 99, "next", &err));
        OK(dpt_fs_list(root, &names, &n, &err));
        assert_int_equal(n, status == DPT_OK ? n : 1);
        dpt_fs_list_free(&names, n);
    }
    assert_true(failures > 20);
    OK(model_check(root, 20, 1, &err));
    model_fini(&model);
}

static void failing_calls(void **state)
{
    (void)state;
    fail_every_call(2);
}

static void failing_calls_in_shared_files(void **state)
{
    (void)state;
    n_files = 1;
    fail_every_call(3);
}

/* The same while a complete checkpoint of this step is replaced, with RENAME_EXCHANGE and without:
 * it is there after each failure. */
static void failing_replacements(void **state)
{
    (void)state;
    struct model model;
    int64_t newest;
    model_init(&model, 20, 1);
    write_step(20, 2);
    for (int round = 0; round < 2; round++) {
        no_exchange = round == 1;
        int failures = 0;
        for (int at = 0;; at++) {
            assert_true(at < STEPS_MAX);
            set_hook(at, EIO, DPT_FAULT_COUNT);
            enum dpt_status status = model_write(&model, root, 20, 1, &err);
            const bool reached = countdown < 0;
            dpt_fault_hook = NULL;
            failures += status != DPT_OK;
            OK(dpt_checkpoint_newest(root, &newest, NULL));
            assert_int_equal(newest, 20);
            OK(model_check(root, 20, 1, &err));
            OK(dpt_checkpoint_clean(root, 99, "next", NULL));
            if (!reached)
                break;
        }
        assert_true(failures > 15);
    }
    model_fini(&model);
}

/* A failed fsync is not repeated: no second fsync of the same file follows. */
static char synced[OPS_MAX][256];
static int n_synced;

static int failing_fsync(enum dpt_fault_op op, const char *path)
{
    if (op != DPT_FAULT_FSYNC)
        return 0;
    assert_true(n_synced < OPS_MAX);
    (void)snprintf(synced[n_synced++], sizeof synced[0], "%s", path);
    return EIO;
}

static void fsync_is_not_retried(void **state)
{
    (void)state;
    struct model model;
    model_init(&model, 20, 1);
    n_synced = 0;
    dpt_fault_hook = failing_fsync;
    assert_int_equal(model_write(&model, root, 20, 1, &err), DPT_EIO);
    dpt_fault_hook = NULL;
    assert_int_equal(n_synced, 1);
    assert_non_null(strstr(err.text, "fsync '"));
    assert_non_null(strstr(err.text, "model-00001-of-00001.safetensors"));
    model_fini(&model);
}

/* --- the order of the calls --- */

struct call {
    enum dpt_fault_op op;
    char path[256]; /* below root */
};

static struct call calls[OPS_MAX];
static int n_calls;

static int recorder(enum dpt_fault_op op, const char *path)
{
    assert_true(n_calls < OPS_MAX);
    calls[n_calls].op = op;
    const size_t below = strlen(root);
    (void)snprintf(calls[n_calls++].path, sizeof calls[0].path, "%s", path + below);
    return 0;
}

/* Index of the last call `op` on a path that ends in `tail`; -1: none. */
static int last_call(enum dpt_fault_op op, const char *tail)
{
    for (int i = n_calls - 1; i >= 0; i--) {
        const size_t n = strlen(calls[i].path), t = strlen(tail);
        if (calls[i].op == op && n >= t && strcmp(calls[i].path + n - t, tail) == 0)
            return i;
    }
    return -1;
}

static void order_of_calls(void **state)
{
    (void)state;
    struct model model;
    model_init(&model, 20, 1);
    n_calls = 0;
    dpt_fault_hook = recorder;
    OK(model_write(&model, root, 20, 2, &err));
    dpt_fault_hook = NULL;
    const int publish = last_call(DPT_FAULT_RENAME, "/step-00000020");
    const int manifest = last_call(DPT_FAULT_RENAME, "/MANIFEST.json");
    const int folder = last_call(DPT_FAULT_FSYNC, "-g7-a1");
    assert_true(manifest >= 0 && manifest < folder && folder < publish);
    assert_true(publish <
                last_call(DPT_FAULT_FSYNC, "")); /* of DIR itself: an empty path below it */
    assert_string_equal(calls[last_call(DPT_FAULT_FSYNC, "")].path, "");
    for (int i = 0; i < n_calls; i++) {
        if (calls[i].op == DPT_FAULT_WRITE) { /* synced after its last write, before the manifest */
            const int sync = last_call(DPT_FAULT_FSYNC, calls[i].path);
            assert_true(i < sync && sync <= manifest);
        }
        if (calls[i].op == DPT_FAULT_CREATE) { /* its entry too */
            const bool moment = strstr(calls[i].path, "/optimizer/") != NULL;
            const int sync = last_call(DPT_FAULT_FSYNC, moment ? "/optimizer" : "-g7-a1");
            assert_true(i < sync && sync < publish);
        }
        /* No file changes after the rename. */
        assert_true(i <= publish || calls[i].op != DPT_FAULT_WRITE);
    }
    model_fini(&model);
}

/* --- full disk --- */

static void full_disk_injected(void **state)
{
    (void)state;
    struct model model;
    int64_t newest;
    write_step(10, 1);
    model_init(&model, 20, 1);
    set_hook(2, ENOSPC, DPT_FAULT_WRITE);
    assert_int_equal(model_write(&model, root, 20, 1, &err), DPT_ENOSPC);
    dpt_fault_hook = NULL;
    assert_non_null(strstr(err.text, "No space left on device"));
    OK(dpt_checkpoint_newest(root, &newest, &err));
    assert_int_equal(newest, 10);
    OK(model_check(root, 10, 1, &err));
    assert_false(dpt_fs_exists(in_root(".tmp-step-00000020-g7-a1")));
    model_fini(&model);
}

/* In a file system of 3 MiB that only this process sees. 0: passed. */
static int fill_a_disk(void)
{
    struct model model, small;
    int64_t newest;
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("tmpfs", root, "tmpfs", 0, "size=3m") != 0)
        return 77;
    model_init(&model, 10, 97); /* 3.9 MiB with its moments */
    model_init(&small, 5, 1);
    if (model_write(&small, root, 5, 1, &err) != DPT_OK)
        return 1;
    if (model_write(&model, root, 10, 1, &err) != DPT_ENOSPC ||
        !strstr(err.text, "checkpoint of step 10 in '") || !strstr(err.text, "No space left"))
        return 2;
    if (dpt_checkpoint_newest(root, &newest, NULL) != DPT_OK || newest != 5 ||
        model_check(root, 5, 1, NULL) != DPT_OK)
        return 3;
    return dpt_fs_exists(in_root(".tmp-step-00000010-g7-a1")) ? 4 : 0;
}

/* On a real file system, if the test may mount one. */
static void full_disk(void **state)
{
    (void)state;
    int code;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        _exit(fill_a_disk());
    assert_int_equal(waitpid(pid, &code, 0), pid);
    assert_true(WIFEXITED(code));
    if (WEXITSTATUS(code) == 77)
        skip();
    assert_int_equal(WEXITSTATUS(code), 0);
}

static void file_size_limit(void **state)
{
    (void)state;
    struct model model;
    struct rlimit old, small;
    write_step(10, 1);
    model_init(&model, 20, 97);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    small.rlim_cur = 1 << 20;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    enum dpt_status status = model_write(&model, root, 20, 1, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    (void)signal(SIGXFSZ, handler);
    assert_int_equal(status, DPT_ENOSPC);
    assert_non_null(strstr(err.text, "File too large"));
    OK(model_check(root, 10, 1, &err));
    model_fini(&model);
}

/* --- several processes --- */

/* Four writer processes, one of them killed: slot 0 times out, the older checkpoint stays. */
static void a_writer_dies(void **state)
{
    (void)state;
    enum { WRITERS = 4 };
    struct model model;
    int64_t newest;
    write_step(10, 3);
    model_init(&model, 20, 1);
    for (int round = 0; round < 2; round++) {
        pid_t pids[WRITERS];
        for (int writer = 0; writer < WRITERS; writer++) {
            pids[writer] = fork();
            assert_true(pids[writer] >= 0);
            if (pids[writer] > 0)
                continue;
            const struct dpt_checkpoint_spec spec = model_spec(&model, root, 20, writer, WRITERS);
            if (round == 0 && writer == 2)
                set_hook(5, 0, DPT_FAULT_COUNT);
            enum dpt_status status = model_write_part(&spec, NULL);
            if (status == DPT_OK && writer == 0)
                status = dpt_checkpoint_collect(&spec, round == 0 ? 300 : 10000, NULL);
            if (status == DPT_OK && writer == 0)
                status = dpt_checkpoint_commit(&spec, NULL);
            if (status != DPT_OK)
                dpt_checkpoint_abandon(&spec);
            _exit(status == DPT_OK ? 0 : status == DPT_ETIMEOUT ? 2 : 1);
        }
        for (int writer = 0; writer < WRITERS; writer++) {
            int code;
            assert_int_equal(waitpid(pids[writer], &code, 0), pids[writer]);
            assert_true(WIFEXITED(code));
            const int expected = round == 1 ? 0 : writer == 0 ? 2 : writer == 2 ? DIED : 0;
            assert_int_equal(WEXITSTATUS(code), expected);
        }
        OK(dpt_checkpoint_newest(root, &newest, &err));
        assert_int_equal(newest, round == 0 ? 10 : 20);
        OK(model_check(root, newest, 1, &err));
        OK(dpt_checkpoint_clean(root, 99, "next", &err));
    }
    model_fini(&model);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, quiet, done)

int main(void)
{
    const struct CMUnitTest tests[] = {TEST(death),
                                       TEST(death_in_shared_files),
                                       TEST(death_of_the_first),
                                       TEST(death_while_replacing),
                                       TEST(death_while_renaming),
                                       TEST(failing_calls),
                                       TEST(failing_calls_in_shared_files),
                                       TEST(failing_replacements),
                                       TEST(fsync_is_not_retried),
                                       TEST(order_of_calls),
                                       TEST(full_disk_injected),
                                       TEST(full_disk),
                                       TEST(file_size_limit),
                                       TEST(a_writer_dies)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
