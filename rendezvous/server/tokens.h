/* Tokens of a server: made, kept in its key folder, and found again for its screen. */
#ifndef DPT_RENDEZVOUS_SERVER_TOKENS_H
#define DPT_RENDEZVOUS_SERVER_TOKENS_H

#include "rendezvous/keys/admission.h"
#include "rendezvous/keys/folder.h"
#include "rendezvous/keys/token.h"

enum {
    DPT_TOKEN_HOURS_DEFAULT = 24,
    DPT_TOKEN_USES_DEFAULT = 64,
    DPT_TOKEN_KEY_LEFT_S = 600, /* no token is made later than this before the server's next key */
    DPT_NEW_KEY_AFTER_S = 30, /* default time from a new key's announcement until it is in force */
    DPT_NEW_KEY_AFTER_S_MAX = 30 * 24 * 3600
};

struct dpt_token_order {
    enum dpt_right right; /* that the token gives: JOIN or DEFINE */
    const char *run;      /* the only run for which it gives the right; NULL: every run */
    int64_t hours, uses;
};

/* A token as text, and its line in the list. */
struct dpt_issued_token {
    char text[DPT_TOKEN_TEXT_BYTES];
    struct dpt_admission_token entry;
    int64_t ends_s;     /* it admits nobody from then on: its expiry, or the server's next key */
    bool waits_for_key; /* there is none, because the server's next key is due (DPT_EREFUSED) */
};

/* Makes a token, appends it to the list, and keeps its text for the server's screen. A running
 * server admits machines by it at once. Old tokens that admit no machine leave the list first
 * (dpt_admission_prune_tokens), and a warning is logged if tokens of the list are
 * DPT_TOKEN_AHEAD. now_s: seconds since 1970. DPT_EOVERFLOW: DPT_ADMISSION_TOKENS_MAX tokens are
 * still good, or DPT_TOKEN_AHEAD with uses left; or the list has no room. DPT_EREFUSED: the
 * server has its next key within DPT_TOKEN_KEY_LEFT_S, so the token would soon admit nobody. */
DPT_MUST_USE enum dpt_status dpt_token_issue(const struct dpt_key_folder *folder,
                                             const struct dpt_token_order *order, int64_t now_s,
                                             struct dpt_issued_token *ret, struct dpt_err *err);

/* The kept token, if it is of this server, gives the right of the order for the same run and admits
 * another machine; else makes one. Fails as dpt_token_issue. */
DPT_MUST_USE enum dpt_status dpt_token_current(const struct dpt_key_folder *folder,
                                               const struct dpt_token_order *order, int64_t now_s,
                                               struct dpt_issued_token *ret, struct dpt_err *err);

/* Revokes a token of the list: it admits nobody from now on, and machines that it has admitted
 * stay. `which`: its text, or at least eight digits of its key. *ret: the token as it was listed;
 * one that is revoked already stays so. DPT_ECONFIG: no token, or several, are called so. */
DPT_MUST_USE enum dpt_status dpt_token_revoke(const struct dpt_key_folder *folder,
                                              const char *which, struct dpt_admission_token *ret,
                                              struct dpt_err *err);

/* Draws the key that a running server takes at at_s (seconds since 1970), and until then tells to
 * its machines. DPT_ECONFIG: there is one already. */
DPT_MUST_USE enum dpt_status dpt_token_new_server_key(const struct dpt_key_folder *folder,
                                                      int64_t at_s, struct dpt_err *err);

/* Appends a line to the list of machines which denies a machine. `which`: its name, or at least
 * eight digits of its key. *ret: the machine as it was listed. DPT_ECONFIG: no machine, or several,
 * are called so. DPT_EOVERFLOW: the list has no room. */
DPT_MUST_USE enum dpt_status dpt_token_deny_machine(const struct dpt_key_folder *folder,
                                                    const char *which,
                                                    struct dpt_admitted_machine *ret,
                                                    struct dpt_err *err);

#endif
