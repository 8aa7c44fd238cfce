/* Checks on a decoded message, for message.c only. The descriptor of a message defines its form:
 * known enum values, bounded strings without control characters, bounded bytes and lists. Numbers
 * and names have checks of their own for each message. DPT_EPROTO names the field. */
#ifndef DPT_RENDEZVOUS_PROTO_CHECK_H
#define DPT_RENDEZVOUS_PROTO_CHECK_H

#include "rendezvous/proto/message.h"

DPT_MUST_USE enum dpt_status dpt_check_agent_state(const Dpt__AgentState *message,
                                                   struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_check_server_state(const Dpt__ServerState *message,
                                                    struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_check_agent_to_rank(const Dpt__AgentToRank *message,
                                                     struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_check_rank_to_agent(const Dpt__RankToAgent *message,
                                                     struct dpt_err *err);

#endif
