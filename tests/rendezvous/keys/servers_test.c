/* The file `servers`: which key a server has, and which one it has no more. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/fs.h"
#include "rendezvous/keys/servers.h"
#include "tests/tmp.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

/* Keys of 64 equal digits. */
#define ONES   "1111111111111111111111111111111111111111111111111111111111111111"
#define TWOS   "2222222222222222222222222222222222222222222222222222222222222222"
#define THREES "3333333333333333333333333333333333333333333333333333333333333333"

static char dir[96];
static struct dpt_key_folder folder;
static struct dpt_key one, two, three;

static int setup(void **state)
{
    (void)state;
    struct dpt_err err;
    if (!test_make_dir(dir, sizeof dir, "servers") ||
        dpt_key_folder_open(dir, &folder, &err) != DPT_OK)
        return -1;
    memset(one.bytes, 0x11, sizeof one.bytes);
    memset(two.bytes, 0x22, sizeof two.bytes);
    memset(three.bytes, 0x33, sizeof three.bytes);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    struct dpt_err err;
    return dpt_fs_remove_tree(dir, &err) == DPT_OK ? 0 : -1;
}

static char *read_file(void)
{
    char *text = NULL;
    struct dpt_err err;
    assert_int_equal(dpt_servers_read(&folder, &text, &err), DPT_OK);
    return text;
}

static void write_file(const char *text)
{
    struct dpt_err err;
    assert_int_equal(dpt_key_folder_replace(&folder, "servers", text, &err), DPT_OK);
}

static void expect_file(const char *wanted)
{
    char *text = read_file();
    assert_string_equal(text, wanted);
    free(text);
}

static void note(const char *endpoint, const struct dpt_key *key, const struct dpt_key *next)
{
    struct dpt_err err;
    if (dpt_servers_note(&folder, endpoint, key, next, &err) != DPT_OK)
        fail_msg("%s", err.text);
}

static void retire(const char *endpoint, const struct dpt_key *earlier, const struct dpt_key *key)
{
    struct dpt_err err;
    if (dpt_servers_retire(&folder, endpoint, earlier, key, &err) != DPT_OK)
        fail_msg("%s", err.text);
}

static void last_line_of_an_endpoint_counts(void **state)
{
    (void)state;
    struct dpt_noted_server found;
    static const char text[] = "# a comment\n" ONES " h:1\n" TWOS " h:1\n" TWOS " h:12\n" ONES
                               " g:1\n" TWOS " g:1 next\n" ONES " f:1\n" ONES " f:1 next\n" TWOS
                               " e:1 next\nretired " THREES " " TWOS "\nretired " THREES;
    dpt_servers_find(text, "h:1", &found);
    assert_true(found.found && !found.has_next && dpt_key_equal(&found.key, &two));
    dpt_servers_find(text, "g:1", &found);
    assert_true(found.found && found.has_next);
    assert_true(dpt_key_equal(&found.key, &one) && dpt_key_equal(&found.next, &two));
    dpt_servers_find(text, "f:1", &found); /* the next key is in force already */
    assert_true(found.found && !found.has_next);
    dpt_servers_find(text, "e:1", &found);
    assert_false(found.found || found.has_next);
    assert_true(dpt_servers_has_key(text, &one) && !dpt_servers_has_key(text, &three));
    const struct dpt_key latest = dpt_servers_latest(text, &three),
                         same = dpt_servers_latest(text, &one);
    assert_true(dpt_key_equal(&latest, &two) && dpt_key_equal(&same, &one));
}

static void endpoint_has_one_key_and_one_next(void **state)
{
    (void)state;
    write_file("# mine"); /* without a newline */
    note("h:1", &one, NULL);
    note("g:1", &one, NULL);
    note("h:1", &one, &two);
    expect_file("# mine\n" ONES " g:1\n" ONES " h:1\n" TWOS " h:1 next\n");
    note("h:1", &one, &three); /* another one was announced */
    expect_file("# mine\n" ONES " g:1\n" ONES " h:1\n" THREES " h:1 next\n");
    note("h:1", &two, NULL); /* another server is there now, and has admitted the machine */
    expect_file("# mine\n" ONES " g:1\n" TWOS " h:1\n");
}

/* All names of the server get its later key, and after a second change the newest one. */
static void retired_key_goes_everywhere(void **state)
{
    (void)state;
    note("g:1", &one, &two);
    note("h:1", &one, &two);
    retire("h:1", &one, &two);
    expect_file(TWOS " g:1\n" TWOS " h:1\nretired " ONES " " TWOS "\n");
    retire("h:1", &one, &two); /* another process of this machine */
    expect_file(TWOS " g:1\n" TWOS " h:1\nretired " ONES " " TWOS "\n");
    retire("h:1", &two, &three);
    static const char last[] =
        THREES " g:1\nretired " ONES " " THREES "\n" THREES " h:1\nretired " TWOS " " THREES "\n";
    expect_file(last);
    note("h:1", &two, NULL); /* a process that is late changes nothing */
    retire("h:1", &one, &two);
    expect_file(last);
    retire("h:1", &three, &one); /* a retired key does not come back */
    expect_file(last);
}

static void file_does_not_grow_without_end(void **state)
{
    (void)state;
    struct dpt_key earlier = {{0}}, key = {{0}};
    enum { LINE = DPT_KEY_HEX_BYTES + 16, RETIRED_LINE = 2 * DPT_KEY_HEX_BYTES + 8 };
    static char lines[(DPT_SERVERS_ENDPOINTS_MAX + 2) * LINE +
                      (DPT_SERVERS_RETIRED_MAX + 2) * RETIRED_LINE + 1];
    char *to = lines;
    for (int i = 0; i < DPT_SERVERS_ENDPOINTS_MAX + 2; i++)
        to += snprintf(to, LINE, ONES " h:%d\n", i + 1);
    for (int i = 0; i < DPT_SERVERS_RETIRED_MAX + 2; i++)
        to += snprintf(to, RETIRED_LINE + 1, "retired %064x " TWOS "\n", (unsigned)i + 1);
    write_file(lines);
    note("h:1027", &one, NULL);
    key.bytes[0] = 1;
    retire("h:9", &earlier, &key);
    char *text = read_file();
    size_t keys = 0, retired = 0;
    for (const char *at = text; *at != '\0'; at = strchr(at, '\n') + 1) {
        keys += *at != 'r';
        retired += *at == 'r';
    }
    assert_in_range(keys, DPT_SERVERS_ENDPOINTS_MAX - 2, DPT_SERVERS_ENDPOINTS_MAX);
    assert_int_equal(retired, DPT_SERVERS_RETIRED_MAX);
    struct dpt_noted_server found;
    dpt_servers_find(text, "h:3", &found); /* the oldest are gone */
    assert_false(found.found);
    dpt_servers_find(text, "h:1027", &found);
    assert_true(found.found);
    dpt_servers_find(text, "h:9", &found);
    assert_true(found.found && dpt_key_equal(&found.key, &key));
    free(text);
}

/* Another process holds the lock: the change fails with a clear line, and nothing is written. */
static void locked_folder_is_named(void **state)
{
    (void)state;
    struct dpt_err err;
    char path[160];
    (void)snprintf(path, sizeof path, "%s/lock", dir);
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    assert_int_equal(dpt_servers_note(&folder, "h:1", &one, NULL, &err), DPT_ECONFIG);
    assert_non_null(strstr(err.text, "is locked by another process of dpt"));
    expect_file("");
    close(fd);
    note("h:1", &one, NULL);
    expect_file(ONES " h:1\n");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink("servers", path), 0);
    assert_int_equal(dpt_servers_note(&folder, "h:1", &two, NULL, &err), DPT_ECONFIG);
    assert_non_null(strstr(err.text, "/lock'"));
}

int main(void)
{
#define CASE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(last_line_of_an_endpoint_counts), CASE(endpoint_has_one_key_and_one_next),
        CASE(retired_key_goes_everywhere),     CASE(file_does_not_grow_without_end),
        CASE(locked_folder_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
