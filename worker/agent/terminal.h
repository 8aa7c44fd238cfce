/* Writes the agent's lines to standard output and standard error, and on a terminal one live line
 * below them.
 *
 * A separate thread writes: a terminal may take nothing for a while (Ctrl-S, a connection that
 * hangs, a full pipe), and the agent must go on answering the server. Lines are queued up to
 * DPT_TERMINAL_QUEUE_BYTES; later ones are counted and dropped. Without a live line exactly the
 * caller's bytes are written. */
#ifndef DPT_WORKER_AGENT_TERMINAL_H
#define DPT_WORKER_AGENT_TERMINAL_H

#include "base/err.h"
#include "worker/agent/progress_text.h"

#include <stdbool.h>

enum {
    DPT_TERMINAL_QUEUE_BYTES = 256 * 1024,
    DPT_TERMINAL_REDRAW_MS = 100,  /* the live line is drawn no more often */
    DPT_TERMINAL_DRAIN_MS = 1000,  /* longest wait of destroy for the queue */
    DPT_TERMINAL_COLUMNS = 80,     /* of a terminal of unknown width */
    DPT_TERMINAL_COLUMNS_MAX = 400 /* of the live line */
};

struct dpt_terminal;

struct dpt_terminal_options {
    int out_fd, err_fd; /* borrowed */
    bool live;          /* draw the live line on out_fd */
    bool utf8;          /* else ASCII */
};

/* True when `fd` is a terminal for a live line: TERM (`term`) is set and not "dumb", NO_COLOR
 * (`no_color`) is not set. Both may be NULL. */
bool dpt_terminal_is_live(int fd, const char *term, const char *no_color);

/* True when the environment's locale writes UTF-8. */
bool dpt_terminal_is_utf8(void);

DPT_MUST_USE enum dpt_status dpt_terminal_create(const struct dpt_terminal_options *options,
                                                 struct dpt_terminal **ret, struct dpt_err *err);

/* A line for standard output, without its newline, of any length that fits into the queue. Any
 * thread; never waits. */
void dpt_terminal_print(struct dpt_terminal *terminal, const char *line);

/* Bytes for standard error, newline included. Any thread; never waits. */
void dpt_terminal_print_error(struct dpt_terminal *terminal, const char *text, size_t bytes);

/* The new content of the live line; NULL: no line. Copied. Any thread; never waits. */
void dpt_terminal_show(struct dpt_terminal *terminal, const struct dpt_live_facts *facts);

/* Erases the live line and writes the queue, for DPT_TERMINAL_DRAIN_MS at most; the rest is lost.
 * Accepts NULL and nulls the pointer. */
void dpt_terminal_destroy(struct dpt_terminal **terminal);

#endif
