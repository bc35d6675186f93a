//! The scripts that come with the program: `pfc-tools/conform/catalogue`.

macro_rules! scripts {
    ($($name:literal)*) => {
        /// Name and text of each, by name.
        pub const SCRIPTS: &[(&str, &str)] = &[$((
            $name,
            include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/catalogue/", $name, ".toml")),
        )),*];
    };
}

scripts! {
    "ack-of-unsent-psn"
    "ack-request-lost"
    "cm-disconnect-lost"
    "cm-ready-late"
    "cm-ready-lost"
    "cm-reply-doubled"
    "cm-reply-lost"
    "cm-reply-wrong-qpn"
    "cm-request-doubled"
    "cm-request-lost"
    "corrupt-ack"
    "corrupt-nak"
    "corrupt-read-response"
    "corrupt-send-last"
    "corrupt-write"
    "delay-ack"
    "delay-write"
    "drop-ack"
    "drop-ack-of-send"
    "drop-across-psn-wrap"
    "drop-atomic-request"
    "drop-atomic-response"
    "drop-atomic-response-last"
    "drop-before-psn-wrap"
    "drop-every-request"
    "drop-every-response"
    "drop-in-long-train"
    "drop-in-mixed-operations"
    "drop-inside-retransmission"
    "drop-mtu-1024"
    "drop-mtu-4096"
    "drop-nak"
    "drop-one-flow-of-two"
    "drop-read-request"
    "drop-read-request-followed"
    "drop-read-response-across-psn-wrap"
    "drop-read-response-before-another"
    "drop-read-response-first"
    "drop-read-response-last"
    "drop-read-response-middle"
    "drop-read-response-twice"
    "drop-retransmission"
    "drop-send-first"
    "drop-send-last-followed"
    "drop-send-middle"
    "drop-send-only"
    "drop-three-in-a-row"
    "drop-two-packets"
    "drop-write-first"
    "drop-write-imm-last"
    "drop-write-last"
    "drop-write-last-followed"
    "drop-write-middle"
    "drop-write-only"
    "duplicate-ack"
    "duplicate-atomic"
    "duplicate-nak"
    "duplicate-read-request"
    "duplicate-read-response"
    "duplicate-send-only"
    "duplicate-write-last"
    "duplicate-write-middle"
    "echo-atomic"
    "echo-nak"
    "echo-read-response"
    "echo-send"
    "echo-write"
    "forged-cnps"
    "forged-fatal-nak"
    "forged-nak"
    "forged-rnr-nak"
    "header-of-no-qp"
    "header-reserved-bits"
    "mark-and-drop"
    "mark-one-flow-of-two"
    "mark-read-response"
    "mark-send-all"
    "mark-write"
    "other-priority"
    "psn-ahead"
    "psn-behind"
    "receive-too-short"
    "reorder-read-response"
    "reorder-write"
    "reorder-write-far"
    "rnr-late-receive"
    "rnr-late-receive-of-write-imm"
    "rnr-long-message"
    "rnr-nak-dropped"
    "rnr-never"
    "send-inside-write"
    "short-middle"
    "short-read-response"
    "truncate-write"
    "wrong-address-write"
    "wrong-key-atomic"
    "wrong-key-read"
    "wrong-key-second"
    "wrong-key-write"
    "wrong-pkey"
}

/// Similarity from which on a name is near another one; 1 is equality.
const NEAR: f64 = 0.8;
/// Number of near names that are told.
const MAX_NEAR: usize = 3;

/// Returns the names of scripts near `name`, the nearest first.
pub fn names_near(name: &str) -> Vec<&'static str> {
    let similarity = |known: &str| strsim::jaro_winkler(known, name);
    let mut near: Vec<(f64, &str)> =
        SCRIPTS.iter().map(|&(known, _)| (similarity(known), known)).collect();
    near.retain(|(similarity, _)| *similarity >= NEAR);
    near.sort_by(|a, b| b.0.total_cmp(&a.0));
    near.truncate(MAX_NEAR);
    near.into_iter().map(|(_, known)| known).collect()
}

#[cfg(test)]
mod tests {
    use super::names_near;

    #[test]
    fn a_mistyped_name_is_near_the_right_one() {
        for (typed, meant) in [
            ("drop-writ-first", "drop-write-first"),
            ("forged-nack", "forged-nak"),
            ("mark-and-drops", "mark-and-drop"),
            ("rnr_never", "rnr-never"),
        ] {
            assert_eq!(names_near(typed).first(), Some(&meant), "{typed}");
            assert!(names_near(typed).len() <= 3);
        }
        assert!(names_near("zzz").is_empty());
    }
}
