/* Who a node is, which folders are one, and which address peers dial. */
#include "base/fs.h"
#include "tests/tmp.h"
#include "worker/agent/identity.h"
#include "worker/agent/node_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

static void test_node_ids(void **state)
{
    (void)state;
    char a[DPT_CONFIG_NAME_BYTES], b[DPT_CONFIG_NAME_BYTES], longest[80];
    struct dpt_err err;
    assert_int_equal(dpt_random_hex(6, a, &err), DPT_OK);
    assert_int_equal(dpt_random_hex(6, b, &err), DPT_OK);
    assert_string_not_equal(a, b);
    assert_int_equal(dpt_node_id_check(a, &err), DPT_OK);
    assert_int_equal(dpt_node_id_check("gpu-07.rack_3", &err), DPT_OK);
    memset(longest, 'n', sizeof longest);
    longest[DPT_CONFIG_NAME_BYTES] = '\0';
    const char *bad[] = {"", ".", "..", "-", "--x", "_", "-a", "a/b", "a b", "ü", longest};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(dpt_node_id_check(bad[i], &err), DPT_ECONFIG);
    longest[DPT_CONFIG_NAME_BYTES - 1] = '\0';
    assert_int_equal(dpt_node_id_check(longest, &err), DPT_OK);
}

static void test_host_key(void **state)
{
    (void)state;
    char a[DPT_HOST_KEY_BYTES], b[DPT_HOST_KEY_BYTES], c[DPT_HOST_KEY_BYTES];
    struct dpt_err err;
    assert_int_equal(dpt_host_key("", a, &err), DPT_OK);
    assert_int_equal(dpt_host_key("", b, &err), DPT_OK);
    assert_int_equal(dpt_host_key("left", c, &err), DPT_OK);
    assert_string_equal(a, b);
    assert_string_not_equal(a, c);
    assert_int_equal(strlen(a), DPT_HOST_KEY_BYTES - 1);
}

static char made[64]; /* the running test's folder; "": none */

static void make_dir(char dir[64])
{
    assert_true(test_make_dir(made, sizeof made, "identity"));
    memcpy(dir, made, sizeof made);
}

static int remove_dir(void **state)
{
    (void)state;
    struct dpt_err err;
    enum dpt_status status = made[0] == '\0' ? DPT_OK : dpt_fs_remove_tree(made, &err);
    made[0] = '\0';
    return status == DPT_OK ? 0 : -1;
}

static void test_dir_id(void **state)
{
    (void)state;
    char dir[64], deep[96], other[96], a[DPT_DIR_ID_BYTES], b[DPT_DIR_ID_BYTES];
    struct dpt_err err;
    make_dir(dir);
    (void)snprintf(deep, sizeof deep, "%s/not/there/yet", dir);
    (void)snprintf(other, sizeof other, "%s/other", dir);
    assert_int_equal(dpt_dir_id(deep, a, &err), DPT_OK);
    assert_int_equal(dpt_dir_id(deep, b, &err), DPT_OK);
    assert_string_equal(a, b);
    assert_int_equal(dpt_dir_id(other, b, &err), DPT_OK);
    assert_string_not_equal(a, b);
    char **names;
    size_t n;
    assert_int_equal(dpt_fs_list(deep, &names, &n, &err), DPT_OK);
    assert_int_equal(n, 1); /* no temporary file is left */
    dpt_fs_list_free(&names, n);
}

static void test_damaged_dir_id(void **state)
{
    (void)state;
    static const char *const damaged[] = {"", "short\n", "0123456789abcdef0123456789abcdef",
                                          "0123456789ABCDEF0123456789abcdef\n"};
    char dir[64], path[96], id[DPT_DIR_ID_BYTES];
    struct dpt_err err;
    make_dir(dir);
    (void)snprintf(path, sizeof path, "%s/.dpt-dir-id", dir);
    for (size_t i = 0; i < sizeof damaged / sizeof damaged[0]; i++) {
        assert_int_equal(dpt_fs_write_file_atomic(path, damaged[i], strlen(damaged[i]), &err),
                         DPT_OK);
        assert_int_equal(dpt_dir_id(dir, id, &err), DPT_ECORRUPT);
        assert_non_null(strstr(err.text, path));
    }
    assert_int_not_equal(dpt_dir_id(path, id, &err), DPT_OK); /* a file, not a folder */
}

enum { RACERS = 8 };
struct racer {
    pthread_barrier_t *start;
    const char *dir;
    char id[DPT_DIR_ID_BYTES];
    enum dpt_status status;
};

static void *race(void *arg)
{
    struct racer *racer = arg;
    struct dpt_err err;
    (void)pthread_barrier_wait(racer->start);
    racer->status = dpt_dir_id(racer->dir, racer->id, &err);
    return NULL;
}

static void test_dir_id_race(void **state)
{
    (void)state;
    char dir[64];
    make_dir(dir);
    pthread_barrier_t start;
    pthread_t threads[RACERS];
    struct racer racers[RACERS];
    assert_int_equal(pthread_barrier_init(&start, NULL, RACERS), 0);
    for (int i = 0; i < RACERS; i++) {
        racers[i] = (struct racer){.start = &start, .dir = dir};
        assert_int_equal(pthread_create(&threads[i], NULL, race, &racers[i]), 0);
    }
    for (int i = 0; i < RACERS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (int i = 0; i < RACERS; i++) {
        assert_int_equal(racers[i].status, DPT_OK);
        assert_string_equal(racers[i].id, racers[0].id);
    }
    pthread_barrier_destroy(&start);
}

enum { WALL_MS = 1000000 };

static struct dpt_identity identity_at(const char *dir, int64_t wall_ms)
{
    struct dpt_identity identity;
    struct dpt_err err;
    if (dpt_identity_open(dir, "a", wall_ms, &identity, &err) != DPT_OK)
        fail_msg("%s", err.text);
    return identity;
}

/* A clock that is set back or stopped does not lower an incarnation. */
static void test_incarnations_of_any_clock(void **state)
{
    (void)state;
    static const int64_t clocks_ms[] = {
        WALL_MS, WALL_MS + 7, WALL_MS + 7, WALL_MS - 3600000, 0, -5, INT64_C(4000000000000)};
    char dir[64];
    make_dir(dir);
    struct dpt_identity first = {.fd = -1}, last = {.fd = -1};
    for (size_t i = 0; i < sizeof clocks_ms / sizeof clocks_ms[0]; i++) {
        struct dpt_identity identity = identity_at(dir, clocks_ms[i]);
        /* Leaves room for the incarnations that the earlier process used when it joined again. */
        assert_true(i == 0 || identity.incarnation > last.incarnation + 1000);
        first = i == 0 ? identity : first;
        last = identity;
        assert_memory_equal(identity.secret, first.secret, sizeof first.secret);
        dpt_identity_fini(&identity);
        assert_int_equal(identity.fd, -1);
    }
    assert_int_equal(first.incarnation, WALL_MS);
    assert_int_equal(last.incarnation, clocks_ms[6]); /* a clock that is ahead is followed */
}

/* Another process of the id comes and goes between this one's open and its lock. */
static const char *other_start_dir; /* NULL: none does */
static struct dpt_identity other_start;

int flock(int fd, int operation)
{
    const char *dir = other_start_dir;
    other_start_dir = NULL;
    if (dir != NULL) {
        other_start = identity_at(dir, WALL_MS);
        dpt_identity_fini(&other_start);
    }
    return (int)syscall(SYS_flock, fd, operation);
}

static void test_start_beside_a_start(void **state)
{
    (void)state;
    char dir[64];
    make_dir(dir);
    for (int i = 0; i < 2; i++) { /* of a folder without the id, then of one that has it */
        other_start_dir = dir;
        struct dpt_identity identity = identity_at(dir, WALL_MS);
        assert_null(other_start_dir);
        assert_memory_equal(identity.secret, other_start.secret, sizeof other_start.secret);
        assert_true(identity.incarnation > other_start.incarnation + 1000);
        dpt_identity_fini(&identity);
    }
}

static void test_secrets_differ(void **state)
{
    (void)state;
    char dir[64], other[96], path[96];
    struct dpt_err err;
    struct dpt_identity drawn[2], opened[2];
    struct stat info;
    make_dir(dir);
    (void)snprintf(other, sizeof other, "%s/other", dir);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(dpt_identity_draw(WALL_MS, &drawn[i], &err), DPT_OK);
        assert_int_equal(drawn[i].incarnation, WALL_MS);
        opened[i] = identity_at(i == 0 ? dir : other, WALL_MS);
    }
    assert_memory_not_equal(drawn[0].secret, drawn[1].secret, sizeof drawn[0].secret);
    assert_memory_not_equal(opened[0].secret, opened[1].secret, sizeof opened[0].secret);
    (void)snprintf(path, sizeof path, "%s/node-a/identity", dir);
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600); /* readable by its owner only */
    for (int i = 0; i < 2; i++)
        dpt_identity_fini(&opened[i]);
}

/* One process of an id in a folder; the other process learns which one it is. */
static void test_identity_is_held(void **state)
{
    (void)state;
    char dir[64], process[32];
    struct dpt_err err;
    struct dpt_identity held, second;
    make_dir(dir);
    held = identity_at(dir, WALL_MS);
    assert_int_equal(dpt_identity_open(dir, "a", WALL_MS, &second, &err), DPT_ECONFIG);
    (void)snprintf(process, sizeof process, "process %ld on ", (long)getpid());
    assert_non_null(strstr(err.text, process));
    assert_non_null(strstr(err.text, "give this one another --node-id"));
    assert_int_equal(dpt_identity_open(dir, "b", WALL_MS, &second, &err), DPT_OK);
    dpt_identity_fini(&second);
    dpt_identity_fini(&held);
    held = identity_at(dir, WALL_MS);
    dpt_identity_fini(&held);
}

static void test_damaged_identity(void **state)
{
    (void)state;
    static const char *const damaged[] = {
        "short\n",
        "0123456789abcdef0123456789abcdef\n",
        "0123456789abcdef0123456789abcdeX 00000000000000000007 1 on h\n",
        "0123456789abcdef0123456789abcdef 7 1 on h\n",
        "0123456789abcdef0123456789abcdef 00000000000000000000 1 on h\n",
        "0123456789abcdef0123456789abcdef 18446744073709551615 1 on h\n",
    };
    char dir[64], path[96];
    struct dpt_err err;
    struct dpt_identity identity;
    make_dir(dir);
    identity = identity_at(dir, WALL_MS);
    dpt_identity_fini(&identity);
    (void)snprintf(path, sizeof path, "%s/node-a/identity", dir);
    for (size_t i = 0; i < sizeof damaged / sizeof damaged[0]; i++) {
        assert_int_equal(dpt_fs_write_file_atomic(path, damaged[i], strlen(damaged[i]), &err),
                         DPT_OK);
        if (dpt_identity_open(dir, "a", WALL_MS, &identity, &err) != DPT_ECORRUPT)
            fail_msg("taken: %s", damaged[i]);
        assert_non_null(strstr(err.text, path));
    }
    assert_int_equal(dpt_fs_write_file_atomic(path, "", 0, &err), DPT_OK); /* begun, not written */
    identity = identity_at(dir, WALL_MS);
    dpt_identity_fini(&identity);
    assert_int_not_equal(dpt_identity_open(path, "a", WALL_MS, &identity, &err), DPT_OK);
}

static void test_address_of_interface(void **state)
{
    (void)state;
    char address[DPT_ADDRESS_BYTES];
    struct dpt_err err;
    assert_int_equal(dpt_node_address_find("lo", "no-host:1", address, &err), DPT_OK);
    assert_string_equal(address, "127.0.0.1");
    assert_int_equal(dpt_node_address_find("nowhere0", "127.0.0.1:1", address, &err), DPT_ECONFIG);
    assert_non_null(strstr(err.text, "nowhere0"));
    assert_non_null(strstr(err.text, "lo"));
}

/* Listens on a free port of an address. */
static int listen_on(uint32_t address, int *ret_port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(address)};
    socklen_t bytes = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(fd, 8), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &bytes), 0);
    *ret_port = ntohs(at.sin_port);
    return fd;
}

static void test_address_of_route(void **state)
{
    (void)state;
    char address[DPT_ADDRESS_BYTES], endpoint[64];
    struct dpt_err err;
    int port;
    int fd = listen_on(INADDR_LOOPBACK, &port); /* a server that no other node reaches */
    (void)snprintf(endpoint, sizeof endpoint, "127.0.0.1:%d", port);
    assert_int_equal(dpt_node_address_find("", endpoint, address, &err), DPT_OK);
    assert_string_equal(address, "127.0.0.1");
    close(fd);
    fd = listen_on(INADDR_ANY,
                   &port); /* one that others may reach: our own address, if we have one */
    (void)snprintf(endpoint, sizeof endpoint, "localhost:%d", port);
    assert_int_equal(dpt_node_address_find("", endpoint, address, &err), DPT_OK);
    struct in6_addr ignored;
    assert_true(inet_pton(AF_INET, address, &ignored) == 1 ||
                inet_pton(AF_INET6, address, &ignored) == 1);
    close(fd);
}

static void test_bad_endpoints(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "", ":", "host", ":29500", "[]:1", "127.0.0.1:port", "no-such-host.invalid:29500"};
    char address[DPT_ADDRESS_BYTES];
    struct dpt_err err;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        if (dpt_node_address_find("", bad[i], address, &err) != DPT_ECONFIG)
            fail_msg("'%s' was taken", bad[i]);
        assert_true(err.text[0] != '\0');
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_node_ids),
        cmocka_unit_test(test_host_key),
        cmocka_unit_test_teardown(test_dir_id, remove_dir),
        cmocka_unit_test_teardown(test_damaged_dir_id, remove_dir),
        cmocka_unit_test_teardown(test_dir_id_race, remove_dir),
        cmocka_unit_test_teardown(test_incarnations_of_any_clock, remove_dir),
        cmocka_unit_test_teardown(test_start_beside_a_start, remove_dir),
        cmocka_unit_test_teardown(test_secrets_differ, remove_dir),
        cmocka_unit_test_teardown(test_identity_is_held, remove_dir),
        cmocka_unit_test_teardown(test_damaged_identity, remove_dir),
        cmocka_unit_test(test_address_of_interface),
        cmocka_unit_test(test_address_of_route),
        cmocka_unit_test(test_bad_endpoints),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
