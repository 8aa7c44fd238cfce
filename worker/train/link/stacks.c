/* Stacks by a signal: see stacks.h. */
#include "worker/train/link/stacks.h"

#include <dirent.h>
#include <errno.h>
#include <execinfo.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    FRAMES_MAX = 24,  /* of one thread */
    THREADS_MAX = 48, /* that are asked; further ones are counted */
    SKIPPED = 2,      /* frames of the handler itself */
    ANSWER_MS = 100
};

/* The thread that is asked. FREE --ask--> ASKED --handler--> WRITING --> DONE; the asker takes
 * ASKED back to FREE when the time is over, so that a late handler writes nothing. */
enum { FREE, ASKED, WRITING, DONE };
static struct {
    atomic_int state;
    _Atomic pid_t thread;
    void *frames[FRAMES_MAX];
    int n;
    sem_t answered;
} asked;

static void on_signal(int number)
{
    const int saved = errno;
    int expected = ASKED;
    (void)number;
    if (atomic_load(&asked.thread) == (pid_t)syscall(SYS_gettid) &&
        atomic_compare_exchange_strong(&asked.state, &expected, WRITING)) {
        asked.n = backtrace(asked.frames, FRAMES_MAX);
        atomic_store(&asked.state, DONE);
        (void)sem_post(&asked.answered);
    }
    errno = saved;
}

void dpt_stacks_prepare(void)
{
    void *frames[2];
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    (void)backtrace(frames, 2);
    (void)sem_init(&asked.answered, 0, 0); /* these cannot fail */
    (void)sigemptyset(&action.sa_mask);
    (void)sigaction(SIGUSR2, &action, NULL);
}

/* False: no answer in time. */
static bool await_answer(void)
{
    struct timespec until;
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += ANSWER_MS * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    while (sem_timedwait(&asked.answered, &until) != 0)
        if (errno != EINTR)
            return false;
    return true;
}

/* Fills asked.frames. False: the thread does not answer. */
static bool ask_thread(pid_t thread)
{
    int expected = FREE;
    atomic_store(&asked.thread, thread);
    if (!atomic_compare_exchange_strong(&asked.state, &expected, ASKED))
        return false; /* a handler has been writing since an earlier question */
    if (syscall(SYS_tgkill, getpid(), thread, SIGUSR2) != 0) {
        atomic_store(&asked.state, FREE); /* it has just ended */
        return false;
    }
    expected = ASKED;
    if (!await_answer() && atomic_compare_exchange_strong(&asked.state, &expected, FREE))
        return false;
    return atomic_load(&asked.state) == DONE;
}

/* ---- text ---- */

struct text {
    char *at;
    size_t left; /* with the NUL */
};

static void add(struct text *text, const char *word, size_t bytes)
{
    if (bytes >= text->left)
        bytes = text->left - 1;
    memcpy(text->at, word, bytes);
    text->at += bytes;
    text->left -= bytes;
    *text->at = '\0';
}

static void add_text(struct text *text, const char *word)
{
    add(text, word, strlen(word));
}

/* "/usr/bin/dpt-worker(function+0x1f) [0x55…]" as "function+0x1f", or "dpt-worker+0x3f0" if the
 * function has no name there. */
static void add_frame(struct text *text, const char *symbol)
{
    const char *open = strchr(symbol, '('), *close = strchr(symbol, ')');
    const char *slash = strrchr(symbol, '/');
    if (open == NULL || close == NULL || close < open) {
        add_text(text, symbol);
        return;
    }
    if (open[1] == '+' || open[1] == ')') {
        const char *file = slash != NULL && slash < open ? slash + 1 : symbol;
        add(text, file, (size_t)(open - file));
    }
    add(text, open + 1, (size_t)(close - open - 1));
}

static void add_frames(struct text *text)
{
    char **symbols = backtrace_symbols(asked.frames, asked.n);
    for (int i = SKIPPED; symbols != NULL && i < asked.n; i++) {
        if (i > SKIPPED)
            add_text(text, " < ");
        add_frame(text, symbols[i]);
    }
    if (symbols == NULL)
        add_text(text, "no memory for the names of functions");
    free(symbols);
}

static void add_thread(struct text *text, pid_t thread)
{
    char head[64];
    (void)snprintf(head, sizeof head, "thread %d%s: ", (int)thread,
                   thread == getpid() ? " (main)" : "");
    add_text(text, head);
    if (ask_thread(thread))
        add_frames(text);
    else
        add_text(text, "does not answer: it blocks signals, or hangs in the kernel");
    int answered = DONE;
    (void)atomic_compare_exchange_strong(&asked.state, &answered, FREE);
    add_text(text, "\n");
}

void dpt_stacks_print(char *ret, size_t bytes)
{
    struct text text = {.at = ret, .left = bytes};
    DIR *dir = opendir("/proc/self/task");
    const pid_t own = (pid_t)syscall(SYS_gettid);
    int n = 0;
    ret[0] = '\0';
    if (dir == NULL) {
        add_text(&text, "the threads cannot be listed (/proc/self/task)\n");
        return;
    }
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        const pid_t thread = (pid_t)strtol(entry->d_name, NULL, 10);
        if (thread > 0 && thread != own && n++ < THREADS_MAX)
            add_thread(&text, thread);
    }
    (void)closedir(dir);
}
