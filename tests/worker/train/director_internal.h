/* Shared by the files of the director.
 *
 *   director.c       ranks, commands and reports
 *   director_plan.c  plans
 *   director_wait.c  waits */
#ifndef DPT_TESTS_WORKER_TRAIN_DIRECTOR_INTERNAL_H
#define DPT_TESTS_WORKER_TRAIN_DIRECTOR_INTERNAL_H

#include "rendezvous/proto/message.h"
#include "tests/worker/train/director.h"
#include "worker/train/rank.h"

#include <pthread.h>

struct member {
    bool alive, benched, retires;
    int fd, host, rank;
    pthread_t thread;
    struct dpt_rank_start start;
    struct dpt_rank_options options;
    struct dpt_config config;
    int exit_code;
    Dpt__RankToAgent *said;
    Dpt__RankCommand last; /* command sent */
};

struct director {
    struct dpt_config config;
    struct member member[DIRECTOR_RANKS_MAX];
    int n;
    uint8_t number; /* of the director in this process; part of each nonce, so that none repeats */
    uint64_t generation, ran;
    int64_t best_step;
    int64_t steps_lost;
    int outcomes_handed;
    char broken_text[DPT_PROTO_TEXT_BYTES];
    uint8_t *frame;
    int64_t rescue_by_ms;
    int64_t beat_ms;
    bool leaving;
    bool withholds; /* grants */
    bool respawns;
    bool allow_fresh;
    int64_t claim_number;
    const char *claim_token;
    bool one_writes; /* only one rank writes checkpoints */
    bool lost;       /* a rank was killed since the last GO */
};

/* Whether the rank is a member of the generation that is being formed or runs. */
static inline bool plays(const struct member *m)
{
    return m->alive && !m->benched;
}

enum { DIRECTOR_DEADLINE_MS = 20000 };

/* Aborts the test; _at: prints the last report of every rank. */
void director_fail(const char *what);
void director_fail_at(const struct director *d, const char *what);

void director_send(struct director *d, struct member *m, Dpt__RankCommand command, Dpt__Plan *plan);
void director_tell_all(struct director *d, Dpt__RankCommand command);
/* Reads the ranks' reports for at most wait_ms; grants checkpoints. */
void director_listen_once(struct director *d, int wait_ms);
/* Whether the rank's last report says that it is in this phase of this generation; that its
 * communicator broke. */
bool director_in_phase(const struct director *d, const struct member *m, Dpt__RankPhase phase);
bool director_says_broken(const struct director *d, const struct member *m);

#endif
