/* Cuts the text of a trace (trace_text.h). The scan follows strings and brackets only; jansson
 * parses the parts. */
#include "worker/report/trace_text.h"

#include "base/array.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

enum {
    CHUNK_BYTES = 1 << 18,
    EVENT_BYTES_MAX = 16 << 20,
    HEAD_BYTES_MAX = 64 << 20,
    KEY_BYTES = 16,
    DEPTH_MAX = 2000 /* of brackets, as jansson's */
};

struct text {
    char *bytes;
    size_t n, room;
};

struct scan {
    const char *path;
    const struct report_text_sink *sink;
    struct text head, event;
    int64_t at;       /* bytes of text before the next one */
    int64_t n_events; /* complete ones */
    int depth;        /* of open brackets */
    bool in_string, escaped;
    char key[KEY_BYTES]; /* the newest string at depth 1, cut */
    size_t key_n;
    bool is_value;  /* at depth 1, after a colon */
    bool in_events; /* inside the brackets of traceEvents */
    bool has_events;
    bool ended; /* the object is complete, or the head as far as wanted */
};

static enum dpt_status add_byte(const struct scan *s, struct text *text, char byte,
                                size_t bytes_max, struct dpt_err *err)
{
    if (text->n + 2 > text->room && !dpt_array_reserve(&text->bytes, &text->room, text->n + 2, 1))
        return dpt_fail_nomem(err, "text of '%s'", s->path);
    if (text->n == bytes_max)
        return dpt_fail(err, DPT_EPROTO, "'%s' is not a trace: %s has more than %zu bytes", s->path,
                        text == &s->head ? "its head" : "an event", bytes_max);
    text->bytes[text->n++] = byte;
    text->bytes[text->n] = '\0';
    return DPT_OK;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static enum dpt_status refuse_byte(const struct scan *s, const char *expected, char got,
                                   struct dpt_err *err)
{
    return dpt_fail(err, DPT_EPROTO,
                    "'%s' is not a trace: expected %s at byte %lld, got a byte of value %d",
                    s->path, expected, (long long)s->at, (int)(unsigned char)got);
}

/* Follows strings. True: the byte belongs to a string, or is one of its quotes. */
static bool scan_string(struct scan *s, char c)
{
    if (!s->in_string) {
        s->in_string = c == '"';
        s->escaped = false;
        if (s->in_string && s->depth == 1)
            s->key_n = 0;
        return s->in_string;
    }
    if (!s->escaped && c == '"') {
        s->in_string = false;
        return true;
    }
    s->escaped = !s->escaped && c == '\\';
    if (s->depth == 1 && s->key_n < KEY_BYTES)
        s->key[s->key_n++] = c;
    return true;
}

static bool key_is_events(const struct scan *s)
{
    static const char key[] = "traceEvents";
    return s->key_n == sizeof key - 1 && memcmp(s->key, key, sizeof key - 1) == 0;
}

/* A byte within the array of events. */
static enum dpt_status scan_event_byte(struct scan *s, char c, struct dpt_err *err)
{
    const bool is_text = scan_string(s, c);
    if (!is_text && s->depth == 2 && c != '{') {
        if (c == ']') {
            s->in_events = false;
            s->depth = 1;
            return add_byte(s, &s->head, c, HEAD_BYTES_MAX, err);
        }
        return is_blank(c) || c == ',' ? DPT_OK : refuse_byte(s, "an event", c, err);
    }
    if (is_text && s->depth == 2)
        return refuse_byte(s, "an event", c, err);
    DPT_TRY(add_byte(s, &s->event, c, EVENT_BYTES_MAX, err));
    if (is_text)
        return DPT_OK;
    if (c == '{' || c == '[')
        s->depth++;
    else if (c == '}' || c == ']')
        s->depth--;
    if (s->depth > DEPTH_MAX)
        return refuse_byte(s, "fewer brackets", c, err);
    if (s->depth > 2)
        return DPT_OK;
    const size_t bytes = s->event.n;
    s->event.n = 0;
    return s->sink->take(s->sink->ctx, s->event.bytes, bytes, s->n_events++, err);
}

static enum dpt_status enter_events(struct scan *s, struct dpt_err *err)
{
    s->has_events = s->in_events = true;
    if (s->sink)
        return DPT_OK;
    s->ended = true;
    DPT_TRY(add_byte(s, &s->head, ']', HEAD_BYTES_MAX, err));
    return add_byte(s, &s->head, '}', HEAD_BYTES_MAX, err);
}

/* A bracket, colon or other byte of the head that is in no string. */
static enum dpt_status scan_head_mark(struct scan *s, char c, struct dpt_err *err)
{
    if (s->depth == 1 && c == ':')
        s->is_value = true;
    if (s->depth == 1 && c == ',')
        s->is_value = false;
    if (c == '{' || c == '[') {
        if (++s->depth == 2 && s->is_value && !s->has_events && key_is_events(s))
            return c == '[' ? enter_events(s, err) : refuse_byte(s, "an array of events", c, err);
    } else if (c == '}' || c == ']') {
        s->ended = --s->depth == 0;
    }
    return s->depth > DEPTH_MAX ? refuse_byte(s, "fewer brackets", c, err) : DPT_OK;
}

static enum dpt_status scan_byte(struct scan *s, char c, struct dpt_err *err)
{
    if (s->in_events)
        return scan_event_byte(s, c, err);
    if (s->ended)
        return is_blank(c) ? DPT_OK : refuse_byte(s, "the end", c, err);
    if (s->depth == 0) {
        if (is_blank(c))
            return DPT_OK;
        if (c != '{')
            return refuse_byte(s, "a JSON object", c, err);
        s->depth = 1;
        return add_byte(s, &s->head, c, HEAD_BYTES_MAX, err);
    }
    const bool is_value_string = s->depth == 1 && s->is_value;
    char kept[KEY_BYTES];
    const size_t kept_n = s->key_n;
    memcpy(kept, s->key, sizeof kept);
    const bool is_text = scan_string(s, c);
    if (is_value_string) { /* a value is not a key */
        memcpy(s->key, kept, sizeof kept);
        s->key_n = kept_n;
    }
    DPT_TRY(add_byte(s, &s->head, c, HEAD_BYTES_MAX, err));
    return is_text ? DPT_OK : scan_head_mark(s, c, err);
}

static enum dpt_status scan_file(struct scan *s, gzFile file, struct dpt_err *err)
{
    char *chunk = malloc(CHUNK_BYTES);
    enum dpt_status status = chunk ? DPT_OK : dpt_fail_nomem(err, "chunk of '%s'", s->path);
    int n = 0;
    while (status == DPT_OK && !(s->ended && !s->sink) &&
           (n = gzread(file, chunk, CHUNK_BYTES)) > 0)
        for (int i = 0; i < n && status == DPT_OK && !(s->ended && !s->sink); i++, s->at++)
            status = scan_byte(s, chunk[i], err);
    free(chunk);
    if (status != DPT_OK || (s->ended && !s->sink))
        return status;
    int code = Z_OK;
    const char *text = gzerror(file, &code);
    if (code == Z_ERRNO)
        return dpt_fail_errno(err, errno, "read '%s'", s->path);
    if (n < 0 && code != Z_BUF_ERROR)
        return dpt_fail(err, DPT_ECORRUPT, "'%s' is damaged after %lld bytes of text: %s", s->path,
                        (long long)s->at, text);
    if (s->at == 0 && code != Z_BUF_ERROR)
        return dpt_fail(err, DPT_ECORRUPT, "'%s' is empty", s->path);
    if (!s->ended || code == Z_BUF_ERROR)
        return dpt_fail(err, DPT_ECORRUPT,
                        "'%s' is truncated: it ends after %lld bytes of text and %lld events; copy "
                        "it again, or leave it out",
                        s->path, (long long)s->at, (long long)s->n_events);
    return DPT_OK;
}

static enum dpt_status open_trace(const char *path, gzFile *ret_file, struct dpt_err *err)
{
    struct stat info;
    /* A pipe without a writer does not block the open. */
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return dpt_fail_errno(err, errno, "open '%s'", path);
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        (void)close(fd);
        return dpt_fail(err, DPT_EIO, "'%s' is not a regular file", path);
    }
    *ret_file = gzdopen(fd, "rb");
    if (*ret_file)
        return DPT_OK;
    (void)close(fd);
    return dpt_fail_nomem(err, "reader of '%s'", path);
}

enum dpt_status report_text_read(const char *path, const struct report_text_sink *sink,
                                 char **ret_head, struct dpt_err *err)
{
    struct scan s = {.path = path, .sink = sink};
    gzFile file;
    DPT_TRY(open_trace(path, &file, err));
    enum dpt_status status = scan_file(&s, file, err);
    (void)gzclose_r(file);
    if (status == DPT_OK && !s.has_events)
        status =
            dpt_fail(err, DPT_EPROTO, "'%s' is not a trace: it has no array traceEvents", path);
    free(s.event.bytes);
    if (status == DPT_OK)
        *ret_head = s.head.bytes;
    else
        free(s.head.bytes);
    return status;
}
