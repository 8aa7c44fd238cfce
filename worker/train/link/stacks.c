/* Stacks by a signal: see stacks.h. */
#include "worker/train/link/stacks.h"

#include "base/clock.h"

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
    THREADS_MAX = 48, /* that are asked; further ones are left out */
    SKIPPED = 2       /* frames of the handler itself */
};

/* FREE --ask--> the thread that is asked --its handler--> WRITING --> DONE. When the time is over,
 * the asker takes the question back to FREE, so that a late handler writes nothing. */
enum { FREE = 0, WRITING = -1, DONE = -2 };
static struct {
    _Atomic pid_t state; /* positive: the thread that is asked */
    void *frames[FRAMES_MAX];
    int n;
    sem_t answered; /* wakes the asker; `state` alone says what has happened */
} asked;

static void on_signal(int number)
{
    const int saved = errno;
    pid_t expected = (pid_t)syscall(SYS_gettid);
    (void)number;
    if (atomic_compare_exchange_strong(&asked.state, &expected, WRITING)) {
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

/* True: the thread blocks the signal, as threads of a library often do. */
static bool is_signal_blocked(pid_t thread)
{
    char path[64], line[256];
    unsigned long long blocked = 0;
    (void)snprintf(path, sizeof path, "/proc/self/task/%d/status", (int)thread);
    FILE *file = fopen(path, "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, "SigBlk:", 7) == 0)
            blocked = strtoull(line + 7, NULL, 16);
    if (file != NULL) /* NULL: the thread has ended */
        (void)fclose(file);
    return (blocked >> (SIGUSR2 - 1) & 1) != 0;
}

/* A post of an earlier answer may wake it too early, so `state` decides. */
static void await_answer(int64_t until_ms)
{
    const struct timespec until = {.tv_sec = (time_t)(until_ms / 1000),
                                   .tv_nsec = (long)(until_ms % 1000) * 1000000};
    while (atomic_load(&asked.state) != DONE)
        if (sem_clockwait(&asked.answered, CLOCK_MONOTONIC, &until) != 0 && errno != EINTR)
            return;
}

/* Fills asked.frames and returns NULL; otherwise why the thread has no stack. */
static const char *ask_thread(pid_t thread, int64_t answer_ms, int64_t end_ms)
{
    const int64_t now_ms = dpt_now_ms();
    pid_t expected = DONE;
    (void)atomic_compare_exchange_strong(&asked.state, &expected, FREE); /* the last answer */
    if (is_signal_blocked(thread))
        return "is not asked: it blocks signals";
    if (now_ms >= end_ms)
        return "is not asked: the time for the dump is over";
    expected = FREE;
    if (!atomic_compare_exchange_strong(&asked.state, &expected, thread))
        return "is not asked: another thread has not completed its answer";
    if (syscall(SYS_tgkill, getpid(), thread, SIGUSR2) == 0)
        await_answer(answer_ms < end_ms - now_ms ? now_ms + answer_ms : end_ms);
    expected = thread; /* no answer, or it has just ended */
    (void)atomic_compare_exchange_strong(&asked.state, &expected, FREE);
    return atomic_load(&asked.state) == DONE ? NULL
                                             : "does not answer: it hangs in the kernel, or the "
                                               "machine is too busy";
}

/* ---- text ---- */

struct text {
    char *at;
    size_t left; /* with the NUL */
};

static void append_to_stacks(struct text *text, const char *word, size_t bytes)
{
    if (bytes >= text->left)
        bytes = text->left - 1;
    memcpy(text->at, word, bytes);
    text->at += bytes;
    text->left -= bytes;
    *text->at = '\0';
}

static void append_word(struct text *text, const char *word)
{
    append_to_stacks(text, word, strlen(word));
}

/* "/usr/bin/dpt-worker(function+0x1f) [0x55…]" as "function+0x1f", or "dpt-worker+0x3f0" if the
 * function has no name there. */
static void add_frame(struct text *text, const char *symbol)
{
    const char *open = strchr(symbol, '('), *close = strchr(symbol, ')');
    const char *slash = strrchr(symbol, '/');
    if (open == NULL || close == NULL || close < open) {
        append_word(text, symbol);
        return;
    }
    if (open[1] == '+' || open[1] == ')') {
        const char *file = slash != NULL && slash < open ? slash + 1 : symbol;
        append_to_stacks(text, file, (size_t)(open - file));
    }
    append_to_stacks(text, open + 1, (size_t)(close - open - 1));
}

static void add_frames(struct text *text)
{
    char **symbols = backtrace_symbols(asked.frames, asked.n);
    for (int i = SKIPPED; symbols != NULL && i < asked.n; i++) {
        if (i > SKIPPED)
            append_word(text, " < ");
        add_frame(text, symbols[i]);
    }
    if (symbols == NULL)
        append_word(text, "no memory for the names of functions");
    free(symbols);
}

static void add_thread(struct text *text, pid_t thread, int64_t answer_ms, int64_t end_ms)
{
    char head[64];
    (void)snprintf(head, sizeof head, "thread %d%s: ", (int)thread,
                   thread == getpid() ? " (main)" : "");
    append_word(text, head);
    const char *why = ask_thread(thread, answer_ms, end_ms);
    if (why == NULL)
        add_frames(text);
    else
        append_word(text, why);
    append_word(text, "\n");
}

void dpt_stacks_print(char *ret, size_t bytes, int64_t answer_ms, int64_t time_ms)
{
    const int64_t end_ms = dpt_now_ms() + time_ms;
    struct text text = {.at = ret, .left = bytes};
    DIR *dir = opendir("/proc/self/task");
    const pid_t own = (pid_t)syscall(SYS_gettid);
    int n = 0;
    ret[0] = '\0';
    if (dir == NULL) {
        append_word(&text, "the threads cannot be listed (/proc/self/task)\n");
        return;
    }
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        const pid_t thread = (pid_t)strtol(entry->d_name, NULL, 10);
        if (thread > 0 && thread != own && n++ < THREADS_MAX)
            add_thread(&text, thread, answer_ms, end_ms);
    }
    (void)closedir(dir);
}
