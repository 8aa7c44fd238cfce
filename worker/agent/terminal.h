/* Writes the agent's lines to standard output and standard error. On a terminal it also draws one
 * live line below them.
 *
 * A separate thread writes, because the agent must go on answering the server while a terminal
 * takes nothing (Ctrl-S, a connection that hangs, a full pipe). Up to DPT_TERMINAL_QUEUE_BYTES of
 * lines are queued; later lines are counted and dropped. Without a live line exactly the caller's
 * bytes are written. */
#ifndef DPT_WORKER_AGENT_TERMINAL_H
#define DPT_WORKER_AGENT_TERMINAL_H

#include "base/err.h"
#include "worker/agent/progress_text.h"

#include <stdbool.h>

enum {
    DPT_TERMINAL_QUEUE_BYTES = 256 * 1024,
    DPT_TERMINAL_REDRAW_MS = 100,  /* shortest time between two drawings of the live line */
    DPT_TERMINAL_DRAIN_MS = 1000,  /* longest wait of destroy for the queue */
    DPT_TERMINAL_COLUMNS = 80,     /* assumed for a terminal of unknown width */
    DPT_TERMINAL_COLUMNS_MAX = 400 /* most columns of the live line */
};

struct dpt_terminal;

struct dpt_terminal_options {
    int out_fd, err_fd; /* borrowed */
    bool live;          /* draw the live line on out_fd */
    bool utf8;          /* else ASCII */
};

/* True when `fd` is a terminal that can have a live line: TERM (`term`) is set and not "dumb", and
 * NO_COLOR (`no_color`) is not set. Both may be NULL. */
bool dpt_terminal_is_live(int fd, const char *term, const char *no_color);

/* True when the environment's locale writes UTF-8. */
bool dpt_terminal_is_utf8(void);

DPT_MUST_USE enum dpt_status dpt_terminal_create(const struct dpt_terminal_options *options,
                                                 struct dpt_terminal **ret, struct dpt_err *err);

/* Queues a line for standard output, without its newline, of any length that fits into the queue.
 * Any thread; never waits. */
void dpt_terminal_print(struct dpt_terminal *terminal, const char *line);

/* Queues bytes for standard error, newline included. Any thread; never waits. */
void dpt_terminal_print_error(struct dpt_terminal *terminal, const char *text, size_t bytes);

/* Sets the content of the live line; NULL: no line. Copies the facts. Any thread; never waits. */
void dpt_terminal_show(struct dpt_terminal *terminal, const struct dpt_live_facts *facts);

/* Erases the live line and writes the queue for at most DPT_TERMINAL_DRAIN_MS; the rest is lost.
 * Accepts NULL and nulls the pointer. */
void dpt_terminal_destroy(struct dpt_terminal **terminal);

#endif
