/* Pictures of the patterns of collectives, step by step, as SVG in light and dark colours. They are
 * drawn from the lists that the ranks carry out: worker/plan/pattern.h, lanes.h.
 *
 * A frame is the state before the first step, or a step with the state after it. A node is a rank.
 * The cells beside it are its chunks; the filled part of a cell is the share of the lanes whose sum
 * the rank has. An arrow is a move, in the colour of its chunk: solid if the receiver adds, dashed
 * if it stores. */
#ifndef DPT_WORKER_BENCH_PATTERN_PICTURE_H
#define DPT_WORKER_BENCH_PATTERN_PICTURE_H

#include "worker/plan/pattern.h"

#include <stdio.h>

enum { PATTERN_PICTURE_RANKS_MAX = 16 };

/* Writes one picture: a strip of frames. At most PATTERN_PICTURE_RANKS_MAX ranks. DPT_ENOMEM. */
DPT_MUST_USE enum dpt_status pattern_picture_write(FILE *out, const struct dpt_pattern *pattern,
                                                   struct dpt_err *err);

/* Writes the tree in which `lanes` lanes are added, in three frames: each rank adds the slots of
 * its lanes; each rank joins its lanes to the largest subtrees; the owner of a piece joins these.
 */
void lane_tree_picture_write(FILE *out, int lanes, int n_ranks);

/* Writes all patterns of `n_ranks` ranks into folder `dir`, which is created if it does not exist,
 * and prints the name of each file. With more than two ranks the direct all-reduce is also drawn
 * for two hosts. */
DPT_MUST_USE enum dpt_status pattern_pictures_write(const char *dir, int n_ranks,
                                                    struct dpt_err *err);

#endif
