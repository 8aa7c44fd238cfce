/* The two messages of an enrolment. A machine whose key the server does not know connects with the
 * key pair of a token. Over such a connection the server takes only a request to admit the
 * machine's own public key, and sends only its answer.
 *
 *     request   "DPTENROL", u16 version, 32 bytes key, 32 bytes proof, u16 length, name
 *     answer    "DPTADMIT", u16 version, u16 admitted, u16 length, text
 *
 * And the message by which the server tells a machine that is admitted the key that the server will
 * have next. A machine that was told uses it when the present key no longer serves.
 *
 *     next key  "DPTNEXTK", u16 version, 32 bytes key
 *
 * The proof shows that the sender has the secret key (possession.h). Numbers are little-endian. A
 * name or text of another version is not read. Pure. */
#ifndef DPT_RENDEZVOUS_KEYS_ENROLL_H
#define DPT_RENDEZVOUS_KEYS_ENROLL_H

#include "base/err.h"
#include "rendezvous/keys/key.h"

#include <stdbool.h>
#include <stddef.h>

enum {
    DPT_ENROLL_VERSION = 2, /* 1: a request without a proof */
    DPT_NEXT_KEY_VERSION = 1,
    DPT_ENROLL_PROOF_BYTES = 32,
    DPT_ENROLL_NAME_BYTES = 64,  /* NUL included */
    DPT_ENROLL_TEXT_BYTES = 256, /* NUL included */
    DPT_ENROLL_MESSAGE_BYTES_MAX = 8 + 2 + 2 + 2 + DPT_ENROLL_TEXT_BYTES
};

struct dpt_enroll_request {
    struct dpt_key key; /* the machine's public key */
    uint8_t proof[DPT_ENROLL_PROOF_BYTES];
    char name[DPT_ENROLL_NAME_BYTES]; /* of the machine, for people */
};

struct dpt_enroll_answer {
    bool admitted;
    char text[DPT_ENROLL_TEXT_BYTES]; /* not admitted: the reason, and what to do */
};

/* The status with which the server ends a handshake (ZAP, ZeroMQ RFC 27), and which libzmq passes
 * on to the client. */
enum {
    DPT_ENROLL_ZAP_UNKNOWN = 400, /* the key is unknown or denied */
    DPT_ENROLL_ZAP_SPENT = 500    /* the key is of a token that admits nobody (any more) */
};

/* Makes a name of at most 63 characters of A-Z, a-z, 0-9, '.', '_' and '-' from any text: other
 * characters become '-'. An empty text becomes "machine". */
void dpt_enroll_name(const char *text, char ret[DPT_ENROLL_NAME_BYTES]);

/* Write a message of at most DPT_ENROLL_MESSAGE_BYTES_MAX bytes; return its size. */
size_t dpt_enroll_request_encode(const struct dpt_enroll_request *request,
                                 uint8_t ret[DPT_ENROLL_MESSAGE_BYTES_MAX]);
size_t dpt_enroll_answer_encode(const struct dpt_enroll_answer *answer,
                                uint8_t ret[DPT_ENROLL_MESSAGE_BYTES_MAX]);

enum { DPT_NEXT_KEY_BYTES = 8 + 2 + DPT_KEY_BYTES };
void dpt_next_key_encode(const struct dpt_key *key, uint8_t ret[DPT_NEXT_KEY_BYTES]);
/* False: these bytes are no such message of this version. */
bool dpt_next_key_decode(const void *data, size_t bytes, struct dpt_key *ret);

/* True: the bytes begin as a request of any version. */
bool dpt_enroll_is_request(const void *data, size_t bytes);

/* DPT_EPROTO: these bytes are no such message. DPT_EVERSION: a message of another version. The name
 * of a request consists of the characters of dpt_enroll_name; a text has no control characters. */
DPT_MUST_USE enum dpt_status dpt_enroll_request_decode(const void *data, size_t bytes,
                                                       struct dpt_enroll_request *ret,
                                                       struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_enroll_answer_decode(const void *data, size_t bytes,
                                                      struct dpt_enroll_answer *ret,
                                                      struct dpt_err *err);

#endif
