/* A machine asks over the connection of a token that its key be admitted, and proves its secret
 * key. */
#include "base/clock.h"
#include "base/log.h"
#include "rendezvous/keys/enroll.h"
#include "rendezvous/keys/possession.h"
#include "tests/rendezvous/server/keyed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

/* A client that connects with the key pair of the token, so that the test says what it sends. */
static struct dpt_client *connect_with_token(const struct dpt_keyring *ring)
{
    struct dpt_keyring as_token = *ring;
    as_token.machine = ring->token;
    as_token.has_token = as_token.enroll_first = false;
    struct dpt_client *client = transport_start_client_with(keyed.server.port, &as_token);
    (void)transport_expect(client, DPT_CLIENT_UP);
    return client;
}

static struct dpt_enroll_request request_of(const struct dpt_keyring *ring, const char *name)
{
    struct dpt_enroll_request request = {.key = ring->machine.public_key};
    struct dpt_err err;
    dpt_enroll_name(name, request.name);
    assert_int_equal(dpt_possession_prove(&request, &ring->machine.secret_key, &ring->server,
                                          &ring->token.public_key, &err),
                     DPT_OK);
    return request;
}

static struct dpt_enroll_answer answer_to(struct dpt_client *client, const void *message,
                                          size_t bytes)
{
    struct dpt_enroll_answer answer;
    struct dpt_err err;
    transport_send(client, message, bytes);
    const struct dpt_client_event event = transport_expect(client, DPT_CLIENT_MESSAGE);
    assert_int_equal(dpt_enroll_answer_decode(event.message, event.bytes, &answer, &err), DPT_OK);
    return answer;
}

static struct dpt_enroll_answer ask(struct dpt_client *client,
                                    const struct dpt_enroll_request *request)
{
    uint8_t message[DPT_ENROLL_MESSAGE_BYTES_MAX];
    return answer_to(client, message, dpt_enroll_request_encode(request, message));
}

static atomic_int n_not_admitted, n_without_proof;

static void count_not_admitted(void *ctx, const char *line, size_t bytes)
{
    (void)ctx;
    static const char words[] = "machine(s) not admitted; the last: b (key ",
                      proof[] = "does not prove that its sender has the secret key";
    if (memmem(line, bytes, words, sizeof words - 1) == NULL)
        return;
    n_not_admitted++;
    n_without_proof += memmem(line, bytes, proof, sizeof proof - 1) != NULL;
}

/* The owner of a token, who knows the public key of machine b, asks that this key be admitted: it
 * would get the rights of that token. Each proof that he can have is refused, the token is not
 * used, and b itself is admitted by its own token. */
static void key_of_another_machine_is_refused(void **state)
{
    (void)state;
    enum { NONE, OWN_KEY, OTHER_TOKEN, OTHER_NAME, OTHER_SERVER, CHANGED, COUNT };
    const struct dpt_issued_token stolen = keyed_issue(9, (int64_t)time(NULL)),
                                  its_own = keyed_issue(9, (int64_t)time(NULL));
    char path[160], line[sizeof "used " + DPT_KEY_HEX_BYTES] = "used ";
    (void)snprintf(path, sizeof path, "%s/thief", keyed.dir);
    const struct dpt_keyring thief = keyed_ring(path, stolen.text),
                             b = keyed_ring(keyed.machine_b, its_own.text);
    struct dpt_keyring b_elsewhere = b, b_here = b;
    b_elsewhere.server = thief.machine.public_key; /* b asks a server of the thief */
    b_elsewhere.token = b_here.token = thief.token;
    struct dpt_enroll_request cases[COUNT] = {
        [NONE] = {.key = b.machine.public_key, .name = "b"},
        [OWN_KEY] = request_of(&thief, "b"),
        [OTHER_TOKEN] = request_of(&b, "b"),
        [OTHER_NAME] = request_of(&b_here, "a"),
        [OTHER_SERVER] = request_of(&b_elsewhere, "b"),
        [CHANGED] = request_of(&b_here, "b"),
    };
    cases[OWN_KEY].key = b.machine.public_key;
    dpt_enroll_name("b", cases[OTHER_NAME].name);
    cases[CHANGED].proof[31] ^= 1;
    struct dpt_client *client = connect_with_token(&thief);
    n_not_admitted = n_without_proof = 0;
    dpt_log_set_sink(count_not_admitted, NULL);
    for (int i = 0; i < COUNT; i++) {
        const struct dpt_enroll_answer answer = ask(client, &cases[i]);
        if (answer.admitted || strstr(answer.text, "does not prove that its sender has") == NULL)
            fail_msg("case %d: admitted %d, %s", i, answer.admitted, answer.text);
    }
    dpt_log_set_sink(NULL, NULL);
    assert_true(n_not_admitted >= 1 && n_without_proof == n_not_admitted);
    assert_int_equal(keyed_count_lines("tokens", "used "), 0);
    assert_int_equal(keyed_count_lines("machines", "define "), 1); /* of the head */
    keyed_expect_served(&b);
    dpt_key_hex(&b.token.public_key, line + strlen(line));
    assert_int_equal(keyed_count_lines("tokens", line), 1);
    assert_int_equal(keyed_count_lines("tokens", "used "), 1);
    cases[OWN_KEY].key = thief.machine.public_key; /* what he may do */
    assert_true(ask(client, &cases[OWN_KEY]).admitted);
    dpt_client_destroy(&client);
}

/* No pair has this public key: whoever names it shares a secret with everybody. */
static void key_without_a_pair_is_refused(void **state)
{
    (void)state;
    const struct dpt_issued_token token = keyed_issue(9, (int64_t)time(NULL));
    const struct dpt_keyring ring = keyed_ring(keyed.machine_b, token.text);
    struct dpt_enroll_request request = request_of(&ring, "b");
    struct dpt_client *client = connect_with_token(&ring);
    request.key = (struct dpt_key){{0}};
    const struct dpt_enroll_answer answer = ask(client, &request);
    assert_false(answer.admitted);
    assert_non_null(strstr(answer.text, "secret key of 00000000"));
    assert_int_equal(keyed_count_lines("machines", "define "), 1);
    dpt_client_destroy(&client);
}

/* An earlier dpt-worker proves nothing: the answer names both versions. */
static void request_of_an_earlier_version_is_refused(void **state)
{
    (void)state;
    const struct dpt_issued_token token = keyed_issue(9, (int64_t)time(NULL));
    const struct dpt_keyring ring = keyed_ring(keyed.machine_b, token.text);
    const struct dpt_enroll_request request = request_of(&ring, "b");
    uint8_t message[DPT_ENROLL_MESSAGE_BYTES_MAX];
    size_t bytes = dpt_enroll_request_encode(&request, message);
    enum { HEAD_BYTES = 8 + 2, PROOF_AT = HEAD_BYTES + DPT_KEY_BYTES };
    message[8] = 1;
    memmove(message + PROOF_AT, message + PROOF_AT + DPT_ENROLL_PROOF_BYTES,
            bytes - PROOF_AT - DPT_ENROLL_PROOF_BYTES);
    bytes -= DPT_ENROLL_PROOF_BYTES;
    struct dpt_client *client = connect_with_token(&ring);
    const struct dpt_enroll_answer answer = answer_to(client, message, bytes);
    assert_false(answer.admitted);
    assert_non_null(strstr(answer.text, "has version 1, this program version 2: install the same"));
    assert_int_equal(keyed_count_lines("machines", "define "), 1);
    dpt_client_destroy(&client);
}

/* A connection that was made before its token expired admits nobody. */
static void token_expires_while_a_connection_stands(void **state)
{
    (void)state;
    const struct dpt_issued_token token = keyed_issue(9, (int64_t)time(NULL));
    struct dpt_admission_token expired = token.entry;
    const struct dpt_keyring ring = keyed_ring(keyed.machine_b, token.text);
    const struct dpt_enroll_request request = request_of(&ring, "b");
    char line[DPT_ADMISSION_LINE_BYTES];
    struct dpt_err err;
    struct dpt_client *client = connect_with_token(&ring);
    expired.expires_s = 1000;
    dpt_admission_print_token(&expired, line);
    assert_int_equal(dpt_key_folder_replace(&keyed.folder, "tokens", line, &err), DPT_OK);
    keyed_make_server_look();
    const struct dpt_enroll_answer answer = ask(client, &request);
    assert_false(answer.admitted);
    assert_non_null(strstr(answer.text, "the token expired "));
    assert_int_equal(keyed_count_lines("machines", "define "), 1);
    dpt_client_destroy(&client);
}

/* The owner of a token asks many times for a key that is not admitted: a line a second. */
static void refused_requests_are_a_line_a_second(void **state)
{
    (void)state;
    enum { REQUESTS = 200 };
    const struct dpt_issued_token token = keyed_issue(9, (int64_t)time(NULL));
    struct dpt_keyring ring = keyed_ring(keyed.machine_b, token.text);
    ring.machine = ring.token; /* it asks for the token's key, and proves it */
    const struct dpt_enroll_request request = request_of(&ring, "b");
    struct dpt_client *client = connect_with_token(&ring);
    n_not_admitted = n_without_proof = 0;
    dpt_log_set_sink(count_not_admitted, NULL);
    const int64_t began_ms = dpt_now_ms();
    for (int i = 0; i < REQUESTS; i++)
        assert_false(ask(client, &request).admitted);
    dpt_log_set_sink(NULL, NULL);
    assert_in_range(n_not_admitted, 1, 1 + (dpt_now_ms() - began_ms) / DPT_LOG_BOUND_MS);
    assert_int_equal(n_without_proof, 0);
    dpt_client_destroy(&client);
}

/* Over a connection with a token's key every message but the request is answered with a refusal,
 * and reaches no run. */
static void token_connection_reaches_no_run(void **state)
{
    (void)state;
    const struct dpt_issued_token token = keyed_issue(1, (int64_t)time(NULL));
    const struct dpt_keyring ring = keyed_ring(keyed.machine_b, token.text);
    struct dpt_client *client = connect_with_token(&ring);
    uint8_t buf[512];
    const struct dpt_enroll_answer answer =
        answer_to(client, buf, transport_make_message("a", 1, NULL, buf, sizeof buf));
    assert_false(answer.admitted);
    assert_non_null(strstr(answer.text, "malformed"));
    dpt_client_destroy(&client);
}

int main(void)
{
#define CASE(test) cmocka_unit_test_setup_teardown(test, keyed_setup, keyed_teardown)
    const struct CMUnitTest tests[] = {
        CASE(key_of_another_machine_is_refused),
        CASE(key_without_a_pair_is_refused),
        CASE(request_of_an_earlier_version_is_refused),
        CASE(token_expires_while_a_connection_stands),
        CASE(refused_requests_are_a_line_a_second),
        CASE(token_connection_reaches_no_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
