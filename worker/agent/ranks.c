/* The slots of a node's rank processes. */
#include "worker/agent/ranks.h"

#include "base/clock.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum dpt_status dpt_ranks_init(struct dpt_ranks *ranks, int n, const char *log_dir,
                               const char *node, struct dpt_err *err)
{
    DPT_ASSERT(n >= 1 && n <= DPT_PROTO_RANKS_MAX);
    *ranks = (struct dpt_ranks){.frame = malloc(DPT_RANK_FRAME_BYTES_MAX)};
    if (ranks->frame == NULL)
        return dpt_fail_nomem(err, "frames of rank processes");
    for (int i = 0; i < n; i++) {
        struct dpt_rank_slot *slot = &ranks->slots[i];
        slot->process =
            (struct dpt_rank_process){.pid_fd = -1, .link_fd = -1, .output_fd = -1, .step_fd = -1};
        enum dpt_status status =
            dpt_rank_log_init(&slot->log, log_dir, node, i, STDERR_FILENO, err);
        ranks->n = i + 1;
        if (status != DPT_OK) {
            dpt_ranks_fini(ranks, false, 0);
            return status;
        }
    }
    return DPT_OK;
}

static void fail_start(struct dpt_rank_slot *slot, uint32_t spawn, const char *text, bool is_final)
{
    slot->spawn = spawn;
    slot->exit_final = is_final;
    slot->exit_pending = true;
    slot->exit_code = 127; /* as a shell says "cannot be run" */
    (void)snprintf(slot->text, sizeof slot->text, "%.*s", DPT_RANK_TEXT_BYTES - 1, text);
}

void dpt_ranks_spawn_failed(struct dpt_ranks *ranks, uint32_t local_rank, uint32_t spawn,
                            const char *text)
{
    DPT_ASSERT((int)local_rank < ranks->n);
    fail_start(&ranks->slots[local_rank], spawn, text, false);
}

void dpt_ranks_spawn(struct dpt_ranks *ranks, const struct dpt_spawn_options *options)
{
    DPT_ASSERT(options->start->local_rank < ranks->n);
    struct dpt_rank_slot *slot = &ranks->slots[options->start->local_rank];
    DPT_ASSERT(slot->process.pid == 0 && !slot->exit_pending);
    uint32_t spawn = (uint32_t)options->start->spawn;
    struct dpt_err err;
    if (slot->process.output_fd >= 0) /* of the process before, if another one still has its end */
        close(slot->process.output_fd);
    slot->process.output_fd = -1;
    slot->log.last_error[0] = '\0';
    slot->eof_ms = 0;
    slot->exit_final = false;
    const enum dpt_status status = dpt_rank_spawn(options, &slot->process, &err);
    if (status != DPT_OK)
        fail_start(slot, spawn, err.text, status == DPT_EOVERFLOW);
    slot->spawn = spawn;
}

void dpt_ranks_kill(struct dpt_ranks *ranks, uint32_t local_rank, uint32_t spawn)
{
    if ((int)local_rank < ranks->n && ranks->slots[local_rank].spawn == spawn)
        dpt_rank_kill(&ranks->slots[local_rank].process);
}

void dpt_ranks_send(struct dpt_ranks *ranks, uint32_t local_rank, uint32_t spawn,
                    const Dpt__AgentToRank *message)
{
    if ((int)local_rank >= ranks->n)
        return;
    const struct dpt_rank_slot *slot = &ranks->slots[local_rank];
    if (slot->spawn != spawn || slot->process.link_fd < 0)
        return;
    struct dpt_err err;
    size_t bytes;
    enum dpt_status status =
        dpt_message_encode(&message->base, ranks->frame, DPT_RANK_FRAME_BYTES_MAX, &bytes, &err);
    if (status == DPT_OK)
        status = dpt_rank_link_send(slot->process.link_fd, ranks->frame, bytes, &err);
    /* A full queue (INPROGRESS): the next heartbeat repeats it. take_frame notices an ended peer.
     */
    if (status != DPT_OK && status != DPT_INPROGRESS && status != DPT_EPEER)
        dpt_log(DPT_LOG_ERROR, "message to local rank %u dropped: %s", (unsigned)local_rank,
                err.text);
}

static void close_link(struct dpt_rank_slot *slot)
{
    close(slot->process.link_fd);
    slot->process.link_fd = -1;
}

/* The next frame of a rank as an event. After a malformed frame the link is closed, which ends the
 * rank. The end of the link is noted here and becomes an event by take_eof. */
static bool take_frame(struct dpt_ranks *ranks, struct dpt_rank_slot *slot,
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

/* The end of the link, if the process has not ended soon after it. */
static bool take_eof(struct dpt_rank_slot *slot, struct dpt_agent_event *ret)
{
    if (slot->eof_ms == 0 || dpt_now_ms() - slot->eof_ms < DPT_RANK_EOF_MS)
        return false;
    slot->eof_ms = 0;
    ret->kind = DPT_AGENT_EVENT_RANK_EOF;
    ret->step = dpt_rank_step(&slot->process);
    return true;
}

static void take_output(struct dpt_rank_slot *slot, bool may_write)
{
    if (slot->process.output_fd >= 0 &&
        !dpt_rank_log_read(&slot->log, slot->process.output_fd, may_write)) {
        close(slot->process.output_fd);
        slot->process.output_fd = -1;
    }
}

/* The last error of the process tells its end. A message has no control characters. */
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
    if (!dpt_rank_reap(&slot->process, &slot->exit_code))
        return;
    pid_t alive[DPT_PROTO_RANKS_MAX];
    size_t n = 0;
    for (int i = 0; i < ranks->n; i++)
        if (ranks->slots[i].process.pid > 0)
            alive[n++] = ranks->slots[i].process.pid;
    int orphans = dpt_orphans_kill(alive, n);
    if (orphans > 0)
        dpt_log(DPT_LOG_WARN, "killed %d process(es) that a rank had left behind", orphans);
    take_output(slot, may_write);
    keep_last_error(slot);
    slot->exit_pending = true;
}

bool dpt_ranks_next(struct dpt_ranks *ranks, int i, bool may_write, struct dpt_agent_event *ret)
{
    struct dpt_rank_slot *slot = &ranks->slots[i];
    dpt_message_free_rank_to_agent(&ranks->message);
    *ret = (struct dpt_agent_event){.local_rank = (uint32_t)i, .spawn = slot->spawn};
    /* Asked before its frames are read: of a process that has ended these are all. */
    const bool ended = dpt_rank_ended(&slot->process);
    take_output(slot, may_write);
    if (take_frame(ranks, slot, ret))
        return true;
    if (ended)
        reap_process(ranks, slot, may_write);
    if (!slot->exit_pending)
        return take_eof(slot, ret);
    slot->exit_pending = false;
    slot->eof_ms = 0;
    ret->kind = DPT_AGENT_EVENT_RANK_EXITED;
    ret->exit_code = slot->exit_code;
    ret->is_final = slot->exit_final;
    ret->step = dpt_rank_step(&slot->process);
    dpt_rank_process_forget_step(&slot->process);
    ret->text = slot->text[0] != '\0' ? slot->text : NULL;
    return true;
}

int64_t dpt_ranks_step(const struct dpt_ranks *ranks, int i)
{
    return dpt_rank_step(&ranks->slots[i].process);
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
        dpt_rank_log_release(&ranks->slots[i].log);
}

void dpt_ranks_discard_logs(struct dpt_ranks *ranks)
{
    for (int i = 0; i < ranks->n; i++)
        dpt_rank_log_discard(&ranks->slots[i].log);
}

void dpt_ranks_fini(struct dpt_ranks *ranks, bool may_write, int wait_ms)
{
    for (int i = 0; i < ranks->n; i++)
        dpt_rank_kill(&ranks->slots[i].process);
    int64_t deadline_ms = dpt_now_ms() + wait_ms;
    for (int i = 0; i < ranks->n; i++) {
        struct dpt_rank_slot *slot = &ranks->slots[i];
        int64_t left_ms = deadline_ms - dpt_now_ms();
        struct pollfd item = {.fd = slot->process.pid_fd, .events = POLLIN};
        if (slot->process.pid > 0)
            (void)poll(&item, 1, left_ms > 0 ? (int)left_ms : 0);
        if (slot->process.pid > 0 && !dpt_rank_reap(&slot->process, &slot->exit_code))
            dpt_log(DPT_LOG_ERROR,
                    "local rank %d (pid %d) is killed and has not ended: it hangs in the kernel", i,
                    (int)slot->process.pid);
        take_output(slot, may_write);
        dpt_rank_log_fini(&slot->log, may_write);
        dpt_rank_process_fini(&slot->process);
    }
    if (ranks->n > 0)
        (void)dpt_orphans_kill(NULL, 0);
    dpt_message_free_rank_to_agent(&ranks->message);
    free(ranks->frame);
    *ranks = (struct dpt_ranks){0};
}
