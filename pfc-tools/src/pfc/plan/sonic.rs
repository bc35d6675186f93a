//! The plan as tables of SONiC's `config_db.json`, for the traditional buffer model. SONiC's YANG
//! models document them; a test holds what they demand.

use serde_json::{Map, Value, json};

use super::{Options, Plan};

/// Name of the maps and of the cable table in SONiC's own configurations.
const NAME: &str = "AZURE";
const WRED: &str = "AZURE_LOSSLESS";
/// DSCP of RoCE data, as `doctor` expects it.
const ROCE_DSCP: u8 = 26;
/// The watchdog's poll, detection and restoration time in milliseconds for up to 32 ports, as set
/// by `pfcwd start_default`, which multiplies it for more ports.
const WATCHDOG_MS: u64 = 200;
/// The longest time that the watchdog's poll interval may have, in milliseconds.
const WATCHDOG_MAX_MS: u64 = 1000;
/// Exponent of the dynamic threshold of lossy classes: 2^3, as in SONiC's own configurations.
const LOSSY_TH: &str = "3";

const INGRESS_POOL: &str = "ingress_lossless_pool";
const EGRESS_POOL: &str = "egress_lossless_pool";
const EGRESS_LOSSY_POOL: &str = "egress_lossy_pool";
const INGRESS_LOSSY: &str = "ingress_lossy_profile";
const EGRESS_LOSSLESS: &str = "egress_lossless_profile";
const EGRESS_LOSSY: &str = "egress_lossy_profile";

/// Where a paused class resumes, as in SONiC's model: at the size of the pipeline.
fn xon(options: &Options) -> u64 {
    options.link().cells.pipeline
}

/// Bytes that the lossless classes of all ports reserve: `size` of their profile.
pub(super) fn reserved(options: &Options, plan: &Plan) -> u64 {
    let classes = u64::from(options.mask().count_ones());
    classes * options.ports * (xon(options) + plan.headroom())
}

/// All tables. Every value is a string.
pub(super) fn tables(options: &Options, plan: &Plan) -> Value {
    let name = options.interface();
    let lossless = options.priorities();
    let list = lossless.iter().map(u8::to_string).collect::<Vec<_>>().join(",");
    let profile = lossless_profile(options);
    // Lossy classes share the lowest priority group that is not lossless.
    let lossy = (0..8).find(|priority| !lossless.contains(priority));
    let per = |all: &[u8], of: &dyn Fn(u8) -> Value| -> Map<String, Value> {
        all.iter().map(|&priority| (format!("{name}|{priority}"), of(priority))).collect()
    };
    let mut groups = per(&lossless, &|_| json!({ "profile": profile }));
    if let Some(lossy) = lossy {
        groups.extend(per(&[lossy], &|_| json!({ "profile": INGRESS_LOSSY })));
    }
    let all = [0, 1, 2, 3, 4, 5, 6, 7];
    let of_queue = |queue: u8| {
        let is_lossless = lossless.contains(&queue);
        json!({ "profile": if is_lossless { EGRESS_LOSSLESS } else { EGRESS_LOSSY } })
    };
    let group = |tc: u8| if lossless.contains(&tc) { tc } else { lossy.unwrap_or(tc) };
    json!({
        "CABLE_LENGTH": { NAME: { name: format!("{}m", options.cable) } },
        "BUFFER_POOL": pools(options, plan),
        "BUFFER_PROFILE": profiles(options, plan),
        "BUFFER_PG": groups,
        "BUFFER_QUEUE": per(&all, &of_queue),
        "DSCP_TO_TC_MAP": { NAME: map(64, |dscp| class_of(dscp, &lossless)) },
        "TC_TO_PRIORITY_GROUP_MAP": { NAME: map(8, group) },
        "TC_TO_QUEUE_MAP": { NAME: map(8, |tc| tc) },
        "MAP_PFC_PRIORITY_TO_QUEUE": { NAME: map(8, |priority| priority) },
        "PORT_QOS_MAP": { name: {
            "dscp_to_tc_map": NAME,
            "tc_to_pg_map": NAME,
            "tc_to_queue_map": NAME,
            "pfc_to_queue_map": NAME,
            "pfc_enable": list,
            "pfcwd_sw_enable": list,
        } },
        "PFC_WD": watchdog(options),
        "WRED_PROFILE": { WRED: wred(options) },
        "QUEUE": per(&lossless, &|_| json!({ "wred_profile": WRED })),
    })
}

fn lossless_profile(options: &Options) -> String {
    let megabits = options.rate.bits_per_second() / 1_000_000;
    format!("pg_lossless_{megabits}_{}m_profile", options.cable)
}

/// A map of the first `count` numbers.
fn map(count: u8, of: impl Fn(u8) -> u8) -> Map<String, Value> {
    (0..count).map(|key| (key.to_string(), of(key).to_string().into())).collect()
}

/// Traffic class of a DSCP: DSCP / 8, the default of NICs and of Feroce's endpoint. RoCE's DSCP is
/// always lossless.
fn class_of(dscp: u8, lossless: &[u8]) -> u8 {
    let class = dscp / 8;
    match lossless.first() {
        Some(&first) if dscp == ROCE_DSCP && !lossless.contains(&class) => first,
        _ => class,
    }
}

/// The pools. Ingress is the buffer without what lossless classes reserve. The egress pool of the
/// lossless classes is the whole buffer, so that they are paused at ingress and never dropped at
/// egress.
fn pools(options: &Options, plan: &Plan) -> Value {
    let shared = options.buffer.saturating_sub(reserved(options, plan)).to_string();
    let mode = if options.is_static { "static" } else { "dynamic" };
    json!({
        INGRESS_POOL: { "type": "ingress", "mode": mode, "size": shared },
        EGRESS_POOL: { "type": "egress", "mode": "static", "size": options.buffer.to_string() },
        EGRESS_LOSSY_POOL: { "type": "egress", "mode": "dynamic", "size": shared },
    })
}

fn profiles(options: &Options, plan: &Plan) -> Value {
    let (xon, xoff) = (xon(options), plan.headroom());
    let mut lossless = json!({
        "pool": INGRESS_POOL,
        "size": (xon + xoff).to_string(),
        "xon": xon.to_string(),
        "xoff": xoff.to_string(),
    });
    let mut lossy = json!({ "pool": INGRESS_POOL, "size": "0" });
    // The kind of threshold is that of the pool.
    if options.is_static {
        let threshold = plan.columns[plan.chosen].thresholds.map_or(0, |t| t.xoff_static);
        lossless["static_th"] = threshold.to_string().into();
        lossy["static_th"] = threshold.to_string().into();
    } else {
        // SAI expects the exponent of a power of two.
        lossless["dynamic_th"] = options.exponent().map(|power| power.to_string()).into();
        lossy["dynamic_th"] = LOSSY_TH.into();
    }
    let whole = options.buffer.to_string();
    json!({
        lossless_profile(options): lossless,
        INGRESS_LOSSY: lossy,
        EGRESS_LOSSLESS: { "pool": EGRESS_POOL, "size": "0", "static_th": whole },
        EGRESS_LOSSY: { "pool": EGRESS_LOSSY_POOL, "size": "0", "dynamic_th": LOSSY_TH },
    })
}

/// The watchdog, which drops what waits behind a storm.
fn watchdog(options: &Options) -> Value {
    let times = (WATCHDOG_MS * options.ports.div_ceil(32)).min(WATCHDOG_MAX_MS).to_string();
    json!({
        "GLOBAL": { "POLL_INTERVAL": times },
        options.interface(): {
            "action": "drop", "detection_time": times, "restoration_time": times,
        },
    })
}

fn wred(options: &Options) -> Value {
    json!({
        "ecn": "ecn_all",
        "wred_green_enable": "true",
        "green_min_threshold": options.kmin.to_string(),
        "green_max_threshold": options.kmax.to_string(),
        "green_drop_probability": options.pmax.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        options: Options,
    }

    fn planned(arguments: &str) -> Value {
        let line = format!("plan --output sonic {arguments}");
        let options = Cli::parse_from(line.split_whitespace()).options;
        tables(&options, &options.plan())
    }

    fn number(value: &Value) -> i64 {
        value.as_str().expect("a string").parse().expect("a number")
    }

    fn rows(table: &Value) -> impl Iterator<Item = (&String, &Value)> {
        table.as_object().expect("a table").iter()
    }

    /// Fields of each table in SONiC's YANG models: sonic-buffer-pool, -buffer-profile, -buffer-pg,
    /// -buffer-queue, -port-qos-map, -pfcwd, -wred-profile and -queue.
    const FIELDS: [(&str, &[&str]); 8] = [
        ("BUFFER_POOL", &["type", "mode", "size", "xoff", "percentage"]),
        (
            "BUFFER_PROFILE",
            &["pool", "size", "xon", "xon_offset", "xoff", "dynamic_th", "static_th"],
        ),
        ("BUFFER_PG", &["profile"]),
        ("BUFFER_QUEUE", &["profile"]),
        (
            "PORT_QOS_MAP",
            &[
                "dscp_to_tc_map",
                "tc_to_pg_map",
                "tc_to_queue_map",
                "pfc_to_queue_map",
                "pfc_enable",
                "pfcwd_sw_enable",
            ],
        ),
        ("PFC_WD", &["action", "detection_time", "restoration_time", "POLL_INTERVAL"]),
        (
            "WRED_PROFILE",
            &[
                "ecn",
                "wred_green_enable",
                "green_min_threshold",
                "green_max_threshold",
                "green_drop_probability",
            ],
        ),
        ("QUEUE", &["wred_profile", "scheduler"]),
    ];

    /// Field of a table that names a row of another one.
    const REFERENCES: [(&str, &str, &str); 9] = [
        ("BUFFER_PROFILE", "pool", "BUFFER_POOL"),
        ("BUFFER_PG", "profile", "BUFFER_PROFILE"),
        ("BUFFER_QUEUE", "profile", "BUFFER_PROFILE"),
        ("QUEUE", "wred_profile", "WRED_PROFILE"),
        ("PORT_QOS_MAP", "dscp_to_tc_map", "DSCP_TO_TC_MAP"),
        ("PORT_QOS_MAP", "tc_to_pg_map", "TC_TO_PRIORITY_GROUP_MAP"),
        ("PORT_QOS_MAP", "tc_to_queue_map", "TC_TO_QUEUE_MAP"),
        ("PORT_QOS_MAP", "pfc_to_queue_map", "MAP_PFC_PRIORITY_TO_QUEUE"),
        ("PFC_WD", "", "PORT_QOS_MAP"),
    ];

    /// What the models demand of the tables.
    fn check(tables: &Value) {
        for (table, fields) in FIELDS {
            for (row, values) in rows(&tables[table]) {
                for (field, value) in rows(values) {
                    assert!(fields.contains(&field.as_str()), "{table}|{row}: {field}");
                    assert!(value.is_string(), "{table}|{row}: {field} {value}");
                }
            }
        }
        for (table, field, other) in REFERENCES {
            for (row, values) in rows(&tables[table]).filter(|(row, _)| *row != "GLOBAL") {
                let name = if field.is_empty() { row } else { values[field].as_str().unwrap() };
                assert!(!tables[other][name].is_null(), "{table}|{row}: {field} {name}");
            }
        }
        for (name, profile) in rows(&tables["BUFFER_PROFILE"]) {
            let pool = &tables["BUFFER_POOL"][profile["pool"].as_str().unwrap()];
            let threshold = format!("{}_th", pool["mode"].as_str().unwrap());
            assert!(profile[&threshold].is_string(), "{name}: {profile}");
            if threshold == "dynamic_th" {
                assert!((-8..=7).contains(&number(&profile[&threshold])), "{name}");
            }
        }
        let poll = number(&tables["PFC_WD"]["GLOBAL"]["POLL_INTERVAL"]);
        assert!((100..=1000).contains(&poll), "{poll}");
        for (_, port) in rows(&tables["PFC_WD"]).filter(|(row, _)| *row != "GLOBAL") {
            assert!((poll..=5000).contains(&number(&port["detection_time"])), "{port}");
            assert!((poll..=60_000).contains(&number(&port["restoration_time"])), "{port}");
            assert!(["drop", "forward", "alert"].contains(&port["action"].as_str().unwrap()));
        }
        for (table, keys) in [("DSCP_TO_TC_MAP", 64), ("TC_TO_PRIORITY_GROUP_MAP", 8)] {
            let map = &tables[table][NAME];
            assert!(rows(map).all(|(_, class)| (0..8).contains(&number(class))), "{table}");
            assert!((0..keys).all(|key| map[key.to_string()].is_string()), "{table}");
        }
    }

    #[test]
    fn the_tables_follow_sonics_models() {
        for arguments in [
            "--rate 100G",
            "--rate 100G --priorities 3,4 --interface Ethernet8",
            "--rate 25G --static --cable 5",
            "--rate 400G --ports 64 --buffer 128MB --priorities 0,5 --beta 1/8",
            "--rate 10G --ports 4096 --buffer 1000MB",
            "--rate 10G --ports 8 --priorities 0,1,2,3,4,5,6,7",
        ] {
            check(&planned(arguments));
        }
    }

    #[test]
    fn the_pools_share_the_buffer() {
        let tables = planned("--rate 100G --priorities 3,4");
        let profile = &tables["BUFFER_PROFILE"]["pg_lossless_100000_100m_profile"];
        assert_eq!((number(&profile["xon"]), number(&profile["xoff"])), (18_432, 111_616));
        assert_eq!(number(&profile["size"]), 130_048);
        let pools = &tables["BUFFER_POOL"];
        // 32 ports with two classes each.
        assert_eq!(number(&pools[INGRESS_POOL]["size"]), 32_000_000 - 64 * 130_048);
        assert_eq!(number(&pools[EGRESS_POOL]["size"]), 32_000_000);
        assert_eq!(tables["BUFFER_QUEUE"]["Ethernet0|4"]["profile"], EGRESS_LOSSLESS);
        assert_eq!(tables["BUFFER_QUEUE"]["Ethernet0|5"]["profile"], EGRESS_LOSSY);
    }

    #[test]
    fn roce_is_lossless_and_lossy_classes_share_a_group() {
        let tables = planned("--rate 100G --priorities 0,4");
        let (dscp, group) =
            (&tables["DSCP_TO_TC_MAP"][NAME], &tables["TC_TO_PRIORITY_GROUP_MAP"][NAME]);
        // DSCP 26 would be of class 3, which is lossy here.
        assert_eq!([&dscp["24"], &dscp["26"], &dscp["39"], &dscp["48"]], ["3", "0", "4", "6"]);
        assert_eq!([&group["0"], &group["4"], &group["3"], &group["7"]], ["0", "4", "1", "1"]);
        assert_eq!(tables["BUFFER_PG"]["Ethernet0|1"]["profile"], INGRESS_LOSSY);
        assert_eq!(planned("--rate 100G")["DSCP_TO_TC_MAP"][NAME]["26"], "3");
        assert_eq!(planned("--rate 100G")["PORT_QOS_MAP"]["Ethernet0"]["pfcwd_sw_enable"], "3");
    }

    #[test]
    fn the_watchdog_polls_less_often_on_more_ports() {
        let poll = |ports| {
            let tables = planned(&format!("--rate 100G --ports {ports} --buffer 900MB"));
            number(&tables["PFC_WD"]["GLOBAL"]["POLL_INTERVAL"])
        };
        assert_eq!([poll(32), poll(33), poll(64), poll(4096)], [200, 400, 400, 1000]);
    }
}
