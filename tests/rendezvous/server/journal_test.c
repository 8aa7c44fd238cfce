/* A server over real sockets with a journal on disk: what it answers after a restart, and that no
 * answer comes before its commit. */
#include "base/fs.h"
#include "rendezvous/server/exit_code.h"
#include "rendezvous/server/turn.h"
#include "rendezvous/store/store.h"
#include "tests/rendezvous/server/transport.h"
#include "tests/tmp.h"

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { YAML_BYTES = 1000, RESEND_MS = 50 };

static char dir[PATH_MAX];

static int setup(void **state)
{
    (void)state;
    return test_make_memory_dir(dir, sizeof dir, "journal") ? 0 : -1;
}

static int teardown(void **state)
{
    struct dpt_err err;
    (void)state;
    assert_int_equal(dpt_fs_remove_tree(dir, &err), DPT_OK);
    return 0;
}

/* Asks for the config of the run; returns its length, 0: the server does not know the run. */
static size_t ask_for_config(struct dpt_client *client, uint64_t counter)
{
    uint8_t buf[512];
    struct dpt_err err;
    Dpt__ServerState *answer = NULL;
    transport_send(client, buf, transport_make_message("x", counter, NULL, buf, sizeof buf));
    const struct dpt_client_event event = transport_expect(client, DPT_CLIENT_MESSAGE);
    assert_int_equal(dpt_message_decode_server_state(event.message, event.bytes, &answer, &err),
                     DPT_OK);
    const size_t bytes = answer->spec != NULL ? strlen(answer->spec->config_yaml) : 0;
    dpt_message_free_server_state(&answer);
    return bytes;
}

static struct dpt_client *connect_to(const struct test_server *server)
{
    struct dpt_client *client = transport_start_client(server->port);
    (void)transport_expect(client, DPT_CLIENT_UP);
    return client;
}

static void run_is_known_after_a_restart(void **state)
{
    (void)state;
    for (int life = 0; life < 3; life++) {
        struct dpt_err err;
        struct dpt_store *store = NULL;
        struct test_server server;
        assert_int_equal(dpt_store_open(dir, &store, &err), DPT_OK);
        const struct dpt_journal journal = dpt_store_journal(store);
        transport_start_with(&server, &journal);
        struct dpt_client *client = connect_to(&server);
        assert_int_equal(ask_for_config(client, 1), life == 0 ? 0 : YAML_BYTES);
        if (life == 0)
            transport_bring_config(client, YAML_BYTES);
        dpt_client_destroy(&client);
        transport_stop_server(&server);
        dpt_store_close(&store);
    }
}

/* Commits fail until `commits` reaches `fails`. */
struct full_disk {
    atomic_uint commits;
    unsigned fails;
};

static enum dpt_status restore_nothing(void *ctx, struct dpt_rdzv *core, struct dpt_err *err)
{
    (void)ctx, (void)core, (void)err;
    return DPT_OK;
}

static enum dpt_status add_nothing(void *ctx, const struct dpt_rdzv_record *record,
                                   struct dpt_err *err)
{
    (void)ctx, (void)record, (void)err;
    return DPT_OK;
}

static enum dpt_status commit_late(void *ctx, struct dpt_err *err)
{
    struct full_disk *disk = ctx;
    return atomic_fetch_add(&disk->commits, 1) < disk->fails
               ? dpt_fail(err, DPT_ENOSPC, "the disk is full")
               : DPT_OK;
}

/* The first answer comes after the commit that succeeds. The answers before it were dropped, and
 * the process sends again, as agents do. */
static void no_answer_before_the_commit(void **state)
{
    (void)state;
    struct full_disk disk = {.fails = 1};
    struct test_server server;
    const struct dpt_journal journal = {
        .ctx = &disk, .restore = restore_nothing, .add = add_nothing, .commit = commit_late};
    transport_start_with(&server, &journal);
    struct dpt_client *client = connect_to(&server);
    uint8_t buf[512];
    struct dpt_client_event event;
    struct dpt_err err;
    for (uint64_t counter = 1; atomic_load(&disk.commits) <= disk.fails; counter++) {
        int fds[DPT_CLIENT_FDS];
        transport_send(client, buf, transport_make_message("x", counter, NULL, buf, sizeof buf));
        while (dpt_client_next(client, &event, &err) == DPT_OK)
            assert_true(event.kind != DPT_CLIENT_MESSAGE ||
                        atomic_load(&disk.commits) > disk.fails);
        dpt_client_fds(client, fds);
        struct pollfd answer = {.fd = fds[0], .events = POLLIN};
        (void)poll(&answer, 1, RESEND_MS);
    }
    assert_int_equal(ask_for_config(client, UINT64_C(1) << 30), 0);
    dpt_client_destroy(&client);
    transport_stop_server(&server);
}

/* Code 2 would say that the options or the journal are wrong. */
static void journal_full_for_too_long_ends_with_code_4(void **state)
{
    (void)state;
    struct dpt_err err;
    struct dpt_store *store = NULL;
    assert_int_equal(dpt_store_open(dir, &store, &err), DPT_OK);
    const struct dpt_journal journal = dpt_store_journal(store);
    struct dpt_turn turn = {.journal = &journal};
    struct dpt_rdzv_record record = {.kind = DPT_RDZV_RECORD_START, .step = -1, .number = 9};
    const struct dpt_rdzv_output out = {.records = &record, .n_records = 1};
    for (int i = 0; i < DPT_STORE_PENDING_MAX; i++)
        assert_int_equal(dpt_turn_add(&turn, &out, &err), DPT_OK);
    const enum dpt_status status = dpt_turn_add(&turn, &out, &err);
    assert_non_null(strstr(err.text, "decisions wait to be written"));
    assert_int_equal(status, DPT_ENOSPC);
    assert_int_equal(dpt_rdzv_exit_code(status), 4);
    dpt_turn_fini(&turn);
    dpt_store_close(&store);
}

static void exit_codes_tell_a_wrong_option_from_a_failure(void **state)
{
    (void)state;
    static const enum dpt_status wrong[] = {DPT_ECONFIG,   DPT_EEXIST,      DPT_ENOENT,
                                            DPT_ECORRUPT,  DPT_EVERSION,    DPT_EREFUSED,
                                            DPT_EOVERFLOW, DPT_EUNSUPPORTED};
    static const enum dpt_status broken[] = {DPT_EIO, DPT_ENOSPC, DPT_ENOMEM};
    assert_int_equal(dpt_rdzv_exit_code(DPT_OK), 0);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_int_equal(dpt_rdzv_exit_code(wrong[i]), 2);
    for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++)
        assert_int_equal(dpt_rdzv_exit_code(broken[i]), 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(run_is_known_after_a_restart, setup, teardown),
        cmocka_unit_test(no_answer_before_the_commit),
        cmocka_unit_test_setup_teardown(journal_full_for_too_long_ends_with_code_4, setup,
                                        teardown),
        cmocka_unit_test(exit_codes_tell_a_wrong_option_from_a_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
