/* A gate admits machines into lists that are long, full, or changed by others. The test is its only
 * thread. */
#include "base/fs.h"
#include "rendezvous/keys/curve.h"
#include "rendezvous/keys/possession.h"
#include "rendezvous/server/gate.h"
#include "rendezvous/server/tokens.h"
#include "tests/logged.h"
#include "tests/tmp.h"

#include <fcntl.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[96];
static struct dpt_key_folder folder;
static struct dpt_gate *gate;

static int setup(void **state)
{
    (void)state;
    struct dpt_err err;
    char keys[128];
    if (!test_make_dir(dir, sizeof dir, "admission"))
        return -1;
    (void)snprintf(keys, sizeof keys, "%s/head", dir);
    return dpt_key_folder_open(keys, &folder, &err) == DPT_OK ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    struct dpt_err err;
    dpt_gate_destroy(&gate);
    return dpt_fs_remove_tree(dir, &err) == DPT_OK ? 0 : -1;
}

static struct dpt_gate *start_gate(void)
{
    struct dpt_gate *made = NULL;
    struct dpt_err err;
    if (dpt_gate_create(folder.path, false, &made, &err) != DPT_OK)
        fail_msg("%s", err.text);
    return made;
}

static struct dpt_issued_token issue(enum dpt_right right, int64_t uses)
{
    const struct dpt_token_order order = {.right = right, .hours = 1, .uses = uses};
    struct dpt_issued_token token;
    struct dpt_err err;
    if (dpt_token_issue(&folder, &order, (int64_t)time(NULL), &token, &err) != DPT_OK)
        fail_msg("%s", err.text);
    return token;
}

/* Appends `n` lines to a file by hand. `format`: of a line, for a number; these are from `first`
 * on. */
static void append_lines(const char *name, const char *format, unsigned n, unsigned first)
{
    struct dpt_err err;
    char path[PATH_MAX];
    assert_int_equal(dpt_fs_join(folder.path, name, path, sizeof path, &err), DPT_OK);
    FILE *file = fopen(path, "ae");
    assert_non_null(file);
    assert_int_equal(fchmod(fileno(file), 0600), 0);
    for (unsigned i = 0; i < n; i++)
        assert_true(fprintf(file, format, first + i) > 0);
    assert_int_equal(fclose(file), 0);
}

/* A list of `n` machines with different keys. */
static void write_machines(unsigned n)
{
    enum { LINE = 6 + 1 + 64 + 1 + 1 + 1 };
    struct dpt_err err;
    char *text = calloc((size_t)n + 1, LINE), *at = text;
    assert_non_null(text);
    for (unsigned i = 0; i < n; i++)
        at += snprintf(at, LINE + 1, "define %08x%056x m\n", i * 2654435761U, i);
    assert_int_equal(dpt_key_folder_replace(&folder, "machines", text, &err), DPT_OK);
    free(text);
}

/* A new machine asks with the token. *ret_key: its key; may be NULL. */
static struct dpt_enroll_answer enroll(struct dpt_gate *by, const struct dpt_issued_token *token,
                                       struct dpt_key *ret_key)
{
    const struct dpt_gate_peer peer = {
        .right = DPT_RIGHT_TOKEN, .key = token->entry.key, .run = ""};
    struct dpt_enroll_request request = {.name = "new"};
    struct dpt_enroll_answer answer;
    struct dpt_key_pair pair;
    struct dpt_err err;
    uint8_t message[DPT_ENROLL_MESSAGE_BYTES_MAX], reply[DPT_ENROLL_MESSAGE_BYTES_MAX];
    assert_int_equal(dpt_curve_draw(&pair, &err), DPT_OK);
    request.key = pair.public_key;
    assert_int_equal(dpt_possession_prove(&request, &pair.secret_key, &dpt_gate_keys(by)->server,
                                          &token->entry.key, &err),
                     DPT_OK);
    const size_t bytes = dpt_enroll_request_encode(&request, message);
    const size_t answer_bytes = dpt_gate_enroll(by, &peer, message, bytes, reply);
    assert_int_equal(dpt_enroll_answer_decode(reply, answer_bytes, &answer, &err), DPT_OK);
    if (ret_key != NULL)
        *ret_key = pair.public_key;
    return answer;
}

static void expect_admitted(struct dpt_gate *by, const struct dpt_issued_token *token,
                            struct dpt_key *ret_key)
{
    const struct dpt_enroll_answer answer = enroll(by, token, ret_key);
    if (!answer.admitted)
        fail_msg("%s", answer.text);
}

static enum dpt_right right_of(const struct dpt_key *key)
{
    struct dpt_gate_peer peer;
    char hex[DPT_KEY_HEX_BYTES];
    dpt_key_hex(key, hex);
    dpt_gate_judge(gate, hex, &peer);
    return peer.right;
}

/* Bytes that this process has read from files. */
static bool read_so_far(uint64_t *ret)
{
    FILE *file = fopen("/proc/self/io", "re");
    const bool found = file != NULL && fscanf(file, "rchar: %" SCNu64, ret) == 1;
    if (file != NULL)
        (void)fclose(file);
    return found;
}

/* With 30,000 machines in the list (2 MB), and a token that has admitted 1,000, a further one costs
 * as much as with none: it reads the last byte of two files, and nothing is read again after it. */
static void admission_reads_no_list(void **state)
{
    (void)state;
    enum { MACHINES = 30000, TIMES = 20, BYTES_MAX = 512 };
    uint64_t before = 0, after = 0;
    struct dpt_key last;
    if (!read_so_far(&before))
        skip();
    write_machines(MACHINES);
    gate = start_gate();
    const struct dpt_issued_token token = issue(DPT_RIGHT_DEFINE, 1000);
    expect_admitted(gate, &token, NULL); /* reads the list of tokens, which is new */
    test_log_begin();
    assert_true(read_so_far(&before));
    for (int i = 0; i < TIMES; i++)
        expect_admitted(gate, &token, &last);
    assert_true(read_so_far(&after));
    test_log_end();
    assert_in_range((after - before) / TIMES, 1, BYTES_MAX);
    assert_int_equal(test_log_count("again: it has changed"), 0);
    assert_int_equal(right_of(&last), DPT_RIGHT_DEFINE);
}

/* What an operator writes between two admissions counts at the next one: a line more, and a line of
 * the same size. */
static void denial_between_admissions_is_noticed(void **state)
{
    (void)state;
    gate = start_gate();
    const struct dpt_issued_token token = issue(DPT_RIGHT_JOIN, 100);
    struct dpt_err err;
    char path[PATH_MAX], line[DPT_ADMISSION_LINE_BYTES];
    assert_int_equal(dpt_fs_join(folder.path, "machines", path, sizeof path, &err), DPT_OK);
    for (int i = 0; i < 9; i++) {
        struct dpt_key denied;
        expect_admitted(gate, &token, &denied);
        assert_int_equal(right_of(&denied), DPT_RIGHT_JOIN);
        if (i % 2 == 0) {
            dpt_admission_print_machine(DPT_RIGHT_DENY, &denied, "b", "", line);
            assert_int_equal(dpt_key_folder_append(&folder, "machines", line, NULL, &err), DPT_OK);
        } else {
            const int fd = open(path, O_WRONLY | O_CLOEXEC);
            const int64_t size = dpt_key_folder_state(&folder, "machines").bytes;
            dpt_admission_print_machine(DPT_RIGHT_DENY, &denied, "new", "", line);
            assert_true(fd >= 0);
            assert_int_equal(dpt_fs_pwrite_all(fd, line, strlen(line),
                                               size - 1 - (int64_t)strlen(line), path, &err),
                             DPT_OK);
            assert_int_equal(close(fd), 0);
        }
        expect_admitted(gate, &token, NULL);
        assert_int_equal(right_of(&denied), DPT_RIGHT_DENY);
    }
}

/* Two servers of a folder admit in turn: each knows the machines of the other, and together they
 * admit as many as the token may. */
static void servers_of_a_folder_follow_each_other(void **state)
{
    (void)state;
    enum { USES = 8 };
    struct dpt_gate *other = start_gate();
    struct dpt_key keys[USES];
    gate = start_gate();
    const struct dpt_issued_token token = issue(DPT_RIGHT_JOIN, USES);
    for (int i = 0; i < USES; i++)
        expect_admitted(i % 2 == 0 ? gate : other, &token, &keys[i]);
    assert_false(enroll(other, &token, NULL).admitted);
    const struct dpt_enroll_answer answer = enroll(gate, &token, NULL);
    assert_false(answer.admitted);
    assert_non_null(strstr(answer.text, "the token is used up (it admits 8 machines)"));
    for (int i = 0; i < USES; i++)
        assert_int_equal(right_of(&keys[i]), DPT_RIGHT_JOIN);
    dpt_gate_destroy(&other);
}

static void expect_text(const char *text, const char *wanted)
{
    if (strstr(text, wanted) == NULL)
        fail_msg("wanted '%s' in: %s", wanted, text);
}

static struct dpt_key_file_state state_of(const char *name)
{
    return dpt_key_folder_state(&folder, name);
}

/* A server that starts again reads the lists, and another operator's command has room. */
static void expect_lists_serve_on(void)
{
    struct dpt_err err;
    struct dpt_admitted_machine machine;
    dpt_gate_destroy(&gate);
    gate = start_gate();
    (void)issue(DPT_RIGHT_JOIN, 1);
    if (dpt_token_deny_machine(&folder, "m", &machine, &err) != DPT_OK)
        fail_msg("%s", err.text);
    dpt_gate_destroy(&gate);
    gate = start_gate();
    assert_int_equal(right_of(&machine.key), DPT_RIGHT_DENY);
}

/* A list of machines with a bad line: no line is added, and the token loses no use. */
static void spoilt_list_of_machines_gets_no_line(void **state)
{
    (void)state;
    struct dpt_err err;
    char *text = NULL;
    gate = start_gate();
    const struct dpt_issued_token token = issue(DPT_RIGHT_JOIN, 1);
    assert_int_equal(dpt_key_folder_read(&folder, "machines", &text, NULL, &err), DPT_OK);
    append_lines("machines", "what is %u\n", 1, 1);
    const struct dpt_key_file_state machines = state_of("machines"), tokens = state_of("tokens");
    expect_text(enroll(gate, &token, NULL).text, "the server cannot write its list of machines");
    assert_true(dpt_key_folder_is_same(machines, state_of("machines")));
    assert_true(dpt_key_folder_is_same(tokens, state_of("tokens")));
    assert_int_equal(dpt_key_folder_replace(&folder, "machines", text, &err), DPT_OK);
    free(text);
    expect_admitted(gate, &token, NULL);
}

/* Half the lines deny keys of other lines: lines count, not keys. */
static void lines_of_machines_end_admissions(void **state)
{
    (void)state;
    enum { LINES = DPT_ADMISSION_MACHINES_MAX - DPT_ADMISSION_SPARE_LINES };
    write_machines(0);
    gate = start_gate(); /* adds its own line */
    dpt_gate_destroy(&gate);
    append_lines("machines", "deny %064x\n", LINES / 2 - 2, 1);
    append_lines("machines", "define %064x\n", LINES / 2 - 2, 1);
    append_lines("machines", "join %064x b\n", 1, LINES);
    append_lines("machines", "join %064x m\n", 1, LINES + 1);
    gate = start_gate();
    const struct dpt_issued_token token = issue(DPT_RIGHT_JOIN, 9);
    expect_admitted(gate, &token, NULL);
    const struct dpt_key_file_state machines = state_of("machines"), tokens = state_of("tokens");
    expect_text(enroll(gate, &token, NULL).text, "'machines' has 64512 lines and 4");
    assert_true(dpt_key_folder_is_same(machines, state_of("machines")));
    assert_true(dpt_key_folder_is_same(tokens, state_of("tokens")));
    expect_lists_serve_on();
}

/* Uses of other tokens have made the list large. */
static void bytes_of_tokens_end_admissions(void **state)
{
    (void)state;
    enum { BYTES = DPT_KEY_FILE_BYTES_MAX - DPT_ADMISSION_SPARE_BYTES };
    write_machines(1);
    const struct dpt_issued_token token = issue(DPT_RIGHT_JOIN, DPT_ADMISSION_NEW_USES_MAX);
    char line[2 * DPT_ADMISSION_LINE_BYTES], hex[DPT_KEY_HEX_BYTES];
    dpt_key_hex(&token.entry.key, hex);
    (void)snprintf(line, sizeof line, "token %064x join %lld %d\nused %064x %%064x\n", 1,
                   (long long)time(NULL) + 99, DPT_ADMISSION_USES_MAX, 1);
    append_lines("tokens", line, 1, 1);
    const size_t bytes = (size_t)state_of("tokens").bytes;
    append_lines("tokens", strchr(line, '\n') + 1,
                 (unsigned)((BYTES - DPT_ADMISSION_LINE_BYTES - bytes) / 135), 1);
    gate = start_gate();
    expect_admitted(gate, &token, NULL);
    const struct dpt_key_file_state machines = state_of("machines"), tokens = state_of("tokens");
    expect_text(enroll(gate, &token, NULL).text, "'tokens' has 8126");
    assert_true(dpt_key_folder_is_same(machines, state_of("machines")));
    assert_true(dpt_key_folder_is_same(tokens, state_of("tokens")));
    expect_lists_serve_on();
}

/* The room of the operator is used, too: no command writes a list that no server can read. */
static void full_lists_are_left_as_they_are(void **state)
{
    (void)state;
    const struct dpt_token_order order = {.right = DPT_RIGHT_JOIN, .hours = 1, .uses = 1};
    struct dpt_gate *none = NULL;
    struct dpt_issued_token token;
    struct dpt_admitted_machine machine;
    struct dpt_err err;
    write_machines(DPT_ADMISSION_MACHINES_MAX - 1);
    append_lines("machines", "join %064x b\n", 1, 1);
    append_lines("tokens", "# %064x\n", DPT_KEY_FILE_BYTES_MAX / 67, 0);
    const struct dpt_key_file_state machines = state_of("machines"), tokens = state_of("tokens");
    assert_int_equal(dpt_token_deny_machine(&folder, "b", &machine, &err), DPT_EOVERFLOW);
    expect_text(err.text,
                "/machines' has 65536 lines, which is the most: delete those of machines");
    assert_int_equal(dpt_gate_create(folder.path, false, &none, &err), DPT_EOVERFLOW);
    expect_text(err.text,
                "/machines' has 65536 lines, which is the most: delete those of machines");
    assert_int_equal(dpt_token_current(&folder, &order, (int64_t)time(NULL), &token, &err),
                     DPT_EOVERFLOW);
    expect_text(err.text, "bytes, and with another line more than the 8388608 that are read: del");
    assert_true(dpt_key_folder_is_same(machines, state_of("machines")));
    assert_true(dpt_key_folder_is_same(tokens, state_of("tokens")));
    append_lines("tokens", "# %064x\n", 1, 0); /* by hand */
    assert_int_equal(dpt_token_current(&folder, &order, (int64_t)time(NULL), &token, &err),
                     DPT_ECONFIG);
    expect_text(err.text, "at most 8388608 are read: delete lines that are not needed");
}

static void expect_revoked(const char *which, const struct dpt_issued_token *wanted)
{
    struct dpt_admission_token token;
    struct dpt_err err;
    if (dpt_token_revoke(&folder, which, &token, &err) != DPT_OK)
        fail_msg("%s", err.text);
    assert_memory_equal(&token.key, &wanted->entry.key, sizeof token.key);
}

/* A token is revoked by its digits or its text, once or twice; others are good. The server's next
 * start prints none that is revoked. */
static void revoked_token_admits_no_machine(void **state)
{
    (void)state;
    const struct dpt_token_order order = {.right = DPT_RIGHT_JOIN, .hours = 1, .uses = 9};
    struct dpt_issued_token current;
    struct dpt_key machine;
    struct dpt_err err;
    char hex[DPT_KEY_HEX_BYTES];
    gate = start_gate();
    const struct dpt_issued_token good = issue(DPT_RIGHT_JOIN, 9), a = issue(DPT_RIGHT_JOIN, 9),
                                  b = issue(DPT_RIGHT_JOIN, 9);
    expect_admitted(gate, &a, &machine);
    expect_admitted(gate, &b, NULL);
    dpt_key_hex(&a.entry.key, hex);
    hex[DPT_KEY_SHORT_DIGITS] = '\0';
    expect_revoked(hex, &a);
    expect_text(enroll(gate, &a, NULL).text, "the token was revoked: make another");
    const struct dpt_key_file_state tokens = state_of("tokens");
    expect_revoked(hex, &a);
    assert_true(dpt_key_folder_is_same(tokens, state_of("tokens")));
    expect_revoked(b.text, &b);
    expect_text(enroll(gate, &b, NULL).text, "the token was revoked: make another");
    expect_admitted(gate, &good, NULL);
    assert_int_equal(right_of(&machine), DPT_RIGHT_JOIN);
    assert_int_equal(dpt_token_current(&folder, &order, (int64_t)time(NULL), &current, &err),
                     DPT_OK);
    assert_string_not_equal(current.text, b.text); /* which was the newest */
}

static void wrong_names_of_tokens_revoke_none(void **state)
{
    (void)state;
    static const struct {
        const char *which, *why;
    } cases[] = {
        {"0000000a", "--revoke 0000000a: no token in '"},
        {"0000000", "a key with these first 8 digits or more"},
        {"", "--revoke : no token in '"},
        {"00000000", "--revoke 00000000: the keys of 2 tokens in '"},
        {"dpt1-abc", "--revoke: "},
    };
    struct dpt_admission_token token;
    struct dpt_err err;
    append_lines("tokens", "token %064x join 99999999 2\n", 2, 1);
    const struct dpt_key_file_state tokens = state_of("tokens");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(dpt_token_revoke(&folder, cases[i].which, &token, &err), DPT_ECONFIG);
        expect_text(err.text, cases[i].why);
    }
    assert_true(dpt_key_folder_is_same(tokens, state_of("tokens")));
}

int main(void)
{
#define CASE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(admission_reads_no_list),
        CASE(denial_between_admissions_is_noticed),
        CASE(servers_of_a_folder_follow_each_other),
        CASE(spoilt_list_of_machines_gets_no_line),
        CASE(lines_of_machines_end_admissions),
        CASE(bytes_of_tokens_end_admissions),
        CASE(full_lists_are_left_as_they_are),
        CASE(revoked_token_admits_no_machine),
        CASE(wrong_names_of_tokens_revoke_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
