/* See list.h. */
#include "rendezvous/keys/list.h"

#include <string.h>

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

/* No function of string.h gets the text: with strict_string_checks AddressSanitizer reads all of it
 * in each of them. */
bool dpt_key_list_read_line(const char **at, struct dpt_key_list_line *line)
{
    const char *p = *at, *end = p;
    bool fits = true;
    while (*end != '\0' && *end != '\n')
        end++;
    line->number++;
    line->n_words = 0;
    while (line->n_words < DPT_KEY_LIST_WORDS_MAX) {
        while (p < end && is_blank(*p))
            p++;
        const char *word = p;
        while (p < end && !is_blank(*p))
            p++;
        const size_t bytes = (size_t)(p - word);
        if (bytes == 0 || (line->n_words == 0 && *word == '#'))
            break;
        if (bytes >= DPT_KEY_LIST_WORD_BYTES) {
            fits = false;
            break;
        }
        memcpy(line->words[line->n_words], word, bytes);
        line->words[line->n_words++][bytes] = '\0';
    }
    *at = *end == '\n' ? end + 1 : end;
    return fits;
}
