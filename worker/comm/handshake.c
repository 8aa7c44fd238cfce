/* Hello and welcome (handshake.h). */
#include "worker/comm/handshake.h"

#include "base/cursor.h"
#include "base/hmac.h"
#include "worker/comm/route.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>

static const char magic[8] = "dptcomm";
enum { CODE_AT = 40, CODE_BYTES = 16 };
enum { HELLO_RELAYS = 0x100 }; /* beside the enum dpt_encrypt */

void dpt_handshake_encode(const struct dpt_comm_spec *spec, enum dpt_handshake_kind kind, int to,
                          const uint8_t salt[DPT_HANDSHAKE_SALT_BYTES],
                          uint8_t ret_bytes[DPT_HANDSHAKE_BYTES])
{
    char run[DPT_COMM_RUN_BYTES] = {0};
    uint8_t code[DPT_HMAC_BYTES] = {0};
    memcpy(run, spec->run, strnlen(spec->run, sizeof run - 1));
    struct dpt_writer writer;
    dpt_writer_init(&writer, ret_bytes, DPT_HANDSHAKE_BYTES);
    dpt_writer_bytes(&writer, magic, sizeof magic);
    dpt_writer_u32(&writer, DPT_HANDSHAKE_VERSION);
    dpt_writer_u32(&writer, kind);
    dpt_writer_u64(&writer, spec->generation);
    dpt_writer_u32(&writer, (uint32_t)spec->rank);
    dpt_writer_u32(&writer, (uint32_t)to);
    dpt_writer_u32(&writer, (uint32_t)spec->world_size);
    const bool relays = !dpt_route_is_mesh(spec->world_size, spec->mesh_max);
    dpt_writer_u32(&writer, (relays ? HELLO_RELAYS : 0) | (uint32_t)spec->encrypt);
    DPT_ASSERT(writer.at == CODE_AT);
    dpt_writer_bytes(&writer, code, CODE_BYTES); /* zeroes, while the code is made */
    DPT_ASSERT(writer.at == DPT_HANDSHAKE_SALT_AT);
    dpt_writer_bytes(&writer, salt, DPT_HANDSHAKE_SALT_BYTES);
    dpt_writer_bytes(&writer, run, sizeof run);
    DPT_ASSERT(dpt_writer_end(&writer, "hello", NULL) == DPT_OK &&
               writer.at == DPT_HANDSHAKE_BYTES);
    dpt_hmac(spec->nonce, sizeof spec->nonce, ret_bytes, DPT_HANDSHAKE_BYTES, code);
    memcpy(ret_bytes + CODE_AT, code, CODE_BYTES);
}

bool dpt_handshake_check(const struct dpt_comm_spec *spec, enum dpt_handshake_kind kind,
                         const uint8_t bytes[DPT_HANDSHAKE_BYTES], int *ret_from)
{
    /* The bytes name their sender. They must equal the hello that this sender would encode. */
    struct dpt_reader reader;
    dpt_reader_init(&reader, bytes, DPT_HANDSHAKE_BYTES);
    (void)dpt_reader_view(&reader, sizeof magic + 4 + 4 + 8);
    const uint32_t from = dpt_reader_u32(&reader);
    if (from >= (uint32_t)spec->world_size)
        return false;
    struct dpt_comm_spec other = *spec;
    other.rank = (int)from;
    uint8_t expected[DPT_HANDSHAKE_BYTES];
    dpt_handshake_encode(&other, kind, spec->rank, bytes + DPT_HANDSHAKE_SALT_AT, expected);
    if (!dpt_hmac_equal(bytes, expected, sizeof expected))
        return false;
    *ret_from = (int)from;
    return true;
}

bool dpt_handshake_send(int fd, const struct dpt_comm_spec *spec, enum dpt_handshake_kind kind,
                        int to, uint8_t ret_sent[DPT_HANDSHAKE_BYTES])
{
    uint8_t salt[DPT_HANDSHAKE_SALT_BYTES];
    if (getrandom(salt, sizeof salt, 0) != sizeof salt)
        return false;
    dpt_handshake_encode(spec, kind, to, salt, ret_sent);
    return send(fd, ret_sent, DPT_HANDSHAKE_BYTES, MSG_DONTWAIT | MSG_NOSIGNAL) ==
           DPT_HANDSHAKE_BYTES;
}

int dpt_handshake_receive(int fd, bool one_packet, uint8_t hello[DPT_HANDSHAKE_BYTES], size_t *got)
{
    const ssize_t n = recv(fd, hello + *got, DPT_HANDSHAKE_BYTES - *got, MSG_DONTWAIT);
    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : -1;
    if (n == 0 || (one_packet && n != DPT_HANDSHAKE_BYTES))
        return -1;
    *got += (size_t)n;
    return *got == DPT_HANDSHAKE_BYTES;
}
