/* Devices, ports, GIDs, P_Keys, limits, rates and clocks. */
#include "semantics.h"

static void list(const void *row)
{
    (void)row;
    int count = 0;
    struct ibv_device **devices = ibv_get_device_list(&count);
    NEED(devices);
    EXPECT(count > 0 && devices[count] == NULL);
    for (int i = 0; i < count; i++)
        EXPECT(devices[i] && strlen(ibv_get_device_name(devices[i])) > 0);
    ibv_free_device_list(devices);
}

static void open_again(const void *row)
{
    (void)row;
    struct ibv_context *second = KEEP(ibv_open_device(context->device), ibv_close_device);
    EXPECT(second != context && second->device == context->device);
    EXPECT(second->num_comp_vectors >= 1 && second->async_fd >= 0 && second->cmd_fd >= 0);
    struct ibv_pd *pd = KEEP(ibv_alloc_pd(second), ibv_dealloc_pd);
    EXPECT(pd->context == second);
}

static void guid(const void *row)
{
    (void)row;
    EXPECT(ibv_get_device_guid(context->device) == device.node_guid);
    EXPECT(device.node_guid != 0);
}

static const struct limit { const char *name; size_t offset; int least; } limits[] = {
#define LIMIT(field, least) { #field, offsetof(struct ibv_device_attr, field), least }
    LIMIT(max_qp, 2), LIMIT(max_qp_wr, 64), LIMIT(max_sge, 1), LIMIT(max_sge_rd, 1),
    LIMIT(max_cq, 2), LIMIT(max_cqe, 64), LIMIT(max_mr, 2), LIMIT(max_pd, 2),
    LIMIT(max_qp_rd_atom, 1), LIMIT(max_qp_init_rd_atom, 1), LIMIT(max_ah, 1),
};

static void limit(const void *row)
{
    const struct limit *limit = row;
    int value = *(const int *)((const char *)&device + limit->offset);
    EXPECT(value >= limit->least);
}

static void extended(const void *row)
{
    (void)row;
    struct ibv_device_attr_ex attr;
    NEED(ibv_query_device_ex(context, NULL, &attr) == 0);
    EXPECT(memcmp(&attr.orig_attr, &device, sizeof device) == 0);
    struct ibv_query_device_ex_input input = { .comp_mask = 1 };
    EXPECT_EQ(ibv_query_device_ex(context, &input, &attr), EINVAL);
}

static void port_fields(const void *row)
{
    (void)row;
    struct ibv_port_attr attr;
    EXPECT_EQ(ibv_query_port(context, port_num, &attr), 0);
    EXPECT_EQ(attr.state, IBV_PORT_ACTIVE);
    EXPECT_EQ(attr.link_layer, IBV_LINK_LAYER_ETHERNET);
    EXPECT(attr.active_mtu <= attr.max_mtu && attr.active_mtu >= IBV_MTU_256);
    EXPECT(attr.gid_tbl_len > gid_index && attr.pkey_tbl_len >= 1 && attr.max_msg_sz >= 1 << 20);
}

static const struct {
    const char *name;
    int beyond;
} wrong_ports[] = { { "0", 0 }, { "beyond", 1 } };

static void wrong_port(const void *row)
{
    int number = *(const int *)row ? device.phys_port_cnt + 1 : 0;
    struct ibv_port_attr attr;
    EXPECT_EQ(ibv_query_port(context, number, &attr), EINVAL);
}

static void gids(const void *row)
{
    (void)row;
    union ibv_gid other;
    EXPECT_EQ(ibv_query_gid(context, port_num, port.gid_tbl_len, &other), -1);
    EXPECT_EQ(ibv_query_gid(context, port_num, gid_index, &other), 0);
    EXPECT(memcmp(&other, &gid, sizeof gid) == 0);
}

static void gid_ex(const void *row)
{
    (void)row;
    struct ibv_gid_entry entry;
    NEED((errno = ibv_query_gid_ex(context, port_num, gid_index, &entry, 0)) == 0);
    EXPECT(memcmp(&entry.gid, &gid, sizeof gid) == 0);
    EXPECT_EQ(entry.gid_index, gid_index);
    EXPECT_EQ(entry.port_num, port_num);
    EXPECT_EQ(entry.gid_type, IBV_GID_TYPE_ROCE_V2);
    EXPECT(entry.ndev_ifindex != 0);
    EXPECT(ibv_query_gid_ex(context, port_num, port.gid_tbl_len, &entry, 0) != 0);
    EXPECT(ibv_query_gid_ex(context, device.phys_port_cnt + 1, 0, &entry, 0) != 0);
    /* The library refuses unknown flags with one number, the kernel with the other. */
    int code = ibv_query_gid_ex(context, port_num, gid_index, &entry, 1);
    EXPECT(code == EOPNOTSUPP || code == EINVAL);
}

static void gid_table(const void *row)
{
    (void)row;
    struct ibv_gid_entry table[256];
    ssize_t count = ibv_query_gid_table(context, table, ROWS(table), 0);
    NEED(count > 0);
    bool found = false;
    for (ssize_t i = 0; i < count; i++) {
        union ibv_gid same;
        EXPECT_EQ(ibv_query_gid(context, table[i].port_num, table[i].gid_index, &same), 0);
        EXPECT(memcmp(&same, &table[i].gid, sizeof same) == 0);
        found |= (int)table[i].gid_index == gid_index && table[i].port_num == port_num;
    }
    EXPECT(found);
    count = ibv_query_gid_table(context, table, ROWS(table), 1);
    EXPECT(count == -EOPNOTSUPP || count == -EINVAL);
}

static void pkeys(const void *row)
{
    (void)row;
    __be16 pkey = 0;
    EXPECT_EQ(ibv_query_pkey(context, port_num, 0, &pkey), 0);
    EXPECT_EQ(pkey, 0xffff);
    EXPECT_EQ(ibv_query_pkey(context, port_num, port.pkey_tbl_len, &pkey), -1);
    EXPECT_EQ(ibv_get_pkey_index(context, port_num, 0xffff), 0);
    EXPECT_EQ(ibv_get_pkey_index(context, port_num, htobe16(0x7ffe)), -1);
}

static const struct rate { enum ibv_rate rate; int mult, mbps; } rates[] = {
    { IBV_RATE_2_5_GBPS, 1, 2500 },    { IBV_RATE_5_GBPS, 2, 5000 },
    { IBV_RATE_10_GBPS, 4, 10000 },    { IBV_RATE_20_GBPS, 8, 20000 },
    { IBV_RATE_30_GBPS, 12, 30000 },   { IBV_RATE_40_GBPS, 16, 40000 },
    { IBV_RATE_60_GBPS, 24, 60000 },   { IBV_RATE_80_GBPS, 32, 80000 },
    { IBV_RATE_120_GBPS, 48, 120000 },
};

static void mults(const void *row)
{
    (void)row;
    for (unsigned i = 0; i < ROWS(rates); i++) {
        EXPECT_EQ(ibv_rate_to_mult(rates[i].rate), rates[i].mult);
        EXPECT_EQ(mult_to_ibv_rate(rates[i].mult), rates[i].rate);
    }
    EXPECT_EQ(ibv_rate_to_mult(IBV_RATE_MAX), -1);
    EXPECT_EQ(mult_to_ibv_rate(7), IBV_RATE_MAX);
}

static void megabits(const void *row)
{
    (void)row;
    for (unsigned i = 0; i < ROWS(rates); i++) {
        EXPECT_EQ(ibv_rate_to_mbps(rates[i].rate), rates[i].mbps);
        EXPECT_EQ(mbps_to_ibv_rate(rates[i].mbps), rates[i].rate);
    }
    EXPECT_EQ(ibv_rate_to_mbps(IBV_RATE_MAX), -1);
    EXPECT_EQ(mbps_to_ibv_rate(7), IBV_RATE_MAX);
}

static void strings(const void *row)
{
    (void)row;
    for (int i = IBV_WC_SUCCESS; i <= IBV_WC_TM_RNDV_INCOMPLETE; i++)
        for (int j = IBV_WC_SUCCESS; j < i; j++)
            EXPECT(strcmp(ibv_wc_status_str(i), ibv_wc_status_str(j)) != 0);
    EXPECT(ibv_wc_status_str(1000) != NULL);
    for (int i = IBV_EVENT_CQ_ERR; i <= IBV_EVENT_GID_CHANGE; i++)
        for (int j = IBV_EVENT_CQ_ERR; j < i; j++)
            EXPECT(strcmp(ibv_event_type_str(i), ibv_event_type_str(j)) != 0);
    EXPECT(ibv_event_type_str(1000) && ibv_node_type_str(IBV_NODE_CA));
    EXPECT(ibv_port_state_str(IBV_PORT_ACTIVE) && ibv_port_state_str(1000));
}

static void raw_clock(const void *row)
{
    (void)row;
    struct ibv_values_ex values = { .comp_mask = IBV_VALUES_MASK_RAW_CLOCK }, later = values;
    NEED((errno = ibv_query_rt_values_ex(context, &values)) == 0);
    usleep(2000);
    EXPECT_EQ(ibv_query_rt_values_ex(context, &later), 0);
    EXPECT_EQ(later.comp_mask, IBV_VALUES_MASK_RAW_CLOCK);
    EXPECT(later.raw_clock.tv_sec > values.raw_clock.tv_sec
           || later.raw_clock.tv_nsec > values.raw_clock.tv_nsec);
}

static void increments(const void *row)
{
    (void)row;
    EXPECT_EQ(ibv_inc_rkey(0x12345678), 0x12345679);
    EXPECT_EQ(ibv_inc_rkey(0x123456ff), 0x12345600);
}

void device_cases(void)
{
    test("ibv_get_device_list(3)", list, NULL, "device/list: names, NULL at the end");
    test("ibv_open_device(3)", open_again, NULL, "device/open: a second context");
    test("ibv_get_device_guid(3)", guid, NULL, "device/guid: that of ibv_query_device");
    for (unsigned i = 0; i < ROWS(limits); i++)
        test("ibv_query_device(3)", limit, &limits[i], "device/limit: %s is at least %d",
             limits[i].name, limits[i].least);
    test("ibv_query_device_ex(3)", extended, NULL, "device/extended: the same, unknown input");
    test("ibv_query_port(3)", port_fields, NULL, "port/query: an active Ethernet port");
    for (unsigned i = 0; i < ROWS(wrong_ports); i++)
        test("ibv_query_port(3)", wrong_port, &wrong_ports[i].beyond, "port/query: port %s",
             wrong_ports[i].name);
    test("ibv_query_gid(3)", gids, NULL, "gid/query: an entry, beyond the table");
    test("ibv_query_gid_ex(3)", gid_ex, NULL, "gid/entry: type, interface, wrong arguments");
    test("ibv_query_gid_table(3)", gid_table, NULL, "gid/table: the entries of ibv_query_gid");
    test("ibv_query_pkey(3), ibv_get_pkey_index(3)", pkeys, NULL, "pkey/query: the default P_Key");
    test("ibv_rate_to_mult(3)", mults, NULL, "rate/mult: both ways");
    test("ibv_rate_to_mbps(3)", megabits, NULL, "rate/mbps: both ways");
    test("ibv_event_type_str(3)", strings, NULL, "strings: each value has its own");
    test("ibv_query_rt_values_ex(3)", raw_clock, NULL, "device/clock: advances");
    test("ibv_inc_rkey(3)", increments, NULL, "mw/inc_rkey: the low eight bits");
}
