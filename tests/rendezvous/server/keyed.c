/* See keyed.h. */
#include "tests/rendezvous/server/keyed.h"

#include "base/clock.h"
#include "base/fs.h"
#include "tests/tmp.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct keyed keyed;

int keyed_setup(void **state)
{
    (void)state;
    struct dpt_err err;
    if (!test_make_dir(keyed.dir, sizeof keyed.dir, "server-keys"))
        return -1;
    (void)snprintf(keyed.head, sizeof keyed.head, "%s/head", keyed.dir);
    (void)snprintf(keyed.machine_b, sizeof keyed.machine_b, "%s/b", keyed.dir);
    transport_start_as(&keyed.server, (struct dpt_server_options){.key_dir = keyed.head});
    return dpt_key_folder_open(keyed.head, &keyed.folder, &err) == DPT_OK ? 0 : -1;
}

int keyed_teardown(void **state)
{
    (void)state;
    struct dpt_err err;
    transport_stop_server(&keyed.server);
    return dpt_fs_remove_tree(keyed.dir, &err) == DPT_OK ? 0 : -1;
}

struct dpt_keyring keyed_ring(const char *key_dir, const char *token)
{
    char endpoint[64];
    struct dpt_keyring ring;
    struct dpt_err err;
    (void)snprintf(endpoint, sizeof endpoint, "127.0.0.1:%d", keyed.server.port);
    const struct dpt_keyring_options options = {
        .token = token != NULL ? token : "", .key_dir = key_dir, .endpoint = endpoint};
    if (dpt_keyring_load(&options, &ring, &err) != DPT_OK)
        fail_msg("%s", err.text);
    return ring;
}

struct dpt_issued_token keyed_issue(int64_t uses, int64_t now_s)
{
    const struct dpt_token_order order = {.right = DPT_RIGHT_DEFINE, .hours = 1, .uses = uses};
    struct dpt_issued_token token;
    struct dpt_err err;
    if (dpt_token_issue(&keyed.folder, &order, now_s, &token, &err) != DPT_OK)
        fail_msg("%s", err.text);
    return token;
}

void keyed_tick_until(struct dpt_client *client, const char *why)
{
    char text[DPT_CLIENT_DENIAL_BYTES] = "";
    struct dpt_client_event event = {.kind = DPT_CLIENT_DOWN};
    struct dpt_err err;
    for (const int64_t end_ms = dpt_now_ms() + WAIT_MS; dpt_now_ms() < end_ms;) {
        dpt_client_tick(client, dpt_now_ms());
        while (dpt_client_next(client, &event, &err) == DPT_OK && event.kind != DPT_CLIENT_UP)
            ;
        const bool denied = dpt_client_is_denied(client, text);
        if (why == NULL ? event.kind == DPT_CLIENT_UP && !denied : strstr(text, why) != NULL)
            return;
        event.kind = DPT_CLIENT_DOWN;
        transport_wait(client, 20);
    }
    fail_msg("wanted '%s', and the client says: %s", why != NULL ? why : "a connection", text);
}

void keyed_expect_served(const struct dpt_keyring *ring)
{
    struct dpt_client *client = transport_start_client_with(keyed.server.port, ring);
    keyed_tick_until(client, NULL);
    (void)transport_exchange(client, "a");
    dpt_client_destroy(&client);
}

void keyed_expect_refused(const struct dpt_keyring *ring, const char *why)
{
    struct dpt_client *client = transport_start_client_with(keyed.server.port, ring);
    struct dpt_err err;
    assert_int_equal(transport_expect_failure(client, &err), DPT_EREFUSED);
    if (strstr(err.text, why) == NULL)
        fail_msg("wanted '%s' in: %s", why, err.text);
    dpt_client_destroy(&client);
}

size_t keyed_count_lines_in(const struct dpt_key_folder *of, const char *name, const char *word)
{
    char *text = NULL;
    struct dpt_err err;
    size_t n = 0;
    assert_int_equal(dpt_key_folder_read(of, name, &text, NULL, &err), DPT_OK);
    for (const char *at = text; (at = strstr(at, word)) != NULL; at++)
        n += at == text || at[-1] == '\n';
    free(text);
    return n;
}

size_t keyed_count_lines(const char *name, const char *word)
{
    return keyed_count_lines_in(&keyed.folder, name, word);
}

void keyed_make_server_look(void)
{
    char path[160];
    struct dpt_keyring stranger = keyed_ring(keyed.head, NULL);
    (void)snprintf(path, sizeof path, "%s/stranger", keyed.dir);
    stranger.machine = keyed_ring(path, NULL).machine;
    keyed_expect_refused(&stranger, "does not admit this machine's key");
}

void keyed_expect_why(const struct dpt_keyring *ring, int port, const char *why)
{
    struct dpt_client *client = transport_start_client_with(port, ring);
    char text[DPT_CLIENT_WHY_BYTES] = "";
    struct dpt_client_event event;
    struct dpt_err err;
    for (const int64_t end_ms = dpt_now_ms() + WAIT_MS; text[0] == '\0' && dpt_now_ms() < end_ms;) {
        dpt_client_tick(client, dpt_now_ms());
        assert_int_equal(dpt_client_next(client, &event, &err), DPT_INPROGRESS);
        transport_wait(client, 50);
        dpt_client_why(client, text);
    }
    if (strstr(text, why) == NULL)
        fail_msg("wanted '%s' in: %s", why, text);
    dpt_client_destroy(&client);
}
