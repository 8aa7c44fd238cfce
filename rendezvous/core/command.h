/* A command of an operator while it is carried out. For the files of control.h. */
#ifndef DPT_RENDEZVOUS_CORE_COMMAND_H
#define DPT_RENDEZVOUS_CORE_COMMAND_H

#include "rendezvous/core/control.h"

/* A command, and its answer in the making. */
struct command {
    struct dpt_rdzv *core;
    const Dpt__Control *control;
    uint64_t incarnation; /* random: of the program that asks */
    Dpt__ControlReply *reply;
    bool limited;                        /* its machine may see one run only */
    struct run *run;                     /* NULL: none */
    char run_name[DPT_PROTO_NAME_BYTES]; /* ALLOW: of a run that may be forgotten; else "" */
    char text[DPT_PROTO_TEXT_BYTES];
};

#define DONE    DPT__CONTROL_OUTCOME__CONTROL_DONE
#define GOES_ON DPT__CONTROL_OUTCOME__CONTROL_GOES_ON
#define REFUSED DPT__CONTROL_OUTCOME__CONTROL_REFUSED
#define UNKNOWN DPT__CONTROL_OUTCOME__CONTROL_UNKNOWN

/* Gives the reply its outcome and the command its text. */
void dpt_rdzv_set_outcome(struct command *command, Dpt__ControlOutcome outcome, const char *fmt,
                          ...) DPT_PRINTF(3, 4);

/* Adds to the text of a command that goes on that no node of its run is heard. The text has no time
 * that grows: dpt-ctl prints each new text. */
void dpt_rdzv_add_silence(struct command *command);

/* DRAIN, EVICT and ALLOW, of a command that names a node. */
void dpt_rdzv_drain_node(struct command *command);
void dpt_rdzv_evict_node(struct command *command);
void dpt_rdzv_allow_node(struct command *command);

/* ---- control_refused.c ---- */

/* True: this is a copy of a question that was refused; the command gets the same outcome. */
bool dpt_rdzv_was_refused(const struct inquiry *from, struct command *command);
/* Keeps the outcome if it is a refusal. */
void dpt_rdzv_keep_refusal(const struct inquiry *from, const struct command *command);
/* Notes that this STOP is refused because no node here holds the newest steps, if it is. */
void dpt_rdzv_note_stop(const struct command *command);
/* True: a STOP of another program was refused for that. So this one is given in the knowledge of
 * it, and is no late copy. */
bool dpt_rdzv_is_second_stop(const struct command *command);

#endif
