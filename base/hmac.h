/* HMAC with SHA-256 (RFC 2104, FIPS 198-1): a code that only holders of the key can make for a
 * message. */
#ifndef DPT_BASE_HMAC_H
#define DPT_BASE_HMAC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DPT_HMAC_BYTES = 32, DPT_HMAC_KEY_BYTES_MAX = 64 };

/* The code of a message. `key` has at most DPT_HMAC_KEY_BYTES_MAX bytes. */
void dpt_hmac(const void *key, size_t key_bytes, const void *message, size_t bytes,
              uint8_t ret[DPT_HMAC_BYTES]);

/* Compares bytes in a time that does not tell where they differ. */
bool dpt_hmac_equal(const uint8_t *a, const uint8_t *b, size_t bytes);

#endif
