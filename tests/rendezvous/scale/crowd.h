/* Many nodes of one run around one state machine of the server. Their agents obey at once, and all
 * their ranks are equal. */
#ifndef DPT_TESTS_RENDEZVOUS_SCALE_CROWD_H
#define DPT_TESTS_RENDEZVOUS_SCALE_CROWD_H

#include "rendezvous/core/core.h"

enum { CROWD_NODES_MAX = 65536, CROWD_TIMEOUT_MS = 5000 };

/* Costs since they were last taken. */
struct crowd_cost {
    uint64_t events;              /* steps of the machine */
    int64_t core_ns, longest_ns;  /* of all steps, of the longest one */
    int64_t decode_ns, encode_ns; /* of messages of agents, of the machine's answers */
    uint64_t sends, bytes;        /* messages to agents */
    uint64_t longest_bytes;       /* of one message */
};

struct crowd;

/* Any failure ends the process with a line. */
struct crowd *crowd_create(uint32_t nodes, uint32_t ranks);
void crowd_destroy(struct crowd **crowd);
struct crowd_cost crowd_take_cost(struct crowd *crowd);

/* Every node sends its first message. Its ranks stand by. */
void crowd_join(struct crowd *crowd);
/* The nodes obey until no message is left, and run then. */
void crowd_form(struct crowd *crowd);
/* Every node sends one heartbeat; a step further, if it runs. */
void crowd_beat(struct crowd *crowd);
/* An operator stops the run. Its ranks cannot save, so the server holds it. */
void crowd_stop(struct crowd *crowd);
/* The server is killed and started again with its journal. The nodes come back while they run. */
void crowd_restart(struct crowd *crowd);
/* Heap of the state machine when it was first restarted; 0: not yet, or the allocator does not tell
 * (a sanitizer's). */
size_t crowd_machine_bytes(const struct crowd *crowd);
/* `lost` nodes beside one another die at once: their connections break, and each neighbour names
 * one of their ranks. The others obey until all run again. */
void crowd_lose(struct crowd *crowd, uint64_t lost);

/* `lost` nodes fall silent at once, with whole connections, as behind a dead switch: their leases
 * end one after the other. The others send heartbeats until all run again. */
void crowd_silence(struct crowd *crowd, uint64_t lost);

/* Nodes that run in the newest generation, and the number of that generation. */
uint64_t crowd_running(const struct crowd *crowd);
uint64_t crowd_generation(const struct crowd *crowd);
uint32_t crowd_restarts_left(const struct crowd *crowd);

#endif
