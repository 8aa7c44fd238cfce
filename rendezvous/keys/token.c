/* Tokens: base64url, checksum, the secret key. */
#include "rendezvous/keys/token.h"

#include "base/sha256.h"

#include <string.h>

static const char prefix[] = "dpt1-", label[] = "dpt token 1";
static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

enum {
    BODY_BYTES = DPT_KEY_BYTES + DPT_TOKEN_SECRET_BYTES,
    SUM_BYTES = 3,
    RAW_BYTES = BODY_BYTES + SUM_BYTES,
    PREFIX_BYTES = sizeof prefix - 1,
    BASE64_BYTES = RAW_BYTES / 3 * 4
};
_Static_assert((int)DPT_SHA256_BYTES == (int)DPT_KEY_BYTES, "a sum is a key");
_Static_assert(RAW_BYTES % 3 == 0, "no padding");
_Static_assert(PREFIX_BYTES + BASE64_BYTES + 1 == DPT_TOKEN_TEXT_BYTES, "length of a token");

static struct dpt_key sha256_of(const char *first, size_t first_bytes, const uint8_t *second,
                                size_t second_bytes)
{
    struct dpt_sha256 sha;
    struct dpt_key sum;
    dpt_sha256_init(&sha);
    dpt_sha256_add(&sha, first, first_bytes);
    dpt_sha256_add(&sha, second, second_bytes);
    dpt_sha256_end(&sha, sum.bytes);
    return sum;
}

/* The key, the secret, their checksum. */
static void pack_token(const struct dpt_token *token, uint8_t ret[RAW_BYTES])
{
    memcpy(ret, token->server.bytes, DPT_KEY_BYTES);
    memcpy(ret + DPT_KEY_BYTES, token->secret, DPT_TOKEN_SECRET_BYTES);
    const struct dpt_key sum = sha256_of("", 0, ret, BODY_BYTES);
    memcpy(ret + BODY_BYTES, sum.bytes, SUM_BYTES);
}

void dpt_token_print(const struct dpt_token *token, char ret[DPT_TOKEN_TEXT_BYTES])
{
    uint8_t raw[RAW_BYTES];
    pack_token(token, raw);
    memcpy(ret, prefix, PREFIX_BYTES);
    char *to = ret + PREFIX_BYTES;
    for (int i = 0; i < RAW_BYTES; i += 3) {
        const uint32_t three =
            (uint32_t)raw[i] << 16 | (uint32_t)raw[i + 1] << 8 | (uint32_t)raw[i + 2];
        for (int k = 18; k >= 0; k -= 6)
            *to++ = alphabet[three >> k & 63];
    }
    *to = '\0';
}

/* False: a character is not in the alphabet. */
static bool unpack_base64(const char *text, uint8_t ret[RAW_BYTES])
{
    for (int i = 0; i < RAW_BYTES; i += 3) {
        uint32_t three = 0;
        for (int k = 0; k < 4; k++) {
            const char *at = strchr(alphabet, *text++);
            if (at == NULL)
                return false;
            three = three << 6 | (uint32_t)(at - alphabet);
        }
        for (int k = 0; k < 3; k++)
            ret[i + k] = (uint8_t)(three >> (16 - 8 * k));
    }
    return true;
}

enum dpt_status dpt_token_parse(const char *text, struct dpt_token *ret, struct dpt_err *err)
{
    uint8_t raw[RAW_BYTES], again[RAW_BYTES];
    if (strncmp(text, prefix, PREFIX_BYTES) != 0)
        return dpt_fail(err, DPT_ECONFIG,
                        "this is no token: copy the text that begins with dpt1- from the screen of "
                        "dpt-rdzv, or make a token with dpt-rdzv --new-token");
    if (strlen(text) != DPT_TOKEN_TEXT_BYTES - 1 || !unpack_base64(text + PREFIX_BYTES, raw))
        return dpt_fail(err, DPT_ECONFIG,
                        "a token has %d characters of A-Z, a-z, 0-9, - and _, this one has %zu or "
                        "others: copy it whole",
                        DPT_TOKEN_TEXT_BYTES - 1, strlen(text));
    struct dpt_token token;
    memcpy(token.server.bytes, raw, DPT_KEY_BYTES);
    memcpy(token.secret, raw + DPT_KEY_BYTES, DPT_TOKEN_SECRET_BYTES);
    pack_token(&token, again);
    if (memcmp(raw, again, sizeof raw) != 0)
        return dpt_fail(err, DPT_ECONFIG,
                        "the token's checksum is wrong: a character was lost or changed; copy it "
                        "again");
    *ret = token;
    return DPT_OK;
}

struct dpt_key dpt_token_secret_key(const struct dpt_token *token)
{
    return sha256_of(label, sizeof label - 1, token->secret, sizeof token->secret);
}
