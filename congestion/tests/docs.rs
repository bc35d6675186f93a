//! The tables in `docs/congestion.md` are those that the code has. After a change:
//! `cargo test -p feroce-congestion --test docs -- --ignored` writes them.

use std::fmt::Write as _;

use feroce_congestion::Params;
use feroce_congestion::params::{Kind, Knob, NVIDIA, Part, SETS, TABLE};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/congestion.md");

/// The tables, each with the word in its markers.
fn tables() -> [(&'static str, String); 6] {
    [
        ("sets", sets()),
        ("reaction", parts(Part::Reaction)),
        ("notification", parts(Part::Notification)),
        ("marking", parts(Part::Marking)),
        ("delay", delay()),
        ("nvidia", nvidia()),
    ]
}

fn sets() -> String {
    let mut table = String::from("| set | source |\n|---|---|\n");
    for set in SETS {
        writeln!(table, "| `{}` | {} |", set.name, set.source).expect("text");
    }
    table
}

/// The parameters of DCQCN, with their values in each set.
fn parts(part: Part) -> String {
    let names: Vec<_> = SETS.iter().map(|set| format!("`{}`", set.name)).collect();
    let mut table =
        format!("| parameter | {} | what it is | takes | source |\n|---|", names.join(" | "));
    table += &"---|".repeat(SETS.len() + 3);
    table.push('\n');
    for knob in TABLE.iter().filter(|knob| knob.part == part) {
        let values: Vec<_> = SETS.iter().map(|set| knob.show(&set.params).to_string()).collect();
        let values = values.join(" | ");
        let Knob { name, about, source, .. } = knob;
        writeln!(table, "| `{name}` | {values} | {about} | {} | {source} |", takes(knob))
            .expect("text");
    }
    table
}

fn takes(knob: &Knob) -> String {
    let show = |value: &u64| knob.kind.show(*value);
    match knob.kind {
        Kind::Choice(names) => {
            names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
        }
        Kind::Fraction if *knob.range.start() != 0 => "above 0, to 1".to_owned(),
        _ => format!("{} to {}", show(knob.range.start()), show(knob.range.end())),
    }
}

/// The parameters of TIMELY and Swift, which all sets have alike.
fn delay() -> String {
    let mut table = String::from(
        "| parameter | default | what it is | takes | source |\n|---|---|---|---|---|\n",
    );
    let delay = |knob: &&Knob| matches!(knob.part, Part::Timely | Part::Swift);
    for knob in TABLE.iter().filter(delay) {
        let Knob { name, about, source, .. } = knob;
        let default = knob.show(&Params::default());
        writeln!(table, "| `{name}` | {default} | {about} | {} | {source} |", takes(knob))
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
        writeln!(table, "| {} | {} | {value} | `{}` |", names.join(", "), known.unit, known.knob)
            .expect("text");
    }
    table
}

/// The page with its tables as they should be.
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
    assert!(text == page(&text), "run `cargo test -p feroce-congestion --test docs -- --ignored`");
}

#[test]
#[ignore = "writes docs/congestion.md"]
fn write_the_tables() {
    let text = std::fs::read_to_string(PAGE).expect("the page");
    std::fs::write(PAGE, page(&text)).expect("written");
}
