/* The time and the price of a run. Pure. */
#ifndef DPT_WORKER_PLANNER_DURATION_H
#define DPT_WORKER_PLANNER_DURATION_H

/* FLOPs of a token, forward and backward: 6 N + 6 L C T with N parameters, L layers of C channels
 * and sequences of T tokens (Chowdhery et al. 2022, "PaLM", appendix B, with causal attention
 * counted once). Activations that backward computes again are not counted, as usual for MFU. */
double dpt_duration_flops(double parameters, int layers, int channels, int seq_len);

/* Tokens per second of `ranks` devices of `peak` FLOP/s that reach the share `mfu` of it. */
double dpt_duration_rate(double peak, double mfu, int ranks, double flops_per_token);

double dpt_duration_days(double tokens, double tokens_per_s);

/* The price of `machines` machines for this many days, at `price` per machine and hour. */
double dpt_duration_price(double days, int machines, double price);

#endif
