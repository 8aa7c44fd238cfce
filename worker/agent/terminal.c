/* One thread that writes, and a queue of lines for it. */
#include "worker/agent/terminal.h"

#include "base/clock.h"

#include <errno.h>
#include <langinfo.h>
#include <locale.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

struct entry {
    struct entry *next;
    bool error;
    size_t bytes;
    char text[];
};

struct dpt_terminal {
    struct dpt_terminal_options options;
    pthread_t thread;
    pthread_mutex_t mutex; /* guards the fields up to `facts` */
    pthread_cond_t changed;
    struct entry *first, **last;
    size_t queued_bytes;
    uint64_t left_out; /* lines that did not fit */
    bool closing, shows, dirty;
    bool ended;     /* the thread has ended */
    bool abandoned; /* no caller waits for the thread: the thread frees this struct */
    struct dpt_live_facts facts;
    /* Only the thread uses these. */
    int drawn_columns; /* columns of the live line on the screen; 0: none */
    int64_t drawn_ms;
};

/* ---- the terminal ---- */

bool dpt_terminal_is_live(int fd, const char *term, const char *no_color)
{
    return (no_color == NULL || no_color[0] == '\0') && term != NULL && term[0] != '\0' &&
           strcmp(term, "dumb") != 0 && isatty(fd) == 1;
}

bool dpt_terminal_is_utf8(void)
{
    locale_t locale = newlocale(LC_CTYPE_MASK, "", (locale_t)0);
    if (locale == (locale_t)0)
        return false;
    bool utf8 = strcmp(nl_langinfo_l(CODESET, locale), "UTF-8") == 0;
    freelocale(locale);
    return utf8;
}

static int columns_of(int fd)
{
    struct winsize size;
    if (ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col == 0)
        return DPT_TERMINAL_COLUMNS;
    return size.ws_col < DPT_TERMINAL_COLUMNS_MAX ? size.ws_col : DPT_TERMINAL_COLUMNS_MAX;
}

/* ---- writing ---- */

/* An error means that the terminal is gone, so the error cannot be reported there. */
static void write_to_fd(int fd, const char *text, size_t bytes)
{
    while (bytes > 0) {
        ssize_t n = write(fd, text, bytes);
        if (n < 0 && errno != EINTR)
            return;
        if (n > 0) {
            text += n;
            bytes -= (size_t)n;
        }
    }
}

/* Erases the live line. If the terminal was made narrower, the line was wrapped over several
 * rows. */
static void erase_live(struct dpt_terminal *terminal)
{
    if (terminal->drawn_columns == 0)
        return;
    char text[32] = "\r";
    const int rows = (terminal->drawn_columns - 1) / columns_of(terminal->options.out_fd);
    if (rows > 0)
        (void)snprintf(text, sizeof text, "\r\033[%dA", rows);
    write_to_fd(terminal->options.out_fd, text, strlen(text));
    write_to_fd(terminal->options.out_fd, "\033[J", strlen("\033[J"));
    terminal->drawn_columns = 0;
}

/* Number of columns of a text whose characters each take one column. */
static int text_width(const char *text)
{
    int width = 0;
    for (; *text != '\0'; text++)
        width += ((unsigned char)*text & 0xc0) != 0x80;
    return width;
}

static void draw_live(struct dpt_terminal *terminal, const struct dpt_live_facts *facts)
{
    char line[DPT_TEXT_LINE_BYTES];
    erase_live(terminal);
    dpt_progress_text_live(facts, columns_of(terminal->options.out_fd), terminal->options.utf8,
                           line);
    write_to_fd(terminal->options.out_fd, line, strlen(line));
    terminal->drawn_columns = text_width(line);
    terminal->drawn_ms = dpt_now_ms();
}

static void write_entries(struct dpt_terminal *terminal, struct entry *entry)
{
    while (entry != NULL) {
        struct entry *next = entry->next;
        write_to_fd(entry->error ? terminal->options.err_fd : terminal->options.out_fd, entry->text,
                    entry->bytes);
        free(entry);
        entry = next;
    }
}

static void write_left_out(struct dpt_terminal *terminal, uint64_t lines)
{
    char text[128];
    int n = snprintf(text, sizeof text,
                     "(%llu lines are not shown: the terminal did not read them in time)\n",
                     (unsigned long long)lines);
    write_to_fd(terminal->options.out_fd, text, (size_t)n);
}

/* ---- the thread ---- */

/* Waits until there is a line to write, or until the time to draw the live line. Called with the
 * mutex held. */
static void wait_for_work(struct dpt_terminal *terminal)
{
    while (terminal->first == NULL && terminal->left_out == 0 && !terminal->closing) {
        if (!terminal->dirty) {
            (void)pthread_cond_wait(&terminal->changed, &terminal->mutex);
            continue;
        }
        const int64_t due_ms = terminal->drawn_ms + DPT_TERMINAL_REDRAW_MS;
        if (dpt_now_ms() >= due_ms)
            return;
        const struct timespec until = {.tv_sec = due_ms / 1000, .tv_nsec = due_ms % 1000 * 1000000};
        (void)pthread_cond_clockwait(&terminal->changed, &terminal->mutex, CLOCK_MONOTONIC, &until);
    }
}

static void free_terminal(struct dpt_terminal *terminal)
{
    (void)pthread_mutex_destroy(&terminal->mutex);
    (void)pthread_cond_destroy(&terminal->changed);
    free(terminal);
}

static void *write_queue(void *ctx)
{
    struct dpt_terminal *terminal = ctx;
    bool closing = false;
    while (!closing) {
        (void)pthread_mutex_lock(&terminal->mutex);
        wait_for_work(terminal);
        struct entry *entries = terminal->first;
        terminal->first = NULL;
        terminal->last = &terminal->first;
        terminal->queued_bytes = 0;
        const uint64_t left_out = terminal->left_out;
        terminal->left_out = 0;
        closing = terminal->closing;
        const bool shows = terminal->shows && !closing;
        const bool draws =
            shows && (terminal->drawn_columns > 0 || terminal->dirty) && terminal->options.live;
        terminal->dirty = false;
        const struct dpt_live_facts facts = terminal->facts;
        (void)pthread_mutex_unlock(&terminal->mutex);
        if (entries != NULL || left_out > 0 || !shows)
            erase_live(terminal);
        write_entries(terminal, entries);
        if (left_out > 0)
            write_left_out(terminal, left_out);
        if (draws)
            draw_live(terminal, &facts);
    }
    (void)pthread_mutex_lock(&terminal->mutex);
    terminal->ended = true;
    const bool abandoned = terminal->abandoned;
    (void)pthread_mutex_unlock(&terminal->mutex);
    if (abandoned)
        free_terminal(terminal);
    return NULL;
}

/* ---- callers ---- */

enum dpt_status dpt_terminal_create(const struct dpt_terminal_options *options,
                                    struct dpt_terminal **ret, struct dpt_err *err)
{
    struct dpt_terminal *terminal = calloc(1, sizeof *terminal);
    if (terminal == NULL)
        return dpt_fail_nomem(err, "terminal");
    terminal->options = *options;
    terminal->last = &terminal->first;
    (void)pthread_cond_init(&terminal->changed, NULL);
    (void)pthread_mutex_init(&terminal->mutex, NULL);
    int failed = pthread_create(&terminal->thread, NULL, write_queue, terminal);
    if (failed != 0) {
        free_terminal(terminal);
        return dpt_fail_errno(err, failed, "start the thread that writes to the terminal");
    }
    *ret = terminal;
    return DPT_OK;
}

static void enqueue_text(struct dpt_terminal *terminal, bool error, const char *text,
                         size_t text_bytes, const char *end)
{
    const size_t end_bytes = strlen(end), bytes = text_bytes + end_bytes;
    struct entry *entry = malloc(sizeof *entry + bytes);
    (void)pthread_mutex_lock(&terminal->mutex);
    if (entry == NULL || terminal->queued_bytes + bytes > DPT_TERMINAL_QUEUE_BYTES) {
        terminal->left_out++;
        free(entry);
    } else {
        *entry = (struct entry){.error = error, .bytes = bytes};
        memcpy(entry->text, text, text_bytes);
        memcpy(entry->text + text_bytes, end, end_bytes);
        *terminal->last = entry;
        terminal->last = &entry->next;
        terminal->queued_bytes += bytes;
    }
    (void)pthread_cond_signal(&terminal->changed);
    (void)pthread_mutex_unlock(&terminal->mutex);
}

void dpt_terminal_print(struct dpt_terminal *terminal, const char *line)
{
    enqueue_text(terminal, false, line, strlen(line), "\n");
}

void dpt_terminal_print_error(struct dpt_terminal *terminal, const char *text, size_t bytes)
{
    enqueue_text(terminal, true, text, bytes, "");
}

void dpt_terminal_show(struct dpt_terminal *terminal, const struct dpt_live_facts *facts)
{
    (void)pthread_mutex_lock(&terminal->mutex);
    terminal->shows = facts != NULL;
    if (facts != NULL)
        terminal->facts = *facts;
    terminal->dirty = terminal->options.live;
    (void)pthread_cond_signal(&terminal->changed);
    (void)pthread_mutex_unlock(&terminal->mutex);
}

void dpt_terminal_destroy(struct dpt_terminal **terminal_p)
{
    struct dpt_terminal *terminal = *terminal_p;
    *terminal_p = NULL;
    if (terminal == NULL)
        return;
    (void)pthread_mutex_lock(&terminal->mutex);
    terminal->closing = true;
    (void)pthread_cond_signal(&terminal->changed);
    (void)pthread_mutex_unlock(&terminal->mutex);
    struct timespec until;
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += DPT_TERMINAL_DRAIN_MS / 1000;
    const pthread_t thread = terminal->thread;
    bool ended = pthread_timedjoin_np(thread, NULL, &until) == 0;
    /* The thread hangs in a write, or has ended just now. */
    if (!ended) {
        (void)pthread_mutex_lock(&terminal->mutex);
        ended = terminal->ended;
        terminal->abandoned = !ended;
        (void)pthread_mutex_unlock(&terminal->mutex);
        if (ended)
            (void)pthread_join(thread, NULL);
        else
            (void)pthread_detach(thread);
    }
    if (ended)
        free_terminal(terminal);
}
