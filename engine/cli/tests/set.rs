//! `feroce set` beside a running `feroce perf`: what it shows, changes and refuses. Needs root;
//! skipped with a message without root.

mod common;

use std::process::Output;

use common::{Pair, Server, json, text};

/// The value of `name` in the output.
fn shown<'a>(output_text: &'a str, name: &str) -> &'a str {
    let pairs = output_text.lines().filter_map(|line| line.split_once(char::is_whitespace));
    let value = pairs.filter(|(known, _)| *known == name).map(|(_, value)| value.trim()).next();
    value.unwrap_or_else(|| panic!("no {name} in {output_text}"))
}

fn refused(output: &Output, why: &str) {
    let output_text = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{output_text}");
    assert!(output_text.contains(why), "{output_text}");
}

/// Runs `test` with a server on `v1` that uses this congestion control, and with `feroce set` for
/// that server.
fn with_server(control: &str, test: impl FnOnce(&Pair, &dyn Fn(&str) -> Output)) {
    let Some(pair) = Pair::new() else { return };
    let mut server = pair.feroce(1, "perf -i v1");
    let server = Server::start(server.env("FEROCE_CONGESTION", control));
    test(&pair, &|set| pair.feroce(1, &format!("set v1 {set}")).output().expect("feroce"));
    assert!(server.stop().status.success());
}

#[test]
fn parameters_change_while_a_program_runs() {
    with_server("dcqcn", |pair, set| {
        let changed = |pairs: &str| {
            let output = set(pairs);
            assert!(output.status.success(), "{}", text(&output.stderr));
            text(&output.stdout)
        };
        let before = changed("");
        assert_eq!([shown(&before, "congestion"), shown(&before, "ai_rate")], ["dcqcn", "40Mb/s"]);
        let after = changed("rp_ai_rate=7 cnp_scope=port");
        assert_eq!([shown(&after, "ai_rate"), shown(&after, "cnp_scope")], ["7Mb/s", "port"]);
        // If one parameter is refused, none is set.
        refused(&set("ai_rate=8Mb/s kmin=5KB"), "`kmin` is a parameter of switches");
        refused(&set("ai_rate=fast"), "`ai_rate` = `fast`: ai_rate takes");
        assert_eq!(shown(&changed(""), "ai_rate"), "7Mb/s");
        for control in ["3Gb/s", "swift", "dcqcn"] {
            assert_eq!(shown(&changed(&format!("congestion={control}")), "congestion"), control);
        }
        refused(&set("congestion=off"), "cannot be turned off");
        let stat = pair.feroce(1, "stat -i v1 --json").output().expect("feroce");
        let figures = &json(&stat)[0];
        assert_eq!(figures["congestion"], "dcqcn");
        assert_eq!(figures["congestion_params"]["ai_rate"], "7Mb/s");
        assert_eq!(set("ai_rate").status.code(), Some(2), "wrong usage");
        let no_server = pair.feroce(0, "set v0 ai_rate=8Mb/s").output().expect("feroce");
        assert_eq!(no_server.status.code(), Some(1));
    });
}

#[test]
fn congestion_control_must_be_chosen_at_open() {
    with_server("1Gb/s", |_, set| {
        refused(&set("congestion=dcqcn"), "opened with `congestion` = 1Gb/s");
    });
    with_server("off", |_, set| refused(&set("ai_rate=8Mb/s"), "congestion control is off"));
}
