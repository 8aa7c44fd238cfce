/* The part of ZMTP 3.0 (rfc.zeromq.org/spec/23) that tests of the server need to imitate clients
 * that break the protocol, which a library would not do. Plain sockets; calls block. A read that
 * takes longer than ZMTP_WAIT_MS fails the test. */
#ifndef DPT_TESTS_RENDEZVOUS_SERVER_ZMTP_H
#define DPT_TESTS_RENDEZVOUS_SERVER_ZMTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ZMTP_WAIT_MS = 20000 };

/* Opens a TCP connection to a loopback port; returns its fd. */
int zmtp_dial(int port);
/* The same, from the address 127.0.0.`host`. */
int zmtp_dial_from(int host, int port);

/* Sends the greeting of a client with keys, and reads that of the server. */
void zmtp_greet_curve(int fd);

/* Sends the greeting and READY of a DEALER; `identity`: its routing id, NULL: none. */
void zmtp_handshake(int fd, const char *identity);

/* Sends a message of one part, or a command: the header announces `announced` bytes, and `bytes`
 * bytes follow.
 * Returns false if the server closed the connection. */
bool zmtp_send(int fd, const void *data, size_t bytes, uint64_t announced);
bool zmtp_send_command(int fd, const void *data, size_t bytes, uint64_t announced);

/* Reads and discards bytes until the other side closes; *ret_bytes (may be NULL) is their number.
 * Returns false if it does not close within ZMTP_WAIT_MS. */
bool zmtp_wait_closed(int fd, uint64_t *ret_bytes);

#endif
