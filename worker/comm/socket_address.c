/* Socket addresses as text (socket_address.h). */
#include "worker/comm/socket_address.h"

#include "base/parse.h"

#include <netdb.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

enum { HOST_BYTES = 80, PORT_BYTES = 8 };

enum dpt_status dpt_address_of_host(const char *host, const char *port, struct dpt_address *ret,
                                    struct dpt_err *err)
{
    const struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV,
                                   .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    const int rc = getaddrinfo(host, port, &hints, &found);
    if (rc != 0 || found == NULL)
        return dpt_fail(err, DPT_EINVAL, "'%s' is no numeric IP address: %s", host,
                        gai_strerror(rc));
    memset(ret, 0, sizeof *ret);
    memcpy(&ret->addr, found->ai_addr, found->ai_addrlen);
    ret->len = found->ai_addrlen;
    freeaddrinfo(found);
    return DPT_OK;
}

static enum dpt_status parse_unix(const char *text, struct dpt_address *ret, struct dpt_err *err)
{
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    const size_t bytes = strlen(text) - 1;
    if (bytes == 0 || bytes + 1 > sizeof un.sun_path)
        return dpt_fail(err, DPT_EINVAL, "'%s' is no name of a local socket", text);
    memcpy(un.sun_path + 1, text + 1, bytes); /* the NUL before the name makes it abstract */
    memset(ret, 0, sizeof *ret);
    memcpy(&ret->addr, &un, sizeof un);
    ret->len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + bytes);
    return DPT_OK;
}

enum dpt_status dpt_address_parse(const char *text, struct dpt_address *ret, struct dpt_err *err)
{
    if (text[0] == '@')
        return parse_unix(text, ret, err);
    struct dpt_endpoint parts;
    DPT_TRY(dpt_split_endpoint(text, &parts, err));
    return dpt_address_of_host(parts.host, parts.port, ret, err);
}

enum dpt_status dpt_address_format(const struct dpt_address *address, char *ret_text,
                                   size_t text_bytes, struct dpt_err *err)
{
    char host[HOST_BYTES], port[PORT_BYTES];
    const int rc = getnameinfo((const struct sockaddr *)&address->addr, address->len, host,
                               sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV);
    if (rc != 0)
        return dpt_fail(err, DPT_EINVAL, "format an address: %s", gai_strerror(rc));
    char text[HOST_BYTES + PORT_BYTES + 4];
    const int bytes = strchr(host, ':') != NULL ? snprintf(text, sizeof text, "[%s]:%s", host, port)
                                                : snprintf(text, sizeof text, "%s:%s", host, port);
    if (bytes < 0 || (size_t)bytes >= text_bytes)
        return dpt_fail(err, DPT_EOVERFLOW, "address '%s' is too long", text);
    memcpy(ret_text, text, (size_t)bytes + 1);
    return DPT_OK;
}

bool dpt_socket_is_own_echo(int fd)
{
    struct sockaddr_storage own, peer;
    socklen_t own_len = sizeof own, peer_len = sizeof peer;
    memset(&own, 0, sizeof own);
    memset(&peer, 0, sizeof peer);
    return getsockname(fd, (struct sockaddr *)&own, &own_len) == 0 &&
           getpeername(fd, (struct sockaddr *)&peer, &peer_len) == 0 && own_len == peer_len &&
           memcmp(&own, &peer, own_len) == 0;
}

bool dpt_socket_same_user(int fd)
{
    struct ucred cred;
    socklen_t len = sizeof cred;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) == 0 && cred.uid == geteuid();
}
