/* Asks a server for the nodes of a run (run_nodes.h). */
#include "worker/doctor/control_ask.h"
#include "worker/doctor/run_nodes.h"

#include <string.h>

/* The first part of a server's list has more nodes than are measured. */
_Static_assert((int)DPT_PROTO_REPLY_NODES_MAX > (int)DPT_MATRIX_NODES_MAX, "one is enough");

static enum dpt_status take_nodes(const Dpt__ControlReply *reply, struct dpt_run_nodes *ret,
                                  struct dpt_err *err)
{
    if (reply->outcome == DPT__CONTROL_OUTCOME__CONTROL_UNKNOWN)
        return dpt_fail(err, DPT_ENOENT, "%s", reply->text);
    if (reply->outcome == DPT__CONTROL_OUTCOME__CONTROL_REFUSED)
        return dpt_fail(err, DPT_EREFUSED, "%s", reply->text);
    return dpt_run_nodes_take(reply, ret, err);
}

enum dpt_status dpt_run_nodes_ask(const struct dpt_doctor_args *args, struct dpt_run_nodes *ret,
                                  struct dpt_err *err)
{
    const struct dpt_control_server server = {
        .program = "dpt-doctor", .endpoint = args->endpoint, .key_dir = args->key_dir};
    struct dpt_control_line *line = NULL;
    Dpt__ServerState *answer = NULL;
    Dpt__Control control = DPT__CONTROL__INIT;
    control.verb = DPT__CONTROL_VERB__CONTROL_SHOW; /* of the only run, if none is named */
    control.run = (char *)args->run;
    control.step = -1;
    DPT_TRY(dpt_control_open(&server, &line, err));
    enum dpt_status status = dpt_control_ask(line, &control, args->timeout_ms, &answer, err);
    if (status == DPT_OK)
        status = take_nodes(answer->reply, ret, err);
    dpt_message_free_server_state(&answer);
    dpt_control_close(&line);
    return status;
}
