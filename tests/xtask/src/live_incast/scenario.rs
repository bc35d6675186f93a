//! What the comparison needs from the scenario file.

use toml::de::{DeTable, DeValue};

use crate::Result;

/// The scenario.
pub const FILE: &str = "pfc-tools/scenarios/live-incast.toml";
/// Shortest measurement after the warm-up, in seconds.
const SHORTEST: u32 = 5;
/// Length of a full packet in bytes, from the Ethernet header to the ICRC.
pub const FRAME: u32 = 1082;
/// Parameters of `[congestion]` that apply to the switch, not to endpoints.
const MARKING: [&str; 5] = ["kmin", "kmax", "pmax", "beyond_kmax", "mark_at"];

/// Values from the scenario.
#[derive(Debug)]
pub struct Scenario {
    /// Duration of a run in seconds, with its warm-up.
    pub duration: u32,
    /// Seconds at the beginning that are not measured.
    pub warmup: u32,
    /// Packets that a sender may send back to back after waiting.
    burst: u32,
    /// Name of the parameter set.
    set: String,
    /// Changes of parameters, for `congestion_parameters`.
    parameters: String,
    /// CNP interval in milliseconds.
    pub cnp_interval_ms: f64,
}

impl Scenario {
    /// Reads the file. Returns `None` if `seconds`, the duration instead of the file's, leaves less
    /// than 5 s for the measurement.
    pub fn read(seconds: Option<u32>) -> Result<Option<Scenario>> {
        let mut scenario = parse(&std::fs::read_to_string(FILE)?)?;
        scenario.duration = seconds.unwrap_or(scenario.duration);
        Ok((scenario.duration >= scenario.warmup + SHORTEST).then_some(scenario))
    }

    /// The shortest duration, as a sentence.
    pub fn shortest() -> Result<String> {
        let Scenario { warmup, .. } = parse(&std::fs::read_to_string(FILE)?)?;
        Ok(format!("at least {} are needed, {warmup} of them to warm up", warmup + SHORTEST))
    }

    /// Environment variables that give an endpoint the scenario's congestion control.
    pub fn variables(&self) -> [(&'static str, String); 4] {
        // The scenario's burst: after a delay, a sender may not send more at once than a NIC would.
        let burst = self.burst * FRAME;
        [
            ("FEROCE_CONGESTION", "dcqcn".to_owned()),
            ("FEROCE_CONGESTION_SET", self.set.clone()),
            ("FEROCE_CONGESTION_PARAMETERS", self.parameters.clone()),
            ("FEROCE_CONGESTION_BURST", burst.to_string()),
        ]
    }
}

fn parse(text: &str) -> Result<Scenario> {
    let document = DeTable::parse(text).map_err(|error| format!("{FILE}: {error}"))?;
    let root = document.get_ref();
    let seconds = |key: &str| -> Result<u32> {
        let text = text_at(root, key)?;
        Ok(text.strip_suffix('s').ok_or_else(|| format!("{FILE}: {key}: no seconds"))?.parse()?)
    };
    let congestion = table_at(root, "congestion")?;
    let interval = text_at(congestion, "cnp_interval")?;
    let interval = interval.strip_suffix("ms").ok_or("cnp_interval: no milliseconds")?;
    let mut parameters = Vec::new();
    for key in congestion.keys().map(|key| key.get_ref().as_ref()) {
        if key != "set" && !MARKING.contains(&key) {
            parameters.push(format!("{key}={}", text_at(congestion, key)?));
        }
    }
    Ok(Scenario {
        duration: seconds("duration")?,
        warmup: seconds("warmup")?,
        burst: text_at(table_at(root, "host")?, "burst")?.parse()?,
        set: text_at(congestion, "set")?,
        parameters: parameters.join(", "),
        cnp_interval_ms: interval.parse()?,
    })
}

fn table_at<'a, 'i>(table: &'a DeTable<'i>, key: &str) -> Result<&'a DeTable<'i>> {
    match table.get(key).map(|value| value.get_ref()) {
        Some(DeValue::Table(table)) => Ok(table),
        _ => Err(format!("{FILE}: no table {key}").into()),
    }
}

fn text_at(table: &DeTable<'_>, key: &str) -> Result<String> {
    match table.get(key).map(|value| value.get_ref()) {
        Some(DeValue::String(text)) => Ok(text.to_string()),
        Some(DeValue::Integer(number)) => Ok(number.as_str().to_owned()),
        Some(DeValue::Float(number)) => Ok(number.as_str().to_owned()),
        _ => Err(format!("{FILE}: no value {key}").into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_get_the_scenarios_parameters_without_those_of_the_switch() {
        let text = "duration = '100s'\nwarmup = '20s'\n[host]\nburst = 7\n[congestion]\n\
                    set = 'paper'\nkmin = '5KB'\ncnp_interval = '20ms'\nai_rate = '1kb/s'\n";
        let scenario = parse(text).expect("a scenario");
        assert_eq!((scenario.duration, scenario.warmup), (100, 20));
        assert_eq!(scenario.cnp_interval_ms, 20.0);
        let values = scenario.variables().map(|(_, value)| value);
        let mut parameters: Vec<_> = values[2].split(", ").collect();
        parameters.sort_unstable();
        assert_eq!(parameters, ["ai_rate=1kb/s", "cnp_interval=20ms"]);
        assert_eq!([&values[0], &values[1], &values[3]], ["dcqcn", "paper", "7574"]);
    }
}
