/* The public interface: round trips with different numbers of writers and readers, the search for
 * the newest complete checkpoint, pruning, state, models that do not match. */
#include "tests/checkpoint/checkpoint_fixture.h"

#include "base/clock.h"
#include "base/fs.h"
#include "tests/logged.h"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static struct dpt_err err;

static void write_step(int64_t step, int n_writers)
{
    struct model model;
    model_init(&model, step, 1);
    OK(model_write(&model, root, step, n_writers, &err));
    model_fini(&model);
}

/* As many writers as tensors, fewer, more; several blocks a file. */
static void round_trips(void **state)
{
    (void)state;
    static const int writers[] = {1, 2, 3, 4, 5, 9, 12};
    for (size_t i = 0; i < sizeof writers / sizeof *writers; i++) {
        struct model model;
        const int64_t step = 100 + (int64_t)i;
        model_init(&model, step, 97); /* 1.2 MiB */
        OK(model_write(&model, root, step, writers[i], &err));
        OK(model_check(root, step, 97, &err));
        model_fini(&model);
        int64_t newest;
        OK(dpt_checkpoint_newest(root, &newest, &err));
        assert_int_equal(newest, step);
    }
    /* keep = 2, and no other file remains. */
    char **names;
    size_t n;
    OK(dpt_fs_list(root, &names, &n, &err));
    assert_int_equal(n, 2);
    assert_string_equal(names[0], "step-00000105");
    dpt_fs_list_free(&names, n);
}

static void state_round_trip(void **state)
{
    (void)state;
    struct dpt_checkpoint *checkpoint;
    write_step(20, 2);
    OK(dpt_checkpoint_open(root, 20, &checkpoint, &err));
    const struct dpt_checkpoint_state *s = dpt_checkpoint_get_state(checkpoint);
    assert_int_equal(s->step, 20);
    assert_int_equal(s->samples, 640);
    assert_true(s->seed == UINT64_MAX - 41);
    assert_string_equal(s->config_yaml, "run: demo\nseed: 42\n");
    assert_string_equal(s->history_json, "[{\"generation\":1,\"cause\":\"start\"}]");
    struct model model;
    model_init(&model, 20, 1);
    assert_string_equal(s->weights_hash, model.hash);
    model_fini(&model);
    dpt_checkpoint_close(&checkpoint);
    assert_null(checkpoint);
}

/* Reads some tensors only, in another order, without moments. */
static void read_some_tensors(void **state)
{
    (void)state;
    struct model model, some;
    struct dpt_checkpoint *checkpoint;
    write_step(20, 3);
    model_init(&model, 20, 1);
    model_init(&some, 21, 1);
    struct dpt_checkpoint_tensor want[3] = {some.tensors[6], some.tensors[0], some.tensors[4]};
    want[0].m = want[0].v = want[1].param = want[2].v = NULL;
    OK(dpt_checkpoint_open(root, 20, &checkpoint, &err));
    OK(dpt_checkpoint_read(checkpoint, want, 3, &err));
    dpt_checkpoint_close(&checkpoint);
    assert_memory_equal(some.tensors[6].param, model.tensors[6].param, 33 * 99 * 4);
    assert_memory_equal(some.tensors[0].m, model.tensors[0].m, 100 * 33 * 4);
    assert_memory_equal(some.tensors[0].v, model.tensors[0].v, 100 * 33 * 4);
    assert_memory_equal(some.tensors[4].m, model.tensors[4].m, 99 * 4);
    /* Tensors that were not requested are unchanged. */
    assert_memory_not_equal(some.tensors[6].m, model.tensors[6].m, 33 * 99 * 4);
    assert_memory_not_equal(some.tensors[0].param, model.tensors[0].param, 100 * 33 * 4);
    model_fini(&model);
    model_fini(&some);
}

static void another_model(void **state)
{
    (void)state;
    struct model model;
    struct dpt_checkpoint *checkpoint;
    write_step(20, 2);
    model_init(&model, 20, 1);
    OK(dpt_checkpoint_open(root, 20, &checkpoint, &err));
    struct dpt_checkpoint_tensor want = model.tensors[1];
    want.dim[0]--;
    assert_int_equal(dpt_checkpoint_read(checkpoint, &want, 1, &err), DPT_ECONFIG);
    assert_non_null(strstr(err.text, "'transformer.wpe.weight' has another shape"));
    want = model.tensors[1];
    want.name = "transformer.h.2.ln_1.weight";
    assert_int_equal(dpt_checkpoint_read(checkpoint, &want, 1, &err), DPT_ECONFIG);
    assert_non_null(strstr(err.text, "no weights of tensor 'transformer.h.2.ln_1.weight'"));
    OK(dpt_checkpoint_check_names(checkpoint, model.tensors, model.n, &err));
    assert_int_equal(dpt_checkpoint_check_names(checkpoint, model.tensors, model.n - 1, &err),
                     DPT_ECONFIG);
    assert_non_null(strstr(err.text, model.tensors[model.n - 1].name));
    dpt_checkpoint_close(&checkpoint);
    model_fini(&model);
}

/* Without moments (plain SGD) there is no optimizer folder, and reading moments is an error. */
static void no_moments(void **state)
{
    (void)state;
    struct model model;
    struct dpt_checkpoint *checkpoint;
    model_init(&model, 20, 1);
    struct dpt_checkpoint_tensor bare[MODEL_TENSORS_MAX];
    for (int i = 0; i < model.n; i++) {
        bare[i] = model.tensors[i];
        bare[i].m = bare[i].v = NULL;
    }
    struct dpt_checkpoint_spec spec = model_spec(&model, root, 20, 0, 1);
    spec.tensors = bare;
    spec.moments = false;
    OK(model_write_part(&spec, &err));
    OK(dpt_checkpoint_collect(&spec, 1000, &err));
    OK(dpt_checkpoint_commit(&spec, &err));
    assert_false(dpt_fs_exists(in_root("step-00000020/optimizer")));
    OK(dpt_checkpoint_open(root, 20, &checkpoint, &err));
    OK(dpt_checkpoint_read(checkpoint, bare, model.n, &err));
    assert_int_equal(dpt_checkpoint_read(checkpoint, model.tensors, 1, &err), DPT_ECONFIG);
    dpt_checkpoint_close(&checkpoint);
    /* Moments of some tensors only are refused. */
    spec.moments = true;
    bare[0].m = bare[0].v = model.tensors[0].m;
    assert_int_equal(model_write_part(&spec, &err), DPT_EINVAL);
    model_fini(&model);
}

/* One moment (SGD): the second is NULL and written as zeros. */
static void no_second_moment(void **state)
{
    (void)state;
    struct model model;
    struct dpt_checkpoint *checkpoint;
    model_init(&model, 21, 1);
    struct dpt_checkpoint_tensor one[MODEL_TENSORS_MAX];
    for (int i = 0; i < model.n; i++) {
        one[i] = model.tensors[i];
        one[i].v = NULL;
    }
    struct dpt_checkpoint_spec spec = model_spec(&model, root, 21, 0, 1);
    spec.tensors = one;
    assert_int_equal(model_write_part(&spec, &err), DPT_EINVAL); /* v is NULL without no_v */
    spec.no_v = true;
    OK(model_write_part(&spec, &err));
    OK(dpt_checkpoint_collect(&spec, 1000, &err));
    OK(dpt_checkpoint_commit(&spec, &err));
    OK(dpt_checkpoint_open(root, 21, &checkpoint, &err));
    float first = model.tensors[0].m[0];
    model.tensors[0].m[0] = 0;
    OK(dpt_checkpoint_read(checkpoint, model.tensors, model.n, &err));
    assert_true(model.tensors[0].m[0] == first);
    for (int i = 0; i < model.n; i++) {
        int64_t numel = 1;
        for (int d = 0; d < model.tensors[i].ndim; d++)
            numel *= model.tensors[i].dim[d];
        for (int64_t e = 0; e < numel; e++)
            assert_true(model.tensors[i].v[e] == 0);
    }
    dpt_checkpoint_close(&checkpoint);
    model_fini(&model);
}

static void newest_among_other_names(void **state)
{
    (void)state;
    int64_t step = 5;
    OK(dpt_checkpoint_newest(in_root("absent"), &step, &err));
    assert_int_equal(step, -1);
    OK(dpt_checkpoint_newest(root, &step, &err));
    assert_int_equal(step, -1);
    write_step(20, 2);
    write_step(30, 1);
    /* Not checkpoints: similar names, temporary folders, files and links. */
    assert_int_equal(mkdir(in_root("step-0000000000040"), 0777), 0);
    assert_int_equal(mkdir(in_root("step-40"), 0777), 0);
    assert_int_equal(mkdir(in_root("step-00000040.old"), 0777), 0);
    assert_int_equal(mkdir(in_root(".tmp-step-00000040-g7-x"), 0777), 0);
    assert_int_equal(mkdir(in_root("step-00000041"), 0777), 0);
    assert_int_equal(close(open(in_root("step-00000042"), O_CREAT | O_WRONLY, 0666)), 0);
    assert_int_equal(symlink("step-00000030", in_root("step-00000043")), 0);
    assert_int_equal(close(open(in_root("notes.txt"), O_CREAT | O_WRONLY, 0666)), 0);
    OK(dpt_checkpoint_newest(root, &step, &err));
    assert_int_equal(step, 30);
    OK(dpt_checkpoint_newest_below(root, 30, &step, &err));
    assert_int_equal(step, 20);
    OK(dpt_checkpoint_newest_below(root, 20, &step, &err));
    assert_int_equal(step, -1);
    struct dpt_checkpoint *checkpoint = NULL;
    assert_int_not_equal(dpt_checkpoint_open(root, 43, &checkpoint, &err), DPT_OK);
    assert_null(checkpoint);
    assert_int_not_equal(dpt_checkpoint_newest(in_root("notes.txt"), &step, &err), DPT_OK);
}

/* One log line names the damage and the checkpoint that is used instead. */
static void damage_logs_one_line(void **state)
{
    (void)state;
    int64_t step;
    write_step(20, 1);
    write_step(30, 1);
    assert_int_equal(unlink(in_root("step-00000030/config.json")), 0);
    test_log_begin();
    const enum dpt_status status = dpt_checkpoint_newest(root, &step, &err);
    test_log_end();
    OK(status);
    assert_int_equal(step, 20);
    assert_non_null(strstr(test_logged, "step-00000030/config.json'"));
    const char *end = strstr(test_logged, "using step-00000020\n");
    assert_non_null(end);
    assert_string_equal(end, "using step-00000020\n");
    assert_ptr_equal(strchr(test_logged, '\n'), strchr(end, '\n')); /* there is one line */
}

static void prune_keeps_whole_ones(void **state)
{
    (void)state;
    write_step(10, 1);
    write_step(20, 1);
    assert_int_equal(unlink(in_root("step-00000020/state.json")), 0);
    write_step(30, 1); /* keep 2: 30 and 10; the damaged 20 does not count */
    assert_true(dpt_fs_exists(in_root("step-00000010")));
    write_step(40, 1); /* 40 and 30; the damaged 20 is removed like older ones */
    assert_false(dpt_fs_exists(in_root("step-00000010")));
    assert_false(dpt_fs_exists(in_root("step-00000020")));
    assert_true(dpt_fs_exists(in_root("step-00000030")));
    write_step(15, 1); /* resumed from an earlier step: later steps belong to another history */
    assert_true(dpt_fs_exists(in_root("step-00000015")));
    assert_true(dpt_fs_exists(in_root("step-00000030")));
    assert_true(dpt_fs_exists(in_root("step-00000040")));
}

/* The same step again replaces a complete checkpoint and a damaged one. */
static void replace_same_step(void **state)
{
    (void)state;
    int64_t step;
    write_step(20, 3);
    write_step(20, 1);
    OK(model_check(root, 20, 1, &err));
    assert_int_equal(unlink(in_root("step-00000020/state.json")), 0);
    write_step(20, 2);
    OK(model_check(root, 20, 1, &err));
    assert_int_equal(dpt_fs_remove_tree(in_root("step-00000020"), &err), DPT_OK);
    assert_int_equal(close(open(in_root("step-00000020"), O_CREAT | O_WRONLY, 0666)), 0);
    write_step(20, 2);
    OK(dpt_checkpoint_newest(root, &step, &err));
    assert_int_equal(step, 20);
}

/* An absent checkpoint.dir is created with all levels; a file in its place is an error. */
static void folder_is_created(void **state)
{
    (void)state;
    struct model model;
    model_init(&model, 20, 1);
    const char *deep = in_root("a//b/c/");
    OK(model_write(&model, deep, 20, 1, &err));
    OK(model_check(deep, 20, 1, &err));
    assert_int_equal(close(open(in_root("file"), O_CREAT | O_WRONLY, 0666)), 0);
    assert_int_equal(model_write(&model, in_root("file"), 20, 1, &err), DPT_EIO);
    assert_non_null(strstr(err.text, "/file': Not a directory"));
    assert_int_equal(model_write(&model, in_root("file/x"), 20, 1, &err), DPT_EIO);
    model_fini(&model);
}

static void bad_specs(void **state)
{
    (void)state;
    struct model model;
    model_init(&model, 20, 1);
    struct dpt_checkpoint_spec spec = model_spec(&model, root, 20, 0, 1);
    spec.attempt = "../../etc";
    assert_int_equal(model_write_part(&spec, &err), DPT_EINVAL);
    spec.attempt = "";
    assert_int_equal(model_write_part(&spec, &err), DPT_EINVAL);
    spec = model_spec(&model, root, -1, 0, 1);
    assert_int_equal(model_write_part(&spec, &err), DPT_EINVAL);
    spec = model_spec(&model, root, 20, 1, 1);
    assert_int_equal(model_write_part(&spec, &err), DPT_EINVAL);
    spec = model_spec(&model, root, 20, 0, 1);
    spec.n_tensors = 0;
    assert_int_equal(model_write_part(&spec, &err), DPT_EINVAL);
    spec = model_spec(&model, root, 20, 0, 1);
    const char *name = model.tensors[3].name;
    model.tensors[3].name = model.tensors[2].name;
    assert_int_equal(model_write_part(&spec, &err), DPT_EINVAL);
    assert_non_null(strstr(err.text, "given twice"));
    model.tensors[3].name = name;
    dpt_checkpoint_abandon(&spec);
    spec.state.history_json = "{}";
    OK(model_write_part(&spec, &err));
    assert_int_equal(dpt_checkpoint_collect(&spec, 1000, &err), DPT_EINVAL);
    dpt_checkpoint_abandon(&spec);
    assert_false(dpt_fs_exists(in_root(".tmp-step-00000020-g7-a1")));
    model_fini(&model);
}

/* Blocks of 65,536 elements, from the start of each tensor. */
static void weights_hash(void **state)
{
    (void)state;
    enum { N = 70001 };
    float *x = calloc(N, sizeof *x);
    for (int i = 0; i < N; i++)
        x[i] = (float)i;
    const struct dpt_checkpoint_tensor one = {.name = "a", .ndim = 1, .dim = {N}, .param = x};
    const struct dpt_checkpoint_tensor square = {
        .name = "b", .ndim = 2, .dim = {7, N / 7}, .param = x}; /* 70,000 */
    const struct dpt_hash128 h = dpt_weights_hash(&one, 1);
    char hex[DPT_HASH_HEX_BYTES], again[DPT_HASH_HEX_BYTES];
    dpt_hash128_hex(h, hex);
    x[N - 1] = 0;
    dpt_hash128_hex(dpt_weights_hash(&one, 1), again);
    assert_string_not_equal(hex, again);
    x[N - 1] = (float)(N - 1);
    dpt_hash128_hex(dpt_weights_hash(&square, 1), again);
    assert_string_not_equal(hex, again);
    /* Two tensors that meet at the end of a block have the same blocks as one tensor. */
    const struct dpt_checkpoint_tensor two[2] = {
        {.name = "a", .ndim = 1, .dim = {65536}, .param = x},
        {.name = "b", .ndim = 1, .dim = {N - 65536}, .param = x + 65536}};
    dpt_hash128_hex(dpt_weights_hash(two, 2), again);
    assert_string_equal(hex, again);
    free(x);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make_root, remove_root)

int main(void)
{
    const struct CMUnitTest tests[] = {TEST(round_trips),
                                       TEST(state_round_trip),
                                       TEST(read_some_tensors),
                                       TEST(another_model),
                                       TEST(no_moments),
                                       TEST(no_second_moment),
                                       TEST(newest_among_other_names),
                                       TEST(damage_logs_one_line),
                                       TEST(prune_keeps_whole_ones),
                                       TEST(replace_same_step),
                                       TEST(folder_is_created),
                                       TEST(bad_specs),
                                       cmocka_unit_test(weights_hash)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
