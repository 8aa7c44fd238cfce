/* The parts of crowd.c and its messages, for these files only. */
#ifndef DPT_TESTS_RENDEZVOUS_SCALE_CROWD_INTERNAL_H
#define DPT_TESTS_RENDEZVOUS_SCALE_CROWD_INTERNAL_H

#include "tests/rendezvous/scale/crowd.h"
#include "tests/rendezvous/scale/meter.h"

enum {
    CROWD_MESSAGE_BYTES_MAX = 64 * 1024, /* of an agent */
    CROWD_TEXT_BYTES = 48
};

struct member {
    char id[CROWD_TEXT_BYTES], tcp[CROWD_TEXT_BYTES];
    uint64_t counter, epoch, generation;
    Dpt__ServerPhase phase;
    char digest[DPT_PROTO_DIGEST_BYTES];
    uint32_t world;
    int32_t first_rank; /* of local rank 0 in the newest plan */
    bool gone, has_news;
    bool is_known; /* the server has answered: it has the spec */
    Dpt__RankPhase rank_phase;
    uint64_t rank_generation, failed_generation;
    int32_t suspect;
};

struct crowd {
    struct dpt_rdzv *core;
    struct kept_records *journal;
    int64_t now_ms, deadline_ms;
    uint32_t n, ranks;
    int64_t step;
    uint32_t restarts_left;
    uint64_t epoch;         /* of the newest server */
    struct member *members; /* (n) the connection of member i is i + 1 */
    uint32_t *queue;        /* (n) members with news */
    uint32_t n_queue;
    struct meter meter;
    uint8_t *in, *out; /* encoded messages */
    size_t out_bytes;
    void *decoded; /* memory for a decoded message, as the server's */
    uint64_t random;
    size_t machine_bytes; /* heap of the machine before its first restart */
};

/* Ends the process with a line. */
void crowd_fail(const char *what, const char *why);
/* Encodes the state of a node into crowd->in. Returns its bytes. */
size_t crowd_encode_state(struct crowd *crowd, struct member *member);
/* The same of an operator's command to the run. */
size_t crowd_encode_command(struct crowd *crowd, Dpt__ControlVerb verb);

#endif
