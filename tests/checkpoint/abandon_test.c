/* The first writer abandons the attempt while another writer works on it. */
#include "tests/checkpoint/checkpoint_fixture.h"

#include "base/fs.h"
#include "base/log.h"
#include "checkpoint/fault.h"

#include <errno.h>
#include <fcntl.h>
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

static struct dpt_err err;

/* The other writer reports the abandoned attempt, not the missing file that it found. */
static int writes_left;

static int abandon_meanwhile(enum dpt_fault_op op, const char *path)
{
    if (op == DPT_FAULT_WRITE && writes_left-- == 0) {
        char temporary[256];
        (void)snprintf(temporary, sizeof temporary, "%s/.tmp-step-00000020-g7-a1", root);
        assert_int_equal(dpt_fs_remove_tree(temporary, NULL), DPT_OK);
        assert_non_null(path);
    }
    return 0;
}

static void abandoned_by_first_writer(void **state)
{
    (void)state;
    struct model model;
    model_init(&model, 20, 1);
    for (writes_left = 0; writes_left < 3; writes_left++) {
        struct dpt_checkpoint_spec spec = model_spec(&model, root, 20, 1, 2);
        const int round = writes_left;
        dpt_fault_hook = abandon_meanwhile;
        assert_int_equal(model_write_part(&spec, &err), DPT_EABORTED);
        dpt_fault_hook = NULL;
        assert_non_null(strstr(err.text, "given up by its first writer"));
        writes_left = round;
    }
    model_fini(&model);
}

/* The same while slot 0 removes the files: some are removed, others not yet. */
static struct dpt_checkpoint_spec first_spec;

static int abandon_in_part(enum dpt_fault_op op, const char *path)
{
    if (op == DPT_FAULT_REMOVE_TREE && access(path, F_OK) == 0) {
        char inner[300];
        (void)snprintf(inner, sizeof inner, "%s/optimizer", path);
        assert_int_equal(dpt_fs_remove_tree(inner, NULL), DPT_OK);
        return EBUSY;
    }
    if (op == DPT_FAULT_CREATE && strstr(path, "/optimizer/") && writes_left-- == 0)
        dpt_checkpoint_abandon(&first_spec);
    return 0;
}

static void abandoned_while_removing(void **state)
{
    (void)state;
    struct model model;
    model_init(&model, 20, 1);
    first_spec = model_spec(&model, root, 20, 0, 2);
    for (int round = 0; round < 2; round++) { /* before the first moments, before the second */
        struct dpt_checkpoint_spec spec = model_spec(&model, root, 20, 1, 2);
        writes_left = round;
        dpt_fault_hook = abandon_in_part;
        assert_int_equal(model_write_part(&spec, &err), DPT_EABORTED);
        dpt_fault_hook = NULL;
        assert_int_equal(writes_left, -1);
        assert_non_null(strstr(err.text, "given up by its first writer"));
        OK(dpt_checkpoint_clean(root, 99, "next", &err));
    }
    model_fini(&model);
}

static int setup(void **state)
{
    dpt_log_set_level(DPT_LOG_ERROR);
    return make_fast_root(state);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, remove_root)

int main(void)
{
    const struct CMUnitTest tests[] = {TEST(abandoned_by_first_writer),
                                       TEST(abandoned_while_removing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
