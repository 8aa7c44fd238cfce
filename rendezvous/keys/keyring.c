/* Finds the keys for a server. */
#include "rendezvous/keys/keyring.h"

#include "base/fs.h"
#include "rendezvous/keys/curve.h"
#include "rendezvous/keys/token.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char servers_name[] = "servers";
enum { NOTE_BYTES = 512 };

enum dpt_status dpt_keyring_pair(const struct dpt_key_folder *folder, const char *name,
                                 struct dpt_key_pair *ret, struct dpt_err *err)
{
    struct dpt_key_pair fresh;
    struct dpt_key secret_key;
    DPT_TRY(dpt_curve_draw(&fresh, err));
    DPT_TRY(dpt_key_folder_secret(folder, name, &fresh.secret_key, &secret_key, err));
    return dpt_curve_pair(&secret_key, ret, err);
}

enum dpt_status dpt_keyring_find(const struct dpt_key_folder *folder, const char *name,
                                 struct dpt_key_pair *ret, bool *ret_found, struct dpt_err *err)
{
    struct dpt_key secret_key;
    DPT_TRY(dpt_key_folder_find_secret(folder, name, &secret_key, ret_found, err));
    return *ret_found ? dpt_curve_pair(&secret_key, ret, err) : DPT_OK;
}

/* ---- servers that have admitted this machine: lines "KEY ENDPOINT" ---- */

struct notes {
    bool has_endpoint; /* `endpoint_key` is that of the last line with the endpoint */
    struct dpt_key endpoint_key;
    bool has_earlier; /* `earlier_key` is that of the last line before, with another key */
    struct dpt_key earlier_key;
    bool has_key; /* a line has the key that was looked for */
};

static void read_notes(const char *text, const char *endpoint, const struct dpt_key *key,
                       struct notes *ret)
{
    *ret = (struct notes){0};
    for (const char *next; *text != '\0'; text = next) {
        const size_t bytes = strcspn(text, "\n");
        struct dpt_key found;
        next = text + bytes + (text[bytes] == '\n');
        if (bytes < DPT_KEY_HEX_BYTES || !dpt_key_parse(text, &found) ||
            text[DPT_KEY_HEX_BYTES - 1] != ' ')
            continue; /* a comment, or another kind of line of a later version */
        const char *at = text + DPT_KEY_HEX_BYTES;
        const size_t at_bytes = bytes - DPT_KEY_HEX_BYTES;
        ret->has_key = ret->has_key || dpt_key_equal(&found, key);
        if (at_bytes != strlen(endpoint) || strncmp(at, endpoint, at_bytes) != 0)
            continue;
        if (ret->has_endpoint && !dpt_key_equal(&ret->endpoint_key, &found)) {
            ret->has_earlier = true;
            ret->earlier_key = ret->endpoint_key;
        }
        ret->has_endpoint = true;
        ret->endpoint_key = found;
    }
}

enum dpt_status dpt_keyring_note_server(const struct dpt_keyring *keys,
                                        const struct dpt_key *server, const char *endpoint,
                                        struct dpt_err *err)
{
    char line[NOTE_BYTES], hex[DPT_KEY_HEX_BYTES];
    dpt_key_hex(server, hex);
    const int n = snprintf(line, sizeof line, "%s %s", hex, endpoint);
    DPT_ASSERT(n > 0 && (size_t)n < sizeof line);
    return dpt_key_folder_append(&keys->folder, servers_name, line, err);
}

/* ---- the token ---- */

/* A token in a file does not appear in the list of processes. */
static enum dpt_status read_token(const char *text, struct dpt_token *ret, struct dpt_err *err)
{
    char line[DPT_TOKEN_TEXT_BYTES + 1];
    if (text[0] != '@')
        return dpt_wrap(err, dpt_token_parse(text, ret, err), "--rdzv-token");
    if (!dpt_fs_read_line(text + 1, line, sizeof line))
        return dpt_fail(err, DPT_ECONFIG,
                        "--rdzv-token %.200s: the file cannot be read, or its first line is no "
                        "token",
                        text);
    return dpt_wrap(err, dpt_token_parse(line, ret, err), "--rdzv-token %.200s", text);
}

static void take_other(struct dpt_keyring *keys, bool has_other, const struct dpt_key *other)
{
    keys->has_other = has_other && !dpt_key_equal(other, &keys->server);
    if (keys->has_other)
        keys->other = *other;
}

/* If the token is of a key that the server had earlier, the file `servers` has the later one. */
static enum dpt_status take_token(const char *text, const char *endpoint, const char *notes_text,
                                  struct dpt_keyring *keys, struct dpt_err *err)
{
    struct dpt_token token;
    struct notes notes;
    DPT_TRY(read_token(text, &token, err));
    const struct dpt_key secret_key = dpt_token_secret_key(&token);
    DPT_TRY(dpt_curve_pair(&secret_key, &keys->token, err));
    read_notes(notes_text, endpoint, &token.server, &notes);
    keys->server = token.server;
    keys->source = DPT_SERVER_KEY_OF_TOKEN;
    keys->has_token = true;
    keys->enroll_first = !notes.has_key;
    take_other(keys, notes.has_endpoint && notes.has_key, &notes.endpoint_key);
    return DPT_OK;
}

static enum dpt_status find_server(const char *endpoint, const char *notes_text,
                                   struct dpt_keyring *keys, struct dpt_err *err)
{
    static const struct dpt_key no_key;
    struct dpt_key_pair own, next;
    struct notes notes;
    bool has_next = false;
    read_notes(notes_text, endpoint, &no_key, &notes);
    if (notes.has_endpoint) {
        keys->server = notes.endpoint_key;
        keys->source = DPT_SERVER_KEY_NOTED;
        take_other(keys, notes.has_earlier, &notes.earlier_key);
        return DPT_OK;
    }
    DPT_TRY(dpt_keyring_pair(&keys->folder, "server.key", &own, err));
    keys->server = own.public_key;
    keys->source = DPT_SERVER_KEY_OF_FOLDER;
    DPT_TRY(dpt_keyring_find(&keys->folder, DPT_KEYRING_NEXT_KEY, &next, &has_next, err));
    take_other(keys, has_next, &next.public_key);
    return DPT_OK;
}

enum dpt_status dpt_keyring_load(const struct dpt_keyring_options *options, struct dpt_keyring *ret,
                                 struct dpt_err *err)
{
    struct dpt_keyring keys = {0};
    const char *token = options->token != NULL ? options->token : getenv("DPT_RDZV_TOKEN");
    if (token != NULL && strcmp(token, DPT_KEYRING_NO_KEYS) == 0) {
        keys.open = true;
        *ret = keys;
        return DPT_OK;
    }
    char *notes_text = NULL;
    DPT_TRY(dpt_key_folder_open(options->key_dir, &keys.folder, err));
    DPT_TRY(dpt_keyring_pair(&keys.folder, "machine.key", &keys.machine, err));
    DPT_TRY(dpt_key_folder_read(&keys.folder, servers_name, &notes_text, NULL, err));
    const enum dpt_status status =
        token != NULL && token[0] != '\0'
            ? take_token(token, options->endpoint, notes_text, &keys, err)
            : find_server(options->endpoint, notes_text, &keys, err);
    free(notes_text);
    if (status == DPT_OK)
        *ret = keys;
    return status;
}
