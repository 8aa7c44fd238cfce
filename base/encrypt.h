/* How the bytes of data connections between hosts are protected (cluster.encrypt). */
#ifndef DPT_BASE_ENCRYPT_H
#define DPT_BASE_ENCRYPT_H

enum dpt_encrypt {
    DPT_ENCRYPT_NONE,
    DPT_ENCRYPT_MAC, /* each record carries a code: a changed one is refused */
    DPT_ENCRYPT_DATA /* and is encrypted */
};

#endif
