//! Results as files: comma-separated values, with the case and the seed in each line, so that files of several runs can be put
//! behind each other.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use crate::fabric::measure::Results;
use crate::fabric::scenario::{Case, Scenario};
use crate::fabric::time::Time;
use crate::run::Judged;

/// The files and their columns.
const FILES: [(&str, &str); 6] = [
    ("gates.csv", "case,gate,value,published,holds"),
    ("runs.csv", "case,seed,ended_ns,events,packet_hops,largest_buffer_bytes,losses"),
    (
        "flows.csv",
        "case,seed,flow,traffic,from,to,started_ns,ended_ns,size_bytes,delivered_bytes,goodput_bps,mean_alpha,packets,\
         retransmitted,marked,cnps_sent,cnps_handled,naks,timeouts",
    ),
    (
        "ports.csv",
        "case,seed,node,peer,frames,line_bytes,wire_bps,marked,dropped,headroom,pauses_sent,resumes_sent,pauses_received,\
         paused_ns,lost,corrupted",
    ),
    ("queues.csv", "case,seed,node,peer,mean_bytes,p50_bytes,p95_bytes,p99_bytes,max_bytes"),
    ("samples.csv", "case,seed,time_ns,what,value,rate_bps,alpha"),
];

/// The files of a scenario.
#[derive(Debug)]
pub struct Files {
    files: Vec<BufWriter<File>>,
}

impl Files {
    /// Makes the folder, and empty files in it.
    ///
    /// # Errors
    /// Of the file system.
    pub fn create(folder: &Path) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let file = |&(name, columns): &(&str, &str)| {
            let mut file = BufWriter::new(File::create(folder.join(name))?);
            writeln!(file, "{columns}")?;
            Ok(file)
        };
        Ok(Self { files: FILES.iter().map(file).collect::<io::Result<_>>()? })
    }

    /// Adds a case.
    ///
    /// # Errors
    /// Of the file system.
    pub fn add(&mut self, case: &Case, judged: &Judged) -> io::Result<()> {
        let name = quoted(&case.name);
        for outcome in &judged.outcomes {
            let number =
                |value: Option<f64>| value.map_or(String::new(), |value| value.to_string());
            let (value, published) = (number(outcome.value), number(outcome.published()));
            let gate = quoted(&outcome.gate.name);
            writeln!(self.files[0], "{name},{gate},{value},{published},{}", outcome.holds())?;
        }
        for (seed, results) in case.seeds.iter().zip(&judged.results) {
            let run = format!("{name},{seed}");
            self.add_run(&run, results)?;
            self.add_flows(&run, case, results)?;
            self.add_ports(&run, case, results)?;
            self.add_queues(&run, case, results)?;
            self.add_samples(&run, case, results)?;
        }
        Ok(())
    }

    /// Writes what is still in memory.
    ///
    /// # Errors
    /// Of the file system.
    pub fn finish(mut self) -> io::Result<()> {
        self.files.iter_mut().try_for_each(Write::flush)
    }

    fn add_run(&mut self, run: &str, results: &Results) -> io::Result<()> {
        let Results { ended, events, hops, buffers, .. } = results;
        let (largest, losses) = (buffers.iter().max().unwrap_or(&0), results.losses().join("; "));
        writeln!(self.files[1], "{run},{},{events},{hops},{largest},{losses}", nanos(*ended))
    }

    fn add_flows(&mut self, run: &str, case: &Case, results: &Results) -> io::Result<()> {
        let name = |host: u32| case.network().name(host as usize);
        for (number, flow) in results.flows.iter().enumerate() {
            let traffic = quoted(&case.groups[flow.group as usize]);
            let time = |time: Option<Time>| time.map_or(String::new(), nanos);
            let size = flow.size.map_or(String::new(), |size| size.to_string());
            let alpha = flow.alpha.map_or(String::new(), |alpha| format!("{alpha:.6}"));
            writeln!(
                self.files[2],
                "{run},{number},{traffic},{},{},{},{},{size},{},{:.0},{alpha},{},{},{},{},{},{},{}",
                name(flow.from),
                name(flow.to),
                time(flow.started),
                time(flow.ended),
                flow.delivered,
                flow.goodput,
                flow.sender.packets,
                flow.sender.retransmitted,
                flow.marked,
                flow.cnps,
                flow.sender.cnps,
                flow.sender.naks,
                flow.sender.timeouts,
            )?;
        }
        Ok(())
    }

    fn add_ports(&mut self, run: &str, case: &Case, results: &Results) -> io::Result<()> {
        let name = |node| case.network().name(node);
        for port in &results.ports {
            let counts = &port.counts;
            writeln!(
                self.files[3],
                "{run},{},{},{},{},{:.0},{},{},{},{},{},{},{},{},{}",
                name(port.node),
                name(port.peer),
                counts.frames,
                counts.line_bytes,
                port.wire,
                counts.marked,
                counts.dropped,
                counts.headroom,
                counts.pauses_sent,
                counts.resumes_sent,
                counts.pauses_received,
                nanos(port.paused),
                counts.lost,
                counts.corrupted,
            )?;
        }
        Ok(())
    }

    fn add_queues(&mut self, run: &str, case: &Case, results: &Results) -> io::Result<()> {
        for queue in &results.queues {
            let (node, peer) = (case.network().name(queue.node), case.network().name(queue.peer));
            let lengths = &queue.lengths;
            let [p50, p95, p99] = [500, 950, 990].map(|permille| lengths.quantile(permille));
            let (mean, most) = (lengths.mean(), lengths.most());
            writeln!(self.files[4], "{run},{node},{peer},{mean:.1},{p50},{p95},{p99},{most}")?;
        }
        Ok(())
    }

    fn add_samples(&mut self, run: &str, case: &Case, results: &Results) -> io::Result<()> {
        let samples = &results.samples;
        let (flows, queues) = (samples.flows_per_time(), results.queues.len());
        for (number, &at) in samples.times.iter().enumerate() {
            let at = nanos(at);
            for (flow, sample) in
                samples.flows[number * flows..(number + 1) * flows].iter().enumerate()
            {
                let alpha = f64::from(sample.alpha) / f64::from(1_u32 << 31);
                let (delivered, rate) = (sample.delivered, sample.rate);
                writeln!(self.files[5], "{run},{at},flow {flow},{delivered},{rate},{alpha:.6}")?;
            }
            for (queue, bytes) in results.queues.iter().zip(&samples.queues[number * queues..]) {
                let (node, peer) =
                    (case.network().name(queue.node), case.network().name(queue.peer));
                writeln!(self.files[5], "{run},{at},queue {node}->{peer},{bytes},,")?;
            }
        }
        Ok(())
    }
}

/// A report of gates as text, for people.
pub fn print(
    out: &mut impl Write,
    scenario: &Scenario,
    case: &Case,
    judged: &Judged,
) -> io::Result<()> {
    let several = scenario.cases.len() > 1;
    if several {
        writeln!(out, "{}", case.name)?;
    }
    for outcome in &judged.outcomes {
        let value = outcome.value.map_or("nothing".to_owned(), shown);
        let published = outcome
            .published()
            .map_or(String::new(), |value| format!("published {}", shown(value)));
        let verdict = if outcome.holds() { "ok" } else { "NOT MET" };
        let bounds: Vec<String> = outcome.gate.bounds.iter().filter_map(bound).collect();
        let is_gate = !bounds.is_empty();
        let verdict = if is_gate { verdict } else { "" };
        let bounds = bounds.join(", ");
        writeln!(
            out,
            "  {:40} {value:>10}  {published:20} {bounds:24} {verdict}",
            outcome.gate.name
        )?;
    }
    for loss in &judged.losses {
        writeln!(out, "  {:40} {loss}: NOT LOSSLESS", "lossless")?;
    }
    Ok(())
}

fn bound(bound: &crate::fabric::scenario::Bound) -> Option<String> {
    use crate::fabric::scenario::Bound;
    match *bound {
        Bound::Within { part, .. } => Some(format!("within {} %", shown(part * 100.0))),
        Bound::AtLeast(least) => Some(format!("at least {}", shown(least))),
        Bound::AtMost(most) => Some(format!("at most {}", shown(most))),
        Bound::Shown { .. } => None,
    }
}

/// Four digits.
fn shown(value: f64) -> String {
    let decimals = match value.abs() {
        size if size >= 1000.0 || size.fract() == 0.0 => 0,
        size if size >= 100.0 => 1,
        size if size >= 10.0 => 2,
        _ => 3,
    };
    format!("{value:.decimals$}")
}

/// Nanoseconds, with what is less behind the point.
fn nanos(time: Time) -> String {
    match time.0 % 1000 {
        0 => (time.0 / 1000).to_string(),
        rest => format!("{}.{rest:03}", time.0 / 1000),
    }
}

/// As CSV has texts with commas.
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}
