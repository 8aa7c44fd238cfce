/* Copies of questions that were refused, and of a STOP that would give up steps. */
#include "rendezvous/core/command.h"

#include <stdio.h>

bool dpt_rdzv_was_refused(const struct inquiry *from, struct command *command)
{
    const struct refused_questions *refused = &command->core->refused_questions;
    for (size_t i = 0; i < REFUSED_QUESTIONS_MAX; i++) {
        const struct refused_question *each = &refused->ring[i];
        if (each->counter == 0 || each->counter != from->message->counter ||
            each->incarnation != from->message->stamp->incarnation)
            continue;
        dpt_rdzv_set_outcome(command, each->outcome, "%s", each->text);
        return true;
    }
    return false;
}

void dpt_rdzv_keep_refusal(const struct inquiry *from, const struct command *command)
{
    struct refused_questions *refused = &command->core->refused_questions;
    const Dpt__ControlOutcome outcome = command->reply->outcome;
    if (outcome != REFUSED && outcome != UNKNOWN)
        return;
    struct refused_question *next = &refused->ring[refused->n++ % REFUSED_QUESTIONS_MAX];
    *next = (struct refused_question){.incarnation = from->message->stamp->incarnation,
                                      .counter = from->message->counter,
                                      .outcome = outcome};
    (void)snprintf(next->text, sizeof next->text, "%s", command->text);
}

void dpt_rdzv_note_stop(const struct command *command)
{
    struct operator_requests *requests = &command->run->requests;
    if (requests->told_away && !requests->told_unsaved)
        requests->refused_away = command->incarnation;
}

bool dpt_rdzv_is_second_stop(const struct command *command)
{
    const uint64_t refused = command->run->requests.refused_away;
    return refused != 0 && refused != command->incarnation;
}
