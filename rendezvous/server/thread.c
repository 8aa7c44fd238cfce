/* A server on a thread, embedded in dpt-worker --nnodes 1. */
#include "base/log.h"
#include "rendezvous/server/server.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct dpt_server_thread {
    pthread_t thread;
    int stop_fd;
    sem_t bound;            /* posted once status (and endpoint) are set */
    enum dpt_status status; /* of binding */
    struct dpt_err err;
    char endpoint[DPT_SERVER_ENDPOINT_BYTES];
};

static void *serve_on_thread(void *arg)
{
    struct dpt_server_thread *thread = arg;
    const struct dpt_server_options options = {.stop_fd = thread->stop_fd, .embedded = true};
    struct dpt_server *server = NULL;
    thread->status = dpt_server_create(&options, &server, &thread->err);
    if (thread->status == DPT_OK)
        (void)snprintf(thread->endpoint, sizeof thread->endpoint, "%s",
                       dpt_server_endpoint(server));
    bool bound = thread->status == DPT_OK;
    sem_post(&thread->bound);
    struct dpt_err err;
    if (bound && dpt_server_run(server, &err) != DPT_OK)
        dpt_log(DPT_LOG_ERROR, "the embedded rendezvous server ended: %s", err.text);
    dpt_server_destroy(&server);
    return NULL;
}

static void free_thread(struct dpt_server_thread *thread)
{
    if (thread->stop_fd >= 0)
        close(thread->stop_fd);
    sem_destroy(&thread->bound);
    free(thread);
}

enum dpt_status dpt_server_thread_start(struct dpt_server_thread **ret, struct dpt_err *err)
{
    struct dpt_server_thread *thread = calloc(1, sizeof *thread);
    if (thread == NULL)
        return dpt_fail_nomem(err, "embedded rendezvous server");
    thread->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int failed = sem_init(&thread->bound, 0, 0) != 0 || thread->stop_fd < 0 ? errno : 0;
    if (failed == 0)
        failed = pthread_create(&thread->thread, NULL, serve_on_thread, thread);
    if (failed != 0) {
        free_thread(thread);
        return dpt_fail_errno(err, failed, "start the embedded rendezvous server");
    }
    while (sem_wait(&thread->bound) != 0)
        continue; /* EINTR */
    if (thread->status != DPT_OK) {
        enum dpt_status status = dpt_pass(err, &thread->err);
        dpt_server_thread_stop(&thread);
        return status;
    }
    *ret = thread;
    return DPT_OK;
}

const char *dpt_server_thread_endpoint(const struct dpt_server_thread *thread)
{
    return thread->endpoint;
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
