/* Tokens as text. A token is what an operator copies from the server's screen to another machine:
 *
 *     dpt1-<68 characters of base64url>     (RFC 4648, section 5, without padding)
 *     32 bytes   the server's public key
 *     16 bytes   a secret
 *      3 bytes   the start of SHA-256 of the 48 bytes, against errors of copying
 *
 * The secret gives a key pair: its secret key is SHA-256("dpt token 1" and the 16 bytes). With this
 * pair a machine connects once, to have its own key admitted (enroll.h). The server keeps only the
 * pair's public key, with an expiry and a count (admission.h). Pure. */
#ifndef DPT_RENDEZVOUS_KEYS_TOKEN_H
#define DPT_RENDEZVOUS_KEYS_TOKEN_H

#include "base/err.h"
#include "rendezvous/keys/key.h"

enum {
    DPT_TOKEN_SECRET_BYTES = 16,
    DPT_TOKEN_TEXT_BYTES = 5 + 68 + 1 /* NUL included */
};

struct dpt_token {
    struct dpt_key server; /* public */
    uint8_t secret[DPT_TOKEN_SECRET_BYTES];
};

void dpt_token_print(const struct dpt_token *token, char ret[DPT_TOKEN_TEXT_BYTES]);

/* DPT_ECONFIG: the text is no token, or was not copied whole. The error does not repeat the
 * text. */
DPT_MUST_USE enum dpt_status dpt_token_parse(const char *text, struct dpt_token *ret,
                                             struct dpt_err *err);

/* The secret key of the token's pair. */
struct dpt_key dpt_token_secret_key(const struct dpt_token *token);

#endif
