/* Records of a protected connection (protected_records.h). */
#include "worker/comm/protected_records.h"

#include "base/cursor.h"
#include "base/hmac.h"

#include <errno.h>
#include <openssl/evp.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

enum {
    MARK_ORDINARY = 0,
    MARK_LAST = 1,
    IV_BYTES = 12,
    SKIPPED_BYTES = 16 << 10, /* buffer for unread bytes that are skipped */
    SKIPPED_MAX = 1000        /* buffers skipped in one call: far more than a socket holds */
};

/* ---- AES-256-GCM ---- */

static EVP_CIPHER_CTX *context_of(const struct wire_cipher *cipher)
{
    return (EVP_CIPHER_CTX *)(uintptr_t)cipher;
}

/* The key of the direction that this hello begins. */
static enum dpt_status make_cipher(const struct dpt_comm_spec *spec, bool seals,
                                   const uint8_t hello[DPT_HANDSHAKE_BYTES],
                                   struct wire_cipher **ret, struct dpt_err *err)
{
    static const char label[16] = "dpt data key 1";
    uint8_t message[sizeof label + DPT_HANDSHAKE_BYTES], key[DPT_HMAC_BYTES];
    memcpy(message, label, sizeof label);
    memcpy(message + sizeof label, hello, DPT_HANDSHAKE_BYTES);
    dpt_hmac(spec->nonce, sizeof spec->nonce, message, sizeof message, key);
    EVP_CIPHER_CTX *context = EVP_CIPHER_CTX_new();
    if (context == NULL)
        return dpt_fail_nomem(err, "key of a data connection");
    *ret = (struct wire_cipher *)context;
    if (EVP_CipherInit_ex(context, EVP_aes_256_gcm(), NULL, key, NULL, seals) != 1)
        return dpt_fail(err, DPT_EUNSUPPORTED, "OpenSSL has no AES-256-GCM here");
    return DPT_OK;
}

/* Seals or unseals a record of `bytes` payload bytes in place. */
static bool run_cipher(const struct wire_cipher *cipher, bool seals, bool encrypts, uint64_t number,
                       uint8_t *record, size_t bytes)
{
    EVP_CIPHER_CTX *context = context_of(cipher);
    uint8_t iv[IV_BYTES] = {0}, *payload = record + WIRE_HEAD_BYTES, *tag = payload + bytes;
    struct dpt_writer writer;
    int n = 0;
    dpt_writer_init(&writer, iv, sizeof iv);
    dpt_writer_u32(&writer, 0);
    dpt_writer_u64(&writer, number);
    bool fine = EVP_CipherInit_ex(context, NULL, NULL, NULL, iv, seals) == 1 &&
                EVP_CipherUpdate(context, NULL, &n, record, WIRE_HEAD_BYTES) == 1 &&
                EVP_CipherUpdate(context, encrypts ? payload : NULL, &n, payload, (int)bytes) == 1;
    if (fine && !seals)
        fine = EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_TAG, WIRE_TAG_BYTES, tag) == 1;
    fine = fine && EVP_CipherFinal_ex(context, tag, &n) == 1; /* it writes nothing */
    if (fine && seals)
        fine = EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, WIRE_TAG_BYTES, tag) == 1;
    return fine;
}

enum dpt_status dpt_wire_open(struct dpt_wire *wire, const struct dpt_comm_spec *spec,
                              const uint8_t sent[DPT_HANDSHAKE_BYTES], const uint8_t *got,
                              struct dpt_err *err)
{
    wire->encrypts = spec->encrypt == DPT_ENCRYPT_DATA;
    DPT_TRY(make_cipher(spec, true, sent, &wire->seal, err));
    return got == NULL ? DPT_OK : make_cipher(spec, false, got, &wire->unseal, err);
}

void dpt_wire_close(struct dpt_wire *wire)
{
    EVP_CIPHER_CTX_free(context_of(wire->seal));
    EVP_CIPHER_CTX_free(context_of(wire->unseal));
    wire->seal = wire->unseal = NULL;
}

/* ---- sending ---- */

bool dpt_wire_is_between_records(const struct dpt_wire *wire)
{
    return wire == NULL || wire->out_bytes == 0;
}

/* Takes up to a record of the pieces, after the first `skipped` bytes of them. */
static size_t fill_record(struct dpt_wire *wire, const struct iovec *iov, int n_iov, size_t skipped)
{
    uint8_t *payload = wire->out + WIRE_HEAD_BYTES;
    size_t bytes = 0;
    for (int i = 0; i < n_iov && bytes < WIRE_RECORD_BYTES; i++) {
        if (skipped >= iov[i].iov_len) {
            skipped -= iov[i].iov_len;
            continue;
        }
        const size_t left = iov[i].iov_len - skipped, room = WIRE_RECORD_BYTES - bytes;
        const size_t n = left < room ? left : room;
        memcpy(payload + bytes, (const uint8_t *)iov[i].iov_base + skipped, n);
        bytes += n;
        skipped = 0;
    }
    return bytes;
}

static bool seal_record(struct dpt_wire *wire, size_t bytes, uint32_t mark)
{
    struct dpt_writer writer;
    dpt_writer_init(&writer, wire->out, WIRE_HEAD_BYTES);
    dpt_writer_u32(&writer, (uint32_t)bytes);
    dpt_writer_u32(&writer, mark);
    wire->out_bytes = WIRE_HEAD_BYTES + bytes + WIRE_TAG_BYTES;
    wire->out_moved = 0;
    wire->out_plain = bytes;
    return run_cipher(wire->seal, true, wire->encrypts, wire->n_sealed++, wire->out, bytes);
}

/* Sends the rest of the record. False, with errno: the socket has not taken it whole. */
static bool flush_record(struct dpt_wire *wire, int fd)
{
    while (wire->out_moved < wire->out_bytes) {
        const ssize_t n = send(fd, wire->out + wire->out_moved, wire->out_bytes - wire->out_moved,
                               MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return false;
        wire->out_moved += (size_t)n;
    }
    wire->out_bytes = 0;
    return true;
}

ssize_t dpt_wire_send(struct dpt_wire *wire, int fd, const struct iovec *iov, int n_iov)
{
    if (wire == NULL) {
        const struct msghdr msg = {.msg_iov = (struct iovec *)(uintptr_t)iov,
                                   .msg_iovlen = (size_t)n_iov};
        ssize_t n;
        do
            n = sendmsg(fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
        while (n < 0 && errno == EINTR);
        return n;
    }
    for (size_t sent = 0;;) {
        if (wire->out_bytes == 0) {
            const size_t bytes = fill_record(wire, iov, n_iov, sent);
            if (bytes == 0)
                return (ssize_t)sent;
            DPT_ASSERT(seal_record(wire, bytes, MARK_ORDINARY)); /* fails on wrong use only */
        }
        if (!flush_record(wire, fd))
            return sent > 0 ? (ssize_t)sent : -1;
        sent += wire->out_plain;
    }
}

void dpt_wire_send_last(struct dpt_wire *wire, int fd, const void *data, size_t bytes)
{
    DPT_ASSERT(bytes <= WIRE_RECORD_BYTES && dpt_wire_is_between_records(wire));
    if (wire == NULL) {
        (void)!send(fd, data, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
        return;
    }
    memcpy(wire->out + WIRE_HEAD_BYTES, data, bytes);
    if (seal_record(wire, bytes, MARK_LAST))
        (void)!flush_record(wire, fd);
}

/* ---- receiving ---- */

bool dpt_wire_holds_bytes(const struct dpt_wire *wire)
{
    return wire != NULL && wire->plain_at < wire->plain_end;
}

bool dpt_wire_is_amid(const struct dpt_wire *wire)
{
    return wire != NULL && wire->in_got > 0 && !dpt_wire_holds_bytes(wire);
}

/* False: no record begins so. */
static bool read_head(const uint8_t head[WIRE_HEAD_BYTES], size_t *ret_bytes, uint32_t *ret_mark)
{
    struct dpt_reader reader;
    dpt_reader_init(&reader, head, WIRE_HEAD_BYTES);
    *ret_bytes = dpt_reader_u32(&reader);
    *ret_mark = dpt_reader_u32(&reader);
    return *ret_bytes >= 1 && *ret_bytes <= WIRE_RECORD_BYTES && *ret_mark <= MARK_LAST;
}

/* Gives the link unsealed bytes. After the last of them the next record begins. */
static ssize_t take_plain(struct dpt_wire *wire, const struct iovec *iov, int n_iov)
{
    size_t taken = 0;
    for (int i = 0; i < n_iov && wire->plain_at < wire->plain_end; i++) {
        const size_t left = wire->plain_end - wire->plain_at;
        const size_t n = left < iov[i].iov_len ? left : iov[i].iov_len;
        if (n > 0)
            memcpy(iov[i].iov_base, wire->in + wire->plain_at, n);
        wire->plain_at += n;
        taken += n;
    }
    if (wire->plain_at == wire->plain_end) {
        memcpy(wire->in, wire->next, wire->next_got);
        wire->in_got = wire->next_got;
        wire->next_got = 0;
    }
    return (ssize_t)taken;
}

/* Reads the rest of the record of `need` bytes, and the head of the next one, which is read in any
 * case if more has arrived. Returns the result of readv. */
static ssize_t read_record(struct dpt_wire *wire, int fd, size_t need)
{
    const size_t left = need - wire->in_got;
    const struct iovec iov[2] = {{wire->in + wire->in_got, left}, {wire->next, WIRE_HEAD_BYTES}};
    ssize_t n;
    do
        n = readv(fd, iov, need > WIRE_HEAD_BYTES ? 2 : 1);
    while (n < 0 && errno == EINTR);
    if (n <= 0)
        return n;
    const size_t first = (size_t)n < left ? (size_t)n : left;
    wire->received += (uint64_t)n;
    wire->in_got += first;
    wire->next_got = (size_t)n - first;
    return n;
}

ssize_t dpt_wire_receive(struct dpt_wire *wire, int fd, const struct iovec *iov, int n_iov)
{
    if (wire == NULL) {
        ssize_t n;
        do
            n = readv(fd, iov, n_iov);
        while (n < 0 && errno == EINTR);
        return n;
    }
    while (!dpt_wire_holds_bytes(wire)) {
        size_t bytes = 0, need = WIRE_HEAD_BYTES;
        uint32_t mark;
        if (wire->in_got >= WIRE_HEAD_BYTES) {
            if (!read_head(wire->in, &bytes, &mark)) {
                errno = EBADMSG;
                return -1;
            }
            need += bytes + WIRE_TAG_BYTES;
        }
        const ssize_t n = read_record(wire, fd, need);
        if (n <= 0)
            return n;
        if (bytes == 0 || wire->in_got < need)
            continue;
        if (!run_cipher(wire->unseal, false, wire->encrypts, wire->n_unsealed++, wire->in, bytes)) {
            errno = EBADMSG;
            return -1;
        }
        wire->plain_at = WIRE_HEAD_BYTES;
        wire->plain_end = WIRE_HEAD_BYTES + bytes;
    }
    return take_plain(wire, iov, n_iov);
}

/* ---- the end ---- */

bool dpt_wire_peek(int fd, void *ret, size_t bytes)
{
    uint8_t skipped[SKIPPED_BYTES];
    struct iovec iov[SKIPPED_MAX + 1];
    int unread = 0;
    size_t n = 0;
    if (ioctl(fd, FIONREAD, &unread) != 0 || (size_t)unread < bytes)
        return false;
    for (size_t left = (size_t)unread - bytes; left > 0 && n < SKIPPED_MAX; n++) {
        iov[n] = (struct iovec){skipped, left < sizeof skipped ? left : sizeof skipped};
        left -= iov[n].iov_len;
    }
    iov[n++] = (struct iovec){ret, bytes};
    struct msghdr msg = {.msg_iov = iov, .msg_iovlen = n};
    return recvmsg(fd, &msg, MSG_PEEK | MSG_DONTWAIT) == unread;
}

bool dpt_wire_ends_in_order(const struct dpt_wire *wire, int fd, size_t bytes)
{
    const size_t record = WIRE_HEAD_BYTES + bytes + WIRE_TAG_BYTES;
    const bool holds = dpt_wire_holds_bytes(wire);
    /* A part of the last record's head may have been read already. */
    const size_t got = holds ? wire->next_got : wire->in_got;
    uint8_t end[WIRE_BUFFER_BYTES];
    size_t of_head;
    uint32_t mark;
    DPT_ASSERT(bytes <= WIRE_RECORD_BYTES);
    if (!dpt_wire_peek(fd, end, record)) {
        if (got > WIRE_HEAD_BYTES || !dpt_wire_peek(fd, end + got, record - got))
            return false;
        memcpy(end, holds ? wire->next : wire->in, got);
    }
    return read_head(end, &of_head, &mark) && mark == MARK_LAST && of_head == bytes;
}
