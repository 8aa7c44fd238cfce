/* Strict numbers from text. */
#include "base/parse.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHOWN_BYTES = 60, PORT_MAX = 65535 };

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static const char *skip_digits(const char *p)
{
    while (is_digit(*p))
        p++;
    return p;
}

/* -?(0|[1-9][0-9]*), and no "-0". */
static bool is_integer(const char *text)
{
    const char *digits = text + (*text == '-');
    if (*digits == '0')
        return digits[1] == '\0' && digits == text;
    return is_digit(*digits) && *skip_digits(digits) == '\0';
}

enum dpt_status dpt_parse_i64(const char *text, int64_t min, int64_t max, int64_t *ret_value,
                              struct dpt_err *err)
{
    errno = 0;
    long long value = is_integer(text) ? strtoll(text, NULL, 10) : 0;
    if (!is_integer(text) || errno == ERANGE || value < min || value > max)
        return dpt_fail(err, DPT_EINVAL, "expected an integer from %lld to %lld, got '%.*s'",
                        (long long)min, (long long)max, SHOWN_BYTES, text);
    *ret_value = value;
    return DPT_OK;
}

enum dpt_status dpt_parse_u64(const char *text, uint64_t max, uint64_t *ret_value,
                              struct dpt_err *err)
{
    errno = 0;
    bool good = is_integer(text) && *text != '-';
    unsigned long long value = good ? strtoull(text, NULL, 10) : 0;
    if (!good || errno == ERANGE || value > max)
        return dpt_fail(err, DPT_EINVAL, "expected an integer from 0 to %llu, got '%.*s'",
                        (unsigned long long)max, SHOWN_BYTES, text);
    *ret_value = value;
    return DPT_OK;
}

/* [+-]?(digits[.digits*]|.digits)([eE][+-]?digits)? */
static bool is_number(const char *p)
{
    p += *p == '-' || *p == '+';
    const char *whole = p;
    p = skip_digits(p);
    bool digits = p > whole;
    if (*p == '.') {
        const char *fraction = ++p;
        p = skip_digits(p);
        digits = digits || p > fraction;
    }
    if (!digits)
        return false;
    if (*p == 'e' || *p == 'E') {
        p++;
        p += *p == '-' || *p == '+';
        const char *exponent = p;
        p = skip_digits(p);
        if (p == exponent)
            return false;
    }
    return *p == '\0';
}

enum dpt_status dpt_parse_double(const char *text, double *ret_value, struct dpt_err *err)
{
    if (!is_number(text))
        return dpt_fail(err, DPT_EINVAL, "expected a number, got '%.*s'", SHOWN_BYTES, text);
    errno = 0;
    double value = strtod(text, NULL); /* no program of this repository changes the locale */
    if (errno == ERANGE || !isfinite(value))
        return dpt_fail(err, DPT_EINVAL, "'%.*s' is beyond the range of double precision",
                        SHOWN_BYTES, text);
    *ret_value = value;
    return DPT_OK;
}

void dpt_format_double(double value, char ret_text[DPT_DOUBLE_TEXT_BYTES])
{
    DPT_ASSERT(isfinite(value));
    for (int digits = 1; digits <= 17; digits++) { /* 17 digits are always enough */
        (void)snprintf(ret_text, DPT_DOUBLE_TEXT_BYTES, "%.*g", digits, value);
        if (strtod(ret_text, NULL) == value)
            return;
    }
}

enum dpt_status dpt_split_endpoint(const char *text, struct dpt_endpoint *ret, struct dpt_err *err)
{
    const char *colon = strrchr(text, ':');
    int64_t port;
    if (!colon || colon == text)
        return dpt_fail(err, DPT_EINVAL, "expected HOST:PORT, got '%.*s'", SHOWN_BYTES, text);
    bool bracketed = text[0] == '[' && colon[-1] == ']' && colon - text > 2;
    if (!bracketed && (text[0] == '[' || memchr(text, ':', (size_t)(colon - text))))
        return dpt_fail(err, DPT_EINVAL, "expected HOST:PORT or [IPV6]:PORT, got '%.*s'",
                        SHOWN_BYTES, text);
    if (dpt_parse_i64(colon + 1, 1, PORT_MAX, &port, err) != DPT_OK)
        return dpt_wrap(err, DPT_EINVAL, "port of '%.*s'", SHOWN_BYTES, text);
    const size_t bytes = (size_t)(colon - text) - (bracketed ? 2 : 0);
    if (bytes >= sizeof ret->host)
        return dpt_fail(err, DPT_EINVAL, "the host of '%.*s…' has more than %zu bytes", SHOWN_BYTES,
                        text, sizeof ret->host - 1);
    memcpy(ret->host, text + bracketed, bytes);
    ret->host[bytes] = '\0';
    memcpy(ret->port, colon + 1, strlen(colon + 1) + 1); /* at most five digits */
    return DPT_OK;
}

enum dpt_status dpt_parse_endpoint(const char *text, struct dpt_err *err)
{
    struct dpt_endpoint ignored;
    return dpt_split_endpoint(text, &ignored, err);
}
