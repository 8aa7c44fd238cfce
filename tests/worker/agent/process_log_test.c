/* The files of ranks' output: lines, discarded text, and a folder that cannot be written. */
#include "base/fs.h"
#include "tests/tmp.h"
#include "worker/agent/process_log.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

struct fixture {
    char dir[64], path[128];
    int out[2];  /* output of a rank */
    int echo[2]; /* lines that the agent repeats */
    struct dpt_process_log log;
};

static char made[64]; /* the running test's folder; "": none */

static int remove_dir(void **state)
{
    (void)state;
    struct dpt_err err;
    enum dpt_status status = made[0] == '\0' ? DPT_OK : dpt_fs_remove_tree(made, &err);
    made[0] = '\0';
    return status == DPT_OK ? 0 : -1;
}

static void open_log_fixture(struct fixture *f)
{
    struct dpt_err err;
    assert_true(test_make_dir(made, sizeof made, "ranklog"));
    memcpy(f->dir, made, sizeof made);
    (void)snprintf(f->path, sizeof f->path, "%s/log/node-a/rank-2.log", f->dir);
    assert_int_equal(pipe2(f->out, O_CLOEXEC | O_NONBLOCK), 0);
    assert_int_equal(pipe2(f->echo, O_CLOEXEC | O_NONBLOCK), 0);
    char log_dir[80];
    (void)snprintf(log_dir, sizeof log_dir, "%s/log", f->dir);
    assert_int_equal(dpt_process_log_init(&f->log, log_dir, "a", 2, f->echo[1], &err), DPT_OK);
}

static void close_log_fixture(struct fixture *f, bool may_write)
{
    dpt_process_log_fini(&f->log, may_write);
    for (int i = 0; i < 2; i++) {
        if (f->out[i] >= 0)
            close(f->out[i]);
        close(f->echo[i]);
    }
}

static void print(const struct fixture *f, const char *text)
{
    assert_int_equal(write(f->out[1], text, strlen(text)), strlen(text));
}

static void expect_file(const struct fixture *f, const char *text)
{
    char *found;
    size_t bytes;
    struct dpt_err err;
    assert_int_equal(dpt_fs_read_file(f->path, 1 << 20, &found, &bytes, &err), DPT_OK);
    assert_string_equal(found, text);
    free(found);
}

static void expect_echo(const struct fixture *f, const char *text)
{
    char found[8192] = "";
    ssize_t got = read(f->echo[0], found, sizeof found - 1);
    assert_string_equal(got > 0 ? found : "", text);
}

#define INFO  "2026-01-02T03:04:05.678Z I dpt-worker node=a: fine\n"
#define ERROR "2026-01-02T03:04:05.678Z E dpt-worker node=a rank=0: no such shard\n"

static void test_lines_are_written_whole(void **state)
{
    (void)state;
    struct fixture f;
    open_log_fixture(&f);
    print(&f, INFO ERROR "Assertion failed\nhalf");
    assert_true(dpt_process_log_read(&f.log, f.out[0], true));
    expect_file(&f, INFO ERROR "Assertion failed\n");
    expect_echo(&f, "[local rank 2] " ERROR "[local rank 2] Assertion failed\n");
    assert_string_equal(f.log.last_error, "no such shard");
    print(&f, " a line\n");
    close(f.out[1]);
    f.out[1] = -1;
    assert_false(dpt_process_log_read(&f.log, f.out[0], true));
    expect_file(&f, INFO ERROR "Assertion failed\nhalf a line\n");
    close_log_fixture(&f, true);
}

static void test_held_back_then_written(void **state)
{
    (void)state;
    struct fixture f;
    open_log_fixture(&f);
    print(&f, INFO);
    assert_true(dpt_process_log_read(&f.log, f.out[0], false));
    assert_false(dpt_fs_exists(f.path));
    dpt_process_log_release(&f.log);
    expect_file(&f, INFO);
    close_log_fixture(&f, true);
}

static void test_discarded_lines_are_dropped(void **state)
{
    (void)state;
    struct fixture f;
    open_log_fixture(&f);
    print(&f, INFO "half");
    assert_true(dpt_process_log_read(&f.log, f.out[0], false));
    dpt_process_log_discard(&f.log);
    dpt_process_log_release(&f.log);
    dpt_process_log_fini(&f.log, false);
    assert_false(dpt_fs_exists(f.path));
    close_log_fixture(&f, false);
}

static void test_newest_is_kept(void **state)
{
    (void)state;
    struct fixture f;
    open_log_fixture(&f);
    char line[128];
    enum { LINES = 4000 };
    for (int i = 0; i < LINES; i++) {
        (void)snprintf(line, sizeof line, "2026-01-02T03:04:05.678Z I line %06d\n", i);
        print(&f, line);
        assert_true(dpt_process_log_read(&f.log, f.out[0], false));
    }
    dpt_process_log_release(&f.log);
    char *found;
    size_t bytes;
    struct dpt_err err;
    assert_int_equal(dpt_fs_read_file(f.path, 1 << 20, &found, &bytes, &err), DPT_OK);
    assert_true(bytes <= DPT_RANK_LOG_HELD_BYTES + 128);
    assert_non_null(strstr(found, "line 003999\n"));
    assert_null(strstr(found, "line 000000\n"));
    assert_non_null(strstr(found, "bytes lost"));
    free(found);
    close_log_fixture(&f, true);
}

static void test_long_line_is_cut(void **state)
{
    (void)state;
    struct fixture f;
    open_log_fixture(&f);
    char text[2 * DPT_RANK_LOG_LINE_BYTES + 2];
    memset(text, 'x', sizeof text);
    text[sizeof text - 2] = '\n';
    text[sizeof text - 1] = '\0';
    print(&f, text);
    assert_true(dpt_process_log_read(&f.log, f.out[0], true));
    expect_file(&f, text);
    close_log_fixture(&f, true);
}

/* The folder cannot be made: said once, and the rank's output does not stop the agent. */
static void test_unwritable_folder_is_reported_once(void **state)
{
    (void)state;
    struct fixture f;
    struct dpt_err err;
    char blocked[96];
    open_log_fixture(&f);
    (void)snprintf(blocked, sizeof blocked, "%s/log", f.dir);
    assert_int_equal(dpt_fs_write_file_atomic(blocked, "a file", 6, &err), DPT_OK);
    print(&f, INFO);
    assert_true(dpt_process_log_read(&f.log, f.out[0], true));
    assert_true(f.log.failed);
    print(&f, INFO);
    assert_true(dpt_process_log_read(&f.log, f.out[0], true));
    close_log_fixture(&f, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_lines_are_written_whole, remove_dir),
        cmocka_unit_test_teardown(test_held_back_then_written, remove_dir),
        cmocka_unit_test_teardown(test_discarded_lines_are_dropped, remove_dir),
        cmocka_unit_test_teardown(test_newest_is_kept, remove_dir),
        cmocka_unit_test_teardown(test_long_line_is_cut, remove_dir),
        cmocka_unit_test_teardown(test_unwritable_folder_is_reported_once, remove_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
