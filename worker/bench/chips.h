/* Peak rates of chips for dense bf16 products with f32 sums, from the makers' data sheets. */
#ifndef DPT_WORKER_BENCH_CHIPS_H
#define DPT_WORKER_BENCH_CHIPS_H

/* Peak FLOP/s of the chip with this name ("NVIDIA H200", as CUDA reports it); 0: the table lacks
 * it. */
double dpt_chip_peak(const char *name);

/* Model FLOPs utilisation: the share of `peak` FLOP/s that a model uses with 6 N + 6 L C T FLOPs a
 * token (Chowdhery et al. 2022, PaLM, appendix B, with causal attention counted once): N
 * parameters, L layers of C channels, sequences of T tokens. */
double dpt_mfu(double tokens_per_s, double parameters, int layers, int channels, int seq,
               double peak);

#endif
