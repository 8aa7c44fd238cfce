/* Which right a key has, and the decision about a request, with their reasons for people. */
#include "rendezvous/keys/internal.h"

#include "base/utc.h"
#include "rendezvous/keys/folder.h"

#include <inttypes.h>
#include <stdio.h>

enum dpt_right dpt_admission_right(const struct dpt_admission *admission, const struct dpt_key *key,
                                   int64_t now_s)
{
    const struct dpt_admitted_machine *machine = dpt_admission_find_machine(admission, key);
    if (machine != NULL)
        return machine->right;
    const struct dpt_admission_token *token =
        dpt_admission_find_token(admission->tokens, admission->n_tokens, key);
    if (token == NULL)
        return DPT_RIGHT_NONE;
    return dpt_admission_token_state(token, now_s) == DPT_TOKEN_GOOD ? DPT_RIGHT_TOKEN
                                                                     : DPT_RIGHT_SPENT;
}

static bool is_revoked(const struct dpt_admission_token *token)
{
    return token != NULL && token->expires_s == 0;
}

static const char *plural(uint32_t n)
{
    return n == 1 ? "" : "s";
}

void dpt_admission_explain(const struct dpt_admission *admission, const struct dpt_key *key,
                           int64_t now_s, char ret[DPT_ADMISSION_WHY_BYTES])
{
    static const char another[] = "make another token (dpt-rdzv --new-token)";
    enum { BYTES = DPT_ADMISSION_WHY_BYTES };
    const struct dpt_admission_token *token =
        dpt_admission_find_token(admission->tokens, admission->n_tokens, key);
    const enum dpt_token_state state =
        token != NULL ? dpt_admission_token_state(token, now_s) : DPT_TOKEN_GOOD;
    char now[DPT_UTC_TEXT_BYTES], expires[DPT_UTC_TEXT_BYTES];
    dpt_utc_text(now_s, now);
    dpt_utc_text(token != NULL ? token->expires_s : 0, expires);
    if (dpt_admission_find_machine(admission, key) != NULL)
        (void)snprintf(ret, BYTES, "denied in the list of machines");
    else if (is_revoked(token))
        (void)snprintf(ret, BYTES, "of a token that was revoked");
    else if (state == DPT_TOKEN_EXPIRED)
        (void)snprintf(ret, BYTES,
                       "of a token that expired at %s, and this machine's clock says %s: set the "
                       "clock if it is wrong or was wrong when the token was made, and %s",
                       expires, now, another);
    else if (state == DPT_TOKEN_AHEAD)
        (void)snprintf(ret, BYTES,
                       "of a token that expires at %s, later than a token can that is made now, "
                       "and this machine's clock says %s: set the clock if it is wrong, else it "
                       "was ahead when the token was made, so %s",
                       expires, now, another);
    else if (state == DPT_TOKEN_USED_UP)
        (void)snprintf(ret, BYTES, "of a token that is used up (it admits %u machine%s)",
                       (unsigned)token->uses, plural(token->uses));
    else
        (void)snprintf(ret, BYTES, "of no machine in the list and of no token");
}

/* Writes which list has only the operator's room left, and the remedy; "": none. */
static void print_full(const struct dpt_admission *admission, char ret[DPT_ENROLL_TEXT_BYTES])
{
    enum {
        LINES = DPT_ADMISSION_MACHINES_MAX - DPT_ADMISSION_SPARE_LINES,
        BYTES = DPT_KEY_FILE_BYTES_MAX - DPT_ADMISSION_SPARE_BYTES
    };
    const size_t lines = admission->machine_lines, bytes = admission->machine_bytes,
                 token_bytes = admission->token_bytes;
    ret[0] = '\0';
    if (lines >= LINES || bytes + DPT_ADMISSION_LINE_BYTES > BYTES)
        (void)snprintf(ret, DPT_ENROLL_TEXT_BYTES,
                       "the server's file 'machines' has %zu lines and %zu bytes, and tokens fill "
                       "%d and %d: delete lines of machines that are gone",
                       lines, bytes, LINES, BYTES);
    else if (token_bytes + DPT_ADMISSION_LINE_BYTES > BYTES)
        (void)snprintf(ret, DPT_ENROLL_TEXT_BYTES,
                       "the server's file 'tokens' has %zu bytes, and uses of tokens fill %d: "
                       "revoke tokens that are not needed (dpt-rdzv --revoke)",
                       token_bytes, BYTES);
}

static void print_refusal(const struct dpt_admission *admission,
                          const struct dpt_admission_token *token, int64_t now_s,
                          char ret[DPT_ENROLL_TEXT_BYTES])
{
    static const char again[] = "make another with dpt-rdzv --new-token on the server's machine";
    enum { BYTES = DPT_ENROLL_TEXT_BYTES };
    const enum dpt_token_state state =
        token != NULL ? dpt_admission_token_state(token, now_s) : DPT_TOKEN_GOOD;
    char now[DPT_UTC_TEXT_BYTES];
    dpt_utc_text(now_s, now);
    if (token == NULL)
        (void)snprintf(ret, BYTES, "the server does not know this token: %s", again);
    else if (is_revoked(token))
        (void)snprintf(ret, BYTES, "the token was revoked: %s", again);
    else if (state == DPT_TOKEN_EXPIRED)
        (void)snprintf(ret, BYTES,
                       "the token expired %" PRId64 " s ago by the server's clock (%s), which may "
                       "be wrong: %s",
                       now_s - token->expires_s, now, again);
    else if (state == DPT_TOKEN_AHEAD)
        (void)snprintf(ret, BYTES,
                       "the token was made by a clock that was ahead of the server's (%s), which "
                       "may be wrong: %s",
                       now, again);
    else if (state == DPT_TOKEN_USED_UP)
        (void)snprintf(ret, BYTES, "the token is used up (it admits %u machine%s): %s",
                       (unsigned)token->uses, plural(token->uses), again);
    else
        print_full(admission, ret);
}

void dpt_admission_decide(const struct dpt_admission *admission, const struct dpt_key *token_key,
                          const struct dpt_enroll_request *request, int64_t now_s,
                          struct dpt_admission_decision *ret)
{
    const struct dpt_admission_token *token =
        dpt_admission_find_token(admission->tokens, admission->n_tokens, token_key);
    const enum dpt_right right = dpt_admission_right(admission, &request->key, now_s);
    *ret = (struct dpt_admission_decision){0};
    if (right == DPT_RIGHT_JOIN || right == DPT_RIGHT_DEFINE) {
        ret->answer.admitted = true;
        return;
    }
    if (right != DPT_RIGHT_NONE) { /* denied, or the key of a token: others may know it */
        (void)snprintf(ret->answer.text, sizeof ret->answer.text,
                       "this machine's key was removed from the server: ask its operator, or move "
                       "machine.key away and use a new token");
        return;
    }
    print_refusal(admission, token, now_s, ret->answer.text);
    if (token == NULL || ret->answer.text[0] != '\0')
        return;
    char token_hex[DPT_KEY_HEX_BYTES], machine_hex[DPT_KEY_HEX_BYTES];
    dpt_key_hex(token_key, token_hex);
    dpt_key_hex(&request->key, machine_hex);
    ret->answer.admitted = ret->is_new = true;
    dpt_admission_print_machine(token->right, &request->key, request->name, token->run,
                                ret->machine_line);
    (void)snprintf(ret->token_line, sizeof ret->token_line, "used %s %s", token_hex, machine_hex);
}
