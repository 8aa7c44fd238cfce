/* Keys that change: of a client that the server does not know, which asks with its token to be
 * admitted, and of the server. */
#include "rendezvous/client/internal.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/utc.h"
#include "rendezvous/keys/enroll.h"
#include "rendezvous/keys/possession.h"

#include <stdio.h>
#include <unistd.h>

enum { SPENT_BYTES = 384 };

/* The server tells only that the token is spent: the time is there so that a person sees which
 * clock is wrong, this one or the server's, which is in its log. */
static void print_token_part(const struct dpt_client *client, char ret[SPENT_BYTES])
{
    char now[DPT_UTC_TEXT_BYTES];
    dpt_utc_text(dpt_wall_ns() / 1000000000, now);
    if (client->token_spent)
        (void)snprintf(ret, SPENT_BYTES,
                       ", and the token has expired, was revoked or is used up, by that "
                       "server's clock and list (a clock that is wrong there, or was when the "
                       "token was made, has this effect: its log has its time, and it is %s here)",
                       now);
    else
        (void)snprintf(ret, SPENT_BYTES, "%s", client->asked_token ? ", nor the token" : "");
}

enum dpt_status client_change_refused_key(struct dpt_client *client, bool spent,
                                          struct dpt_err *err)
{
    char hex[DPT_KEY_HEX_BYTES];
    if (client->was_up) { /* training goes on, as it does without a server */
        client->refused = true;
        return DPT_OK;
    }
    client->token_spent = client->token_spent || (client->enrolling && spent);
    if (client->enrolling || (client->keys.has_token && !client->asked_token)) {
        client->enrolling = !client->enrolling;
        client->asked_token = true;
        client_replace_socket(client);
        return DPT_OK;
    }
    char token[SPENT_BYTES];
    print_token_part(client, token);
    dpt_key_hex(&client->keys.machine.public_key, hex);
    return dpt_fail(err, DPT_EREFUSED,
                    "the server at %s does not admit this machine's key %.8s%s: give a token "
                    "(" DPT_CLIENT_TOKEN_BY ") that is on that server's screen, or that dpt-rdzv "
                    "--new-token makes there. If the server's operator has denied this key, no "
                    "token helps: a line with define, the key and a name in the file 'machines' of "
                    "the server's key folder lets it in again",
                    client_endpoint(client), hex, token);
}

static void note_server(struct dpt_client *client)
{
    struct dpt_err why;
    if (dpt_keyring_note_server(&client->keys, client_endpoint(client), &why) != DPT_OK)
        dpt_log(DPT_LOG_WARN, "the server is not noted, so the next start needs the token: %s",
                why.text);
    client->keys.enroll_first = false;
}

enum dpt_status client_request_admission(struct dpt_client *client, struct dpt_err *err)
{
    uint8_t message[DPT_ENROLL_MESSAGE_BYTES_MAX];
    char host[DPT_ENROLL_NAME_BYTES] = "";
    const struct dpt_keyring *keys = &client->keys;
    struct dpt_enroll_request request = {.key = keys->machine.public_key};
    (void)gethostname(host, sizeof host - 1);
    dpt_enroll_name(host, request.name);
    DPT_TRY(dpt_possession_prove(&request, &keys->machine.secret_key, &keys->server,
                                 &keys->token.public_key, err));
    const size_t bytes = dpt_enroll_request_encode(&request, message);
    if (zmq_send(client->socket, message, bytes, ZMQ_DONTWAIT) < 0)
        dpt_log(DPT_LOG_DEBUG, "request to admit this machine: %s", zmq_strerror(zmq_errno()));
    return DPT_OK;
}

enum dpt_status client_take_admission(struct dpt_client *client, struct dpt_err *err)
{
    struct dpt_client_event event;
    struct dpt_enroll_answer answer;
    struct dpt_err why;
    DPT_TRY(client_receive(client, &event, err));
    const enum dpt_status status =
        dpt_enroll_answer_decode(event.message, event.bytes, &answer, &why);
    if (status != DPT_OK)
        return dpt_fail(err, status, "the server at %s: %s", client_endpoint(client), why.text);
    if (!answer.admitted)
        return dpt_fail(err, DPT_EREFUSED, "the server at %s does not admit this machine: %s",
                        client_endpoint(client), answer.text);
    dpt_log(DPT_LOG_INFO, "the server at %s has admitted this machine", client_endpoint(client));
    note_server(client);
    client->enrolling = false;
    client_replace_socket(client);
    return DPT_INPROGRESS;
}

void client_handshake_failed(struct dpt_client *client)
{
    client->failures.n++;
    client->failures.newest_ms = client->last_tick_ms;
    if (client->keys.open || !client->keys.has_next || client->swapped)
        return;
    client->swapped = true;
    client_note_end(client); /* a later tick opens a socket with the other key */
}

static void retire_server_key(struct dpt_client *client)
{
    struct dpt_keyring *keys = &client->keys;
    const struct dpt_key earlier = keys->server;
    struct dpt_err why;
    client->with_next = keys->has_next = false;
    keys->server = keys->next;
    dpt_log(DPT_LOG_INFO, "the server at %s has its new key; the earlier one is trusted no more",
            client_endpoint(client));
    if (dpt_keyring_retire(keys, &earlier, client_endpoint(client), &why) != DPT_OK)
        dpt_log(DPT_LOG_WARN,
                "the server's earlier key stays in the file 'servers', where a later start trusts "
                "it: %s",
                why.text);
}

void client_settle_keys(struct dpt_client *client)
{
    client->ended = client->swapped = false;
    if (client->with_next)
        retire_server_key(client);
    if (!client->enrolling && client->keys.has_token && client->keys.enroll_first)
        note_server(client);
}

bool client_take_next_key(struct dpt_client *client, const struct dpt_client_event *event)
{
    struct dpt_keyring *keys = &client->keys;
    struct dpt_key key;
    struct dpt_err why;
    if (keys->open || !dpt_next_key_decode(event->message, event->bytes, &key))
        return false;
    const bool is_known = keys->has_next && dpt_key_equal(&key, &keys->next);
    if (is_known || dpt_key_equal(&key, &keys->server))
        return true;
    keys->has_next = true;
    keys->next = key;
    dpt_log(DPT_LOG_INFO, "the server at %s changes its key soon", client_endpoint(client));
    if (dpt_keyring_note_next(keys, client_endpoint(client), &why) != DPT_OK)
        dpt_log(DPT_LOG_WARN,
                "the server's next key is not noted, so a later start needs a new "
                "token: %s",
                why.text);
    return true;
}
