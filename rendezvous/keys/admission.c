/* The lists of machines and tokens, and the decisions that follow from them. */
#include "rendezvous/keys/internal.h"

#include "base/array.h"
#include "base/parse.h"
#include "rendezvous/keys/folder.h"
#include "rendezvous/keys/list.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MACHINE_WORDS = 3, TOKEN_WORDS = 5 }; /* without RUN */
enum {
    USED_LINE_BYTES = sizeof "used  \n" - 1 + 2 * (DPT_KEY_HEX_BYTES - 1),
    TOKEN_LINE_BYTES = sizeof "token  define 100000000000 65536 \n" + DPT_KEY_HEX_BYTES +
                       DPT_ADMISSION_RUN_BYTES /* at most */
};
_Static_assert((DPT_ADMISSION_NEW_USES_MAX + DPT_ADMISSION_SPENT_LINES_MAX) * USED_LINE_BYTES +
                       DPT_ADMISSION_TOKENS_MAX * TOKEN_LINE_BYTES <=
                   DPT_KEY_FILE_BYTES_MAX - DPT_ADMISSION_SPARE_BYTES,
               "the list of tokens has room for all uses of a new token");
#define EXPIRES_S_MAX INT64_C(100000000000)

static const char *const right_texts[DPT_RIGHT_COUNT] = {"none",  "deny", "spent",
                                                         "token", "join", "define"};

const char *dpt_right_text(enum dpt_right right)
{
    return right_texts[right];
}

void dpt_admission_fini(struct dpt_admission *admission)
{
    free(admission->machines);
    free(admission->tokens);
    *admission = (struct dpt_admission){0};
}

/* ---- words ---- */

/* A word that is a whole key. */
static bool is_key(const char *word, struct dpt_key *ret)
{
    return strlen(word) == DPT_KEY_HEX_BYTES - 1 && dpt_key_parse(word, ret);
}

/* The right of the word; NONE: the word is none of deny, join and define. */
static enum dpt_right right_of(const char *word)
{
    static const enum dpt_right written[] = {DPT_RIGHT_DENY, DPT_RIGHT_JOIN, DPT_RIGHT_DEFINE};
    for (size_t i = 0; i < sizeof written / sizeof written[0]; i++)
        if (strcmp(word, right_texts[written[i]]) == 0)
            return written[i];
    return DPT_RIGHT_NONE;
}

bool dpt_admission_is_run(const char *name)
{
    static const char characters[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    const size_t bytes = strlen(name);
    return bytes > 0 && bytes < DPT_ADMISSION_RUN_BYTES && name[0] != '.' &&
           strspn(name, characters) == bytes;
}

/* Takes the word at `place`, if there is one. False: no run may have this name. */
static bool take_run(const struct dpt_key_list_line *line, size_t place,
                     char ret[DPT_ADMISSION_RUN_BYTES])
{
    const char *word = line->n_words > place ? line->words[place] : "";
    if (word[0] != '\0' && !dpt_admission_is_run(word))
        return false;
    (void)snprintf(ret, DPT_ADMISSION_RUN_BYTES, "%.63s", word);
    return true;
}

/* ---- machines ---- */

static int compare_machines(const void *a, const void *b)
{
    const struct dpt_admitted_machine *x = a, *y = b;
    const int keys = memcmp(x->key.bytes, y->key.bytes, sizeof x->key.bytes);
    return keys != 0 ? keys : (x->line > y->line) - (x->line < y->line);
}

/* Index of the first machine with this key or a higher one: the place of the key in the list. */
static size_t machine_place(const struct dpt_admission *admission, const struct dpt_key *key)
{
    size_t low = 0, high = admission->n_machines;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const struct dpt_key *at = &admission->machines[middle].key;
        if (memcmp(at->bytes, key->bytes, sizeof key->bytes) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

const struct dpt_admitted_machine *dpt_admission_find_machine(const struct dpt_admission *admission,
                                                              const struct dpt_key *key)
{
    const size_t place = machine_place(admission, key);
    const bool found =
        place < admission->n_machines && dpt_key_equal(&admission->machines[place].key, key);
    return found ? &admission->machines[place] : NULL;
}

static bool parse_machine(const struct dpt_key_list_line *line, struct dpt_admitted_machine *ret)
{
    *ret = (struct dpt_admitted_machine){.line = line->number};
    if (line->n_words < 2)
        return false;
    ret->right = right_of(line->words[0]);
    dpt_enroll_name(line->n_words > 2 ? line->words[2] : "", ret->name);
    return ret->right != DPT_RIGHT_NONE && is_key(line->words[1], &ret->key) &&
           take_run(line, MACHINE_WORDS, ret->run);
}

/* Sorts by key, and keeps of each key only the last line. Returns the number of keys. */
static size_t keep_last_lines(struct dpt_admitted_machine *machines, size_t n)
{
    size_t kept = 0;
    if (n > 1)
        qsort(machines, n, sizeof *machines, compare_machines);
    for (size_t i = 0; i < n; i++) {
        if (kept > 0 && dpt_key_equal(&machines[kept - 1].key, &machines[i].key))
            kept--;
        machines[kept++] = machines[i];
    }
    return kept;
}

static enum dpt_status fail_machine(size_t number, struct dpt_err *err)
{
    return dpt_fail(err, DPT_ECONFIG,
                    "line %zu: expected define, join or deny, then a key of 64 hexadecimal digits, "
                    "then a name, then a run or nothing",
                    number);
}

enum dpt_status dpt_admission_read_machines(struct dpt_admission *admission, const char *text,
                                            struct dpt_err *err)
{
    const char *begin = text;
    struct dpt_admitted_machine *machines = NULL;
    size_t n = 0, room = 0;
    struct dpt_key_list_line line = {0};
    enum dpt_status status = DPT_OK;
    while (*text != '\0' && status == DPT_OK) {
        const bool fits = dpt_key_list_read_line(&text, &line);
        if (fits && line.n_words == 0)
            continue;
        if (n == DPT_ADMISSION_MACHINES_MAX)
            status = dpt_fail(err, DPT_ECONFIG,
                              "line %zu: more than %d lines: delete those of machines that are "
                              "gone",
                              line.number, DPT_ADMISSION_MACHINES_MAX);
        else if (!dpt_array_reserve(&machines, &room, n + 1, sizeof *machines))
            status = dpt_fail_nomem(err, "list of machines");
        else if (!fits || !parse_machine(&line, &machines[n++]))
            status = fail_machine(line.number, err);
    }
    if (status != DPT_OK) {
        free(machines);
        return status;
    }
    free(admission->machines);
    admission->machines = machines;
    admission->n_machines = keep_last_lines(machines, n);
    admission->machines_room = room;
    admission->machine_lines = n;
    admission->machine_bytes = (size_t)(text - begin);
    return DPT_OK;
}

enum dpt_status dpt_admission_check_room(const struct dpt_admission *admission, const char *folder,
                                         struct dpt_err *err)
{
    if (admission->machine_lines < DPT_ADMISSION_MACHINES_MAX)
        return DPT_OK;
    return dpt_fail(err, DPT_EOVERFLOW,
                    "'%s/machines' has %zu lines, which is the most: delete those of machines that "
                    "are gone, then try again",
                    folder, admission->machine_lines);
}

enum dpt_status dpt_admission_add_machine(struct dpt_admission *admission, const char *line,
                                          struct dpt_err *err)
{
    struct dpt_key_list_line words = {0};
    struct dpt_admitted_machine machine;
    const size_t bytes = strlen(line) + 1;
    if (!dpt_key_list_read_line(&line, &words) || !parse_machine(&words, &machine))
        return fail_machine(words.number, err);
    machine.line = 0;
    const size_t place = machine_place(admission, &machine.key), n = admission->n_machines;
    if (dpt_admission_find_machine(admission, &machine.key) == NULL) {
        if (!dpt_array_reserve(&admission->machines, &admission->machines_room, n + 1,
                               sizeof machine))
            return dpt_fail_nomem(err, "list of machines");
        memmove(&admission->machines[place + 1], &admission->machines[place],
                (n - place) * sizeof machine);
        admission->n_machines++;
    }
    admission->machines[place] = machine;
    admission->machine_lines++;
    admission->machine_bytes += bytes;
    return DPT_OK;
}

const char *dpt_admission_run(const struct dpt_admission *admission, const struct dpt_key *key)
{
    const struct dpt_admitted_machine *machine = dpt_admission_find_machine(admission, key);
    return machine != NULL ? machine->run : "";
}

void dpt_admission_print_machine(enum dpt_right right, const struct dpt_key *key, const char *name,
                                 const char *run, char ret[DPT_ADMISSION_LINE_BYTES])
{
    char hex[DPT_KEY_HEX_BYTES];
    dpt_key_hex(key, hex);
    (void)snprintf(ret, DPT_ADMISSION_LINE_BYTES, "%s %s %.63s%s%.63s", dpt_right_text(right), hex,
                   name, run[0] != '\0' ? " " : "", run);
}

/* ---- tokens ---- */

struct dpt_admission_token *dpt_admission_find_token(struct dpt_admission_token *tokens, size_t n,
                                                     const struct dpt_key *key)
{
    for (size_t i = n; i-- > 0;)
        if (dpt_key_equal(&tokens[i].key, key))
            return &tokens[i];
    return NULL;
}

/* "token KEY RIGHT EXPIRES USES [RUN]" */
static bool parse_token(const struct dpt_key_list_line *line, struct dpt_admission_token *ret)
{
    int64_t uses = 0;
    struct dpt_err ignored;
    *ret = (struct dpt_admission_token){0};
    if (line->n_words < TOKEN_WORDS || !is_key(line->words[1], &ret->key) ||
        !take_run(line, TOKEN_WORDS, ret->run))
        return false;
    ret->right = right_of(line->words[2]);
    if ((ret->right != DPT_RIGHT_JOIN && ret->right != DPT_RIGHT_DEFINE) ||
        dpt_parse_i64(line->words[3], 0, EXPIRES_S_MAX, &ret->expires_s, &ignored) != DPT_OK ||
        dpt_parse_i64(line->words[4], 1, DPT_ADMISSION_USES_MAX, &uses, &ignored) != DPT_OK)
        return false;
    ret->uses = (uint32_t)uses;
    return true;
}

/* Tokens that a list is read into. */
struct tokens {
    struct dpt_admission_token *items;
    size_t n, room, most;
};

/* A use of a token that has left the list is ignored. */
static enum dpt_status take_token_line(struct tokens *tokens, const struct dpt_key_list_line *line,
                                       struct dpt_err *err)
{
    struct dpt_key key, machine;
    struct dpt_admission_token token;
    const char *word = line->words[0];
    if (strcmp(word, "used") == 0 && line->n_words > 2 && is_key(line->words[1], &key) &&
        is_key(line->words[2], &machine)) {
        struct dpt_admission_token *of = dpt_admission_find_token(tokens->items, tokens->n, &key);
        if (of != NULL)
            of->used++;
        return DPT_OK;
    }
    if (strcmp(word, "token") != 0 || !parse_token(line, &token))
        return dpt_fail(err, DPT_ECONFIG,
                        "line %zu: expected 'token KEY RIGHT EXPIRES USES [RUN]' or 'used KEY "
                        "MACHINE'",
                        line->number);
    if (tokens->n == tokens->most)
        return dpt_fail(err, DPT_ECONFIG,
                        "line %zu: more than %zu tokens: delete the lines of old "
                        "ones",
                        line->number, tokens->most);
    if (dpt_admission_find_token(tokens->items, tokens->n, &token.key) != NULL)
        return dpt_fail(err, DPT_ECONFIG, "line %zu: this token is listed twice", line->number);
    if (!dpt_array_reserve(&tokens->items, &tokens->room, tokens->n + 1, sizeof *tokens->items))
        return dpt_fail_nomem(err, "list of tokens");
    tokens->items[tokens->n++] = token;
    return DPT_OK;
}

/* Reads at most tokens->most tokens into a list that is empty; frees it if that fails. */
static enum dpt_status read_tokens(const char *text, struct tokens *tokens, struct dpt_err *err)
{
    struct dpt_key_list_line line = {0};
    enum dpt_status status = DPT_OK;
    while (*text != '\0' && status == DPT_OK) {
        if (!dpt_key_list_read_line(&text, &line))
            status = dpt_fail(err, DPT_ECONFIG, "line %zu: a word is too long", line.number);
        else if (line.n_words > 0)
            status = take_token_line(tokens, &line, err);
    }
    if (status != DPT_OK)
        free(tokens->items);
    return status;
}

enum dpt_status dpt_admission_read_tokens(struct dpt_admission *admission, const char *text,
                                          struct dpt_err *err)
{
    struct tokens tokens = {.most = DPT_ADMISSION_TOKENS_MAX};
    DPT_TRY(read_tokens(text, &tokens, err));
    free(admission->tokens);
    admission->tokens = tokens.items;
    admission->n_tokens = tokens.n;
    admission->token_bytes = strlen(text);
    return DPT_OK;
}

static bool always_stays(const struct dpt_admission_token *token, int64_t now_s)
{
    const enum dpt_token_state state = dpt_admission_token_state(token, now_s);
    return state == DPT_TOKEN_GOOD || (state == DPT_TOKEN_AHEAD && token->used < token->uses);
}

static void count_token(const struct dpt_admission_token *token, int64_t now_s,
                        struct dpt_admission_pruned *ret)
{
    const enum dpt_token_state state = dpt_admission_token_state(token, now_s);
    ret->n_staying += always_stays(token, now_s);
    ret->n_ahead += state == DPT_TOKEN_AHEAD;
    if (state == DPT_TOKEN_AHEAD && token->expires_s > ret->ahead_s)
        ret->ahead_s = token->expires_s;
}

/* Marks the spent tokens that leave the list by `uses` 0, and counts the others. The oldest ones
 * leave first if there is no room for all. Where the clock may be wrong, no token is lost that is
 * good by the right one: one that is ahead stays like a good one, and the uses of one that has
 * expired with uses left take no room. */
static void choose_kept(struct tokens *tokens, int64_t now_s, struct dpt_admission_pruned *ret)
{
    const int64_t kept_s = (int64_t)DPT_ADMISSION_SPENT_DAYS * 24 * 3600;
    size_t lines = 0, n_spent = 0;
    *ret = (struct dpt_admission_pruned){.n_staying = 0};
    for (size_t i = 0; i < tokens->n; i++)
        count_token(&tokens->items[i], now_s, ret);
    for (size_t i = tokens->n; i-- > 0;) {
        struct dpt_admission_token *each = &tokens->items[i];
        const bool is_recent =
            now_s < each->expires_s + kept_s || tokens->n - i <= DPT_ADMISSION_SPENT_NEWEST;
        const size_t n_lines = each->used < each->uses ? 0 : (size_t)1 + each->used;
        if (always_stays(each, now_s))
            continue;
        if (!is_recent || ret->n_staying + n_spent + 1 >= DPT_ADMISSION_TOKENS_MAX ||
            lines + n_lines > DPT_ADMISSION_SPENT_LINES_MAX) {
            each->uses = 0;
            continue;
        }
        n_spent++;
        lines += n_lines;
    }
}

enum dpt_status dpt_admission_prune_tokens(const char *text, int64_t now_s, char *ret_text,
                                           struct dpt_admission_pruned *ret, struct dpt_err *err)
{
    struct tokens tokens = {.most = SIZE_MAX};
    struct dpt_key_list_line line = {0};
    DPT_TRY(read_tokens(text, &tokens, err));
    choose_kept(&tokens, now_s, ret);
    while (*text != '\0') {
        const char *from = text;
        struct dpt_key key;
        (void)dpt_key_list_read_line(&text, &line); /* every word fits, see above */
        const struct dpt_admission_token *of =
            line.n_words > 1 && is_key(line.words[1], &key)
                ? dpt_admission_find_token(tokens.items, tokens.n, &key)
                : NULL;
        if (line.n_words > 0 && (of == NULL || of->uses == 0))
            continue;
        memcpy(ret_text, from, (size_t)(text - from));
        ret_text += text - from;
    }
    *ret_text = '\0';
    free(tokens.items);
    return DPT_OK;
}

enum dpt_status dpt_admission_revoke_token(const char *text, const struct dpt_key *key,
                                           char *ret_text, struct dpt_err *err)
{
    struct tokens tokens = {.most = SIZE_MAX};
    struct dpt_key_list_line line = {0};
    struct dpt_admission_token token;
    struct dpt_key of;
    DPT_TRY(read_tokens(text, &tokens, err));
    free(tokens.items);
    while (*text != '\0') {
        const char *from = text;
        (void)dpt_key_list_read_line(&text, &line); /* every word fits, see above */
        if (line.n_words == 0 || !is_key(line.words[1], &of) || !dpt_key_equal(&of, key)) {
            memcpy(ret_text, from, (size_t)(text - from));
            ret_text += text - from;
        } else if (parse_token(&line, &token)) {
            token.expires_s = 0;
            dpt_admission_print_token(&token, ret_text);
            ret_text += strlen(ret_text);
            *ret_text++ = '\n';
        }
    }
    *ret_text = '\0';
    return DPT_OK;
}

void dpt_admission_print_token(const struct dpt_admission_token *token,
                               char ret[DPT_ADMISSION_LINE_BYTES])
{
    char hex[DPT_KEY_HEX_BYTES];
    dpt_key_hex(&token->key, hex);
    (void)snprintf(ret, DPT_ADMISSION_LINE_BYTES, "token %s %s %" PRId64 " %u%s%.63s", hex,
                   dpt_right_text(token->right), token->expires_s, (unsigned)token->uses,
                   token->run[0] != '\0' ? " " : "", token->run);
}

enum dpt_token_state dpt_admission_token_state(const struct dpt_admission_token *token,
                                               int64_t now_s)
{
    const int64_t longest_s = (int64_t)DPT_ADMISSION_TOKEN_HOURS_MAX * 3600 + DPT_ADMISSION_CLOCK_S;
    if (now_s >= token->expires_s)
        return DPT_TOKEN_EXPIRED;
    if (token->expires_s - now_s > longest_s)
        return DPT_TOKEN_AHEAD;
    return token->used < token->uses ? DPT_TOKEN_GOOD : DPT_TOKEN_USED_UP;
}

void dpt_admission_count_use(struct dpt_admission *admission, const struct dpt_key *token_key)
{
    struct dpt_admission_token *token =
        dpt_admission_find_token(admission->tokens, admission->n_tokens, token_key);
    if (token != NULL)
        token->used++;
    admission->token_bytes += USED_LINE_BYTES;
}
