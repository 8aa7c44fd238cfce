/* The message box: order and content over many laps, a full ring, memory that is no box, the rule
 * of waking, and two threads that sleep and wake each other without missing a message. */
#include "tests/worker/comm/comm_world.h"
#include "worker/comm/box.h"

#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

enum { PLAIN = 1, PAYLOAD = 2 };

/* Two ends of one connection, with both directions. */
static void make_pair(struct box pair[2])
{
    for (int i = 0; i < 2; i++)
        CHECK_OK(dpt_box_create(&pair[i], NULL), (struct dpt_err *)NULL);
    for (int i = 0; i < 2; i++)
        CHECK_OK(dpt_box_attach(&pair[i], pair[1 - i].fd, NULL), (struct dpt_err *)NULL);
}

static void free_pair(struct box pair[2])
{
    for (int i = 0; i < 2; i++)
        dpt_box_destroy(&pair[i]);
}

static struct box_message message_of(uint32_t number)
{
    return (struct box_message){.type = number % 3 == 0 ? PAYLOAD : PLAIN,
                                .credits = (uint16_t)number,
                                .record = number,
                                .region = ~number,
                                .offset = (uint64_t)number << 32,
                                .bytes = number % 3 == 0 ? number % (DPT_COMM_BUF_BYTES_MAX + 1)
                                                         : number};
}

static bool put_number(struct box *box, uint32_t number)
{
    uint8_t payload[DPT_COMM_BUF_BYTES_MAX];
    const struct box_message message = message_of(number);
    memset(payload, (int)(number % 251), sizeof payload);
    return dpt_box_put(box, &message, message.type == PAYLOAD ? payload : NULL);
}

/* Takes the next message, which must be this one. */
static bool get_number(struct box *box, uint32_t number)
{
    struct box_message message;
    uint8_t payload[DPT_COMM_BUF_BYTES_MAX];
    const struct box_message expected = message_of(number);
    if (!dpt_box_get(box, PAYLOAD, &message, payload))
        return false;
    CHECK(message.type == expected.type && message.credits == expected.credits &&
          message.record == expected.record && message.region == expected.region &&
          message.offset == expected.offset && message.bytes == expected.bytes);
    for (uint64_t i = 0; message.type == PAYLOAD && i < message.bytes; i++)
        CHECK(payload[i] == number % 251);
    return true;
}

static void many_laps(void **state)
{
    (void)state;
    struct box pair[2];
    uint64_t random = 99;
    make_pair(pair);
    uint32_t put = 0, got = 0;
    while (got < 20 * BOX_SLOTS) {
        for (uint64_t n = next_random(&random) % BOX_PAYLOADS; n > 0 && put - got < BOX_PAYLOADS;
             n--)
            assert_true(put_number(&pair[0], put++));
        for (uint64_t n = next_random(&random) % BOX_PAYLOADS; n > 0 && got < put; n--)
            assert_true(get_number(&pair[1], got++));
        assert_int_equal(dpt_box_has_mail(&pair[1]), got < put);
    }
    free_pair(pair);
}

static void full_ring(void **state)
{
    (void)state;
    struct box pair[2];
    struct box_message message = {.type = PLAIN};
    uint8_t payload[DPT_COMM_BUF_BYTES_MAX];
    make_pair(pair);
    for (int i = 0; i < BOX_SLOTS; i++)
        assert_true(dpt_box_put(&pair[0], &message, NULL));
    assert_false(dpt_box_put(&pair[0], &message, NULL));
    assert_false(dpt_box_has_room(&pair[0]));
    assert_true(dpt_box_get(&pair[1], PAYLOAD, &message, payload));
    assert_true(dpt_box_has_room(&pair[0]));
    assert_true(dpt_box_put(&pair[0], &message, NULL));
    assert_false(dpt_box_has_room(&pair[0]));
    for (int i = 0; i < BOX_SLOTS; i++)
        assert_true(dpt_box_get(&pair[1], PAYLOAD, &message, payload));
    assert_false(dpt_box_get(&pair[1], PAYLOAD, &message, payload));
    free_pair(pair);
}

/* A sleeper is woken once a sleep, by mail, and by room only if it waits for some. */
static void sleeper_is_woken_once_a_sleep(void **state)
{
    (void)state;
    struct box pair[2], *writer = &pair[0], *sleeper = &pair[1];
    struct box_message message = {.type = PLAIN};
    uint8_t payload[DPT_COMM_BUF_BYTES_MAX];
    make_pair(pair);
    assert_true(dpt_box_put(writer, &message, NULL));
    assert_false(dpt_box_must_wake(writer)); /* it is awake */
    dpt_box_sleep(sleeper, false);
    assert_false(dpt_box_must_wake(writer)); /* nothing was put since */
    assert_true(dpt_box_put(writer, &message, NULL));
    assert_true(dpt_box_must_wake(writer));
    assert_true(dpt_box_put(writer, &message, NULL));
    assert_false(dpt_box_must_wake(writer)); /* once */
    dpt_box_awake(sleeper);
    assert_true(dpt_box_put(writer, &message, NULL));
    assert_false(dpt_box_must_wake(writer));
    dpt_box_sleep(sleeper, false); /* another sleep */
    assert_true(dpt_box_put(writer, &message, NULL));
    assert_true(dpt_box_must_wake(writer));
    dpt_box_awake(sleeper);

    assert_true(dpt_box_put(sleeper, &message, NULL));
    dpt_box_sleep(sleeper, false);
    assert_true(dpt_box_get(writer, PAYLOAD, &message, payload));
    assert_false(dpt_box_must_wake(writer)); /* it waits for no room */
    dpt_box_awake(sleeper);
    assert_true(dpt_box_put(sleeper, &message, NULL));
    dpt_box_sleep(sleeper, true);
    assert_true(dpt_box_get(writer, PAYLOAD, &message, payload));
    assert_true(dpt_box_must_wake(writer));
    free_pair(pair);
}

static void attach_refuses_other_descriptors(void **state)
{
    (void)state;
    struct box pair[2];
    struct dpt_err err;
    make_pair(pair);
    assert_int_equal(dpt_box_attach(&pair[0], pair[1].fd, &err), DPT_EPROTO); /* twice */
    free_pair(pair);
    CHECK_OK(dpt_box_create(&pair[0], &err), &err);
    assert_int_equal(dpt_box_attach(&pair[0], -1, &err), DPT_EPROTO);
    const int memfd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(memfd >= 0 && ftruncate(memfd, sizeof(struct box_page)) == 0);
    assert_int_equal(dpt_box_attach(&pair[0], memfd, &err), DPT_EPROTO); /* it could shrink */
    assert_int_equal(fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    CHECK_OK(dpt_box_attach(&pair[0], memfd, &err), &err);
    close(memfd);
    dpt_box_destroy(&pair[0]);
}

static void shut_and_writing(void **state)
{
    (void)state;
    struct box pair[2];
    make_pair(pair);
    assert_true(dpt_box_write_begin(&pair[0]));
    dpt_box_shut(&pair[1]);
    assert_true(dpt_box_is_written(&pair[1]));
    dpt_box_write_end(&pair[0]);
    assert_false(dpt_box_is_written(&pair[1]));
    assert_false(dpt_box_write_begin(&pair[0]));
    assert_false(dpt_box_is_written(&pair[1]));
    assert_true(dpt_box_write_begin(&pair[1])); /* the other way is not shut */
    free_pair(pair);
}

/* Two threads, each with a bell that the other rings. */
struct side {
    struct box *box;
    int bell, other_bell;
    uint64_t seed;
};
enum { MESSAGES = 60000, BELL_MS = 20000 };

static void wait_for_bell(struct side *s, bool wants_room)
{
    uint64_t count;
    struct pollfd fd = {.fd = s->bell, .events = POLLIN};
    dpt_box_sleep(s->box, wants_room);
    const bool found = dpt_box_has_mail(s->box) || (wants_room && dpt_box_has_room(s->box));
    CHECK(found || poll(&fd, 1, BELL_MS) == 1); /* a wake that is missed ends here */
    dpt_box_awake(s->box);
    (void)!read(s->bell, &count, sizeof count);
}

static void *talk(void *arg)
{
    struct side *s = arg;
    uint32_t put = 0, got = 0;
    struct box_message message;
    uint8_t payload[DPT_COMM_BUF_BYTES_MAX];
    const uint64_t one = 1;
    while (put < MESSAGES || got < MESSAGES) {
        bool moved = false, full = false;
        for (uint64_t n = next_random(&s->seed) % (2 * BOX_SLOTS); n > 0 && put < MESSAGES; n--) {
            full = !dpt_box_put(s->box, &(struct box_message){.type = PLAIN, .record = put}, NULL);
            if (full)
                break;
            put++;
            moved = true;
        }
        for (uint64_t n = next_random(&s->seed) % (2 * BOX_SLOTS); n > 0 && got < MESSAGES; n--) {
            if (!dpt_box_get(s->box, PAYLOAD, &message, payload))
                break;
            CHECK(message.record == got);
            got++;
            moved = true;
        }
        if (dpt_box_must_wake(s->box))
            CHECK(write(s->other_bell, &one, sizeof one) == (ssize_t)sizeof one);
        if (!moved && !dpt_box_has_mail(s->box) && (full || put == MESSAGES) &&
            (put < MESSAGES || got < MESSAGES))
            wait_for_bell(s, full);
    }
    return NULL;
}

static void no_wake_is_missed(void **state)
{
    (void)state;
    struct box pair[2];
    pthread_t threads[2];
    struct side sides[2];
    make_pair(pair);
    const int bells[2] = {eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
                          eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    for (int i = 0; i < 2; i++) {
        sides[i] = (struct side){&pair[i], bells[i], bells[1 - i], 5 + (uint64_t)i};
        assert_int_equal(pthread_create(&threads[i], NULL, talk, &sides[i]), 0);
    }
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (int i = 0; i < 2; i++)
        close(bells[i]);
    free_pair(pair);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_laps),
        cmocka_unit_test(full_ring),
        cmocka_unit_test(sleeper_is_woken_once_a_sleep),
        cmocka_unit_test(attach_refuses_other_descriptors),
        cmocka_unit_test(shut_and_writing),
        cmocka_unit_test(no_wake_is_missed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
