/* What a message must look like before anybody acts on it. Used by message.c alone.
 *
 * Form is checked for every message by walking its descriptor: enum values known, strings bounded
 * and free of control characters, bytes and lists bounded. What a number or a name may be is
 * checked message by message. Every function returns DPT_EPROTO and names the field. */
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
