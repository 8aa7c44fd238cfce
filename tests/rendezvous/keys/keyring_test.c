/* Which keys a client takes: of the token, of a server that was noted, of its own folder. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/fs.h"
#include "rendezvous/keys/curve.h"
#include "rendezvous/keys/keyring.h"
#include "rendezvous/keys/token.h"
#include "tests/tmp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char dir[96], keys[128], token_text[DPT_TOKEN_TEXT_BYTES];
static struct dpt_token token;

static int setup(void **state)
{
    (void)state;
    struct dpt_key_pair server;
    struct dpt_err err;
    if (!test_make_dir(dir, sizeof dir, "keyring") || dpt_curve_draw(&server, &err) != DPT_OK)
        return -1;
    (void)snprintf(keys, sizeof keys, "%s/keys", dir);
    token = (struct dpt_token){.server = server.public_key, .secret = "secret"};
    dpt_token_print(&token, token_text);
    return unsetenv("DPT_RDZV_TOKEN");
}

static int teardown(void **state)
{
    (void)state;
    struct dpt_err err;
    return dpt_fs_remove_tree(dir, &err) == DPT_OK ? 0 : -1;
}

static struct dpt_keyring load(const char *text, const char *endpoint)
{
    const struct dpt_keyring_options options = {
        .token = text, .key_dir = keys, .endpoint = endpoint};
    struct dpt_keyring ring;
    struct dpt_err err;
    if (dpt_keyring_load(&options, &ring, &err) != DPT_OK)
        fail_msg("%s", err.text);
    return ring;
}

static void expect_bad(const char *text, const char *why)
{
    const struct dpt_keyring_options options = {.token = text, .key_dir = keys, .endpoint = "h:1"};
    struct dpt_keyring ring;
    struct dpt_err err;
    assert_int_equal(dpt_keyring_load(&options, &ring, &err), DPT_ECONFIG);
    if (strstr(err.text, why) == NULL)
        fail_msg("wanted '%s' in: %s", why, err.text);
}

/* The public key was computed with the ladder of RFC 7748, section 5, in Python. */
static void pairs_are_of_curve25519(void **state)
{
    (void)state;
    struct dpt_key secret_key, public_key;
    struct dpt_key_pair pair;
    struct dpt_err err;
    assert_true(dpt_key_parse("0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20",
                              &secret_key));
    assert_true(dpt_key_parse("07a37cbc142093c8b755dc1b10e86cb426374ad16aa853ed0bdfc0b2b86d1c7c",
                              &public_key));
    assert_int_equal(dpt_curve_pair(&secret_key, &pair, &err), DPT_OK);
    assert_true(dpt_key_equal(&pair.public_key, &public_key));
    assert_true(dpt_key_equal(&pair.secret_key, &secret_key));
}

static void own_folder_without_token(void **state)
{
    (void)state;
    const struct dpt_keyring first = load(NULL, "127.0.0.1:1"), again = load(NULL, "127.0.0.1:1");
    struct dpt_key_pair server;
    struct dpt_err err;
    assert_false(first.open || first.has_token);
    assert_int_equal(first.source, DPT_SERVER_KEY_OF_FOLDER);
    assert_memory_equal(&first.machine, &again.machine, sizeof first.machine);
    assert_int_equal(dpt_keyring_pair(&first.folder, "server.key", &server, &err), DPT_OK);
    assert_true(dpt_key_equal(&server.public_key, &first.server));
    assert_false(dpt_key_equal(&first.machine.public_key, &first.server));
}

static void token_names_server_and_is_noted(void **state)
{
    (void)state;
    const struct dpt_key secret_key = dpt_token_secret_key(&token);
    struct dpt_key_pair pair;
    struct dpt_err err;
    struct dpt_keyring ring = load(token_text, "head:29500");
    assert_true(ring.has_token && ring.enroll_first);
    assert_int_equal(ring.source, DPT_SERVER_KEY_OF_TOKEN);
    assert_true(dpt_key_equal(&ring.server, &token.server));
    assert_int_equal(dpt_curve_pair(&secret_key, &pair, &err), DPT_OK);
    assert_memory_equal(&ring.token, &pair, sizeof pair);
    assert_int_equal(dpt_keyring_note_server(&ring, "head:29500", &err), DPT_OK);
    ring = load(token_text, "other-name:29500"); /* the machine is known there */
    assert_true(ring.has_token && !ring.enroll_first);
    ring = load(NULL, "head:29500"); /* no token is needed again */
    assert_false(ring.has_token || ring.has_next);
    assert_int_equal(ring.source, DPT_SERVER_KEY_NOTED);
    assert_true(dpt_key_equal(&ring.server, &token.server));
    assert_int_equal(load(NULL, "head:2950").source, DPT_SERVER_KEY_OF_FOLDER);
    struct dpt_keyring moved = load(NULL, "head:2950"); /* the server there was replaced */
    assert_int_equal(dpt_keyring_note_server(&moved, "head:29500", &err), DPT_OK);
    ring = load(NULL, "head:29500");
    assert_true(dpt_key_equal(&ring.server, &moved.server) && !ring.has_next);
}

/* The server announces its next key, and changes to it: only that one is trusted then, also with
 * the token of the earlier key. */
static void changed_key_replaces_the_earlier_one(void **state)
{
    (void)state;
    struct dpt_keyring ring = load(token_text, "head:29500"), later;
    struct dpt_key_pair next;
    struct dpt_err err;
    assert_int_equal(dpt_curve_draw(&next, &err), DPT_OK);
    assert_int_equal(dpt_keyring_note_server(&ring, "head:29500", &err), DPT_OK);
    assert_int_equal(dpt_keyring_note_server(&ring, "10.0.0.1:29500", &err), DPT_OK);
    ring.has_next = true;
    ring.next = next.public_key;
    assert_int_equal(dpt_keyring_note_next(&ring, "head:29500", &err), DPT_OK);
    for (int i = 0; i < 2; i++) {
        later = load(i == 0 ? NULL : token_text, "head:29500");
        assert_true(dpt_key_equal(&later.server, &token.server));
        assert_true(later.has_next && dpt_key_equal(&later.next, &next.public_key));
    }
    ring.server = next.public_key;
    assert_int_equal(dpt_keyring_retire(&ring, &token.server, "head:29500", &err), DPT_OK);
    static const char *const names[] = {"head:29500", "10.0.0.1:29500"};
    for (int i = 0; i < 4; i++) {
        later = load(i < 2 ? NULL : token_text, names[i % 2]);
        assert_true(dpt_key_equal(&later.server, &next.public_key));
        assert_false(later.has_next || later.enroll_first);
        assert_int_equal(later.source, DPT_SERVER_KEY_NOTED);
    }
    ring.source = DPT_SERVER_KEY_OF_FOLDER; /* which needs no note */
    assert_int_equal(dpt_keyring_note_next(&ring, "h:1", &err), DPT_OK);
    assert_int_equal(dpt_keyring_retire(&ring, &token.server, "h:1", &err), DPT_OK);
    assert_int_equal(load(NULL, "h:1").source, DPT_SERVER_KEY_OF_FOLDER);
}

static void next_key_of_the_folder_is_known(void **state)
{
    (void)state;
    struct dpt_key_pair next;
    struct dpt_err err;
    bool found = true;
    struct dpt_keyring ring = load(NULL, "h:1");
    assert_false(ring.has_next);
    assert_int_equal(dpt_keyring_find(&ring.folder, DPT_KEYRING_NEXT_KEY, &next, &found, &err),
                     DPT_OK);
    assert_false(found); /* and none was drawn */
    assert_int_equal(dpt_keyring_pair(&ring.folder, DPT_KEYRING_NEXT_KEY, &next, &err), DPT_OK);
    ring = load(NULL, "h:1");
    assert_true(ring.has_next && dpt_key_equal(&ring.next, &next.public_key));
    assert_int_equal(dpt_key_folder_replace(&ring.folder, DPT_KEYRING_NEXT_KEY, "not a key", &err),
                     DPT_OK);
    expect_bad("", "holds no secret key");
}

static void token_comes_from_file_or_environment(void **state)
{
    (void)state;
    char file[160], at[161], line[DPT_TOKEN_TEXT_BYTES + 1];
    struct dpt_err err;
    (void)snprintf(file, sizeof file, "%s/token", dir);
    (void)snprintf(at, sizeof at, "@%s", file);
    expect_bad(at, "the file cannot be read");
    (void)snprintf(line, sizeof line, "%s\n", token_text);
    assert_int_equal(dpt_fs_write_file_atomic(file, line, strlen(line), &err), DPT_OK);
    assert_true(load(at, "h:1").has_token);
    assert_int_equal(dpt_fs_write_file_atomic(file, "x\n", 2, &err), DPT_OK);
    expect_bad(at, "this is no token");
    assert_int_equal(setenv("DPT_RDZV_TOKEN", token_text, 1), 0);
    assert_true(load(NULL, "h:1").has_token);
    assert_int_equal(setenv("DPT_RDZV_TOKEN", "dpt1-x", 1), 0);
    expect_bad(NULL, "$DPT_RDZV_TOKEN: a token has"); /* not the option, which was not given */
    assert_int_equal(setenv("DPT_RDZV_TOKEN", "", 1), 0);
    assert_false(load(NULL, "h:1").has_token);
    expect_bad("dpt1-x", "--rdzv-token: a token has");
    assert_true(load("none", "h:1").open);
    assert_int_equal(unsetenv("DPT_RDZV_TOKEN"), 0);
}

int main(void)
{
#define CASE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(pairs_are_of_curve25519),         CASE(own_folder_without_token),
        CASE(token_names_server_and_is_noted), CASE(changed_key_replaces_the_earlier_one),
        CASE(next_key_of_the_folder_is_known), CASE(token_comes_from_file_or_environment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
