/* Python's pickle format (pickle.h). Numbers are little-endian. */
#include "worker/trace/pickle.h"

#include <string.h>

enum {
    PROTO = 0x80,
    VERSION = 2,
    STOP = '.',
    BININT = 'J',  /* signed, 4 bytes */
    BININT1 = 'K', /* unsigned, 1 byte */
    BININT2 = 'M', /* unsigned, 2 bytes */
    LONG1 = 0x8a,  /* number of bytes, then the two's complement */
    NEWTRUE = 0x88,
    NEWFALSE = 0x89,
    BINUNICODE = 'X', /* 4 bytes of length, then UTF-8 */
    EMPTY_DICT = '}',
    EMPTY_LIST = ']',
    SETITEM = 's',
    APPEND = 'a',
    TUPLE2 = 0x86
};

static void put_byte(FILE *out, int byte)
{
    (void)putc(byte, out);
}

static void put_little(FILE *out, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        put_byte(out, (int)(value >> (8 * i) & 0xff));
}

void dpt_pickle_begin(FILE *out)
{
    put_byte(out, PROTO);
    put_byte(out, VERSION);
}

void dpt_pickle_end(FILE *out)
{
    put_byte(out, STOP);
}

void dpt_pickle_int(FILE *out, int64_t value)
{
    if (value >= 0 && value <= UINT8_MAX) {
        put_byte(out, BININT1);
        put_little(out, (uint64_t)value, 1);
    } else if (value >= 0 && value <= UINT16_MAX) {
        put_byte(out, BININT2);
        put_little(out, (uint64_t)value, 2);
    } else if (value >= INT32_MIN && value <= INT32_MAX) {
        put_byte(out, BININT);
        put_little(out, (uint64_t)value, 4);
    } else {
        put_byte(out, LONG1);
        put_byte(out, sizeof value);
        put_little(out, (uint64_t)value, sizeof value);
    }
}

void dpt_pickle_text(FILE *out, const char *text)
{
    const size_t bytes = strlen(text);
    put_byte(out, BINUNICODE);
    put_little(out, bytes, 4);
    (void)fwrite(text, 1, bytes, out);
}

void dpt_pickle_bool(FILE *out, bool value)
{
    put_byte(out, value ? NEWTRUE : NEWFALSE);
}

void dpt_pickle_dict(FILE *out)
{
    put_byte(out, EMPTY_DICT);
}

void dpt_pickle_list(FILE *out)
{
    put_byte(out, EMPTY_LIST);
}

void dpt_pickle_set(FILE *out)
{
    put_byte(out, SETITEM);
}

void dpt_pickle_append(FILE *out)
{
    put_byte(out, APPEND);
}

void dpt_pickle_pair(FILE *out)
{
    put_byte(out, TUPLE2);
}

void dpt_pickle_set_int(FILE *out, const char *key, int64_t value)
{
    dpt_pickle_text(out, key);
    dpt_pickle_int(out, value);
    dpt_pickle_set(out);
}

void dpt_pickle_set_text(FILE *out, const char *key, const char *text)
{
    dpt_pickle_text(out, key);
    dpt_pickle_text(out, text);
    dpt_pickle_set(out);
}
