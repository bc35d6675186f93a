/* The program that verbs tutorials build: a client writes a message to a server, and the server sends one back, over a
 * reliable connection whose parameters both exchange over TCP. Compiled against the distribution's headers and library.
 *   tutorial           a server for one client
 *   tutorial HOST      a client
 */
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define PORT 18519
#define SIZE 4096
#define GID_INDEX 1
#define NEED(done) do { if (!(done)) { perror(#done); exit(1); } } while (0)

struct side { uint32_t qpn, psn, rkey; uint64_t addr; union ibv_gid gid; };

static int connected(const char *host)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(PORT) };
    int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    NEED(fd >= 0);
    if (host) {
        NEED(inet_pton(AF_INET, host, &address.sin_addr) == 1);
        NEED(connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
        return fd;
    }
    NEED(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0);
    NEED(bind(fd, (struct sockaddr *)&address, sizeof address) == 0);
    NEED(listen(fd, 1) == 0);
    int client = accept(fd, NULL, NULL);
    NEED(client >= 0);
    close(fd);
    return client;
}

static void wait_for_one(struct ibv_cq *cq, uint64_t wr_id)
{
    struct ibv_wc wc;
    int count;
    while ((count = ibv_poll_cq(cq, 1, &wc)) == 0)
        ;
    NEED(count == 1);
    if (wc.status != IBV_WC_SUCCESS || wc.wr_id != wr_id) {
        fprintf(stderr, "request %lu: %s\n", wc.wr_id, ibv_wc_status_str(wc.status));
        exit(1);
    }
}

static void connect_qp(struct ibv_qp *qp, const struct side *own, const struct side *peer)
{
    struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT, .port_num = 1,
        .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };
    NEED(ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
    struct ibv_qp_attr rtr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qpn,
        .rq_psn = peer->psn, .max_dest_rd_atomic = 1, .min_rnr_timer = 12,
        .ah_attr = { .is_global = 1, .port_num = 1,
            .grh = { .dgid = peer->gid, .sgid_index = GID_INDEX, .hop_limit = 64 } } };
    NEED(ibv_modify_qp(qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
        IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
    struct ibv_qp_attr rts = { .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
        .sq_psn = own->psn, .max_rd_atomic = 1 };
    NEED(ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
        IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

int main(int argc, char **argv)
{
    const char *host = argc > 1 ? argv[1] : NULL;
    struct ibv_device **list = ibv_get_device_list(NULL);
    NEED(list && list[0]);
    struct ibv_context *context = ibv_open_device(list[0]);
    NEED(context);
    ibv_free_device_list(list);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    NEED(pd);
    char *buffer = calloc(2, SIZE), *in = buffer, *out = buffer + SIZE;
    struct ibv_mr *mr = ibv_reg_mr(pd, buffer, 2 * SIZE,
        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
    NEED(mr);
    struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
    NEED(cq);
    struct ibv_qp_init_attr make = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
        .cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 } };
    struct ibv_qp *qp = ibv_create_qp(pd, &make);
    NEED(qp);

    struct side own = { .qpn = qp->qp_num, .psn = getpid() & 0xffffff, .rkey = mr->rkey, .addr = (uintptr_t)in }, peer;
    NEED(ibv_query_gid(context, 1, GID_INDEX, &own.gid) == 0);
    int tcp = connected(host);
    NEED(write(tcp, &own, sizeof own) == sizeof own);
    NEED(read(tcp, &peer, sizeof peer) == sizeof peer);
    connect_qp(qp, &own, &peer);

    struct ibv_sge in_sge = { (uintptr_t)in, SIZE, mr->lkey }, out_sge = { (uintptr_t)out, SIZE, mr->lkey };
    struct ibv_recv_wr recv = { .wr_id = 1, .sg_list = &in_sge, .num_sge = 1 }, *bad_recv;
    struct ibv_send_wr send = { .wr_id = 2, .sg_list = &out_sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED }, *bad;
    NEED(ibv_post_recv(qp, &recv, &bad_recv) == 0);
    NEED(write(tcp, "", 1) == 1 && read(tcp, &(char){ 0 }, 1) == 1); /* Both are ready. */
    if (host) { /* The client writes with immediate data, which informs the server; then the server sends. */
        for (int i = 0; i < SIZE; i++) out[i] = (char)(i * 7);
        send.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
        send.imm_data = htonl(0x1234);
        send.wr.rdma.remote_addr = peer.addr;
        send.wr.rdma.rkey = peer.rkey;
        NEED(ibv_post_send(qp, &send, &bad) == 0);
        wait_for_one(cq, 2);
        wait_for_one(cq, 1);
        for (int i = 0; i < SIZE; i++) NEED(in[i] == (char)(i * 7 + 1));
    } else {
        wait_for_one(cq, 1);
        for (int i = 0; i < SIZE; i++) NEED(in[i] == (char)(i * 7));
        for (int i = 0; i < SIZE; i++) out[i] = (char)(in[i] + 1);
        send.opcode = IBV_WR_SEND;
        NEED(ibv_post_send(qp, &send, &bad) == 0);
        wait_for_one(cq, 2);
    }
    NEED(write(tcp, "", 1) == 1 && read(tcp, &(char){ 0 }, 1) == 1); /* Both are done. */
    NEED(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0 && ibv_dereg_mr(mr) == 0);
    NEED(ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
    puts("every byte as it was sent");
    return 0;
}
