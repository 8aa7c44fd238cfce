/* Messages of the control plane as bytes. protobuf-c generates the structs from dpt.proto
 * (Dpt__AgentState, …).
 *
 * Decoding checks size, memory, protobuf form, enum values, lengths of strings, bytes and lists,
 * ranges of numbers, and the order of a plan's ranks. The receiver must check epoch, run,
 * generation and incarnation. Of a message of another version, decoding checks only version,
 * software, stamp and text, and the receiver may read only these. */
#ifndef DPT_RENDEZVOUS_PROTO_MESSAGE_H
#define DPT_RENDEZVOUS_PROTO_MESSAGE_H

#include "base/err.h"
#include "base/world_limits.h"
#include "rendezvous/proto/dpt.pb-c.h"

#include <stddef.h>
#include <stdint.h>

enum {
    /* The version of all messages between processes of a run, also between ranks. Version 1: a plan
       named one rank to copy the state from, and no shards. Version 2: ranks did not report
       predicted labels. Version 3: ranks did not compare their clocks. Version 4: the empty shard
       had other numbers, and a plan listed all ranks of every world. Version 5: the nonce of a plan
       went over data connections. Version 6: a plan had no racks. Version 7: a field that is -1
       took ten bytes. Version 8: all commands of operators had the same incarnation. */
    DPT_PROTO_VERSION = 9,

    DPT_PROTO_RANKS_MAX = 64,            /* rank processes of one node */
    DPT_PROTO_WORLD_MAX = DPT_WORLD_MAX, /* ranks of one generation */
    DPT_PROTO_NODES_MAX = DPT_NODES_MAX, /* nodes of one run */
    DPT_PROTO_STATUS_RANKS_MAX = 1024,   /* ranks in the status of a run */
    DPT_PROTO_RUNS_MAX = 256,            /* runs in a reply to an operator */
    DPT_PROTO_REPLY_NODES_MAX = 4096,    /* nodes in such a reply */
    DPT_PROTO_STEPS_MAX = 256,           /* completed steps in one message of a rank */
    DPT_PROTO_SHARDS_MAX = 4,    /* parts of the state that a rank reports: own and shadow, twice */
    DPT_PROTO_NAME_BYTES = 64,   /* run, node id, user, software, cause_kind; NUL included */
    DPT_PROTO_ADDR_BYTES = 128,  /* an address of the data plane; NUL included */
    DPT_PROTO_DIGEST_BYTES = 72, /* digests, fingerprints, folder ids, host; NUL included */
    DPT_PROTO_STACKS_BYTES = 4096, /* stacks of one rank; NUL included */
    DPT_PROTO_TEXT_BYTES = 1024,   /* a line for a person; NUL included */
    DPT_PROTO_NONCE_BYTES = 16,
    DPT_PROTO_SECRET_BYTES = 16,
    DPT_PROTO_OUTCOME_BYTES_MAX = 64 * 1024,
    DPT_PROTO_YAML_BYTES_MAX = 64 * 1024,
    DPT_PROTO_TIMEOUT_MS_MIN = 100,
    DPT_PROTO_TIMEOUT_MS_MAX = 600 * 1000,
    DPT_PROTO_DRAIN_MS_MIN = 1000,
    DPT_PROTO_DRAIN_MS_MAX = 3600 * 1000,
    DPT_PROTO_DRAIN_MS_DEFAULT = 8000,

    /* The longest encoded message of any kind. A longer message is refused unread. */
    DPT_MESSAGE_BYTES_MAX = 8 * 1024 * 1024
};

/* No run reaches these limits, and they are low enough that sums do not overflow. */
#define DPT_PROTO_STEP_MAX       INT64_C(1000000000000000)
#define DPT_PROTO_MS_MAX         INT64_C(1000000000000000)
#define DPT_PROTO_GENERATION_MAX INT64_C(1000000000000000)
/* Of steps and times that a rank or an agent tells: later steps, and the server's sums and
 * multiples of times, stay below the limits above. The server refuses an agent that tells a higher
 * generation than this, unless it has counted so far itself. */
#define DPT_PROTO_TOLD_STEPS      INT64_C(1000000000000)
#define DPT_PROTO_TOLD_MS         INT64_C(1000000000000)
#define DPT_PROTO_TOLD_GENERATION UINT64_C(1000000000000)

/* Decode `bytes` bytes into a new message, which the caller owns and frees (dpt_message_free_…).
 * DPT_EPROTO names the wrong field. DPT_EOVERFLOW: the bytes are too long, or the message would
 * take too much memory. */
DPT_MUST_USE enum dpt_status dpt_message_decode_agent_state(const void *data, size_t bytes,
                                                            Dpt__AgentState **ret,
                                                            struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_message_decode_server_state(const void *data, size_t bytes,
                                                             Dpt__ServerState **ret,
                                                             struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_message_decode_agent_to_rank(const void *data, size_t bytes,
                                                              Dpt__AgentToRank **ret,
                                                              struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_message_decode_rank_to_agent(const void *data, size_t bytes,
                                                              Dpt__RankToAgent **ret,
                                                              struct dpt_err *err);

/* Decodes without allocation. The message lies in the caller's `memory`, which is aligned as by
 * malloc, and is not freed. DPT_EOVERFLOW: the message does not fit. Memory of
 * DPT_MESSAGE_MEMORY_BYTES(n) bytes holds any message of n encoded bytes. */
#define DPT_MESSAGE_MEMORY_BYTES(bytes) (64 * 1024 + 16 * (size_t)(bytes))
DPT_MUST_USE enum dpt_status dpt_message_decode_agent_state_in(void *memory, size_t memory_bytes,
                                                               const void *data, size_t bytes,
                                                               Dpt__AgentState **ret,
                                                               struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_message_decode_agent_to_rank_in(void *memory, size_t memory_bytes,
                                                                 const void *data, size_t bytes,
                                                                 Dpt__AgentToRank **ret,
                                                                 struct dpt_err *err);

/* Frees a message that dpt_message_decode_… has made, and sets the pointer to NULL. Accepts
 * NULL. */
void dpt_message_free_agent_state(Dpt__AgentState **message);
void dpt_message_free_server_state(Dpt__ServerState **message);
void dpt_message_free_agent_to_rank(Dpt__AgentToRank **message);
void dpt_message_free_rank_to_agent(Dpt__RankToAgent **message);

/* The encoded size of `message` (any of the above, as &message->base) in bytes. */
size_t dpt_message_bytes(const ProtobufCMessage *message);

/* Encodes a message into `buf`. DPT_EOVERFLOW: the encoded message has more than buf_bytes
 * bytes. */
DPT_MUST_USE enum dpt_status dpt_message_encode(const ProtobufCMessage *message, void *buf,
                                                size_t buf_bytes, size_t *ret_bytes,
                                                struct dpt_err *err);

#endif
