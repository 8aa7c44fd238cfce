/* Which keys a server admits, and as what: pure decisions from two lists, a key and the time.
 *
 * A line of the list of machines is "RIGHT KEY NAME [RUN]", further words are ignored. With RUN the
 * right holds for the run of this name only.
 *
 *     define   may join runs, and may define a run: bring the config (with its paths) of a new run
 *     join     may join runs that a machine with `define` has defined
 *     deny     may not connect, whatever other lines or tokens say before it
 *
 * The last line of a key counts. A line of the list of tokens is one of
 *
 *     token KEY RIGHT EXPIRES USES [RUN]    a token's public key; the right that it gives; seconds
 *                                           since 1970, 0: it was revoked; the number of machines
 *                                           that it admits
 *     used KEY MACHINE                      it has admitted a machine
 *
 * Empty lines and lines that begin with # are ignored. Lists are appended to or replaced, so a
 * reader always sees whole lines. */
#ifndef DPT_RENDEZVOUS_KEYS_ADMISSION_H
#define DPT_RENDEZVOUS_KEYS_ADMISSION_H

#include "base/err.h"
#include "rendezvous/keys/enroll.h"
#include "rendezvous/keys/key.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    DPT_ADMISSION_MACHINES_MAX = 65536, /* lines of the list of machines */
    DPT_ADMISSION_TOKENS_MAX = 1024,
    DPT_ADMISSION_USES_MAX = 65536,     /* in the line of a token */
    DPT_ADMISSION_NEW_USES_MAX = 50000, /* of a token that is made: the lines of these fit */
    /* Room that tokens leave to the lines of the operator. */
    DPT_ADMISSION_SPARE_LINES = 1024,         /* of the list of machines */
    DPT_ADMISSION_SPARE_BYTES = 256 * 1024,   /* of each list */
    DPT_ADMISSION_TOKEN_HOURS_MAX = 24 * 366, /* from the time when a token is made */
    DPT_ADMISSION_CLOCK_S = 3600,             /* by which clocks may differ without a remark */
    DPT_ADMISSION_SPENT_DAYS = 7,             /* a spent token stays in the list after its expiry */
    DPT_ADMISSION_SPENT_NEWEST = 16,          /* the newest tokens stay whatever their expiry */
    DPT_ADMISSION_SPENT_LINES_MAX = 8192,     /* of all used-up tokens and their uses */
    DPT_ADMISSION_RUN_BYTES = 64,             /* NUL included */
    DPT_ADMISSION_LINE_BYTES = 320,           /* of a line that is written; NUL included */
    DPT_ADMISSION_WHY_BYTES = 320             /* NUL included */
};

enum dpt_right {
    DPT_RIGHT_NONE, /* the key is unknown */
    DPT_RIGHT_DENY,
    DPT_RIGHT_SPENT, /* the key of a token that is not DPT_TOKEN_GOOD: it may do nothing */
    DPT_RIGHT_TOKEN, /* the key of a token: it may ask to admit a machine's key */
    DPT_RIGHT_JOIN,
    DPT_RIGHT_DEFINE,
    DPT_RIGHT_COUNT
};

/* "join"; never NULL. */
const char *dpt_right_text(enum dpt_right right);

struct dpt_admitted_machine {
    struct dpt_key key;
    enum dpt_right right; /* DENY, JOIN or DEFINE */
    char name[DPT_ENROLL_NAME_BYTES];
    char run[DPT_ADMISSION_RUN_BYTES]; /* "": in every run */
    size_t line;                       /* number of its line, from 1; 0: it was added later */
};

struct dpt_admission_token {
    struct dpt_key key;   /* public */
    enum dpt_right right; /* JOIN or DEFINE */
    char run[DPT_ADMISSION_RUN_BYTES];
    int64_t expires_s;
    uint32_t uses, used;
};

enum dpt_token_state {
    DPT_TOKEN_GOOD, /* it admits another machine */
    DPT_TOKEN_EXPIRED,
    DPT_TOKEN_AHEAD, /* it expires later than a token that is made now can: the clock was ahead when
                        it was made, or is behind now */
    DPT_TOKEN_USED_UP
};

/* Initially zeroed; dpt_admission_fini frees its memory. */
struct dpt_admission {
    struct dpt_admitted_machine *machines; /* (n_machines) owned, by key, each key once */
    size_t n_machines, machines_room;
    struct dpt_admission_token *tokens; /* (n_tokens) owned, in the order of the list */
    size_t n_tokens;
    size_t machine_lines;              /* without comments: each line of a key counts */
    size_t machine_bytes, token_bytes; /* of the texts of the lists */
};

void dpt_admission_fini(struct dpt_admission *admission);

/* Replace a list by that of a text. DPT_ECONFIG: a line is malformed, or there are too many; the
 * error names the line, and the list is unchanged. DPT_ENOMEM. */
DPT_MUST_USE enum dpt_status dpt_admission_read_machines(struct dpt_admission *admission,
                                                         const char *text, struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_admission_read_tokens(struct dpt_admission *admission,
                                                       const char *text, struct dpt_err *err);

/* What a list has when it is pruned. */
struct dpt_admission_pruned {
    size_t n_staying; /* good ones, and those DPT_TOKEN_AHEAD with uses left */
    size_t n_ahead;   /* tokens in the state DPT_TOKEN_AHEAD */
    int64_t ahead_s;  /* the latest expiry of these */
};

/* Copies a list of tokens without those that admit no machine any more and have no reason to stay,
 * and without the uses of these. Good tokens stay. One with uses left that is DPT_TOKEN_AHEAD
 * stays, too: now_s may be of a clock that is behind. A spent token stays, so that its owner is
 * told why it is refused, until DPT_ADMISSION_SPENT_DAYS after its expiry, or as long as it is one
 * of the newest DPT_ADMISSION_SPENT_NEWEST; but those that stay, and one that is added, have
 * precedence: then the list has at most DPT_ADMISSION_TOKENS_MAX tokens. Those that are used up
 * leave earlier if they and their uses have more than DPT_ADMISSION_SPENT_LINES_MAX lines; those
 * that have only expired do not, because now_s may be of a clock that is ahead. The list may have
 * any number. ret_text: room for the text and a NUL. now_s: seconds since 1970. DPT_ECONFIG: a line
 * is malformed. DPT_ENOMEM. */
DPT_MUST_USE enum dpt_status dpt_admission_prune_tokens(const char *text, int64_t now_s,
                                                        char *ret_text,
                                                        struct dpt_admission_pruned *ret,
                                                        struct dpt_err *err);

/* Copies a list of tokens in which one is revoked: its line has the expiry 0, so that no clock
 * finds it good, and its uses are gone. Of other tokens nothing changes. ret_text: room for the
 * text and DPT_ADMISSION_LINE_BYTES. DPT_ECONFIG: a line is malformed. DPT_ENOMEM. */
DPT_MUST_USE enum dpt_status dpt_admission_revoke_token(const char *text, const struct dpt_key *key,
                                                        char *ret_text, struct dpt_err *err);

/* now_s: seconds since 1970. */
enum dpt_right dpt_admission_right(const struct dpt_admission *admission, const struct dpt_key *key,
                                   int64_t now_s);

/* The only run of a machine; "": every run. Valid until the list changes. */
const char *dpt_admission_run(const struct dpt_admission *admission, const struct dpt_key *key);

/* True: a run may have this name. */
bool dpt_admission_is_run(const char *name);

enum dpt_token_state dpt_admission_token_state(const struct dpt_admission_token *token,
                                               int64_t now_s);

/* Writes why a key does not get through the handshake, for the log of the server: "of a token that
 * expired at …". The key's right is NONE, DENY or SPENT. */
void dpt_admission_explain(const struct dpt_admission *admission, const struct dpt_key *key,
                           int64_t now_s, char ret[DPT_ADMISSION_WHY_BYTES]);

/* The decision about a request. */
struct dpt_admission_decision {
    struct dpt_enroll_answer answer;
    bool is_new; /* the machine was admitted now: the two lines are to be appended to the lists */
    char machine_line[DPT_ADMISSION_LINE_BYTES], token_line[DPT_ADMISSION_LINE_BYTES];
};

/* Decides about a request over a connection with the key of a token. now_s: seconds since 1970. A
 * machine that is admitted already costs no use. A new machine is refused if its lines would leave
 * a list less room than DPT_ADMISSION_SPARE_LINES and _BYTES. Changes nothing. */
void dpt_admission_decide(const struct dpt_admission *admission, const struct dpt_key *token_key,
                          const struct dpt_enroll_request *request, int64_t now_s,
                          struct dpt_admission_decision *ret);

/* DPT_EOVERFLOW: the list of machines in this folder has as many lines as are read, so another one
 * would make it a list that no server can read. */
DPT_MUST_USE enum dpt_status dpt_admission_check_room(const struct dpt_admission *admission,
                                                      const char *folder, struct dpt_err *err);

/* Changes the list in memory as a line that was appended changes it when it is read, at a cost
 * that hardly depends on the length of the list. Fails as dpt_admission_read_machines. */
DPT_MUST_USE enum dpt_status dpt_admission_add_machine(struct dpt_admission *admission,
                                                       const char *line, struct dpt_err *err);
/* The same for the line of a use. */
void dpt_admission_count_use(struct dpt_admission *admission, const struct dpt_key *token_key);

/* Lines for the lists, without a newline. */
void dpt_admission_print_machine(enum dpt_right right, const struct dpt_key *key, const char *name,
                                 const char *run, char ret[DPT_ADMISSION_LINE_BYTES]);
void dpt_admission_print_token(const struct dpt_admission_token *token,
                               char ret[DPT_ADMISSION_LINE_BYTES]);

#endif
