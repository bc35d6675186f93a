/* The state machine of QPs: every transition of RC, UC and UD, with the attributes that each
 * needs, takes and refuses (ibv_modify_qp(3); IBTA 11.2.5.2; ib_modify_qp_is_ok of Linux).
 */
#include "semantics.h"

#define ADDRESS (IBV_QP_PKEY_INDEX | IBV_QP_PORT)
#define RTR_RC                                                                                    \
    (IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC    \
     | IBV_QP_MIN_RNR_TIMER)
#define RTR_UC (IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN)
#define RTS_RC                                                                                    \
    (IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC)
#define LIVE_RC (IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER)
#define LIVE_UC (IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS)
#define LIVE_UD (IBV_QP_CUR_STATE | IBV_QP_QKEY)
enum { RESET = IBV_QPS_RESET, INIT, RTR, RTS, SQD, SQE, ERR };

static const struct transition {
    enum ibv_qp_type type;
    int from, to, required, optional;
} transitions[] = {
    { IBV_QPT_RC, RESET, INIT, ADDRESS | IBV_QP_ACCESS_FLAGS, 0 },
    { IBV_QPT_RC, INIT, INIT, 0, ADDRESS | IBV_QP_ACCESS_FLAGS },
    { IBV_QPT_RC, INIT, RTR, RTR_RC, IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS },
    { IBV_QPT_RC, RTR, RTS, RTS_RC, LIVE_RC },
    { IBV_QPT_RC, RTS, RTS, 0, LIVE_RC },
    { IBV_QPT_RC, RTS, SQD, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY },
    { IBV_QPT_RC, SQD, RTS, 0, LIVE_RC },
    { IBV_QPT_RC, SQD, SQD, 0, ADDRESS | IBV_QP_ACCESS_FLAGS | IBV_QP_AV | IBV_QP_MIN_RNR_TIMER
      | IBV_QP_MAX_DEST_RD_ATOMIC | (RTS_RC & ~IBV_QP_SQ_PSN) },
    { IBV_QPT_UC, RESET, INIT, ADDRESS | IBV_QP_ACCESS_FLAGS, 0 },
    { IBV_QPT_UC, INIT, INIT, 0, ADDRESS | IBV_QP_ACCESS_FLAGS },
    { IBV_QPT_UC, INIT, RTR, RTR_UC, IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS },
    { IBV_QPT_UC, RTR, RTS, IBV_QP_SQ_PSN, LIVE_UC },
    { IBV_QPT_UC, RTS, RTS, 0, LIVE_UC },
    { IBV_QPT_UC, RTS, SQD, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY },
    { IBV_QPT_UC, SQD, RTS, 0, LIVE_UC },
    { IBV_QPT_UC, SQD, SQD, 0, IBV_QP_AV | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS },
    { IBV_QPT_UD, RESET, INIT, ADDRESS | IBV_QP_QKEY, 0 },
    { IBV_QPT_UD, INIT, INIT, 0, ADDRESS | IBV_QP_QKEY },
    { IBV_QPT_UD, INIT, RTR, 0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY },
    { IBV_QPT_UD, RTR, RTS, IBV_QP_SQ_PSN, LIVE_UD },
    { IBV_QPT_UD, RTS, RTS, 0, LIVE_UD },
    { IBV_QPT_UD, RTS, SQD, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY },
    { IBV_QPT_UD, SQD, RTS, 0, LIVE_UD },
    { IBV_QPT_UD, SQD, SQD, 0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY },
};

static const char *const names[] = { "RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR" };

static const char *type_name(enum ibv_qp_type type)
{
    return type == IBV_QPT_RC ? "RC" : type == IBV_QPT_UC ? "UC" : "UD";
}

/* Valid values for all attributes. */
static struct ibv_qp_attr values(int from, int to)
{
    return (struct ibv_qp_attr){
        .qp_state = to,
        .cur_qp_state = from,
        .port_num = port_num,
        .qkey = QKEY,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = 0x123456,
        .rq_psn = PSN,
        .sq_psn = PSN,
        .max_dest_rd_atomic = 1,
        .max_rd_atomic = 1,
        .min_rnr_timer = 12,
        .timeout = 14,
        .retry_cnt = 7,
        .rnr_retry = 7,
        .ah_attr = { .is_global = 1,
                     .port_num = port_num,
                     .grh = { .dgid = gid, .sgid_index = gid_index, .hop_limit = 1 } }
    };
}

/* Moves a new QP to `state`. */
static struct ibv_qp *qp_in(enum ibv_qp_type type, int state)
{
    struct options options = { .type = type };
    struct ibv_qp *qp = new_qp(&options);
    if (state == RESET) return qp;
    NEED((errno = to_init(qp, &options)) == 0);
    if (state == ERR) return EXPECT_EQ(to_state(qp, ERR), 0), qp;
    if (state == INIT) return qp;
    NEED((errno = to_rtr(qp, 0x123456, &options)) == 0);
    if (state == RTR) return qp;
    NEED((errno = to_rts(qp, &options)) == 0);
    if (state != SQD) return qp;
    NEED((errno = to_state(qp, SQD)) == 0);
    EXPECT_STATE(qp, SQD);
    return qp;
}

static int modify(struct ibv_qp *qp, const struct transition *transition, int mask)
{
    struct ibv_qp_attr attr = values(transition->from, transition->to);
    return ibv_modify_qp(qp, &attr, IBV_QP_STATE | mask);
}

/* Leaves out each required attribute once. */
static void required(const void *row)
{
    const struct transition *transition = row;
    struct ibv_qp *qp = qp_in(transition->type, transition->from);
    for (int bit = 1; bit < 1 << 21; bit <<= 1) {
        if (!(transition->required & bit)) continue;
        EXPECT_EQ(modify(qp, transition, transition->required & ~bit), EINVAL);
        EXPECT_EQ(state_of(qp), transition->from);
    }
    EXPECT_EQ(modify(qp, transition, transition->required), 0);
    EXPECT_EQ(state_of(qp), transition->to);
    EXPECT_EQ(qp->state, transition->to);
}

/* Passes each optional attribute once, and then all of them. */
static void optional(const void *row)
{
    const struct transition *transition = row;
    for (int bit = 1; bit < 1 << 21; bit <<= 1) {
        if (!(transition->optional & bit)) continue;
        struct ibv_qp *qp = qp_in(transition->type, transition->from);
        int code = modify(qp, transition, transition->required | bit);
        if (code) fail(__FILE__, __LINE__, "attribute %#x: %d", bit, code);
        EXPECT_EQ(state_of(qp), transition->to);
    }
    struct ibv_qp *qp = qp_in(transition->type, transition->from);
    EXPECT_EQ(modify(qp, transition, transition->required | transition->optional), 0);
    EXPECT_STATE(qp, (enum ibv_qp_state)transition->to);
}

/* Passes each other attribute once, which is refused. RoCE has no alternate paths: not tested. */
static void others(const void *row)
{
    const struct transition *transition = row;
    int allowed = transition->required | transition->optional | IBV_QP_STATE | IBV_QP_ALT_PATH
        | IBV_QP_PATH_MIG_STATE | IBV_QP_CAP | IBV_QP_RATE_LIMIT;
    struct ibv_qp *qp = qp_in(transition->type, transition->from);
    for (int bit = 1; bit < 1 << 21; bit <<= 1) {
        if (allowed & bit) continue;
        int code = modify(qp, transition, transition->required | bit);
        if (code != EINVAL) fail(__FILE__, __LINE__, "attribute %#x: %d, not EINVAL", bit, code);
        EXPECT_EQ(state_of(qp), transition->from);
    }
}

struct corner { enum ibv_qp_type type; int from; };

/* Tries all states that are not reachable from this one. */
static void illegal(const void *row)
{
    const struct corner *corner = row;
    struct ibv_qp *qp = qp_in(corner->type, corner->from);
    for (int to = RESET; to < ERR; to++) {
        bool legal = to == RESET;
        for (unsigned i = 0; i < ROWS(transitions); i++)
            legal |= transitions[i].type == corner->type && transitions[i].from == corner->from
                && transitions[i].to == to;
        if (legal) continue;
        struct transition wrong = { corner->type, corner->from, to, 0, 0 };
        int needs[] = {
            0,      ADDRESS | (corner->type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS),
            RTR_UC, RTR_RC,
            RTS_RC, IBV_QP_SQ_PSN
        };
        for (unsigned i = 0; i < ROWS(needs); i++) {
            int code = modify(qp, &wrong, needs[i]);
            if (code != EINVAL) fail(__FILE__, __LINE__, "to %s: %d, not EINVAL", names[to], code);
        }
    }
    EXPECT_EQ(state_of(qp), corner->from);
}

static void always(const void *row)
{
    const struct corner *corner = row;
    struct ibv_qp *qp = qp_in(corner->type, corner->from);
    /* The specification allows ERR from every state; Linux's table does not allow RESET to ERR. */
    int code = to_state(qp, ERR);
    EXPECT(code == 0 || (code == EINVAL && corner->from == RESET));
    EXPECT_EQ(state_of(qp), code == 0 ? ERR : RESET);
    qp = qp_in(corner->type, corner->from);
    EXPECT_EQ(to_state(qp, RESET), 0);
    EXPECT_EQ(state_of(qp), RESET);
}

/* ---- Values. */

static const struct wrong {
    const char *name;
    int from, to, mask, offset, value, size;
} wrongs[] = {
#define WRONG(name, from, to, mask, field, value)                                                 \
    { name, from, to, mask, offsetof(struct ibv_qp_attr, field), value,                           \
      sizeof(((struct ibv_qp_attr *)NULL)->field) }
    WRONG("port 0", RESET, INIT, ADDRESS | IBV_QP_ACCESS_FLAGS, port_num, 0),
    WRONG("port 200", RESET, INIT, ADDRESS | IBV_QP_ACCESS_FLAGS, port_num, 200),
    WRONG("P_Key index 60000", RESET, INIT, ADDRESS | IBV_QP_ACCESS_FLAGS, pkey_index, 60000),
    WRONG("path MTU 0", INIT, RTR, RTR_RC, path_mtu, 0),
    WRONG("path MTU 6", INIT, RTR, RTR_RC, path_mtu, 6),
    WRONG("max_dest_rd_atomic 255", INIT, RTR, RTR_RC, max_dest_rd_atomic, 255),
    WRONG("GID index 250", INIT, RTR, RTR_RC, ah_attr.grh.sgid_index, 250),
    WRONG("no GRH", INIT, RTR, RTR_RC, ah_attr.is_global, 0),
    WRONG("max_rd_atomic 255", RTR, RTS, RTS_RC, max_rd_atomic, 255),
    WRONG("current state INIT", RTR, RTS, RTS_RC | IBV_QP_CUR_STATE, cur_qp_state, IBV_QPS_INIT),
    WRONG("state 77", RTR, RTS, RTS_RC, qp_state, 77),
};

static void wrong(const void *row)
{
    const struct wrong *wrong = row;
    struct ibv_qp *qp = qp_in(IBV_QPT_RC, wrong->from);
    struct ibv_qp_attr attr = values(wrong->from, wrong->to);
    memcpy((char *)&attr + wrong->offset, &wrong->value, wrong->size);
    int code = ibv_modify_qp(qp, &attr, IBV_QP_STATE | wrong->mask);
    bool of_gid = wrong->offset == offsetof(struct ibv_qp_attr, ah_attr.grh.sgid_index);
    EXPECT(code == EINVAL || (code == ENODATA && of_gid));
    EXPECT_EQ(state_of(qp), wrong->from);
}

static void drained(const void *row)
{
    (void)row;
    struct pair *pair = new_pair(NULL);
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1 };
    /* A request that was not started before SQD may wait for RTS, so wait for this one. */
    EXPECT_EQ(post_op(pair, IBV_WR_RDMA_WRITE, 10000), 0);
    EXPECT_STATUS(next_wc(pair->a.cq).status, IBV_WC_SUCCESS);
    NEED((errno = ibv_modify_qp(pair->a.qp, &attr, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY)) ==
         0);
    struct ibv_async_event event = next_event(IBV_EVENT_SQ_DRAINED);
    EXPECT(event.element.qp == pair->a.qp);
    ibv_ack_async_event(&event);
    /* A request that is posted in SQD waits for RTS. */
    EXPECT_EQ(post_op(pair, IBV_WR_RDMA_WRITE, 10), 0);
    EXPECT_NO_WC(pair->a.cq);
    EXPECT_EQ(to_state(pair->a.qp, IBV_QPS_RTS), 0);
    EXPECT_STATUS(next_wc(pair->a.cq).status, IBV_WC_SUCCESS);
}

void transition_cases(void)
{
    static const char reference[] = "ibv_modify_qp(3), IBTA 11.2.5.2";
    for (unsigned i = 0; i < ROWS(transitions); i++) {
        const struct transition *row = &transitions[i];
        const char *type = type_name(row->type), *from = names[row->from], *to = names[row->to];
        test(reference, required, row, "state/%s: %s to %s, required attributes", type, from, to);
        if (row->optional)
            test(reference, optional, row, "state/%s: %s to %s, optional attributes", type, from,
                 to);
        test(reference, others, row, "state/%s: %s to %s, other attributes", type, from, to);
    }
    static const enum ibv_qp_type types[] = { IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD };
    static const int states[] = { RESET, INIT, RTR, RTS, SQD, ERR };
    static struct corner corners[ROWS(types) * ROWS(states)];
    for (unsigned i = 0; i < ROWS(corners); i++) {
        corners[i] = (struct corner){ types[i / ROWS(states)], states[i % ROWS(states)] };
        const char *type = type_name(corners[i].type), *from = names[corners[i].from];
        test(reference, illegal, &corners[i], "state/%s: from %s to states out of reach", type,
             from);
        test(reference, always, &corners[i], "state/%s: from %s to ERR and RESET", type, from);
    }
    for (unsigned i = 0; i < ROWS(wrongs); i++)
        test(reference, wrong, &wrongs[i], "state/value: %s", wrongs[i].name);
    test("ibv_modify_qp(3), IBTA 10.3.1", drained, NULL, "state/SQD: drained, an event, waiting");
}
