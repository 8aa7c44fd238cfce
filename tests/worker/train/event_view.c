/* What a reader has of event files (event_view.h). */
#include "tests/worker/train/event_view.h"

#include "base/fs.h"
#include "worker/train/log/event_record.h"
#include "worker/train/log/tensorboard.pb-c.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_BYTES_MAX = 1 << 20, TEXT_BYTES = 1 << 16, POINTS_MAX = 1 << 13 };

static struct dpt_err err;

struct point {
    int64_t step;
    char tag[32];
    float value;
};

static struct point points[POINTS_MAX];
static int n_points;
struct event_view event_view;

static void take_event(const Tensorboard__Event *event)
{
    if (event->session_log) {
        int n = 0;
        for (int i = 0; i < n_points; i++)
            if (points[i].step < event->step)
                points[n++] = points[i];
        n_points = n;
        event_view.n_starts++;
    }
    for (size_t i = 0; event->summary && i < event->summary->n_value; i++) {
        const Tensorboard__Summary__Value *value = event->summary->value[i];
        struct point *point = &points[n_points++];
        assert_true(n_points < POINTS_MAX && event->has_step && event->wall_time > 1e9);
        point->step = event->step;
        point->value = value->simple_value;
        (void)snprintf(point->tag, sizeof point->tag, "%s", value->tag);
    }
}

static uint32_t u32_at(const uint8_t *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static void read_file(const char *dir, const char *name)
{
    char path[PATH_MAX], *text = NULL;
    size_t bytes = 0, at = 0;
    assert_int_equal(dpt_fs_join(dir, name, path, sizeof path, &err), DPT_OK);
    assert_int_equal(dpt_fs_read_file(path, FILE_BYTES_MAX, &text, &bytes, &err), DPT_OK);
    const uint8_t *data = (const uint8_t *)text;
    while (at < bytes) {
        assert_true(bytes - at >= 16);
        const size_t n = u32_at(data + at);
        assert_int_equal(u32_at(data + at + 4), 0);
        assert_int_equal(u32_at(data + at + 8), dpt_event_masked_crc(data + at, 8));
        assert_true(bytes - at - 16 >= n);
        assert_int_equal(u32_at(data + at + 12 + n), dpt_event_masked_crc(data + at + 12, n));
        Tensorboard__Event *event = tensorboard__event__unpack(NULL, n, data + at + 12);
        assert_non_null(event);
        if (at == 0)
            assert_string_equal(event->file_version, "brain.Event:2");
        take_event(event);
        tensorboard__event__free_unpacked(event, NULL);
        at += 16 + n;
    }
    free(text);
}

/* Reads all event files of the folder in the order of their names. */
static void read_files(const char *dir)
{
    char **names = NULL;
    size_t n = 0;
    assert_int_equal(dpt_fs_list(dir, &names, &n, &err), DPT_OK);
    memset(&event_view, 0, sizeof event_view);
    n_points = 0;
    for (size_t i = 0; i < n; i++) {
        if (strncmp(names[i], "events.out.tfevents.", 20) != 0)
            continue;
        read_file(dir, names[i]);
        event_view.n_files++;
    }
    dpt_fs_list_free(&names, n);
}

const char *event_view_points(const char *dir, const char *tag)
{
    static char text[TEXT_BYTES];
    size_t n = 0;
    text[0] = '\0';
    read_files(dir);
    for (int i = 0; i < n_points; i++)
        if (strcmp(points[i].tag, tag) == 0)
            n += (size_t)snprintf(text + n, sizeof text - n, "%s%lld:%g", n > 0 ? " " : "",
                                  (long long)points[i].step, (double)points[i].value);
    assert_true(n < sizeof text);
    return text;
}
