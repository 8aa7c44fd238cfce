/* Text in HTML and XML. */
#include "worker/html/text.h"

#include <stdbool.h>

/* The length of the character of UTF-8 at `s`, 0 if there is none that XML allows. */
static size_t character_bytes(const char *s)
{
    const unsigned char *u = (const unsigned char *)s;
    const size_t n = u[0] < 0x80 ? 1 : u[0] < 0xe0 ? 2 : u[0] < 0xf0 ? 3 : 4;
    if (u[0] < ' ' || (u[0] >= 0x80 && u[0] < 0xc2) || u[0] > 0xf4)
        return 0;
    for (size_t i = 1; i < n; i++)
        if ((u[i] & 0xc0) != 0x80)
            return 0;
    const bool is_overlong = (u[0] == 0xe0 && u[1] < 0xa0) || (u[0] == 0xf0 && u[1] < 0x90);
    const bool is_none = (u[0] == 0xed && u[1] > 0x9f) || (u[0] == 0xf4 && u[1] > 0x8f) ||
                         (u[0] == 0xef && u[1] == 0xbf && u[2] >= 0xbe);
    return is_overlong || is_none ? 0 : n;
}

/* Writes the character at `text`, and returns its length. */
static size_t write_character(FILE *out, const char *text)
{
    const size_t n = character_bytes(text);
    if (*text == '&')
        (void)fputs("&amp;", out);
    else if (*text == '<')
        (void)fputs("&lt;", out);
    else if (*text == '>')
        (void)fputs("&gt;", out);
    else if (*text == '"')
        (void)fputs("&quot;", out);
    else if (n > 0)
        (void)fwrite(text, 1, n, out);
    else
        (void)fputc('?', out);
    return n > 0 ? n : 1;
}

void dpt_html_text(FILE *out, const char *text)
{
    while (*text)
        text += write_character(out, text);
}

static size_t next_character(const char *text)
{
    const size_t n = character_bytes(text);
    return n > 0 ? n : 1;
}

void dpt_html_short_text(FILE *out, const char *text, size_t characters_max)
{
    size_t characters = 0;
    for (const char *at = text; *at; at += next_character(at))
        characters++;
    const bool is_cut = characters > characters_max;
    const size_t begin = is_cut ? characters_max / 2 : characters;
    const size_t end = is_cut ? characters - (characters_max - 1 - begin) : characters;
    size_t i = 0;
    for (; i < begin; i++)
        text += write_character(out, text);
    if (is_cut)
        (void)fputs("…", out);
    for (; i < end; i++)
        text += next_character(text);
    dpt_html_text(out, text);
}
