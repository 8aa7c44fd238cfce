/* A server on a thread, embedded in dpt-worker --nnodes 1. */
#include "base/log.h"
#include "rendezvous/server/server.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct dpt_server_thread {
    pthread_t thread;
    struct dpt_server *server; /* the thread owns it while it runs */
    int stop_fd;
    char endpoint[DPT_SERVER_ENDPOINT_BYTES];
    struct dpt_keyring keys;
};

/* A server that fails is destroyed at once: its port closes, and clients find that out. */
static void *serve_on_thread(void *arg)
{
    struct dpt_server_thread *thread = arg;
    struct dpt_err err;
    if (dpt_server_run(thread->server, &err) != DPT_OK) {
        dpt_log(DPT_LOG_ERROR, "the embedded rendezvous server ended: %s", err.text);
        dpt_server_destroy(&thread->server);
    }
    return NULL;
}

static void free_thread(struct dpt_server_thread *thread)
{
    dpt_server_destroy(&thread->server);
    if (thread->stop_fd >= 0)
        close(thread->stop_fd);
    free(thread);
}

enum dpt_status dpt_server_thread_start(struct dpt_server_thread **ret, struct dpt_err *err)
{
    struct dpt_server_thread *thread = calloc(1, sizeof *thread);
    if (thread == NULL)
        return dpt_fail_nomem(err, "embedded rendezvous server");
    thread->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    const struct dpt_server_options options = {.stop_fd = thread->stop_fd, .embedded = true};
    int failed = thread->stop_fd < 0 ? errno : 0;
    enum dpt_status status = DPT_OK;
    if (failed == 0)
        status = dpt_server_create(&options, &thread->server, err);
    if (failed == 0 && status == DPT_OK) {
        (void)snprintf(thread->endpoint, sizeof thread->endpoint, "%s",
                       dpt_server_endpoint(thread->server));
        thread->keys = *dpt_server_keys(thread->server);
        failed = pthread_create(&thread->thread, NULL, serve_on_thread, thread);
    }
    if (failed != 0)
        status = dpt_fail_errno(err, failed, "start the embedded rendezvous server");
    if (status == DPT_OK)
        *ret = thread;
    else
        free_thread(thread);
    return status;
}

const char *dpt_server_thread_endpoint(const struct dpt_server_thread *thread)
{
    return thread->endpoint;
}

const struct dpt_keyring *dpt_server_thread_keys(const struct dpt_server_thread *thread)
{
    return &thread->keys;
}

void dpt_server_thread_stop(struct dpt_server_thread **thread_p)
{
    struct dpt_server_thread *thread = *thread_p;
    *thread_p = NULL;
    if (thread == NULL)
        return;
    (void)eventfd_write(thread->stop_fd, 1);
    (void)pthread_join(thread->thread, NULL);
    free_thread(thread);
}
