/* Plays a rank process for the tests of the agent: exec'd in its place with the same command line
 * and descriptors. What it does is in the environment, DPT_FAKE_RANK:
 *
 *   obey      says "ready", answers each frame with its own bytes, ends with 0 when the link does
 *   stubborn  the same, but stays when the link ends
 *   children  starts a process in its group and one in a session of its own, sends their ids, waits
 * for a frame, exits with 3 close     says "ready", closes the link and stays fds       sends the
 * list of its open descriptors print     prints a line of each kind and ends with 5 die       kills
 * itself with SIGKILL */
#include "worker/agent/rank_protocol.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint8_t frame[DPT_RANK_FRAME_BYTES_MAX];

static void fake_rank_send(const void *data, size_t bytes)
{
    struct dpt_err err;
    if (dpt_rank_link_send(DPT_RANK_FD_LINK, data, bytes, &err) != DPT_OK)
        _exit(100);
}

/* The next frame's bytes; 0 when the link ended. */
static size_t hear(void)
{
    struct dpt_err err;
    for (;;) {
        size_t bytes = 0;
        enum dpt_status status = dpt_rank_link_recv(DPT_RANK_FD_LINK, -1, frame, &bytes, &err);
        if (status == DPT_OK)
            return bytes;
        if (status != DPT_INPROGRESS)
            return 0;
    }
}

static void wait_for_ever(void)
{
    for (;;)
        pause();
}

static void echo(void)
{
    fake_rank_send("ready", 5);
    for (size_t bytes; (bytes = hear()) > 0;)
        fake_rank_send(frame, bytes);
}

static int start_children(void)
{
    pid_t children[2];
    for (int i = 0; i < 2; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            if (i == 1)
                (void)setsid();
            close(DPT_RANK_FD_LINK);
            wait_for_ever();
        }
    }
    fake_rank_send(children, sizeof children);
    (void)hear();
    return 3;
}

static int list_descriptors(void)
{
    char text[1024] = "";
    DIR *dir = opendir("/proc/self/fd");
    for (struct dirent *entry; dir != NULL && (entry = readdir(dir)) != NULL;) {
        int fd = (int)strtol(entry->d_name, NULL, 10);
        size_t used = strlen(text);
        if (entry->d_name[0] != '.' && fd != dirfd(dir))
            (void)snprintf(text + used, sizeof text - used, "%d ", fd);
    }
    if (dir != NULL)
        closedir(dir);
    fake_rank_send(text, strlen(text));
    return 0;
}

static int print_lines(void)
{
    puts("2026-01-02T03:04:05.678Z I dpt-worker node=a: quiet");
    puts("2026-01-02T03:04:05.678Z E dpt-worker node=a: broken shard");
    puts("a line of another kind");
    fputs("unfinished", stdout);
    fflush(stdout);
    return 5;
}

int main(int argc, char **argv)
{
    struct dpt_rank_start start;
    struct dpt_err err;
    if (dpt_rank_start_decode(argc, argv, &start, &err) != DPT_OK ||
        dpt_rank_start_enter(&start, &err) != DPT_OK) {
        fprintf(stderr, "fake rank: %s\n", err.text);
        return 2;
    }
    const char *what = getenv("DPT_FAKE_RANK");
    if (what == NULL)
        what = "obey";
    if (strcmp(what, "children") == 0)
        return start_children();
    if (strcmp(what, "fds") == 0)
        return list_descriptors();
    if (strcmp(what, "print") == 0)
        return print_lines();
    if (strcmp(what, "die") == 0)
        return kill(getpid(), SIGKILL);
    if (strcmp(what, "close") == 0) {
        fake_rank_send("ready", 5);
        close(DPT_RANK_FD_LINK);
        wait_for_ever();
    }
    if (strcmp(what, "step") == 0) {
        const int64_t step = 42;
        if (pwrite(DPT_RANK_FD_STEP, &step, sizeof step, 0) != (ssize_t)sizeof step)
            return 3;
    }
    echo();
    if (strcmp(what, "stubborn") == 0)
        wait_for_ever();
    return 0;
}
