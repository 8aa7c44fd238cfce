/* Bytes <-> messages: protobuf-c with a bound on the memory of a message. */
#include "rendezvous/proto/message.h"

#include "rendezvous/proto/check.h"

#include <stdalign.h>
#include <stdbool.h>
#include <stdlib.h>

/* The memory that decoding may still take. protobuf-c makes a struct of some hundred bytes from an
 * empty submessage of two bytes, so without a limit a message of many empty submessages would take
 * a hundred times its size. */
struct budget {
    size_t left_bytes;
    bool exceeded;
    uint8_t *memory; /* place of the next allocation; NULL: the heap */
};

static void *budget_alloc(void *data, size_t bytes)
{
    struct budget *budget = data;
    if (budget->memory != NULL)
        bytes = (bytes + alignof(max_align_t) - 1) / alignof(max_align_t) * alignof(max_align_t);
    if (bytes > budget->left_bytes) {
        budget->exceeded = true;
        return NULL;
    }
    budget->left_bytes -= bytes;
    if (budget->memory == NULL)
        return malloc(bytes);
    void *piece = budget->memory;
    budget->memory += bytes;
    return piece;
}

static void budget_free(void *data, void *pointer)
{
    const struct budget *budget = data;
    if (budget->memory == NULL)
        free(pointer);
}

static enum dpt_status decode_within_budget(const ProtobufCMessageDescriptor *type,
                                            struct budget *budget, const void *data, size_t bytes,
                                            ProtobufCMessage **ret, struct dpt_err *err)
{
    if (bytes > DPT_MESSAGE_BYTES_MAX)
        return dpt_fail(err, DPT_EOVERFLOW, "%s of %zu bytes, at most %d", type->short_name, bytes,
                        DPT_MESSAGE_BYTES_MAX);
    ProtobufCAllocator allocator = {budget_alloc, budget_free, budget};
    ProtobufCMessage *message = protobuf_c_message_unpack(type, &allocator, bytes, data);
    if (message == NULL && budget->exceeded)
        return dpt_fail(err, DPT_EOVERFLOW, "%s of %zu bytes takes too much memory",
                        type->short_name, bytes);
    if (message == NULL)
        return dpt_fail(err, DPT_EPROTO, "%s of %zu bytes is malformed", type->short_name, bytes);
    *ret = message;
    return DPT_OK;
}

/* A function for each message type that is decoded in the caller's memory. */
#define DEFINE_DECODE_IN(name, Type, descriptor_)                                                  \
    enum dpt_status dpt_message_decode_##name##_in(void *memory, size_t memory_bytes,              \
                                                   const void *data, size_t bytes, Type **ret,     \
                                                   struct dpt_err *err)                            \
    {                                                                                              \
        DPT_ASSERT((uintptr_t)memory % alignof(max_align_t) == 0);                                 \
        struct budget budget = {.left_bytes = memory_bytes, .memory = memory};                     \
        ProtobufCMessage *message = NULL;                                                          \
        DPT_TRY(decode_within_budget(&descriptor_, &budget, data, bytes, &message, err));          \
        DPT_TRY(dpt_check_##name((const Type *)message, err));                                     \
        *ret = (Type *)message;                                                                    \
        return DPT_OK;                                                                             \
    }

DEFINE_DECODE_IN(agent_state, Dpt__AgentState, dpt__agent_state__descriptor)
DEFINE_DECODE_IN(agent_to_rank, Dpt__AgentToRank, dpt__agent_to_rank__descriptor)

/* Two functions for each message type. */
#define DEFINE_MESSAGE(name, Type, descriptor_)                                                    \
    enum dpt_status dpt_message_decode_##name(const void *data, size_t bytes, Type **ret,          \
                                              struct dpt_err *err)                                 \
    {                                                                                              \
        struct budget budget = {.left_bytes = DPT_MESSAGE_MEMORY_BYTES(bytes)};                    \
        ProtobufCMessage *message = NULL;                                                          \
        DPT_TRY(decode_within_budget(&descriptor_, &budget, data, bytes, &message, err));          \
        enum dpt_status status = dpt_check_##name((const Type *)message, err);                     \
        if (status != DPT_OK) {                                                                    \
            protobuf_c_message_free_unpacked(message, NULL);                                       \
            return status;                                                                         \
        }                                                                                          \
        *ret = (Type *)message;                                                                    \
        return DPT_OK;                                                                             \
    }                                                                                              \
    void dpt_message_free_##name(Type **message)                                                   \
    {                                                                                              \
        if (*message != NULL)                                                                      \
            protobuf_c_message_free_unpacked(&(*message)->base, NULL);                             \
        *message = NULL;                                                                           \
    }

DEFINE_MESSAGE(agent_state, Dpt__AgentState, dpt__agent_state__descriptor)
DEFINE_MESSAGE(server_state, Dpt__ServerState, dpt__server_state__descriptor)
DEFINE_MESSAGE(agent_to_rank, Dpt__AgentToRank, dpt__agent_to_rank__descriptor)
DEFINE_MESSAGE(rank_to_agent, Dpt__RankToAgent, dpt__rank_to_agent__descriptor)

size_t dpt_message_bytes(const ProtobufCMessage *message)
{
    return protobuf_c_message_get_packed_size(message);
}

enum dpt_status dpt_message_encode(const ProtobufCMessage *message, void *buf, size_t buf_bytes,
                                   size_t *ret_bytes, struct dpt_err *err)
{
    size_t bytes = protobuf_c_message_get_packed_size(message);
    if (bytes > buf_bytes)
        return dpt_fail(err, DPT_EOVERFLOW, "%s of %zu bytes does not fit into %zu",
                        message->descriptor->short_name, bytes, buf_bytes);
    *ret_bytes = protobuf_c_message_pack(message, buf);
    return DPT_OK;
}
