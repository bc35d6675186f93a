//! The command line of `feroce perf`, and the plan made from it.

use clap::{Args, ValueHint};
use feroce_engine::device::settings::{Origin, Settings};
use feroce_wire::PathMtu;
use serde::Serialize;

use super::plan::{DURATIONS, MAX_QPS, MAX_SIZE, Op, Plan, RequestedMtu, SplitMode, Transport};
use crate::failure::Failure;
use crate::open::OpenOptions;
use crate::setting_flag;

/// Options of `feroce perf`.
#[derive(Debug, Args)]
#[command(after_help = "\
The server runs `feroce perf -i IFACE`, the client `feroce perf -i IFACE SERVER` with the options \
of the test. The server uses the client's options, and refuses a client whose options contradict \
its own. Latencies are half round trips for write and send, and full round trips for read and \
atomics, as in perftest.")]
pub struct Options {
    /// Host name or address of the server; without it, be the server
    #[arg(value_hint = ValueHint::Hostname)]
    pub server: Option<String>,
    /// Local GID index [default: the GID of the address that the control connection uses]
    #[arg(short = 'x', long, value_name = "N")]
    pub gid_index: Option<u32>,
    /// TCP port of the control connection
    #[arg(short, long, value_name = "PORT", default_value_t = 18515)]
    pub port: u16,
    /// Server: keep serving after the first client
    #[arg(long, conflicts_with = "server")]
    pub persist: bool,
    /// Options of the device
    #[command(flatten)]
    pub open: OpenOptions,
    /// Options of the test
    #[command(flatten)]
    pub test: TestOptions,
    /// Print JSON
    #[arg(long, help_heading = "Report")]
    pub json: bool,
    /// Bandwidth in Gb/s instead of MiB/s
    #[arg(long, help_heading = "Report")]
    pub report_gbits: bool,
}

impl Options {
    /// The settings in effect.
    pub fn settings(&self) -> Result<Settings, Failure> {
        let mut settings = self.open.settings.load()?;
        let flags = [
            ("traffic_class", "--tclass", self.test.tclass.map(|class| class.to_string())),
            ("ack_timeout", "--timeout", self.test.timeout.map(|code| code.to_string())),
            ("retry_count", "--retry", self.test.retry.map(|count| count.to_string())),
            ("path_mtu", "--mtu", self.test.mtu.map(show_mtu)),
        ];
        for (key, flag, value) in flags {
            if let Some(value) = value {
                settings.set(key, &value, Origin::Flag(flag))?;
            }
        }
        Ok(settings)
    }

    /// Checks that the options fit the transport and each other.
    ///
    /// # Errors
    /// [`Failure::Usage`].
    pub fn check(&self, settings: &Settings, transport: Transport) -> Result<(), Failure> {
        if transport == Transport::Roce {
            return self.open.check(settings);
        }
        let gid_index = self.gid_index.is_some().then_some("-x");
        match self.open.given().or(gid_index) {
            Some(flag) => Err(Failure::Usage(format!(
                "{flag} is for RoCE: the kernel's TCP uses the interface of its route"
            ))),
            None => Ok(()),
        }
    }
}

/// Options of the test. Both sides must agree; the client decides.
#[derive(Debug, Default, Clone, Args, Serialize)]
#[command(next_help_heading = "Test (the client's)")]
pub struct TestOptions {
    /// Transport to measure: RoCE, or the kernel's TCP for comparison
    #[arg(long, value_enum)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transport: Option<Transport>,
    /// Operation [default: write; with TCP: send]
    #[arg(long, value_enum)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub op: Option<Op>,
    /// Measure latency instead of bandwidth
    #[arg(long)]
    #[serde(skip_serializing_if = "is_false")]
    pub latency: bool,
    /// Message size in bytes, with suffix K or M [default: 65536; for latency 2; atomics always 8]
    #[arg(short, long, value_name = "BYTES", value_parser = parse_size)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u32>,
    /// All sizes from 2 to 2^23
    #[arg(short, long, conflicts_with = "size")]
    #[serde(skip_serializing_if = "is_false")]
    pub all: bool,
    /// Messages per QP [default: 5000, or as many as make 1 GiB if fewer; for latency 1000]
    #[arg(
        short = 'n',
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iters: Option<u64>,
    /// Duration of each size in seconds, instead of a number of messages
    #[arg(
        short = 'D',
        long,
        value_name = "SECONDS",
        conflicts_with = "iters",
        value_parser = parse_seconds
    )]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration: Option<f64>,
    /// Queue pairs, up to 100000 [default: 1]
    #[arg(short, long, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_QPS)))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qps: Option<u32>,
    /// Path MTU, or `auto`: the largest that both ports carry [default: setting `path_mtu`, auto]
    #[arg(short, long, value_name = "BYTES",
          value_parser = setting_flag::value_of("path_mtu", mtu_of))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<RequestedMtu>,
    /// Outstanding requests per QP [default: 128]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=32768))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tx_depth: Option<u32>,
    /// Both sides send
    #[arg(short, long, conflicts_with = "latency")]
    #[serde(skip_serializing_if = "is_false")]
    pub bidirectional: bool,
    /// Post messages up to this size inline [default: 0]
    #[arg(
        short = 'I',
        long,
        value_name = "BYTES",
        value_parser = clap::value_parser!(u32).range(..=1024)
    )]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inline: Option<u32>,
    /// Traffic class: DSCP and ECN bits [default: setting `traffic_class`, 0]
    #[arg(
        long,
        value_name = "N",
        value_parser = setting_flag::value_of("traffic_class", |all| all.traffic_class)
    )]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tclass: Option<u8>,
    /// Local ACK timeout: 4.096 us * 2^N; 0: never [default: setting `ack_timeout`, 14]
    #[arg(
        short = 'u',
        long,
        value_name = "N",
        value_parser = setting_flag::value_of("ack_timeout", |all| all.ack_timeout)
    )]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<u8>,
    /// Retries after timeouts and sequence errors [default: setting `retry_count`, 7]
    #[arg(
        long,
        value_name = "N",
        value_parser = setting_flag::value_of("retry_count", |all| all.retry_count)
    )]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<u8>,
    /// When to split long WRITEs and READs into several messages, which fill super-frames [default:
    /// auto]
    #[arg(long, value_name = "WHEN")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub split: Option<SplitMode>,
    /// Compare each message byte by byte when it arrives, and the return value of each atomic. The
    /// last of a few WRITEs then carries immediate data, which show the peer that they are there
    #[arg(long)]
    #[serde(skip_serializing_if = "is_false")]
    pub check: bool,
}

impl TestOptions {
    /// The plan, with defaults filled in.
    ///
    /// # Errors
    /// [`Failure::Usage`] if options conflict.
    pub fn plan(&self, settings: &Settings) -> Result<Plan, Failure> {
        let transport = self.transport.unwrap_or(Transport::Roce);
        let default_op = match transport {
            Transport::Roce => Op::Write,
            Transport::Tcp => Op::Send,
        };
        let op = self.op.unwrap_or(default_op);
        let size = match (op.is_atomic(), self.latency) {
            (true, _) => 8,
            (false, true) => 2,
            (false, false) => 65_536,
        };
        let plan = Plan {
            transport,
            op,
            latency: self.latency,
            size: self.size.unwrap_or(size),
            all: self.all,
            iters: self.iters,
            duration: self.duration,
            qps: self.qps.unwrap_or(1),
            mtu: mtu_of(settings),
            tx_depth: self.tx_depth.unwrap_or(128),
            bidirectional: self.bidirectional,
            inline: self.inline.unwrap_or(0),
            tclass: settings.traffic_class,
            timeout: settings.ack_timeout,
            retry: settings.retry_count,
            split: self.split.unwrap_or(SplitMode::Auto),
            check: self.check,
        };
        match self.tcp_contradiction(&plan).or_else(|| plan.contradiction()) {
            Some(detail) => Err(Failure::Usage(detail.to_owned())),
            None => Ok(plan),
        }
    }

    fn tcp_contradiction(&self, plan: &Plan) -> Option<&'static str> {
        let only_roce = self.qps.is_some()
            || self.mtu.is_some()
            || self.tx_depth.is_some()
            || self.inline.is_some()
            || self.tclass.is_some()
            || self.timeout.is_some()
            || self.split.is_some()
            || self.retry.is_some();
        (plan.transport == Transport::Tcp && only_roce).then_some(
            "--qps, --mtu, --tx-depth, --inline, --tclass, --timeout, --retry and --split do not \
             apply to TCP: leave them out",
        )
    }

    /// The first given option that contradicts `plan`, as a message.
    pub fn conflict_with(&self, plan: &Plan) -> Option<String> {
        let own = serde_json::to_value(self).expect("plain data");
        let theirs = serde_json::to_value(plan).expect("plain data");
        own.as_object()?.iter().find_map(|(name, value)| {
            let other = &theirs[name];
            let option = name.replace('_', "-");
            // `None` stands for `auto`.
            let [own, theirs] = [value, other].map(|value| match value.is_null() {
                true => "auto".to_owned(),
                false => value.to_string(),
            });
            (other != value)
                .then(|| format!("--{option} is {own} at the server and {theirs} at the client"))
        })
    }
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde requires a reference
fn is_false(flag: &bool) -> bool {
    !flag
}

fn parse_size(text: &str) -> Result<u32, String> {
    let lower = text.to_lowercase();
    let scales = [("k", 10), ("m", 20), ("g", 30)];
    let scaled =
        scales.into_iter().find_map(|(suffix, by)| Some((lower.strip_suffix(suffix)?, by)));
    let (digits, shift) = scaled.unwrap_or((&lower, 0));
    let number: u64 = digits
        .parse()
        .map_err(|_| format!("`{text}` is not a size in bytes, such as 4096, 64K or 1M"))?;
    let size = number.checked_mul(1 << shift).and_then(|size| u32::try_from(size).ok());
    size.filter(|&size| size <= MAX_SIZE)
        .ok_or_else(|| "a message is at most 1 GiB here".to_owned())
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("`{text}` is not a number"))?;
    let sensible = DURATIONS.contains(&seconds);
    sensible.then_some(seconds).ok_or_else(|| "a duration is 0.001 to 1000000 s".to_owned())
}

fn mtu_of(settings: &Settings) -> RequestedMtu {
    settings.path_mtu.map(PathMtu::bytes)
}

fn show_mtu(requested: RequestedMtu) -> String {
    requested.map_or_else(|| "auto".to_owned(), |bytes| bytes.to_string())
}

#[cfg(test)]
mod tests {
    use super::super::plan::Goal;
    use super::*;

    #[test]
    fn sizes_have_suffixes() {
        assert_eq!(parse_size("0"), Ok(0));
        assert_eq!(parse_size("64K"), Ok(65_536));
        assert_eq!(parse_size("8m"), Ok(8 << 20));
        assert_eq!(parse_size("1G"), Ok(1 << 30));
        for bad in ["", "K", "-1", "2G", "1.5M", "99999999999999999999"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn all_sizes_are_those_of_perftest() {
        let plan = TestOptions { all: true, ..TestOptions::default() };
        let plan = plan.plan(&Settings::default()).unwrap();
        assert_eq!(plan.sizes().first(), Some(&2));
        assert_eq!(plan.sizes().last(), Some(&(8 << 20)));
        assert_eq!(plan.goal(2), Goal::Messages(5000));
        assert_eq!(plan.goal(8 << 20), Goal::Messages(128));
    }

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        test: TestOptions,
    }

    #[test]
    fn options_of_settings_take_the_values_of_settings() {
        let parse = |words: &str| {
            let words = std::iter::once("perf").chain(words.split_whitespace());
            <Line as clap::Parser>::try_parse_from(words).map(|line| line.test)
        };
        let test = parse("--mtu auto --tclass 0x6a -u 0x12 --retry 3").expect("good options");
        let read = (test.mtu, test.tclass, test.timeout, test.retry);
        assert_eq!(read, (Some(None), Some(0x6a), Some(0x12), Some(3)));
        assert_eq!(parse("-m 1024").expect("good options").mtu, Some(Some(1024)));
        for bad in ["-m 1000", "--tclass 256", "-u 32", "--retry 8"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn contradictions_are_usage_errors() {
        let good = TestOptions::default();
        let bad = [
            TestOptions { op: Some(Op::AtomicCas), size: Some(16), ..good.clone() },
            TestOptions { op: Some(Op::Read), inline: Some(16), ..good.clone() },
            TestOptions { latency: true, qps: Some(2), ..good.clone() },
            TestOptions { latency: true, size: Some(0), ..good.clone() },
            TestOptions { transport: Some(Transport::Tcp), qps: Some(2), ..good.clone() },
            TestOptions { transport: Some(Transport::Tcp), op: Some(Op::Write), ..good.clone() },
        ];
        for options in bad {
            let plan = options.plan(&Settings::default());
            assert!(matches!(plan, Err(Failure::Usage(_))), "{options:?}");
        }
        assert!(good.plan(&Settings::default()).is_ok());
    }

    #[test]
    fn a_server_refuses_contradicting_options() {
        let client = TestOptions { op: Some(Op::Send), size: Some(4096), ..TestOptions::default() };
        let plan = client.plan(&Settings::default()).unwrap();
        assert_eq!(TestOptions::default().conflict_with(&plan), None);
        assert_eq!(client.conflict_with(&plan), None);
        let other = TestOptions { tx_depth: Some(7), ..client };
        let detail = other.conflict_with(&plan).unwrap();
        assert_eq!(detail, "--tx-depth is 7 at the server and 128 at the client");
    }

    #[test]
    fn a_too_large_path_mtu_is_refused_with_the_remedy() {
        let mut settings = Settings::default();
        settings.set("path_mtu", "4096", Origin::Flag("--mtu")).unwrap();
        let requested = TestOptions::default().plan(&settings).unwrap();
        let detail = requested.path_mtu(PathMtu::Mtu1024).unwrap_err().to_string();
        assert!(detail.contains("4184"), "{detail}");
        assert_eq!(requested.path_mtu(PathMtu::Mtu4096).unwrap(), PathMtu::Mtu4096);
    }
}
