/* GPT-2's regular expression, written by hand: its alternatives in their order, each greedy. */
#include "worker/data/split.h"

#include "unicode_table.inc"

enum kind { OTHER, LETTER, NUMBER, SPACE };

/* The classes of ASCII characters. Most text is ASCII, and skips the two stages of the table. */
#define O OTHER
#define L LETTER
#define N NUMBER
#define S SPACE
static const uint8_t ascii[128] = {
    O, O, O, O, O, O, O, O, O, S, S, S, S, S, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O,
    S, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, N, N, N, N, N, N, N, N, N, N, O, O, O, O, O, O,
    O, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, O, O, O, O, O,
    O, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, O, O, O, O, O};
#undef O
#undef L
#undef N
#undef S

static enum kind class_of(uint32_t c)
{
    if (c >= DPT_UNICODE_END)
        return OTHER;
    const uint32_t word = dpt_unicode_block[dpt_unicode_page[c >> 8]][c >> 4 & 15];
    return (enum kind)(word >> 2 * (c & 15) & 3);
}

/* The class of the character at `at`; the text is valid UTF-8. */
static enum kind class_at(const uint8_t *text, size_t at, size_t *ret_bytes)
{
    const uint8_t *p = text + at;
    if (p[0] < 0x80) {
        *ret_bytes = 1;
        return (enum kind)ascii[p[0]];
    }
    if (p[0] < 0xe0) {
        *ret_bytes = 2;
        return class_of((p[0] & 0x1fu) << 6 | (p[1] & 0x3fu));
    }
    if (p[0] < 0xf0) {
        *ret_bytes = 3;
        return class_of((p[0] & 0x0fu) << 12 | (p[1] & 0x3fu) << 6 | (p[2] & 0x3fu));
    }
    *ret_bytes = 4;
    return class_of((p[0] & 0x07u) << 18 | (p[1] & 0x3fu) << 12 | (p[2] & 0x3fu) << 6 |
                    (p[3] & 0x3fu));
}

/* The end of the run of characters of class `of` that begins at `at`. */
static size_t run_end(const uint8_t *text, size_t at, size_t bytes, enum kind of)
{
    for (;;) {
        size_t n;
        while (at < bytes && text[at] < 0x80 && ascii[text[at]] == of)
            at++;
        if (at >= bytes || text[at] < 0x80 || class_at(text, at, &n) != of)
            return at;
        at += n;
    }
}

/* Bytes of the contraction at `text`, which begins with an apostrophe; 0: none. */
static size_t contraction_bytes(const uint8_t *text, size_t bytes)
{
    const uint8_t a = bytes > 1 ? text[1] : 0, b = bytes > 2 ? text[2] : 0;
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return 2;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l'))
        return 3;
    return 0;
}

/* Bytes of a run of white space. At the end of the text the whole run is a piece. Before other text
 * the run leaves its last character to the next piece, unless it is its only character. */
static size_t white_space_bytes(const uint8_t *text, size_t bytes)
{
    size_t at = 0, last = 0, n;
    while (at < bytes && class_at(text, at, &n) == SPACE) {
        last = at;
        at += n;
    }
    return at == bytes || last == 0 ? at : last;
}

size_t dpt_split_next(const uint8_t *text, size_t bytes)
{
    size_t at = 0, n;
    if (text[0] == '\'' && (n = contraction_bytes(text, bytes)) > 0)
        return n;
    if (text[0] == ' ' && bytes > 1)
        at = 1;
    const enum kind first = class_at(text, at, &n);
    if (first == SPACE)
        return white_space_bytes(text, bytes);
    return run_end(text, at + n, bytes, first);
}

size_t dpt_split_digits_next(const uint8_t *text, size_t bytes, bool each)
{
    size_t at, n;
    const bool number = class_at(text, 0, &at) == NUMBER;
    while (at < bytes && !(number && each) && (class_at(text, at, &n) == NUMBER) == number)
        at += n;
    return at;
}

/* Whether the character that ends before `at` is not white space. Invalid UTF-8 becomes U+FFFD,
 * which is not white space. */
static bool no_space_before(const uint8_t *text, size_t at)
{
    size_t first = at - 1, n = 0;
    while (first > 0 && at - first < 4 && (text[first] & 0xc0) == 0x80)
        first--;
    /* White space characters have one to three bytes. */
    const size_t length = at - first;
    const uint8_t lead = text[first];
    const size_t says = lead < 0x80                   ? 1
                        : lead >= 0xc2 && lead < 0xe0 ? 2
                        : lead >= 0xe0 && lead < 0xf0 ? 3
                                                      : 0;
    return says != length || class_at(text, first, &n) != SPACE;
}

size_t dpt_split_cut(const uint8_t *text, size_t bytes, enum dpt_cuts cuts)
{
    for (size_t at = cuts == DPT_CUTS_NONE ? 0 : bytes; at-- > 1;)
        if (text[at] < 0x80 && ascii[text[at]] == SPACE &&
            (text[at] == ' ' || cuts == DPT_CUTS_SPACES) && no_space_before(text, at))
            return at;
    return 0;
}
