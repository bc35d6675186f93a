/* What Feroce calls of DPDK: the library's headers, and the inline functions of its data path in a form that can be linked. */
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

/* A frame in one mbuf: the buffer, where its bytes begin, and how many they are. */
struct dpdk_frame {
    struct rte_mbuf *mbuf;
    uint8_t *data;
    uint32_t len;
};

/* The error number of the last call that failed in this thread. */
int dpdk_errno(void);

/* Fills `frames` with `count` new buffers of length 0, or with none. Returns 0, or a negative error number. */
int dpdk_alloc(struct rte_mempool *pool, struct dpdk_frame *frames, uint16_t count);

/* Frees `count` buffers. */
void dpdk_free(struct dpdk_frame *frames, uint16_t count);

/* Takes up to `count` frames (64 at most) from a receive queue. A frame in a chain of mbufs is moved together; one that does not
 * fit its first mbuf is freed and counted in `*refused`. Returns how many `frames` there are. */
uint16_t dpdk_rx_burst(uint16_t port, uint16_t queue, struct dpdk_frame *frames, uint16_t count, uint64_t *refused);

/* Offers `count` frames (64 at most) of the lengths noted in them to a transmit queue. Returns how many of the first were taken,
 * buffers and all. */
uint16_t dpdk_tx_burst(uint16_t port, uint16_t queue, const struct dpdk_frame *frames, uint16_t count);

#endif
