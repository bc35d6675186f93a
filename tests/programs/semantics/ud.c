/* UD: lengths, the GRH, address handles, Q_Keys, multicast, dropped datagrams. */
#include "semantics.h"

enum { GRH = 40 };

/* Two UD QPs and a handle of this port. */
struct datagrams { struct pair *pair; struct ibv_ah *ah; };

static struct datagrams new_datagrams(void)
{
    struct pair *pair = new_pair(&(struct options){ .type = IBV_QPT_UD });
    return (struct datagrams){ pair, new_ah(pair->pd) };
}

static int send_to(struct datagrams *ud, enum ibv_wr_opcode opcode, uint32_t length, uint32_t qpn,
                   uint32_t qkey)
{
    struct ibv_sge sge = sge_of(ud->pair->a.mr, ud->pair->a.bytes, length);
    struct ibv_send_wr wr = { .wr_id = 7, .opcode = opcode, .sg_list = &sge, .num_sge = 1,
        .imm_data = htobe32(0x87654321), .wr.ud = { ud->ah, qpn, qkey } };
    return post(&ud->pair->a, &wr);
}

static int send_one(struct datagrams *ud, uint32_t length)
{
    return send_to(ud, IBV_WR_SEND, length, ud->pair->b.qp->qp_num, QKEY);
}

struct row { enum ibv_wr_opcode opcode; uint32_t length; };
static const struct row rows[] = {
    { IBV_WR_SEND, 0 }, { IBV_WR_SEND, 1 }, { IBV_WR_SEND, 3 }, { IBV_WR_SEND, 255 },
    { IBV_WR_SEND, 1024 }, { IBV_WR_SEND_WITH_IMM, 0 }, { IBV_WR_SEND_WITH_IMM, 1 },
    { IBV_WR_SEND_WITH_IMM, 1024 },
};

static void length(const void *of)
{
    const struct row *row = of;
    struct datagrams ud = new_datagrams();
    fill(ud.pair->a.bytes, 2000, 1);
    EXPECT_EQ(post_recv(&ud.pair->b, 42, 0, 2000), 0);
    EXPECT_EQ(send_to(&ud, row->opcode, row->length, ud.pair->b.qp->qp_num, QKEY), 0);
    struct ibv_wc wc = next_wc(ud.pair->a.cq);
    EXPECT_STATUS(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.opcode, IBV_WC_SEND);
    wc = next_wc(ud.pair->b.cq);
    EXPECT_STATUS(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.opcode, IBV_WC_RECV);
    EXPECT_EQ(wc.byte_len, GRH + row->length);
    EXPECT_EQ(wc.wc_flags & IBV_WC_GRH, IBV_WC_GRH);
    EXPECT_EQ(wc.src_qp, ud.pair->a.qp->qp_num);
    EXPECT_EQ(wc.qp_num, ud.pair->b.qp->qp_num);
    bool imm = row->opcode == IBV_WR_SEND_WITH_IMM;
    EXPECT_EQ(wc.wc_flags & IBV_WC_WITH_IMM, imm ? IBV_WC_WITH_IMM : 0);
    if (imm) EXPECT_EQ(wc.imm_data, htobe32(0x87654321));
    EXPECT(memcmp(ud.pair->b.bytes + GRH, ud.pair->a.bytes, row->length) == 0);
    EXPECT(ud.pair->b.bytes[GRH + row->length] == 0);
}

static void whole_mtu(const void *row)
{
    (void)row;
    struct datagrams ud = new_datagrams();
    uint32_t most = 128u << port.active_mtu;
    fill(ud.pair->a.bytes, most, 2);
    EXPECT_EQ(post_recv(&ud.pair->b, 42, 0, GRH + most), 0);
    EXPECT_EQ(send_one(&ud, most), 0);
    EXPECT_EQ(next_wc(ud.pair->b.cq).byte_len, GRH + most);
    EXPECT(memcmp(ud.pair->b.bytes + GRH, ud.pair->a.bytes, most) == 0);
}

static void too_long(const void *row)
{
    (void)row;
    struct datagrams ud = new_datagrams();
    EXPECT_EQ(post_recv(&ud.pair->b, 42, 0, 10000), 0);
    int code = send_one(&ud, (128u << port.active_mtu) + 1);
    if (code == 0) EXPECT_STATUS(next_wc(ud.pair->a.cq).status, IBV_WC_LOC_LEN_ERR);
    else EXPECT_EQ(code, EINVAL);
    EXPECT_NO_WC(ud.pair->b.cq);
}

/* ---- Dropped datagrams. */

static void expect_alive(struct datagrams *ud)
{
    EXPECT_STATE(ud->pair->a.qp, IBV_QPS_RTS);
    EXPECT_STATE(ud->pair->b.qp, IBV_QPS_RTS);
    EXPECT_EQ(send_one(ud, 8), 0);
    EXPECT_STATUS(next_wc(ud->pair->a.cq).status, IBV_WC_SUCCESS);
    struct ibv_wc wc = next_wc(ud->pair->b.cq);
    EXPECT_STATUS(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.byte_len, GRH + 8);
}

static const struct drop_row { const char *name; uint32_t qkey; bool receive, no_qp; } drops[] = {
    { "a wrong Q_Key", QKEY + 1, true, false }, { "no such QP", QKEY, true, true },
    { "no receive", QKEY, false, false },
};

static void dropped(const void *row)
{
    const struct drop_row *drop = row;
    struct datagrams ud = new_datagrams();
    if (drop->receive) EXPECT_EQ(post_recv(&ud.pair->b, 42, 0, 100), 0);
    uint32_t qpn = drop->no_qp ? 0xabcdef : ud.pair->b.qp->qp_num;
    EXPECT_EQ(send_to(&ud, IBV_WR_SEND, 8, qpn, drop->qkey), 0);
    EXPECT_STATUS(next_wc(ud.pair->a.cq).status, IBV_WC_SUCCESS);
    EXPECT_NO_WC(ud.pair->b.cq);
    if (!drop->receive) EXPECT_EQ(post_recv(&ud.pair->b, 42, 0, 100), 0);
    expect_alive(&ud);
}

/* A Q_Key with its highest bit set is replaced by the Q_Key of the QP. */
static void privileged_qkey(const void *row)
{
    (void)row;
    struct datagrams ud = new_datagrams();
    EXPECT_EQ(post_recv(&ud.pair->b, 42, 0, 100), 0);
    EXPECT_EQ(send_to(&ud, IBV_WR_SEND, 8, ud.pair->b.qp->qp_num, 0x80000000), 0);
    EXPECT_STATUS(next_wc(ud.pair->b.cq).status, IBV_WC_SUCCESS);
}

static void not_ready(const void *row)
{
    (void)row;
    struct datagrams ud = new_datagrams();
    EXPECT_EQ(to_state(ud.pair->b.qp, IBV_QPS_RESET), 0);
    EXPECT_EQ(to_init(ud.pair->b.qp, &ud.pair->options), 0);
    EXPECT_EQ(post_recv(&ud.pair->b, 42, 0, 100), 0);
    EXPECT_EQ(send_one(&ud, 8), 0);
    EXPECT_STATUS(next_wc(ud.pair->a.cq).status, IBV_WC_SUCCESS);
    EXPECT_NO_WC(ud.pair->b.cq);
}

/* ---- Errors. */

static void wrong_lkey(const void *row)
{
    (void)row;
    struct datagrams ud = new_datagrams();
    struct ibv_sge sge = { (uintptr_t)ud.pair->a.bytes, 8, 0xfffffff0 };
    struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .sg_list = &sge, .num_sge = 1,
        .wr.ud = { ud.ah, ud.pair->b.qp->qp_num, QKEY } };
    EXPECT_EQ(post(&ud.pair->a, &wr), 0);
    EXPECT_STATUS(next_wc(ud.pair->a.cq).status, IBV_WC_LOC_PROT_ERR);
    EXPECT_STATE(ud.pair->a.qp, IBV_QPS_SQE);
    EXPECT_EQ(to_state(ud.pair->a.qp, IBV_QPS_RTS), 0);
    EXPECT_EQ(post_recv(&ud.pair->b, 42, 0, 100), 0);
    expect_alive(&ud);
}

static const struct op { const char *name; enum ibv_wr_opcode opcode; } missing[] = {
    { "WRITE", IBV_WR_RDMA_WRITE },
    { "READ", IBV_WR_RDMA_READ },
    { "compare and swap", IBV_WR_ATOMIC_CMP_AND_SWP },
    { "SEND with invalidate", IBV_WR_SEND_WITH_INV },
};

static void unsupported(const void *row)
{
    struct datagrams ud = new_datagrams();
    int code = send_to(&ud, ((const struct op *)row)->opcode, 8, ud.pair->b.qp->qp_num, QKEY);
    if (code != 0) return EXPECT_EQ(code, EINVAL);
    EXPECT_STATUS(next_wc(ud.pair->a.cq).status, IBV_WC_LOC_QP_OP_ERR);
}

/* ---- Address handles. */

static const struct handle { const char *name; bool global; int port, index; } handles[] = {
    { "no GRH", false, 0, 0 },
    { "a wrong port", true, 200, 0 },
    { "a wrong GID index", true, 0, 250 },
};

static void handle(const void *row)
{
    const struct handle *handle = row;
    struct ibv_ah_attr attr = { .is_global = handle->global,
        .port_num = handle->port ? handle->port : port_num, .grh = { .dgid = gid, .hop_limit = 1,
            .sgid_index = handle->index ? handle->index : gid_index } };
    errno = 0;
    EXPECT(!ibv_create_ah(new_pd(), &attr));
    EXPECT(errno == EINVAL || (errno == ENODATA && handle->index));
}

/* The receiver replies with an address handle that is made from the completion. */
static void reply(const void *row)
{
    (void)row;
    struct datagrams ud = new_datagrams();
    EXPECT_EQ(post_recv(&ud.pair->b, 42, 0, 100), 0);
    EXPECT_EQ(post_recv(&ud.pair->a, 43, 4096, 100), 0);
    EXPECT_EQ(send_one(&ud, 8), 0);
    EXPECT_STATUS(next_wc(ud.pair->a.cq).status, IBV_WC_SUCCESS);
    struct ibv_wc wc = next_wc(ud.pair->b.cq);
    struct ibv_ah_attr attr;
    EXPECT_EQ(
        ibv_init_ah_from_wc(context, port_num, &wc, (struct ibv_grh *)ud.pair->b.bytes, &attr), 0);
    EXPECT(attr.is_global && memcmp(&attr.grh.dgid, &gid, sizeof gid) == 0);
    struct ibv_ah *ah =
        KEEP(ibv_create_ah_from_wc(ud.pair->pd, &wc, (struct ibv_grh *)ud.pair->b.bytes, port_num),
             ibv_destroy_ah);
    struct ibv_sge sge = sge_of(ud.pair->b.mr, ud.pair->b.bytes, 20);
    struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .sg_list = &sge, .num_sge = 1,
        .wr.ud = { ah, wc.src_qp, QKEY } };
    EXPECT_EQ(post(&ud.pair->b, &wr), 0);
    wc = next_wc(ud.pair->a.cq);
    EXPECT_EQ(wc.wr_id, 43);
    EXPECT_EQ(wc.byte_len, GRH + 20);
}

/* An IPv4 header is in the last 20 of the 40 bytes; an IPv6 header takes all of them. */
static void grh(const void *row)
{
    (void)row;
    struct datagrams ud = new_datagrams();
    EXPECT_EQ(post_recv(&ud.pair->b, 42, 0, 100), 0);
    EXPECT_EQ(send_one(&ud, 8), 0);
    EXPECT_STATUS(next_wc(ud.pair->b.cq).status, IBV_WC_SUCCESS);
    static const uint8_t mapped[12] = { [10] = 0xff, 0xff };
    const uint8_t *bytes = (const uint8_t *)ud.pair->b.bytes;
    if (memcmp(gid.raw, mapped, sizeof mapped) == 0) {
        EXPECT_EQ(bytes[20] >> 4, 4);
        EXPECT(memcmp(bytes + 32, gid.raw + 12, 4) == 0 &&
               memcmp(bytes + 36, gid.raw + 12, 4) == 0);
    } else {
        EXPECT_EQ(bytes[0] >> 4, 6);
        EXPECT(memcmp(bytes + 8, gid.raw, 16) == 0 && memcmp(bytes + 24, gid.raw, 16) == 0);
    }
}

/* ---- Multicast. */

static const union ibv_gid group = { .raw = { [10] = 0xff, 0xff, 239, 1, 2, 3 } };

static void attach(const void *row)
{
    (void)row;
    struct ibv_qp *ud = new_qp(&(struct options){ .type = IBV_QPT_UD });
    NEED((errno = ibv_attach_mcast(ud, &group, 0)) == 0);
    EXPECT_EQ(ibv_detach_mcast(ud, &group, 0), 0);
    EXPECT_EQ(ibv_detach_mcast(ud, &group, 0), EINVAL);
    EXPECT_EQ(ibv_attach_mcast(ud, &gid, 0), EINVAL);
    EXPECT_EQ(ibv_attach_mcast(new_qp(&(struct options){ 0 }), &group, 0), EINVAL);
}

static void several(const void *row)
{
    (void)row;
    struct datagrams ud = new_datagrams();
    for (int i = 0; i < 10; i++) EXPECT_EQ(post_recv(&ud.pair->b, i, 1000 * i, 1000), 0);
    for (int i = 0; i < 10; i++) EXPECT_EQ(send_one(&ud, 10 * i), 0);
    for (int i = 0; i < 10; i++) {
        struct ibv_wc wc = next_wc(ud.pair->b.cq);
        EXPECT_EQ(wc.wr_id, i);
        EXPECT_EQ(wc.byte_len, GRH + 10 * i);
    }
}

static void shared_queue(const void *row)
{
    (void)row;
    struct ibv_pd *pd = new_pd();
    struct ibv_srq_init_attr init = { .attr = { .max_wr = 4, .max_sge = 1 } };
    struct ibv_srq *srq = KEEP(ibv_create_srq(pd, &init), ibv_destroy_srq);
    struct pair *pair = new_pair(&(struct options){ .type = IBV_QPT_UD, .pd = pd, .srq = srq });
    struct datagrams ud = { pair, new_ah(pd) };
    struct ibv_sge sge = sge_of(pair->b.mr, pair->b.bytes, 100);
    struct ibv_recv_wr wr = { .wr_id = 42, .sg_list = &sge, .num_sge = 1 }, *bad;
    EXPECT_EQ(ibv_post_srq_recv(srq, &wr, &bad), 0);
    EXPECT_EQ(send_one(&ud, 8), 0);
    struct ibv_wc wc = next_wc(pair->b.cq);
    EXPECT_EQ(wc.wr_id, 42);
    EXPECT_EQ(wc.qp_num, pair->b.qp->qp_num);
}

void ud_cases(void)
{
    for (unsigned i = 0; i < ROWS(rows); i++)
        test("ibv_post_send(3), ibv_poll_cq(3)", length, &rows[i], "ud/length: SEND%s of %u bytes",
             rows[i].opcode == IBV_WR_SEND ? "" : " with immediate", rows[i].length);
    test("C10-93.1.1", whole_mtu, NULL, "ud/length: the port's MTU");
    test("C10-93.1.1", too_long, NULL, "ud/length: one byte above the port's MTU");
    test("RoCEv2 annex (A17)", grh, NULL, "ud/grh: the IP header");
    for (unsigned i = 0; i < ROWS(drops); i++)
        test("IBTA 9.8.3", dropped, &drops[i], "ud/drop: %s", drops[i].name);
    test("IBTA 10.3.1", not_ready, NULL, "ud/drop: a QP in INIT");
    test("IBTA 10.2.5", privileged_qkey, NULL, "ud/qkey: the highest bit");
    test("ibv_modify_qp(3), IBTA 10.3.1", wrong_lkey, NULL,
         "ud/error: a wrong L_Key, SQE, back to RTS");
    for (unsigned i = 0; i < ROWS(missing); i++)
        test("ibv_post_send(3)", unsupported, &missing[i], "ud/error: %s", missing[i].name);
    for (unsigned i = 0; i < ROWS(handles); i++)
        test("ibv_create_ah(3)", handle, &handles[i], "ah/create: %s", handles[i].name);
    test("ibv_create_ah_from_wc(3)", reply, NULL, "ah/reply: a handle made from a completion");
    test("ibv_attach_mcast(3)", attach, NULL, "ud/multicast: attach, detach, wrong arguments");
    test("ibv_post_send(3)", several, NULL, "ud/order: ten datagrams");
    test("ibv_create_srq(3)", shared_queue, NULL, "ud/srq: a shared receive queue");
}
