/* Judges handshakes and senders by the lists of the key folder. */
#include "rendezvous/server/gate.h"

#include "base/clock.h"
#include "base/log.h"
#include "rendezvous/keys/curve.h"
#include "rendezvous/keys/possession.h"
#include "rendezvous/server/zap.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

enum { NS_PER_S = 1000 * 1000 * 1000 };

static const char server_name[] = "server.key", machine_name[] = "machine.key";
static const char machines_name[] = "machines", tokens_name[] = "tokens";

/* The files whose change is noticed, in the order in which they are read. */
enum watched {
    WATCHED_MACHINES,
    WATCHED_TOKENS,
    WATCHED_MACHINE_KEY,
    WATCHED_NEXT_KEY,
    WATCHED_SERVER_KEY,
    WATCHED_COUNT
};
static const char *const watched_names[WATCHED_COUNT] = {machines_name, tokens_name, machine_name,
                                                         DPT_KEYRING_NEXT_KEY, server_name};

struct dpt_gate {
    void *socket;
    bool embedded;
    struct dpt_keyring keys; /* server's public key, this machine's pair, the folder */
    struct dpt_key server_secret;
    struct dpt_key_pair next; /* of the server */
    bool has_next;
    bool next_is_there; /* server.key has the next key already: another server took it first */
    uint32_t n_next;    /* number of next keys so far */
    int64_t noticed_s;  /* when the next key was noticed, in seconds since 1970; < 0: not yet */
    struct dpt_admission admission;
    struct dpt_key_file_state states[WATCHED_COUNT];
    char failed[WATCHED_COUNT][DPT_ERR_TEXT_BYTES]; /* why the last read failed; "": it did not */
    int64_t looked_ms;                          /* when the files were last looked at; 0: never */
    struct dpt_log_bound refused, not_admitted; /* handshakes; requests */
};

static enum dpt_status fail_zmq(struct dpt_err *err, const char *what)
{
    return dpt_fail(err, DPT_EIO, "%s: %s", what, zmq_strerror(zmq_errno()));
}

static enum dpt_right right_now(const struct dpt_gate *gate, const struct dpt_key *key)
{
    return dpt_admission_right(&gate->admission, key, (int64_t)time(NULL));
}

/* ---- the files ---- */

static enum dpt_status read_list(struct dpt_gate *gate, enum watched file, struct dpt_err *err)
{
    const char *name = watched_names[file];
    struct dpt_key_file_state state;
    char *text = NULL;
    DPT_TRY(dpt_key_folder_read(&gate->keys.folder, name, &text, &state, err));
    enum dpt_status status = file == WATCHED_MACHINES
                                 ? dpt_admission_read_machines(&gate->admission, text, err)
                                 : dpt_admission_read_tokens(&gate->admission, text, err);
    free(text);
    DPT_TRY(dpt_wrap(err, status, "'%s/%s'", gate->keys.folder.path, name));
    gate->states[file] = state;
    gate->failed[file][0] = '\0';
    return DPT_OK;
}

/* Appends a line to the list of machines, and to the list in memory. */
static enum dpt_status append_machine(struct dpt_gate *gate, const char *line, struct dpt_err *err)
{
    struct dpt_key_file_state state = gate->states[WATCHED_MACHINES];
    DPT_TRY(dpt_admission_check_room(&gate->admission, gate->keys.folder.path, err));
    DPT_TRY(dpt_key_folder_append(&gate->keys.folder, machines_name, line, &state, err));
    if (state.inode == 0) /* another process has changed the file */
        return read_list(gate, WATCHED_MACHINES, err);
    DPT_TRY(dpt_admission_add_machine(&gate->admission, line, err));
    gate->states[WATCHED_MACHINES] = state;
    return DPT_OK;
}

/* Reads the key of the workers that share this folder, and lists it if no line has it. So an
 * earlier key of this machine stays admitted until it is denied. A list that cannot be read gets no
 * line, so that another try adds no second one. */
static enum dpt_status read_machine_key(struct dpt_gate *gate, struct dpt_err *err)
{
    char line[DPT_ADMISSION_LINE_BYTES], host[DPT_ENROLL_NAME_BYTES] = "";
    char name[DPT_ENROLL_NAME_BYTES];
    const struct dpt_key_folder *folder = &gate->keys.folder;
    const struct dpt_key *key = &gate->keys.machine.public_key;
    DPT_TRY(dpt_keyring_pair(folder, machine_name, &gate->keys.machine, err));
    gate->states[WATCHED_MACHINE_KEY] = dpt_key_folder_state(folder, machine_name);
    if (right_now(gate, key) == DPT_RIGHT_NONE)
        DPT_TRY(read_list(gate, WATCHED_MACHINES, err));
    if (right_now(gate, key) != DPT_RIGHT_NONE)
        return DPT_OK;
    (void)gethostname(host, sizeof host - 1);
    dpt_enroll_name(host, name);
    dpt_admission_print_machine(DPT_RIGHT_DEFINE, key, name, "", line);
    return append_machine(gate, line, err);
}

static enum dpt_status read_next_key(struct dpt_gate *gate, struct dpt_err *err)
{
    const struct dpt_key_file_state state =
        dpt_key_folder_state(&gate->keys.folder, DPT_KEYRING_NEXT_KEY);
    struct dpt_key_pair next;
    bool found = false;
    DPT_TRY(dpt_keyring_find(&gate->keys.folder, DPT_KEYRING_NEXT_KEY, &next, &found, err));
    gate->states[WATCHED_NEXT_KEY] = state;
    if (!found) {
        gate->has_next = gate->next_is_there;
        return DPT_OK;
    }
    gate->next = next;
    gate->has_next = true;
    gate->next_is_there = false;
    gate->n_next++;
    gate->noticed_s = -1;
    return DPT_OK;
}

/* Several servers may have one key folder. If another one has changed server.key, this one tells
 * its machines that key, unless it has done so, and follows. */
static enum dpt_status read_server_key(struct dpt_gate *gate, struct dpt_err *err)
{
    const struct dpt_key_folder *folder = &gate->keys.folder;
    const struct dpt_key_file_state state = dpt_key_folder_state(folder, server_name);
    struct dpt_key_pair server;
    bool found = false;
    DPT_TRY(dpt_keyring_find(folder, server_name, &server, &found, err));
    gate->states[WATCHED_SERVER_KEY] = state;
    if (!found || dpt_key_equal(&server.public_key, &gate->keys.server))
        return DPT_OK;
    if (gate->noticed_s < 0 || !dpt_key_equal(&server.public_key, &gate->next.public_key)) {
        gate->n_next++;
        gate->noticed_s = -1;
    }
    gate->next = server;
    gate->has_next = gate->next_is_there = true;
    return DPT_OK;
}

static enum dpt_status read_file(struct dpt_gate *gate, enum watched file, struct dpt_err *err)
{
    if (file == WATCHED_NEXT_KEY)
        return read_next_key(gate, err);
    if (file == WATCHED_SERVER_KEY)
        return read_server_key(gate, err);
    return file == WATCHED_MACHINE_KEY ? read_machine_key(gate, err) : read_list(gate, file, err);
}

/* Reads the files that have changed. If one cannot be read, what it said before stays in force, and
 * each look of dpt_gate_serve tries again (try_failed), because the cause may be elsewhere.
 * Strangers cannot cause such a try. */
static void reload_changed(struct dpt_gate *gate, bool try_failed)
{
    struct dpt_err err;
    for (int i = 0; i < WATCHED_COUNT && !gate->embedded; i++) {
        const struct dpt_key_file_state now =
            dpt_key_folder_state(&gate->keys.folder, watched_names[i]);
        const bool is_same = dpt_key_folder_is_same(now, gate->states[i]);
        char *failed = gate->failed[i];
        if (is_same && !(try_failed && failed[0] != '\0'))
            continue;
        if (read_file(gate, (enum watched)i, &err) == DPT_OK) {
            dpt_log(DPT_LOG_INFO, "read '%s/%s' again: it %s", gate->keys.folder.path,
                    watched_names[i], is_same ? "can be used now" : "has changed");
            failed[0] = '\0';
            continue;
        }
        gate->states[i] = now;
        if (strcmp(failed, err.text) != 0)
            dpt_log(DPT_LOG_ERROR, "%s; what was read before stays in force", err.text);
        (void)snprintf(failed, sizeof gate->failed[i], "%s", err.text);
    }
}

/* ---- life ---- */

static enum dpt_status load_folder(struct dpt_gate *gate, const char *key_dir, struct dpt_err *err)
{
    struct dpt_key_pair server;
    DPT_TRY(dpt_key_folder_open(key_dir, &gate->keys.folder, err));
    DPT_TRY(dpt_keyring_pair(&gate->keys.folder, server_name, &server, err));
    gate->keys.server = server.public_key;
    gate->server_secret = server.secret_key;
    for (int i = 0; i < WATCHED_COUNT; i++)
        DPT_TRY(read_file(gate, (enum watched)i, err));
    return DPT_OK;
}

static enum dpt_status draw_keys(struct dpt_gate *gate, struct dpt_err *err)
{
    struct dpt_key_pair server;
    char line[DPT_ADMISSION_LINE_BYTES];
    DPT_TRY(dpt_curve_draw(&server, err));
    DPT_TRY(dpt_curve_draw(&gate->keys.machine, err));
    gate->keys.server = server.public_key;
    gate->server_secret = server.secret_key;
    dpt_admission_print_machine(DPT_RIGHT_DEFINE, &gate->keys.machine.public_key, "worker", "",
                                line);
    return dpt_admission_read_machines(&gate->admission, line, err);
}

enum dpt_status dpt_gate_create(const char *key_dir, bool embedded, struct dpt_gate **ret,
                                struct dpt_err *err)
{
    struct dpt_gate *gate = calloc(1, sizeof *gate);
    if (gate == NULL)
        return dpt_fail_nomem(err, "keys of the server");
    gate->embedded = embedded;
    const enum dpt_status status =
        embedded ? draw_keys(gate, err) : load_folder(gate, key_dir, err);
    if (status == DPT_OK)
        *ret = gate;
    else
        dpt_gate_destroy(&gate);
    return status;
}

void dpt_gate_destroy(struct dpt_gate **gate_p)
{
    struct dpt_gate *gate = *gate_p;
    int zero = 0;
    *gate_p = NULL;
    if (gate == NULL)
        return;
    if (gate->socket != NULL) {
        (void)zmq_setsockopt(gate->socket, ZMQ_LINGER, &zero, sizeof zero);
        (void)zmq_close(gate->socket);
    }
    dpt_admission_fini(&gate->admission);
    free(gate);
}

const struct dpt_keyring *dpt_gate_keys(const struct dpt_gate *gate)
{
    return &gate->keys;
}

void *dpt_gate_socket(const struct dpt_gate *gate)
{
    return gate->socket;
}

enum dpt_status dpt_gate_open(struct dpt_gate *gate, void *context, void *router,
                              struct dpt_err *err)
{
    static const char domain[] = "dpt";
    const int one = 1;
    gate->socket = zmq_socket(context, ZMQ_REP);
    if (gate->socket == NULL || zmq_bind(gate->socket, DPT_ZAP_ENDPOINT) != 0)
        return fail_zmq(err, "open the socket that judges keys");
    if (zmq_setsockopt(router, ZMQ_CURVE_SERVER, &one, sizeof one) != 0 ||
        zmq_setsockopt(router, ZMQ_CURVE_SECRETKEY, gate->server_secret.bytes, DPT_KEY_BYTES) !=
            0 ||
        zmq_setsockopt(router, ZMQ_ZAP_DOMAIN, domain, sizeof domain - 1) != 0)
        return fail_zmq(err, "give the server's socket its key");
    return DPT_OK;
}

/* ---- the next key of the server ---- */

bool dpt_gate_next_key(const struct dpt_gate *gate, struct dpt_key *ret, uint32_t *ret_number)
{
    *ret = gate->next.public_key;
    *ret_number = gate->n_next;
    return gate->has_next;
}

enum dpt_status dpt_gate_change_key(struct dpt_gate *gate, void *router, int64_t now_s,
                                    bool *ret_changed, struct dpt_err *err)
{
    const int64_t due_s =
        gate->next_is_there ? 0 : gate->states[WATCHED_NEXT_KEY].modified_ns / NS_PER_S;
    char hex[DPT_KEY_HEX_BYTES];
    struct dpt_err why;
    *ret_changed = false;
    if (gate->has_next && gate->noticed_s < 0)
        gate->noticed_s = now_s;
    if (!gate->has_next || now_s < due_s || now_s < gate->noticed_s + DPT_GATE_NOTICE_S)
        return DPT_OK;
    gate->has_next = false;
    if (!gate->next_is_there &&
        dpt_key_folder_state(&gate->keys.folder, DPT_KEYRING_NEXT_KEY).inode == 0)
        return DPT_OK; /* another server of this folder took it, or it was removed: look again */
    if (!gate->next_is_there && dpt_key_folder_rename(&gate->keys.folder, DPT_KEYRING_NEXT_KEY,
                                                      server_name, 0, &why) != DPT_OK) {
        dpt_log(DPT_LOG_ERROR, "%s; the server keeps its key until that file changes", why.text);
        return DPT_OK;
    }
    gate->keys.server = gate->next.public_key;
    gate->server_secret = gate->next.secret_key;
    if (!gate->next_is_there)
        gate->states[WATCHED_NEXT_KEY] = (struct dpt_key_file_state){0};
    gate->states[WATCHED_SERVER_KEY] = dpt_key_folder_state(&gate->keys.folder, server_name);
    gate->next_is_there = false;
    if (zmq_setsockopt(router, ZMQ_CURVE_SECRETKEY, gate->server_secret.bytes, DPT_KEY_BYTES) != 0)
        return fail_zmq(err, "give the server's socket its new key");
    dpt_key_hex(&gate->keys.server, hex);
    dpt_log(DPT_LOG_INFO,
            "the server has a new key (%.8s): tokens of the earlier one admit no new machine, so "
            "make another with dpt-rdzv --new-token",
            hex);
    *ret_changed = true;
    return DPT_OK;
}

/* ---- handshakes ---- */

/* An IPv4 address as people write it: libzmq has that of a connection to an IPv6 socket. */
static const char *plain_address(const char *address)
{
    static const char mapped[] = "::ffff:";
    const bool v4 =
        strncmp(address, mapped, sizeof mapped - 1) == 0 && strchr(address, '.') != NULL;
    return v4 ? address + sizeof mapped - 1 : address;
}

static void report_refused(struct dpt_gate *gate, const struct dpt_key *key,
                           const struct dpt_zap_part *address, int64_t now_ms)
{
    char hex[DPT_KEY_HEX_BYTES], text[DPT_ZAP_PART_BYTES + 1], why[DPT_ADMISSION_WHY_BYTES];
    const uint64_t n = dpt_log_bound(&gate->refused, now_ms);
    if (n == 0)
        return;
    dpt_key_hex(key, hex);
    memcpy(text, address->data, address->bytes);
    text[address->bytes] = '\0';
    dpt_admission_explain(&gate->admission, key, (int64_t)time(NULL), why);
    dpt_log(DPT_LOG_WARN,
            "refused %" PRIu64 " connection(s); the last: key %.8s from %s, which is %s", n, hex,
            plain_address(text), why);
}

/* From DPT_RIGHT_TOKEN on the key gets through. */
static enum dpt_right judge_handshake(struct dpt_gate *gate,
                                      const struct dpt_zap_question *question,
                                      struct dpt_key *ret_key, int64_t now_ms)
{
    const struct dpt_zap_part *key = &question->parts[DPT_ZAP_KEY],
                              *mechanism = &question->parts[DPT_ZAP_MECHANISM];
    if (question->n != DPT_ZAP_PARTS || mechanism->bytes != 5 ||
        memcmp(mechanism->data, "CURVE", 5) != 0 || key->bytes != DPT_KEY_BYTES)
        return DPT_RIGHT_NONE;
    memcpy(ret_key->bytes, key->data, DPT_KEY_BYTES);
    enum dpt_right right = right_now(gate, ret_key);
    if (right == DPT_RIGHT_NONE || right == DPT_RIGHT_SPENT) {
        reload_changed(gate, false); /* a token or a machine may have been added a moment ago */
        right = right_now(gate, ret_key);
    }
    if (right < DPT_RIGHT_TOKEN)
        report_refused(gate, ret_key, &question->parts[DPT_ZAP_ADDRESS], now_ms);
    return right;
}

enum dpt_status dpt_gate_serve(struct dpt_gate *gate, int64_t now_ms, struct dpt_err *err)
{
    if (gate->looked_ms == 0 || now_ms - gate->looked_ms >= DPT_GATE_RELOAD_MS) {
        reload_changed(gate, true);
        gate->looked_ms = now_ms;
    }
    for (int i = 0; i < DPT_GATE_REQUESTS_MAX; i++) {
        struct dpt_zap_question question;
        struct dpt_key key = {{0}};
        char user_id[DPT_KEY_HEX_BYTES] = "";
        DPT_TRY(dpt_zap_read(gate->socket, &question, err));
        if (question.n == 0)
            return DPT_OK;
        const enum dpt_right right = judge_handshake(gate, &question, &key, now_ms);
        dpt_key_hex(&key, user_id);
        /* The status tells the owner of a spent token why it does not get through. */
        const int status = right >= DPT_RIGHT_TOKEN   ? DPT_ZAP_ACCEPTED
                           : right == DPT_RIGHT_SPENT ? DPT_ENROLL_ZAP_SPENT
                                                      : DPT_ENROLL_ZAP_UNKNOWN;
        DPT_TRY(dpt_zap_answer(gate->socket, &question, status, user_id, err));
    }
    return DPT_OK;
}

/* ---- messages ---- */

void dpt_gate_judge(const struct dpt_gate *gate, const char *user_id, struct dpt_gate_peer *ret)
{
    *ret = (struct dpt_gate_peer){.right = DPT_RIGHT_NONE, .run = ""};
    if (user_id == NULL || strlen(user_id) != DPT_KEY_HEX_BYTES - 1 ||
        !dpt_key_parse(user_id, &ret->key))
        return;
    ret->right = right_now(gate, &ret->key);
    ret->run = dpt_admission_run(&gate->admission, &ret->key);
}

/* Writes the two lines of a machine that was admitted. A list of tokens with a bad line stays in
 * force as it was read before (reload_changed), and the use counts there, too. A list of machines
 * that cannot be read gets no line. */
static enum dpt_status note_machine(struct dpt_gate *gate, const struct dpt_key *token_key,
                                    const struct dpt_admission_decision *decision,
                                    struct dpt_err *err)
{
    struct dpt_key_file_state state = gate->states[WATCHED_TOKENS];
    struct dpt_err reported; /* when the file changed */
    if (gate->failed[WATCHED_MACHINES][0] != '\0')
        return dpt_fail(err, DPT_ECONFIG, "%s", gate->failed[WATCHED_MACHINES]);
    DPT_TRY(
        dpt_key_folder_append(&gate->keys.folder, tokens_name, decision->token_line, &state, err));
    dpt_admission_count_use(&gate->admission, token_key);
    if (state.inode != 0)
        gate->states[WATCHED_TOKENS] = state;
    else if (read_list(gate, WATCHED_TOKENS, &reported) != DPT_OK)
        dpt_log(DPT_LOG_DEBUG, "%s", reported.text);
    return append_machine(gate, decision->machine_line, err);
}

/* Other servers of this key folder wait meanwhile, so together they admit as many machines as the
 * token may. */
static enum dpt_status admit_machine(struct dpt_gate *gate, const struct dpt_key *token_key,
                                     const struct dpt_enroll_request *request,
                                     struct dpt_admission_decision *decision, struct dpt_err *err)
{
    int lock = -1;
    DPT_TRY(dpt_key_folder_lock(&gate->keys.folder, &lock, err));
    reload_changed(gate, true);
    dpt_admission_decide(&gate->admission, token_key, request, (int64_t)time(NULL), decision);
    const enum dpt_status status =
        decision->is_new ? note_machine(gate, token_key, decision, err) : DPT_OK;
    dpt_key_folder_unlock(lock);
    return status;
}

/* An owner of a token can ask as often as a connection may send. */
static void report_not_admitted(struct dpt_gate *gate, const struct dpt_key *token_key,
                                const struct dpt_enroll_request *request, const char *why)
{
    char hex[DPT_KEY_HEX_BYTES], token_hex[DPT_KEY_HEX_BYTES];
    const uint64_t n = dpt_log_bound(&gate->not_admitted, dpt_now_ms());
    if (n == 0)
        return;
    dpt_key_hex(&request->key, hex);
    dpt_key_hex(token_key, token_hex);
    dpt_log(DPT_LOG_WARN,
            "%" PRIu64 " machine(s) not admitted; the last: %s (key %.8s) by the token %.8s of the "
            "list, because %s",
            n, request->name, hex, token_hex, why);
}

static void decide_request(struct dpt_gate *gate, const struct dpt_gate_peer *peer,
                           const struct dpt_enroll_request *request, struct dpt_enroll_answer *ret)
{
    struct dpt_admission_decision decision;
    struct dpt_err err;
    char hex[DPT_KEY_HEX_BYTES];
    dpt_admission_decide(&gate->admission, &peer->key, request, (int64_t)time(NULL), &decision);
    if (decision.is_new && admit_machine(gate, &peer->key, request, &decision, &err) != DPT_OK) {
        report_not_admitted(gate, &peer->key, request, err.text);
        decision.answer = (struct dpt_enroll_answer){
            .text = "the server cannot write its list of machines; its log has the reason"};
    } else if (!decision.answer.admitted) {
        report_not_admitted(gate, &peer->key, request, decision.answer.text);
    }
    dpt_key_hex(&request->key, hex);
    if (decision.is_new && decision.answer.admitted)
        dpt_log(DPT_LOG_INFO, "machine %s (key %.8s) is admitted by a token, with the right %s",
                request->name, hex, dpt_right_text(right_now(gate, &request->key)));
    *ret = decision.answer;
}

size_t dpt_gate_enroll(struct dpt_gate *gate, const struct dpt_gate_peer *peer, const void *data,
                       size_t bytes, uint8_t ret_answer[DPT_ENROLL_MESSAGE_BYTES_MAX])
{
    const struct dpt_key_pair server = {gate->keys.server, gate->server_secret};
    struct dpt_enroll_request request;
    struct dpt_enroll_answer answer = {.admitted = false};
    struct dpt_err err;
    reload_changed(gate, false); /* the token may have been revoked a moment ago */
    enum dpt_status status = dpt_enroll_request_decode(data, bytes, &request, &err);
    if (status == DPT_OK) {
        status = dpt_possession_check(&request, &server, &peer->key, &err);
        if (status != DPT_OK)
            report_not_admitted(gate, &peer->key, &request, err.text);
    }
    if (status == DPT_OK)
        decide_request(gate, peer, &request, &answer);
    else
        (void)snprintf(answer.text, sizeof answer.text, "%.*s", (int)sizeof answer.text - 1,
                       err.text);
    return dpt_enroll_answer_encode(&answer, ret_answer);
}
