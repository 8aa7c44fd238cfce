/* The sockets on which peers dial, and the texts of addresses (comm.h). */
#include "worker/comm/listener.h"

#include "base/hash.h"
#include "worker/comm/socket_address.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BACKLOG = 1024 };

static enum dpt_status open_shm(struct dpt_comm_listener *listener, struct dpt_err *err)
{
    struct dpt_hash128 name; /* random */
    char hex[DPT_HASH_HEX_BYTES];
    if (getrandom(&name, sizeof name, 0) != (ssize_t)sizeof name)
        return dpt_fail_errno(err, errno, "random name of a socket");
    dpt_hash128_hex(name, hex);
    (void)snprintf(listener->shm_addr, sizeof listener->shm_addr, "@dpt-comm-%s", hex);
    struct dpt_address address;
    DPT_TRY(dpt_address_parse(listener->shm_addr, &address, err));
    listener->shm_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (listener->shm_fd < 0 ||
        bind(listener->shm_fd, (struct sockaddr *)&address.addr, address.len) != 0 ||
        listen(listener->shm_fd, BACKLOG) != 0)
        return dpt_fail_errno(err, errno, "listen on the local socket '%s'", listener->shm_addr);
    return DPT_OK;
}

static enum dpt_status open_tcp(struct dpt_comm_listener *listener, const char *host,
                                struct dpt_err *err)
{
    struct dpt_address address;
    DPT_TRY(dpt_address_of_host(host, "0", &address, err));
    listener->tcp_fd =
        socket(address.addr.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (listener->tcp_fd < 0 ||
        bind(listener->tcp_fd, (struct sockaddr *)&address.addr, address.len) != 0 ||
        listen(listener->tcp_fd, BACKLOG) != 0)
        return dpt_fail_errno(err, errno, "listen for peers on %s", host);
    address.len = sizeof address.addr;
    if (getsockname(listener->tcp_fd, (struct sockaddr *)&address.addr, &address.len) != 0)
        return dpt_fail_errno(err, errno, "port of the listener on %s", host);
    return dpt_address_format(&address, listener->tcp_addr, sizeof listener->tcp_addr, err);
}

enum dpt_status dpt_comm_listener_create(const char *host, struct dpt_comm_listener **ret,
                                         struct dpt_err *err)
{
    struct dpt_comm_listener *listener = calloc(1, sizeof *listener);
    if (listener == NULL)
        return dpt_fail_nomem(err, "listener");
    listener->shm_fd = listener->tcp_fd = -1;
    enum dpt_status status = open_shm(listener, err);
    if (status == DPT_OK)
        status = open_tcp(listener, host, err);
    if (status == DPT_OK)
        status = dpt_comm_mem_create(listener, COMM_STAGING_BYTES, &listener->staging, err);
    if (status != DPT_OK) {
        dpt_comm_listener_destroy(&listener);
        return status;
    }
    *ret = listener;
    return DPT_OK;
}

void dpt_comm_listener_destroy(struct dpt_comm_listener **listener_p)
{
    struct dpt_comm_listener *listener = *listener_p;
    *listener_p = NULL;
    if (listener == NULL)
        return;
    DPT_ASSERT(listener->comms == 0);
    dpt_comm_mem_destroy(&listener->staging);
    for (int i = 0; i < COMM_REGIONS; i++)
        DPT_ASSERT(listener->mems[i] == NULL); /* the caller has destroyed its regions */
    if (listener->network != NULL)
        listener->network->unlisten(listener);
    if (listener->shm_fd >= 0)
        close(listener->shm_fd);
    if (listener->tcp_fd >= 0)
        close(listener->tcp_fd);
    free(listener);
}

const char *dpt_comm_listener_shm_addr(const struct dpt_comm_listener *listener)
{
    return listener->shm_addr;
}

const char *dpt_comm_listener_tcp_addr(const struct dpt_comm_listener *listener)
{
    return listener->tcp_addr;
}
