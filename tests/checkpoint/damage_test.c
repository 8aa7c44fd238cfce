/* Damage of every kind to every file is found and named, links are not followed, and the search
 * continues with an older checkpoint. */
#include "tests/checkpoint/checkpoint_fixture.h"

#include "base/fs.h"
#include "base/log.h"

#include <fcntl.h>
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

/* One of each kind of file that two writers write. */
static const char *const files[] = {"MANIFEST.json",
                                    "state.json",
                                    "config.json",
                                    "model.safetensors.index.json",
                                    "model-00001-of-00002.safetensors",
                                    "model-00002-of-00002.safetensors",
                                    "optimizer/m-00001-of-00002.safetensors",
                                    "optimizer/v-00002-of-00002.safetensors"};
enum { N_FILES = sizeof files / sizeof *files };

static int setup(void **state)
{
    struct model model;
    dpt_log_set_level(DPT_LOG_ERROR);
    if (make_fast_root(state) != 0)
        return -1;
    enum dpt_status status = DPT_OK;
    for (int64_t step = 10; status == DPT_OK && step <= 20; step += 10) {
        model_init(&model, step, 80); /* a little over a block a file */
        status = model_write(&model, root, step, 2, &err);
        model_fini(&model);
    }
    return status == DPT_OK ? 0 : -1;
}

static const char *path_of(const char *file)
{
    char name[256];
    (void)snprintf(name, sizeof name, "step-00000020/%s", file);
    return in_root(name);
}

/* Opens step 20, reads and verifies all of it. */
static enum dpt_status use_damaged(void)
{
    struct dpt_checkpoint *checkpoint = NULL;
    DPT_TRY(dpt_checkpoint_open(root, 20, &checkpoint, &err));
    enum dpt_status status = dpt_checkpoint_verify(checkpoint, &err);
    dpt_checkpoint_close(&checkpoint);
    return status;
}

static void expect_named(const char *file)
{
    if (!strstr(err.text, file))
        fail_msg("'%s' is not named in: %s", file, err.text);
}

static void flip(const char *path, int64_t at, int bit)
{
    unsigned char byte;
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= (unsigned char)(1u << bit);
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    assert_int_equal(close(fd), 0);
}

static int64_t size_of(const char *path)
{
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    return st.st_size;
}

static void bit_flips(void **state)
{
    (void)state;
    OK(use_damaged());
    uint32_t x = 12345;
    for (int f = 0; f < N_FILES; f++) {
        const char *path = path_of(files[f]);
        const int64_t bytes = size_of(path);
        for (int round = 0; round < 60; round++) {
            x = x * 1664525u + 1013904223u;
            /* The first bytes, the last ones, and some between. */
            const int64_t at = round < 10   ? round
                               : round < 20 ? bytes - 1 - (round - 10)
                                            : (int64_t)(x >> 8) % bytes;
            flip(path, at, (int)(x >> 29));
            if (use_damaged() != DPT_ECORRUPT)
                fail_msg("%s: bit %d of byte %lld", files[f], (int)(x >> 29), (long long)at);
            expect_named(files[f]);
            flip(path, at, (int)(x >> 29));
        }
        OK(use_damaged());
    }
}

static void every_byte_of_the_manifest(void **state)
{
    (void)state;
    const char *path = path_of("MANIFEST.json");
    const int64_t bytes = size_of(path);
    int64_t step;
    for (int64_t at = 0; at < bytes; at++) {
        flip(path, at, (int)(at % 8));
        OK(dpt_checkpoint_newest(root, &step, &err));
        assert_int_equal(step, 10);
        flip(path, at, (int)(at % 8));
    }
    OK(dpt_checkpoint_newest(root, &step, &err));
    assert_int_equal(step, 20);
}

/* Shorter, empty, longer, absent: found without reading the data, so the search skips the step. */
static void wrong_sizes(void **state)
{
    (void)state;
    static char saved[2 << 20];
    for (int f = 0; f < N_FILES; f++) {
        const char *path = path_of(files[f]);
        const int64_t bytes = size_of(path), sizes[] = {0, 1, bytes / 2, bytes - 1, bytes + 1, -1};
        assert_true((size_t)bytes <= sizeof saved);
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            int64_t step;
            int fd = open(path, O_RDWR);
            assert_true(fd >= 0);
            OK(dpt_fs_pread_all(fd, saved, (size_t)bytes, 0, path, &err));
            if (sizes[i] < 0)
                assert_int_equal(unlink(path), 0);
            else
                assert_int_equal(ftruncate(fd, sizes[i]), 0);
            (void)close(fd);
            assert_int_equal(use_damaged(), sizes[i] < 0 ? DPT_ENOENT : DPT_ECORRUPT);
            expect_named(files[f]);
            OK(dpt_checkpoint_newest(root, &step, &err));
            assert_int_equal(step, 10);
            fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0666);
            OK(dpt_fs_pwrite_all(fd, saved, (size_t)bytes, 0, path, &err));
            (void)close(fd);
        }
        OK(use_damaged());
    }
}

static int n_warned;

static void count_warning(void *ctx, const char *line, size_t bytes)
{
    (void)ctx;
    (void)bytes;
    n_warned += strstr(line, "is not usable") != NULL;
}

/* A second search does not warn again, with any checkpoint that it uses; other damage warns. */
static void damage_is_logged_once(void **state)
{
    (void)state;
    int64_t step;
    n_warned = 0;
    dpt_log_set_level(DPT_LOG_WARN);
    dpt_log_set_sink(count_warning, NULL);
    assert_int_equal(truncate(path_of(files[1]), 1), 0);
    for (int i = 0; i < 3; i++) {
        OK(dpt_checkpoint_newest(root, &step, &err));
        assert_int_equal(step, 10);
        OK(dpt_checkpoint_newest_below(root, 20, &step, &err));
    }
    assert_int_equal(n_warned, 1);
    assert_int_equal(truncate(path_of(files[1]), 2), 0);
    OK(dpt_checkpoint_newest(root, &step, &err));
    assert_int_equal(n_warned, 2);
    assert_int_equal(truncate(in_root("step-00000010/state.json"), 1), 0);
    for (int i = 0; i < 3; i++) {
        OK(dpt_checkpoint_newest(root, &step, &err));
        assert_int_equal(step, -1);
        OK(dpt_checkpoint_newest_below(root, 20, &step, &err));
    }
    assert_int_equal(n_warned, 4); /* about both together, and about the older alone */
    dpt_log_set_sink(NULL, NULL);
}

/* Reading names the damaged block; other blocks can still be read. */
static void damaged_block(void **state)
{
    (void)state;
    struct model model;
    struct dpt_checkpoint *checkpoint;
    model_init(&model, 20, 80);
    const char *file = "model-00001-of-00002.safetensors"; /* the embedding alone, 1.06 MB */
    const int64_t bytes = size_of(path_of(file));
    assert_true(bytes > 1 << 20);
    flip(path_of(file), (1 << 20) + 4, 3);
    OK(dpt_checkpoint_open(root, 20, &checkpoint, &err));
    assert_int_equal(dpt_checkpoint_read(checkpoint, model.tensors, model.n, &err), DPT_ECORRUPT);
    expect_named("model-00001-of-00002.safetensors' is damaged in block 1 (bytes 1048576 to ");
    struct dpt_checkpoint_tensor want = model.tensors[model.n - 1];
    OK(dpt_checkpoint_read(checkpoint, &want, 1, &err));
    dpt_checkpoint_close(&checkpoint);
    int64_t step;
    OK(dpt_checkpoint_newest_below(root, 20, &step, &err));
    assert_int_equal(step, 10);
    OK(model_check(root, step, 80, &err));
    model_fini(&model);
}

/* A link to a file with the right size and content is refused. */
static void links_are_not_followed(void **state)
{
    (void)state;
    for (int f = 0; f < N_FILES; f++) {
        const char *path = path_of(files[f]);
        assert_int_equal(rename(path, in_root("elsewhere")), 0);
        assert_int_equal(symlink(in_root("elsewhere"), path), 0);
        assert_int_not_equal(use_damaged(), DPT_OK);
        expect_named(files[f]);
        assert_int_equal(unlink(path), 0);
        assert_int_equal(rename(in_root("elsewhere"), path), 0);
    }
    assert_int_equal(rename(path_of("optimizer"), in_root("elsewhere")), 0);
    assert_int_equal(symlink(in_root("elsewhere"), path_of("optimizer")), 0);
    assert_int_not_equal(use_damaged(), DPT_OK);
    expect_named("optimizer/");
}

/* A pipe in place of a file does not block the reader; a folder is refused. */
static void no_regular_file(void **state)
{
    (void)state;
    assert_int_equal(unlink(path_of("state.json")), 0);
    assert_int_equal(mkfifo(path_of("state.json"), 0666), 0);
    assert_int_equal(use_damaged(), DPT_ECORRUPT);
    expect_named("state.json' is no regular file");
    assert_int_equal(unlink(path_of("state.json")), 0);
    assert_int_equal(mkdir(path_of("state.json"), 0777), 0);
    assert_int_equal(use_damaged(), DPT_ECORRUPT);
    expect_named("state.json' is no regular file");
}

/* Links in place of a writer's files: the targets stay unchanged. */
static void writing_through_links(void **state)
{
    (void)state;
    struct model model;
    char **names;
    size_t n;
    model_init(&model, 30, 1);
    const struct dpt_checkpoint_spec spec = model_spec(&model, root, 30, 0, 1);
    const char *temporary = in_root(".tmp-step-00000030-g7-a1");
    assert_int_equal(mkdir(in_root("victim"), 0777), 0);
    assert_int_equal(symlink("victim", temporary), 0);
    assert_int_not_equal(model_write_part(&spec, &err), DPT_OK);
    dpt_checkpoint_abandon(&spec); /* removes the link, not its target */
    assert_true(dpt_fs_exists(in_root("victim")));
    assert_int_equal(mkdir(temporary, 0777), 0);
    assert_int_equal(symlink("../victim/x",
                             in_root(".tmp-step-00000030-g7-a1/model-00001-of-00001.safetensors")),
                     0);
    assert_int_equal(model_write_part(&spec, &err), DPT_EEXIST);
    dpt_checkpoint_abandon(&spec);
    assert_int_equal(mkdir(temporary, 0777), 0);
    assert_int_equal(symlink("../victim", in_root(".tmp-step-00000030-g7-a1/optimizer")), 0);
    assert_int_not_equal(model_write_part(&spec, &err), DPT_OK);
    dpt_checkpoint_abandon(&spec);
    OK(dpt_fs_list(in_root("victim"), &names, &n, &err));
    assert_int_equal(n, 0);
    dpt_fs_list_free(&names, n);
    model_fini(&model);
}

/* A report that changed before the commit. */
static void damaged_part(void **state)
{
    (void)state;
    struct model model;
    int64_t step;
    model_init(&model, 30, 1);
    const struct dpt_checkpoint_spec spec = model_spec(&model, root, 30, 0, 1);
    OK(model_write_part(&spec, &err));
    flip(in_root(".tmp-step-00000030-g7-a1/part-00000.json"), 50, 0);
    assert_int_equal(dpt_checkpoint_collect(&spec, 1000, &err), DPT_ECORRUPT);
    expect_named("part-00000.json");
    flip(in_root(".tmp-step-00000030-g7-a1/part-00000.json"), 50, 0);
    OK(dpt_checkpoint_collect(&spec, 1000, &err));
    assert_int_equal(
        truncate(in_root(".tmp-step-00000030-g7-a1/optimizer/v-00001-of-00001.safetensors"), 100),
        0);
    assert_int_equal(dpt_checkpoint_commit(&spec, &err), DPT_ECORRUPT);
    expect_named("optimizer/v-00001-of-00001.safetensors");
    dpt_checkpoint_abandon(&spec);
    OK(dpt_checkpoint_newest(root, &step, &err));
    assert_int_equal(step, 20);
    model_fini(&model);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, remove_root)

int main(void)
{
    const struct CMUnitTest tests[] = {TEST(bit_flips),       TEST(every_byte_of_the_manifest),
                                       TEST(wrong_sizes),     TEST(damage_is_logged_once),
                                       TEST(damaged_block),   TEST(links_are_not_followed),
                                       TEST(no_regular_file), TEST(writing_through_links),
                                       TEST(damaged_part)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
