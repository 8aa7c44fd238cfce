/* The key folder: created for its user alone, and refused when others have access. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/fs.h"
#include "rendezvous/keys/folder.h"
#include "tests/tmp.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char dir[96], keys[128];
static struct dpt_key_folder folder;

static int setup(void **state)
{
    (void)state;
    struct dpt_err err;
    if (!test_make_dir(dir, sizeof dir, "keys"))
        return -1;
    (void)snprintf(keys, sizeof keys, "%s/parent/keys", dir);
    return dpt_key_folder_open(keys, &folder, &err) == DPT_OK ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    struct dpt_err err;
    return dpt_fs_remove_tree(dir, &err) == DPT_OK ? 0 : -1;
}

static unsigned mode_of(const char *path)
{
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    return st.st_mode & 07777;
}

static void path_in(const char *name, char ret[256])
{
    (void)snprintf(ret, 256, "%s/%s", keys, name);
}

static void folder_is_of_its_user_alone(void **state)
{
    (void)state;
    struct dpt_key_folder again;
    struct dpt_err err;
    assert_string_equal(folder.path, keys);
    assert_int_equal(mode_of(keys), 0700);
    assert_int_equal(chmod(keys, 0750), 0);
    assert_int_equal(dpt_key_folder_open(keys, &again, &err), DPT_ECONFIG);
    assert_non_null(strstr(err.text, "has mode 0750"));
    assert_non_null(strstr(err.text, "chmod 700"));
    assert_int_equal(chmod(keys, 0700), 0);
    assert_int_equal(dpt_key_folder_open(keys, &again, &err), DPT_OK);
}

static void folder_comes_from_environment(void **state)
{
    (void)state;
    struct dpt_key_folder found;
    struct dpt_err err;
    char other[160], file[160];
    (void)snprintf(other, sizeof other, "%s/other///", dir);
    assert_int_equal(setenv("DPT_KEY_DIR", other, 1), 0);
    assert_int_equal(dpt_key_folder_open(NULL, &found, &err), DPT_OK);
    other[strlen(other) - 3] = '\0';
    assert_string_equal(found.path, other);
    assert_int_equal(unsetenv("DPT_KEY_DIR"), 0);
    assert_int_equal(setenv("HOME", dir, 1), 0);
    assert_int_equal(dpt_key_folder_open(NULL, &found, &err), DPT_OK);
    assert_non_null(strstr(found.path, "/.dpt"));
    assert_int_equal(unsetenv("HOME"), 0);
    assert_int_equal(dpt_key_folder_open(NULL, &found, &err), DPT_ECONFIG);
    assert_non_null(strstr(err.text, "HOME is not set"));
    (void)snprintf(file, sizeof file, "%s/file", dir);
    assert_int_equal(dpt_fs_write_file_atomic(file, "x", 1, &err), DPT_OK);
    assert_int_equal(dpt_key_folder_open(file, &found, &err), DPT_ECONFIG);
    assert_non_null(strstr(err.text, "is no folder"));
    (void)snprintf(file, sizeof file, "%s/file/keys", dir);
    assert_int_equal(dpt_key_folder_open(file, &found, &err), DPT_ECONFIG);
    assert_non_null(strstr(err.text, "--key-dir"));
}

static void secret_is_written_once(void **state)
{
    (void)state;
    const struct dpt_key fresh = {{1, 2, 3}}, later = {{9}};
    struct dpt_key key;
    struct dpt_err err;
    char path[256];
    path_in("machine.key", path);
    assert_int_equal(dpt_key_folder_secret(&folder, "machine.key", &fresh, &key, &err), DPT_OK);
    assert_true(dpt_key_equal(&key, &fresh));
    assert_int_equal(mode_of(path), 0600);
    assert_int_equal(dpt_key_folder_secret(&folder, "machine.key", &later, &key, &err), DPT_OK);
    assert_true(dpt_key_equal(&key, &fresh));
}

static void bad_key_files_are_refused(void **state)
{
    (void)state;
    static const char *const texts[] = {"", "hello\n", "dpt secret key 1\n12\n"};
    const struct dpt_key fresh = {{1}};
    struct dpt_key key = {{7}};
    struct dpt_err err;
    char path[256];
    path_in("server.key", path);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        assert_int_equal(dpt_key_folder_replace(&folder, "server.key", texts[i], &err), DPT_OK);
        assert_int_equal(dpt_key_folder_secret(&folder, "server.key", &fresh, &key, &err),
                         DPT_ECONFIG);
        assert_non_null(strstr(err.text, "holds no secret key"));
        assert_int_equal(key.bytes[0], 7);
    }
    assert_int_equal(chmod(path, 0644), 0);
    assert_int_equal(dpt_key_folder_secret(&folder, "server.key", &fresh, &key, &err), DPT_ECONFIG);
    assert_non_null(strstr(err.text, "has mode 0644"));
    assert_non_null(strstr(err.text, "chmod 600"));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(dpt_key_folder_secret(&folder, "server.key", &fresh, &key, &err), DPT_ECONFIG);
    assert_non_null(strstr(err.text, "it is no regular file. Make it a regular file of this user"));
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(symlink("/dev/null", path), 0);
    assert_int_equal(dpt_key_folder_secret(&folder, "server.key", &fresh, &key, &err), DPT_ECONFIG);
    assert_non_null(strstr(err.text, "it is a symbolic link. Make it a regular file"));
}

/* As after a start by sudo: the folder is this user's, and a file in it is root's. */
static void file_of_another_user_is_refused(void **state)
{
    (void)state;
    enum { USER = 12345 };
    const struct dpt_key fresh = {{1}};
    struct dpt_key key;
    struct dpt_err err;
    if (geteuid() != 0)
        skip();
    assert_int_equal(dpt_key_folder_secret(&folder, "machine.key", &fresh, &key, &err), DPT_OK);
    assert_int_equal(chmod(dir, 0711), 0);
    assert_int_equal(chown(keys, USER, (gid_t)-1), 0);
    assert_int_equal(seteuid(USER), 0);
    const enum dpt_status status =
        dpt_key_folder_secret(&folder, "machine.key", &fresh, &key, &err);
    assert_int_equal(seteuid(0), 0);
    assert_int_equal(status, DPT_ECONFIG);
    assert_non_null(strstr(err.text, "/machine.key' cannot be read: Permission denied. Make it a"));
    assert_non_null(strstr(err.text, "of this user (12345) with mode 0600"));
    assert_int_equal(chown(keys, 0, (gid_t)-1), 0);
}

static void removed_folder_is_said(void **state)
{
    (void)state;
    struct dpt_err err;
    assert_int_equal(rmdir(keys), 0);
    assert_int_equal(dpt_key_folder_replace(&folder, "token", "x", &err), DPT_ECONFIG);
    assert_non_null(strstr(err.text, "create a file in the key folder '"));
    assert_non_null(strstr(err.text, "name another folder with --key-dir or $DPT_KEY_DIR"));
}

static void foreign_folder_is_refused(void **state)
{
    (void)state;
    struct dpt_key_folder other;
    struct dpt_err err;
    if (geteuid() != 0)
        skip();
    assert_int_equal(chown(keys, 12345, (gid_t)-1), 0);
    assert_int_equal(dpt_key_folder_open(keys, &other, &err), DPT_ECONFIG);
    assert_non_null(strstr(err.text, "belongs to user 12345"));
    assert_int_equal(chown(keys, 0, (gid_t)-1), 0);
}

static void lines_are_appended(void **state)
{
    (void)state;
    struct dpt_key_file_state first, second;
    struct dpt_err err;
    char *text = NULL, path[256], line[2048];
    path_in("machines", path);
    assert_int_equal(dpt_key_folder_read(&folder, "machines", &text, &first, &err), DPT_OK);
    assert_string_equal(text, "");
    assert_int_equal(first.inode, 0);
    free(text);
    assert_int_equal(dpt_key_folder_append(&folder, "machines", "one", NULL, &err), DPT_OK);
    assert_int_equal(mode_of(path), 0600);
    assert_int_equal(dpt_fs_append(path, "by hand", 7, &err), DPT_OK); /* without a newline */
    assert_int_equal(dpt_key_folder_append(&folder, "machines", "three", NULL, &err), DPT_OK);
    assert_int_equal(dpt_key_folder_read(&folder, "machines", &text, &second, &err), DPT_OK);
    assert_string_equal(text, "one\nby hand\nthree\n");
    free(text);
    assert_int_equal(second.bytes, strlen("one\nby hand\nthree\n"));
    first = dpt_key_folder_state(&folder, "machines");
    assert_memory_equal(&first, &second, sizeof first);
    memset(line, 'x', sizeof line);
    line[sizeof line - 1] = '\0';
    assert_int_equal(dpt_key_folder_append(&folder, "machines", line, NULL, &err), DPT_EINVAL);
}

/* A writer that has read the file knows its state after its line, unless another one has changed
 * it. */
static void state_follows_own_lines_only(void **state)
{
    (void)state;
    struct dpt_key_file_state own, now;
    struct dpt_err err;
    char path[256];
    path_in("machines", path);
    own = dpt_key_folder_state(&folder, "machines"); /* no file */
    assert_int_equal(dpt_key_folder_append(&folder, "machines", "one", &own, &err), DPT_OK);
    assert_int_equal(own.inode, 0);
    own = dpt_key_folder_state(&folder, "machines");
    for (int i = 0; i < 9; i++) {
        assert_int_equal(dpt_key_folder_append(&folder, "machines", "line", &own, &err), DPT_OK);
        now = dpt_key_folder_state(&folder, "machines");
        assert_true(own.inode != 0 && dpt_key_folder_is_same(own, now));
    }
    assert_int_equal(dpt_fs_append(path, "by hand\n", 8, &err), DPT_OK);
    assert_int_equal(dpt_key_folder_append(&folder, "machines", "line", &own, &err), DPT_OK);
    assert_int_equal(own.inode, 0);
    own = dpt_key_folder_state(&folder, "machines");
    const int fd = open(path, O_WRONLY | O_CLOEXEC); /* by hand, of the same size */
    assert_true(fd >= 0);
    assert_int_equal(dpt_fs_pwrite_all(fd, "two", 3, 0, path, &err), DPT_OK);
    assert_int_equal(close(fd), 0);
    assert_int_equal(dpt_key_folder_append(&folder, "machines", "line", &own, &err), DPT_OK);
    assert_int_equal(own.inode, 0);
}

static atomic_bool is_over;

static void *append_by_hand(void *path)
{
    struct dpt_err err;
    while (!atomic_load(&is_over))
        DPT_ASSERT(dpt_fs_append(path, "#\n", 2, &err) == DPT_OK);
    return NULL;
}

/* Another writer appends at any time: a state that follows has no line but the own one more. */
static void state_follows_no_line_of_another_writer(void **state)
{
    (void)state;
    enum { TIMES = 300, BYTES = sizeof "line\n" - 1 };
    struct dpt_err err;
    char path[256];
    pthread_t writer;
    path_in("machines", path);
    assert_int_equal(dpt_key_folder_append(&folder, "machines", "line", NULL, &err), DPT_OK);
    atomic_store(&is_over, false);
    assert_int_equal(pthread_create(&writer, NULL, append_by_hand, path), 0);
    bool holds = true; /* asserted when the writer, which uses `path`, has ended */
    for (int i = 0; i < TIMES && holds; i++) {
        const struct dpt_key_file_state before = dpt_key_folder_state(&folder, "machines");
        struct dpt_key_file_state own = before;
        holds = dpt_key_folder_append(&folder, "machines", "line", &own, &err) == DPT_OK &&
                (own.inode == 0 || own.bytes == before.bytes + BYTES);
    }
    atomic_store(&is_over, true);
    assert_int_equal(pthread_join(writer, NULL), 0);
    assert_true(holds);
}

static void file_gets_another_name_and_time(void **state)
{
    (void)state;
    struct dpt_err err;
    char *text = NULL;
    assert_int_equal(dpt_key_folder_rename(&folder, "a", "b", 0, &err), DPT_ECONFIG);
    assert_non_null(strstr(err.text, "rename"));
    assert_int_equal(dpt_key_folder_rename(&folder, "a", "b", 5, &err), DPT_ECONFIG);
    assert_non_null(strstr(err.text, "set the time"));
    assert_int_equal(dpt_key_folder_replace(&folder, "a", "1", &err), DPT_OK);
    assert_int_equal(dpt_key_folder_replace(&folder, "b", "2", &err), DPT_OK);
    assert_int_equal(dpt_key_folder_rename(&folder, "a", "b", 1234567890, &err), DPT_OK);
    assert_int_equal(dpt_key_folder_state(&folder, "b").modified_ns,
                     INT64_C(1234567890) * 1000000000);
    assert_int_equal(dpt_key_folder_state(&folder, "a").inode, 0);
    assert_int_equal(dpt_key_folder_read(&folder, "b", &text, NULL, &err), DPT_OK);
    assert_string_equal(text, "1");
    free(text);
}

/* The name is taken by a folder: nothing is written, and no temporary file stays. */
static void failed_write_leaves_no_file(void **state)
{
    (void)state;
    const struct dpt_key fresh = {{1}};
    struct dpt_key key;
    struct dpt_err err;
    char path[256], **names = NULL;
    size_t n = 0;
    path_in("machines", path);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(dpt_key_folder_replace(&folder, "machines", "x", &err), DPT_ECONFIG);
    assert_non_null(strstr(err.text, "create '"));
    assert_int_equal(dpt_key_folder_secret(&folder, "machine.key", &fresh, &key, &err), DPT_OK);
    assert_int_equal(dpt_fs_list(keys, &names, &n, &err), DPT_OK);
    assert_int_equal(n, 2);
    assert_string_equal(names[0], "machine.key");
    dpt_fs_list_free(&names, n);
    assert_int_equal(rmdir(path), 0);
}

int main(void)
{
#define CASE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(folder_is_of_its_user_alone),     CASE(folder_comes_from_environment),
        CASE(secret_is_written_once),          CASE(bad_key_files_are_refused),
        CASE(foreign_folder_is_refused),       CASE(lines_are_appended),
        CASE(file_of_another_user_is_refused), CASE(removed_folder_is_said),
        CASE(file_gets_another_name_and_time), CASE(failed_write_leaves_no_file),
        CASE(state_follows_own_lines_only),    CASE(state_follows_no_line_of_another_writer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
