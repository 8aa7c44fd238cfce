/* Just enough ZMTP 3.0 (rfc.zeromq.org/spec/23) over a plain socket to play clients that no library
 * would be: for the tests of the server. Blocking, with a timeout of ZMTP_WAIT_MS on reading; a
 * function fails the test when the other side does not keep up. */
#ifndef DPT_TESTS_AGENT_ZMTP_H
#define DPT_TESTS_AGENT_ZMTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ZMTP_WAIT_MS = 20000 };

/* A TCP connection to a loopback port. */
int zmtp_dial(int port);

/* Greets and says READY as a DEALER, with a routing id of its own when `identity` is not NULL. */
void zmtp_handshake(int fd, const char *identity);

/* One message of one part, announced as `announced` bytes, of which `bytes` are sent. False when
 * the server closed. */
bool zmtp_send(int fd, const void *data, size_t bytes, uint64_t announced);

/* Reads and drops until the other side closes, counting (ret_bytes may be NULL); false when it does
 * not within ZMTP_WAIT_MS. */
bool zmtp_wait_closed(int fd, uint64_t *ret_bytes);

#endif
