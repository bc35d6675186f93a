//! Connection matrices of htsim, and flows as CSV.
//!
//! A connection matrix: `Nodes N`, `Connections M`, then `src->dst id 1 start 0 size 2000000` for
//! each connection, the start in picoseconds. CSV: a line with the names of the columns `src`,
//! `dst`, `bytes`, `start_s` and perhaps `priority`, in any order, then a line for each flow.

use super::{FileFlow, FormatError, SECOND, decimal_time};
use crate::fabric::time::Time;

/// Parses a connection matrix.
///
/// # Errors
/// The line at fault.
pub fn htsim(file: &str, text: &str) -> Result<Vec<FileFlow>, FormatError> {
    let mut flows = Vec::new();
    let mut due = None;
    for (line, text) in (1..).zip(text.lines()) {
        let error = |message: String| FormatError { place: format!("{file}:{line}"), message };
        let words: Vec<&str> = text.split_whitespace().collect();
        match words[..] {
            [] => {}
            [first, ..] if first.starts_with('#') => {}
            ["Nodes", count] | ["Connections", count] => {
                let Ok(count) = count.parse::<usize>() else {
                    return Err(error(format!("`{count}` is no number")));
                };
                due = if words[0] == "Connections" { Some(count) } else { due };
            }
            [ends, ref pairs @ ..] if ends.contains("->") => {
                flows.push(connection(ends, pairs, line).map_err(error)?);
            }
            [first, ..] => {
                return Err(error(format!(
                    "begins with `{first}`, expected Nodes, Connections or a connection such as \
                     `0->13 start 0 size 2000000`; triggers are not supported"
                )));
            }
        }
    }
    match due {
        Some(due) if due == flows.len() => Ok(flows),
        due => Err(FormatError {
            place: file.to_owned(),
            message: match due {
                None => "has no line `Connections N`".to_owned(),
                Some(due) => format!("has {} connections, expected {due}", flows.len()),
            },
        }),
    }
}

fn connection(ends: &str, pairs: &[&str], line: usize) -> Result<FileFlow, String> {
    let (from, to) = ends.split_once("->").unwrap_or_default();
    let number = |text: &str| text.parse().map_err(|_| format!("`{text}` is no host"));
    let (from, to) = (number(from)?, number(to)?);
    let mut flow = FileFlow { from, to, priority: None, bytes: 0, start: Time::ZERO, line };
    for pair in pairs.chunks(2) {
        let [key, value] = pair else { return Err(format!("`{}` has no value", pair[0])) };
        let number = value.parse().map_err(|_| format!("{key} is `{value}`, expected an integer"));
        match *key {
            "id" => {}
            "start" => flow.start = Time(number?),
            "size" => flow.bytes = number?,
            _ => return Err(format!("`{key}` is not supported: id, start and size are")),
        }
    }
    if flow.bytes == 0 { Err("size is missing or 0".to_owned()) } else { Ok(flow) }
}

/// The columns of CSV; the last one may be missing.
const KNOWN: [&str; 5] = ["src", "dst", "bytes", "start_s", "priority"];

/// Parses flows as CSV.
///
/// # Errors
/// The line at fault.
pub fn csv(file: &str, text: &str) -> Result<Vec<FileFlow>, FormatError> {
    let mut lines = (1..).zip(text.lines()).filter(|(_, text)| !text.trim().is_empty());
    let error =
        |line: usize, message: String| FormatError { place: format!("{file}:{line}"), message };
    let (line, head) = lines.next().unwrap_or((1, ""));
    let names: Vec<&str> = head.split(',').map(str::trim).collect();
    let is_complete = KNOWN[..4].iter().all(|name| names.contains(name));
    if !is_complete || names.iter().any(|name| !KNOWN.contains(name)) {
        let message = format!("`{head}`, expected the columns src,dst,bytes,start_s[,priority]");
        return Err(error(line, message));
    }
    let place = |name: &str| names.iter().position(|known| *known == name);
    let mut flows = Vec::new();
    for (line, text) in lines {
        let cells: Vec<&str> = text.split(',').map(str::trim).collect();
        if cells.len() != names.len() {
            let message = format!("{} cells, expected {}", cells.len(), names.len());
            return Err(error(line, message));
        }
        let cell = |name: &str| place(name).map_or("", |at| cells[at]);
        let wrong = |name: &str, expected: &str| {
            error(line, format!("{name} is `{}`, expected {expected}", cell(name)))
        };
        let host = |name| cell(name).parse().map_err(|_| wrong(name, "the number of a host"));
        let bytes = cell("bytes").parse().ok().filter(|&bytes| bytes > 0);
        let start = decimal_time(cell("start_s"), SECOND);
        let priority = match cell("priority") {
            "" => None,
            text => match text.parse().ok().filter(|&priority: &u8| priority < 8) {
                None => return Err(wrong("priority", "a priority from 0 to 7")),
                some => some,
            },
        };
        flows.push(FileFlow {
            from: host("src")?,
            to: host("dst")?,
            priority,
            bytes: bytes.ok_or_else(|| wrong("bytes", "at least one byte"))?,
            start: start.ok_or_else(|| wrong("start_s", "a time in seconds"))?,
            line,
        });
    }
    Ok(flows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_matrix_has_flows() {
        let text = "Nodes 16\nConnections 2\n0->13 start 5 size 2000000\n13->0 id 7 size 1\n\n";
        let flows = htsim("m", text).unwrap();
        assert_eq!((flows[0].from, flows[0].to, flows[0].start), (0, 13, Time(5)));
        assert_eq!((flows[1].bytes, flows[1].line, flows.len()), (1, 4, 2));
        for (from, to, due) in [
            ("Connections 2", "Connections 3", "m: has 2 connections, expected 3"),
            ("Connections 2", "", "m: has no line `Connections N`"),
            ("0->13", "x->13", "m:3: `x` is no host"),
            ("start 5", "start", "m:3: start is `size`, expected an integer"),
            ("size 1\n", "size 0\n", "m:4: size is missing or 0"),
            ("id 7", "trigger 7", "m:4: `trigger` is not supported: id, start and size are"),
            ("Nodes", "nodes", "m:1: begins with `nodes`, expected Nodes, Connections or"),
        ] {
            let error = htsim("m", &text.replace(from, to)).expect_err(to).to_string();
            assert!(error.starts_with(due), "{error}");
        }
    }

    #[test]
    fn csv_columns_have_any_order() {
        let text = "dst,src,bytes,start_s,priority\n1, 0,1000,0.5,4\n2,1,5,1e-3,\n";
        let flows = csv("c", text).unwrap();
        assert_eq!((flows[0].from, flows[0].to, flows[0].priority), (0, 1, Some(4)));
        assert_eq!((flows[1].start, flows[1].priority), (Time::from_millis(1), None));
        for (from, to, due) in [
            ("dst,", "", "c:1: `src,bytes,start_s,priority`, expected the columns src,dst,"),
            (",priority", ",rate", "c:1: `dst,src,bytes,start_s,rate`, expected the columns"),
            ("0.5,4", "0.5", "c:2: 4 cells, expected 5"),
            ("0.5,4", "0.5,9", "c:2: priority is `9`, expected a priority from 0 to 7"),
            ("1000", "0", "c:2: bytes is `0`, expected at least one byte"),
            ("1e-3", "soon", "c:3: start_s is `soon`, expected a time in seconds"),
            ("2,1", "2,y", "c:3: src is `y`, expected the number of a host"),
        ] {
            let error = csv("c", &text.replace(from, to)).expect_err(to).to_string();
            assert!(error.starts_with(due), "{error}");
        }
    }
}
