//! Figures in the text format of Prometheus, version 0.0.4.

use std::collections::BTreeMap;

use feroce_engine::counters::Counter;
use feroce_engine::daemon::ProgramStat;
use feroce_engine::device::stat::Snapshot;
use prometheus::proto::{Counter as CounterValue, Gauge, LabelPair, MetricFamily, MetricType};
use prometheus::{TextEncoder, proto};

use super::table::{METRICS, Metric, Source, Unit, real};
use crate::figures::{DaemonFigures, Figures};

/// Content-Type of [`text`].
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A device has one port, as in verbs.
const PORT: &str = "1";
/// Maximum length of a label's value, in characters. Programs choose names.
const LABEL_MAX: usize = 64;
/// Maximum number of cores of a device. A program that claims more must not make more series.
const CORES_MAX: usize = 64;

/// The time that sending was paused, by priority.
pub const PAUSED: [Counter; 8] = [
    Counter::RxPaused0,
    Counter::RxPaused1,
    Counter::RxPaused2,
    Counter::RxPaused3,
    Counter::RxPaused4,
    Counter::RxPaused5,
    Counter::RxPaused6,
    Counter::RxPaused7,
];

/// The values of a metric by the values of its labels.
type Samples = BTreeMap<Vec<String>, f64>;

/// The figures as text. A metric without values is left out.
///
/// # Errors
/// The encoder's message.
pub fn text(figures: &Figures) -> Result<String, String> {
    let metrics = METRICS.iter().copied().flatten();
    let families: Vec<_> = metrics.filter_map(|metric| family(metric, figures)).collect();
    TextEncoder::new().encode_to_string(&families).map_err(|error| error.to_string())
}

fn family(metric: &Metric, figures: &Figures) -> Option<MetricFamily> {
    let samples = samples(metric.source, figures);
    if samples.is_empty() {
        return None;
    }
    let names = metric.source.labels();
    let samples = samples.into_iter().map(|(values, value)| {
        let labels = names.iter().zip(values).map(|(name, value)| {
            let mut label = LabelPair::default();
            label.set_name((*name).to_owned());
            label.set_value(value);
            label
        });
        let mut sample = proto::Metric::from_label(labels.collect());
        let value = if metric.unit == Unit::Info { 1.0 } else { value };
        if metric.is_counter() {
            let mut counter = CounterValue::default();
            counter.set_value(value);
            sample.set_counter(counter);
        } else {
            let mut gauge = Gauge::default();
            gauge.set_value(value);
            sample.set_gauge(gauge);
        }
        sample
    });
    let mut family = MetricFamily::default();
    family.set_name(metric.name.to_owned());
    family.set_help(metric.about().to_owned());
    family.set_field_type(match metric.is_counter() {
        true => MetricType::COUNTER,
        false => MetricType::GAUGE,
    });
    family.set_metric(samples.collect());
    Some(family)
}

fn samples(source: Source, figures: &Figures) -> Samples {
    let mut samples = Samples::new();
    // A process may have two devices on an interface. A series must not come twice.
    let mut add = |labels: Vec<String>, value: f64| {
        let labels = labels.into_iter().map(|value| value.chars().take(LABEL_MAX).collect());
        *samples.entry(labels.collect()).or_default() += value;
    };
    let (programs, daemons) = (&figures.programs, &figures.daemons);
    match source {
        Source::Counter(counter, factor) => programs.iter().for_each(|program| {
            add(labels_of(program), counted(program, counter) * factor);
        }),
        Source::Paused => programs.iter().for_each(|program| {
            for (priority, counter) in PAUSED.into_iter().enumerate() {
                let labels = with(labels_of(program), [priority.to_string()]);
                add(labels, counted(program, counter) / 1e6);
            }
        }),
        Source::Program(value) => programs.iter().for_each(|program| {
            value(program).into_iter().for_each(|value| add(labels_of(program), value));
        }),
        Source::Core(value) => programs.iter().for_each(|program| {
            for (core, figures) in program.cores.iter().take(CORES_MAX).enumerate() {
                add(with(labels_of(program), [core.to_string()]), real(value(figures)));
            }
        }),
        Source::ProgramInfo => programs.iter().for_each(|program| {
            let Snapshot { feroce, port, congestion, .. } = program;
            add(with(labels_of(program), [feroce, port, congestion].map(Clone::clone)), 1.0);
        }),
        Source::Daemon(value) => daemons.iter().for_each(|daemon| {
            add(device(&daemon.interface), real(value(&daemon.stat)));
        }),
        Source::DaemonInfo => daemons.iter().for_each(|daemon| {
            let facts = [daemon.pid.to_string(), daemon.stat.port.clone()];
            add(with(device(&daemon.interface), facts), 1.0);
        }),
        Source::AtDaemon(value) => daemons.iter().for_each(|daemon| {
            for program in &daemon.stat.programs {
                add(labels_at(daemon, program), real(value(program)));
            }
        }),
        Source::User(value) => daemons.iter().for_each(|daemon| {
            for user in &daemon.stat.users {
                let labels = with(device(&daemon.interface), [user.user.to_string()]);
                add(labels, f64::from(value(user)));
            }
        }),
        Source::Limit(value) => daemons.iter().for_each(|daemon| {
            let limit = daemon.stat.limits.as_ref().and_then(value);
            limit.into_iter().for_each(|limit| add(device(&daemon.interface), real(limit)));
        }),
        Source::Own(value) => add(Vec::new(), real(value(figures) as u64)),
        Source::OwnInfo => add(vec![env!("CARGO_PKG_VERSION").to_owned()], 1.0),
    }
    samples
}

fn counted(program: &Snapshot, counter: Counter) -> f64 {
    real(program.counters.get(counter.name()).copied().unwrap_or(0))
}

fn device(interface: &str) -> Vec<String> {
    vec![interface.to_owned(), PORT.to_owned()]
}

/// The labels of a program: [`super::table::PROGRAM`].
fn labels_of(program: &Snapshot) -> Vec<String> {
    let Snapshot { interface, program, pid, user, .. } = program;
    let interface = interface.split('@').next().unwrap_or_default();
    with(device(interface), [program.clone(), pid.to_string(), user.to_string()])
}

fn labels_at(daemon: &DaemonFigures, program: &ProgramStat) -> Vec<String> {
    let ProgramStat { program, pid, user, .. } = program;
    with(device(&daemon.interface), [program.clone(), pid.to_string(), user.to_string()])
}

fn with<const N: usize>(mut labels: Vec<String>, more: [String; N]) -> Vec<String> {
    labels.extend(more);
    labels
}
