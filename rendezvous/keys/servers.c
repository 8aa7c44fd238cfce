/* Reads and rewrites the file `servers`. */
#include "rendezvous/keys/servers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char servers_name[] = "servers", retired_word[] = "retired ", next_word[] = " next";
enum {
    HEX = DPT_KEY_HEX_BYTES - 1,
    RETIRED = sizeof retired_word - 1,
    NEXT = sizeof next_word - 1,
    NEW_LINES_BYTES = 2048 /* of the lines that one change adds, NUL included */
};

/* ---- lines ---- */

enum line_kind { LINE_OTHER, LINE_KEY, LINE_NEXT, LINE_RETIRED };

struct line {
    enum line_kind kind;
    const char *text; /* without a NUL */
    size_t bytes;     /* without the newline */
    struct dpt_key key, later;
    const char *endpoint; /* of KEY and NEXT */
    size_t endpoint_bytes;
};

/* True: a key begins at `at`, and `after` follows it. */
static bool read_key(const char *at, size_t bytes, char after, struct dpt_key *ret)
{
    return bytes >= HEX && dpt_key_parse(at, ret) &&
           (bytes == HEX ? after == '\0' : at[HEX] == after);
}

static void classify_line(struct line *line)
{
    const char *text = line->text;
    const size_t bytes = line->bytes;
    struct dpt_key key, later;
    if (bytes > RETIRED && strncmp(text, retired_word, RETIRED) == 0) {
        if (read_key(text + RETIRED, bytes - RETIRED, ' ', &key) &&
            bytes == RETIRED + HEX + 1 + HEX &&
            read_key(text + RETIRED + HEX + 1, HEX, '\0', &later)) {
            line->kind = LINE_RETIRED;
            line->key = key;
            line->later = later;
        }
        return;
    }
    if (bytes < HEX + 2 || !read_key(text, bytes, ' ', &key))
        return; /* a comment, or a line of a later version */
    line->kind = LINE_KEY;
    line->key = key;
    line->endpoint = text + HEX + 1;
    line->endpoint_bytes = bytes - HEX - 1;
    if (line->endpoint_bytes > NEXT &&
        strncmp(line->endpoint + line->endpoint_bytes - NEXT, next_word, NEXT) == 0) {
        line->kind = LINE_NEXT;
        line->endpoint_bytes -= NEXT;
    }
}

/* Takes the line that begins at *at, and moves *at to the next one. False: there is none. */
static bool next_line(const char **at, struct line *ret)
{
    if (**at == '\0')
        return false;
    *ret = (struct line){.text = *at, .bytes = strcspn(*at, "\n")};
    *at += ret->bytes + ((*at)[ret->bytes] == '\n');
    classify_line(ret);
    return true;
}

static bool is_of(const struct line *line, const char *endpoint)
{
    return (line->kind == LINE_KEY || line->kind == LINE_NEXT) &&
           line->endpoint_bytes == strlen(endpoint) &&
           strncmp(line->endpoint, endpoint, line->endpoint_bytes) == 0;
}

static size_t count_lines(const char *text, enum line_kind kind)
{
    struct line line;
    size_t n = 0;
    while (next_line(&text, &line))
        n += line.kind == kind;
    return n;
}

/* ---- what the file says ---- */

void dpt_servers_find(const char *text, const char *endpoint, struct dpt_noted_server *ret)
{
    struct line line;
    *ret = (struct dpt_noted_server){.found = false};
    while (next_line(&text, &line)) {
        if (!is_of(&line, endpoint))
            continue;
        if (line.kind == LINE_KEY) {
            ret->found = true;
            ret->key = line.key;
        } else {
            ret->has_next = true;
            ret->next = line.key;
        }
    }
    ret->has_next = ret->found && ret->has_next && !dpt_key_equal(&ret->key, &ret->next);
}

bool dpt_servers_has_key(const char *text, const struct dpt_key *key)
{
    struct line line;
    while (next_line(&text, &line))
        if (line.kind == LINE_KEY && dpt_key_equal(&line.key, key))
            return true;
    return false;
}

struct dpt_key dpt_servers_latest(const char *text, const struct dpt_key *key)
{
    struct line line;
    struct dpt_key latest = *key;
    while (next_line(&text, &line))
        if (line.kind == LINE_RETIRED && dpt_key_equal(&line.key, key))
            latest = line.later;
    return latest;
}

enum dpt_status dpt_servers_read(const struct dpt_key_folder *folder, char **ret_text,
                                 struct dpt_err *err)
{
    return dpt_key_folder_read(folder, servers_name, ret_text, NULL, err);
}

/* ---- changes ---- */

struct change {
    const char *endpoint;
    const struct dpt_key *key;     /* that the server has */
    const struct dpt_key *next;    /* NULL: none */
    const struct dpt_key *earlier; /* that it has no more; NULL: the change retires none */
};

/* True: the line stays; *ret_later: with `key` in place of the earlier one. */
static bool line_stays(const struct line *line, const struct change *change, bool *ret_later)
{
    const struct dpt_key *earlier = change->earlier;
    const bool is_earlier = earlier != NULL && dpt_key_equal(&line->key, earlier);
    *ret_later = false;
    switch (line->kind) {
    case LINE_KEY:
        *ret_later = is_earlier;
        return !is_of(line, change->endpoint);
    case LINE_NEXT: /* of another name of the server: its key is in force now */
        return !is_of(line, change->endpoint) && !is_earlier &&
               (earlier == NULL || !dpt_key_equal(&line->key, change->key));
    case LINE_RETIRED:
        *ret_later = earlier != NULL && dpt_key_equal(&line->later, earlier);
        return !is_earlier && !dpt_key_equal(&line->key, change->key);
    case LINE_OTHER:
        break;
    }
    return true;
}

/* Appends the line with `hex` in place of its key, or of its later key; NULL: as it is. */
static char *copy_line(char *to, const struct line *line, const char *hex)
{
    memcpy(to, line->text, line->bytes);
    if (hex != NULL)
        memcpy(to + (line->kind == LINE_RETIRED ? RETIRED + HEX + 1 : 0), hex, HEX);
    to[line->bytes] = '\n';
    return to + line->bytes + 1;
}

static size_t excess_over(size_t n, size_t most)
{
    return n > most ? n - most : 0;
}

/* The lines that the change adds. */
static void print_new(const struct change *change, char ret[NEW_LINES_BYTES])
{
    char key[DPT_KEY_HEX_BYTES], other[DPT_KEY_HEX_BYTES];
    dpt_key_hex(change->key, key);
    int n = snprintf(ret, NEW_LINES_BYTES, "%s %s\n", key, change->endpoint);
    if (change->next != NULL) {
        dpt_key_hex(change->next, other);
        n += snprintf(ret + n, NEW_LINES_BYTES - (size_t)n, "%s %s%s\n", other, change->endpoint,
                      next_word);
    }
    if (change->earlier != NULL) {
        dpt_key_hex(change->earlier, other);
        (void)snprintf(ret + n, NEW_LINES_BYTES - (size_t)n, "%s%s %s\n", retired_word, other, key);
    }
}

/* Writes the changed text. `ret` has room for the text, a newline that its last line may lack, and
 * NEW_LINES_BYTES. */
static void rewrite_servers(const char *text, const struct change *change, char *ret)
{
    char hex[DPT_KEY_HEX_BYTES];
    struct line line;
    /* The oldest lines beyond the bounds go, as if the new ones were there already. */
    size_t drop[] = {
        [LINE_OTHER] = 0,
        [LINE_KEY] = excess_over(count_lines(text, LINE_KEY) + 1, DPT_SERVERS_ENDPOINTS_MAX),
        [LINE_NEXT] = excess_over(count_lines(text, LINE_NEXT) + 1, DPT_SERVERS_ENDPOINTS_MAX),
        [LINE_RETIRED] = excess_over(count_lines(text, LINE_RETIRED) + 1, DPT_SERVERS_RETIRED_MAX)};
    dpt_key_hex(change->key, hex);
    while (next_line(&text, &line)) {
        bool later = false;
        if (drop[line.kind] > 0)
            drop[line.kind]--;
        else if (line_stays(&line, change, &later))
            ret = copy_line(ret, &line, later ? hex : NULL);
    }
    print_new(change, ret);
}

static enum dpt_status change_locked(const struct dpt_key_folder *folder,
                                     const struct change *change, struct dpt_err *err)
{
    char *text = NULL;
    DPT_TRY(dpt_servers_read(folder, &text, err));
    const struct dpt_key latest = dpt_servers_latest(text, change->key);
    enum dpt_status status = DPT_OK;
    if (dpt_key_equal(&latest, change->key)) { /* else a later change is noted already */
        char *changed = calloc(1, strlen(text) + 1 + NEW_LINES_BYTES);
        if (changed == NULL) {
            status = dpt_fail_nomem(err, "file '%s'", servers_name);
        } else {
            rewrite_servers(text, change, changed);
            status = dpt_key_folder_replace(folder, servers_name, changed, err);
        }
        free(changed);
    }
    free(text);
    return status;
}

static enum dpt_status change_file(const struct dpt_key_folder *folder, const struct change *change,
                                   struct dpt_err *err)
{
    int lock = -1;
    DPT_ASSERT(2 * strlen(change->endpoint) + 8 * HEX < NEW_LINES_BYTES);
    DPT_TRY(dpt_key_folder_lock(folder, &lock, err));
    const enum dpt_status status = change_locked(folder, change, err);
    dpt_key_folder_unlock(lock);
    return status;
}

enum dpt_status dpt_servers_note(const struct dpt_key_folder *folder, const char *endpoint,
                                 const struct dpt_key *key, const struct dpt_key *next,
                                 struct dpt_err *err)
{
    const struct change change = {.endpoint = endpoint, .key = key, .next = next};
    return change_file(folder, &change, err);
}

enum dpt_status dpt_servers_retire(const struct dpt_key_folder *folder, const char *endpoint,
                                   const struct dpt_key *earlier, const struct dpt_key *key,
                                   struct dpt_err *err)
{
    const struct change change = {.endpoint = endpoint, .key = key, .earlier = earlier};
    return change_file(folder, &change, err);
}
