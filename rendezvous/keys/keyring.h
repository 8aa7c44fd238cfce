/* What a process needs to reach a server with keys: the server's public key, this machine's pair,
 * and the pair of a token if the machine may not be known there yet.
 *
 * The server's key comes from the token; else from the line of the endpoint in the file `servers`
 * (servers.h); else it is that of this key folder, because the server then runs as the same user,
 * on this machine or on one with the same home folder. */
#ifndef DPT_RENDEZVOUS_KEYS_KEYRING_H
#define DPT_RENDEZVOUS_KEYS_KEYRING_H

#include "base/err.h"
#include "rendezvous/keys/folder.h"
#include "rendezvous/keys/key.h"

#include <stdbool.h>

#define DPT_KEYRING_NO_KEYS  "none" /* as the text of a token: the server has no keys (--open) */
#define DPT_KEYRING_NEXT_KEY "server.key.next"

enum dpt_server_key_source {
    DPT_SERVER_KEY_OF_FOLDER, /* also of a server in this process */
    DPT_SERVER_KEY_NOTED,     /* this machine was admitted there before */
    DPT_SERVER_KEY_OF_TOKEN
};

/* Value type. Zeroed with `open`: no keys. */
struct dpt_keyring {
    bool open;             /* the server has no keys; nothing else counts then */
    struct dpt_key server; /* public */
    bool has_next;         /* the server has announced its next key, and may have changed to it */
    struct dpt_key next;
    enum dpt_server_key_source source;
    struct dpt_key_pair machine;
    bool has_token;
    bool enroll_first; /* with has_token: this server has not admitted the machine yet */
    struct dpt_key_pair token;
    struct dpt_key_folder folder; /* an empty path: of a server in this process; nothing is noted */
};

struct dpt_keyring_options {
    const char *token;    /* text of a token, @FILE whose first line is one, DPT_KEYRING_NO_KEYS, or
                             NULL: $DPT_RDZV_TOKEN, which may be unset */
    const char *key_dir;  /* NULL: see folder.h */
    const char *endpoint; /* HOST:PORT, as the user wrote it */
};

/* Reads the key folder, and draws keys that are missing there. DPT_ECONFIG: a bad token, folder or
 * key file. DPT_EUNSUPPORTED: libzmq has no CURVE. */
DPT_MUST_USE enum dpt_status dpt_keyring_load(const struct dpt_keyring_options *options,
                                              struct dpt_keyring *ret, struct dpt_err *err);

/* The pair of a file of the folder; drawn if the file is missing. */
DPT_MUST_USE enum dpt_status dpt_keyring_pair(const struct dpt_key_folder *folder, const char *name,
                                              struct dpt_key_pair *ret, struct dpt_err *err);

/* The same, but a file that is missing stays so: *ret_found is then false. */
DPT_MUST_USE enum dpt_status dpt_keyring_find(const struct dpt_key_folder *folder, const char *name,
                                              struct dpt_key_pair *ret, bool *ret_found,
                                              struct dpt_err *err);

/* Note in the key folder, unless it needs no note: that the server at `endpoint` admits this
 * machine and has the key `server`; that it has announced the key `next`; that it had the key
 * `earlier` before, which is then trusted no more. */
DPT_MUST_USE enum dpt_status dpt_keyring_note_server(const struct dpt_keyring *keys,
                                                     const char *endpoint, struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_keyring_note_next(const struct dpt_keyring *keys,
                                                   const char *endpoint, struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_keyring_retire(const struct dpt_keyring *keys,
                                                const struct dpt_key *earlier, const char *endpoint,
                                                struct dpt_err *err);

#endif
