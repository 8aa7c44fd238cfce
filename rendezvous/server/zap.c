/* Questions and answers about keys. */
#include "rendezvous/server/zap.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <zmq.h>

enum { PARTS_MAX = 16 }; /* parts of a question that are read */

static const char zap_version[] = "1.0";

static enum dpt_status fail_zmq(struct dpt_err *err, const char *what)
{
    return dpt_fail(err, DPT_EIO, "%s: %s", what, zmq_strerror(zmq_errno()));
}

enum dpt_status dpt_zap_read(void *socket, struct dpt_zap_question *ret, struct dpt_err *err)
{
    static const char what[] = "read a question about a key";
    struct dpt_zap_part beyond;
    *ret = (struct dpt_zap_question){.n = 0};
    for (int i = 0; i < PARTS_MAX; i++) {
        struct dpt_zap_part *part = i < DPT_ZAP_PARTS ? &ret->parts[i] : &beyond;
        int more = 0;
        size_t more_bytes = sizeof more;
        const int bytes = zmq_recv(socket, part->data, sizeof part->data, ZMQ_DONTWAIT);
        if (bytes < 0 && (zmq_errno() == EAGAIN || zmq_errno() == EINTR))
            return DPT_OK;
        if (bytes < 0)
            return fail_zmq(err, what);
        part->bytes = (size_t)bytes < sizeof part->data ? (size_t)bytes : sizeof part->data;
        ret->n = i + 1;
        if (zmq_getsockopt(socket, ZMQ_RCVMORE, &more, &more_bytes) != 0)
            return fail_zmq(err, what);
        if (more == 0)
            break;
    }
    return DPT_OK;
}

enum dpt_status dpt_zap_answer(void *socket, const struct dpt_zap_question *question, int status,
                               const char *user_id, struct dpt_err *err)
{
    const bool accepted = status == DPT_ZAP_ACCEPTED;
    const struct dpt_zap_part *id = &question->parts[DPT_ZAP_ID];
    const char *text = accepted ? "OK" : "refused key";
    char digits[8];
    (void)snprintf(digits, sizeof digits, "%d", status);
    if (!accepted)
        user_id = "";
    const struct {
        const void *data;
        size_t bytes;
    } parts[] = {{zap_version, sizeof zap_version - 1},
                 {id->data, id->bytes},
                 {digits, strlen(digits)},
                 {text, strlen(text)},
                 {user_id, strlen(user_id)},
                 {"", 0}};
    enum { N = sizeof parts / sizeof parts[0] };
    for (size_t i = 0; i < N; i++)
        if (zmq_send(socket, parts[i].data, parts[i].bytes,
                     ZMQ_DONTWAIT | (i + 1 < N ? ZMQ_SNDMORE : 0)) < 0)
            return fail_zmq(err, "answer a question about a key");
    return DPT_OK;
}
