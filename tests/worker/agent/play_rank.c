/* Plays a rank process that follows its agent's commands without training: says STANDBY, reports,
 * is ready, runs, and has finished at once. For the tests of the agent's loop. What it does
 * otherwise is in the environment, DPT_PLAY_RANK:
 *
 *   run       says RUNNING and never finishes
 *   garbage   sends a frame that is no message when it should report
 *   crash     logs an error with a control character in it and exits with 9 when it should report,
 * in its first process only deaf      never answers */
#include "rendezvous/proto/message.h"
#include "worker/agent/rank_protocol.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HEARTBEAT_MS = 20 };

static uint8_t frame[DPT_RANK_FRAME_BYTES_MAX];
static struct dpt_rank_start start;
static const char *play;

static Dpt__RankPhase said_phase; /* said again with every heartbeat */
static uint64_t said_generation;

static void play_rank_report(Dpt__RankPhase phase, uint64_t generation)
{
    said_phase = phase;
    said_generation = generation;
    Dpt__RankState state = DPT__RANK_STATE__INIT;
    Dpt__RankToAgent message = DPT__RANK_TO_AGENT__INIT;
    state.local_rank = (uint32_t)start.local_rank;
    state.spawn = (uint32_t)start.spawn;
    state.phase = phase;
    state.generation = generation;
    state.shm_addr = (char *)(uintptr_t) "@play";
    state.tcp_addr = (char *)(uintptr_t) "127.0.0.1:1";
    state.step_applied = phase == DPT__RANK_PHASE__RANK_FINISHED ? 7 : 0;
    state.outcome_step = state.checkpoint_step = state.grant_step = -1;
    state.suspect = -1;
    state.weights_hash = (char *)(uintptr_t) "0123";
    message.state = &state;
    message.tokens_per_s = 1;
    size_t bytes;
    struct dpt_err err;
    if (dpt_message_encode(&message.base, frame, sizeof frame, &bytes, &err) != DPT_OK ||
        dpt_rank_link_send(DPT_RANK_FD_LINK, frame, bytes, &err) == DPT_EPEER)
        _exit(100);
}

static void report(uint64_t generation)
{
    struct dpt_err err;
    if (strcmp(play, "garbage") == 0)
        (void)!dpt_rank_link_send(DPT_RANK_FD_LINK, "\xff\xff\xff", 3, &err);
    if (strcmp(play, "crash") == 0 && start.spawn == 1) {
        puts("2026-01-02T03:04:05.678Z E dpt-worker node=a rank=0: the shard\tis gone");
        fflush(stdout);
        _exit(9);
    }
    play_rank_report(DPT__RANK_PHASE__RANK_QUIESCED, generation);
}

static void obey_agent(const Dpt__AgentToRank *command)
{
    switch (command->command) {
    case DPT__RANK_COMMAND__COMMAND_PREPARE:
    case DPT__RANK_COMMAND__COMMAND_PREPARE_SOFT:
        report(command->generation);
        break;
    case DPT__RANK_COMMAND__COMMAND_PLAN:
        play_rank_report(DPT__RANK_PHASE__RANK_READY, command->generation);
        break;
    case DPT__RANK_COMMAND__COMMAND_GO:
        play_rank_report(strcmp(play, "run") == 0 ? DPT__RANK_PHASE__RANK_RUNNING
                                                  : DPT__RANK_PHASE__RANK_FINISHED,
                         command->generation);
        break;
    case DPT__RANK_COMMAND__COMMAND_EXIT:
        _exit(0);
    default:
        break;
    }
}

int main(int argc, char **argv)
{
    struct dpt_err err;
    static struct dpt_config config;
    if (dpt_rank_start_decode(argc, argv, &start, &err) != DPT_OK ||
        dpt_rank_start_enter(&start, &err) != DPT_OK ||
        dpt_rank_start_config(DPT_RANK_FD_CONFIG, &config, &err) != DPT_OK) {
        fprintf(stderr, "play rank: %s\n", err.text);
        return 2;
    }
    play = getenv("DPT_PLAY_RANK");
    if (play == NULL)
        play = "";
    if (strcmp(play, "deaf") != 0)
        play_rank_report(DPT__RANK_PHASE__RANK_STANDBY, 0);
    for (;;) {
        size_t bytes = 0;
        enum dpt_status status =
            dpt_rank_link_recv(DPT_RANK_FD_LINK, HEARTBEAT_MS, frame, &bytes, &err);
        Dpt__AgentToRank *command = NULL;
        if (status == DPT_EPEER)
            return 0;
        if (status != DPT_OK) {
            if (strcmp(play, "deaf") != 0)
                play_rank_report(said_phase, said_generation);
            continue;
        }
        if (dpt_message_decode_agent_to_rank(frame, bytes, &command, &err) != DPT_OK) {
            fprintf(stderr, "play rank: %s\n", err.text);
            return 3;
        }
        if (strcmp(play, "deaf") != 0)
            obey_agent(command);
        dpt_message_free_agent_to_rank(&command);
    }
}
