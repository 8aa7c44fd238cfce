/* How long the peer of a TCP connection has held up its sender. */
#ifndef DPT_WORKER_COMM_TCP_HELD_UP_H
#define DPT_WORKER_COMM_TCP_HELD_UP_H

#include <stdint.h>

/* The time in us, since the connection was made, in which bytes waited because the peer's window
 * was closed: its process did not read. 0 on a kernel before 4.10, which does not tell. */
int64_t dpt_tcp_held_up_us(int fd);

#endif
