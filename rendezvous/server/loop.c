/* The server's loop: wait, give every message and broken connection to the core, then the time. */
#include "base/clock.h"
#include "base/log.h"
#include "rendezvous/core/core.h"
#include "rendezvous/proto/message.h"
#include "rendezvous/server/bind.h"
#include "rendezvous/server/descriptors.h"
#include "rendezvous/server/gate.h"
#include "rendezvous/server/guests.h"
#include "rendezvous/server/meter.h"
#include "rendezvous/server/newcomers.h"
#include "rendezvous/server/peers.h"
#include "rendezvous/server/server.h"
#include "rendezvous/server/sockets.h"
#include "rendezvous/server/turn.h"

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <zmq.h>

/* Messages of usual size are decoded in memory of the server, without an allocation. */
enum {
    DECODE_BYTES = 1024 * 1024,
    EVENTS_OF_RANDOM = 16 /* 256 bytes: getrandom(2) gives as many in one piece */
};

enum { PARTS_MAX = 64, MONITOR_EVENTS_MAX = 65536 };

struct dpt_server {
    struct dpt_server_sockets sockets;
    struct dpt_rdzv *core;
    struct dpt_turn turn;
    struct dpt_peers peers;
    struct dpt_meter meter;
    struct dpt_newcomers newcomers;
    struct dpt_guests guests;
    struct dpt_descriptors descriptors;
    struct dpt_gate *gate; /* NULL: no keys */
    struct dpt_keyring no_keys;
    int64_t deadline_ms;
    uint64_t n_steps; /* of the core */
    struct dpt_server_options options;
    struct dpt_bound bound;
    uint64_t failed[DPT_SERVER_FAILED_MAX]; /* connections on which a send has failed */
    size_t n_failed;
    struct dpt_log_bound malformed;
    uint8_t random[EVENTS_OF_RANDOM][DPT_PROTO_NONCE_BYTES]; /* the first n_random are unused */
    size_t n_random;
    _Alignas(max_align_t) unsigned char decode_memory[DECODE_BYTES];
};

static enum dpt_status fail_zmq(struct dpt_err *err, const char *what)
{
    return dpt_fail(err, DPT_EIO, "%s: %s", what, zmq_strerror(zmq_errno()));
}

/* Sends one message. If the peer is gone, or does not read and so has a full queue, the message is
 * dropped. The connection then counts as broken until the peer is heard again. */
static void send_frame(struct dpt_server *server, uint64_t conn, zmq_msg_t *frame)
{
    uint8_t id[DPT_PEERS_ROUTING_ID_BYTES];
    dpt_peers_routing_id(conn, id);
    bool sent = zmq_send(server->sockets.router, id, sizeof id, ZMQ_DONTWAIT | ZMQ_SNDMORE) >= 0 &&
                zmq_msg_send(frame, server->sockets.router, ZMQ_DONTWAIT) >= 0;
    if (sent)
        return;
    zmq_msg_close(frame);
    if (server->n_failed < DPT_SERVER_FAILED_MAX)
        server->failed[server->n_failed++] = conn;
}

/* Encodes a message and sends it, or holds it until the records of this turn are durable. */
static void send_state(struct dpt_server *server, const struct dpt_rdzv_send *send)
{
    zmq_msg_t frame;
    size_t bytes = dpt_message_bytes(&send->message->base);
    struct dpt_err err;
    if (bytes > DPT_MESSAGE_BYTES_MAX || zmq_msg_init_size(&frame, bytes) != 0) {
        dpt_log(DPT_LOG_ERROR, "message of %zu bytes to an agent dropped; it is sent again", bytes);
        return;
    }
    if (dpt_message_encode(&send->message->base, zmq_msg_data(&frame), bytes, &bytes, &err) !=
        DPT_OK) {
        dpt_log(DPT_LOG_ERROR, "message to an agent dropped: %s", err.text);
        zmq_msg_close(&frame);
        return;
    }
    if (!dpt_turn_hold(&server->turn, send->conn, &frame))
        send_frame(server, send->conn, &frame);
}

/* Makes the records of the turn durable, and sends the messages that wait for them. */
static enum dpt_status end_turn(struct dpt_server *server, struct dpt_err *err)
{
    uint64_t conn;
    zmq_msg_t frame;
    DPT_TRY(dpt_turn_end(&server->turn, dpt_now_ms(), err));
    while (dpt_turn_release(&server->turn, &conn, &frame))
        send_frame(server, conn, &frame);
    return DPT_OK;
}

/* The random bytes of one event. One call of the kernel draws those of many. */
static enum dpt_status draw_random(struct dpt_server *server, uint8_t ret[DPT_PROTO_NONCE_BYTES],
                                   struct dpt_err *err)
{
    if (server->n_random == 0) {
        if (getrandom(server->random, sizeof server->random, 0) != sizeof server->random)
            return dpt_fail_errno(err, errno, "draw a plan's nonce");
        server->n_random = EVENTS_OF_RANDOM;
    }
    memcpy(ret, server->random[--server->n_random], DPT_PROTO_NONCE_BYTES);
    return DPT_OK;
}

/* Steps the core and carries out its output. */
static enum dpt_status step_core(struct dpt_server *server, struct dpt_rdzv_event event,
                                 struct dpt_err *err)
{
    struct dpt_rdzv_output out;
    event.now_ms = dpt_now_ms();
    DPT_TRY(draw_random(server, event.random, err));
    DPT_TRY(dpt_rdzv_step(server->core, &event, &out, err));
    server->n_steps++;
    DPT_TRY(dpt_turn_add(&server->turn, &out, err));
    for (size_t i = 0; i < out.n_sends; i++)
        send_state(server, &out.sends[i]);
    for (size_t i = 0; i < out.n_logs; i++) {
        const struct dpt_rdzv_log_line *line = &out.logs[i];
        const enum dpt_log_level level = server->options.embedded ? DPT_LOG_DEBUG : line->level;
        dpt_log(level, "run=%s gen=%" PRIu64 ": %s", line->run, line->generation, line->text);
    }
    server->deadline_ms = out.deadline_ms;
    return dpt_turn_is_full(&server->turn) ? end_turn(server, err) : DPT_OK;
}

static enum dpt_status step_broken(struct dpt_server *server, uint64_t conn, struct dpt_err *err)
{
    return step_core(server, (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_BROKEN, .conn = conn},
                     err);
}

static void take_connection(struct dpt_server *server, int fd)
{
    struct in6_addr address;
    const int64_t now_ms = dpt_now_ms();
    const bool known = dpt_newcomers_address(fd, &address);
    dpt_peers_connected(&server->peers, fd);
    dpt_guests_gone(&server->guests, fd);
    dpt_descriptors_accepted(&server->descriptors, fd, now_ms);
    if (!dpt_newcomers_take(&server->newcomers, fd, known ? &address : NULL, now_ms))
        dpt_newcomers_close(fd);
    const int excess = dpt_newcomers_excess(&server->newcomers, (size_t)server->guests.n_conns);
    if (excess < 0)
        return;
    dpt_newcomers_gone(&server->newcomers, excess);
    dpt_newcomers_close(excess);
}

static bool is_of_member(void *ctx, int fd)
{
    const struct dpt_server *server = ctx;
    return dpt_rdzv_is_member_conn(server->core, server->peers.fds[fd].conn);
}

/* A message of an admitted machine came over `fd`, and the core has taken it. Closes a connection
 * if there are too many (guests.h). */
static void count_connection(struct dpt_server *server, int fd, const struct dpt_key *key)
{
    struct dpt_key owner = *key;
    if (fd < 0 || fd >= DPT_PEERS_FDS_MAX)
        return;
    if (server->gate == NULL)
        memcpy(owner.bytes, &server->newcomers.fds[fd].address, sizeof(struct in6_addr));
    const int64_t now_ms = dpt_now_ms();
    dpt_guests_heard(&server->guests, fd, &owner, is_of_member(server, fd));
    const int excess = dpt_guests_excess(&server->guests, fd, now_ms, is_of_member, server);
    if (excess < 0)
        return;
    dpt_descriptors_closed(&server->descriptors, dpt_guests_owner(&server->guests, excess),
                           server->gate != NULL, now_ms);
    dpt_guests_gone(&server->guests, excess);
    dpt_newcomers_close(excess);
}

/* Reads all events of the monitor. */
static enum dpt_status read_monitor(struct dpt_server *server, struct dpt_err *err)
{
    for (int i = 0; i < MONITOR_EVENTS_MAX; i++) {
        uint16_t number = 0;
        uint32_t value = 0;
        DPT_TRY(dpt_server_read_event(&server->sockets, &number, &value, err));
        if (number == 0)
            break;
        if (number == ZMQ_EVENT_ACCEPTED) {
            take_connection(server, (int)value);
            continue;
        }
        if (number == ZMQ_EVENT_CLOSED) {
            if (dpt_server_note_closed(&server->bound)) {
                dpt_newcomers_forget(&server->newcomers);
                dpt_guests_forget(&server->guests);
            }
            continue;
        }
        dpt_newcomers_gone(&server->newcomers, (int)value);
        dpt_guests_gone(&server->guests, (int)value);
        uint64_t conn = dpt_peers_disconnected(&server->peers, (int)value);
        if (conn != 0)
            DPT_TRY(step_broken(server, conn, err));
    }
    return DPT_OK;
}

static void report_malformed(struct dpt_server *server, const char *text)
{
    const uint64_t n = dpt_log_bound(&server->malformed, dpt_now_ms());
    if (n > 0)
        dpt_log(DPT_LOG_WARN,
                "%" PRIu64 " message(s) dropped that no dpt-worker sends; the last: %s", n, text);
}

/* Answers a peer with a token. An answer that finds no room is lost; the peer asks again. So does a
 * peer whose connection ends because the server's key has changed: its proof is for the old key. */
static void answer_enrolment(struct dpt_server *server, uint64_t conn, zmq_msg_t *frame,
                             const struct dpt_gate_peer *peer)
{
    uint8_t id[DPT_PEERS_ROUTING_ID_BYTES], answer[DPT_ENROLL_MESSAGE_BYTES_MAX];
    if (server->bound.n_closing > 0)
        return;
    const size_t bytes =
        dpt_gate_enroll(server->gate, peer, zmq_msg_data(frame), zmq_msg_size(frame), answer);
    dpt_peers_routing_id(conn, id);
    if (zmq_send(server->sockets.router, id, sizeof id, ZMQ_DONTWAIT | ZMQ_SNDMORE) >= 0)
        (void)zmq_send(server->sockets.router, answer, bytes, ZMQ_DONTWAIT);
}

/* Tells a machine the key that the server will have next, once over each connection. */
static void tell_next_key(struct dpt_server *server, uint64_t conn, int fd)
{
    uint8_t id[DPT_PEERS_ROUTING_ID_BYTES], message[DPT_NEXT_KEY_BYTES];
    struct dpt_key key;
    uint32_t number = 0;
    if (!dpt_gate_next_key(server->gate, &key, &number) || fd < 0 || fd >= DPT_PEERS_FDS_MAX ||
        server->peers.fds[fd].told_key == number)
        return;
    dpt_next_key_encode(&key, message);
    dpt_peers_routing_id(conn, id);
    if (zmq_send(server->sockets.router, id, sizeof id, ZMQ_DONTWAIT | ZMQ_SNDMORE) >= 0 &&
        zmq_send(server->sockets.router, message, sizeof message, ZMQ_DONTWAIT) >= 0)
        server->peers.fds[fd].told_key = number;
}

/* Whether the core takes the message: its sender is admitted, and sends no more than it may. */
static bool let_in(struct dpt_server *server, uint64_t conn, zmq_msg_t *frame,
                   struct dpt_gate_peer *ret)
{
    *ret = (struct dpt_gate_peer){.right = DPT_RIGHT_DEFINE, .run = ""};
    if (!dpt_meter_take(&server->meter, zmq_msg_get(frame, ZMQ_SRCFD), conn, zmq_msg_size(frame),
                        dpt_now_ms())) {
        report_malformed(server, "its sender sends more than a connection may");
        return false;
    }
    if (server->gate == NULL)
        return true;
    dpt_gate_judge(server->gate, zmq_msg_gets(frame, "User-Id"), ret);
    /* The token may have been revoked or spent since the handshake. */
    const bool has_lapsed = ret->right == DPT_RIGHT_NONE || ret->right == DPT_RIGHT_SPENT;
    if (ret->right == DPT_RIGHT_TOKEN ||
        (has_lapsed && dpt_enroll_is_request(zmq_msg_data(frame), zmq_msg_size(frame))))
        answer_enrolment(server, conn, frame, ret);
    else if (ret->right < DPT_RIGHT_TOKEN)
        report_malformed(server, ret->right == DPT_RIGHT_SPENT
                                     ? "the token of its sender has expired or is used up"
                                     : "its sender was removed from the list of machines");
    else
        tell_next_key(server, conn, zmq_msg_get(frame, ZMQ_SRCFD));
    return ret->right > DPT_RIGHT_TOKEN;
}

/* Gives the message to the core, if it is one. */
static enum dpt_status step_message(struct dpt_server *server, uint64_t conn, zmq_msg_t *frame,
                                    const struct dpt_gate_peer *peer, struct dpt_err *err)
{
    const size_t bytes = zmq_msg_size(frame);
    const bool is_usual = DPT_MESSAGE_MEMORY_BYTES(bytes) <= sizeof server->decode_memory;
    Dpt__AgentState *message = NULL;
    struct dpt_err why;
    enum dpt_status status =
        is_usual ? dpt_message_decode_agent_state_in(server->decode_memory,
                                                     DPT_MESSAGE_MEMORY_BYTES(bytes),
                                                     zmq_msg_data(frame), bytes, &message, &why)
                 : dpt_message_decode_agent_state(zmq_msg_data(frame), bytes, &message, &why);
    if (status == DPT_ENOMEM)
        return dpt_pass(err, &why);
    if (status != DPT_OK) {
        report_malformed(server, why.text);
        return DPT_OK;
    }
    struct dpt_rdzv_event event = {.kind = DPT_RDZV_EVENT_MESSAGE,
                                   .conn = conn,
                                   .message = message,
                                   .join_only = peer->right == DPT_RIGHT_JOIN,
                                   .only_run = peer->run};
    memcpy(event.key, peer->key.bytes, sizeof event.key);
    status = step_core(server, event, err);
    if (!is_usual)
        dpt_message_free_agent_state(&message);
    return status;
}

static enum dpt_status take_message(struct dpt_server *server, uint64_t conn, zmq_msg_t *frame,
                                    struct dpt_err *err)
{
    struct dpt_gate_peer peer;
    const struct dpt_rdzv_event denied = {.kind = DPT_RDZV_EVENT_DENIED, .conn = conn};
    /* The monitor is read after the message, so that this server sees the end of the message's
     * connection (peers.h). */
    int fd = zmq_msg_get(frame, ZMQ_SRCFD);
    DPT_TRY(read_monitor(server, err));
    bool stands = dpt_peers_heard(&server->peers, fd, conn);
    if (!let_in(server, conn, frame, &peer))
        return peer.right < DPT_RIGHT_SPENT ? step_core(server, denied, err) : DPT_OK;
    dpt_newcomers_heard(&server->newcomers, fd);
    DPT_TRY(step_message(server, conn, frame, &peer, err));
    if (!stands)
        return step_broken(server, conn, err);
    count_connection(server, fd, &peer.key);
    return DPT_OK;
}

/* Reads one message: a routing id and a frame. *ret_read is false if there is no message. */
static enum dpt_status read_message(struct dpt_server *server, bool *ret_read, struct dpt_err *err)
{
    zmq_msg_t part;
    uint64_t conn = 0;
    enum dpt_status status = DPT_OK;
    *ret_read = false;
    if (zmq_msg_init(&part) != 0)
        return fail_zmq(err, "receive from an agent");
    for (int i = 0; i < PARTS_MAX; i++) {
        if (zmq_msg_recv(&part, server->sockets.router, ZMQ_DONTWAIT) < 0) {
            if (zmq_errno() != EAGAIN && zmq_errno() != EINTR)
                status = fail_zmq(err, "receive from an agent");
            break;
        }
        *ret_read = true;
        bool more = zmq_msg_more(&part) != 0;
        if (i == 0)
            conn = dpt_peers_conn(zmq_msg_data(&part), zmq_msg_size(&part));
        else if (i == 1 && !more && conn != 0)
            status = take_message(server, conn, &part, err);
        else if (!more)
            report_malformed(server, conn == 0 ? "it sets its routing id" : "it has many parts");
        if (!more)
            break;
    }
    zmq_msg_close(&part);
    return status;
}

/* Judges handshakes, and opens the port anew when the server's key changes. Nodes connect again. */
static enum dpt_status serve_gate(struct dpt_server *server, struct dpt_err *err)
{
    const int64_t now_ms = dpt_now_ms();
    bool changed = false;
    if (server->gate == NULL)
        return DPT_OK;
    DPT_TRY(dpt_gate_serve(server->gate, now_ms, err));
    DPT_TRY(dpt_gate_change_key(server->gate, server->sockets.router, (int64_t)time(NULL), &changed,
                                err));
    if (changed)
        dpt_server_unbind(server->sockets.router, &server->bound, now_ms);
    return dpt_server_bind_again(server->sockets.router, &server->bound, now_ms, err);
}

static int64_t wait_ms(const struct dpt_server *server)
{
    const int64_t left_ms = server->deadline_ms - dpt_now_ms();
    int64_t most_ms = server->newcomers.n_new > 0 ? DPT_NEWCOMERS_LOOK_MS : INT64_MAX;
    if (server->bound.unbound_ms != 0)
        most_ms = DPT_REBIND_MS;
    if (left_ms < 0 || server->n_failed > 0)
        return 0;
    return left_ms < most_ms ? left_ms : most_ms;
}

enum dpt_status dpt_server_run(struct dpt_server *server, struct dpt_err *err)
{
    for (;;) {
        zmq_pollitem_t items[] = {{.socket = server->sockets.router, .events = ZMQ_POLLIN},
                                  {.socket = server->sockets.monitor, .events = ZMQ_POLLIN},
                                  {.fd = server->options.stop_fd, .events = ZMQ_POLLIN},
                                  {.events = ZMQ_POLLIN}};
        const int n_items = server->gate != NULL ? 4 : 3;
        if (server->gate != NULL)
            items[3].socket = dpt_gate_socket(server->gate);
        if (zmq_poll(items, n_items, (long)wait_ms(server)) < 0 && zmq_errno() != EINTR)
            return fail_zmq(err, "wait for messages");
        if (items[2].revents != 0) /* the server stops without a message: training goes on */
            return end_turn(server, err);
        DPT_TRY(serve_gate(server, err));
        const uint64_t n_steps = server->n_steps;
        bool more = true;
        for (int i = 0; i < DPT_SERVER_ROUND_MAX && more; i++)
            DPT_TRY(read_message(server, &more, err));
        DPT_TRY(read_monitor(server, err));
        if (!more)
            dpt_newcomers_look(&server->newcomers, dpt_now_ms());
        while (server->n_failed > 0) /* ends, because nothing is sent to a broken connection */
            DPT_TRY(step_broken(server, server->failed[--server->n_failed], err));
        /* A handshake alone changes nothing in the core. */
        if (server->n_steps != n_steps || dpt_now_ms() >= server->deadline_ms)
            DPT_TRY(step_core(server,
                              (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_TICK, .backlog = more},
                              err));
        DPT_TRY(end_turn(server, err));
    }
}

enum dpt_status dpt_server_create(const struct dpt_server_options *options, struct dpt_server **ret,
                                  struct dpt_err *err)
{
    const uint32_t nodes = options->nodes_max, ranks = options->ranks_max;
    struct dpt_rdzv_options core = {.now_ms = dpt_now_ms(),
                                    .fresh = options->fresh || options->port == 0,
                                    .nodes_max = nodes != 0 ? nodes : DPT_SERVER_NODES_MAX,
                                    .world_max = ranks != 0 ? ranks : DPT_SERVER_RANKS_MAX};
    if (getrandom(&core.epoch, sizeof core.epoch, 0) != sizeof core.epoch)
        return dpt_fail_errno(err, errno, "draw the server's epoch");
    core.epoch |= 1; /* never 0 */
    struct dpt_server *server = calloc(1, sizeof *server);
    if (server == NULL)
        return dpt_fail_nomem(err, "rendezvous server");
    server->options = *options;
    server->deadline_ms = core.now_ms;
    server->no_keys.open = true;
    dpt_descriptors_init(&server->descriptors);
    dpt_newcomers_init(&server->newcomers, server->descriptors.n);
    dpt_guests_init(&server->guests, server->descriptors.n, core.nodes_max);
    enum dpt_status status = dpt_rdzv_create(&core, &server->core, err);
    if (status == DPT_OK && !options->open)
        status = dpt_gate_create(options->key_dir, options->embedded, &server->gate, err);
    if (status == DPT_OK)
        status = dpt_server_open_sockets(&server->sockets, err);
    if (status == DPT_OK && server->gate != NULL)
        status = dpt_gate_open(server->gate, server->sockets.context, server->sockets.router, err);
    if (status == DPT_OK)
        status =
            dpt_server_bind(server->sockets.router, options, options->port, &server->bound, err);
    if (status != DPT_OK)
        dpt_server_destroy(&server);
    else
        *ret = server;
    return status;
}

void dpt_server_destroy(struct dpt_server **server_p)
{
    struct dpt_server *server = *server_p;
    *server_p = NULL;
    if (server == NULL)
        return;
    dpt_server_close_router(&server->sockets);
    dpt_gate_destroy(&server->gate);
    dpt_server_close_context(&server->sockets);
    dpt_turn_fini(&server->turn);
    dpt_rdzv_destroy(&server->core);
    free(server);
}

enum dpt_status dpt_server_use_journal(struct dpt_server *server, const struct dpt_journal *journal,
                                       struct dpt_err *err)
{
    DPT_TRY(journal->restore(journal->ctx, server->core, err));
    server->turn.journal = journal;
    return DPT_OK;
}

const char *dpt_server_endpoint(const struct dpt_server *server)
{
    return server->bound.addresses[0].text;
}

const struct dpt_keyring *dpt_server_keys(const struct dpt_server *server)
{
    return server->gate != NULL ? dpt_gate_keys(server->gate) : &server->no_keys;
}

int dpt_server_port(const struct dpt_server *server)
{
    return server->bound.port;
}
