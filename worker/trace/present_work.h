/* The present work of a rank's main and communication thread, for a person who looks for the cause
 * of a hang (dpt-doctor hang). A thread notes its work when it begins; the link's thread reads the
 * notes with each heartbeat.
 *
 * A note costs the time of a clock and two stores. A thread that is not attached pays one load and
 * one branch. Nothing depends on the notes. */
#ifndef DPT_WORKER_TRACE_PRESENT_WORK_H
#define DPT_WORKER_TRACE_PRESENT_WORK_H

#include <stdatomic.h>
#include <stdint.h>

/* The same numbers as RankWork of dpt.proto. */
enum dpt_work {
    DPT_WORK_NONE,
    DPT_WORK_SETUP,
    DPT_WORK_STANDBY,
    DPT_WORK_FORM,
    DPT_WORK_SAMPLES,
    DPT_WORK_FORWARD,
    DPT_WORK_BACKWARD,
    DPT_WORK_AWAIT_WEIGHTS,
    DPT_WORK_AWAIT_BUFFER,
    DPT_WORK_AWAIT_GRADIENT,
    DPT_WORK_COMMIT,
    DPT_WORK_APPLY,
    DPT_WORK_VERIFY,
    DPT_WORK_EVALUATE,
    DPT_WORK_SAVE,
    DPT_WORK_LOG,
    DPT_WORK_GATHER,
    DPT_WORK_SCATTER,
    DPT_WORK_CROSS,
    DPT_WORK_SHARE,
    DPT_WORK_COPY,
    DPT_WORK_ALL_REDUCE,
    DPT_WORK_REDUCE_SCATTER,
    DPT_WORK_AWAIT_OWN,
    DPT_WORK_COUNT
};

enum dpt_present_work_track {
    DPT_PRESENT_WORK_MAIN,
    DPT_PRESENT_WORK_COMM,
    DPT_PRESENT_WORK_TRACKS
};

struct dpt_present_work_note {
    _Atomic uint64_t packed; /* work, unit and slot; 0: nothing was noted */
    _Atomic int64_t since_ns;
};

/* Zero-initialise. */
struct dpt_present_work {
    struct dpt_present_work_note note[DPT_PRESENT_WORK_TRACKS];
};

/* What a thread does. unit and slot: -1 where the work has none. */
struct dpt_present_work_view {
    enum dpt_work work;
    int unit, slot;
    int64_t since_ns; /* of dpt_now_ns */
};

/* The calling thread notes its work as `track` from now on. `activity` is borrowed; NULL: it notes
 * nothing. */
void dpt_present_work_attach(struct dpt_present_work *activity, enum dpt_present_work_track track);
/* What the calling thread is attached to, for a thread that it starts; NULL: nothing. */
struct dpt_present_work *dpt_present_work_here(void);

/* Notes the work that begins now. `unit`: a unit, range or bucket, below 2^23; `slot` below 2^31;
 * -1: none. The same work again keeps the time of its beginning. */
void dpt_present_work_note(enum dpt_work work, int unit, int slot);

/* The newest note of a thread. A note that changes meanwhile may give the time of the one before.
 * Any thread. */
struct dpt_present_work_view dpt_present_work_read(const struct dpt_present_work *activity,
                                                   enum dpt_present_work_track track);

#endif
