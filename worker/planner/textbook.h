/* The textbook's accounting of memory: weights, gradients and the state of the optimizer, each a
 * number of bytes per parameter. Activations, buffers and the program are not in it. Pure. */
#ifndef DPT_WORKER_PLANNER_TEXTBOOK_H
#define DPT_WORKER_PLANNER_TEXTBOOK_H

/* Bytes per parameter. */
struct dpt_textbook_widths {
    double weight, gradient, optimizer;
};

/* dpt_textbook_plain: every number has `width` bytes, and the optimizer has `moments` numbers per
 * parameter (Adam 2, SGD with momentum 1). dpt_textbook_mixed: weights and gradients in 16 bits;
 * the optimizer has a master and the moments in fp32 (Rajbhandari et al. 2020, "ZeRO", section
 * 3.1: K = 12 with Adam). */
struct dpt_textbook_widths dpt_textbook_plain(double width, int moments);
struct dpt_textbook_widths dpt_textbook_mixed(int moments);

/* Bytes of one copy of everything. */
double dpt_textbook_copy(double parameters, struct dpt_textbook_widths widths);

/* The parts that are divided among ranks (ZeRO, figure 1). */
enum dpt_textbook_stage {
    DPT_TEXTBOOK_DDP,   /* none */
    DPT_TEXTBOOK_ZERO1, /* the optimizer's state */
    DPT_TEXTBOOK_ZERO2, /* the optimizer's state and the gradients */
    DPT_TEXTBOOK_ZERO3  /* the optimizer's state, the gradients and the weights */
};

/* Bytes of one of `ranks` ranks that divide a copy. */
double dpt_textbook_rank(double parameters, struct dpt_textbook_widths widths,
                         enum dpt_textbook_stage stage, int ranks);

#endif
