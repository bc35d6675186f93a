/* See shim.h. */
#include "shim.h"

#define BURST 64

int dpdk_errno(void) {
    return rte_errno;
}

static void show(struct dpdk_frame *frame, struct rte_mbuf *mbuf) {
    frame->mbuf = mbuf;
    frame->data = rte_pktmbuf_mtod(mbuf, uint8_t *);
    frame->len = mbuf->data_len;
}

int dpdk_alloc(struct rte_mempool *pool, struct dpdk_frame *frames, uint16_t count) {
    struct rte_mbuf *mbufs[BURST];
    if (count > BURST)
        return -EINVAL;
    int status = rte_pktmbuf_alloc_bulk(pool, mbufs, count);
    if (status != 0)
        return status;
    for (uint16_t i = 0; i < count; i++)
        show(&frames[i], mbufs[i]);
    return 0;
}

void dpdk_free(struct dpdk_frame *frames, uint16_t count) {
    for (uint16_t i = 0; i < count; i++)
        rte_pktmbuf_free(frames[i].mbuf);
}

uint16_t dpdk_rx_burst(uint16_t port, uint16_t queue, struct dpdk_frame *frames, uint16_t count,
                       uint64_t *refused) {
    struct rte_mbuf *mbufs[BURST];
    uint16_t taken = rte_eth_rx_burst(port, queue, mbufs, RTE_MIN(count, BURST));
    uint16_t shown = 0;
    for (uint16_t i = 0; i < taken; i++) {
        if (unlikely(mbufs[i]->nb_segs > 1) && rte_pktmbuf_linearize(mbufs[i]) != 0) {
            rte_pktmbuf_free(mbufs[i]);
            ++*refused;
            continue;
        }
        show(&frames[shown++], mbufs[i]);
    }
    return shown;
}

uint16_t dpdk_tx_burst(uint16_t port, uint16_t queue, const struct dpdk_frame *frames,
                       uint16_t count) {
    struct rte_mbuf *mbufs[BURST];
    count = RTE_MIN(count, BURST);
    for (uint16_t i = 0; i < count; i++) {
        mbufs[i] = frames[i].mbuf;
        mbufs[i]->data_len = (uint16_t)frames[i].len;
        mbufs[i]->pkt_len = frames[i].len;
    }
    return rte_eth_tx_burst(port, queue, mbufs, count);
}
