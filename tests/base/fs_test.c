/* Files: whole transfers, atomic replacement, trees and listings, and their errors. */
#include "base/fs.h"
#include "tests/tmp.h"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char root[128];
static struct dpt_err err;

static int setup_fs(void **state)
{
    (void)state;
    return test_make_dir(root, sizeof root, "fs-test") ? 0 : -1;
}

static int teardown_fs(void **state)
{
    (void)state;
    return dpt_fs_remove_tree(root, &err) == DPT_OK ? 0 : -1;
}

/* root/name in a buffer of the `slot`. */
static const char *path_at(int slot, const char *name)
{
    static char paths[4][256];
    assert_int_equal(dpt_fs_join(root, name, paths[slot], sizeof paths[slot], &err), DPT_OK);
    return paths[slot];
}

static void write_and_read_back(void **state)
{
    (void)state;
    char *text;
    size_t n;
    assert_int_equal(dpt_fs_write_file_atomic(path_at(0, "a"), "hello", 5, &err), DPT_OK);
    assert_int_equal(dpt_fs_read_file(path_at(0, "a"), 5, &text, &n, &err), DPT_OK);
    assert_int_equal(n, 5);
    assert_string_equal(text, "hello");
    free(text);
    assert_int_equal(dpt_fs_write_file_atomic(path_at(0, "a"), "", 0, &err), DPT_OK);
    assert_int_equal(dpt_fs_read_file(path_at(0, "a"), 5, &text, &n, &err), DPT_OK);
    assert_int_equal(n, 0);
    free(text);
    /* No temporary file is left. */
    char **names;
    assert_int_equal(dpt_fs_list(root, &names, &n, &err), DPT_OK);
    assert_int_equal(n, 1);
    dpt_fs_list_free(&names, n);
    assert_null(names);
}

static void larger_than_one_buffer(void **state)
{
    (void)state;
    enum { N = 100003 };
    static char data[N];
    for (int i = 0; i < N; i++)
        data[i] = (char)(i * 7);
    char *text;
    size_t n;
    assert_int_equal(dpt_fs_write_file_atomic(path_at(0, "big"), data, N, &err), DPT_OK);
    assert_int_equal(dpt_fs_read_file(path_at(0, "big"), N, &text, &n, &err), DPT_OK);
    assert_int_equal(n, N);
    assert_memory_equal(text, data, N);
    free(text);
    text = NULL;
    assert_int_equal(dpt_fs_read_file(path_at(0, "big"), N - 1, &text, &n, &err), DPT_EOVERFLOW);
    assert_null(text);
    assert_non_null(strstr(err.text, "/big'"));
}

static void read_errors(void **state)
{
    (void)state;
    char *text = NULL;
    size_t n;
    assert_int_equal(dpt_fs_read_file(path_at(0, "absent"), 10, &text, &n, &err), DPT_ENOENT);
    assert_non_null(strstr(err.text, "/absent'"));
    assert_int_equal(dpt_fs_read_file(root, 10, &text, &n, &err), DPT_EIO); /* a folder */
    assert_int_equal(dpt_fs_read_stream(root, 10, &text, &n, &err), DPT_EIO);
    assert_int_equal(dpt_fs_read_stream(path_at(0, "absent"), 10, &text, &n, &err), DPT_ENOENT);
    assert_null(text);
    assert_int_equal(dpt_fs_write_file_atomic(path_at(0, "no/such"), "x", 1, &err), DPT_ENOENT);
    assert_int_equal(mkdir(path_at(1, "folder"), 0777), 0);
    assert_int_equal(dpt_fs_write_file_atomic(path_at(1, "folder"), "x", 1, &err), DPT_EIO);
}

/* A pipe in place of a file is refused, with and without a process at its other end. */
static void pipes(void **state)
{
    (void)state;
    char *text = NULL;
    size_t n;
    assert_int_equal(mkfifo(path_at(0, "pipe"), 0666), 0);
    assert_int_equal(dpt_fs_read_file(path_at(0, "pipe"), 10, &text, &n, &err), DPT_EIO);
    assert_non_null(strstr(err.text, "/pipe' is no regular file"));
    int fd = open(path_at(0, "pipe"), O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(dpt_fs_read_file(path_at(0, "pipe"), 10, &text, &n, &err), DPT_EIO);
    assert_null(text);
    (void)close(fd);

    int ends[2];
    char name[32];
    assert_int_equal(pipe(ends), 0);
    (void)snprintf(name, sizeof name, "/dev/fd/%d", ends[0]);
    assert_int_equal(write(ends[1], "hello", 5), 5);
    (void)close(ends[1]);
    assert_int_equal(dpt_fs_read_stream(name, 10, &text, &n, &err), DPT_OK);
    assert_int_equal(n, 5);
    assert_string_equal(text, "hello");
    free(text);
    (void)close(ends[0]);
}

static void pread_and_pwrite(void **state)
{
    (void)state;
    char buf[4] = "";
    int fd = open(path_at(0, "f"), O_RDWR | O_CREAT, 0666);
    assert_true(fd >= 0);
    assert_int_equal(dpt_fs_pwrite_all(fd, "abcdef", 6, 2, "f", &err), DPT_OK);
    assert_int_equal(dpt_fs_pread_all(fd, buf, 4, 1, "f", &err), DPT_OK);
    assert_memory_equal(buf, "\0abc", 4);
    assert_int_equal(dpt_fs_pread_all(fd, buf, 0, 100, "f", &err), DPT_OK);
    assert_int_equal(dpt_fs_pread_all(fd, buf, 4, 6, "f", &err), DPT_ECORRUPT);
    assert_string_equal(err.text, "'f' ends at byte 8 where 2 more are expected");
    (void)close(fd);
    assert_int_equal(dpt_fs_pread_all(fd, buf, 4, 0, "f", &err), DPT_EIO);
    assert_int_equal(dpt_fs_pwrite_all(fd, buf, 4, 0, "f", &err), DPT_EIO);
}

static void full_disk(void **state)
{
    (void)state;
    if (access("/dev/full", W_OK) != 0)
        skip();
    assert_int_equal(dpt_fs_append("/dev/full", "x", 1, &err), DPT_ENOSPC);
    int fd = open("/dev/full", O_WRONLY);
    assert_int_equal(dpt_fs_pwrite_all(fd, "x", 1, 0, "/dev/full", &err), DPT_ENOSPC);
    (void)close(fd);
}

/* A write cut short by a file size limit: no half file under the name, no temporary one. */
static void nothing_half_written(void **state)
{
    (void)state;
    static char data[8192];
    struct rlimit old, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    small.rlim_cur = 4096;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(dpt_fs_write_file_atomic(path_at(0, "x"), "old", 3, &err), DPT_OK);
    assert_int_equal(dpt_fs_append(path_at(1, "y"), "kept", 4, &err), DPT_OK);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    enum dpt_status written = dpt_fs_write_file_atomic(path_at(0, "x"), data, sizeof data, &err);
    enum dpt_status appended = dpt_fs_append(path_at(1, "y"), data, sizeof data, NULL);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    (void)signal(SIGXFSZ, handler);
    assert_int_equal(written, DPT_ENOSPC);
    assert_int_equal(appended, DPT_ENOSPC);
    char *text;
    size_t n;
    assert_int_equal(dpt_fs_read_file(path_at(0, "x"), 10, &text, &n, &err), DPT_OK);
    assert_string_equal(text, "old");
    free(text);
    assert_int_equal(dpt_fs_read_file(path_at(1, "y"), 8192, &text, &n, &err), DPT_OK);
    assert_string_equal(text, "kept");
    free(text);
    char **names;
    assert_int_equal(dpt_fs_list(root, &names, &n, &err), DPT_OK);
    assert_int_equal(n, 2);
    dpt_fs_list_free(&names, n);
}

static void appending(void **state)
{
    (void)state;
    char *text;
    size_t n;
    assert_int_equal(dpt_fs_append(path_at(0, "log"), "a\n", 2, &err), DPT_OK);
    assert_int_equal(dpt_fs_append(path_at(0, "log"), "b\n", 2, &err), DPT_OK);
    assert_int_equal(dpt_fs_read_file(path_at(0, "log"), 10, &text, &n, &err), DPT_OK);
    assert_string_equal(text, "a\nb\n");
    free(text);
    assert_int_equal(dpt_fs_append(path_at(0, "no/log"), "a", 1, &err), DPT_ENOENT);
}

static void folders(void **state)
{
    (void)state;
    assert_int_equal(dpt_fs_mkdirs(path_at(0, "p/q//r/"), &err), DPT_OK);
    assert_int_equal(dpt_fs_mkdirs(path_at(0, "p/q/r"), &err), DPT_OK);
    assert_true(dpt_fs_exists(path_at(0, "p/q/r")));
    assert_false(dpt_fs_exists(path_at(0, "p/x")));
    assert_int_equal(dpt_fs_mkdirs("/", &err), DPT_OK);
    assert_int_equal(dpt_fs_mkdirs("", &err), DPT_EINVAL);
    assert_int_equal(dpt_fs_append(path_at(0, "file"), "", 0, &err), DPT_OK);
    assert_int_equal(dpt_fs_mkdirs(path_at(0, "file/below"), &err), DPT_EIO);
    assert_non_null(strstr(err.text, "/file': Not a directory"));
    assert_int_equal(dpt_fs_sync_dir(root, &err), DPT_OK);
    assert_int_equal(dpt_fs_sync_dir(path_at(0, "nowhere"), &err), DPT_ENOENT);
}

static void listing(void **state)
{
    (void)state;
    static const char *const sorted[] = {".h", "A", "B", "a", "b"};
    static const int made[] = {3, 0, 4, 2, 1};
    for (int i = 0; i < 5; i++)
        assert_int_equal(dpt_fs_append(path_at(0, sorted[made[i]]), "", 0, &err), DPT_OK);
    char **names;
    size_t n;
    assert_int_equal(dpt_fs_list(root, &names, &n, &err), DPT_OK);
    assert_int_equal(n, 5);
    for (int i = 0; i < 5; i++)
        assert_string_equal(names[i], sorted[i]);
    dpt_fs_list_free(&names, n);
    assert_int_equal(dpt_fs_mkdirs(path_at(0, "empty"), &err), DPT_OK);
    assert_int_equal(dpt_fs_list(path_at(0, "empty"), &names, &n, &err), DPT_OK);
    assert_int_equal(n, 0);
    dpt_fs_list_free(&names, n);
    assert_int_equal(dpt_fs_list(path_at(0, "absent"), &names, &n, &err), DPT_ENOENT);
}

static void removing(void **state)
{
    (void)state;
    assert_int_equal(dpt_fs_mkdirs(path_at(0, "keep"), &err), DPT_OK);
    assert_int_equal(dpt_fs_append(path_at(0, "keep/x"), "x", 1, &err), DPT_OK);
    assert_int_equal(dpt_fs_mkdirs(path_at(0, "t/1/2/3"), &err), DPT_OK);
    assert_int_equal(dpt_fs_append(path_at(0, "t/1/x"), "x", 1, &err), DPT_OK);
    assert_int_equal(symlink(path_at(1, "keep"), path_at(0, "t/1/link")), 0);
    assert_int_equal(symlink("nowhere", path_at(0, "t/dangling")), 0);
    assert_int_equal(dpt_fs_remove_tree(path_at(0, "t"), &err), DPT_OK);
    assert_false(dpt_fs_exists(path_at(0, "t")));
    assert_true(dpt_fs_exists(path_at(0, "keep/x"))); /* the link was not followed */
    assert_int_equal(dpt_fs_remove_tree(path_at(0, "t"), &err), DPT_OK);

    assert_int_equal(symlink(path_at(1, "keep"), path_at(0, "link")), 0);
    assert_int_equal(dpt_fs_remove_tree(path_at(0, "link"), &err), DPT_OK);
    assert_true(dpt_fs_exists(path_at(0, "keep/x")));
}

/* One of several that remove the same tree. */
struct remover {
    pthread_barrier_t *begin;
    const char *path;
    enum dpt_status status;
    struct dpt_err err;
};

static void *remove_at_once(void *arg)
{
    struct remover *r = arg;
    (void)pthread_barrier_wait(r->begin);
    r->status = dpt_fs_remove_tree(r->path, &r->err);
    return NULL;
}

static void removed_by_several(void **state)
{
    (void)state;
    enum { REMOVERS = 3, ROUNDS = 50, FOLDERS = 5 };
    pthread_barrier_t begin;
    assert_int_equal(pthread_barrier_init(&begin, NULL, REMOVERS), 0);
    for (int round = 0; round < ROUNDS; round++) {
        char name[32];
        for (int i = 0; i < FOLDERS; i++) {
            (void)snprintf(name, sizeof name, "t/%d/inner", i);
            assert_int_equal(dpt_fs_mkdirs(path_at(0, name), &err), DPT_OK);
        }
        struct remover removers[REMOVERS];
        pthread_t threads[REMOVERS];
        for (int i = 0; i < REMOVERS; i++) {
            removers[i] = (struct remover){.begin = &begin, .path = path_at(1, "t")};
            assert_int_equal(pthread_create(&threads[i], NULL, remove_at_once, &removers[i]), 0);
        }
        for (int i = 0; i < REMOVERS; i++)
            assert_int_equal(pthread_join(threads[i], NULL), 0);
        for (int i = 0; i < REMOVERS; i++)
            if (removers[i].status != DPT_OK)
                fail_msg("round %d: %s", round, removers[i].err.text);
        assert_false(dpt_fs_exists(path_at(0, "t")));
    }
    (void)pthread_barrier_destroy(&begin);
}

static void too_deep_to_remove(void **state)
{
    (void)state;
    const char *deep = "d/1/2/3/4/5/6/7/8/9/10/11/12/13/14/15/16";
    assert_int_equal(dpt_fs_mkdirs(path_at(0, deep), &err), DPT_OK);
    assert_int_equal(dpt_fs_remove_tree(path_at(0, "d"), &err), DPT_EOVERFLOW);
    assert_true(dpt_fs_exists(path_at(0, deep)));
    assert_int_equal(rmdir(path_at(0, deep)), 0);
    assert_int_equal(dpt_fs_remove_tree(path_at(0, "d"), &err), DPT_OK);
}

static void joining(void **state)
{
    (void)state;
    char path[8] = "before";
    assert_int_equal(dpt_fs_join("abc", "xyz", path, 8, &err), DPT_OK);
    assert_string_equal(path, "abc/xyz");
    assert_int_equal(dpt_fs_join("abc/", "xyz", path, 8, &err), DPT_OK);
    assert_string_equal(path, "abc/xyz");
    assert_int_equal(dpt_fs_join("", "xyz", path, 8, &err), DPT_OK);
    assert_string_equal(path, "xyz");
    assert_int_equal(dpt_fs_join("abcd", "wxyz", path, 8, &err), DPT_EOVERFLOW);
    assert_string_equal(path, "xyz");
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup_fs, teardown_fs)

int main(void)
{
    const struct CMUnitTest tests[] = {TEST(write_and_read_back),
                                       TEST(larger_than_one_buffer),
                                       TEST(read_errors),
                                       TEST(pipes),
                                       TEST(pread_and_pwrite),
                                       TEST(full_disk),
                                       TEST(nothing_half_written),
                                       TEST(appending),
                                       TEST(folders),
                                       TEST(listing),
                                       TEST(removing),
                                       TEST(removed_by_several),
                                       TEST(too_deep_to_remove),
                                       TEST(joining)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
