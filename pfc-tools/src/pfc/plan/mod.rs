//! `feroce pfc plan`: buffers and thresholds for lossless classes, by every published formula.

pub mod formulas;
mod output;
mod sonic;
pub mod thresholds;

use std::io;

use super::outcome::{Failure, Outcome};
use super::units;
use crate::fabric::time::LinkRate;
use formulas::{Cells, Formula, Headroom, Link};
use thresholds::{Switch, Thresholds};

/// Options of `plan`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Link rate, such as 100G
    #[arg(long, value_name = "RATE", value_parser = units::rate)]
    pub rate: LinkRate,
    /// Cable length in metres
    #[arg(long, value_name = "METRES", default_value = "100", value_parser = units::metres)]
    pub cable: u32,
    /// Largest frame of a lossless class; 4200 fits a RoCE payload of 4096 bytes
    #[arg(long, value_name = "BYTES", default_value = "4200", value_parser = units::frame)]
    pub mtu: u64,
    /// Largest frame of any class
    #[arg(long, value_name = "BYTES", default_value = "9216", value_parser = units::frame)]
    pub port_mtu: u64,
    /// Lossless priorities, one class each
    #[arg(
        long,
        value_name = "P,P",
        default_value = "3",
        value_delimiter = ',',
        value_parser = units::priority
    )]
    pub priorities: Vec<u8>,
    /// Shared buffer of the switch
    #[arg(long, value_name = "BYTES", default_value = "32MB", value_parser = units::bytes)]
    pub buffer: u64,
    /// Ports of the switch
    #[arg(
        long,
        value_name = "N",
        default_value = "32",
        value_parser = clap::value_parser!(u64).range(1..=4096)
    )]
    pub ports: u64,
    /// Factor of the dynamic threshold: how much of the free buffer a class may use before it is
    /// paused (alpha of switches, beta of the DCQCN paper)
    #[arg(long, value_name = "PART", default_value = "8", value_parser = thresholds::beta)]
    pub beta: f64,
    /// Use a static threshold, the same for every class of every port, instead of the dynamic one
    #[arg(long = "static")]
    pub is_static: bool,
    /// Queue length at which ECN marking starts
    #[arg(long, value_name = "BYTES", default_value = "5KB", value_parser = units::bytes)]
    pub kmin: u64,
    /// Queue length at which ECN marking reaches the highest probability
    #[arg(long, value_name = "BYTES", default_value = "200KB", value_parser = units::bytes)]
    pub kmax: u64,
    /// Highest marking probability, in percent
    #[arg(
        long,
        value_name = "PERCENT",
        default_value = "1",
        value_parser = clap::value_parser!(u8).range(0..=100)
    )]
    pub pmax: u8,
    /// Headroom per class and port, instead of the formulas' values
    #[arg(long, value_name = "BYTES", value_parser = units::bytes)]
    pub headroom: Option<u64>,
    /// Response time of the peer in quanta, instead of the standard's value
    #[arg(long, value_name = "QUANTA", value_parser = clap::value_parser!(u64).range(0..=65_535))]
    pub response_quanta: Option<u64>,
    /// Cell size of the switch's memory (SONiC's formula)
    #[arg(
        long,
        value_name = "BYTES",
        default_value = "144",
        value_parser = clap::value_parser!(u64).range(1..=4096)
    )]
    pub cell: u64,
    /// Share of frames with the worst size for the cells, in percent (SONiC's formula)
    #[arg(
        long,
        value_name = "PERCENT",
        default_value = "100",
        value_parser = clap::value_parser!(u64).range(0..=100)
    )]
    pub small_packets: u64,
    /// Formula that decides the verdict and the configuration [default: the one with the most
    /// headroom; for `--output sonic`, SONiC's]
    #[arg(long, value_enum)]
    pub by: Option<Formula>,
    /// Interface to generate the configuration for [default: eth0; for `--output sonic`, Ethernet0]
    #[arg(long, value_name = "NAME")]
    pub interface: Option<String>,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    pub output: Output,
}

/// Output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Output {
    /// Tables
    Text,
    /// All values as JSON
    Json,
    /// Commands of iproute2's dcb for the interface of a host or of a switch running Linux
    Dcb,
    /// Tables for SONiC's config_db.json
    Sonic,
}

/// A column of the plan: the values of one formula.
#[derive(Debug, Clone, PartialEq)]
pub struct Column {
    /// Name of the formula, or `stated`.
    pub name: &'static str,
    /// Its headroom, or why there is none.
    pub headroom: Result<Headroom, String>,
    /// Thresholds that follow.
    pub thresholds: Option<Thresholds>,
    /// XON thresholds that follow.
    pub xon: Option<Xon>,
}

/// Where a paused class resumes (XON), in bytes of its queue: one largest frame below the XOFF
/// threshold, as in Linux's driver of ConnectX NICs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Xon {
    /// With a static threshold.
    #[serde(rename = "static")]
    pub fixed: u64,
    /// With the dynamic threshold of an empty switch.
    pub dynamic: u64,
}

/// A plan.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// One column for each formula.
    pub columns: Vec<Column>,
    /// Index of the column that decides.
    pub chosen: usize,
    /// Why this column decides.
    pub reason: &'static str,
    /// Violated conditions, by the deciding column: the buffer suffices, and ECN marks before PFC
    /// pauses.
    pub objections: Vec<String>,
}

impl Options {
    /// Lossless priorities in order.
    fn priorities(&self) -> Vec<u8> {
        (0..8).filter(|p| self.mask() >> p & 1 == 1).collect()
    }

    fn link(&self) -> Link {
        let cells =
            Cells { size: self.cell, small_percent: self.small_packets, ..Cells::default() };
        let Self { rate, cable, mtu, port_mtu, response_quanta, .. } = *self;
        Link { rate, cable, mtu, port_mtu, response_quanta, cells }
    }

    fn switch(&self) -> Switch {
        let classes = u64::from(self.mask().count_ones());
        Switch { buffer: self.buffer, ports: self.ports, classes, beta: self.beta }
    }

    /// Lossless priorities, one bit each.
    fn mask(&self) -> u8 {
        self.priorities.iter().fold(0, |mask, p| mask | 1 << p)
    }

    /// Returns why the options cannot be expressed in the requested format, if so.
    fn beyond_output(&self) -> Option<String> {
        match self.output {
            Output::Dcb if self.mask() == u8::MAX => Some(
                "DCB has 8 buffers, and lossy frames need one: at most 7 lossless priorities"
                    .to_owned(),
            ),
            Output::Sonic if !self.is_static && self.exponent().is_none() => Some(format!(
                "SONiC's dynamic thresholds are powers of two from 1/128 to 128, unlike --beta {}",
                self.beta
            )),
            _ => None,
        }
    }

    /// Exponent of the dynamic threshold's factor, if it is a power of two.
    fn exponent(&self) -> Option<i32> {
        (-7..=7).find(|&exponent| (self.beta - f64::from(exponent).exp2()).abs() < f64::EPSILON)
    }

    /// Computes the plan.
    pub fn plan(&self) -> Plan {
        let link = self.link();
        let stated = self.headroom.map(|bytes| {
            let parts = vec![("as stated", bytes)];
            ("stated", Ok(Headroom { bytes, parts }))
        });
        let computed = Formula::ALL.map(|formula| (formula.name(), formula.headroom(&link)));
        let columns: Vec<_> = stated
            .into_iter()
            .chain(computed)
            .map(|(name, headroom)| {
                let bytes = headroom.as_ref().ok().map(|headroom| headroom.bytes);
                let thresholds = bytes.map(|bytes| self.switch().thresholds(bytes, self.mtu));
                let below = |xoff: u64| xoff.saturating_sub(self.port_mtu);
                let xon = thresholds
                    .map(|t| Xon { fixed: below(t.xoff_static), dynamic: below(t.xoff_dynamic) });
                Column { name, headroom, thresholds, xon }
            })
            .collect();
        let (chosen, reason) = self.choose(&columns);
        let objections = match &columns[chosen] {
            Column { thresholds: Some(thresholds), .. } => self.objections(thresholds),
            Column { headroom, .. } => headroom.as_ref().err().cloned().into_iter().collect(),
        };
        Plan { columns, chosen, reason, objections }
    }

    /// The column that decides, and why: as stated or requested, else the vendor's formula for the
    /// vendor's output, else the formula with the most headroom, so that no default is below what a
    /// published formula demands.
    fn choose(&self, columns: &[Column]) -> (usize, &'static str) {
        let of = |name: &str| columns.iter().position(|column| column.name == name).unwrap_or(0);
        if self.headroom.is_some() {
            return (of("stated"), "as stated");
        }
        match (self.by, self.output) {
            (Some(by), _) => (of(by.name()), "as requested"),
            (None, Output::Sonic) => (of(Formula::Sonic.name()), "SONiC's own formula"),
            (None, _) => {
                let bytes = |column: &Column| column.headroom.as_ref().map_or(0, |one| one.bytes);
                let most = (0..columns.len()).max_by_key(|&at| bytes(&columns[at])).unwrap_or(0);
                // Without a response time for this rate, the formulas that are left ignore it.
                let ieee = of(Formula::Ieee.name());
                let at = if columns[ieee].headroom.is_ok() { most } else { ieee };
                (at, "the most headroom of all formulas")
            }
        }
    }

    /// Name of the interface in the configuration.
    fn interface(&self) -> &str {
        let default = if self.output == Output::Sonic { "Ethernet0" } else { "eth0" };
        self.interface.as_deref().unwrap_or(default)
    }

    fn objections(&self, thresholds: &Thresholds) -> Vec<String> {
        let Switch { classes, ports, .. } = self.switch();
        let (ecn, kind) = match self.is_static {
            true => (thresholds.ecn_static, "static"),
            false => (thresholds.ecn_dynamic, "dynamic"),
        };
        let short = format!(
            "the buffer of {} B does not suffice for {classes} lossless classes on {ports} ports: \
             {} B of headroom, and a frame for each",
            self.buffer, thresholds.headroom
        );
        let late = format!(
            "ECN marks from {} B: PFC with {kind} thresholds may pause first (marking must start \
             below {ecn} B)",
            self.kmin
        );
        let rules = [
            (classes > thresholds.classes_max, short),
            (self.kmin >= ecn, late),
            (
                self.kmin > self.kmax,
                format!("kmin ({} B) is above kmax ({} B)", self.kmin, self.kmax),
            ),
        ];
        rules.into_iter().filter(|(broken, _)| *broken).map(|(_, text)| text).collect()
    }
}

impl Plan {
    /// Headroom per class and port that decides.
    fn headroom(&self) -> u64 {
        self.columns[self.chosen].headroom.as_ref().map_or(0, |headroom| headroom.bytes)
    }

    /// Returns why SONiC's pools cannot be configured, if so.
    fn beyond_buffer(&self, options: &Options) -> Option<String> {
        let reserved = sonic::reserved(options, self);
        let is_short = options.output == Output::Sonic && reserved >= options.buffer;
        is_short.then(|| {
            format!(
                "the buffer of {} B does not suffice: {reserved} B are reserved for lossless \
                 classes (xon and xoff), and the pool would be empty",
                options.buffer
            )
        })
    }

    /// Objections, and whether the vendor of the output demands more headroom.
    fn notes(&self, options: &Options) -> Vec<String> {
        let by = self.columns[self.chosen].name;
        let mut notes: Vec<_> =
            self.objections.iter().map(|text| format!("by {by}: {text}")).collect();
        if options.output == Output::Sonic {
            let own = Formula::Sonic.headroom(&options.link()).map_or(0, |own| own.bytes);
            let headroom = self.headroom();
            if headroom < own {
                notes.push(format!(
                    "the headroom of {headroom} B ({by}) is less than SONiC's {own} B: lossless \
                     frames may be dropped"
                ));
            }
        }
        notes
    }
}

/// Prints the plan.
///
/// # Errors
/// If the options contradict each other, or the chosen formula has no value for the rate.
pub fn run(options: &Options) -> Result<Outcome, Failure> {
    if options.mtu > options.port_mtu {
        let (mtu, port_mtu) = (options.mtu, options.port_mtu);
        return Err(Failure::Unusable(format!("--mtu {mtu} is larger than --port-mtu {port_mtu}")));
    }
    if let Some(why) = options.beyond_output() {
        return Err(Failure::Unusable(why));
    }
    let plan = options.plan();
    if let Err(why) = &plan.columns[plan.chosen].headroom {
        return Err(Failure::Unusable(format!("{}: {why}", plan.columns[plan.chosen].name)));
    }
    if let Some(why) = plan.beyond_buffer(options) {
        return Err(Failure::Unusable(why));
    }
    output::write(&mut io::stdout().lock(), options, &plan)?;
    // A configuration has no place for them.
    if matches!(options.output, Output::Dcb | Output::Sonic) {
        plan.notes(options).iter().for_each(|note| eprintln!("feroce: {note}"));
    }
    Ok(Outcome::of(!plan.objections.is_empty()))
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

    fn options(arguments: &str) -> Options {
        Cli::parse_from(["plan"].into_iter().chain(arguments.split_whitespace())).options
    }

    const TRIDENT_II: &str = "--rate 40G --buffer 12MB --ports 32 \
        --priorities 0,1,2,3,4,5,6,7 --headroom 22.4KB --mtu 1500";

    #[test]
    fn the_papers_switch_passes_with_its_own_thresholds_only() {
        assert_eq!(options(TRIDENT_II).plan().objections, [""; 0]);
        let late = options(&format!("{TRIDENT_II} --kmin 21.756KB")).plan();
        assert_eq!(late.objections.len(), 1);
        assert!(late.objections[0].contains("below 21755 B"), "{late:?}");
        let fixed = options(&format!("{TRIDENT_II} --static")).plan();
        assert!(fixed.objections[0].contains("static"), "{fixed:?}");
    }

    #[test]
    fn an_insufficient_buffer_is_reported() {
        let plan = options("--rate 100G --buffer 1MB --kmin 100B").plan();
        assert!(plan.objections[0].contains("does not suffice"), "{plan:?}");
        assert_eq!(options("--rate 100G --kmin 100B").plan().objections, [""; 0]);
    }

    fn text(arguments: &str) -> String {
        let options = options(arguments);
        let mut out = Vec::new();
        output::write(&mut out, &options, &options.plan()).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn every_formula_has_its_column() {
        let text = text("--rate 100G --cable 100 --mtu 4200");
        for due in ["802.1Q", "Cisco", "mlx5", "mlxsw", "SONiC", "63124", "101616", "51216", "XON"]
        {
            assert!(text.contains(due), "{due}: {text}");
        }
        let json: serde_json::Value =
            serde_json::from_str(&self::text("--rate 100G --output json")).unwrap();
        assert_eq!(json["formulas"]["mlx5"]["headroom"], 63_124);
        assert_eq!(json["formulas"]["mlxsw"]["headroom"], 101_616);
        let xoff = json["formulas"]["mlx5"]["thresholds"]["xoff_static"].as_u64().unwrap();
        assert_eq!(json["formulas"]["mlx5"]["xon"]["static"], xoff - 9216);
        assert_eq!(json["objections"].as_array().unwrap().len(), 0);
    }

    #[test]
    fn a_formula_without_a_value_leaves_its_column_empty() {
        let options = options("--rate 200G");
        let plan = options.plan();
        let cisco = plan.columns.iter().find(|column| column.name == "Cisco").unwrap();
        assert!(cisco.headroom.as_ref().unwrap_err().contains("200000 Mb/s"));
        assert!(text("--rate 200G").contains("200000 Mb/s"));
    }

    #[test]
    fn the_configuration_uses_the_chosen_formula() {
        let dcb = text("--rate 100G --priorities 3,4 --by mlx5 --interface swp1 --output dcb");
        assert!(dcb.contains("dcb pfc set dev swp1 prio-pfc all:off 3:on 4:on"), "{dcb}");
        assert!(dcb.contains("dcb buffer set dev swp1 prio-buffer all:0 3:1 4:2"), "{dcb}");
        let sonic = text("--rate 100G --priorities 3,4 --by mlx5 --output sonic");
        let json: serde_json::Value = serde_json::from_str(&sonic).unwrap();
        assert_eq!(json["BUFFER_PROFILE"]["pg_lossless_100000_100m_profile"]["xoff"], "63124");
        assert_eq!(json["PORT_QOS_MAP"]["Ethernet0"]["pfc_enable"], "3,4");
    }

    #[test]
    fn no_default_is_below_what_a_formula_demands() {
        for arguments in
            ["--rate 100G", "--rate 10G --cable 5", "--rate 400G", "--rate 25G --cell 96"]
        {
            let plan = options(arguments).plan();
            let most = plan.columns.iter().filter_map(|column| column.headroom.as_ref().ok());
            assert_eq!(plan.headroom(), most.map(|one| one.bytes).max().unwrap(), "{arguments}");
        }
        // By 802.1Q, 51216 B each, this buffer would suffice.
        let small = "--rate 100G --buffer 2MB --kmin 100B";
        assert_eq!(options(&format!("{small} --by ieee")).plan().objections, [""; 0]);
        let plan = options(small).plan();
        assert!(plan.objections[0].contains("does not suffice"), "{plan:?}");
        assert!(text(small).contains("SONiC (the most headroom of all formulas)"));
        // Only mlx5's formula, which has no response time, has a value for this rate.
        let unknown = options("--rate 800G").plan();
        assert!(unknown.columns[unknown.chosen].headroom.is_err(), "{unknown:?}");
    }

    #[test]
    fn sonic_gets_the_headroom_of_its_own_formula() {
        // The largest would be mlxsw's.
        let sonic = "--rate 100G --cell 96 --small-packets 0 --output sonic";
        let json: serde_json::Value = serde_json::from_str(&text(sonic)).unwrap();
        let xoff = &json["BUFFER_PROFILE"]["pg_lossless_100000_100m_profile"]["xoff"];
        assert_eq!(xoff, "52224");
        assert_eq!(options(sonic).plan().notes(&options(sonic)), [""; 0]);
        let less = options("--rate 100G --by ieee --output sonic");
        let notes = less.plan().notes(&less);
        assert!(notes[0].contains("51216 B (802.1Q) is less than SONiC's 111616 B"), "{notes:?}");
    }

    #[test]
    fn inexpressible_options_are_refused() {
        let rows = [
            ("--rate 100G --priorities 0,1,2,3,4,5,6,7 --output dcb", "at most 7"),
            ("--rate 100G --beta 3 --output sonic", "powers of two"),
        ];
        for (arguments, due) in rows {
            let Err(Failure::Unusable(why)) = run(&options(arguments)) else {
                panic!("{arguments}")
            };
            assert!(why.contains(due), "{why}");
        }
        let Err(Failure::Unusable(why)) = run(&options("--rate 100G --buffer 4MB --output sonic"))
        else {
            panic!("an empty pool")
        };
        assert!(why.contains("4161536 B are reserved"), "{why}");
        assert_eq!(options("--rate 100G --beta 1/8").exponent(), Some(-3));
        assert_eq!(options("--rate 100G --beta 3 --output sonic --static").beyond_output(), None);
    }

    #[test]
    fn the_mlxsw_delay_is_configured() {
        let dcb = text("--rate 100G --by mlxsw --interface swp1 --output dcb");
        // In bits: 8 x (2 x 4200 + 84 + 12500 + 394 x 64).
        assert!(dcb.contains("delay is 369600 bits"), "{dcb}");
        assert!(dcb.contains("dcb pfc set dev swp1 delay 65535"), "{dcb}");
        assert!(!text("--rate 100G --by mlx5 --output dcb").contains("delay"));
    }
}
