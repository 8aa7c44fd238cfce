/* What a connection opens with: the dialer's HELLO and the acceptor's WELCOME, 120 bytes of one
 * layout, little-endian. They say which run and generation, from whom to whom, and the plan's
 * nonce, which no stranger knows. */
#ifndef DPT_WORKER_COMM_HANDSHAKE_H
#define DPT_WORKER_COMM_HANDSHAKE_H

#include "worker/comm/comm.h"

enum { DPT_HELLO_BYTES = 120, DPT_HELLO_VERSION = 2 };
enum dpt_hello_kind { DPT_HELLO_DIALER = 1, DPT_HELLO_WELCOME };

void dpt_hello_encode(const struct dpt_comm_spec *spec, enum dpt_hello_kind kind, int to,
                      uint8_t ret_bytes[DPT_HELLO_BYTES]);

/* True if the bytes are a hello of this kind, of this run, generation, world and nonce, to this
 * rank; then *ret_from is who sent it. */
bool dpt_hello_check(const struct dpt_comm_spec *spec, enum dpt_hello_kind kind,
                     const uint8_t bytes[DPT_HELLO_BYTES], int *ret_from);

#endif
