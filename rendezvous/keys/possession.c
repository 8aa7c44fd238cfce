/* Proofs of secret keys. The only file of this folder that calls libcrypto. */
#include "rendezvous/keys/possession.h"

#include "base/cursor.h"
#include "base/hmac.h"

#include <openssl/evp.h>
#include <string.h>

_Static_assert((int)DPT_ENROLL_PROOF_BYTES == (int)DPT_HMAC_BYTES, "a proof is an HMAC");

/* DPT_EREFUSED: with this public key every secret key gives the same result (RFC 7748,
 * section 6.1); no pair has it. */
static enum dpt_status derive_shared_secret(const struct dpt_key *secret_key,
                                            const struct dpt_key *public_key,
                                            uint8_t ret[DPT_KEY_BYTES], struct dpt_err *err)
{
    EVP_PKEY *own = EVP_PKEY_new_raw_private_key(EVP_PKEY_X25519, NULL, secret_key->bytes,
                                                 sizeof secret_key->bytes);
    EVP_PKEY *other = EVP_PKEY_new_raw_public_key(EVP_PKEY_X25519, NULL, public_key->bytes,
                                                  sizeof public_key->bytes);
    EVP_PKEY_CTX *context = own != NULL ? EVP_PKEY_CTX_new(own, NULL) : NULL;
    size_t bytes = DPT_KEY_BYTES;
    const bool ready = context != NULL && other != NULL && EVP_PKEY_derive_init(context) == 1 &&
                       EVP_PKEY_derive_set_peer(context, other) == 1;
    const bool derived =
        ready && EVP_PKEY_derive(context, ret, &bytes) == 1 && bytes == DPT_KEY_BYTES;
    EVP_PKEY_CTX_free(context);
    EVP_PKEY_free(other);
    EVP_PKEY_free(own);
    if (!ready)
        return dpt_fail(err, DPT_EUNSUPPORTED,
                        "OpenSSL's libcrypto has no X25519 here, so no machine can prove its key: "
                        "enable its default provider");
    return derived ? DPT_OK : dpt_fail(err, DPT_EREFUSED, "the key is no public key of a pair");
}

/* The proof, by either side: its secret key and the other's public key. */
static enum dpt_status compute_proof(const struct dpt_enroll_request *request,
                                     const struct dpt_key *secret_key,
                                     const struct dpt_key *public_key,
                                     const struct dpt_key *const about[2],
                                     uint8_t ret[DPT_ENROLL_PROOF_BYTES], struct dpt_err *err)
{
    static const char label[16] = "dpt enrolment 2";
    uint8_t message[sizeof label + 3 * DPT_KEY_BYTES + DPT_ENROLL_NAME_BYTES];
    uint8_t shared[DPT_KEY_BYTES];
    struct dpt_writer writer;
    DPT_TRY(derive_shared_secret(secret_key, public_key, shared, err));
    dpt_writer_init(&writer, message, sizeof message);
    dpt_writer_bytes(&writer, label, sizeof label);
    dpt_writer_bytes(&writer, about[0]->bytes, DPT_KEY_BYTES);
    dpt_writer_bytes(&writer, about[1]->bytes, DPT_KEY_BYTES);
    dpt_writer_bytes(&writer, request->key.bytes, DPT_KEY_BYTES);
    dpt_writer_bytes(&writer, request->name, strlen(request->name));
    DPT_ASSERT(!writer.failed);
    dpt_hmac(shared, sizeof shared, message, writer.at, ret);
    return DPT_OK;
}

enum dpt_status dpt_possession_prove(struct dpt_enroll_request *request,
                                     const struct dpt_key *machine_secret,
                                     const struct dpt_key *server, const struct dpt_key *token,
                                     struct dpt_err *err)
{
    const struct dpt_key *const about[2] = {server, token};
    return compute_proof(request, machine_secret, server, about, request->proof, err);
}

enum dpt_status dpt_possession_check(const struct dpt_enroll_request *request,
                                     const struct dpt_key_pair *server, const struct dpt_key *token,
                                     struct dpt_err *err)
{
    const struct dpt_key *const about[2] = {&server->public_key, token};
    uint8_t proof[DPT_ENROLL_PROOF_BYTES];
    char hex[DPT_KEY_HEX_BYTES];
    struct dpt_err why;
    const enum dpt_status status =
        compute_proof(request, &server->secret_key, &request->key, about, proof, &why);
    if (status == DPT_OK && dpt_hmac_equal(proof, request->proof, sizeof proof))
        return DPT_OK;
    if (status != DPT_OK && status != DPT_EREFUSED)
        return dpt_pass(err, &why);
    dpt_key_hex(&request->key, hex);
    return dpt_fail(err, DPT_EREFUSED,
                    "the request does not prove that its sender has the secret key of %.8s: start "
                    "dpt-worker with the token on the machine whose machine.key this is",
                    hex);
}
