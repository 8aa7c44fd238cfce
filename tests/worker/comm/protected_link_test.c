/* Protected connections of a communicator: a byte that is changed on the way ends it with a message
 * that says so, and memory is counted. What plain connections do with such a byte is shown beside
 * it. Other tests run with protected connections, too (CMakeLists.txt). */
#include "tests/worker/comm/comm_world.h"

#include "worker/comm/handshake.h"
#include "worker/comm/socket_address.h"

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

enum { BYTES = 100 * 1000, CHUNK = 4096, FLIPPED_AT = DPT_HANDSHAKE_BYTES + 50 * 1000 };

/* Between rank 1, which dials, and rank 0. Changes one bit of what rank 1 sends. */
struct proxy {
    char address[DPT_COMM_ADDR_BYTES], target[DPT_COMM_ADDR_BYTES];
    size_t flipped_at; /* of the bytes of rank 1; 0: none */
    int listen_fd;
    pthread_t thread;
};

struct scene {
    enum dpt_encrypt encrypt;
    bool relays; /* the connection is a trunk */
    struct proxy proxy;
    enum dpt_status status;
    char text[DPT_ERR_TEXT_BYTES];
    int suspect;
    bool same; /* the bytes arrived as they were sent */
};

static void send_whole(int fd, const uint8_t *data, size_t bytes)
{
    for (size_t at = 0; at < bytes;) {
        const ssize_t n = send(fd, data + at, bytes - at, MSG_NOSIGNAL);
        if (n <= 0)
            return; /* it has given up */
        at += (size_t)n;
    }
}

static void *run_proxy(void *arg)
{
    struct proxy *proxy = arg;
    struct dpt_address target;
    size_t passed = 0;
    const int from = accept(proxy->listen_fd, NULL, NULL);
    CHECK(from >= 0 && dpt_address_parse(proxy->target, &target, NULL) == DPT_OK);
    const int to = socket(target.addr.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(to >= 0 && connect(to, (struct sockaddr *)&target.addr, target.len) == 0);
    const int fds[2] = {from, to};
    for (bool open = true; open;) {
        struct pollfd items[2] = {{.fd = from, .events = POLLIN}, {.fd = to, .events = POLLIN}};
        CHECK(poll(items, 2, TIMEOUT_MS) > 0);
        for (int i = 0; i < 2 && open; i++) {
            uint8_t data[CHUNK];
            if (items[i].revents == 0)
                continue;
            const ssize_t n = recv(fds[i], data, sizeof data, 0);
            open = n > 0;
            if (i == 0 && n > 0) {
                if (proxy->flipped_at >= passed && proxy->flipped_at < passed + (size_t)n &&
                    proxy->flipped_at > 0)
                    data[proxy->flipped_at - passed] ^= 4;
                passed += (size_t)n;
            }
            send_whole(fds[1 - i], data, n > 0 ? (size_t)n : 0);
        }
    }
    close(from);
    close(to);
    return NULL;
}

static void start_proxy(struct proxy *proxy, const char *target)
{
    struct dpt_address address;
    set_text(proxy->target, sizeof proxy->target, target);
    CHECK(dpt_address_of_host("127.0.0.1", "0", &address, NULL) == DPT_OK);
    proxy->listen_fd = socket(address.addr.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(proxy->listen_fd >= 0 &&
          bind(proxy->listen_fd, (struct sockaddr *)&address.addr, address.len) == 0 &&
          listen(proxy->listen_fd, 1) == 0);
    address.len = sizeof address.addr;
    CHECK(getsockname(proxy->listen_fd, (struct sockaddr *)&address.addr, &address.len) == 0);
    CHECK(dpt_address_format(&address, proxy->address, sizeof proxy->address, NULL) == DPT_OK);
    CHECK(pthread_create(&proxy->thread, NULL, run_proxy, proxy) == 0);
}

static uint8_t value_at(size_t i)
{
    return (uint8_t)(i * 5 + i / 256);
}

/* Rank 0 receives; what becomes of rank 1 follows from that. */
static void transfer(struct rank *self, struct dpt_comm *comm, struct dpt_comm_mem *mem)
{
    struct scene *scene = self->world->arg;
    struct dpt_comm_xfer xfer = {.dir = self->rank == 1 ? DPT_COMM_SEND : DPT_COMM_RECV,
                                 .peer = 1 - self->rank,
                                 .mem = mem,
                                 .bytes = BYTES};
    uint8_t *data = dpt_comm_mem_data(mem);
    struct dpt_comm_op *op = NULL;
    for (size_t i = 0; self->rank == 1 && i < BYTES; i++)
        data[i] = value_at(i);
    enum dpt_status status = dpt_comm_exchange(comm, &xfer, 1, &op, &self->err);
    if (status == DPT_OK)
        status = dpt_comm_poll(comm, op, -1, &self->err);
    if (self->rank == 1)
        return;
    scene->status = status;
    scene->suspect = dpt_comm_suspect(comm);
    set_text(scene->text, sizeof scene->text, status != DPT_OK ? self->err.text : "");
    scene->same = true;
    for (size_t i = 0; i < BYTES; i++)
        scene->same = scene->same && data[i] == value_at(i);
}

static void exchange_over_proxy(struct rank *self)
{
    struct scene *scene = self->world->arg;
    struct dpt_comm_mem *mem;
    struct dpt_comm *comm;
    CHECK_OK(dpt_comm_mem_create(self->listener, BYTES, &mem, &self->err), &self->err);
    if (self->rank == 0)
        start_proxy(&scene->proxy, self->world->tcp_addr[0]);
    pthread_barrier_wait(&self->world->barrier);
    struct dpt_comm_spec spec = world_spec(self, 3);
    spec.encrypt = scene->encrypt;
    spec.mesh_max = scene->relays ? 1 : 0;
    if (self->rank == 1)
        set_text(self->peers[0].tcp_addr, sizeof self->peers[0].tcp_addr, scene->proxy.address);
    CHECK_OK(dpt_comm_create(self->listener, &spec, -1, &comm, NULL, &self->err), &self->err);
    transfer(self, comm, mem);
    dpt_comm_destroy(&comm);
    dpt_comm_mem_destroy(&mem);
    if (self->rank == 0) {
        CHECK(pthread_join(scene->proxy.thread, NULL) == 0);
        close(scene->proxy.listen_fd);
    }
}

static struct scene play(enum dpt_encrypt encrypt, bool relays, size_t flipped_at)
{
    struct scene scene = {
        .encrypt = encrypt, .relays = relays, .proxy = {.flipped_at = flipped_at}};
    struct world world = {.size = 2, .hosts = {0, 1}, .arg = &scene};
    world_run_threads(&world, exchange_over_proxy);
    return scene;
}

static void plain_bytes_pass_changed(void **state)
{
    (void)state;
    for (int relays = 0; relays < 2; relays++) {
        const struct scene scene = play(DPT_ENCRYPT_NONE, relays != 0, FLIPPED_AT);
        assert_int_equal(scene.status, DPT_OK);
        assert_false(scene.same);
    }
}

static void protected_bytes_pass(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        const struct scene scene = play(i % 2 == 0 ? DPT_ENCRYPT_MAC : DPT_ENCRYPT_DATA, i > 1, 0);
        if (scene.status != DPT_OK)
            fail_msg("%s", scene.text);
        assert_true(scene.same);
    }
}

static void changed_byte_ends_the_communicator(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        const struct scene scene =
            play(i % 2 == 0 ? DPT_ENCRYPT_MAC : DPT_ENCRYPT_DATA, i > 1, FLIPPED_AT);
        assert_int_equal(scene.status, DPT_EPROTO);
        assert_int_equal(scene.suspect, 1);
        if (strstr(scene.text, "changed on the way (cluster.encrypt)") == NULL)
            fail_msg("%s", scene.text);
    }
}

/* Each connection between hosts has a wire, in memory that is counted. */
static void memory_is_counted(void **state)
{
    (void)state;
    const size_t plain = dpt_comm_own_bytes(9, 0, DPT_ENCRYPT_NONE),
                 wired = dpt_comm_own_bytes(9, 0, DPT_ENCRYPT_MAC);
    assert_true(wired > plain);
    assert_int_equal((wired - plain) % 8, 0);
    assert_in_range((wired - plain) / 8, 2 * 16 * 1024, 2 * 17 * 1024);
    assert_int_equal(dpt_comm_own_bytes(9, 0, DPT_ENCRYPT_DATA), wired);
    /* With relays a rank has fewer connections. */
    assert_in_range(dpt_comm_own_bytes(1000, 256, DPT_ENCRYPT_MAC) -
                        dpt_comm_own_bytes(1000, 256, DPT_ENCRYPT_NONE),
                    19 * (wired - plain) / 8, 22 * (wired - plain) / 8);
    assert_int_equal(dpt_comm_own_bytes(1, 0, DPT_ENCRYPT_DATA),
                     dpt_comm_own_bytes(1, 0, DPT_ENCRYPT_NONE));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_bytes_pass_changed),
        cmocka_unit_test(protected_bytes_pass),
        cmocka_unit_test(changed_byte_ends_the_communicator),
        cmocka_unit_test(memory_is_counted),
    };
    return cmocka_run_group_tests_name("protected link", tests, NULL, NULL);
}
