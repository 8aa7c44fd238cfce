/* The stage of the checkpoint writer's tests: a simulated agent, a link, a saver, a model. */
#include "tests/worker/train/saver_stage.h"

#include "base/clock.h"
#include "worker/agent/rank_protocol.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <dirent.h>
#include <poll.h>
#include <unistd.h>

static void *play_agent(void *arg)
{
    struct played_agent *a = arg;
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
static struct saver_stage *stages[STAGES_MAX]; /* those that have begun */

void __real_dpt_link_publish_grant_wanted(struct dpt_link *link, int64_t step);
void __wrap_dpt_link_publish_grant_wanted(struct dpt_link *link, int64_t step);

void __wrap_dpt_link_publish_grant_wanted(struct dpt_link *link, int64_t step)
{
    struct saver_stage *s = stages[0] && stages[0]->link == link ? stages[0] : stages[1];
    if (step >= 0) {
        atomic_store(&s->wanted, step);
        atomic_fetch_add(&s->asked, 1);
    } else {
        atomic_fetch_add(&s->withdrawn, 1);
    }
    __real_dpt_link_publish_grant_wanted(link, step);
}

struct dpt_claim_seen saver_stage_claim;

void saver_stage_begin(struct saver_stage *s, int collect_ms)
{
    struct dpt_err err;
    int fds[2];
    *s = (struct saver_stage){.wanted = -1};
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
                                          .ctx = s,
                                          .spawn = 1,
                                          .shm_addr = "",
                                          .tcp_addr = ""};
    if (dpt_link_create(&link, &s->link, &err) != DPT_OK)
        fail_msg("%s", err.text);
    dpt_link_edit(s->link)->state.generation = GENERATION;
    dpt_link_publish(s->link, false);
    assert_int_equal(pthread_create(&s->agent.thread, NULL, play_agent, &s->agent), 0);
    if (dpt_link_wait(s->link, -1, &err) != DPT_OK) /* there is a lease */
        fail_msg("%s", err.text);
    const struct dpt_saver_options saver = {.link = s->link,
                                            .collect_timeout_ms = collect_ms,
                                            .claim_number = saver_stage_claim.number,
                                            .claim_token = saver_stage_claim.record.token};
    if (dpt_saver_create(&saver, &s->saver, &err) != DPT_OK)
        fail_msg("%s", err.text);
    model_init(&s->model, STEP, 1);
}

void saver_stage_end_agent(struct saver_stage *s)
{
    atomic_store(&s->agent.stop, true);
    assert_int_equal(pthread_join(s->agent.thread, NULL), 0);
    assert_int_equal(close(s->agent.fd), 0);
    s->agent.fd = -1;
}

void saver_stage_end(struct saver_stage *s)
{
    int64_t start = dpt_now_ms();
    dpt_saver_destroy(&s->saver);
    assert_null(s->saver);
    assert_true(dpt_now_ms() - start < SOON_MS);
    if (s->agent.fd >= 0)
        saver_stage_end_agent(s);
    dpt_link_destroy(&s->link);
    model_fini(&s->model);
    stages[stages[0] == s ? 0 : 1] = NULL;
}

void saver_stage_save_part(struct saver_stage *s, const char *dir, int writer, int n_writers)
{
    struct dpt_checkpoint_spec spec = model_spec(&s->model, dir, STEP, writer, n_writers);
    model_share(&spec, s->pieces);
    dpt_saver_begin(s->saver, &spec);
}

enum dpt_status saver_stage_wait(struct saver_stage *s, struct dpt_err *err)
{
    int64_t start = dpt_now_ms();
    enum dpt_status status = dpt_saver_wait(s->saver, err);
    assert_true(dpt_now_ms() - start < SOON_MS);
    assert_false(dpt_saver_busy(s->saver));
    return status;
}

bool has_saved(struct dpt_saver *saver)
{
    const struct dpt_saved saved = dpt_saver_saved(saver);
    return saved.n > 0 && saved.generation == GENERATION && saved.step == STEP;
}

void saver_stage_await_question(struct saver_stage *s)
{
    int64_t deadline = dpt_now_ms() + SOON_MS;
    while (atomic_load(&s->asked) == 0) {
        assert_true(dpt_now_ms() < deadline);
        (void)poll(NULL, 0, 1); /* tidy: pause of a bounded poll */
    }
}

/* Until the rank has heard it: a save must not find the grant of the last one. */
void saver_stage_withdraw_grant(struct saver_stage *s)
{
    int64_t deadline = dpt_now_ms() + SOON_MS;
    atomic_store(&s->agent.grant, -1);
    while (dpt_link_granted(s->link, GENERATION, STEP)) {
        assert_true(dpt_now_ms() < deadline);
        (void)poll(NULL, 0, 1); /* tidy: pause of a bounded poll */
    }
}

int64_t newest_checkpoint(const char *dir)
{
    int64_t step = -7;
    struct dpt_err err;
    assert_int_equal(dpt_checkpoint_newest(dir, &step, &err), DPT_OK);
    return step;
}

int entries_in(const char *dir)
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

void saver_stage_give_up_generation(struct saver_stage *s)
{
    atomic_store(&s->agent.generation, GENERATION + 1);
    atomic_store(&s->agent.command, DPT__RANK_COMMAND__COMMAND_PREPARE);
}
