/* Records of a TensorBoard event file: Event messages (tensorboard.proto) in the framing of
 * TFRecord: the length (u64, little-endian), its masked CRC32C, the message, its masked CRC32C. */
#ifndef DPT_WORKER_TRAIN_LOG_EVENT_RECORD_H
#define DPT_WORKER_TRAIN_LOG_EVENT_RECORD_H

#include "worker/train/log/run_files.h"

#include <stddef.h>
#include <stdint.h>

/* Records that are written together: a version, a START and eight lines, of at most 800 bytes
 * each. */
enum { DPT_EVENT_BYTES_MAX = 8 * 800 };
struct dpt_event_records {
    size_t bytes;
    uint8_t data[DPT_EVENT_BYTES_MAX];
};

/* The CRC32C as TFRecord stores it: rotated by 15 bits, plus a constant. The CRC of data that
 * contain CRCs is weak, and this mask avoids it. */
uint32_t dpt_event_masked_crc(const void *data, size_t bytes);

/* Adds the first record of a file. */
void dpt_event_add_version(struct dpt_event_records *records, double wall_s);
/* Adds a START: readers drop what they have of `step` and of later steps. */
void dpt_event_add_start(struct dpt_event_records *records, double wall_s, int64_t step);
/* Adds the numbers of a line of metrics.jsonl as one record, under the tags of docs/training.md.
 * The record has the line's step and time. Values are floats; NaN and infinities stay. A field that
 * the line lacks, that is null, or whose 0 means unknown, is left out. */
void dpt_event_add_line(struct dpt_event_records *records, const struct dpt_run_file_line *line);

#endif
