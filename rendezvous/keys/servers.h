/* The file `servers` of a key folder: the servers that have admitted this machine, and their keys.
 *
 *     KEY ENDPOINT          the server at HOST:PORT has this key
 *     KEY ENDPOINT next     that server has announced this key, and will change to it
 *     retired KEY LATER     the server with KEY has changed to LATER: KEY is not trusted any more
 *
 * A machine that has reached a server with its next key retires the earlier one. Then every line of
 * the earlier key gets the later one, whatever name of the server the line has. A token of a
 * retired key, which a command line may keep, stands for the later key. Other lines are kept as
 * they are. */
#ifndef DPT_RENDEZVOUS_KEYS_SERVERS_H
#define DPT_RENDEZVOUS_KEYS_SERVERS_H

#include "rendezvous/keys/folder.h"

enum {
    DPT_SERVERS_ENDPOINTS_MAX = 1024, /* lines of endpoints that stay, the newest */
    DPT_SERVERS_RETIRED_MAX = 64      /* lines of retired keys that stay, the newest */
};

/* The lines of an endpoint. */
struct dpt_noted_server {
    bool found, has_next;
    struct dpt_key key, next;
};

/* Pure; `text`: of the file. Of several lines the last one counts. */
void dpt_servers_find(const char *text, const char *endpoint, struct dpt_noted_server *ret);
/* True: a line says that a server has this key now. */
bool dpt_servers_has_key(const char *text, const struct dpt_key *key);
/* The key itself or, if it is retired, the later key of the same server. */
struct dpt_key dpt_servers_latest(const char *text, const struct dpt_key *key);

/* Reads the file; see dpt_key_folder_read. */
DPT_MUST_USE enum dpt_status dpt_servers_read(const struct dpt_key_folder *folder, char **ret_text,
                                              struct dpt_err *err);

/* Notes that the server at `endpoint` has this key and, unless `next` is NULL, will have that one.
 * The endpoint's earlier lines go. Nothing changes if `key` is retired already. */
DPT_MUST_USE enum dpt_status dpt_servers_note(const struct dpt_key_folder *folder,
                                              const char *endpoint, const struct dpt_key *key,
                                              const struct dpt_key *next, struct dpt_err *err);

/* Notes that the server at `endpoint` has changed from `earlier` to `key`. Nothing changes if `key`
 * is retired already. */
DPT_MUST_USE enum dpt_status dpt_servers_retire(const struct dpt_key_folder *folder,
                                                const char *endpoint, const struct dpt_key *earlier,
                                                const struct dpt_key *key, struct dpt_err *err);

#endif
