/* The bytes of a data connection between hosts, as they go over the network: as they are, or in
 * records that are protected (cluster.encrypt). It stands between a link and its socket.
 *
 *     record   u32 bytes, u32 mark | 1 … WIRE_RECORD_BYTES of the link's bytes | 16 bytes tag
 *
 * The tag is that of AES-256-GCM (NIST SP 800-38D), by OpenSSL's libcrypto, over the head and the
 * bytes of the link. DPT_ENCRYPT_MAC leaves these readable (GMAC), DPT_ENCRYPT_DATA encrypts them.
 * Each direction has its own key: the HMAC-SHA256 of the hello that its sender has sent, with the
 * plan's nonce as the key. Each hello has fresh random bytes (handshake.h), so no key serves twice.
 * The number of a record in its direction is its initialisation vector, and does not go over the
 * network. So a record that is changed, repeated, left out or taken from another connection is
 * found.
 *
 * `wire` NULL: the bytes go as they are. The functions do not block, and allocate only in open. The
 * owner of the link calls them. */
#ifndef DPT_WORKER_COMM_PROTECTED_RECORDS_H
#define DPT_WORKER_COMM_PROTECTED_RECORDS_H

#include "worker/comm/comm.h"
#include "worker/comm/handshake.h"

#include <sys/types.h>
#include <sys/uio.h>

enum {
    WIRE_HEAD_BYTES = 8,
    WIRE_TAG_BYTES = 16,
    WIRE_RECORD_BYTES = 16 << 10,
    WIRE_BUFFER_BYTES = WIRE_HEAD_BYTES + WIRE_RECORD_BYTES + WIRE_TAG_BYTES
};

struct wire_cipher;

/* A zeroed wire is closed. */
struct dpt_wire {
    bool encrypts;                     /* DPT_ENCRYPT_DATA */
    struct wire_cipher *seal, *unseal; /* owned; for what is sent and received; NULL: no key yet */
    uint64_t n_sealed, n_unsealed;     /* numbers of records */
    uint64_t received;                 /* bytes that came from the socket */
    /* The record that the socket has not taken whole, and the bytes of the link that it holds. */
    size_t out_bytes, out_moved, out_plain;
    size_t in_got;              /* bytes of the record that arrives */
    size_t plain_at, plain_end; /* in `in`: unsealed bytes that the link has not taken */
    size_t next_got;            /* bytes of the head after that record */
    uint8_t next[WIRE_HEAD_BYTES];
    uint8_t out[WIRE_BUFFER_BYTES], in[WIRE_BUFFER_BYTES];
};

/* Makes the keys of a connection. `sent`: this side's hello or welcome. `got`: the peer's; NULL: it
 * has not come, and nothing will be received. DPT_ENOMEM, DPT_EUNSUPPORTED. */
DPT_MUST_USE enum dpt_status dpt_wire_open(struct dpt_wire *wire, const struct dpt_comm_spec *spec,
                                           const uint8_t sent[DPT_HANDSHAKE_BYTES],
                                           const uint8_t *got, struct dpt_err *err);
void dpt_wire_close(struct dpt_wire *wire);

/* Like sendmsg with these pieces: the number of bytes that the socket has taken, or -1 and errno.
 * EAGAIN: call again with the same bytes at the front, and any more behind them. */
ssize_t dpt_wire_send(struct dpt_wire *wire, int fd, const struct iovec *iov, int n_iov);

/* True: the socket has taken whole records. */
bool dpt_wire_is_between_records(const struct dpt_wire *wire);

/* Sends the last bytes of a connection, at most WIRE_RECORD_BYTES, in one record that is marked as
 * the last. Best effort, between records. */
void dpt_wire_send_last(struct dpt_wire *wire, int fd, const void *data, size_t bytes);

/* Like readv: 0: the connection has ended; -1 and errno, EBADMSG: a record was changed, or is from
 * someone else. EAGAIN: no whole record has arrived. */
ssize_t dpt_wire_receive(struct dpt_wire *wire, int fd, const struct iovec *iov, int n_iov);

/* True: bytes have arrived that the next receive returns without the socket. */
bool dpt_wire_holds_bytes(const struct dpt_wire *wire);

/* True: a part of a record has arrived. */
bool dpt_wire_is_amid(const struct dpt_wire *wire);

/* Copies the last `bytes` unread bytes of the socket, and leaves them there. False: there are
 * fewer, or more than a socket holds. */
bool dpt_wire_peek(int fd, void *ret, size_t bytes);

/* After the peer has closed the connection, while the link holds bytes back: true if the last
 * unread record is marked as the last, with `bytes` bytes of the link. This is not verified, and
 * decides only whether the bytes before it are waited for. */
bool dpt_wire_ends_in_order(const struct dpt_wire *wire, int fd, size_t bytes);

#endif
