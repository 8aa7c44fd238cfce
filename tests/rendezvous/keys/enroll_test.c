/* The messages of an enrolment: each decodes to itself, and each other byte string is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "rendezvous/keys/enroll.h"

#include <string.h>

static void request_is_read_again(void **state)
{
    (void)state;
    static const char *const names[] = {"a", "gpu7.example.org", "machine"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct dpt_enroll_request request = {.key = {{1, 2, [31] = 9}}, .proof = {3, [31] = 4}},
                                  again;
        uint8_t message[DPT_ENROLL_MESSAGE_BYTES_MAX];
        struct dpt_err err;
        dpt_enroll_name(names[i], request.name);
        const size_t bytes = dpt_enroll_request_encode(&request, message);
        assert_int_equal(bytes, 8 + 2 + 32 + 32 + 2 + strlen(names[i]));
        assert_int_equal(dpt_enroll_request_decode(message, bytes, &again, &err), DPT_OK);
        assert_true(dpt_key_equal(&request.key, &again.key));
        assert_memory_equal(request.proof, again.proof, sizeof again.proof);
        assert_string_equal(again.name, names[i]);
    }
}

static void answer_is_read_again(void **state)
{
    (void)state;
    for (int admitted = 0; admitted < 2; admitted++) {
        struct dpt_enroll_answer answer = {.admitted = admitted}, again;
        uint8_t message[DPT_ENROLL_MESSAGE_BYTES_MAX];
        struct dpt_err err;
        memset(answer.text, 'x', sizeof answer.text - 1); /* the longest */
        const size_t bytes = dpt_enroll_answer_encode(&answer, message);
        assert_int_equal(dpt_enroll_answer_decode(message, bytes, &again, &err), DPT_OK);
        assert_int_equal(again.admitted, admitted);
        assert_string_equal(again.text, answer.text);
    }
}

static void other_bytes_are_refused(void **state)
{
    (void)state;
    struct dpt_enroll_request request = {.name = "a"}, ignored;
    struct dpt_enroll_answer answer;
    uint8_t message[DPT_ENROLL_MESSAGE_BYTES_MAX + 1] = {0};
    struct dpt_err err;
    const size_t bytes = dpt_enroll_request_encode(&request, message);
    for (size_t n = 0; n < bytes; n++) /* cut */
        assert_int_equal(dpt_enroll_request_decode(message, n, &ignored, &err), DPT_EPROTO);
    assert_int_equal(dpt_enroll_request_decode(message, bytes + 1, &ignored, &err), DPT_EPROTO);
    assert_int_equal(dpt_enroll_answer_decode(message, bytes, &answer, &err), DPT_EPROTO);
    message[8]++; /* the version */
    assert_int_equal(dpt_enroll_request_decode(message, bytes, &ignored, &err), DPT_EVERSION);
    assert_non_null(strstr(err.text, "version 3, this program version 2"));
    message[8]--;
    static const uint8_t bad_names[] = {0, '\n', ' ', '/', 0x80};
    for (size_t i = 0; i < sizeof bad_names; i++) {
        message[bytes - 1] = bad_names[i];
        assert_int_equal(dpt_enroll_request_decode(message, bytes, &ignored, &err), DPT_EPROTO);
    }
}

static void names_are_made_of_any_text(void **state)
{
    (void)state;
    char name[DPT_ENROLL_NAME_BYTES], longest[200];
    dpt_enroll_name("", name);
    assert_string_equal(name, "machine");
    dpt_enroll_name("a b/c\n\xc3\xa9", name);
    assert_string_equal(name, "a-b-c---");
    memset(longest, 'y', sizeof longest);
    longest[sizeof longest - 1] = '\0';
    dpt_enroll_name(longest, name);
    assert_int_equal(strlen(name), DPT_ENROLL_NAME_BYTES - 1);
}

static void next_key_is_read_again(void **state)
{
    (void)state;
    struct dpt_key key, read = {{0}};
    uint8_t message[DPT_NEXT_KEY_BYTES];
    memset(key.bytes, 7, sizeof key.bytes);
    dpt_next_key_encode(&key, message);
    assert_true(dpt_next_key_decode(message, sizeof message, &read));
    assert_true(dpt_key_equal(&key, &read));
    assert_false(dpt_next_key_decode(message, sizeof message - 1, &read));
    for (size_t i = 0; i < 10; i++) { /* another name or version */
        message[i]++;
        assert_false(dpt_next_key_decode(message, sizeof message, &read));
        message[i]--;
    }
    assert_false(dpt_next_key_decode(message, 0, &read));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(request_is_read_again),   cmocka_unit_test(answer_is_read_again),
        cmocka_unit_test(other_bytes_are_refused), cmocka_unit_test(names_are_made_of_any_text),
        cmocka_unit_test(next_key_is_read_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
