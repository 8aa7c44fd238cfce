/* Records of protected connections: what is sent arrives, however the sockets cut it, and what was
 * changed, repeated, left out, reordered or reflected on the way does not. */
#include "worker/comm/protected_records.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

enum { STREAM_BYTES = 600 * 1000, SEEN_BYTES = 64 * 1024, BYE_BYTES = 16 };

/* Two ends of a connection, and their sockets. */
struct ends {
    struct dpt_wire *a, *b;
    int fd_a, fd_b;
};

static struct dpt_comm_spec spec_of(enum dpt_encrypt encrypt)
{
    struct dpt_comm_spec spec = {.generation = 7, .world_size = 2, .encrypt = encrypt};
    (void)snprintf(spec.run, sizeof spec.run, "demo");
    memset(spec.nonce, 0x5c, sizeof spec.nonce);
    return spec;
}

/* The hello of rank `from`, with this random byte. */
static void make_hello(enum dpt_encrypt encrypt, int from, uint8_t random,
                       uint8_t ret[DPT_HANDSHAKE_BYTES])
{
    const uint8_t salt[DPT_HANDSHAKE_SALT_BYTES] = {random};
    struct dpt_comm_spec spec = spec_of(encrypt);
    spec.rank = from;
    dpt_handshake_encode(&spec, from == 1 ? DPT_HANDSHAKE_DIALER : DPT_HANDSHAKE_WELCOME, 1 - from,
                         salt, ret);
}

static struct dpt_wire *open_wire(enum dpt_encrypt encrypt, int own, uint8_t random)
{
    uint8_t sent[DPT_HANDSHAKE_BYTES], got[DPT_HANDSHAKE_BYTES];
    const struct dpt_comm_spec spec = spec_of(encrypt);
    struct dpt_wire *wire = calloc(1, sizeof *wire);
    struct dpt_err err;
    make_hello(encrypt, own, random, sent);
    make_hello(encrypt, 1 - own, random, got);
    assert_non_null(wire);
    if (dpt_wire_open(wire, &spec, sent, got, &err) != DPT_OK)
        fail_msg("%s", err.text);
    return wire;
}

static struct ends open_ends(enum dpt_encrypt encrypt)
{
    int fds[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    return (struct ends){.a = open_wire(encrypt, 0, 1),
                         .b = open_wire(encrypt, 1, 1),
                         .fd_a = fds[0],
                         .fd_b = fds[1]};
}

static void close_ends(struct ends *ends)
{
    dpt_wire_close(ends->a);
    dpt_wire_close(ends->b);
    free(ends->a);
    free(ends->b);
    close(ends->fd_a);
    close(ends->fd_b);
}

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Two pieces of the bytes from `at` on, of a random size. */
static int cut(uint8_t *data, size_t at, size_t end, uint64_t *random, struct iovec iov[2])
{
    static const size_t sizes[] = {1, 7, 16, 300, 20000, 100000};
    const size_t left = end - at, first = next_random(random) % sizes[next_random(random) % 6] + 1;
    iov[0] = (struct iovec){data + at, first < left ? first : left};
    const size_t rest = left - iov[0].iov_len,
                 second = next_random(random) % sizes[next_random(random) % 6] + 1;
    iov[1] = (struct iovec){data + at + iov[0].iov_len, second < rest ? second : rest};
    return rest > 0 ? 2 : 1;
}

/* A sender that may only add pieces behind those that the socket has not taken. */
static void stream_through(enum dpt_encrypt encrypt, uint64_t seed)
{
    struct ends ends = open_ends(encrypt);
    const int small = 4096;
    uint8_t *from = malloc(STREAM_BYTES), *to = calloc(1, STREAM_BYTES);
    uint64_t random = seed;
    size_t sent = 0, got = 0, offered = 0;
    assert_int_equal(setsockopt(ends.fd_a, SOL_SOCKET, SO_SNDBUF, &small, sizeof small), 0);
    assert_true(from != NULL && to != NULL);
    for (size_t i = 0; i < STREAM_BYTES; i++)
        from[i] = (uint8_t)(i * 7 + i / 251);
    while (got < STREAM_BYTES) {
        struct iovec iov[2];
        int n = cut(from, sent, STREAM_BYTES, &random, iov);
        if (sent < STREAM_BYTES && offered > iov[0].iov_len + (n == 2 ? iov[1].iov_len : 0)) {
            iov[0] = (struct iovec){from + sent, offered};
            n = 1;
        }
        if (sent < STREAM_BYTES) {
            const size_t total = iov[0].iov_len + (n == 2 ? iov[1].iov_len : 0);
            const ssize_t done = dpt_wire_send(ends.a, ends.fd_a, iov, n);
            assert_true(done > 0 || (done < 0 && errno == EAGAIN));
            sent += done > 0 ? (size_t)done : 0;
            offered = done > 0 ? total - (size_t)done : total;
        }
        n = cut(to, got, STREAM_BYTES, &random, iov);
        const ssize_t done = dpt_wire_receive(ends.b, ends.fd_b, iov, n);
        assert_true(done > 0 || (done < 0 && errno == EAGAIN));
        got += done > 0 ? (size_t)done : 0;
    }
    assert_memory_equal(from, to, STREAM_BYTES);
    assert_true(dpt_wire_is_between_records(ends.a) && !dpt_wire_holds_bytes(ends.b));
    free(from);
    free(to);
    close_ends(&ends);
}

static void bytes_arrive(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 4; seed++) {
        stream_through(DPT_ENCRYPT_MAC, seed);
        stream_through(DPT_ENCRYPT_DATA, seed);
    }
}

/* ---- a network that changes what goes over it ---- */

/* Sends a text with each call, and returns the bytes that went over the network. */
static size_t send_text(struct dpt_wire *wire, const char *text, uint8_t ret[SEEN_BYTES])
{
    int fds[2];
    const struct iovec iov = {(void *)(uintptr_t)text, strlen(text)};
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    assert_int_equal(dpt_wire_send(wire, fds[0], &iov, 1), (ssize_t)iov.iov_len);
    const ssize_t n = recv(fds[1], ret, SEEN_BYTES, 0);
    assert_true(n > 0);
    close(fds[0]);
    close(fds[1]);
    return (size_t)n;
}

/* Delivers bytes and then the end of the connection. Returns the number of the first bytes that the
 * receiver takes, of a text in *ret; -1: none, and errno is EBADMSG; 0: none, only the end. */
static ssize_t deliver(struct dpt_wire *wire, const uint8_t *bytes, size_t n, char ret[SEEN_BYTES])
{
    int fds[2];
    const struct iovec iov = {ret, SEEN_BYTES - 1};
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    assert_int_equal(send(fds[0], bytes, n, 0), (ssize_t)n);
    close(fds[0]);
    const ssize_t got = dpt_wire_receive(wire, fds[1], &iov, 1);
    assert_true(got >= 0 || errno == EBADMSG);
    ret[got > 0 ? got : 0] = '\0';
    close(fds[1]);
    return got;
}

static void forget_arrived(struct dpt_wire *wire)
{
    wire->in_got = wire->next_got = 0;
    wire->plain_at = wire->plain_end = 0;
}

static void changed_byte_is_found(void **state)
{
    (void)state;
    uint8_t seen[SEEN_BYTES];
    char text[SEEN_BYTES];
    for (int encrypt = DPT_ENCRYPT_MAC; encrypt <= DPT_ENCRYPT_DATA; encrypt++) {
        struct ends ends = open_ends((enum dpt_encrypt)encrypt);
        const size_t n = send_text(ends.a, "ten million parameters", seen);
        for (size_t i = 0; i < n; i++)
            for (int bit = 0; bit < 8; bit++) {
                seen[i] ^= (uint8_t)(1 << bit);
                assert_true(deliver(ends.b, seen, n, text) <= 0);
                seen[i] ^= (uint8_t)(1 << bit);
                forget_arrived(ends.b);
                ends.b->n_unsealed = 0;
            }
        assert_true(deliver(ends.b, seen, n, text) > 0);
        assert_string_equal(text, "ten million parameters");
        close_ends(&ends);
    }
}

static void order_of_records_is_kept(void **state)
{
    (void)state;
    uint8_t one[SEEN_BYTES], two[SEEN_BYTES];
    char text[SEEN_BYTES];
    struct ends ends = open_ends(DPT_ENCRYPT_MAC);
    const size_t n_one = send_text(ends.a, "one", one), n_two = send_text(ends.a, "two", two);
    assert_int_equal(deliver(ends.b, two, n_two, text), -1); /* "one" is missing, or comes later */
    forget_arrived(ends.b);
    ends.b->n_unsealed = 0;
    assert_int_equal(deliver(ends.b, one, n_one, text), 3);
    assert_int_equal(deliver(ends.b, one, n_one, text), -1); /* again */
    forget_arrived(ends.b);
    ends.b->n_unsealed = 1;
    assert_int_equal(deliver(ends.b, two, n_two, text), 3);
    close_ends(&ends);
}

/* The keys differ by direction, by connection and by the way of protection. */
static void records_are_of_one_connection(void **state)
{
    (void)state;
    uint8_t seen[SEEN_BYTES];
    char text[SEEN_BYTES];
    struct ends ends = open_ends(DPT_ENCRYPT_DATA);
    struct dpt_wire *later = open_wire(DPT_ENCRYPT_DATA, 1, 2),
                    *readable = open_wire(DPT_ENCRYPT_MAC, 1, 1);
    const size_t n = send_text(ends.a, "mine", seen);
    assert_int_equal(deliver(ends.a, seen, n, text), -1);
    assert_int_equal(deliver(later, seen, n, text), -1);
    assert_int_equal(deliver(readable, seen, n, text), -1);
    assert_int_equal(deliver(ends.b, seen, n, text), 4);
    dpt_wire_close(later);
    dpt_wire_close(readable);
    free(later);
    free(readable);
    close_ends(&ends);
}

static void only_encrypted_bytes_are_hidden(void **state)
{
    (void)state;
    static const char text[] = "weights weights weights";
    for (int encrypt = DPT_ENCRYPT_MAC; encrypt <= DPT_ENCRYPT_DATA; encrypt++) {
        uint8_t seen[SEEN_BYTES];
        struct ends ends = open_ends((enum dpt_encrypt)encrypt);
        const size_t n = send_text(ends.a, text, seen);
        const bool shown = memmem(seen, n, "weights", 7) != NULL;
        assert_int_equal(shown, encrypt == DPT_ENCRYPT_MAC);
        close_ends(&ends);
    }
}

/* ---- the end of a connection ---- */

static void expect_end(struct ends *ends, bool in_order)
{
    assert_int_equal(dpt_wire_ends_in_order(ends->b, ends->fd_b, BYE_BYTES), in_order);
}

static void receive_bytes(struct ends *ends, size_t bytes)
{
    char data[64];
    const struct iovec iov = {data, bytes};
    assert_true(bytes <= sizeof data);
    assert_int_equal(dpt_wire_receive(ends->b, ends->fd_b, &iov, 1), (ssize_t)bytes);
}

/* The mark is seen behind bytes that the link has not read, behind those that it holds, and when
 * the record's head has been read already. */
static void last_record_is_seen(void **state)
{
    (void)state;
    static const uint8_t bye[BYE_BYTES] = {1};
    const struct iovec ten = {(void *)(uintptr_t) "0123456789", 10};
    struct ends ends = open_ends(DPT_ENCRYPT_DATA);
    assert_int_equal(dpt_wire_send(ends.a, ends.fd_a, &ten, 1), 10);
    expect_end(&ends, false);
    assert_int_equal(dpt_wire_send(ends.a, ends.fd_a, &ten, 1), 10);
    expect_end(&ends, false);
    dpt_wire_send_last(ends.a, ends.fd_a, bye, sizeof bye);
    expect_end(&ends, true);
    receive_bytes(&ends, 4);
    assert_true(dpt_wire_holds_bytes(ends.b));
    expect_end(&ends, true);
    receive_bytes(&ends, 6);
    assert_true(!dpt_wire_holds_bytes(ends.b) && dpt_wire_is_amid(ends.b));
    receive_bytes(&ends, 10);
    expect_end(&ends, true); /* its head is here */
    receive_bytes(&ends, BYE_BYTES);
    expect_end(&ends, false);
    close_ends(&ends);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_arrive),
        cmocka_unit_test(changed_byte_is_found),
        cmocka_unit_test(order_of_records_is_kept),
        cmocka_unit_test(records_are_of_one_connection),
        cmocka_unit_test(only_encrypted_bytes_are_hidden),
        cmocka_unit_test(last_record_is_seen),
    };
    return cmocka_run_group_tests_name("protected records", tests, NULL, NULL);
}
