/* One question or command to a server, repeated until it is answered. */
#ifndef DPT_WORKER_CTL_ASK_H
#define DPT_WORKER_CTL_ASK_H

#include "rendezvous/proto/message.h"

struct dpt_ctl_line; /* the connection to the server */

/* Opens a connection to HOST:PORT with the keys of the key folder (NULL: folder.h says which); it
 * is made in the background. DPT_ECONFIG: a bad key folder. */
DPT_MUST_USE enum dpt_status dpt_ctl_open(const char *endpoint, const char *key_dir,
                                          struct dpt_ctl_line **ret, struct dpt_err *err);
void dpt_ctl_close(struct dpt_ctl_line **line);

/* Sends `control`, and again each second, until the server answers or timeout_ms are over. The
 * caller frees the answer (dpt_message_free_server_state), which has a reply. DPT_ESERVER: no
 * answer; the text has the reason. DPT_EVERSION: the server is of another version. DPT_EREFUSED:
 * this machine may not ask. DPT_EINVAL: the run or the node is no name. Blocks. */
DPT_MUST_USE enum dpt_status dpt_ctl_ask(struct dpt_ctl_line *line, const Dpt__Control *control,
                                         int64_t timeout_ms, Dpt__ServerState **ret,
                                         struct dpt_err *err);

#endif
