/* Where the agent's lines go: standard output and standard error, and on a terminal one live line
 * below them.
 *
 * A thread of its own writes. A terminal may take nothing for a while (Ctrl-S, a connection that
 * hangs, a full pipe), and the agent, which must answer the server, does not wait for it: lines are
 * kept up to DPT_TERMINAL_QUEUE_BYTES, later ones counted and left out. Without a live line no byte
 * is written that the caller did not give. */
#ifndef DPT_WORKER_AGENT_TERMINAL_H
#define DPT_WORKER_AGENT_TERMINAL_H

#include "base/err.h"
#include "worker/agent/progress_text.h"

#include <stdbool.h>

enum {
    DPT_TERMINAL_QUEUE_BYTES = 256 * 1024,
    DPT_TERMINAL_REDRAW_MS = 100,  /* the live line is drawn no more often */
    DPT_TERMINAL_DRAIN_MS = 1000,  /* destroy waits so long for lines to be taken */
    DPT_TERMINAL_COLUMNS = 80,     /* where the terminal does not tell */
    DPT_TERMINAL_COLUMNS_MAX = 400 /* a wider live line helps nobody */
};

struct dpt_terminal;

struct dpt_terminal_options {
    int out_fd, err_fd; /* borrowed */
    bool live;          /* draw the live line on out_fd */
    bool utf8;          /* in which characters */
};

/* True when `fd` is a terminal that a line can be drawn on: not with TERM unset or "dumb" (`term`),
 * nor with NO_COLOR (`no_color`) set to anything. Both may be NULL. */
bool dpt_terminal_is_live(int fd, const char *term, const char *no_color);

/* True when the environment's locale writes UTF-8. */
bool dpt_terminal_is_utf8(void);

DPT_MUST_USE enum dpt_status dpt_terminal_create(const struct dpt_terminal_options *options,
                                                 struct dpt_terminal **ret, struct dpt_err *err);

/* A line for standard output, without its newline; of any length that the queue has room for. Any
 * thread; never waits. */
void dpt_terminal_print(struct dpt_terminal *terminal, const char *line);

/* Bytes for standard error, newline included. Any thread; never waits. */
void dpt_terminal_print_error(struct dpt_terminal *terminal, const char *text, size_t bytes);

/* What the live line shows from now on; NULL: no line. Copied. Any thread; never waits. */
void dpt_terminal_show(struct dpt_terminal *terminal, const struct dpt_live_facts *facts);

/* Takes the live line away and writes what is left, for DPT_TERMINAL_DRAIN_MS at most; what was not
 * taken by then is lost. Accepts NULL and nulls the pointer. */
void dpt_terminal_destroy(struct dpt_terminal **terminal);

#endif
