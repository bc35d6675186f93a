//! What `feroce top` shows, as a value: two samples in, interfaces and programs with their rates
//! out.

use std::collections::BTreeMap;

use feroce_engine::counters::Counter;
use feroce_engine::daemon::{Limits, ProgramStat};
use feroce_engine::device::stat::{CoreFigures, Snapshot};

use crate::figures::{DaemonFigures, Figures};

/// The figures at one moment.
#[derive(Debug, Clone, Default)]
pub struct Sample {
    /// Time of the sample, in nanoseconds of the caller's clock.
    pub nanos: u64,
    pub figures: Figures,
}

/// What is counted. The values index [`Counts`] and [`Rates`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    RxFrames,
    /// Bytes as counts, bits as rates; Ethernet headers included.
    RxBits,
    TxFrames,
    TxBits,
    Retransmissions,
    /// CNPs sent and received.
    Cnps,
    /// PFC and PAUSE frames sent and received.
    Pauses,
    /// Frames that were lost on this host, or that the daemon refused.
    Drops,
}

const KINDS: usize = Kind::Drops as usize + 1;

/// Counts since a program has opened the interface.
type Counts = [u64; KINDS];

/// Rates per second.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Rates([f64; KINDS]);

impl Rates {
    pub const fn of(&self, kind: Kind) -> f64 {
        self.0[kind as usize]
    }

    /// Bits per second in both directions.
    pub fn traffic(&self) -> f64 {
        self.of(Kind::RxBits) + self.of(Kind::TxBits)
    }

    /// `None` if something was counted backwards: the counts are not of the same device.
    fn between(before: &Counts, now: &Counts, nanos: u64) -> Option<Self> {
        let mut rates = [0.0; KINDS];
        for ((rate, now), before) in rates.iter_mut().zip(now).zip(before) {
            *rate = real(now.checked_sub(*before)?) * 1e9 / real(nanos);
        }
        for bits in [Kind::RxBits, Kind::TxBits] {
            rates[bits as usize] *= 8.0;
        }
        (nanos > 0).then_some(Self(rates))
    }

    fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, rate)| *sum += rate);
    }
}

/// The largest share of a limit that a program or its user has used.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Quota {
    /// 1.0: all of it.
    pub share: f64,
    pub of: &'static str,
}

/// A program.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Process id; 0 for a program of another pid namespace.
    pub pid: u32,
    pub user: u32,
    /// Set by the caller; the user's number until then.
    pub user_name: String,
    pub program: String,
    pub interface: String,
    /// `None` if the program does not serve its figures to this user.
    pub qps: Option<u32>,
    /// `None` in the first sample with the program.
    pub rates: Option<Rates>,
    /// `None` without a daemon.
    pub quota: Option<Quota>,
}

/// An interface.
#[derive(Debug, Clone, PartialEq)]
pub struct Interface {
    pub name: String,
    /// The daemon's process.
    pub daemon: Option<i32>,
    pub port: String,
    pub programs: usize,
    pub qps: u32,
    /// Sums over the programs; frames and bits are those of the daemon's port, if there is a
    /// daemon.
    pub rates: Option<Rates>,
}

/// All that is shown.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct View {
    pub interfaces: Vec<Interface>,
    pub rows: Vec<Row>,
    pub errors: Vec<String>,
}

impl View {
    /// The rates from `before` to `now`; without `before`, no rates.
    pub fn between(before: Option<&Sample>, now: &Sample) -> Self {
        let earlier = before.map(|sample| (programs(&sample.figures, sample.nanos), sample));
        let programs = programs(&now.figures, now.nanos);
        let mut rows: Vec<Row> = programs
            .iter()
            .map(|(key, program)| {
                let before = earlier.as_ref().and_then(|(programs, _)| programs.get(key));
                program.row(key, before.and_then(|before| program.rates_since(before)))
            })
            .collect();
        for daemon in &now.figures.daemons {
            set_quotas(&mut rows, daemon);
        }
        let mut interfaces: BTreeMap<&str, Interface> = BTreeMap::new();
        for daemon in &now.figures.daemons {
            interfaces.insert(&daemon.interface, of_daemon(daemon));
        }
        for (row, program) in rows.iter().zip(programs.values()) {
            let interface = interfaces.entry(&row.interface).or_insert_with(|| Interface {
                name: row.interface.clone(),
                port: program.port.clone(),
                ..none()
            });
            interface.programs += 1;
            interface.qps += row.qps.unwrap_or(0);
            if let Some(rates) = &row.rates {
                interface.rates.get_or_insert_default().add(rates);
            }
        }
        for daemon in &now.figures.daemons {
            let before = earlier.as_ref().and_then(|(_, before)| {
                let same = |other: &&DaemonFigures| {
                    (&other.interface, other.pid) == (&daemon.interface, daemon.pid)
                };
                Some((before.figures.daemons.iter().find(same)?, now.nanos - before.nanos))
            });
            let rates = before.and_then(|(before, nanos)| {
                Rates::between(&port_counts(before), &port_counts(daemon), nanos)
            });
            if let Some(interface) = interfaces.get_mut(&*daemon.interface) {
                interface.replace_port_rates(rates);
            }
        }
        let interfaces = interfaces.into_values().collect();
        Self { interfaces, rows, errors: now.figures.errors.clone() }
    }
}

fn none() -> Interface {
    let (name, port) = (String::new(), String::new());
    Interface { name, daemon: None, port, programs: 0, qps: 0, rates: None }
}

fn of_daemon(daemon: &DaemonFigures) -> Interface {
    let (name, port) = (daemon.interface.clone(), daemon.stat.port.clone());
    Interface { name, daemon: Some(daemon.pid), port, ..none() }
}

impl Interface {
    /// Frames and bits of the port in place of those of the programs: frames between two programs
    /// do not pass the port. Drops of both.
    fn replace_port_rates(&mut self, port: Option<Rates>) {
        self.rates = port.map(|port| {
            let mut rates = self.rates.unwrap_or_default();
            for kind in [Kind::RxFrames, Kind::RxBits, Kind::TxFrames, Kind::TxBits] {
                rates.0[kind as usize] = port.of(kind);
            }
            rates.0[Kind::Drops as usize] += port.of(Kind::Drops);
            rates
        });
    }
}

fn port_counts(daemon: &DaemonFigures) -> Counts {
    let stat = &daemon.stat;
    let mut counts = [0; KINDS];
    counts[Kind::RxFrames as usize] = stat.rx_frames;
    counts[Kind::RxBits as usize] = stat.rx_bytes;
    counts[Kind::TxFrames as usize] = stat.tx_frames;
    counts[Kind::TxBits as usize] = stat.tx_bytes;
    counts[Kind::Drops as usize] = stat.rx_dropped;
    counts
}

/// Interface and process of a program. Programs of other pid namespaces, whose process id is 0,
/// differ by their names.
type Key = (String, u32, String);

fn key(interface: &str, pid: u32, program: &str) -> Key {
    (interface.to_owned(), pid, if pid == 0 { program.to_owned() } else { String::new() })
}

/// What is known of a program, from the program itself and from the daemon.
#[derive(Debug, Default)]
struct Program {
    name: String,
    user: u32,
    port: String,
    qps: Option<u32>,
    /// Time of the counts.
    nanos: u64,
    counts: Counts,
}

impl Program {
    fn row(&self, (interface, pid, _): &Key, rates: Option<Rates>) -> Row {
        Row {
            pid: *pid,
            user: self.user,
            user_name: self.user.to_string(),
            program: self.name.clone(),
            interface: interface.clone(),
            qps: self.qps,
            rates,
            quota: None,
        }
    }

    fn rates_since(&self, before: &Self) -> Option<Rates> {
        // The program has begun or ceased to serve its figures: the counts have another origin.
        if self.qps.is_some() != before.qps.is_some() {
            return None;
        }
        Rates::between(&before.counts, &self.counts, self.nanos.checked_sub(before.nanos)?)
    }

    /// Adds a device of the program.
    fn add(&mut self, snapshot: &Snapshot) {
        let of = |figure: fn(&CoreFigures) -> u64| snapshot.cores.iter().map(figure).sum::<u64>();
        let counted = |counters: &[Counter]| -> u64 {
            counters.iter().filter_map(|counter| snapshot.counters.get(counter.name())).sum()
        };
        let counts = [
            of(|core| core.rx_frames),
            of(|core| core.rx_bytes),
            of(|core| core.tx_frames),
            of(|core| core.tx_bytes),
            counted(&[Counter::RetransmittedPackets]),
            counted(&[Counter::NpCnpSent, Counter::RpCnpHandled, Counter::RpCnpIgnored]),
            counted(&[Counter::RxPause, Counter::TxPause]),
            of(|core| core.rx_dropped + core.tx_dropped) + counted(&[Counter::RxHandoverDropped]),
        ];
        self.counts.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        self.qps = Some(self.qps.unwrap_or(0) + snapshot.qps);
        self.nanos = self.nanos.max(snapshot.nanos);
        (self.name, self.user) = (snapshot.program.clone(), snapshot.user);
        self.port.clone_from(&snapshot.port);
    }

    /// Adds what the daemon counts: all frames if the program does not serve its figures, otherwise
    /// only those that the program does not know of.
    fn add_at_daemon(&mut self, program: &ProgramStat, nanos: u64) {
        let frames = &program.frames;
        self.counts[Kind::Drops as usize] += frames.rx_dropped + frames.tx_refused;
        if self.qps.is_some() {
            return;
        }
        for (kind, count) in [
            (Kind::RxFrames, frames.rx_frames),
            (Kind::RxBits, frames.rx_bytes),
            (Kind::TxFrames, frames.tx_frames),
            (Kind::TxBits, frames.tx_bytes),
        ] {
            self.counts[kind as usize] += count;
        }
        self.nanos = nanos;
        (self.name, self.user) = (program.program.clone(), program.user);
    }
}

fn programs(figures: &Figures, nanos: u64) -> BTreeMap<Key, Program> {
    let mut programs: BTreeMap<Key, Program> = BTreeMap::new();
    for snapshot in &figures.programs {
        let interface = snapshot.interface.split('@').next().unwrap_or_default();
        let key = key(interface, snapshot.pid, &snapshot.program);
        programs.entry(key).or_default().add(snapshot);
    }
    for daemon in &figures.daemons {
        for program in &daemon.stat.programs {
            let pid = u32::try_from(program.pid).unwrap_or(0);
            let key = key(&daemon.interface, pid, &program.program);
            programs.entry(key).or_default().add_at_daemon(program, nanos);
        }
    }
    programs
}

/// Sets the quotas of the daemon's programs.
fn set_quotas(rows: &mut [Row], daemon: &DaemonFigures) {
    let Some(limits) = &daemon.stat.limits else { return };
    // Frames and bits that each user sends per second.
    let mut sent: BTreeMap<u32, (f64, f64)> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.interface == daemon.interface) {
        let (frames, bits) = sent.entry(row.user).or_default();
        let rate = |kind| row.rates.map_or(0.0, |rates| rates.of(kind));
        *frames += rate(Kind::TxFrames);
        *bits += rate(Kind::TxBits);
    }
    for program in &daemon.stat.programs {
        let pid = u32::try_from(program.pid).unwrap_or(0);
        let (user, rates) = (
            daemon.stat.users.iter().find(|user| user.user == program.user),
            sent.get(&program.user),
        );
        let (programs, qps) = user.map_or((0, 0), |user| (user.programs, user.qp_numbers));
        let (frames, bits) = rates.copied().unwrap_or_default();
        let quota = largest_share(program, (programs, qps), (frames, bits / 8.0), limits);
        let is_its = |row: &&mut Row| {
            let names = row.pid != 0 || row.program == program.program;
            row.interface == daemon.interface && row.pid == pid && names
        };
        for row in rows.iter_mut().filter(is_its) {
            if row.quota.is_none_or(|known| known.share < quota.share) {
                row.quota = Some(quota);
            }
        }
    }
}

fn largest_share(
    program: &ProgramStat,
    (programs, qps): (u32, u32),
    (packets, bytes): (f64, f64),
    limits: &Limits,
) -> Quota {
    let share = |used: f64, limit: u64| if limit == 0 { 0.0 } else { used / real(limit) };
    let rate = |used: f64, limit: Option<u64>| limit.map_or(0.0, |limit| share(used, limit));
    let shares = [
        (share(f64::from(programs), limits.clients.into()), "programs"),
        (share(f64::from(qps), limits.qps.into()), "QPs"),
        (share(real(program.connections as u64), limits.connections.into()), "conns"),
        (share(real(program.services as u64), limits.services.into()), "services"),
        (rate(packets, limits.packets), "pkt/s"),
        (rate(bytes, limits.bytes), "bytes/s"),
    ];
    let largest = shares.into_iter().max_by(|a, b| a.0.total_cmp(&b.0));
    largest.map_or(Quota { share: 0.0, of: "" }, |(share, of)| Quota { share, of })
}

#[allow(clippy::cast_precision_loss)] // Rates have a few digits.
const fn real(number: u64) -> f64 {
    number as f64
}
