/* Records of a TensorBoard event file (event_record.h). */
#include "worker/train/log/event_record.h"

#include "base/hash.h"
#include "worker/train/log/tensorboard.pb-c.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LENGTH_BYTES = 8, CRC_BYTES = 4, FIELD_BYTES = 32 };

/* TensorBoard shows tags in groups by the part before '/'. */
static const struct tag {
    enum dpt_line_kind kind;
    const char *field; /* of the line */
    const char *tag;
    const char *known; /* the value is unknown if this field is 0; NULL: always known */
} tags[] = {
    {DPT_LINE_STEP, "loss", "train/loss", NULL},
    {DPT_LINE_STEP, "lr", "train/learning_rate", NULL},
    {DPT_LINE_STEP, "grad_norm", "train/grad_norm", NULL},
    {DPT_LINE_STEP, "scale", "train/loss_scale", NULL},
    {DPT_LINE_STEP, "skipped_steps", "train/skipped_steps", NULL},
    {DPT_LINE_STEP, "tokens_per_s", "speed/tokens_per_s", "step_ms"},
    {DPT_LINE_STEP, "step_ms", "speed/step_ms", "step_ms"},
    {DPT_LINE_STEP, "wait_ms", "speed/wait_ms", "step_ms"},
    {DPT_LINE_STEP, "sent_bytes", "speed/sent_bytes", "step_ms"},
    {DPT_LINE_STEP, "memory_bytes", "memory/allocated_bytes", NULL},
    {DPT_LINE_STEP, "world_size", "cluster/world_size", NULL},
    {DPT_LINE_STEP, "generation", "cluster/generation", NULL},
    {DPT_LINE_EPOCH, "avg_loss", "epoch/loss", NULL},
    {DPT_LINE_EPOCH, "samples_per_s", "epoch/samples_per_s", "samples_per_s"},
    {DPT_LINE_EVALUATION, "val_loss", "eval/loss", NULL},
    {DPT_LINE_EVALUATION, "val_accuracy", "eval/accuracy", NULL},
};
enum { TAGS = sizeof tags / sizeof tags[0] };

uint32_t dpt_event_masked_crc(const void *data, size_t bytes)
{
    const uint32_t crc = dpt_crc32c(0, data, bytes);
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

static void put_little_endian(uint8_t *to, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        to[i] = (uint8_t)(value >> 8 * i);
}

static void add_event(struct dpt_event_records *records, const Tensorboard__Event *event)
{
    const size_t n = tensorboard__event__get_packed_size(event);
    uint8_t *length = records->data + records->bytes, *message = length + LENGTH_BYTES + CRC_BYTES;
    DPT_ASSERT(records->bytes + LENGTH_BYTES + n + (size_t)2 * CRC_BYTES <= sizeof records->data);
    put_little_endian(length, n, LENGTH_BYTES);
    put_little_endian(length + LENGTH_BYTES, dpt_event_masked_crc(length, LENGTH_BYTES), CRC_BYTES);
    (void)tensorboard__event__pack(event, message);
    put_little_endian(message + n, dpt_event_masked_crc(message, n), CRC_BYTES);
    records->bytes += LENGTH_BYTES + n + (size_t)2 * CRC_BYTES;
}

void dpt_event_add_version(struct dpt_event_records *records, double wall_s)
{
    static char version[] = "brain.Event:2";
    Tensorboard__Event event = TENSORBOARD__EVENT__INIT;
    event.wall_time = wall_s;
    event.file_version = version;
    add_event(records, &event);
}

void dpt_event_add_start(struct dpt_event_records *records, double wall_s, int64_t step)
{
    Tensorboard__Event event = TENSORBOARD__EVENT__INIT;
    Tensorboard__SessionLog start = TENSORBOARD__SESSION_LOG__INIT;
    start.status = TENSORBOARD__SESSION_LOG__SESSION_STATUS__START;
    event.wall_time = wall_s;
    event.has_step = 1;
    event.step = step;
    event.session_log = &start;
    add_event(records, &event);
}

/* Finds the number of a field in a line as run_files.c writes it: "field": number or "nan". The
 * line ends with a newline, at which strtod stops. False: the line has no such number. */
static bool find_number_in_line(const struct dpt_run_file_line *line, const char *field,
                                double *ret)
{
    char key[FIELD_BYTES];
    const int n = snprintf(key, sizeof key, "\"%s\": ", field);
    DPT_ASSERT(n > 0 && n < (int)sizeof key);
    const char *at = memmem(line->text, line->bytes, key, (size_t)n);
    if (!at)
        return false;
    at += n;
    if (*at == '"')
        at++;
    char *end;
    const double value = strtod(at, &end);
    if (end == at)
        return false;
    *ret = value;
    return true;
}

/* Whether the line has a value for the tag. */
static bool value_of(const struct dpt_run_file_line *line, const struct tag *tag, double *ret)
{
    double known;
    if (tag->kind != line->place.kind)
        return false;
    if (tag->known && find_number_in_line(line, tag->known, &known) && known == 0)
        return false;
    return find_number_in_line(line, tag->field, ret);
}

void dpt_event_add_line(struct dpt_event_records *records, const struct dpt_run_file_line *line)
{
    Tensorboard__Event event = TENSORBOARD__EVENT__INIT;
    Tensorboard__Summary summary = TENSORBOARD__SUMMARY__INIT;
    Tensorboard__Summary__Value values[TAGS], *pointers[TAGS];
    double value;
    size_t n = 0;
    for (size_t i = 0; i < TAGS; i++) {
        if (!value_of(line, &tags[i], &value))
            continue;
        tensorboard__summary__value__init(&values[n]);
        values[n].tag = (char *)(uintptr_t)tags[i].tag; /* not written to */
        values[n].simple_value = (float)value;
        pointers[n] = &values[n];
        n++;
    }
    summary.n_value = n;
    summary.value = pointers;
    event.has_step = 1;
    event.step = line->place.step;
    event.summary = &summary;
    if (find_number_in_line(line, "time", &value))
        event.wall_time = value;
    if (n > 0)
        add_event(records, &event);
}
