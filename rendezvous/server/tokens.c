/* The tokens of a server, in its key folder. */
#include "rendezvous/server/tokens.h"

#include "base/log.h"
#include "base/utc.h"
#include "rendezvous/keys/curve.h"
#include "rendezvous/keys/keyring.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { NS_PER_S = 1000 * 1000 * 1000 };

static const char text_name[] = "token", list_name[] = "tokens", machines_name[] = "machines";

static const char *run_of(const struct dpt_token_order *order)
{
    return order->run != NULL ? order->run : "";
}

static enum dpt_status prune_list(const struct dpt_key_folder *folder, int64_t now_s,
                                  struct dpt_admission_pruned *ret, struct dpt_err *err)
{
    char *text = NULL;
    DPT_TRY(dpt_key_folder_read(folder, list_name, &text, NULL, err));
    char *pruned = malloc(strlen(text) + 1);
    enum dpt_status status = DPT_OK;
    if (pruned == NULL)
        status = dpt_fail_nomem(err, "list of tokens");
    else
        status = dpt_wrap(err, dpt_admission_prune_tokens(text, now_s, pruned, ret, err), "'%s/%s'",
                          folder->path, list_name);
    if (status == DPT_OK && strcmp(text, pruned) != 0)
        status = dpt_key_folder_replace(folder, list_name, pruned, err);
    free(pruned);
    free(text);
    return status;
}

static void warn_of_tokens_ahead(const struct dpt_key_folder *folder,
                                 const struct dpt_admission_pruned *pruned, int64_t now_s)
{
    char now[DPT_UTC_TEXT_BYTES], expires[DPT_UTC_TEXT_BYTES];
    if (pruned->n_ahead == 0)
        return;
    dpt_utc_text(now_s, now);
    dpt_utc_text(pruned->ahead_s, expires);
    dpt_log(DPT_LOG_WARN,
            "'%s/%s': %zu token(s) expire later than a token can that is made now, the last at %s, "
            "and this machine's clock says %s: they admit nobody. If the clock is wrong, set it; "
            "else it was ahead when they were made: remove their lines, and make others (dpt-rdzv "
            "--new-token) for machines that have them",
            folder->path, list_name, pruned->n_ahead, expires, now);
}

/* n: the number of tokens that stay in the list. */
static enum dpt_status issue_token(const struct dpt_key_folder *folder,
                                   const struct dpt_token_order *order, size_t n, int64_t now_s,
                                   struct dpt_issued_token *ret, struct dpt_err *err)
{
    struct dpt_key_pair server, pair;
    struct dpt_token token;
    struct dpt_issued_token issued = {.text = ""};
    char line[DPT_ADMISSION_LINE_BYTES];
    if (n >= DPT_ADMISSION_TOKENS_MAX)
        return dpt_fail(err, DPT_EOVERFLOW,
                        "no token is made: '%s/%s' has %zu tokens that are still good, or expire "
                        "later than a token can that is made now, and at most %d are kept: use one "
                        "that is good, set the clock if it is wrong, or remove lines from that "
                        "file",
                        folder->path, list_name, n, DPT_ADMISSION_TOKENS_MAX);
    DPT_TRY(dpt_keyring_pair(folder, "server.key", &server, err));
    token.server = server.public_key;
    if (getrandom(token.secret, sizeof token.secret, 0) != (ssize_t)sizeof token.secret)
        return dpt_fail_errno(err, errno, "draw a token's secret");
    const struct dpt_key secret_key = dpt_token_secret_key(&token);
    DPT_TRY(dpt_curve_pair(&secret_key, &pair, err));
    issued.entry = (struct dpt_admission_token){.key = pair.public_key,
                                                .right = order->right,
                                                .expires_s = now_s + order->hours * 3600,
                                                .uses = (uint32_t)order->uses};
    (void)snprintf(issued.entry.run, sizeof issued.entry.run, "%s", run_of(order));
    dpt_token_print(&token, issued.text);
    dpt_admission_print_token(&issued.entry, line);
    DPT_TRY(dpt_key_folder_append(folder, list_name, line, NULL, err));
    DPT_TRY(dpt_key_folder_replace(folder, text_name, issued.text, err));
    *ret = issued;
    return DPT_OK;
}

/* Reads the kept token. *ret_found is false if there is none, if it gives another right, or if it
 * admits no machine any more. */
static enum dpt_status find_kept(const struct dpt_key_folder *folder,
                                 const struct dpt_token_order *order, int64_t now_s,
                                 struct dpt_issued_token *ret, bool *ret_found, struct dpt_err *err)
{
    struct dpt_admission list = {0};
    struct dpt_key_pair server, pair;
    struct dpt_token token;
    struct dpt_err damaged;
    char *text = NULL;
    *ret_found = false;
    DPT_TRY(dpt_keyring_pair(folder, "server.key", &server, err));
    DPT_TRY(dpt_key_folder_read(folder, text_name, &text, NULL, err));
    text[strcspn(text, "\n")] = '\0';
    const bool parsed = dpt_token_parse(text, &token, &damaged) == DPT_OK;
    free(text);
    if (!parsed || !dpt_key_equal(&token.server, &server.public_key))
        return DPT_OK; /* a new one is made */
    const struct dpt_key secret_key = dpt_token_secret_key(&token);
    DPT_TRY(dpt_curve_pair(&secret_key, &pair, err));
    DPT_TRY(dpt_key_folder_read(folder, list_name, &text, NULL, err));
    const enum dpt_status status = dpt_admission_read_tokens(&list, text, err);
    free(text);
    for (size_t i = 0; status == DPT_OK && i < list.n_tokens; i++) {
        const struct dpt_admission_token *each = &list.tokens[i];
        if (!dpt_key_equal(&each->key, &pair.public_key) || each->right != order->right ||
            strcmp(each->run, run_of(order)) != 0 ||
            dpt_admission_token_state(each, now_s) != DPT_TOKEN_GOOD)
            continue;
        ret->entry = *each;
        dpt_token_print(&token, ret->text);
        *ret_found = true;
    }
    dpt_admission_fini(&list);
    return dpt_wrap(err, status, "'%s/%s'", folder->path, list_name);
}

/* *ret_ends_s: when the server has its next key, and tokens of the present one admit nobody. */
static enum dpt_status check_next_key(const struct dpt_key_folder *folder, int64_t now_s,
                                      int64_t *ret_ends_s, struct dpt_err *err)
{
    const struct dpt_key_file_state next = dpt_key_folder_state(folder, DPT_KEYRING_NEXT_KEY);
    char at[DPT_UTC_TEXT_BYTES], when[DPT_UTC_TEXT_BYTES + 64] = "as soon as a server runs";
    const int64_t ends_s = next.inode != 0 ? next.modified_ns / NS_PER_S : INT64_MAX;
    if (ends_s == INT64_MAX || ends_s - now_s >= DPT_TOKEN_KEY_LEFT_S) {
        *ret_ends_s = ends_s;
        return DPT_OK;
    }
    dpt_utc_text(ends_s, at);
    if (ends_s > now_s)
        (void)snprintf(when, sizeof when, "at %s, in %lld s", at, (long long)(ends_s - now_s));
    return dpt_fail(err, DPT_EREFUSED,
                    "no token is made: the key '%s/%s' takes the place of the server's key %s, and "
                    "a token of the present key then admits nobody. Make the token (dpt-rdzv "
                    "--new-token) when the log of the server says that it has a new key, or remove "
                    "that file first to keep the present key",
                    folder->path, DPT_KEYRING_NEXT_KEY, when);
}

/* may_keep: the kept token serves, too. */
static enum dpt_status find_or_issue(const struct dpt_key_folder *folder,
                                     const struct dpt_token_order *order, bool may_keep,
                                     int64_t now_s, struct dpt_issued_token *ret,
                                     struct dpt_err *err)
{
    bool found = false;
    int64_t ends_s = 0;
    struct dpt_admission_pruned pruned;
    DPT_TRY(check_next_key(folder, now_s, &ends_s, err));
    DPT_TRY(prune_list(folder, now_s, &pruned, err));
    warn_of_tokens_ahead(folder, &pruned, now_s);
    if (may_keep && pruned.n_staying <= DPT_ADMISSION_TOKENS_MAX)
        DPT_TRY(find_kept(folder, order, now_s, ret, &found, err));
    if (!found)
        DPT_TRY(issue_token(folder, order, pruned.n_staying, now_s, ret, err));
    ret->ends_s = ret->entry.expires_s < ends_s ? ret->entry.expires_s : ends_s;
    return DPT_OK;
}

enum dpt_status dpt_token_issue(const struct dpt_key_folder *folder,
                                const struct dpt_token_order *order, int64_t now_s,
                                struct dpt_issued_token *ret, struct dpt_err *err)
{
    int lock = -1;
    DPT_TRY(dpt_key_folder_lock(folder, &lock, err));
    const enum dpt_status status = find_or_issue(folder, order, false, now_s, ret, err);
    dpt_key_folder_unlock(lock);
    return status;
}

enum dpt_status dpt_token_current(const struct dpt_key_folder *folder,
                                  const struct dpt_token_order *order, int64_t now_s,
                                  struct dpt_issued_token *ret, struct dpt_err *err)
{
    int lock = -1;
    DPT_TRY(dpt_key_folder_lock(folder, &lock, err));
    const enum dpt_status status = find_or_issue(folder, order, true, now_s, ret, err);
    dpt_key_folder_unlock(lock);
    return status;
}

static enum dpt_status draw_next_key(const struct dpt_key_folder *folder, int64_t at_s,
                                     struct dpt_err *err)
{
    static const char unfinished[] = "server.key.new";
    struct dpt_key_pair server, next;
    bool found = false;
    DPT_TRY(dpt_keyring_find(folder, DPT_KEYRING_NEXT_KEY, &next, &found, err));
    if (found)
        return dpt_fail(err, DPT_ECONFIG,
                        "--new-key: '%s/%s' is waiting already to take the place of the server's "
                        "key: a running server does that at the file's time",
                        folder->path, DPT_KEYRING_NEXT_KEY);
    DPT_TRY(dpt_keyring_pair(folder, "server.key", &server, err));
    DPT_TRY(dpt_keyring_pair(folder, unfinished, &next, err)); /* it has no time yet */
    return dpt_key_folder_rename(folder, unfinished, DPT_KEYRING_NEXT_KEY, at_s, err);
}

enum dpt_status dpt_token_new_server_key(const struct dpt_key_folder *folder, int64_t at_s,
                                         struct dpt_err *err)
{
    int lock = -1; /* two that draw at once would announce two keys */
    DPT_TRY(dpt_key_folder_lock(folder, &lock, err));
    const enum dpt_status status = draw_next_key(folder, at_s, err);
    dpt_key_folder_unlock(lock);
    return status;
}

/* The only token of the list that `which` names: its text, or first digits of its key. */
static enum dpt_status find_token(const struct dpt_admission *list, const char *which,
                                  const char *path, struct dpt_admission_token *ret,
                                  struct dpt_err *err)
{
    struct dpt_token token;
    struct dpt_key_pair pair;
    char digits[DPT_KEY_HEX_BYTES], hex[DPT_KEY_HEX_BYTES];
    size_t n = 0;
    (void)snprintf(digits, sizeof digits, "%s", which);
    if (strncmp(which, "dpt1-", 5) == 0) { /* a message does not repeat a token */
        DPT_TRY(dpt_wrap(err, dpt_token_parse(which, &token, err), "--revoke"));
        const struct dpt_key secret_key = dpt_token_secret_key(&token);
        DPT_TRY(dpt_curve_pair(&secret_key, &pair, err));
        dpt_key_hex(&pair.public_key, digits);
    }
    for (size_t i = 0; i < list->n_tokens && strlen(digits) >= DPT_KEY_SHORT_DIGITS; i++) {
        dpt_key_hex(&list->tokens[i].key, hex);
        if (strncmp(hex, digits, strlen(digits)) != 0)
            continue;
        *ret = list->tokens[i];
        n++;
    }
    if (n == 1)
        return DPT_OK;
    if (n > 1)
        return dpt_fail(err, DPT_ECONFIG,
                        "--revoke %s: the keys of %zu tokens in '%s/tokens' begin so; give more "
                        "digits",
                        digits, n, path);
    return dpt_fail(err, DPT_ECONFIG,
                    "--revoke %s: no token in '%s/tokens' has a key with these first %d digits or "
                    "more. One that has left the list admits nobody; a server of another user or "
                    "folder has another list: name its folder with --key-dir, as its user",
                    digits, path, DPT_KEY_SHORT_DIGITS);
}

static enum dpt_status revoke_token(const struct dpt_key_folder *folder, const char *which,
                                    struct dpt_admission_token *ret, struct dpt_err *err)
{
    struct dpt_admission list = {0};
    char *text = NULL;
    DPT_TRY(dpt_key_folder_read(folder, list_name, &text, NULL, err));
    char *revoked = malloc(strlen(text) + DPT_ADMISSION_LINE_BYTES);
    enum dpt_status status = revoked != NULL ? dpt_admission_read_tokens(&list, text, err)
                                             : dpt_fail_nomem(err, "list of tokens");
    status = dpt_wrap(err, status, "'%s/%s'", folder->path, list_name);
    if (status == DPT_OK)
        status = find_token(&list, which, folder->path, ret, err);
    if (status == DPT_OK)
        status = dpt_admission_revoke_token(text, &ret->key, revoked, err);
    if (status == DPT_OK && strcmp(text, revoked) != 0)
        status = dpt_key_folder_replace(folder, list_name, revoked, err);
    dpt_admission_fini(&list);
    free(revoked);
    free(text);
    return status;
}

enum dpt_status dpt_token_revoke(const struct dpt_key_folder *folder, const char *which,
                                 struct dpt_admission_token *ret, struct dpt_err *err)
{
    int lock = -1;
    DPT_TRY(dpt_key_folder_lock(folder, &lock, err));
    const enum dpt_status status = revoke_token(folder, which, ret, err);
    dpt_key_folder_unlock(lock);
    return status;
}

static bool is_called(const struct dpt_admitted_machine *machine, const char *which)
{
    char hex[DPT_KEY_HEX_BYTES];
    const size_t digits = strlen(which);
    dpt_key_hex(&machine->key, hex);
    return strcmp(machine->name, which) == 0 ||
           (digits >= DPT_KEY_SHORT_DIGITS && strncmp(hex, which, digits) == 0);
}

/* The only machine that is called so and is not denied yet. `path`: of the key folder. */
static enum dpt_status find_machine(const struct dpt_admission *list, const char *which,
                                    const char *path, struct dpt_admitted_machine *ret,
                                    struct dpt_err *err)
{
    size_t n = 0, n_denied = 0;
    for (size_t i = 0; i < list->n_machines; i++) {
        if (!is_called(&list->machines[i], which))
            continue;
        if (list->machines[i].right == DPT_RIGHT_DENY) {
            n_denied++;
            continue;
        }
        *ret = list->machines[i];
        n++;
    }
    if (n == 1)
        return DPT_OK;
    if (n > 1)
        return dpt_fail(err, DPT_ECONFIG,
                        "--deny %.70s: %zu machines in '%s/machines' are called so; give the first "
                        "%d digits of the key in place of the name",
                        which, n, path, DPT_KEY_SHORT_DIGITS);
    if (n_denied > 0)
        return dpt_fail(err, DPT_ECONFIG, "--deny %.70s: it is denied already, in '%s/machines'",
                        which, path);
    return dpt_fail(err, DPT_ECONFIG,
                    "--deny %.70s: no machine in '%s/machines' has this name or a key with these "
                    "first %d digits or more; a server of another user or folder has another "
                    "list: name its folder with --key-dir, as its user",
                    which, path, DPT_KEY_SHORT_DIGITS);
}

static enum dpt_status deny_machine(const struct dpt_key_folder *folder, const char *which,
                                    struct dpt_admitted_machine *ret, struct dpt_err *err)
{
    struct dpt_admission list = {0};
    char *text = NULL, line[DPT_ADMISSION_LINE_BYTES];
    DPT_TRY(dpt_key_folder_read(folder, machines_name, &text, NULL, err));
    enum dpt_status status = dpt_admission_read_machines(&list, text, err);
    free(text);
    status = dpt_wrap(err, status, "'%s/%s'", folder->path, machines_name);
    if (status == DPT_OK)
        status = find_machine(&list, which, folder->path, ret, err);
    if (status == DPT_OK)
        status = dpt_admission_check_room(&list, folder->path, err);
    dpt_admission_fini(&list);
    DPT_TRY(status);
    dpt_admission_print_machine(DPT_RIGHT_DENY, &ret->key, ret->name, "", line);
    return dpt_key_folder_append(folder, machines_name, line, NULL, err);
}

enum dpt_status dpt_token_deny_machine(const struct dpt_key_folder *folder, const char *which,
                                       struct dpt_admitted_machine *ret, struct dpt_err *err)
{
    int lock = -1; /* a server that admits machines might take the room of the line */
    DPT_TRY(dpt_key_folder_lock(folder, &lock, err));
    const enum dpt_status status = deny_machine(folder, which, ret, err);
    dpt_key_folder_unlock(lock);
    return status;
}
