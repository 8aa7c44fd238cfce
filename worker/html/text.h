/* Text in HTML and XML. */
#ifndef DPT_WORKER_HTML_TEXT_H
#define DPT_WORKER_HTML_TEXT_H

#include <stddef.h>
#include <stdio.h>

/* Writes text, as content or within the quotes of an attribute: &, <, > and " are quoted. Bytes
 * that are no UTF-8, and characters that XML does not allow, become '?'. */
void dpt_html_text(FILE *out, const char *text);

/* As dpt_html_text. Of a text with more than `characters_max` characters (3 or more) it writes the
 * beginning and the end, with "…" between them. */
void dpt_html_short_text(FILE *out, const char *text, size_t characters_max);

#endif
