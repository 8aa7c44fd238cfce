/* The slots of a node's rank processes: their starts, events and ends. */
#include "worker/agent/ranks.h"

#include "base/clock.h"
#include "base/log.h"
#include "worker/agent/node_address.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum dpt_status dpt_ranks_init(struct dpt_ranks *ranks, const struct dpt_loop_options *options,
                               const struct dpt_node *node, struct dpt_err *err)
{
    DPT_ASSERT(node->n_ranks >= 1 && node->n_ranks <= DPT_PROTO_RANKS_MAX);
    *ranks = (struct dpt_ranks){
        .options = options, .node = node, .frame = malloc(DPT_RANK_FRAME_BYTES_MAX)};
    if (ranks->frame == NULL)
        return dpt_fail_nomem(err, "frames of rank processes");
    for (int i = 0; i < node->n_ranks; i++) {
        struct dpt_rank_slot *slot = &ranks->slots[i];
        slot->process =
            (struct dpt_rank_process){.pid_fd = -1, .link_fd = -1, .output_fd = -1, .step_fd = -1};
        enum dpt_status status = dpt_process_log_init(&slot->log, node->config.log.dir,
                                                      options->agent.node, i, STDERR_FILENO, err);
        ranks->n = i + 1;
        if (status != DPT_OK) {
            dpt_ranks_fini(ranks, false, 0);
            return status;
        }
    }
    return DPT_OK;
}

/* ---- starts ---- */

/* Begins the claims with the first start. A run that only evaluates claims nothing: other runs may
 * train in the folders. */
static enum dpt_status begin_claims(struct dpt_ranks *ranks, uint64_t epoch, struct dpt_err *err)
{
    const struct dpt_config *config = &ranks->node->config;
    if (ranks->claims != NULL || config->train.eval_only)
        return DPT_OK;
    const struct dpt_claims_options options = {.dir = {config->log.dir, config->checkpoint.dir},
                                               .run = config->run,
                                               .server = epoch,
                                               .embedded = ranks->options->embedded,
                                               .timeout_ms = ranks->node->spec.timeout_ms};
    return dpt_claims_create(&options, &ranks->claims, err);
}

bool dpt_ranks_are_claimed(const struct dpt_ranks *ranks)
{
    return ranks->claims == NULL || dpt_claims_state(ranks->claims, NULL) == DPT_CLAIMS_HELD;
}

static void fail_start(struct dpt_rank_slot *slot, const char *text, bool is_final)
{
    slot->exit_final = is_final;
    slot->exit_pending = true;
    slot->exit_code = 127; /* as a shell's for a command that cannot be run */
    (void)snprintf(slot->text, sizeof slot->text, "%.*s", DPT_RANK_TEXT_BYTES - 1, text);
}

/* The address is looked up for each start, because a host may get another one. */
static enum dpt_status fill_start(const struct dpt_ranks *ranks,
                                  const struct dpt_agent_action *action, struct dpt_rank_start *ret,
                                  struct dpt_err *err)
{
    const struct dpt_worker_options *options = ranks->options->worker;
    const struct dpt_data_digest *data = &ranks->node->data;
    *ret = (struct dpt_rank_start){.incarnation = action->incarnation,
                                   .local_rank = (int)action->local_rank,
                                   .ranks = ranks->n,
                                   .spawn = (int)action->spawn,
                                   .threads = ranks->node->threads,
                                   .agent = getpid(),
                                   .log_level = (int)options->log_level,
                                   .n_allow = options->n_allow,
                                   .allow_fresh = options->allow_fresh};
    (void)snprintf(ret->node, sizeof ret->node, "%s", ranks->options->agent.node);
    memcpy(ret->data, data->train.hash, sizeof ret->data);
    memcpy(ret->data_stamp, data->train.stamp, sizeof ret->data_stamp);
    memcpy(ret->val, data->val.hash, sizeof ret->val);
    memcpy(ret->val_stamp, data->val.stamp, sizeof ret->val_stamp);
    for (int i = 0; i < options->n_allow; i++)
        (void)snprintf(ret->allow[i], sizeof ret->allow[i], "%s", options->allow[i]);
    if (ranks->claims != NULL)
        (void)dpt_claims_get(ranks->claims, 1, &ret->claim_number, ret->claim_token);
    return dpt_node_address_find(ranks->node->config.cluster.interface, ranks->options->endpoint,
                                 ret->address, err);
}

static void start_process(struct dpt_ranks *ranks, const struct dpt_agent_action *action)
{
    struct dpt_rank_slot *slot = &ranks->slots[action->local_rank];
    struct dpt_rank_start start;
    struct dpt_err err;
    DPT_ASSERT(slot->process.pid == 0 && !slot->exit_pending);
    /* The previous process's output is still open if another process holds the other end. */
    if (slot->process.output_fd >= 0)
        close(slot->process.output_fd);
    slot->process.output_fd = -1;
    slot->log.last_error[0] = '\0';
    slot->eof_ms = 0;
    slot->exit_final = false;
    slot->spawn = action->spawn;
    enum dpt_status status = fill_start(ranks, action, &start, &err);
    if (status == DPT_OK) {
        const struct dpt_rank_process_options options = {
            ranks->options->program, &start, ranks->node->config_text, ranks->node->config_bytes};
        status = dpt_rank_process_start(&options, &slot->process, &err);
    }
    if (status != DPT_OK)
        fail_start(slot, err.text, status == DPT_EOVERFLOW);
}

enum dpt_status dpt_ranks_start(struct dpt_ranks *ranks, const struct dpt_agent_action *action,
                                uint64_t epoch, struct dpt_err *err)
{
    DPT_ASSERT((int)action->local_rank < ranks->n);
    DPT_TRY(begin_claims(ranks, epoch, err));
    if (dpt_ranks_are_claimed(ranks))
        start_process(ranks, action);
    else
        ranks->slots[action->local_rank].waiting = *action;
    return DPT_OK;
}

void dpt_ranks_start_waiting(struct dpt_ranks *ranks)
{
    for (int i = 0; i < ranks->n; i++) {
        const struct dpt_agent_action action = ranks->slots[i].waiting;
        ranks->slots[i].waiting.spawn = 0;
        if (action.spawn != 0)
            start_process(ranks, &action);
    }
}

void dpt_ranks_kill(struct dpt_ranks *ranks, const struct dpt_agent_action *action)
{
    struct dpt_rank_slot *slot = &ranks->slots[action->local_rank];
    if (slot->waiting.spawn == action->spawn) {
        slot->waiting.spawn = 0;
        slot->spawn = action->spawn;
        fail_start(slot, "was given up while log.dir or checkpoint.dir was being claimed", false);
    } else if (slot->spawn == action->spawn) {
        dpt_rank_process_kill(&slot->process);
    }
}

/* ---- frames and events ---- */

void dpt_ranks_send(struct dpt_ranks *ranks, uint32_t local_rank, uint32_t spawn,
                    const Dpt__AgentToRank *message)
{
    const struct dpt_rank_slot *slot = &ranks->slots[local_rank];
    if (slot->spawn != spawn || slot->process.link_fd < 0)
        return;
    struct dpt_err err;
    size_t bytes;
    enum dpt_status status =
        dpt_message_encode(&message->base, ranks->frame, DPT_RANK_FRAME_BYTES_MAX, &bytes, &err);
    if (status == DPT_OK)
        status = dpt_rank_link_send(slot->process.link_fd, ranks->frame, bytes, &err);
    /* A full queue (DPT_INPROGRESS) needs no action: the next heartbeat repeats the message.
     * next_frame_event notices a peer that has ended. */
    if (status != DPT_OK && status != DPT_INPROGRESS && status != DPT_EPEER)
        dpt_log(DPT_LOG_ERROR, "message to local rank %u dropped: %s", (unsigned)local_rank,
                err.text);
}

static void close_link(struct dpt_rank_slot *slot)
{
    close(slot->process.link_fd);
    slot->process.link_fd = -1;
}

/* Reads the next frame of a rank as an event. After a malformed frame the link is closed, which
 * ends the rank. If the link has ended, only the time is noted; next_eof_event makes the event. */
static bool next_frame_event(struct dpt_ranks *ranks, struct dpt_rank_slot *slot,
                             struct dpt_agent_event *ret)
{
    if (slot->process.link_fd < 0)
        return false;
    struct dpt_err err;
    size_t bytes;
    enum dpt_status status =
        dpt_rank_link_recv(slot->process.link_fd, 0, ranks->frame, &bytes, &err);
    if (status == DPT_INPROGRESS)
        return false;
    if (status == DPT_OK)
        status = dpt_message_decode_rank_to_agent(ranks->frame, bytes, &ranks->message, &err);
    if (status == DPT_OK) {
        ret->kind = DPT_AGENT_EVENT_RANK_MESSAGE;
        ret->rank_message = ranks->message;
        return true;
    }
    if (status != DPT_EPEER)
        dpt_log(DPT_LOG_ERROR, "local rank %u is given up: %s", (unsigned)ret->local_rank,
                err.text);
    close_link(slot);
    slot->eof_ms = dpt_now_ms();
    return false;
}

/* Makes the event of a link's end, if the process has not ended within DPT_RANK_EOF_MS after it. */
static bool next_eof_event(struct dpt_rank_slot *slot, struct dpt_agent_event *ret)
{
    if (slot->eof_ms == 0 || dpt_now_ms() - slot->eof_ms < DPT_RANK_EOF_MS)
        return false;
    slot->eof_ms = 0;
    ret->kind = DPT_AGENT_EVENT_RANK_EOF;
    ret->step = dpt_rank_process_step(&slot->process);
    return true;
}

static void read_output(struct dpt_rank_slot *slot, bool may_write)
{
    if (slot->process.output_fd >= 0 &&
        !dpt_process_log_read(&slot->log, slot->process.output_fd, may_write)) {
        close(slot->process.output_fd);
        slot->process.output_fd = -1;
    }
}

/* Keeps the last error of the process as the cause of its end. Control characters become spaces,
 * because a message has none. */
static void keep_last_error(struct dpt_rank_slot *slot)
{
    memcpy(slot->text, slot->log.last_error, sizeof slot->log.last_error);
    for (char *at = slot->text; *at != '\0'; at++)
        if ((unsigned char)*at < 0x20 || *at == 0x7f)
            *at = ' ';
}

/* Reaps an ended process and kills the processes that it left behind. */
static void reap_process(struct dpt_ranks *ranks, struct dpt_rank_slot *slot, bool may_write)
{
    if (!dpt_rank_process_reap(&slot->process, &slot->exit_code))
        return;
    pid_t alive[DPT_PROTO_RANKS_MAX];
    size_t n = 0;
    for (int i = 0; i < ranks->n; i++)
        if (ranks->slots[i].process.pid > 0)
            alive[n++] = ranks->slots[i].process.pid;
    int orphans = dpt_orphans_kill(alive, n);
    if (orphans > 0)
        dpt_log(DPT_LOG_WARN, "killed %d process(es) that a rank had left behind", orphans);
    read_output(slot, may_write);
    keep_last_error(slot);
    slot->exit_pending = true;
}

bool dpt_ranks_next(struct dpt_ranks *ranks, int i, bool may_write, struct dpt_agent_event *ret)
{
    struct dpt_rank_slot *slot = &ranks->slots[i];
    dpt_message_free_rank_to_agent(&ranks->message);
    *ret = (struct dpt_agent_event){.local_rank = (uint32_t)i, .spawn = slot->spawn};
    /* Asked before the frames are read: if the process has ended, no further frame can come. */
    const bool ended = dpt_rank_process_ended(&slot->process);
    read_output(slot, may_write);
    if (next_frame_event(ranks, slot, ret))
        return true;
    if (ended)
        reap_process(ranks, slot, may_write);
    if (!slot->exit_pending)
        return next_eof_event(slot, ret);
    slot->exit_pending = false;
    slot->eof_ms = 0;
    ret->kind = DPT_AGENT_EVENT_RANK_EXITED;
    ret->exit_code = slot->exit_code;
    ret->is_final = slot->exit_final;
    ret->step = dpt_rank_process_step(&slot->process);
    dpt_rank_process_forget_step(&slot->process);
    ret->text = slot->text[0] != '\0' ? slot->text : NULL;
    return true;
}

int64_t dpt_ranks_step(const struct dpt_ranks *ranks, int i)
{
    return dpt_rank_process_step(&ranks->slots[i].process);
}

int dpt_ranks_poll(const struct dpt_ranks *ranks, struct pollfd *ret_items)
{
    int n = 0;
    for (int i = 0; i < ranks->n; i++) {
        const struct dpt_rank_process *process = &ranks->slots[i].process;
        const int fds[DPT_RANK_FDS_MAX] = {process->pid_fd, process->link_fd, process->output_fd};
        for (int k = 0; k < DPT_RANK_FDS_MAX; k++)
            if (fds[k] >= 0)
                ret_items[n++] = (struct pollfd){.fd = fds[k], .events = POLLIN};
    }
    return n;
}

int64_t dpt_ranks_wait_ms(const struct dpt_ranks *ranks, int64_t wait_ms)
{
    for (int i = 0; i < ranks->n; i++) {
        if (ranks->slots[i].exit_pending)
            return 0;
        if (ranks->slots[i].eof_ms != 0 && wait_ms > DPT_RANK_EOF_MS / 4)
            wait_ms = DPT_RANK_EOF_MS / 4;
    }
    return wait_ms;
}

void dpt_ranks_release_logs(struct dpt_ranks *ranks)
{
    for (int i = 0; i < ranks->n; i++)
        dpt_process_log_release(&ranks->slots[i].log);
}

void dpt_ranks_discard_logs(struct dpt_ranks *ranks)
{
    for (int i = 0; i < ranks->n; i++)
        dpt_process_log_discard(&ranks->slots[i].log);
}

void dpt_ranks_fini(struct dpt_ranks *ranks, bool may_write, int wait_ms)
{
    for (int i = 0; i < ranks->n; i++)
        dpt_rank_process_kill(&ranks->slots[i].process);
    int64_t deadline_ms = dpt_now_ms() + wait_ms;
    for (int i = 0; i < ranks->n; i++) {
        struct dpt_rank_slot *slot = &ranks->slots[i];
        int64_t left_ms = deadline_ms - dpt_now_ms();
        struct pollfd item = {.fd = slot->process.pid_fd, .events = POLLIN};
        if (slot->process.pid > 0)
            (void)poll(&item, 1, left_ms > 0 ? (int)left_ms : 0);
        if (slot->process.pid > 0 && !dpt_rank_process_reap(&slot->process, &slot->exit_code))
            dpt_log(DPT_LOG_ERROR,
                    "local rank %d (pid %d) is killed and has not ended: it hangs in the kernel", i,
                    (int)slot->process.pid);
        read_output(slot, may_write);
        dpt_process_log_fini(&slot->log, may_write);
        dpt_rank_process_fini(&slot->process);
    }
    if (ranks->n > 0)
        (void)dpt_orphans_kill(NULL, 0);
    dpt_message_free_rank_to_agent(&ranks->message);
    dpt_claims_destroy(&ranks->claims, wait_ms);
    free(ranks->frame);
    *ranks = (struct dpt_ranks){0};
}
