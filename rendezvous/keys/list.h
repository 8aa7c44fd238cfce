/* Lines of the lists of machines and tokens: words with blanks between them. */
#ifndef DPT_RENDEZVOUS_KEYS_LIST_H
#define DPT_RENDEZVOUS_KEYS_LIST_H

#include <stdbool.h>
#include <stddef.h>

enum { DPT_KEY_LIST_WORDS_MAX = 6, DPT_KEY_LIST_WORD_BYTES = 80 };

/* Initially zeroed. */
struct dpt_key_list_line {
    size_t number; /* of the line that was read last, from 1 */
    char words[DPT_KEY_LIST_WORDS_MAX][DPT_KEY_LIST_WORD_BYTES];
    size_t n_words; /* further words of the line are ignored */
};

/* Reads the words of the line that begins at *at, and moves *at to the next line. An empty line,
 * and one that begins with #, has no words. False: a word is too long. */
bool dpt_key_list_read_line(const char **at, struct dpt_key_list_line *line);

#endif
