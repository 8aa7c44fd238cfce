/* Fuzz target: any bytes as a message of the control plane; the first byte chooses the kind. A
 * decoded message encodes again, and the encoding decodes to the same bytes. The decoders
 * that build the message in the caller's memory accept the same messages as the others. */
#include "rendezvous/proto/message.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

enum { INPUT_BYTES_MAX = 16 * 1024, ALIGN = 16 };

/* Encodes `message` into owned bytes. */
static uint8_t *pack_message(const ProtobufCMessage *message, size_t *ret_bytes)
{
    const size_t bytes = dpt_message_bytes(message);
    uint8_t *packed = malloc(bytes + 1);
    struct dpt_err err;
    DPT_ASSERT(packed != NULL);
    DPT_ASSERT(dpt_message_encode(message, packed, bytes, ret_bytes, &err) == DPT_OK);
    DPT_ASSERT(*ret_bytes == bytes);
    return packed;
}

/* For each kind: if `data` decodes, its encoding decodes to an equal message. For a message of
 * another version only the fields that are shown are compared. */
#define DEFINE_KIND(name, Type, of_this_version)                                                   \
    static bool again_##name(const uint8_t *data, size_t bytes)                                    \
    {                                                                                              \
        Type *message = NULL, *copy = NULL;                                                        \
        struct dpt_err err = {.status = DPT_OK};                                                   \
        if (dpt_message_decode_##name(data, bytes, &message, &err) != DPT_OK) {                    \
            DPT_ASSERT(message == NULL && err.status != DPT_OK && err.text[0] != '\0');            \
            return false;                                                                          \
        }                                                                                          \
        if (!(of_this_version)) {                                                                  \
            dpt_message_free_##name(&message);                                                     \
            return true;                                                                           \
        }                                                                                          \
        size_t first_bytes, second_bytes;                                                          \
        uint8_t *first = pack_message(&message->base, &first_bytes);                               \
        DPT_ASSERT(dpt_message_decode_##name(first, first_bytes, &copy, &err) == DPT_OK);          \
        uint8_t *second = pack_message(&copy->base, &second_bytes);                                \
        DPT_ASSERT(first_bytes == second_bytes && memcmp(first, second, first_bytes) == 0);        \
        free(first);                                                                               \
        free(second);                                                                              \
        dpt_message_free_##name(&message);                                                         \
        dpt_message_free_##name(&copy);                                                            \
        DPT_ASSERT(message == NULL && copy == NULL);                                               \
        return true;                                                                               \
    }

DEFINE_KIND(agent_state, Dpt__AgentState, message->version == DPT_PROTO_VERSION)
DEFINE_KIND(server_state, Dpt__ServerState, message->version == DPT_PROTO_VERSION)
DEFINE_KIND(agent_to_rank, Dpt__AgentToRank, true)
DEFINE_KIND(rank_to_agent, Dpt__RankToAgent, true)

/* In memory of exactly the size that is promised to do, at the very end of the buffer. */
#define DEFINE_IN_MEMORY(name, Type)                                                               \
    static void in_memory_##name(const uint8_t *data, size_t bytes, bool taken)                    \
    {                                                                                              \
        static _Alignas(ALIGN) uint8_t memory[DPT_MESSAGE_MEMORY_BYTES(INPUT_BYTES_MAX)];          \
        const size_t room = DPT_MESSAGE_MEMORY_BYTES(bytes);                                       \
        Type *message = NULL;                                                                      \
        struct dpt_err err = {.status = DPT_OK};                                                   \
        const enum dpt_status status = dpt_message_decode_##name##_in(                             \
            memory + sizeof memory - room, room, data, bytes, &message, &err);                     \
        DPT_ASSERT(status == err.status && (status == DPT_OK) == taken);                           \
    }

DEFINE_IN_MEMORY(agent_state, Dpt__AgentState)
DEFINE_IN_MEMORY(agent_to_rank, Dpt__AgentToRank)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct feed feed = feed_from(data, bytes);
    const uint32_t kind = feed_below(&feed, 4);
    size_t n;
    const uint8_t *rest = feed_rest(&feed, &n);
    if (n > INPUT_BYTES_MAX)
        return 0;
    switch (kind) {
    case 0:
        in_memory_agent_state(rest, n, again_agent_state(rest, n));
        break;
    case 1:
        (void)again_server_state(rest, n);
        break;
    case 2:
        (void)again_rank_to_agent(rest, n);
        break;
    default:
        in_memory_agent_to_rank(rest, n, again_agent_to_rank(rest, n));
    }
    return 0;
}
