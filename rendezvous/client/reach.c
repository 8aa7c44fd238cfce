/* Looks a name up and connects, on a detached thread. */
#include "rendezvous/client/reach.h"

#include "base/clock.h"
#include "base/parse.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    ADDRESS_BYTES = 64,
    /* A greeting: 10 bytes of signature, a version, then at byte 12 the name of the mechanism. */
    SIGNATURE_BYTES = 10,
    MECHANISM_AT = 12,
    GREETING_BYTES = MECHANISM_AT + 20
};

/* The result of an attempt. Of several addresses the one with the highest finding is reported. */
enum finding {
    FINDING_NONE,      /* nothing is known yet */
    FINDING_LOOKUP,    /* the name is being looked up */
    FINDING_NO_NAME,   /* it has no address; `error` of getaddrinfo */
    FINDING_FAILED,    /* `error` of connect */
    FINDING_SILENT,    /* no answer */
    FINDING_REFUSED,   /* nothing listens */
    FINDING_CONNECTED, /* something listens that is no server */
    FINDING_OPEN,      /* a server without keys */
    FINDING_KEYED      /* a server with keys */
};

struct result {
    enum finding finding;
    int error;
    bool loopback;
    char address[ADDRESS_BYTES];
};

/* The caller and the thread own this together. The last owner frees it. */
struct dpt_reach {
    struct dpt_endpoint server;
    bool open;                         /* the client has no keys */
    enum dpt_server_key_source source; /* of the server's key */
    pthread_mutex_t mutex;             /* guards the members below */
    int owners;                        /* 1: the caller has stopped it */
    int64_t lookup_ms;                 /* start of the present lookup of the name; 0: none */
    struct result result;
    int connected; /* attempts in a row that could connect and had this result */
};

/* ---- one attempt ---- */

/* Waits for the end of a connect. Returns its error, 0 for success, or ETIMEDOUT. */
static int finish_connect(int fd)
{
    struct pollfd item = {.fd = fd, .events = POLLOUT};
    int error = ETIMEDOUT;
    socklen_t bytes = sizeof error;
    if (poll(&item, 1, DPT_REACH_ANSWER_MS) > 0 &&
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0)
        error = errno;
    return error;
}

static bool is_loopback(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET) {
        struct sockaddr_in v4;
        memcpy(&v4, address, sizeof v4);
        return ntohl(v4.sin_addr.s_addr) >> 24 == 127;
    }
    struct sockaddr_in6 v6;
    memcpy(&v6, address, sizeof v6);
    return address->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr);
}

/* Reads what the program at the other end says first. A ZeroMQ socket answers the signature and the
 * version with its greeting, and does not begin a handshake before it has read a whole one. */
static enum finding read_greeting(int fd)
{
    static const uint8_t hello[SIGNATURE_BYTES + 1] = {0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0x7f, 3};
    uint8_t greeting[GREETING_BYTES];
    size_t n = 0;
    if (send(fd, hello, sizeof hello, MSG_NOSIGNAL) != (ssize_t)sizeof hello)
        return FINDING_CONNECTED;
    while (n < sizeof greeting) {
        struct pollfd item = {.fd = fd, .events = POLLIN};
        if (poll(&item, 1, DPT_REACH_GREETING_MS) <= 0)
            return FINDING_CONNECTED;
        const ssize_t bytes = recv(fd, greeting + n, sizeof greeting - n, 0);
        if (bytes <= 0)
            return FINDING_CONNECTED;
        n += (size_t)bytes;
    }
    const char *mechanism = (const char *)greeting + MECHANISM_AT;
    if (greeting[0] != hello[0] || greeting[SIGNATURE_BYTES - 1] != hello[SIGNATURE_BYTES - 1])
        return FINDING_CONNECTED;
    if (strncmp(mechanism, "CURVE", GREETING_BYTES - MECHANISM_AT) == 0)
        return FINDING_KEYED;
    return strncmp(mechanism, "NULL", GREETING_BYTES - MECHANISM_AT) == 0 ? FINDING_OPEN
                                                                          : FINDING_CONNECTED;
}

static struct result try_address(const struct addrinfo *info)
{
    struct result result = {.finding = FINDING_FAILED, .loopback = is_loopback(info->ai_addr)};
    if (getnameinfo(info->ai_addr, info->ai_addrlen, result.address, sizeof result.address, NULL, 0,
                    NI_NUMERICHOST) != 0)
        result.address[0] = '\0';
    int fd = socket(info->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        result.error = errno;
        return result;
    }
    result.error = connect(fd, info->ai_addr, info->ai_addrlen) == 0 ? 0 : errno;
    if (result.error == EINPROGRESS)
        result.error = finish_connect(fd);
    if (result.error == 0)
        result.finding = read_greeting(fd);
    (void)close(fd);
    if (result.error == 0)
        return result;
    if (result.error == ECONNREFUSED)
        result.finding = FINDING_REFUSED;
    else if (result.error == ETIMEDOUT)
        result.finding = FINDING_SILENT;
    return result;
}

static struct result attempt_to_reach(struct dpt_reach *reach)
{
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;
    int error = getaddrinfo(reach->server.host, reach->server.port, &hints, &list);
    (void)pthread_mutex_lock(&reach->mutex);
    reach->lookup_ms = 0;
    (void)pthread_mutex_unlock(&reach->mutex);
    if (error != 0)
        return (struct result){.finding = FINDING_NO_NAME, .error = error};
    struct result best = {.finding = FINDING_NONE};
    int tried = 0;
    for (const struct addrinfo *info = list; info != NULL && tried < DPT_REACH_ADDRESSES_MAX;
         info = info->ai_next, tried++) {
        struct result result = try_address(info);
        if (result.finding > best.finding)
            best = result;
    }
    freeaddrinfo(list);
    return best;
}

/* ---- the thread ---- */

static void release_reach(struct dpt_reach *reach)
{
    (void)pthread_mutex_lock(&reach->mutex);
    const bool last = --reach->owners == 0;
    (void)pthread_mutex_unlock(&reach->mutex);
    if (!last)
        return;
    (void)pthread_mutex_destroy(&reach->mutex);
    free(reach);
}

/* Returns true after the caller has called dpt_reach_stop. */
static bool publish_result(struct dpt_reach *reach, const struct result *result)
{
    (void)pthread_mutex_lock(&reach->mutex);
    const bool again = result->finding == reach->result.finding;
    reach->result = *result;
    if (result->finding < FINDING_CONNECTED)
        reach->connected = 0;
    else
        reach->connected = again ? reach->connected + 1 : 1;
    const bool stopped = reach->owners == 1;
    (void)pthread_mutex_unlock(&reach->mutex);
    return stopped;
}

static void *look_for_server(void *ctx)
{
    struct dpt_reach *reach = ctx;
    struct result result = attempt_to_reach(reach);
    while (!publish_result(reach, &result)) {
        (void)poll(NULL, 0, DPT_REACH_EVERY_MS);
        result = attempt_to_reach(reach);
    }
    release_reach(reach);
    return NULL;
}

/* ---- public ---- */

enum dpt_status dpt_reach_start(const char *endpoint, const struct dpt_keyring *keys,
                                struct dpt_reach **ret, struct dpt_err *err)
{
    struct dpt_endpoint server;
    DPT_TRY(dpt_split_endpoint(endpoint, &server, err));
    struct dpt_reach *reach = calloc(1, sizeof *reach);
    if (reach == NULL)
        return dpt_fail_nomem(err, "thread that looks for the server");
    reach->server = server;
    reach->open = keys->open;
    reach->source = keys->source;
    reach->lookup_ms = dpt_now_ms();
    reach->owners = 2;
    (void)pthread_mutex_init(&reach->mutex, NULL);
    pthread_t thread;
    int failed = pthread_create(&thread, NULL, look_for_server, reach);
    if (failed != 0) {
        reach->owners = 1;
        release_reach(reach);
        return dpt_fail_errno(err, failed, "start the thread that looks for the server");
    }
    (void)pthread_detach(thread);
    *ret = reach;
    return DPT_OK;
}

/* The server answers, but the client's handshake with it does not succeed. */
static void print_keys_text(const struct dpt_reach *reach, bool server_open,
                            char ret[DPT_CLIENT_WHY_BYTES])
{
    static const char *const sources[] = {
        [DPT_SERVER_KEY_OF_FOLDER] = "this machine's key folder has",
        [DPT_SERVER_KEY_NOTED] = "the file 'servers' of this machine's key folder has",
        [DPT_SERVER_KEY_OF_TOKEN] = "the token has"};
    enum { BYTES = DPT_CLIENT_WHY_BYTES };
    if (reach->open && server_open)
        (void)snprintf(ret, BYTES, "the server there does not answer. It may be too busy");
    else if (server_open)
        (void)snprintf(ret, BYTES,
                       "the server there has no keys (--open). Start it without --open; or, inside "
                       "a network that you trust, give the token none (" DPT_CLIENT_TOKEN_BY ")");
    else if (reach->open)
        (void)snprintf(ret, BYTES,
                       "the server there has keys. Give the token that it prints at its start "
                       "(" DPT_CLIENT_TOKEN_BY "), in place of none");
    else
        (void)snprintf(ret, BYTES,
                       "the server there has another key than %s, or is too busy. Give the token "
                       "that it prints at its start (" DPT_CLIENT_TOKEN_BY ")",
                       sources[reach->source]);
}

void dpt_reach_text(struct dpt_reach *reach, char ret[DPT_CLIENT_WHY_BYTES])
{
    enum { BYTES = DPT_CLIENT_WHY_BYTES };
    (void)pthread_mutex_lock(&reach->mutex);
    struct result result = reach->result;
    if (reach->lookup_ms > 0 && dpt_now_ms() - reach->lookup_ms > DPT_REACH_LOOKUP_MS)
        result.finding = FINDING_LOOKUP;
    if (result.finding >= FINDING_CONNECTED && reach->connected < 2)
        result.finding = FINDING_NONE; /* the server may have just started: no reason to report */
    (void)pthread_mutex_unlock(&reach->mutex);
    switch (result.finding) {
    case FINDING_NONE:
        ret[0] = '\0';
        break;
    case FINDING_LOOKUP:
        (void)snprintf(
            ret, BYTES,
            "the name '%.100s' is still being looked up; no name server answers. Give the "
            "host's address instead",
            reach->server.host);
        break;
    case FINDING_NO_NAME:
        (void)snprintf(ret, BYTES,
                       "the name '%.100s' has no address (%s). Check the name, or give the host's "
                       "address",
                       reach->server.host, gai_strerror(result.error));
        break;
    case FINDING_FAILED:
        (void)snprintf(ret, BYTES, "%s cannot be reached: %s. Check the address and the network",
                       result.address, strerror(result.error));
        break;
    case FINDING_SILENT:
        (void)snprintf(ret, BYTES,
                       "%s does not answer. The host is down, or a firewall drops port %s",
                       result.address, reach->server.port);
        break;
    case FINDING_REFUSED:
        (void)snprintf(ret, BYTES,
                       result.loopback
                           ? "port %s of %s refuses: nothing listens there. Start dpt-rdzv --port "
                             "%s on this host, or name another"
                           : "port %s of %s refuses: no server runs there, or it listens on "
                             "another address only. Start dpt-rdzv --port %s there",
                       reach->server.port, result.address, reach->server.port);
        break;
    case FINDING_CONNECTED:
        (void)snprintf(ret, BYTES,
                       "port %s of %s answers, but not as dpt-rdzv does. Check which program "
                       "listens there",
                       reach->server.port, result.address);
        break;
    case FINDING_OPEN:
    case FINDING_KEYED:
        print_keys_text(reach, result.finding == FINDING_OPEN, ret);
        break;
    }
}

void dpt_reach_stop(struct dpt_reach **reach_p)
{
    struct dpt_reach *reach = *reach_p;
    *reach_p = NULL;
    if (reach != NULL)
        release_reach(reach);
}
