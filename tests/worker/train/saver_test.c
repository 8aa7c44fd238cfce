/* The checkpoint writer under a played agent: granted, refused, cancelled at each stage, fenced, on
 * disks that fail. */
#include "tests/checkpoint/fixture.h"
#include "tests/worker/train/agent_end.h"
#include "worker/train/save/saver_thread.h"

#include "base/claim.h"
#include "base/clock.h"
#include "base/fs.h"
#include "base/log.h"
#include "checkpoint/fault.h"
#include "worker/agent/rank_protocol.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { GENERATION = 7, STEP = 5, HEARTBEAT_MS = 10, COLLECT_MS = 40000, SOON_MS = 20000 };

/* What the agent says with every heartbeat. */
struct agent {
    int fd;
    pthread_t thread;
    atomic_bool stop, silent;
    atomic_int command;
    _Atomic uint64_t generation;
    _Atomic int64_t grant;
    _Atomic int64_t lease_ms; /* from now */
};

struct stage {
    struct agent agent;
    struct dpt_link *link;
    struct dpt_saver *saver;
    struct model model;
    /* Grants asked for: the last one, and how many times (withdrawn ones too). */
    _Atomic int64_t wanted;
    atomic_int asked, withdrawn;
};

static void *play_agent(void *arg)
{
    struct agent *a = arg;
    while (!atomic_load(&a->stop)) {
        if (!atomic_load(&a->silent))
            (void)agent_end_send(a->fd, (Dpt__RankCommand)atomic_load(&a->command),
                                 atomic_load(&a->generation), atomic_load(&a->grant),
                                 dpt_now_ms() + atomic_load(&a->lease_ms), false);
        Dpt__RankToAgent *said = agent_end_receive(a->fd, HEARTBEAT_MS);
        dpt_message_free_rank_to_agent(&said);
    }
    return NULL;
}

static void ignore_prepare(void *ctx, uint64_t generation)
{
    (void)ctx;
    (void)generation;
}

static void ignore_closed(void *ctx)
{
    (void)ctx;
}

enum { STAGES_MAX = 2 };
static struct stage *stages[STAGES_MAX]; /* those that have begun */

void __real_dpt_link_publish_grant_wanted(struct dpt_link *link, int64_t step);
void __wrap_dpt_link_publish_grant_wanted(struct dpt_link *link, int64_t step);

void __wrap_dpt_link_publish_grant_wanted(struct dpt_link *link, int64_t step)
{
    struct stage *s = stages[0] && stages[0]->link == link ? stages[0] : stages[1];
    if (step >= 0) {
        atomic_store(&s->wanted, step);
        atomic_fetch_add(&s->asked, 1);
    } else {
        atomic_fetch_add(&s->withdrawn, 1);
    }
    __real_dpt_link_publish_grant_wanted(link, step);
}

/* Of the folder, for stages that begin from now on; number 0: none. */
static struct dpt_claim_seen claim;

static void begin(struct stage *s, int collect_ms)
{
    struct dpt_err err;
    int fds[2];
    *s = (struct stage){.wanted = -1};
    stages[stages[0] ? 1 : 0] = s;
    assert_int_equal(dpt_rank_link_pair(fds, &err), DPT_OK);
    s->agent.fd = fds[0];
    atomic_store(&s->agent.command, DPT__RANK_COMMAND__COMMAND_GO);
    atomic_store(&s->agent.generation, GENERATION);
    atomic_store(&s->agent.grant, -1);
    atomic_store(&s->agent.lease_ms, AGENT_END_LEASE_MS);
    const struct dpt_link_options link = {.fd = fds[1],
                                          .heartbeat_ms = HEARTBEAT_MS,
                                          .on_interrupt = ignore_prepare,
                                          .on_closed = ignore_closed,
                                          .ctx = s};
    const struct dpt_link_rank rank = {.spawn = 1, .shm_addr = "", .tcp_addr = ""};
    if (dpt_link_create(&link, &rank, &s->link, &err) != DPT_OK)
        fail_msg("%s", err.text);
    dpt_link_edit(s->link)->state.generation = GENERATION;
    dpt_link_publish(s->link, false);
    assert_int_equal(pthread_create(&s->agent.thread, NULL, play_agent, &s->agent), 0);
    if (dpt_link_wait(s->link, -1, &err) != DPT_OK) /* there is a lease */
        fail_msg("%s", err.text);
    const struct dpt_saver_options saver = {.link = s->link,
                                            .collect_timeout_ms = collect_ms,
                                            .claim_number = claim.number,
                                            .claim_token = claim.record.token};
    if (dpt_saver_create(&saver, &s->saver, &err) != DPT_OK)
        fail_msg("%s", err.text);
    model_init(&s->model, STEP, 1);
}

static void end_agent(struct stage *s)
{
    atomic_store(&s->agent.stop, true);
    assert_int_equal(pthread_join(s->agent.thread, NULL), 0);
    assert_int_equal(close(s->agent.fd), 0);
    s->agent.fd = -1;
}

static void end(struct stage *s)
{
    int64_t start = dpt_now_ms();
    dpt_saver_destroy(&s->saver);
    assert_null(s->saver);
    assert_true(dpt_now_ms() - start < SOON_MS);
    if (s->agent.fd >= 0)
        end_agent(s);
    dpt_link_destroy(&s->link);
    model_fini(&s->model);
    stages[stages[0] == s ? 0 : 1] = NULL;
}

static void save_part(struct stage *s, const char *dir, int writer, int n_writers)
{
    const struct dpt_checkpoint_spec spec = model_spec(&s->model, dir, STEP, writer, n_writers);
    dpt_saver_begin(s->saver, &spec);
}

static enum dpt_status end_of_save(struct stage *s, struct dpt_err *err)
{
    int64_t start = dpt_now_ms();
    enum dpt_status status = dpt_saver_wait(s->saver, err);
    assert_true(dpt_now_ms() - start < SOON_MS);
    assert_false(dpt_saver_busy(s->saver));
    return status;
}

static bool has_saved(struct dpt_saver *saver)
{
    const struct dpt_saved saved = dpt_saver_saved(saver);
    return saved.n > 0 && saved.generation == GENERATION && saved.step == STEP;
}

static void await_question(struct stage *s)
{
    int64_t deadline = dpt_now_ms() + SOON_MS;
    while (atomic_load(&s->asked) == 0) {
        assert_true(dpt_now_ms() < deadline);
        (void)poll(NULL, 0, 1); /* tidy: pause of a bounded poll */
    }
}

/* Until the rank has heard it: a save must not find the grant of the last one. */
static void withdraw_grant(struct stage *s)
{
    int64_t deadline = dpt_now_ms() + SOON_MS;
    atomic_store(&s->agent.grant, -1);
    while (dpt_link_granted(s->link, GENERATION, STEP)) {
        assert_true(dpt_now_ms() < deadline);
        (void)poll(NULL, 0, 1); /* tidy: pause of a bounded poll */
    }
}

static int64_t newest(const char *dir)
{
    int64_t step = -7;
    struct dpt_err err;
    assert_int_equal(dpt_checkpoint_newest(dir, &step, &err), DPT_OK);
    return step;
}

static int entries(const char *dir)
{
    DIR *d = opendir(dir);
    if (!d)
        return 0;
    int n = -2;
    while (readdir(d))
        n++;
    (void)closedir(d);
    return n;
}

static void a_granted_checkpoint_is_whole(void **state)
{
    (void)state;
    struct stage s;
    struct dpt_err err;
    begin(&s, COLLECT_MS);
    const char *dir = in_root("granted");
    assert_int_equal(dpt_saver_wait(s.saver, &err), DPT_OK); /* there was none yet */
    dpt_saver_wait_written(s.saver);
    assert_false(has_saved(s.saver));
    save_part(&s, dir, 0, 1);
    dpt_saver_wait_written(s.saver);
    for (int i = 0; i < s.model.tensors[0].dim[0]; i++)
        s.model.tensors[0].param[i] = -1; /* the weights are free again */
    await_question(&s);
    assert_int_equal(atomic_load(&s.wanted), STEP);
    assert_true(dpt_saver_busy(s.saver));
    assert_int_equal(newest(dir), -1);
    atomic_store(&s.agent.grant, STEP);
    assert_int_equal(end_of_save(&s, &err), DPT_OK);
    assert_true(has_saved(s.saver));
    assert_int_equal(atomic_load(&s.withdrawn), 1);
    if (model_check(dir, STEP, 1, &err) != DPT_OK)
        fail_msg("%s", err.text);
    assert_int_equal(entries(dir), 1);
    end(&s);
}

static void give_up_generation(struct stage *s)
{
    atomic_store(&s->agent.generation, GENERATION + 1);
    atomic_store(&s->agent.command, DPT__RANK_COMMAND__COMMAND_PREPARE);
}

/* What ends an attempt that waits for its grant; each must leave nothing behind. */
enum stop { BY_CANCEL, BY_PREPARE, BY_DESTROY, BY_AGENT, BY_SILENT_AGENT, STOP_COUNT };

static void a_grant_that_does_not_come(void **state)
{
    (void)state;
    for (enum stop how = 0; how < STOP_COUNT; how++) {
        struct stage s;
        struct dpt_err err;
        begin(&s, COLLECT_MS);
        char name[32];
        (void)snprintf(name, sizeof name, "withheld-%d", (int)how);
        const char *dir = in_root(name);
        atomic_store(&s.agent.grant, STEP - 1); /* another's */
        save_part(&s, dir, 0, 1);
        await_question(&s);
        if (how == BY_PREPARE)
            give_up_generation(&s);
        if (how == BY_SILENT_AGENT)
            atomic_store(&s.agent.silent, true);
        if (how == BY_CANCEL || how == BY_SILENT_AGENT)
            dpt_saver_cancel(s.saver);
        if (how == BY_AGENT)
            end_agent(&s);
        if (how == BY_DESTROY) {
            dpt_saver_destroy(&s.saver);
        } else {
            assert_int_equal(end_of_save(&s, &err), DPT_EABORTED);
            assert_int_equal(dpt_saver_wait(s.saver, &err), DPT_OK); /* told once */
            assert_false(has_saved(s.saver));
        }
        assert_int_equal(atomic_load(&s.withdrawn), 1);
        assert_int_equal(entries(dir), 0);
        end(&s);
    }
}

static void a_part_that_does_not_come(void **state)
{
    (void)state;
    struct stage s;
    struct dpt_err err;
    begin(&s, COLLECT_MS);
    const char *dir = in_root("cancelled-collect");
    save_part(&s, dir, 0, 2);
    dpt_saver_wait_written(s.saver);
    dpt_saver_cancel(s.saver);
    assert_int_equal(end_of_save(&s, &err), DPT_EABORTED);
    assert_int_equal(atomic_load(&s.asked), 0);
    assert_int_equal(entries(dir), 0);
    end(&s);
    begin(&s, 100);
    dir = in_root("late-collect");
    save_part(&s, dir, 0, 2);
    assert_int_equal(end_of_save(&s, &err), DPT_ETIMEOUT);
    assert_int_equal(entries(dir), 0);
    /* The next attempt is not marked by the last one. */
    atomic_store(&s.agent.grant, STEP);
    save_part(&s, dir, 0, 1);
    assert_int_equal(end_of_save(&s, &err), DPT_OK);
    assert_int_equal(newest(dir), STEP);
    end(&s);
}

static void two_writers(void **state)
{
    (void)state;
    struct stage first, second;
    struct dpt_err err;
    begin(&first, COLLECT_MS);
    begin(&second, COLLECT_MS);
    const char *dir = in_root("two");
    atomic_store(&first.agent.grant, STEP);
    save_part(&first, dir, 0, 2);
    save_part(&second, dir, 1, 2);
    assert_int_equal(end_of_save(&second, &err), DPT_OK);
    assert_true(has_saved(second.saver));
    assert_int_equal(atomic_load(&second.asked), 0);
    assert_int_equal(end_of_save(&first, &err), DPT_OK);
    if (model_check(dir, STEP, 1, &err) != DPT_OK)
        fail_msg("%s", err.text);
    end(&first);
    end(&second);
}

/* A rank whose lease is over writes nothing, neither at the beginning nor, granted or not, at the
 * end. */
static void the_fence(void **state)
{
    (void)state;
    struct stage s;
    struct dpt_err err;
    begin(&s, COLLECT_MS);
    const char *dir = in_root("fenced");
    atomic_store(&s.agent.lease_ms, -1);
    int64_t deadline = dpt_now_ms() + SOON_MS;
    while (dpt_link_may_write(s.link))
        assert_true(dpt_now_ms() < deadline);
    atomic_store(&s.agent.grant, STEP);
    save_part(&s, dir, 0, 1);
    give_up_generation(&s);
    assert_int_equal(end_of_save(&s, &err), DPT_EABORTED);
    assert_int_equal(entries(dir), 0);
    end(&s);
    begin(&s, COLLECT_MS);
    save_part(&s, dir, 0, 1);
    await_question(&s);
    atomic_store(&s.agent.lease_ms, -1);
    deadline = dpt_now_ms() + SOON_MS;
    while (dpt_link_may_write(s.link))
        assert_true(dpt_now_ms() < deadline);
    atomic_store(&s.agent.grant, STEP);
    while (!dpt_link_granted(s.link, GENERATION, STEP))
        assert_true(dpt_now_ms() < deadline);
    give_up_generation(&s);
    assert_int_equal(end_of_save(&s, &err), DPT_EABORTED);
    assert_int_equal(entries(dir), 0);
    end(&s);
}

static void disks_that_fail(void **state)
{
    (void)state;
    struct stage s;
    struct dpt_err err;
    begin(&s, COLLECT_MS);
    atomic_store(&s.agent.grant, STEP);
    /* A file where the folder should be. */
    const char *dir = in_root("file");
    assert_int_equal(dpt_fs_write_file_atomic(dir, "x", 1, &err), DPT_OK);
    save_part(&s, dir, 0, 1);
    dpt_saver_wait_written(s.saver); /* also after a failure */
    assert_int_not_equal(end_of_save(&s, &err), DPT_OK);
    assert_non_null(strstr(err.text, "step 5"));
    assert_non_null(strstr(err.text, dir));
    /* A file system that takes nothing (for root, too). */
    save_part(&s, "/proc/dpt", 0, 1);
    assert_int_not_equal(end_of_save(&s, &err), DPT_OK);
    save_part(&s, "/proc/dpt", 1, 2);
    assert_int_not_equal(end_of_save(&s, &err), DPT_OK);
    /* The folder goes while the grant is awaited. */
    dir = in_root("gone");
    withdraw_grant(&s);
    atomic_store(&s.asked, 0);
    save_part(&s, dir, 0, 1);
    await_question(&s);
    assert_int_equal(dpt_fs_remove_tree(dir, &err), DPT_OK);
    atomic_store(&s.agent.grant, STEP);
    assert_int_not_equal(end_of_save(&s, &err), DPT_OK);
    assert_int_not_equal(err.status, DPT_EABORTED);
    assert_int_equal(newest(dir), -1);
    /* And then it works again. */
    save_part(&s, dir, 0, 1);
    assert_int_equal(end_of_save(&s, &err), DPT_OK);
    assert_int_equal(newest(dir), STEP);
    end(&s);
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

/* The tensors are free as soon as they were read: whoever computes does not wait for the disk. */
static void a_slow_disk(void **state)
{
    (void)state;
    struct stage s;
    struct dpt_err err;
    begin(&s, COLLECT_MS);
    const char *dir = in_root("slow");
    assert_int_equal(dpt_fs_mkdirs(dir, &err), DPT_OK); /* else it is made durable first */
    assert_int_equal(sem_init(&disk, 0, 0), 0);
    dpt_fault_hook = wait_for_disk;
    atomic_store(&s.agent.grant, STEP);
    save_part(&s, dir, 0, 1);
    dpt_saver_wait_written(s.saver);
    assert_true(dpt_saver_busy(s.saver));
    assert_int_equal(newest(dir), -1);
    assert_int_equal(sem_post(&disk), 0);
    assert_int_equal(end_of_save(&s, &err), DPT_OK);
    assert_int_equal(newest(dir), STEP);
    dpt_fault_hook = NULL;
    assert_int_equal(sem_destroy(&disk), 0);
    end(&s);
}

static struct stage *stopped; /* whose node is stopped while it syncs the manifest; */
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

/* The right to commit is asked for at the rename: what it was before the manifest was synced does
 * not count. */
static void a_right_lost_before_the_rename(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct stage s;
        struct dpt_err err;
        begin(&s, COLLECT_MS);
        const char *dir = in_root(i == 0 ? "lease-lost" : "grant-lost");
        assert_int_equal(sem_init(&synced, 0, 0), 0);
        stopped = &s;
        lost_lease = i == 0;
        dpt_fault_hook = stop_in_manifest;
        atomic_store(&s.agent.grant, STEP);
        save_part(&s, dir, 0, 1);
        while (sem_wait(&synced) != 0)
            assert_int_equal(errno, EINTR);
        if (lost_lease) /* else it waits for the agent's next word */
            give_up_generation(&s);
        assert_int_equal(end_of_save(&s, &err), DPT_EABORTED);
        dpt_fault_hook = NULL;
        assert_int_equal(entries(dir), 0);
        assert_int_equal(sem_destroy(&synced), 0);
        end(&s);
    }
}

static const char *claimed; /* folder that another start of the run takes over meanwhile */

static int take_over_in_manifest(enum dpt_fault_op op, const char *path)
{
    struct dpt_claim_record other = claim.record;
    struct dpt_err err;
    if (op == DPT_FAULT_FSYNC && strstr(path, "MANIFEST.json") != NULL) {
        other.token[0] ^= 1;
        assert_int_equal(dpt_claim_take(claimed, claim.number + 1, &other, &err), DPT_OK);
    }
    return 0;
}

/* A folder that was taken over before the rename gets no checkpoint of its former owner. */
static void a_folder_lost_before_the_rename(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct stage s;
        struct dpt_err err;
        claimed = in_root(i == 0 ? "folder-held" : "folder-lost");
        claim.number = 3;
        claim.record.lease_ms = 1000;
        dpt_claim_describe_self(&claim.record);
        (void)snprintf(claim.record.run, sizeof claim.record.run, "run");
        (void)snprintf(claim.record.token, sizeof claim.record.token, "0123");
        assert_int_equal(dpt_fs_mkdirs(claimed, &err), DPT_OK);
        assert_int_equal(dpt_claim_take(claimed, claim.number, &claim.record, &err), DPT_OK);
        begin(&s, COLLECT_MS);
        dpt_fault_hook = i == 0 ? NULL : take_over_in_manifest;
        atomic_store(&s.agent.grant, STEP);
        save_part(&s, claimed, 0, 1);
        assert_int_equal(end_of_save(&s, &err), i == 0 ? DPT_OK : DPT_EREFUSED);
        if (i == 1)
            assert_non_null(strstr(err.text, "was taken over by a worker of run run (host "));
        dpt_fault_hook = NULL;
        assert_int_equal(newest(claimed), i == 0 ? STEP : -1);
        end(&s);
    }
    claim.number = 0;
}

/* Cancelled at whatever moment: whole, or absent and nothing left. */
static void cancelled_at_any_moment(void **state)
{
    (void)state;
    struct stage s;
    struct dpt_err err;
    begin(&s, COLLECT_MS);
    atomic_store(&s.agent.grant, STEP);
    for (int round = 0; round < 40; round++) {
        char name[32];
        (void)snprintf(name, sizeof name, "moment-%d", round);
        const char *dir = in_root(name);
        save_part(&s, dir, 0, 1);
        for (int spin = 0; spin < round * 2000; spin++)
            (void)dpt_saver_busy(s.saver);
        dpt_saver_cancel(s.saver);
        enum dpt_status status = end_of_save(&s, &err);
        assert_true(status == DPT_OK || status == DPT_EABORTED);
        assert_int_equal(newest(dir), status == DPT_OK ? STEP : -1);
        assert_int_equal(entries(dir), status == DPT_OK ? 1 : 0);
    }
    end(&s);
}

int main(void)
{
    dpt_log_set_level(DPT_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_granted_checkpoint_is_whole),
        cmocka_unit_test(a_grant_that_does_not_come),
        cmocka_unit_test(a_part_that_does_not_come),
        cmocka_unit_test(two_writers),
        cmocka_unit_test(the_fence),
        cmocka_unit_test(disks_that_fail),
        cmocka_unit_test(a_slow_disk),
        cmocka_unit_test(a_right_lost_before_the_rename),
        cmocka_unit_test(a_folder_lost_before_the_rename),
        cmocka_unit_test(cancelled_at_any_moment),
    };
    return cmocka_run_group_tests_name("saver", tests, make_fast_root, remove_root);
}
