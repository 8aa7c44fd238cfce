/* TCP with deadlines (deadline_socket.h). */
#include "worker/doctor/deadline_socket.h"

#include "base/clock.h"
#include "base/parse.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PORT_BYTES = 8, BACKLOG = 64 };

/* ---- waits ---- */

enum dpt_status dpt_wire_wait(int fd, bool write, int64_t deadline_ms, struct dpt_err *err)
{
    struct pollfd item = {.fd = fd, .events = write ? POLLOUT : POLLIN};
    const int64_t left_ms = deadline_ms - dpt_now_ms();
    const int n = poll(&item, 1, left_ms < 0 ? 0 : left_ms > INT32_MAX ? INT32_MAX : (int)left_ms);
    if (n < 0 && errno == EINTR)
        return DPT_INPROGRESS;
    if (n < 0)
        return dpt_fail_errno(err, errno, "wait for a connection");
    return n > 0 ? DPT_OK : dpt_fail(err, DPT_ETIMEOUT, "no answer in time");
}

/* As dpt_wire_wait, but waits on after a signal. */
static enum dpt_status await_socket(int fd, bool write, int64_t deadline_ms, struct dpt_err *err)
{
    enum dpt_status status;
    do
        status = dpt_wire_wait(fd, write, deadline_ms, err);
    while (status == DPT_INPROGRESS); /* ends: the deadline does not move */
    return status;
}

/* ---- connections ---- */

static void set_options(int fd)
{
    const int one = 1;
    /* Without it a small message may wait for an acknowledgement. It cannot fail on a TCP socket.
     */
    DPT_ASSERT(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0 ||
               errno == EINVAL); /* EINVAL: the peer has closed the connection already */
}

/* Connects to one address. Returns 0 or an errno. */
static int try_address(const struct addrinfo *info, int64_t deadline_ms, int *ret_fd)
{
    struct dpt_err ignored;
    int error = 0;
    socklen_t bytes = sizeof error;
    const int fd = socket(info->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return errno;
    if (connect(fd, info->ai_addr, info->ai_addrlen) != 0)
        error = errno;
    if (error == EINPROGRESS) {
        if (await_socket(fd, true, deadline_ms, &ignored) != DPT_OK)
            error = ETIMEDOUT;
        else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0)
            error = errno;
    }
    if (error != 0) {
        (void)close(fd);
        return error;
    }
    set_options(fd);
    *ret_fd = fd;
    return 0;
}

static enum dpt_status fail_to_connect(struct dpt_err *err, const char *endpoint, const char *port,
                                       int error)
{
    if (error == ETIMEDOUT)
        return dpt_fail(err, DPT_ETIMEOUT,
                        "%.100s does not answer: the host is down, or a firewall drops port %s",
                        endpoint, port);
    if (error == ECONNREFUSED)
        return dpt_fail(err, DPT_EREFUSED,
                        "%.100s refuses: nothing listens there; start dpt-doctor net --listen %s",
                        endpoint, port);
    if (error == EHOSTUNREACH || error == ENETUNREACH)
        return dpt_fail(err, DPT_EIO, "%.100s: %s; check addresses and routes (ip route get)",
                        endpoint, strerror(error));
    return dpt_fail_errno(err, error, "connect to %.100s", endpoint);
}

enum dpt_status dpt_wire_connect(const char *endpoint, int64_t deadline_ms, int *ret_fd,
                                 struct dpt_err *err)
{
    struct dpt_endpoint at;
    DPT_TRY(dpt_split_endpoint(endpoint, &at, err));
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo *list = NULL;
    const int failed = getaddrinfo(at.host, at.port, &hints, &list);
    if (failed != 0)
        return dpt_fail(err, DPT_ENOENT, "the name '%.100s' has no address (%s)", at.host,
                        gai_strerror(failed));
    int error = ETIMEDOUT, tried = 0;
    for (const struct addrinfo *info = list; info && error != 0 && tried < DPT_WIRE_ADDRESSES_MAX;
         info = info->ai_next, tried++)
        error = try_address(info, deadline_ms, ret_fd);
    freeaddrinfo(list);
    return error == 0 ? DPT_OK : fail_to_connect(err, endpoint, at.port, error);
}

static enum dpt_status bind_and_listen(const struct addrinfo *info, int *ret_fd, int *ret_port,
                                       struct dpt_err *err)
{
    const int one = 1, zero = 0;
    struct sockaddr_storage bound;
    socklen_t bytes = sizeof bound;
    const int fd = socket(info->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return dpt_fail_errno(err, errno, "open a socket");
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) != 0 ||
        (info->ai_family == AF_INET6 &&
         setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero) != 0) ||
        bind(fd, info->ai_addr, info->ai_addrlen) != 0 || listen(fd, BACKLOG) != 0 ||
        getsockname(fd, (struct sockaddr *)&bound, &bytes) != 0) {
        const int error = errno;
        (void)close(fd);
        return dpt_fail_errno(err, error, "listen");
    }
    *ret_port = ntohs(bound.ss_family == AF_INET ? ((struct sockaddr_in *)&bound)->sin_port
                                                 : ((struct sockaddr_in6 *)&bound)->sin6_port);
    *ret_fd = fd;
    return DPT_OK;
}

enum dpt_status dpt_wire_listen(const char *bind_to, int port, int *ret_fd, int *ret_port,
                                struct dpt_err *err)
{
    char text[PORT_BYTES];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_NUMERICSERV | AI_NUMERICHOST | AI_PASSIVE};
    (void)snprintf(text, sizeof text, "%d", port);
    enum dpt_status status = DPT_EIO;
    /* "::" takes IPv4, too; a kernel without IPv6 has 0.0.0.0. */
    const char *const places[] = {bind_to ? bind_to : "::", bind_to ? NULL : "0.0.0.0"};
    for (int i = 0; i < 2 && places[i] && status != DPT_OK; i++) {
        struct addrinfo *list = NULL;
        const int failed = getaddrinfo(places[i], text, &hints, &list);
        if (failed != 0)
            return dpt_fail(err, DPT_EINVAL, "'%.100s' is not a numeric IP address (%s)", places[i],
                            gai_strerror(failed));
        status = bind_and_listen(list, ret_fd, ret_port, err);
        freeaddrinfo(list);
    }
    return dpt_wrap(err, status, "port %d", port);
}

enum dpt_status dpt_wire_accept(int listener, int *ret_fd, struct dpt_err *err)
{
    const int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0 && errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
        return dpt_fail_errno(err, errno, "accept a connection");
    if (fd >= 0)
        set_options(fd);
    *ret_fd = fd;
    return DPT_OK;
}

/* ---- data ---- */

static bool is_end(int error)
{
    return error == EPIPE || error == ECONNRESET || error == ECONNABORTED || error == ETIMEDOUT;
}

enum dpt_status dpt_wire_send(int fd, const void *data, size_t bytes, int64_t deadline_ms,
                              struct dpt_err *err)
{
    const char *at = data;
    while (bytes > 0) {
        const ssize_t n = send(fd, at, bytes, MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN && errno != EINTR)
            return is_end(errno) ? dpt_fail(err, DPT_EPEER, "the connection ended")
                                 : dpt_fail_errno(err, errno, "send");
        if (n < 0) {
            DPT_TRY(await_socket(fd, true, deadline_ms, err));
            continue;
        }
        at += n;
        bytes -= (size_t)n;
    }
    return DPT_OK;
}

enum dpt_status dpt_wire_recv(int fd, void *data, size_t bytes, int64_t deadline_ms,
                              struct dpt_err *err)
{
    char *at = data;
    while (bytes > 0) {
        const ssize_t n = recv(fd, at, bytes, 0);
        if (n == 0 || (n < 0 && is_end(errno)))
            return dpt_fail(err, DPT_EPEER, "the connection ended");
        if (n < 0 && errno != EAGAIN && errno != EINTR)
            return dpt_fail_errno(err, errno, "receive");
        if (n < 0) {
            DPT_TRY(await_socket(fd, false, deadline_ms, err));
            continue;
        }
        at += n;
        bytes -= (size_t)n;
    }
    return DPT_OK;
}

/* ---- lines ---- */

enum dpt_status dpt_wire_say(int fd, int64_t deadline_ms, struct dpt_err *err, const char *fmt, ...)
{
    char line[DPT_WIRE_LINE_BYTES];
    va_list ap;
    va_start(ap, fmt);
    int length = vsnprintf(line, sizeof line - 1, fmt, ap);
    va_end(ap);
    if (length > (int)sizeof line - 2)
        length = (int)sizeof line - 2; /* a long reason is cut */
    line[length] = '\0';
    dpt_one_line(line);
    line[length] = '\n';
    return dpt_wire_send(fd, line, (size_t)length + 1, deadline_ms, err);
}

/* Reads byte by byte, so that nothing behind the line is taken; lines are few. */
enum dpt_status dpt_wire_hear(int fd, int64_t deadline_ms, char ret[DPT_WIRE_LINE_BYTES],
                              struct dpt_err *err)
{
    for (size_t i = 0; i < DPT_WIRE_LINE_BYTES; i++) {
        DPT_TRY(dpt_wire_recv(fd, &ret[i], 1, deadline_ms, err));
        const unsigned char c = (unsigned char)ret[i];
        if (c == '\n') {
            ret[i] = '\0';
            return DPT_OK;
        }
        if (c < 0x20 || c == 0x7f)
            return dpt_fail(err, DPT_EPROTO, "an answer that no dpt-doctor sends");
    }
    return dpt_fail(err, DPT_EPROTO, "an answer that no dpt-doctor sends");
}

void dpt_wire_drop(int fd)
{
    const struct linger at_once = {.l_onoff = 1, .l_linger = 0};
    if (fd < 0)
        return;
    /* A failure only means that the kernel sends the rest. */
    (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    (void)close(fd);
}
