/* ZMTP by hand. */
#include "tests/rendezvous/server/zmtp.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cmocka.h>

int zmtp_dial(int port)
{
    return zmtp_dial_from(1, port);
}

int zmtp_dial_from(int host, int port)
{
    const struct sockaddr_in from = {.sin_family = AF_INET,
                                     .sin_addr.s_addr = htonl(0x7f000000u + (uint32_t)host)};
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval wait = {.tv_sec = ZMTP_WAIT_MS / 1000};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait), 0);
    assert_int_equal(bind(fd, (const struct sockaddr *)&from, sizeof from), 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
    return fd;
}

static bool send_all(int fd, const void *data, size_t bytes)
{
    const uint8_t *at = data;
    while (bytes > 0) {
        ssize_t done = send(fd, at, bytes, MSG_NOSIGNAL);
        if (done <= 0)
            return false;
        at += done;
        bytes -= (size_t)done;
    }
    return true;
}

static void zmtp_read_all(int fd, void *data, size_t bytes)
{
    assert_int_equal(recv(fd, data, bytes, MSG_WAITALL), bytes);
}

static size_t put_property(uint8_t *at, const char *name, const char *value)
{
    size_t name_bytes = strlen(name), value_bytes = strlen(value);
    uint8_t *from = at;
    *at++ = (uint8_t)name_bytes;
    memcpy(at, name, name_bytes);
    at += name_bytes;
    const uint8_t length[4] = {0, 0, 0, (uint8_t)value_bytes};
    memcpy(at, length, sizeof length);
    memcpy(at + sizeof length, value, value_bytes);
    return (size_t)(at - from) + sizeof length + value_bytes;
}

void zmtp_handshake(int fd, const char *identity)
{
    uint8_t greeting[64] = {0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0x7f, 3, 0, 'N', 'U', 'L', 'L'};
    uint8_t theirs[64], command[256] = {0x04, 0, 5, 'R', 'E', 'A', 'D', 'Y'};
    assert_true(send_all(fd, greeting, sizeof greeting));
    zmtp_read_all(fd, theirs, sizeof theirs);
    size_t used = 8;
    used += put_property(command + used, "Socket-Type", "DEALER");
    if (identity != NULL)
        used += put_property(command + used, "Identity", identity);
    command[1] = (uint8_t)(used - 2);
    assert_true(send_all(fd, command, used));
    uint8_t head[2];
    zmtp_read_all(fd, head, sizeof head); /* their READY */
    assert_int_equal(head[0], 0x04);
    zmtp_read_all(fd, command, head[1]);
}

void zmtp_greet_curve(int fd)
{
    uint8_t greeting[64] = {0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0x7f, 3, 0, 'C', 'U', 'R', 'V', 'E'};
    uint8_t theirs[64];
    assert_true(send_all(fd, greeting, sizeof greeting));
    zmtp_read_all(fd, theirs, sizeof theirs);
    assert_memory_equal(theirs + 12, greeting + 12, 20);
}

static bool send_frame(int fd, uint8_t flags, const void *data, size_t bytes, uint64_t announced)
{
    uint8_t head[9] = {flags};
    for (int i = 0; i < 8; i++)
        head[1 + i] = (uint8_t)(announced >> (8 * (7 - i)));
    return send_all(fd, head, sizeof head) && send_all(fd, data, bytes);
}

bool zmtp_send(int fd, const void *data, size_t bytes, uint64_t announced)
{
    return send_frame(fd, 0x02, data, bytes, announced);
}

bool zmtp_send_command(int fd, const void *data, size_t bytes, uint64_t announced)
{
    return send_frame(fd, 0x06, data, bytes, announced);
}

bool zmtp_wait_closed(int fd, uint64_t *ret_bytes)
{
    static uint8_t buf[65536];
    uint64_t total = 0;
    for (;;) {
        ssize_t got = recv(fd, buf, sizeof buf, 0);
        if (got > 0)
            total += (uint64_t)got;
        if (ret_bytes != NULL)
            *ret_bytes = total;
        if (got == 0 || (got < 0 && errno == ECONNRESET))
            return true;
        if (got < 0 && errno != EINTR)
            return false;
    }
}
