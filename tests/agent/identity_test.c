/* Who a node is, which folders are one, and which address peers dial. */
#include "base/fs.h"
#include "tests/tmp.h"
#include "worker/agent/address.h"
#include "worker/agent/identity.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

static void test_node_ids(void **state)
{
    (void)state;
    char a[DPT_CONFIG_NAME_BYTES], b[DPT_CONFIG_NAME_BYTES], longest[80];
    struct dpt_err err;
    assert_int_equal(dpt_node_id_random(a, &err), DPT_OK);
    assert_int_equal(dpt_node_id_random(b, &err), DPT_OK);
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

static void test_address_of_interface(void **state)
{
    (void)state;
    char address[DPT_ADDRESS_BYTES];
    struct dpt_err err;
    assert_int_equal(dpt_address_find("lo", "no-host:1", address, &err), DPT_OK);
    assert_string_equal(address, "127.0.0.1");
    assert_int_equal(dpt_address_find("nowhere0", "127.0.0.1:1", address, &err), DPT_ECONFIG);
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
    int fd = listen_on(INADDR_LOOPBACK, &port); /* a server that nobody else reaches */
    (void)snprintf(endpoint, sizeof endpoint, "127.0.0.1:%d", port);
    assert_int_equal(dpt_address_find("", endpoint, address, &err), DPT_OK);
    assert_string_equal(address, "127.0.0.1");
    close(fd);
    fd = listen_on(INADDR_ANY,
                   &port); /* one that others may reach: our own address, if we have one */
    (void)snprintf(endpoint, sizeof endpoint, "localhost:%d", port);
    assert_int_equal(dpt_address_find("", endpoint, address, &err), DPT_OK);
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
        if (dpt_address_find("", bad[i], address, &err) != DPT_ECONFIG)
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
        cmocka_unit_test(test_address_of_interface),
        cmocka_unit_test(test_address_of_route),
        cmocka_unit_test(test_bad_endpoints),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
