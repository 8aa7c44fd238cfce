/* An operator on the stage of trio.h: sends commands and keeps the reply. */
#ifndef DPT_TESTS_RENDEZVOUS_CORE_FAKE_OPERATOR_H
#define DPT_TESTS_RENDEZVOUS_CORE_FAKE_OPERATOR_H

#include "tests/rendezvous/core/trio.h"

#define IS(fake, what) assert_int_equal((fake).phase, DPT__SERVER_PHASE__SERVER_##what)
#define VERB(what)     DPT__CONTROL_VERB__CONTROL_##what

/* Of the last command; reply_rack and reply_address of the first node of its list,
 * reply_saved_node and reply_saved_host of its first run. Only numbers may
 * be read of the structs. */
extern Dpt__ControlReply reply;
extern char reply_text[DPT_PROTO_TEXT_BYTES], reply_run[DPT_PROTO_NAME_BYTES];
extern char reply_rack[DPT_PROTO_NAME_BYTES], reply_address[DPT_PROTO_ADDR_BYTES];
extern char reply_saved_node[DPT_PROTO_NAME_BYTES], reply_saved_host[DPT_PROTO_NAME_BYTES];
extern Dpt__RunInfo run_info;

/* What the server knows of the operator's machine. */
struct operator_rights {
    bool join_only;
    const char *only_run; /* NULL: it may take part in every run */
};

Dpt__ControlOutcome send_control(Dpt__Control *control);
/* A copy of the last question arrives, over another connection. */
Dpt__ControlOutcome copy(void);
/* A copy of the question before the last one arrives only now. */
Dpt__ControlOutcome copy_before_last(void);
/* A new command about this run, from a machine with these rights. */
Dpt__ControlOutcome order_as(const struct operator_rights *rights, Dpt__ControlVerb verb,
                             const char *run);
/* A new command about the only run, or about a node of it. */
Dpt__ControlOutcome order(Dpt__ControlVerb verb, const char *node);
/* The same command again, as dpt-ctl repeats it. */
Dpt__ControlOutcome again(Dpt__ControlVerb verb, const char *node);

/* Each fails the test for another outcome. */
void refused(Dpt__ControlOutcome outcome, const char *why);
void done(Dpt__ControlOutcome outcome);
void goes_on(Dpt__ControlOutcome outcome);

/* a and b train, have applied step 9 and report it. */
void start_trio_at_9(void);

#endif
