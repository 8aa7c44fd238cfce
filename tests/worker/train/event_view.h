/* A reader of event files that does what TensorBoard's reader in Python does: it takes the files in
 * the order of their names, and drops what it has from the step of a START on. */
#ifndef DPT_TESTS_WORKER_TRAIN_EVENT_VIEW_H
#define DPT_TESTS_WORKER_TRAIN_EVENT_VIEW_H

/* Of the last event_view_points. */
struct event_view {
    int n_files, n_starts;
};
extern struct event_view event_view;

/* Reads all event files of the folder. Returns the points of a tag: "1:1.125 2:2.125"; static. */
const char *event_view_points(const char *dir, const char *tag);

#endif
