/* One question or command of an operator to a server (Control of dpt.proto), repeated until it is
 * answered. */
#ifndef DPT_WORKER_DOCTOR_CONTROL_ASK_H
#define DPT_WORKER_DOCTOR_CONTROL_ASK_H

#include "rendezvous/proto/message.h"

struct dpt_control_line; /* the connection to the server */

struct dpt_control_server {
    const char *program;  /* the asking program, "dpt-ctl" */
    const char *endpoint; /* HOST:PORT */
    const char *key_dir;  /* NULL: folder.h says which */
};

/* Opens a connection to a server; it is made in the background. The texts are borrowed for its
 * life. DPT_ECONFIG: a bad key folder. */
DPT_MUST_USE enum dpt_status dpt_control_open(const struct dpt_control_server *server,
                                              struct dpt_control_line **ret, struct dpt_err *err);
void dpt_control_close(struct dpt_control_line **line);

/* Sends `control`, and again each second, until the server answers or timeout_ms are over. The
 * caller frees the answer (dpt_message_free_server_state), which has a reply. DPT_ESERVER: no
 * answer; the text has the reason. DPT_EVERSION: the server is of another version. DPT_EREFUSED:
 * this machine may not ask. DPT_EINVAL: the run or the node is no name. Blocks. */
DPT_MUST_USE enum dpt_status dpt_control_ask(struct dpt_control_line *line,
                                             const Dpt__Control *control, int64_t timeout_ms,
                                             Dpt__ServerState **ret, struct dpt_err *err);

#endif
