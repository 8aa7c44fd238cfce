/* Frames to and from a rank's link. */
#include "tests/worker/train/agent_end.h"

#include "worker/agent/rank_protocol.h"

#include <stdlib.h>

bool agent_end_send(int fd, Dpt__RankCommand command, uint64_t generation, int64_t grant_step,
                    int64_t lease_until_ms, bool leaving)
{
    Dpt__AgentToRank message = DPT__AGENT_TO_RANK__INIT;
    message.command = command;
    message.generation = generation;
    message.grant_step = grant_step;
    message.lease_until_ms = lease_until_ms;
    message.leaving = leaving;
    uint8_t frame[1024];
    size_t bytes = 0;
    struct dpt_err err;
    return dpt_message_encode(&message.base, frame, sizeof frame, &bytes, &err) == DPT_OK &&
           dpt_rank_link_send(fd, frame, bytes, &err) == DPT_OK;
}

Dpt__RankToAgent *agent_end_receive(int fd, int wait_ms)
{
    uint8_t *frame = malloc(DPT_RANK_FRAME_BYTES_MAX);
    Dpt__RankToAgent *said = NULL;
    size_t bytes = 0;
    struct dpt_err err;
    if (frame && dpt_rank_link_recv(fd, wait_ms, frame, &bytes, &err) == DPT_OK &&
        dpt_message_decode_rank_to_agent(frame, bytes, &said, &err) != DPT_OK)
        said = NULL;
    free(frame);
    return said;
}
