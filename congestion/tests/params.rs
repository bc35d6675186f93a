//! Parameters by name: accepted values, error messages, and NVIDIA's names.

use feroce_congestion::params::{self, Kind, NVIDIA, SETS, TargetClamp, param};
use feroce_congestion::{Duration, Fraction, Params, Rate};
use proptest::prelude::*;

fn set(name: &str, text: &str) -> Params {
    let mut params = Params::default();
    params.set(name, text).unwrap_or_else(|error| panic!("{name} = {text}: {error}"));
    params
}

#[track_caller]
fn refused(name: &str, text: &str, because: &str) {
    let mut params = Params::default();
    let error = params.set(name, text).expect_err("refused");
    assert_eq!(error.to_string(), because);
    assert_eq!(params, Params::default());
}

/// kmin, kmax and pmax, from the sources that `SETS` names.
#[test]
fn sets_mark_as_their_sources_do() {
    let marking = |name: &str| {
        let set = SETS.iter().find(|one| one.name == name).expect("a set").params.marking;
        (set.kmin, set.kmax, set.pmax)
    };
    assert_eq!(marking("paper"), (5_000, 200_000, Fraction::ratio(1, 100)));
    assert_eq!(marking("ns3-rdma"), (40_000, 1_000_000, Fraction::ONE));
    assert_eq!(marking("hpcc"), (400_000, 1_600_000, Fraction::ratio(1, 5)));
}

#[test]
fn names_are_unique_and_shown_values_parse_back() {
    let mut names: Vec<_> = params::all().map(|param| param.name).collect();
    names.extend(NVIDIA.iter().flat_map(|known| known.names));
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
    for one in SETS {
        let mut copy = Params::default();
        for param in params::all() {
            assert!(
                param.range.contains(&param.get(&one.params)),
                "{} of {}",
                param.name,
                one.name
            );
            let text = param.show(&one.params).to_string();
            copy.set(param.name, &text).unwrap_or_else(|error| panic!("{text}: {error}"));
        }
        assert_eq!(copy, one.params, "{}", one.name);
        assert_eq!(Params::named(one.name), Some(one.params));
    }
    assert_eq!(Params::named("dctcp"), None);
}

#[test]
fn values_have_units() {
    assert_eq!(set("alpha_interval", "55us").reaction.alpha_interval, Duration::from_micros(55));
    assert_eq!(
        set("alpha_interval", "1.5 ms").reaction.alpha_interval,
        Duration::from_micros(1500)
    );
    assert_eq!(set("ai_rate", "2.5Gb/s").reaction.ai_rate, Rate::from_mbps(2500));
    assert_eq!(set("ai_rate", "40Mbps").reaction.ai_rate, Rate::from_mbps(40));
    assert_eq!(set("max_rate", "0").reaction.max_rate, Rate::ZERO);
    assert_eq!(set("byte_counter", "10MB").reaction.byte_counter, 10_000_000);
    assert_eq!(set("byte_counter", "64KiB").reaction.byte_counter, 65_536);
    assert_eq!(set("kmin", "40000").marking.kmin, 40_000);
    for text in ["1/256", "0.00390625", "0.390625%"] {
        assert_eq!(set("g", text).reaction.g, Fraction::ratio(1, 256), "{text}");
    }
    assert_eq!(
        set("target_clamp", "after-increase").reaction.target_clamp,
        TargetClamp::AfterIncrease
    );
    assert_eq!(set("threshold", "1").reaction.threshold, 1);
}

#[test]
fn errors_name_the_accepted_values() {
    refused("alpha", "1", "no parameter of congestion control has this name");
    refused("ai_rate", "40", "ai_rate takes 0 to 10000Gb/s (as `40Mb/s`)");
    refused("ai_rate", "-1Mb/s", "ai_rate takes 0 to 10000Gb/s (as `40Mb/s`)");
    refused("increase_interval", "55", "increase_interval takes 1us to 1s (as `55us`)");
    refused("increase_interval", "0.0001us", "increase_interval takes 1us to 1s (as `55us`)");
    refused("increase_interval", "2s", "increase_interval takes 1us to 1s (as `55us`)");
    refused("g", "0", "g takes more than 0, at most 1 (as `1/256`, `0.01` or `1%`)");
    refused("g", "3/2", "g takes more than 0, at most 1 (as `1/256`, `0.01` or `1%`)");
    refused("g", "1/0", "g takes more than 0, at most 1 (as `1/256`, `0.01` or `1%`)");
    refused("kmin", "5GB", "kmin takes 0 to 4294967295B (as `10MB`)");
    refused("cut_order", "cut", "cut_order takes `cut-first`, `alpha-first` or `apart`");
    refused("cnp_priority", "8", "cnp_priority takes 0 to 7");
    refused("rpg_ai_rate", "5Mb/s", "rpg_ai_rate takes 0 to 10000000 (Mb/s)");
    refused("rpg_time_reset", "0", "rpg_time_reset takes 1 to 1000000 (us)");
    refused("rp_dce_tcp_g", "1024", "dce_tcp_g takes 0 to 1023 (1 - g, in 1/1024)");
    for text in ["", "us", "1e3us", "1.us2", ".5us", "99999999999999999999999us", "1 0us"] {
        assert!(Params::default().set("increase_interval", text).is_err(), "{text}");
    }
}

#[test]
fn nvidia_names_have_nvidia_units_and_defaults() {
    let nvidia = Params::named("nvidia").expect("a set");
    // The values that a ConnectX reports.
    let defaults = [
        ("rpg_time_reset", 300),
        ("rpg_byte_reset", 32767),
        ("rpg_threshold", 1),
        ("rpg_ai_rate", 5),
        ("rpg_hai_rate", 50),
        ("rpg_max_rate", 0),
        ("rpg_min_rate", 1),
        ("rpg_gd", 11),
        ("rpg_min_dec_fac", 50),
        ("rate_to_set_on_first_cnp", 0),
        ("dce_tcp_g", 1019),
        ("dce_tcp_rtt", 1),
        ("rate_reduce_monitor_period", 4),
        ("initial_alpha_value", 1023),
        ("clamp_tgt_rate", 0),
        ("clamp_tgt_rate_after_time_inc", 1),
        ("min_time_between_cnps", 4),
        ("np_cnp_dscp", 48),
        ("cnp_802p_prio", 6),
    ];
    assert_eq!(defaults.len(), NVIDIA.len());
    for ((name, value), known) in defaults.iter().zip(NVIDIA) {
        assert_eq!(known.names[0], *name);
        assert_eq!((known.get)(&nvidia), *value, "{name}");
        assert!(param(known.param).is_some(), "{name}");
        let mut copy = nvidia;
        copy.set(name, &value.to_string()).expect("its own value");
        assert_eq!(copy, nvidia, "{name}");
    }
}

#[test]
fn nvidia_values_read_back_as_written() {
    for known in NVIDIA {
        for value in [0, 1, 2, 7, 33, 63, 99, 100, 511, 1000, 1023, 100_000] {
            let mut params = Params::named("nvidia").expect("a set");
            if value > known.max || params.set(known.names[0], &value.to_string()).is_err() {
                continue;
            }
            assert_eq!((known.get)(&params), value, "{} = {value}", known.names[0]);
        }
    }
}

#[test]
fn the_two_clamp_flags_of_nvidia_have_three_combined_values() {
    let clamp = |flags: &[(&str, &str)]| {
        let mut params = Params::named("nvidia").expect("a set");
        for (name, value) in flags {
            params.set(name, value).expect("a flag");
        }
        params.reaction.target_clamp
    };
    assert_eq!(clamp(&[("clamp_tgt_rate", "1")]), TargetClamp::Always);
    assert_eq!(clamp(&[("rp_clamp_tgt_rate_ati", "0")]), TargetClamp::AfterByteIncrease);
    assert_eq!(
        clamp(&[("clamp_tgt_rate", "1"), ("clamp_tgt_rate", "0")]),
        TargetClamp::AfterIncrease
    );
    // The last value of each counts, whichever is set first.
    let (ati, tgt) = ("rp_clamp_tgt_rate_ati", "clamp_tgt_rate");
    let orders = [
        [(ati, "0"), (tgt, "0"), (tgt, "0")],
        [(tgt, "1"), (ati, "0"), (tgt, "0")],
        [(ati, "0"), (tgt, "1"), (tgt, "0")],
        [(tgt, "1"), (tgt, "0"), (ati, "0")],
    ];
    for order in orders {
        assert_eq!(clamp(&order), TargetClamp::AfterByteIncrease, "{order:?}");
    }
    assert_eq!(clamp(&[(tgt, "1"), (ati, "0")]), TargetClamp::Always);
}

proptest! {
    #[test]
    fn every_shown_number_parses_back(
        raw in any::<u64>(),
        place in 0..params::all().count(), which in 0..3u8,
    ) {
        let param = params::all().nth(place).expect("a row");
        let (min, max) = (*param.range.start(), *param.range.end());
        let value = match which {
            0 => min + raw % (max - min + 1),
            1 => min + raw % (max - min + 1) % 100_000,
            _ => max - raw % (max - min + 1) % 1000,
        };
        let text = param.kind.show(value).to_string();
        prop_assert_eq!(param.kind.parse(&text), Some(value), "{}: {}", param.name, text);
    }

    #[test]
    fn any_text_is_parsed_without_a_panic(text in ".{0,30}") {
        for param in params::all() {
            let _ = param.kind.parse(&text);
        }
    }
}

#[test]
fn each_choice_has_a_name() {
    for param in params::all() {
        if let Kind::Choice(names) = param.kind {
            assert_eq!(*param.range.end() + 1, names.len() as u64, "{}", param.name);
        }
    }
}
