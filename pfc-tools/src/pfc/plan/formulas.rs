//! Headroom of a lossless class according to the published formulas: the bytes that may still
//! arrive after the decision to pause.

use feroce_wire::pause::QUANTUM_BITS;

use crate::fabric::time::LinkRate;

/// Bits of a PFC frame on the link: 64 bytes, preamble and inter-frame gap.
const PFC_FRAME_BITS: u64 = 672;
/// Bits of preamble and inter-frame gap.
const GAP_BITS: u64 = 160;
/// Propagation delay per metre of cable: 5 ns.
const PICOS_PER_METRE: u64 = 5000;

/// The link and its frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    /// Link rate.
    pub rate: LinkRate,
    /// Cable length in metres.
    pub cable: u32,
    /// Largest frame of the lossless class, in bytes.
    pub mtu: u64,
    /// Largest frame of any class, in bytes.
    pub port_mtu: u64,
    /// Response time in quanta, from the arrival of a PFC frame to silence; replaces the standard's
    /// value.
    pub response_quanta: Option<u64>,
    /// Cell memory of the switch.
    pub cells: Cells,
}

/// Cell memory and delays of a switch chip, as in SONiC's model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cells {
    /// Bytes of a cell.
    pub size: u64,
    /// Share of frames, in percent, with the worst size for the cells.
    pub small_percent: u64,
    /// Bytes in MAC and PHY when a pause is decided.
    pub mac_phy: u64,
    /// Bytes in the pipeline.
    pub pipeline: u64,
}

impl Default for Cells {
    /// Spectrum-2, from SONiC's `ASIC_TABLE`.
    fn default() -> Self {
        Self { size: 144, small_percent: 100, mac_phy: 819, pipeline: 18 * 1024 }
    }
}

/// A summand: its name and its bytes.
pub type Part = (&'static str, u64);

/// The result of a formula.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Headroom {
    /// Bytes.
    pub bytes: u64,
    /// Summands.
    pub parts: Vec<Part>,
}

impl Headroom {
    fn of_bits(parts: &[(&'static str, u64)]) -> Self {
        let bits: u64 = parts.iter().map(|(_, bits)| bits).sum();
        let parts = parts.iter().map(|&(name, bits)| (name, bits.div_ceil(8))).collect();
        Self { bytes: bits.div_ceil(8), parts }
    }
}

/// A published formula.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Formula {
    /// IEEE 802.1Q: two frames, the PFC frame, the cable twice, the response time of 802.3
    Ieee,
    /// Cisco's sum of worst cases in bit times
    Cisco,
    /// The Linux driver of ConnectX NICs
    Mlx5,
    /// The Linux driver of Spectrum switches
    Mlxsw,
    /// SONiC's dynamic buffer model
    Sonic,
}

impl Formula {
    /// All formulas, in the order of the table.
    pub const ALL: [Self; 5] = [Self::Ieee, Self::Cisco, Self::Mlx5, Self::Mlxsw, Self::Sonic];

    /// Name of the formula.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ieee => "802.1Q",
            Self::Cisco => "Cisco",
            Self::Mlx5 => "mlx5",
            Self::Mlxsw => "mlxsw",
            Self::Sonic => "SONiC",
        }
    }

    /// Headroom of one class of one port.
    ///
    /// # Errors
    /// If the formula has no value for this rate.
    pub fn headroom(self, link: &Link) -> Result<Headroom, String> {
        match self {
            Self::Ieee => ieee(link),
            Self::Cisco => cisco(link),
            Self::Mlx5 => Ok(mlx5(link)),
            Self::Mlxsw => mlxsw(link),
            Self::Sonic => sonic(link),
        }
    }
}

/// Response time in quanta by rate in Mb/s (IEEE 802.3, 31B.3.7). The two lowest rates are from
/// SONiC's table.
const RESPONSE_QUANTA: [(u64, u64); 9] = [
    (100, 1),
    (1000, 2),
    (10_000, 67),
    (25_000, 80),
    (40_000, 118),
    (50_000, 147),
    (100_000, 394),
    (200_000, 453),
    (400_000, 905),
];

/// Cisco's bounds of interface delay and response time in bit times, by rate in Mb/s.
const CISCO: [(u64, u64, u64); 4] = [
    (10_000, 8192, 30_720),
    (25_000, 6144, 40_960),
    (40_000, 24_576, 60_416),
    (100_000, 122_880, 201_728),
];

fn megabits(rate: LinkRate) -> u64 {
    rate.bits_per_second() / 1_000_000
}

fn no_value(of: &str, rate: LinkRate) -> String {
    format!("no {of} is published for {} Mb/s (set it with --response-quanta)", megabits(rate))
}

fn response_bits(link: &Link) -> Result<u64, String> {
    let published = RESPONSE_QUANTA.iter().find(|(rate, _)| *rate == megabits(link.rate));
    let quanta = link.response_quanta.or(published.map(|&(_, quanta)| quanta));
    quanta.map(|q| q * u64::from(QUANTUM_BITS)).ok_or_else(|| no_value("response time", link.rate))
}

/// Bits in flight during a round trip on the cable.
fn cable_bits(link: &Link) -> u64 {
    let picos = 2 * u64::from(link.cable) * PICOS_PER_METRE;
    let bits = u128::from(picos) * u128::from(link.rate.bits_per_second());
    u64::try_from(bits.div_ceil(1_000_000_000_000)).unwrap_or(u64::MAX)
}

/// Delay value of IEEE 802.1Q (annex on PFC buffer requirements): a frame of any class in
/// transmission when the pause is decided, the PFC frame, the cable in both directions, the
/// response time, and a frame whose transmission begins just before the pause takes effect. The
/// standard adds up sublayer delays; here the bound of IEEE 802.3 31B.3.7 stands for them.
fn ieee(link: &Link) -> Result<Headroom, String> {
    delay_value(link, link.port_mtu)
}

/// The delay value with a frame of `sent` bytes ahead of the PFC frame.
fn delay_value(link: &Link, sent: u64) -> Result<Headroom, String> {
    let response = response_bits(link)?;
    Ok(Headroom::of_bits(&[
        ("frame in transmission", 8 * sent),
        ("PFC frame", PFC_FRAME_BITS),
        ("cable, both ways", cable_bits(link)),
        ("response time", response),
        ("frame started", 8 * link.mtu),
    ]))
}

/// Cisco ("Congestion Management in Ethernet Storage Networks", pause threshold for long distance
/// links): the largest frame of any class ahead of the PFC frame, the PFC frame, the interface, the
/// cable in both directions, the response time, and the largest frame of the lossless class.
fn cisco(link: &Link) -> Result<Headroom, String> {
    let published = CISCO.iter().find(|(rate, ..)| *rate == megabits(link.rate));
    let &(_, interface, response) =
        published.ok_or_else(|| no_value("interface delay", link.rate))?;
    let response = link.response_quanta.map_or(response, |quanta| quanta * u64::from(QUANTUM_BITS));
    Ok(Headroom::of_bits(&[
        ("largest frame", 8 * link.port_mtu + GAP_BITS),
        ("PFC frame", PFC_FRAME_BITS),
        ("interface", interface),
        ("cable, both ways", cable_bits(link)),
        ("response time", response),
        ("largest lossless frame", 8 * link.mtu + GAP_BITS),
    ]))
}

/// Linux, `mlx5/core/en/port_buffer.c`: (301 + 2.16 len) Gb/s + 2.72 MTU in whole bytes, with at
/// least 40 Gb/s.
fn mlx5(link: &Link) -> Headroom {
    let speed = megabits(link.rate).max(40_000);
    let delay = (301 + 216 * u64::from(link.cable) / 100) * speed / 1000;
    let frames = 272 * link.mtu / 100;
    Headroom { bytes: delay + frames, parts: vec![("speed and cable", delay), ("frames", frames)] }
}

/// Linux, `mlxsw/spectrum_buffers.c`: twice the delay configured in DCB, since in the worst case
/// every frame is one byte longer than a cell, plus one frame of the port. The administrator
/// chooses the DCB delay. Here the delay is the delay value of IEEE 802.1Q with lossless frames
/// only, since the driver adds the largest frame of the port itself. The driver then rounds to
/// cells.
fn mlxsw(link: &Link) -> Result<Headroom, String> {
    let delay = mlxsw_delay(link)?;
    let parts = vec![("delay, doubled for cells", 2 * delay), ("frame", link.port_mtu)];
    Ok(Headroom { bytes: 2 * delay + link.port_mtu, parts })
}

/// The delay to configure in DCB, in bytes.
///
/// # Errors
/// If no response time is published for the rate.
pub fn mlxsw_delay(link: &Link) -> Result<u64, String> {
    Ok(delay_value(link, link.mtu)?.bytes)
}

/// SONiC, `buffer_headroom_mellanox.lua`: the lossless frame, and the bytes that arrive in the
/// meantime as small frames in cells; rounded up to 1024 bytes. SONiC's formula also divides the
/// cable's bytes by 1024 instead of 1000.
fn sonic(link: &Link) -> Result<Headroom, String> {
    let Cells { size, small_percent, mac_phy, .. } = link.cells;
    // Propagation at 198000 km/s: 1000/198 ns = 500/99 ns per 1 m of cable, times two directions.
    let nanobits = 2 * u128::from(link.cable) * u128::from(megabits(link.rate)) * 500 / 99;
    let on_cable = u64::try_from(nanobits / (8 * 1024)).unwrap_or(u64::MAX);
    let waiting = link.port_mtu + on_cable + mac_phy + response_bits(link)? / 8;
    // Worst-case ratio of cell bytes to frame bytes, as a fraction.
    let (above, below) = if size > 128 { (size, 64) } else { (2 * size, 1 + size) };
    let filled = waiting * ((100 - small_percent) * below + small_percent * above);
    let stored = filled.div_ceil(100 * below);
    let bytes = (link.mtu + stored).next_multiple_of(1024);
    let parts = vec![
        ("lossless frame", link.mtu),
        ("largest frame", link.port_mtu),
        ("cable, both ways", on_cable),
        ("MAC and PHY", mac_phy),
        ("response time", response_bits(link)? / 8),
        ("cells and rounding", bytes - link.mtu - waiting),
    ];
    Ok(Headroom { bytes, parts })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(gigabits: u64, cable: u32, mtu: u64) -> Link {
        let rate = LinkRate::new(gigabits * 1_000_000_000);
        Link { rate, cable, mtu, port_mtu: 9216, response_quanta: None, cells: Cells::default() }
    }

    fn bytes(formula: Formula, link: &Link) -> u64 {
        formula.headroom(link).unwrap().bytes
    }

    #[test]
    fn mlx5_at_100g_over_100_m_is_63_1_kb() {
        assert_eq!(bytes(Formula::Mlx5, &link(100, 100, 4200)), 63_124);
        // Slower links are treated as 40 Gb/s.
        assert_eq!(
            bytes(Formula::Mlx5, &link(10, 7, 1500)),
            bytes(Formula::Mlx5, &link(40, 7, 1500))
        );
    }

    #[test]
    fn mlxsw_at_100g_over_100_m_is_101_6_kb() {
        assert_eq!(bytes(Formula::Mlxsw, &link(100, 100, 4200)), 101_616);
    }

    #[test]
    fn ieee_delay_value() {
        // 9216 + 4200 + 84 + 12500 + 394 x 64.
        assert_eq!(bytes(Formula::Ieee, &link(100, 100, 4200)), 51_216);
        // One more metre is 10 ns, 125 bytes at 100 Gb/s.
        assert_eq!(bytes(Formula::Ieee, &link(100, 101, 4200)), 51_341);
    }

    /// The published summands: 9216 bytes are 73888 bit times, 2300 bytes 18560, the PFC frame 672.
    #[test]
    fn cisco_in_bit_times() {
        let headroom = Formula::Cisco.headroom(&link(10, 100, 2300)).unwrap();
        assert_eq!(headroom.parts[0].1, 73_888 / 8);
        assert_eq!(headroom.parts[1].1, 672 / 8);
        assert_eq!(headroom.parts[5].1, 18_560 / 8);
        assert_eq!(headroom.bytes, (73_888 + 672 + 8192 + 10_000 + 30_720 + 18_560) / 8);
    }

    #[test]
    fn sonic_counts_cells_and_rounds_to_1024() {
        // A cell of 144 bytes for every 64 bytes: 2.25 x (9216 + 12330 + 819 + 25216) + 4200,
        // rounded up.
        assert_eq!(bytes(Formula::Sonic, &link(100, 100, 4200)), 111_616);
        let cells = Cells { size: 96, small_percent: 0, ..Cells::default() };
        let plain = Link { cells, ..link(100, 100, 4200) };
        assert_eq!(
            bytes(Formula::Sonic, &plain),
            (4200 + 9216 + 12_330 + 819 + 25_216_u64).next_multiple_of(1024)
        );
    }

    #[test]
    fn no_formula_overflows_on_the_longest_cable() {
        let far = Link { response_quanta: Some(65_535), ..link(400, 100_000, 4200) };
        // A round trip of 100 km at 400 Gb/s is 50 MB. SONiC divides by 1024 instead of 1000.
        for formula in [Formula::Ieee, Formula::Mlx5, Formula::Mlxsw, Formula::Sonic] {
            let bytes = bytes(formula, &far);
            assert!((50_000_000..300_000_000).contains(&bytes), "{formula:?}: {bytes}");
        }
        // On both sides of a former 64-bit overflow, the value still grows with the length.
        let [near, far] =
            [92_000, 93_000].map(|cable| bytes(Formula::Sonic, &link(100, cable, 4200)));
        assert!(far > near && far - near < 300_000, "{near} {far}");
    }

    #[test]
    fn a_rate_without_a_published_value_is_refused_unless_it_is_stated() {
        let fast = link(800, 100, 4200);
        assert!(Formula::Ieee.headroom(&fast).unwrap_err().contains("800000 Mb/s"));
        let stated = Link { response_quanta: Some(1810), ..fast };
        assert_eq!(bytes(Formula::Ieee, &stated), 9216 + 4200 + 84 + 100_000 + 1810 * 64);
    }

    #[test]
    fn the_parts_of_a_headroom_add_up() {
        for formula in
            [Formula::Ieee, Formula::Cisco, Formula::Mlx5, Formula::Mlxsw, Formula::Sonic]
        {
            let headroom = formula.headroom(&link(100, 37, 1500)).unwrap();
            let sum: u64 = headroom.parts.iter().map(|(_, bytes)| bytes).sum();
            assert!(sum.abs_diff(headroom.bytes) < 8, "{formula:?}: {sum} {}", headroom.bytes);
        }
    }
}
