/* dpt-ctl: the operator's program for a rendezvous server. */
#include "base/clock.h"
#include "base/stdout.h"
#include "worker/ctl/result.h"
#include "worker/ctl/words.h"
#include "worker/doctor/control_ask.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

enum {
    EXIT_USAGE = 2,   /* also no such run or node, and another version */
    EXIT_SERVER = 3,  /* no answer in time */
    EXIT_REFUSED = 4, /* or not done in time; any other failure */
    POLL_MS = 100,    /* between two questions whether a command is done */
    PAGES_MAX = 64    /* parts of a list of nodes */
};

/* Takes the object, NULL: no memory. */
static enum dpt_status print_json(json_t *object, struct dpt_err *err)
{
    if (object == NULL)
        return dpt_fail_nomem(err, "result as JSON");
    const int failed = json_dumpf(object, stdout, JSON_COMPACT);
    json_decref(object);
    return failed == 0 && fputc('\n', stdout) != EOF
               ? DPT_OK
               : dpt_fail(err, DPT_EIO, "write to the standard output failed");
}

static Dpt__Control control_of(const struct dpt_ctl_args *args)
{
    Dpt__Control control = DPT__CONTROL__INIT;
    control.verb = args->verb;
    control.run = (char *)args->run;
    control.node = (char *)args->node;
    control.step = -1;
    if (args->verb == DPT__CONTROL_VERB__CONTROL_DUMP)
        control.number = (uint64_t)dpt_now_ns() | 1;
    return control;
}

/* DPT_OK: done, or it goes on. */
static enum dpt_status status_of_reply(const Dpt__ControlReply *reply, struct dpt_err *err)
{
    if (reply->outcome == DPT__CONTROL_OUTCOME__CONTROL_UNKNOWN)
        return dpt_fail(err, DPT_ENOENT, "%s", reply->text);
    if (reply->outcome == DPT__CONTROL_OUTCOME__CONTROL_REFUSED)
        return dpt_fail(err, DPT_EREFUSED, "%s", reply->text);
    return DPT_OK;
}

/* ---- questions ---- */

/* What is printed when the last part of a list has come. */
struct facts {
    const struct dpt_ctl_args *args;
    bool further; /* a part has been printed */
    json_t *nodes, *run, *ranks;
};

static enum dpt_status take_part(struct facts *facts, const Dpt__ServerState *answer,
                                 struct dpt_err *err)
{
    static struct dpt_hang_view view;
    const Dpt__ControlReply *reply = answer->reply;
    const bool shows = facts->args->verb == DPT__CONTROL_VERB__CONTROL_SHOW;
    const bool first = !facts->further;
    facts->further = true;
    if (shows && first)
        DPT_TRY(dpt_hang_take(answer, &view, err));
    if (!facts->args->json) {
        if (shows && first && reply->n_runs > 0)
            dpt_ctl_print_run(reply->runs[0], stdout);
        dpt_ctl_print_nodes(reply, !first, stdout);
        if (shows && reply->nodes_left == 0)
            dpt_ctl_print_ranks(&view, stdout);
        return DPT_OK;
    }
    if (shows && first) {
        facts->run = reply->n_runs > 0 ? dpt_ctl_json_run(reply->runs[0]) : NULL;
        facts->ranks = dpt_ctl_json_ranks(&view, NULL);
    }
    return dpt_ctl_json_add_nodes(reply, facts->nodes) ? DPT_OK
                                                       : dpt_fail_nomem(err, "result as JSON");
}

static json_t *json_of(struct facts *facts)
{
    return facts->args->verb == DPT__CONTROL_VERB__CONTROL_SHOW
               ? json_pack("{s:i, s:O, s:O, s:O}", "version", 1, "run", facts->run, "nodes",
                           facts->nodes, "ranks", facts->ranks)
               : json_pack("{s:i, s:O}", "version", 1, "nodes", facts->nodes);
}

/* nodes, show: a long list comes in parts. */
static enum dpt_status list_nodes(struct dpt_control_line *line, struct facts *facts,
                                  struct dpt_err *err)
{
    Dpt__Control control = control_of(facts->args);
    uint32_t left = 1;
    for (int i = 0; i < PAGES_MAX && left > 0; i++) {
        Dpt__ServerState *answer = NULL;
        DPT_TRY(dpt_control_ask(line, &control, facts->args->timeout_s * 1000, &answer, err));
        enum dpt_status status = status_of_reply(answer->reply, err);
        if (status == DPT_OK)
            status = take_part(facts, answer, err);
        control.first += (uint32_t)answer->reply->n_nodes;
        left = answer->reply->n_nodes > 0 ? answer->reply->nodes_left : 0;
        dpt_message_free_server_state(&answer);
        DPT_TRY(status);
    }
    return facts->args->json ? print_json(json_of(facts), err) : DPT_OK;
}

static enum dpt_status answer_nodes(struct dpt_control_line *line, const struct dpt_ctl_args *args,
                                    struct dpt_err *err)
{
    struct facts facts = {.args = args, .nodes = json_array()};
    const enum dpt_status status = list_nodes(line, &facts, err);
    json_decref(facts.nodes);
    json_decref(facts.run);
    json_decref(facts.ranks);
    return status;
}

static enum dpt_status answer_runs(struct dpt_control_line *line, const struct dpt_ctl_args *args,
                                   struct dpt_err *err)
{
    const Dpt__Control control = control_of(args);
    Dpt__ServerState *answer = NULL;
    DPT_TRY(dpt_control_ask(line, &control, args->timeout_s * 1000, &answer, err));
    enum dpt_status status = DPT_OK;
    if (args->json)
        status = print_json(dpt_ctl_json_runs(answer->reply), err);
    else
        dpt_ctl_print_runs(answer->reply, stdout);
    dpt_message_free_server_state(&answer);
    return status;
}

/* ---- commands ---- */

static enum dpt_status print_dump(const struct dpt_ctl_args *args, const Dpt__ServerState *answer,
                                  struct dpt_err *err)
{
    static struct dpt_hang_view view;
    DPT_TRY(dpt_hang_take(answer, &view, err));
    if (args->json)
        return print_json(dpt_ctl_json_dump(answer, &view), err);
    dpt_ctl_print_dump(answer, &view, stdout);
    return DPT_OK;
}

static enum dpt_status print_done(const struct dpt_ctl_args *args, const Dpt__ServerState *answer,
                                  struct dpt_err *err)
{
    static char folder[PATH_MAX];
    const Dpt__ControlReply *reply = answer->reply;
    const Dpt__RunInfo *run = reply->n_runs > 0 ? reply->runs[0] : NULL;
    int64_t step = -1;
    if (args->verb == DPT__CONTROL_VERB__CONTROL_SAVE && run != NULL)
        step = run->saved_step;
    else if (args->verb == DPT__CONTROL_VERB__CONTROL_STOP && reply->step > 0)
        step = reply->step;
    /* Of an earlier run of the name neither the folder nor the node is known. */
    const bool is_of_run = run != NULL && run->saved_step == step && step >= 0;
    if (args->verb == DPT__CONTROL_VERB__CONTROL_DUMP)
        return print_dump(args, answer, err);
    folder[0] = '\0';
    if (is_of_run)
        dpt_ctl_checkpoint_folder(answer->spec, step, folder);
    const struct dpt_ctl_done done = {.args = args,
                                      .run = reply->run[0] != '\0' ? reply->run : args->run,
                                      .text = reply->text,
                                      .step = step,
                                      .folder = folder,
                                      .folder_node = is_of_run ? run->saved_node : "",
                                      .folder_host = is_of_run ? run->saved_host : ""};
    if (args->json)
        return print_json(dpt_ctl_json_done(&done), err);
    dpt_ctl_print_done(&done, stdout);
    return DPT_OK;
}

/* Asks once more after POLL_MS, of the same run: the server may get others meanwhile. */
static void continue_command(Dpt__Control *control, const Dpt__ControlReply *reply,
                             char run[DPT_PROTO_NAME_BYTES])
{
    if (reply->run[0] != '\0')
        (void)snprintf(run, DPT_PROTO_NAME_BYTES, "%s", reply->run);
    if (run[0] != '\0')
        control->run = run;
    control->step = reply->step;
    control->number = reply->number;
    (void)poll(NULL, 0, POLL_MS);
}

/* Once a command is accepted, the server may be away for as long as the command may take. */
static enum dpt_status order_until_done(struct dpt_control_line *line,
                                        const struct dpt_ctl_args *args, struct dpt_err *err)
{
    Dpt__Control control = control_of(args);
    char run[DPT_PROTO_NAME_BYTES] = "", text[DPT_PROTO_TEXT_BYTES] = "";
    const int64_t until_ms = dpt_now_ms() + args->wait_s * 1000;
    int64_t timeout_ms = args->timeout_s * 1000;
    for (;;) {
        Dpt__ServerState *answer = NULL;
        DPT_TRY(dpt_control_ask(line, &control, timeout_ms, &answer, err));
        enum dpt_status status = status_of_reply(answer->reply, err);
        const bool goes_on = answer->reply->outcome == DPT__CONTROL_OUTCOME__CONTROL_GOES_ON;
        if (status == DPT_OK && !goes_on)
            status = print_done(args, answer, err);
        if (status == DPT_OK && goes_on && strcmp(text, answer->reply->text) != 0) {
            (void)snprintf(text, sizeof text, "%s", answer->reply->text);
            (void)fprintf(stderr, "dpt-ctl: %s …\n", text);
        }
        if (goes_on)
            continue_command(&control, answer->reply, run);
        dpt_message_free_server_state(&answer);
        if (status != DPT_OK || !goes_on)
            return status;
        timeout_ms = until_ms - dpt_now_ms();
        if (timeout_ms <= 0)
            return dpt_fail(err, DPT_ETIMEOUT,
                            "not done within %lld s: %s. It goes on; the same command waits again",
                            (long long)args->wait_s, text);
    }
}

static enum dpt_status run_ctl_command(const struct dpt_ctl_args *args, struct dpt_err *err)
{
    const struct dpt_control_server server = {
        .program = "dpt-ctl", .endpoint = args->endpoint, .key_dir = args->key_dir};
    struct dpt_control_line *line = NULL;
    enum dpt_status status = dpt_control_open(&server, &line, err);
    if (status != DPT_OK)
        return status;
    if (args->verb == DPT__CONTROL_VERB__CONTROL_RUNS)
        status = answer_runs(line, args, err);
    else if (args->verb == DPT__CONTROL_VERB__CONTROL_NODES ||
             args->verb == DPT__CONTROL_VERB__CONTROL_SHOW)
        status = answer_nodes(line, args, err);
    else
        status = order_until_done(line, args, err);
    dpt_control_close(&line);
    return status;
}

static int print_ctl_error(const struct dpt_err *err)
{
    const bool usage = err->status == DPT_EINVAL;
    (void)fprintf(stderr, "dpt-ctl: %s%s\n", err->text, usage ? "; see dpt-ctl --help" : "");
    if (usage || err->status == DPT_ECONFIG || err->status == DPT_ENOENT ||
        err->status == DPT_EVERSION)
        return EXIT_USAGE;
    return err->status == DPT_ESERVER ? EXIT_SERVER : EXIT_REFUSED;
}

int main(int argc, char **argv)
{
    struct dpt_ctl_args args;
    struct dpt_err err;
    enum dpt_status status =
        dpt_ctl_args_read(argc, argv, getenv("DPT_RDZV_ENDPOINT"), &args, &err);
    if (status == DPT_OK && args.help)
        dpt_ctl_args_help(stdout);
    else if (status == DPT_OK && args.version)
        (void)puts("dpt-ctl " DPT_VERSION);
    else if (status == DPT_OK)
        status = run_ctl_command(&args, &err);
    if (status == DPT_OK)
        status = dpt_stdout_flush(&err);
    return status == DPT_OK ? 0 : print_ctl_error(&err);
}
