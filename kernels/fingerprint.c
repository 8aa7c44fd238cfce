/* Fingerprints of two devices that compute together. */
#include "base/hash.h"
#include "kernels/device.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void dpt_fingerprint_join(const char *device, const char *host, char ret[DPT_FINGERPRINT_BYTES])
{
    const uint32_t hash = (uint32_t)dpt_hash128(host, strlen(host)).lo;
    const int length = snprintf(ret, DPT_FINGERPRINT_BYTES, "%s host-%08" PRIx32, device, hash);
    DPT_ASSERT(length > 0 && length < DPT_FINGERPRINT_BYTES);
}
