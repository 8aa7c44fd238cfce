/* How many of its similar cases a test runs. With DPT_TEST_EVERY=N it is only each N-th world,
 * strategy or seed. tests/run sets it; tests/run --full, CI and ctest alone run all. */
#ifndef DPT_TESTS_EVERY_H
#define DPT_TESTS_EVERY_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A sanitizer makes everything several times slower, and shows threads and memory, not results. */
#ifdef __SANITIZE_THREAD__
enum { SANITIZED_EVERY = 3 };
#elif defined(__SANITIZE_ADDRESS__)
enum { SANITIZED_EVERY = 2 };
#else
enum { SANITIZED_EVERY = 1 };
#endif

/* DPT_TEST_EVERY, from 1 to 9; without it 1, which means all. */
static inline uint8_t dpt_test_asked_every(void)
{
    const char *text = getenv("DPT_TEST_EVERY");
    if (!text)
        return 1;
    if (strlen(text) != 1 || *text < '1' || *text > '9') {
        (void)fprintf(stderr, "DPT_TEST_EVERY is '%s', not a number from 1 to 9\n", text);
        exit(EXIT_FAILURE);
    }
    return (uint8_t)(*text - '0');
}

/* For tests that run fewer cases under a sanitizer in any case. */
static inline uint8_t dpt_test_every(void)
{
    return (uint8_t)(SANITIZED_EVERY * dpt_test_asked_every());
}

/* For tests that run fewer cases only under a sanitizer: at most every second or third one. */
static inline uint8_t dpt_test_sanitized_every(void)
{
    const uint8_t asked = dpt_test_asked_every();
    if (SANITIZED_EVERY == 1)
        return 1;
    return asked > SANITIZED_EVERY ? asked : SANITIZED_EVERY;
}

#endif
