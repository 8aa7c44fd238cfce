/* Finds the keys for a server. */
#include "rendezvous/keys/keyring.h"

#include "base/fs.h"
#include "rendezvous/keys/curve.h"
#include "rendezvous/keys/servers.h"
#include "rendezvous/keys/token.h"

#include <stdlib.h>
#include <string.h>

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

/* ---- servers that have admitted this machine ---- */

enum dpt_status dpt_keyring_note_server(const struct dpt_keyring *keys, const char *endpoint,
                                        struct dpt_err *err)
{
    return dpt_servers_note(&keys->folder, endpoint, &keys->server, NULL, err);
}

/* A process with the key of the server's folder finds the next one there, too. */
static bool needs_no_note(const struct dpt_keyring *keys)
{
    return keys->source == DPT_SERVER_KEY_OF_FOLDER;
}

enum dpt_status dpt_keyring_note_next(const struct dpt_keyring *keys, const char *endpoint,
                                      struct dpt_err *err)
{
    DPT_ASSERT(keys->has_next);
    return needs_no_note(keys)
               ? DPT_OK
               : dpt_servers_note(&keys->folder, endpoint, &keys->server, &keys->next, err);
}

enum dpt_status dpt_keyring_retire(const struct dpt_keyring *keys, const struct dpt_key *earlier,
                                   const char *endpoint, struct dpt_err *err)
{
    return needs_no_note(keys)
               ? DPT_OK
               : dpt_servers_retire(&keys->folder, endpoint, earlier, &keys->server, err);
}

/* ---- the token ---- */

/* A token in a file does not appear in the list of processes. `source`: the option or the variable
 * that has the text. */
static enum dpt_status read_token(const char *text, const char *source, struct dpt_token *ret,
                                  struct dpt_err *err)
{
    char line[DPT_TOKEN_TEXT_BYTES + 1];
    if (text[0] != '@')
        return dpt_wrap(err, dpt_token_parse(text, ret, err), "%s", source);
    if (!dpt_fs_read_line(text + 1, line, sizeof line))
        return dpt_fail(err, DPT_ECONFIG,
                        "%s %.200s: the file cannot be read, or its first line is no token", source,
                        text);
    return dpt_wrap(err, dpt_token_parse(line, ret, err), "%s %.200s", source, text);
}

/* If the token is of a key that the server had earlier, the file `servers` has the later one. */
static enum dpt_status take_token(const struct dpt_keyring_options *options, const char *text,
                                  const char *notes, struct dpt_keyring *keys, struct dpt_err *err)
{
    struct dpt_token token;
    struct dpt_noted_server noted;
    DPT_TRY(
        read_token(text, options->token != NULL ? "--rdzv-token" : "$DPT_RDZV_TOKEN", &token, err));
    const struct dpt_key secret_key = dpt_token_secret_key(&token);
    DPT_TRY(dpt_curve_pair(&secret_key, &keys->token, err));
    keys->server = dpt_servers_latest(notes, &token.server);
    keys->source = dpt_key_equal(&keys->server, &token.server) ? DPT_SERVER_KEY_OF_TOKEN
                                                               : DPT_SERVER_KEY_NOTED;
    keys->has_token = true;
    keys->enroll_first = !dpt_servers_has_key(notes, &keys->server);
    dpt_servers_find(notes, options->endpoint, &noted);
    keys->has_next = noted.has_next && dpt_key_equal(&noted.key, &keys->server);
    keys->next = noted.next;
    return DPT_OK;
}

static enum dpt_status find_server(const char *endpoint, const char *notes,
                                   struct dpt_keyring *keys, struct dpt_err *err)
{
    struct dpt_key_pair own, next;
    struct dpt_noted_server noted;
    dpt_servers_find(notes, endpoint, &noted);
    if (noted.found) {
        keys->server = noted.key;
        keys->source = DPT_SERVER_KEY_NOTED;
        keys->has_next = noted.has_next;
        keys->next = noted.next;
        return DPT_OK;
    }
    DPT_TRY(dpt_keyring_pair(&keys->folder, "server.key", &own, err));
    keys->server = own.public_key;
    keys->source = DPT_SERVER_KEY_OF_FOLDER;
    DPT_TRY(dpt_keyring_find(&keys->folder, DPT_KEYRING_NEXT_KEY, &next, &keys->has_next, err));
    if (keys->has_next)
        keys->next = next.public_key;
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
    char *notes = NULL;
    DPT_TRY(dpt_key_folder_open(options->key_dir, &keys.folder, err));
    DPT_TRY(dpt_keyring_pair(&keys.folder, "machine.key", &keys.machine, err));
    DPT_TRY(dpt_servers_read(&keys.folder, &notes, err));
    const enum dpt_status status = token != NULL && token[0] != '\0'
                                       ? take_token(options, token, notes, &keys, err)
                                       : find_server(options->endpoint, notes, &keys, err);
    free(notes);
    if (status == DPT_OK)
        *ret = keys;
    return status;
}
