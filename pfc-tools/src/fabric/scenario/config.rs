//! `[packet]`, `[switch]`, `[pfc]`, `[host]`, `[congestion]`, `[measure]` and `[[traffic]]`.

use feroce_congestion::params::{ParamError, SETS};
use feroce_congestion::{ALGORITHMS, Params};

use super::collective;
use super::error::ScenarioError;
use super::files;
use super::node_names::{direction, hosts};
use super::section::Section;
use crate::fabric::config::{
    Control, FabricConfig, HostConfig, Network, PacketConfig, PfcConfig, Recovery, SwitchConfig,
};
use crate::fabric::scheduler::SchedulerConfig;
use crate::fabric::time::Time;
use crate::fabric::traffic::{Distribution, Pattern, Traffic};

/// Default priority of traffic and of measured queues.
pub(super) const DEFAULT_PRIORITY: u8 = 3;

/// Shortest sampling interval: with zero the run would not end.
const SHORTEST: Time = Time::from_nanos(1);

/// Maximum number of samples of a run.
const MAX_SAMPLES: u64 = 1_000_000;

/// Reads everything but network and traffic.
pub(super) fn read(all: &Section<'_>, network: Network) -> Result<FabricConfig, ScenarioError> {
    let packet = packet(all.section("packet")?)?;
    let duration =
        all.time("duration")?.ok_or_else(|| all.missing("duration", "a time such as \"100ms\""))?;
    let warmup = all.time("warmup")?.unwrap_or(Time::ZERO);
    let measure = all.section("measure")?;
    let sample = measure.time("sample")?.unwrap_or(Time(duration.0 / 1000)).max(SHORTEST);
    if let Some(node) = measure.get("sample").filter(|_| duration.0 / sample.0 > MAX_SAMPLES) {
        return Err(measure.wrong("sample", node, "at least a millionth of the duration"));
    }
    let mut watch = Vec::new();
    let expected = "a link from one node to its neighbour, such as \"s1->h3\"";
    let priority = measure.priority("priority")?.unwrap_or(DEFAULT_PRIORITY);
    for (text, node) in measure.texts("queues")?.unwrap_or_default() {
        let (from, to) =
            direction(&text, &network).ok_or_else(|| measure.wrong("queues", node, expected))?;
        watch.push((from, to, priority));
    }
    measure.finish()?;
    let (host, engines) = host(all.section("host")?, &network)?;
    Ok(FabricConfig {
        seed: 0,
        packet,
        switch: switch(all.section("switch")?, all.section("pfc")?)?,
        host,
        engines,
        congestion: congestion(all.section("congestion")?)?,
        flows: Vec::new(),
        steps: Vec::new(),
        duration,
        warmup,
        sample,
        watch,
        keep_samples: false,
        network,
    })
}

fn packet(section: Section<'_>) -> Result<PacketConfig, ScenarioError> {
    let default = PacketConfig::default();
    let packet = PacketConfig {
        payload: section.length("payload", 1)?.unwrap_or(default.payload),
        headers: section.length("headers", 0)?.unwrap_or(default.headers),
        gap: section.length("gap", 0)?.unwrap_or(default.gap),
        control: section.length("control", 1)?.unwrap_or(default.control),
    };
    section.finish()?;
    Ok(packet)
}

fn switch(section: Section<'_>, pfc: Section<'_>) -> Result<SwitchConfig, ScenarioError> {
    let default = SwitchConfig::default();
    let config = SwitchConfig {
        buffer: section.bytes("buffer")?.unwrap_or(default.buffer),
        guaranteed: section.bytes("guaranteed")?.unwrap_or(default.guaranteed),
        headroom: section.bytes("headroom")?,
        alpha: section.ratio("alpha")?.unwrap_or(default.alpha),
        threshold: section.bytes("threshold")?,
        resume_offset: section.bytes("resume_offset")?,
        lossless: pfc.priorities("priorities")?.unwrap_or(default.lossless),
        pfc: PfcConfig {
            quanta: pfc
                .count("quanta", 1..=65_535)?
                .and_then(|n| u16::try_from(n).ok())
                .unwrap_or(u16::MAX),
            repeat: pfc.flag("repeat", true)?,
            response: pfc.time("response")?.unwrap_or_default(),
        },
        scheduling: scheduling(&section)?,
        ecn: section.flag("ecn", true)?,
    };
    pfc.finish()?;
    section.finish()?;
    Ok(config)
}

/// Reads `strict`, the strict priorities, and `weights`, the DWRR weights of the priorities in KB
/// per round.
fn scheduling(section: &Section<'_>) -> Result<SchedulerConfig, ScenarioError> {
    let strict = section.priorities("strict")?;
    let expected = "eight weights from 1 to 1000, priority 0 first";
    let Some(weights) = section.list("weights", expected)? else {
        return Ok(match strict {
            None => SchedulerConfig::default(),
            Some(strict) => SchedulerConfig { strict, quantum: [1000; 8] },
        });
    };
    let mut quantum = [0; 8];
    if weights.len() != 8 {
        return Err(section.missing("weights", expected));
    }
    for (quantum, node) in quantum.iter_mut().zip(weights) {
        let weight = node.to_text().parse().ok().filter(|n| (1..=1000_u32).contains(n));
        *quantum = weight.ok_or_else(|| section.wrong("weights", node, expected))? * 1000;
    }
    Ok(SchedulerConfig { strict: strict.unwrap_or(0), quantum })
}

/// Reads the configuration of the hosts, and the numbers of those that run the engine.
fn host(section: Section<'_>, network: &Network) -> Result<(HostConfig, Vec<u32>), ScenarioError> {
    let default = HostConfig::default();
    let recoveries = ["go-back-n", "go-back-0", "selective-repeat"];
    let host = HostConfig {
        ack_every: section.small("ack_every", 1)?.unwrap_or(default.ack_every),
        ack_priority: section.priority("ack_priority")?,
        ack_delay: section.time("ack_delay")?.unwrap_or_default(),
        cnp_delay: section.time("cnp_delay")?.unwrap_or_default(),
        recovery: match section.choice("recovery", &recoveries)? {
            Some(1) => Recovery::GoBack0,
            Some(2) => Recovery::SelectiveRepeat,
            _ => Recovery::GoBackN,
        },
        timeout: section.time("timeout")?.unwrap_or(default.timeout),
        window: section.bytes("window")?,
        burst: section.small("burst", 1)?.unwrap_or(default.burst),
    };
    let engines = match section.get("engine") {
        None => Vec::new(),
        Some(_) => hosts(&section, "engine", network)?,
    };
    section.finish()?;
    Ok((host, engines))
}

/// Reads `set`, and every parameter of the congestion crate by its own or NVIDIA's name.
fn congestion(section: Section<'_>) -> Result<Params, ScenarioError> {
    let names: Vec<&str> = SETS.iter().map(|set| set.name).collect();
    let set = section.choice("set", &names)?.and_then(|set| Params::named(names[set]));
    let mut params = set.unwrap_or_default();
    for (key, node) in section.unread() {
        params.set(key, &node.to_text()).map_err(|error| match error {
            ParamError::UnknownName => ScenarioError::UnknownKey {
                place: node.origin.to_string(),
                key: format!("congestion.{key}"),
                known: format!("set, {}", parameter_names()),
            },
            ParamError::BadValue { expects, .. } => section.wrong(key, node, expects.to_string()),
        })?;
    }
    Ok(params)
}

fn parameter_names() -> String {
    let names: Vec<&str> =
        feroce_congestion::params::all().map(|parameter| parameter.name).collect();
    names.join(", ")
}

/// Reads one `[[traffic]]`.
pub(super) fn traffic(
    section: Section<'_>,
    config: &FabricConfig,
    file: &str,
) -> Result<Traffic, ScenarioError> {
    let name =
        section.text("name")?.ok_or_else(|| section.missing("name", "the traffic's name"))?;
    let pattern = pattern(&section, config, file)?;
    let (from, to) = match &pattern {
        Pattern::Collective(collective) => (collective.ranks.clone(), collective.ranks.clone()),
        Pattern::File(flows) => files::hosts(flows),
        _ => (hosts(&section, "from", &config.network)?, hosts(&section, "to", &config.network)?),
    };
    reject_keys_of_other_patterns(&section, &pattern)?;
    let control = control(&section)?;
    if !control.algorithm().is_some_and(|algorithm| algorithm.starts_at_rate) {
        let can = ALGORITHMS.iter().filter(|algorithm| algorithm.starts_at_rate);
        let can: Vec<_> = can.map(|algorithm| format!("\"{}\"", algorithm.name)).collect();
        let because = format!("without control = {}", can.join(" or "));
        section.reject_ineffective(&["initial_rate"], &because)?;
    }
    let (message, messages) = messages(&section, config.packet.payload)?;
    let traffic = Traffic {
        name,
        pattern,
        from,
        to,
        priority: section.priority("priority")?.unwrap_or(DEFAULT_PRIORITY),
        message,
        messages,
        after: Vec::new(),
        delay: collective::delay(&section)?,
        start: section.time("start")?.unwrap_or_default(),
        stagger: section.time("stagger")?.unwrap_or_default(),
        stop: section.time("stop")?.unwrap_or(Time::FAR),
        control,
        initial_rate: section.rate("initial_rate")?.map(|rate| rate.bits_per_second()),
        end: config.duration,
    };
    section.finish()?;
    Ok(traffic)
}

/// Reads how the flows of a traffic group begin and between which hosts.
fn pattern(
    section: &Section<'_>,
    config: &FabricConfig,
    file: &str,
) -> Result<Pattern, ScenarioError> {
    let own = ["flows", "incast", "poisson", "pairs", "file"];
    let kinds: Vec<&str> = own.into_iter().chain(collective::KINDS).collect();
    let kind = section.choice("kind", &kinds)?.unwrap_or(0);
    if let Some(kind) = kind.checked_sub(own.len()) {
        return Ok(Pattern::Collective(collective::read(section, kind, config)?));
    }
    section.reject_ineffective(&collective::KEYS, "without the kind of a collective")?;
    if kind != 4 {
        section.reject_ineffective(&["file", "format"], "without kind = \"file\"")?;
    }
    let sizes = || sizes(section, file, config.packet.payload);
    Ok(match kind {
        0 => Pattern::Flows {
            per_pair: section.small("per_pair", 1)?.unwrap_or(1),
            senders: section.count("senders", 1..=1_000_000)?.and_then(|n| usize::try_from(n).ok()),
        },
        1 => {
            let senders = section.size("senders", 0)?;
            if senders == 0 {
                return Err(section.missing("senders", "the number of senders"));
            }
            Pattern::Incast { senders }
        }
        2 => {
            let load = section.fraction("load")?;
            let load = load.ok_or_else(|| {
                section.missing("load", "a load of the hosts' links, such as \"30%\"")
            })?;
            Pattern::Poisson { load: load.units(), sizes: sizes()? }
        }
        4 => Pattern::File(files::flows(section, config, file)?),
        _ => {
            let pairs = section.small("pairs", 1)?;
            let pairs = pairs.ok_or_else(|| section.missing("pairs", "the number of pairs"))?;
            Pattern::Pairs { pairs, sizes: sizes()? }
        }
    })
}

/// Rejects keys that have no effect with `pattern`.
fn reject_keys_of_other_patterns(
    section: &Section<'_>,
    pattern: &Pattern,
) -> Result<(), ScenarioError> {
    match pattern {
        Pattern::Poisson { .. } => section.reject_ineffective(
            &["message", "messages", "stagger"],
            "with kind = \"poisson\": sizes and starts are random",
        ),
        Pattern::Pairs { .. } => section.reject_ineffective(
            &["message", "messages"],
            "with kind = \"pairs\": sizes are random",
        ),
        // Their readers have rejected such keys.
        Pattern::Collective(_) | Pattern::File(_) => Ok(()),
        Pattern::Flows { .. } | Pattern::Incast { .. } => Ok(()),
    }
}

/// Reads the message size of a flow, and the number of messages if the flow has an end.
fn messages(section: &Section<'_>, payload: u32) -> Result<(u64, Option<u32>), ScenarioError> {
    let message = section.bytes("message")?.unwrap_or(1 << 20);
    if let (0, Some(node)) = (message, section.get("message")) {
        return Err(section.wrong("message", node, "at least one byte"));
    }
    let messages = section.small("messages", 1)?;
    let packets = message.div_ceil(payload.into()).checked_mul(messages.unwrap_or(1).into());
    match packets {
        Some(packets) if packets < 1 << 32 => Ok((message, messages)),
        _ => Err(ScenarioError::Inconsistent {
            place: section.place(),
            message: "a flow has 2^32 packets or more; the limit is 2^32 - 1".to_owned(),
        }),
    }
}

/// Reads the distribution that `sizes` names.
fn sizes(section: &Section<'_>, file: &str, payload: u32) -> Result<Distribution, ScenarioError> {
    let sizes = section.text("sizes")?;
    let sizes =
        sizes.ok_or_else(|| section.missing("sizes", "\"websearch\", \"hadoop\" or a file"))?;
    let folder = std::path::Path::new(file).parent().unwrap_or_else(|| std::path::Path::new(""));
    let named = Distribution::named(&sizes, folder).and_then(|sizes| match sizes.largest() {
        largest if largest.div_ceil(payload.into()) < 1 << 32 => Ok(sizes),
        largest => Err(format!("flows of less than 2^32 packets, not of {largest} bytes")),
    });
    named.map_err(|message| match section.get("sizes") {
        Some(node) => section.wrong("sizes", node, message),
        None => section.missing("sizes", message),
    })
}

fn control(section: &Section<'_>) -> Result<Control, ScenarioError> {
    let parse = |text: &str| match text {
        "none" => Some(Control::Off),
        text => text.parse().ok().filter(|&control| control != Control::Off),
    };
    let names = ALGORITHMS.iter().map(|algorithm| format!(", \"{}\"", algorithm.name));
    let names: String = names.collect();
    let expected = format!("\"none\"{names} or a rate such as \"10Gb/s\"");
    Ok(section.parsed("control", &expected, parse)?.unwrap_or_default())
}
