/* The name of an event file on a host whose name is long or unknown. */
#include "base/fs.h"
#include "tests/tmp.h"
#include "worker/train/log/event_file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool host_has_name;

/* Takes the place of the C library's, which may leave a long name without its end. */
int gethostname(char *name, size_t bytes)
{
    memset(name, 'h', bytes);
    errno = ENAMETOOLONG;
    return host_has_name ? 0 : -1;
}

/* Whether the name of a new event file is "events.out.tfevents.NUMBER.HOST.PID". */
static void expect_host(const char *host)
{
    char dir[64], pid[32], **names = NULL;
    size_t n = 0;
    struct dpt_err err;
    assert_true(test_make_dir(dir, sizeof dir, "test-host"));
    struct dpt_event_file file = {.dir = dir};
    dpt_event_file_prepare(&file);
    assert_int_equal(dpt_fs_list(dir, &names, &n, &err), DPT_OK);
    assert_int_equal(n, 1);
    (void)snprintf(pid, sizeof pid, ".%ld", (long)getpid());
    const char *at = strstr(names[0], host);
    assert_non_null(at);
    assert_string_equal(at + strlen(host), pid);
    dpt_fs_list_free(&names, n);
    assert_int_equal(dpt_fs_remove_tree(dir, &err), DPT_OK);
}

static void long_name(void **state)
{
    (void)state;
    char host[66] = ".";
    host_has_name = true;
    memset(host + 1, 'h', 64);
    expect_host(host);
}

static void no_name(void **state)
{
    (void)state;
    host_has_name = false;
    expect_host(".unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(long_name),
        cmocka_unit_test(no_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
