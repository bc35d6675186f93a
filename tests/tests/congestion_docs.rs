//! The tables in `docs/congestion.md` equal those of the code. After a change, write them with
//! `cargo test --workspace --test congestion_docs -- --ignored`.

use std::fmt::Write as _;

use feroce_congestion::algorithm::dcqcn;
use feroce_congestion::params::{Kind, MARKING, NOTIFICATION, NVIDIA, Param, REACTION, SETS};
use feroce_congestion::{ALGORITHMS, Acks, Algorithm, Marks, Params};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/congestion.md");

/// The tables, each with the name in its markers.
fn tables() -> [(&'static str, String); 7] {
    [
        ("algorithms", algorithms()),
        ("sets", sets()),
        ("reaction", of_dcqcn(REACTION)),
        ("notification", of_dcqcn(NOTIFICATION)),
        ("marking", of_dcqcn(MARKING)),
        ("delay", delay()),
        ("nvidia", nvidia()),
    ]
}

fn algorithms() -> String {
    let mut table = String::from(
        "| algorithm | marks | acknowledgements | telemetry | parameters |\n\
         |---|---|---|---|---|\n",
    );
    for algorithm in ALGORITHMS {
        let Algorithm { name, needs, params, .. } = algorithm;
        let marks = match needs.marks {
            Marks::None => "-",
            Marks::Cnps => "CNPs",
            Marks::Echo => "of each packet",
        };
        let acks = match needs.acks {
            Acks::None => "-",
            Acks::Usual => "some",
            Acks::Every => "all",
        };
        let telemetry = if needs.telemetry { "yes" } else { "-" };
        let count = params.len();
        writeln!(table, "| `{name}` | {marks} | {acks} | {telemetry} | {count} |").expect("text");
    }
    table
}

fn sets() -> String {
    let mut table = String::from("| set | source |\n|---|---|\n");
    for set in SETS {
        writeln!(table, "| `{}` | {} |", set.name, set.source).expect("text");
    }
    table
}

/// The parameters of DCQCN, with their values in each set.
fn of_dcqcn(params: &[&Param]) -> String {
    let names: Vec<_> = SETS.iter().map(|set| format!("`{}`", set.name)).collect();
    let mut table =
        format!("| parameter | {} | meaning | values | source |\n|---|", names.join(" | "));
    table += &"---|".repeat(SETS.len() + 3);
    table.push('\n');
    for param in params {
        let values: Vec<_> = SETS.iter().map(|set| param.show(&set.params).to_string()).collect();
        let values = values.join(" | ");
        let Param { name, about, source, .. } = param;
        writeln!(table, "| `{name}` | {values} | {about} | {} | {source} |", takes(param))
            .expect("text");
    }
    table
}

fn takes(param: &Param) -> String {
    let show = |value: &u64| param.kind.show(*value);
    match param.kind {
        Kind::Choice(names) => {
            names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
        }
        Kind::Fraction if *param.range.start() != 0 => "above 0, to 1".to_owned(),
        _ => format!("{} to {}", show(param.range.start()), show(param.range.end())),
    }
}

/// The parameters of the algorithms other than DCQCN. Their values are the same in all sets.
fn delay() -> String {
    let mut table = String::from(
        "| parameter | default | meaning | values | source |\n|---|---|---|---|---|\n",
    );
    let others = ALGORITHMS.iter().filter(|algorithm| **algorithm != &dcqcn::ALGORITHM);
    for param in others.flat_map(|algorithm| algorithm.params) {
        let Param { name, about, source, .. } = param;
        let default = param.show(&Params::default());
        writeln!(table, "| `{name}` | {default} | {about} | {} | {source} |", takes(param))
            .expect("text");
    }
    table
}

fn nvidia() -> String {
    let mut table =
        String::from("| NVIDIA's names | unit | set `nvidia` | parameter |\n|---|---|---|---|\n");
    let nvidia = Params::named("nvidia").expect("a set");
    for known in NVIDIA {
        let names: Vec<_> = known.names.iter().map(|name| format!("`{name}`")).collect();
        let value = (known.get)(&nvidia);
        writeln!(table, "| {} | {} | {value} | `{}` |", names.join(", "), known.unit, known.param)
            .expect("text");
    }
    table
}

/// The page with the tables of the code.
fn page(text: &str) -> String {
    let mut page = text.to_owned();
    for (name, table) in tables() {
        let (begin, end) = (format!("<!-- {name} -->\n"), format!("<!-- end {name} -->"));
        let from = page.find(&begin).unwrap_or_else(|| panic!("no {begin}")) + begin.len();
        let to = page.find(&end).unwrap_or_else(|| panic!("no {end}"));
        page.replace_range(from..to, &table);
    }
    page
}

#[test]
fn the_page_has_the_tables_of_the_code() {
    let text = std::fs::read_to_string(PAGE).expect("the page");
    assert!(
        text == page(&text),
        "run `cargo test --workspace --test congestion_docs -- --ignored`"
    );
}

#[test]
#[ignore = "writes docs/congestion.md"]
fn write_the_tables() {
    let text = std::fs::read_to_string(PAGE).expect("the page");
    std::fs::write(PAGE, page(&text)).expect("written");
}
