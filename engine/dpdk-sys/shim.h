/* The part of DPDK that Feroce calls: the headers of the library, and linkable forms of the inline
 * functions of its data path. */
#ifndef FEROCE_DPDK_SHIM_H
#define FEROCE_DPDK_SHIM_H

#include <stdint.h>

#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>

/* Spreads UDP over the receive queues. */
static const uint64_t DPDK_RSS_UDP = RTE_ETH_RSS_NONFRAG_IPV4_UDP | RTE_ETH_RSS_NONFRAG_IPV6_UDP;

/* A frame in one mbuf: the buffer, the start of its bytes, and their number. */
struct dpdk_frame {
    struct rte_mbuf *mbuf;
    uint8_t *data;
    uint32_t len;
};

/* Returns the error number of the last failed call of this thread. */
int dpdk_errno(void);

/* Fills `frames` with `count` new buffers of length 0. Returns 0, or a negative error number; then no
 * buffer was allocated. */
int dpdk_alloc(struct rte_mempool *pool, struct dpdk_frame *frames, uint16_t count);

/* Frees `count` buffers. */
void dpdk_free(struct dpdk_frame *frames, uint16_t count);

/* Takes up to `count` frames (at most 64) from a receive queue. A frame in a chain of mbufs is moved
 * into its first mbuf; if it does not fit, it is freed and counted in `*refused`. Returns the number of
 * `frames`. */
uint16_t dpdk_rx_burst(uint16_t port, uint16_t queue, struct dpdk_frame *frames, uint16_t count,
                       uint64_t *refused);

/* Offers `count` frames (at most 64) with the lengths stored in them to a transmit queue. Returns how
 * many frames, from the first on, the device took; it then owns their buffers. */
uint16_t dpdk_tx_burst(uint16_t port, uint16_t queue, const struct dpdk_frame *frames,
                       uint16_t count);

#endif
