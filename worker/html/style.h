/* The style of all HTML pages. */
#ifndef DPT_WORKER_HTML_STYLE_H
#define DPT_WORKER_HTML_STYLE_H

/* CSS, of characters that need no quoting in XML. */
extern const char dpt_html_style[];

#endif
