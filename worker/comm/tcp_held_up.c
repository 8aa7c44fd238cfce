/* The kernel's account of a connection (tcp_held_up.h). The C library's netinet/tcp.h has an older
 * struct tcp_info, and cannot be included beside the kernel's. */
#include "worker/comm/tcp_held_up.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>

int64_t dpt_tcp_held_up_us(int fd)
{
    struct tcp_info info;
    socklen_t bytes = sizeof info;
    memset(&info, 0, sizeof info);
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0 ||
        bytes < offsetof(struct tcp_info, tcpi_rwnd_limited) + sizeof info.tcpi_rwnd_limited)
        return 0;
    return (int64_t)info.tcpi_rwnd_limited;
}
