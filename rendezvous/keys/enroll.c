/* The messages of an enrolment as bytes. */
#include "rendezvous/keys/enroll.h"

#include "base/cursor.h"

#include <string.h>

static const char request_magic[8] = "DPTENROL", answer_magic[8] = "DPTADMIT";
static const char next_magic[8] = "DPTNEXTK";
static const char name_characters[] =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";

void dpt_enroll_name(const char *text, char ret[DPT_ENROLL_NAME_BYTES])
{
    size_t n = strnlen(text, DPT_ENROLL_NAME_BYTES - 1);
    if (n == 0) {
        memcpy(ret, "machine", sizeof "machine");
        return;
    }
    for (size_t i = 0; i < n; i++)
        ret[i] = strchr(name_characters, text[i]) != NULL ? text[i] : '-';
    ret[n] = '\0';
}

/* ---- writing ---- */

static void write_text(struct dpt_writer *writer, const char *text)
{
    const size_t bytes = strlen(text);
    dpt_writer_u16(writer, (uint16_t)bytes);
    dpt_writer_bytes(writer, text, bytes);
}

size_t dpt_enroll_request_encode(const struct dpt_enroll_request *request,
                                 uint8_t ret[DPT_ENROLL_MESSAGE_BYTES_MAX])
{
    struct dpt_writer writer;
    dpt_writer_init(&writer, ret, DPT_ENROLL_MESSAGE_BYTES_MAX);
    dpt_writer_bytes(&writer, request_magic, sizeof request_magic);
    dpt_writer_u16(&writer, DPT_ENROLL_VERSION);
    dpt_writer_bytes(&writer, request->key.bytes, DPT_KEY_BYTES);
    dpt_writer_bytes(&writer, request->proof, sizeof request->proof);
    write_text(&writer, request->name);
    DPT_ASSERT(!writer.failed);
    return writer.at;
}

size_t dpt_enroll_answer_encode(const struct dpt_enroll_answer *answer,
                                uint8_t ret[DPT_ENROLL_MESSAGE_BYTES_MAX])
{
    struct dpt_writer writer;
    dpt_writer_init(&writer, ret, DPT_ENROLL_MESSAGE_BYTES_MAX);
    dpt_writer_bytes(&writer, answer_magic, sizeof answer_magic);
    dpt_writer_u16(&writer, DPT_ENROLL_VERSION);
    dpt_writer_u16(&writer, answer->admitted ? 1 : 0);
    write_text(&writer, answer->text);
    DPT_ASSERT(!writer.failed);
    return writer.at;
}

void dpt_next_key_encode(const struct dpt_key *key, uint8_t ret[DPT_NEXT_KEY_BYTES])
{
    struct dpt_writer writer;
    dpt_writer_init(&writer, ret, DPT_NEXT_KEY_BYTES);
    dpt_writer_bytes(&writer, next_magic, sizeof next_magic);
    dpt_writer_u16(&writer, DPT_NEXT_KEY_VERSION);
    dpt_writer_bytes(&writer, key->bytes, DPT_KEY_BYTES);
    DPT_ASSERT(!writer.failed && writer.at == DPT_NEXT_KEY_BYTES);
}

/* ---- reading ---- */

static enum dpt_status read_head(struct dpt_reader *reader, const char magic[8], int own_version,
                                 const char *what, struct dpt_err *err)
{
    char found[8];
    dpt_reader_bytes(reader, found, sizeof found);
    const uint16_t version = dpt_reader_u16(reader);
    if (reader->failed || memcmp(found, magic, sizeof found) != 0)
        return dpt_fail(err, DPT_EPROTO, "%s is malformed", what);
    if (version != own_version)
        return dpt_fail(err, DPT_EVERSION,
                        "%s has version %u, this program version %d: install the same version of "
                        "dpt on both machines",
                        what, (unsigned)version, own_version);
    return DPT_OK;
}

/* Reads a length and a text of fewer than `room` bytes without NUL. */
static void read_text(struct dpt_reader *reader, char *ret, size_t room)
{
    const uint16_t bytes = dpt_reader_u16(reader);
    if (bytes >= room) {
        dpt_reader_reject(reader);
        return;
    }
    dpt_reader_bytes(reader, ret, bytes);
    ret[bytes] = '\0';
    if (strlen(ret) != bytes)
        dpt_reader_reject(reader);
}

bool dpt_enroll_is_request(const void *data, size_t bytes)
{
    return bytes >= sizeof request_magic && memcmp(data, request_magic, sizeof request_magic) == 0;
}

enum dpt_status dpt_enroll_request_decode(const void *data, size_t bytes,
                                          struct dpt_enroll_request *ret, struct dpt_err *err)
{
    static const char what[] = "request to admit a key";
    struct dpt_reader reader;
    struct dpt_enroll_request request = {.name = ""};
    dpt_reader_init(&reader, data, bytes);
    DPT_TRY(read_head(&reader, request_magic, DPT_ENROLL_VERSION, what, err));
    dpt_reader_bytes(&reader, request.key.bytes, DPT_KEY_BYTES);
    dpt_reader_bytes(&reader, request.proof, sizeof request.proof);
    read_text(&reader, request.name, sizeof request.name);
    if (request.name[0] == '\0' || strspn(request.name, name_characters) != strlen(request.name))
        dpt_reader_reject(&reader);
    DPT_TRY(dpt_reader_end(&reader, what, err));
    *ret = request;
    return DPT_OK;
}

enum dpt_status dpt_enroll_answer_decode(const void *data, size_t bytes,
                                         struct dpt_enroll_answer *ret, struct dpt_err *err)
{
    static const char what[] = "the server's answer to a key";
    struct dpt_reader reader;
    struct dpt_enroll_answer answer = {.text = ""};
    dpt_reader_init(&reader, data, bytes);
    DPT_TRY(read_head(&reader, answer_magic, DPT_ENROLL_VERSION, what, err));
    const uint16_t admitted = dpt_reader_u16(&reader);
    if (admitted > 1)
        dpt_reader_reject(&reader);
    answer.admitted = admitted == 1;
    read_text(&reader, answer.text, sizeof answer.text);
    DPT_TRY(dpt_reader_end(&reader, what, err));
    dpt_one_line(answer.text);
    *ret = answer;
    return DPT_OK;
}

bool dpt_next_key_decode(const void *data, size_t bytes, struct dpt_key *ret)
{
    struct dpt_reader reader;
    struct dpt_key key = {{0}};
    struct dpt_err ignored;
    static const char what[] = "the server's next key";
    dpt_reader_init(&reader, data, bytes);
    if (read_head(&reader, next_magic, DPT_NEXT_KEY_VERSION, what, &ignored) != DPT_OK)
        return false;
    dpt_reader_bytes(&reader, key.bytes, DPT_KEY_BYTES);
    if (dpt_reader_end(&reader, what, &ignored) != DPT_OK)
        return false;
    *ret = key;
    return true;
}
