/* The checkpoint writer on disks that fail or are slow, and where the right to write is lost before
 * the rename. */
#include "tests/worker/train/saver_stage.h"

#include "base/clock.h"
#include "base/fs.h"
#include "base/log.h"
#include "checkpoint/fault.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>
#include <semaphore.h>
#include <stdio.h>
#include <string.h>

/* What the rank reports about its newest attempt; `why` "": it succeeded. */
static void expect_reported(struct saver_stage *s, int64_t step, const char *why)
{
    const struct dpt_report *report = dpt_link_edit(s->link);
    const int64_t said = report->state.unsaved_step;
    const uint64_t generation = report->state.unsaved_generation;
    char text[DPT_PROTO_TEXT_BYTES];
    (void)snprintf(text, sizeof text, "%s", report->state.unsaved_why);
    dpt_link_publish(s->link, false);
    assert_int_equal(said, step);
    assert_int_equal(generation, step > 0 ? GENERATION : 0);
    if (strstr(text, why) == NULL || (why[0] == '\0') != (text[0] == '\0'))
        fail_msg("wanted '%s' in: %s", why, text);
}

static void disks_that_fail(void **state)
{
    (void)state;
    struct saver_stage s;
    struct dpt_err err;
    saver_stage_begin(&s, COLLECT_MS);
    atomic_store(&s.agent.grant, STEP);
    /* A file where the folder should be. */
    const char *dir = in_root("file");
    assert_int_equal(dpt_fs_write_file_atomic(dir, "x", 1, &err), DPT_OK);
    saver_stage_save_part(&s, dir, 0, 1);
    dpt_saver_wait_written(s.saver); /* also after a failure */
    assert_int_not_equal(saver_stage_wait(&s, &err), DPT_OK);
    assert_non_null(strstr(err.text, "step 5"));
    assert_non_null(strstr(err.text, dir));
    expect_reported(&s, STEP, "Not a directory");
    /* A file system that takes nothing (for root, too). */
    saver_stage_save_part(&s, "/proc/dpt", 0, 1);
    assert_int_not_equal(saver_stage_wait(&s, &err), DPT_OK);
    expect_reported(&s, STEP, "'/proc/dpt'");
    saver_stage_save_part(&s, "/proc/dpt", 1, 2);
    assert_int_not_equal(saver_stage_wait(&s, &err), DPT_OK);
    /* The folder goes while the grant is awaited. */
    dir = in_root("gone");
    saver_stage_withdraw_grant(&s);
    atomic_store(&s.asked, 0);
    saver_stage_save_part(&s, dir, 0, 1);
    saver_stage_await_question(&s);
    assert_int_equal(dpt_fs_remove_tree(dir, &err), DPT_OK);
    atomic_store(&s.agent.grant, STEP);
    assert_int_not_equal(saver_stage_wait(&s, &err), DPT_OK);
    assert_int_not_equal(err.status, DPT_EABORTED);
    assert_int_equal(newest_checkpoint(dir), -1);
    /* And then it works again. */
    saver_stage_save_part(&s, dir, 0, 1);
    assert_int_equal(saver_stage_wait(&s, &err), DPT_OK);
    assert_int_equal(newest_checkpoint(dir), STEP);
    expect_reported(&s, 0, "");
    saver_stage_end(&s);
}

static sem_t disk;

static int wait_for_disk(enum dpt_fault_op op, const char *path)
{
    (void)path;
    if (op == DPT_FAULT_FSYNC) {
        while (sem_wait(&disk) != 0)
            assert_int_equal(errno, EINTR);
        assert_int_equal(sem_post(&disk), 0);
    }
    return 0;
}

/* The tensors are free as soon as they were read: training does not wait for the disk. */
static void a_slow_disk(void **state)
{
    (void)state;
    struct saver_stage s;
    struct dpt_err err;
    saver_stage_begin(&s, COLLECT_MS);
    const char *dir = in_root("slow");
    assert_int_equal(dpt_fs_mkdirs(dir, &err), DPT_OK); /* else it is made durable first */
    assert_int_equal(sem_init(&disk, 0, 0), 0);
    dpt_fault_hook = wait_for_disk;
    atomic_store(&s.agent.grant, STEP);
    saver_stage_save_part(&s, dir, 0, 1);
    dpt_saver_wait_written(s.saver);
    assert_true(dpt_saver_busy(s.saver));
    assert_int_equal(newest_checkpoint(dir), -1);
    assert_int_equal(sem_post(&disk), 0);
    assert_int_equal(saver_stage_wait(&s, &err), DPT_OK);
    assert_int_equal(newest_checkpoint(dir), STEP);
    dpt_fault_hook = NULL;
    assert_int_equal(sem_destroy(&disk), 0);
    saver_stage_end(&s);
}

static struct saver_stage *stopped; /* whose node is stopped while it syncs the manifest; */
static bool lost_lease; /* and may not write any more when it goes on; else it lost its grant */
static sem_t synced;

static int stop_in_manifest(enum dpt_fault_op op, const char *path)
{
    if (op != DPT_FAULT_FSYNC || strstr(path, "MANIFEST.json") == NULL)
        return 0;
    int64_t deadline = dpt_now_ms() + SOON_MS;
    atomic_store(lost_lease ? &stopped->agent.lease_ms : &stopped->agent.grant, -1);
    while (lost_lease ? dpt_link_may_write(stopped->link)
                      : dpt_link_granted(stopped->link, GENERATION, STEP))
        assert_true(dpt_now_ms() < deadline);
    assert_int_equal(sem_post(&synced), 0);
    return 0;
}

/* The permission to commit is asked at the rename: a permission before the sync of the manifest
 * does not count. */
static void a_right_lost_before_the_rename(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct saver_stage s;
        struct dpt_err err;
        saver_stage_begin(&s, COLLECT_MS);
        const char *dir = in_root(i == 0 ? "lease-lost" : "grant-lost");
        assert_int_equal(sem_init(&synced, 0, 0), 0);
        stopped = &s;
        lost_lease = i == 0;
        dpt_fault_hook = stop_in_manifest;
        atomic_store(&s.agent.grant, STEP);
        saver_stage_save_part(&s, dir, 0, 1);
        while (sem_wait(&synced) != 0)
            assert_int_equal(errno, EINTR);
        if (lost_lease) /* else it waits for the agent's next word */
            saver_stage_give_up_generation(&s);
        assert_int_equal(saver_stage_wait(&s, &err), DPT_EABORTED);
        dpt_fault_hook = NULL;
        assert_int_equal(entries_in(dir), 0);
        expect_reported(&s, 0, ""); /* the next generation saves */
        assert_int_equal(sem_destroy(&synced), 0);
        saver_stage_end(&s);
    }
}

static const char *claimed; /* folder that another start of the run takes over meanwhile */

static int take_over_in_manifest(enum dpt_fault_op op, const char *path)
{
    struct dpt_claim_record other = saver_stage_claim.record;
    struct dpt_err err;
    if (op == DPT_FAULT_FSYNC && strstr(path, "MANIFEST.json") != NULL) {
        other.token[0] ^= 1;
        assert_int_equal(dpt_claim_take(claimed, saver_stage_claim.number + 1, &other, &err),
                         DPT_OK);
    }
    return 0;
}

/* A folder that was taken over before the rename gets no checkpoint of its former owner. */
static void a_folder_lost_before_the_rename(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct saver_stage s;
        struct dpt_err err;
        claimed = in_root(i == 0 ? "folder-held" : "folder-lost");
        saver_stage_claim.number = 3;
        saver_stage_claim.record.lease_ms = 1000;
        dpt_claim_describe_self(&saver_stage_claim.record);
        (void)snprintf(saver_stage_claim.record.run, sizeof saver_stage_claim.record.run, "run");
        (void)snprintf(saver_stage_claim.record.token, sizeof saver_stage_claim.record.token,
                       "0123");
        assert_int_equal(dpt_fs_mkdirs(claimed, &err), DPT_OK);
        assert_int_equal(
            dpt_claim_take(claimed, saver_stage_claim.number, &saver_stage_claim.record, &err),
            DPT_OK);
        saver_stage_begin(&s, COLLECT_MS);
        dpt_fault_hook = i == 0 ? NULL : take_over_in_manifest;
        atomic_store(&s.agent.grant, STEP);
        saver_stage_save_part(&s, claimed, 0, 1);
        assert_int_equal(saver_stage_wait(&s, &err), i == 0 ? DPT_OK : DPT_EREFUSED);
        if (i == 1)
            assert_non_null(strstr(err.text, "was taken over by a worker of run run (host "));
        dpt_fault_hook = NULL;
        assert_int_equal(newest_checkpoint(claimed), i == 0 ? STEP : -1);
        saver_stage_end(&s);
    }
    saver_stage_claim.number = 0;
}

int main(void)
{
    dpt_log_set_level(DPT_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(disks_that_fail),
        cmocka_unit_test(a_slow_disk),
        cmocka_unit_test(a_right_lost_before_the_rename),
        cmocka_unit_test(a_folder_lost_before_the_rename),
    };
    return cmocka_run_group_tests_name("saver faults", tests, make_fast_root, remove_root);
}
