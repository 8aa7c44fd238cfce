/* The command line of dpt-ctl: see args.h. */
#include "worker/ctl/args.h"

#include "base/option.h"
#include "base/parse.h"

#include <string.h>

enum { TIMEOUT_S = 5, WAIT_S = 300, S_MAX = 86400 };

#define ENDPOINT "127.0.0.1:29500"

static const char usage[] =
    "usage: dpt-ctl [OPTIONS] runs | nodes [--run R] | show [RUN]\n"
    "       dpt-ctl [OPTIONS] dump [RUN]\n"
    "       dpt-ctl [OPTIONS] save | pause | resume | stop [RUN]\n"
    "       dpt-ctl [OPTIONS] drain | evict | allow NODE [--run R]\n"
    "       dpt-ctl --help | --version\n"
    "\n"
    "Looks at the runs of a rendezvous server and steers them. RUN may be left out if the server\n"
    "has one run; --run is needed if several runs have the node.\n"
    "\n"
    "  runs        the server's runs\n"
    "  nodes       their nodes, and the denied ones\n"
    "  show RUN    one run: its nodes, and what its ranks do\n"
    "  dump RUN    show, and the stacks of the threads of each rank; for hangs\n"
    "  save RUN    a checkpoint after the step in flight; waits until it is committed\n"
    "  pause RUN   all ranks stop after the same step and keep their state; waits until they have\n"
    "  resume RUN  a paused run goes on; a stop that is not done is taken back\n"
    "  stop RUN    saves a checkpoint and ends the run: its workers end with 0; waits until they "
    "have\n"
    "  drain NODE  the node hands its state over and leaves, as after SIGTERM; waits until it has\n"
    "  evict NODE  the node is expelled at once, and its id may not join again\n"
    "  allow NODE  takes that back\n"
    "\n"
    "Options, before or after the command:\n"
    "  --rdzv-endpoint HOST:PORT  the server (default: $DPT_RDZV_ENDPOINT, else " ENDPOINT ")\n"
    "  --key-dir DIR              this machine's keys (docs/security.md); $DPT_RDZV_TOKEN: a "
    "token, if\n"
    "                             the server does not know this machine; none, if it has no keys\n"
    "  --run R                    the run\n"
    "  --json                     the result as one JSON object\n"
    "  --timeout-s S              longest time without an answer of the server (5)\n"
    "  --wait-s S                 longest wait until a command is done (300)\n"
    "\n"
    "A command goes on if dpt-ctl ends early; the same command again waits for it. "
    "docs/control.md\n"
    "has the fields of --json.\n"
    "Exit codes: 0 done; 2 usage, no such run or node, a server of another version; 3 no server "
    "in\n"
    "time; 4 refused, not done in time, or the ranks could not save (a full disk): the line says "
    "why.\n";

void dpt_ctl_args_help(FILE *out)
{
    (void)fputs(usage, out);
}

/* The word after a command. */
enum subject { SUBJECT_NONE, SUBJECT_RUN, SUBJECT_NODE };

static const struct word {
    const char *name;
    Dpt__ControlVerb verb;
    enum subject subject;
} words[] = {
    {"runs", DPT__CONTROL_VERB__CONTROL_RUNS, SUBJECT_NONE},
    {"nodes", DPT__CONTROL_VERB__CONTROL_NODES, SUBJECT_NONE},
    {"show", DPT__CONTROL_VERB__CONTROL_SHOW, SUBJECT_RUN},
    {"dump", DPT__CONTROL_VERB__CONTROL_DUMP, SUBJECT_RUN},
    {"save", DPT__CONTROL_VERB__CONTROL_SAVE, SUBJECT_RUN},
    {"pause", DPT__CONTROL_VERB__CONTROL_PAUSE, SUBJECT_RUN},
    {"resume", DPT__CONTROL_VERB__CONTROL_RESUME, SUBJECT_RUN},
    {"stop", DPT__CONTROL_VERB__CONTROL_STOP, SUBJECT_RUN},
    {"drain", DPT__CONTROL_VERB__CONTROL_DRAIN, SUBJECT_NODE},
    {"evict", DPT__CONTROL_VERB__CONTROL_EVICT, SUBJECT_NODE},
    {"allow", DPT__CONTROL_VERB__CONTROL_ALLOW, SUBJECT_NODE},
};

static enum dpt_status set_endpoint(void *ctx, const char *value, struct dpt_err *err)
{
    DPT_TRY(dpt_parse_endpoint(value, err));
    *(const char **)ctx = value;
    return DPT_OK;
}

/* The words of the command line that are no options. */
struct given {
    const struct word *command; /* NULL: not given */
    const char *subject;        /* NULL: not given */
};

static enum dpt_status take_word(struct given *given, const char *word, struct dpt_err *err)
{
    if (given->command != NULL && given->command->subject != SUBJECT_NONE &&
        given->subject == NULL) {
        given->subject = word;
        return DPT_OK;
    }
    if (given->command != NULL)
        return dpt_fail(err, DPT_EINVAL, "%s: unexpected word '%.80s'", given->command->name, word);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strcmp(words[i].name, word) == 0)
            given->command = &words[i];
    return given->command != NULL ? DPT_OK
                                  : dpt_fail(err, DPT_EINVAL, "unknown command '%.80s'", word);
}

static enum dpt_status choose_verb(const struct given *given, struct dpt_ctl_args *ret,
                                   struct dpt_err *err)
{
    const struct word *command = given->command;
    if (command == NULL)
        return dpt_fail(err, DPT_EINVAL, "expected a command");
    ret->verb = command->verb;
    ret->command = command->name;
    if (command->subject == SUBJECT_NODE && given->subject == NULL)
        return dpt_fail(err, DPT_EINVAL, "%s needs a node: dpt-ctl %s NODE", command->name,
                        command->name);
    if (command->verb == DPT__CONTROL_VERB__CONTROL_RUNS && ret->run[0] != '\0')
        return dpt_fail(err, DPT_EINVAL, "runs: --run belongs to other commands");
    if (command->subject == SUBJECT_NODE)
        ret->node = given->subject;
    if (command->subject != SUBJECT_RUN || given->subject == NULL)
        return DPT_OK;
    if (ret->run[0] != '\0' && strcmp(ret->run, given->subject) != 0)
        return dpt_fail(err, DPT_EINVAL, "%s: two runs are given, '%.80s' and '%.80s'",
                        command->name, given->subject, ret->run);
    ret->run = given->subject;
    return DPT_OK;
}

enum dpt_status dpt_ctl_args_read(int argc, char *const *argv, const char *environment,
                                  struct dpt_ctl_args *ret, struct dpt_err *err)
{
    *ret = (struct dpt_ctl_args){
        .run = "", .node = "", .command = "", .timeout_s = TIMEOUT_S, .wait_s = WAIT_S};
    const struct dpt_option options[] = {
        {"--help", .flag = &ret->help},
        {"--version", .flag = &ret->version},
        {"--json", .flag = &ret->json},
        {"--rdzv-endpoint", "HOST:PORT", .set = set_endpoint, .ctx = &ret->endpoint},
        {"--key-dir", "DIR", .text = &ret->key_dir},
        {"--run", "R", .text = &ret->run},
        {"--timeout-s", "S", .number = &ret->timeout_s, .min = 1, .max = S_MAX},
        {"--wait-s", "S", .number = &ret->wait_s, .min = 1, .max = S_MAX},
    };
    struct given given = {NULL, NULL};
    for (int at = 1; at < argc && !ret->help && !ret->version; at++) {
        if (argv[at][0] == '-')
            DPT_TRY(
                dpt_option_read(options, sizeof options / sizeof options[0], argc, argv, &at, err));
        else
            DPT_TRY(take_word(&given, argv[at], err));
    }
    if (ret->help || ret->version)
        return DPT_OK;
    DPT_TRY(choose_verb(&given, ret, err));
    if (ret->endpoint != NULL)
        return DPT_OK;
    ret->endpoint = environment != NULL && environment[0] != '\0' ? environment : ENDPOINT;
    return dpt_wrap(err, dpt_parse_endpoint(ret->endpoint, err), "DPT_RDZV_ENDPOINT");
}
