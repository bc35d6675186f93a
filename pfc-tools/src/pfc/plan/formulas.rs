//! Headroom of a lossless class: what may still come in when a pause has been decided, by each of the published formulas.

use feroce_wire::pause::QUANTUM_BITS;

use crate::fabric::time::LineRate;

/// Bits of a PFC frame on the line: 64 bytes, preamble and gap.
const PFC_FRAME_BITS: u64 = 672;
/// Bits of preamble and gap.
const GAP_BITS: u64 = 160;
/// How long a metre of cable takes: 5 ns.
const PICOS_PER_METRE: u64 = 5000;

/// The link, and what is sent on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    /// Its rate.
    pub rate: LineRate,
    /// Metres of cable.
    pub cable: u32,
    /// Largest frame of the lossless class, in bytes.
    pub mtu: u64,
    /// Largest frame of any class.
    pub port_mtu: u64,
    /// In place of the standard's response time: quanta from the arrival of a PFC frame to silence.
    pub response_quanta: Option<u64>,
    /// What the switch keeps frames in.
    pub cells: Cells,
}

/// How a switch's chip stores and delays frames, as SONiC counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cells {
    /// Bytes of a cell.
    pub size: u64,
    /// Of the frames, how many in a hundred are as small as is worst for the cells.
    pub small_percent: u64,
    /// Bytes in MAC and PHY when a pause is decided.
    pub mac_phy: u64,
    /// Bytes of the pipeline.
    pub pipeline: u64,
}

impl Default for Cells {
    /// Of a Spectrum-2 in SONiC's `ASIC_TABLE`.
    fn default() -> Self {
        Self { size: 144, small_percent: 100, mac_phy: 819, pipeline: 18 * 1024 }
    }
}

/// A part of a sum: what it is, and its bytes.
pub type Part = (&'static str, u64);

/// What a formula says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Headroom {
    /// Bytes.
    pub bytes: u64,
    /// What they are made of.
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
    /// Each of them, in the order of a table.
    pub const ALL: [Self; 5] = [Self::Ieee, Self::Cisco, Self::Mlx5, Self::Mlxsw, Self::Sonic];

    /// What it is called.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ieee => "802.1Q",
            Self::Cisco => "Cisco",
            Self::Mlx5 => "mlx5",
            Self::Mlxsw => "mlxsw",
            Self::Sonic => "SONiC",
        }
    }

    /// The headroom of one class of one port.
    ///
    /// # Errors
    /// If it has no value for this rate: which.
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

/// IEEE 802.3, 31B.3.7: quanta within which a station stops, by its rate in Mb/s; SONiC's table of the same has the two slowest.
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

/// Cisco's bounds of interface and response, in bit times, by rate in Mb/s.
const CISCO: [(u64, u64, u64); 4] = [
    (10_000, 8192, 30_720),
    (25_000, 6144, 40_960),
    (40_000, 24_576, 60_416),
    (100_000, 122_880, 201_728),
];

fn megabits(rate: LineRate) -> u64 {
    rate.bits_per_second() / 1_000_000
}

fn no_value(of: &str, rate: LineRate) -> String {
    format!("no {of} is published for {} Mb/s (--response-quanta states one)", megabits(rate))
}

fn response_bits(link: &Link) -> Result<u64, String> {
    let published = RESPONSE_QUANTA.iter().find(|(rate, _)| *rate == megabits(link.rate));
    let quanta = link.response_quanta.or(published.map(|&(_, quanta)| quanta));
    quanta.map(|q| q * u64::from(QUANTUM_BITS)).ok_or_else(|| no_value("response time", link.rate))
}

/// Bits that are on their way while something crosses the cable and the answer comes back.
fn cable_bits(link: &Link) -> u64 {
    let picos = 2 * u64::from(link.cable) * PICOS_PER_METRE;
    let bits = u128::from(picos) * u128::from(link.rate.bits_per_second());
    u64::try_from(bits.div_ceil(1_000_000_000_000)).unwrap_or(u64::MAX)
}

/// The delay value of 802.1Q (annex on PFC buffer requirements): a frame of any class that is being sent when the pause is decided, the PFC frame, the cable
/// both ways, the time to respond, and a frame that has begun when the pause arrives. The standard adds up sublayers;
/// the bound of 802.3 31B.3.7 stands for them here.
fn ieee(link: &Link) -> Result<Headroom, String> {
    delay_value(link, link.port_mtu)
}

/// The same with a frame of `sent` bytes ahead of the PFC frame.
fn delay_value(link: &Link, sent: u64) -> Result<Headroom, String> {
    let response = response_bits(link)?;
    Ok(Headroom::of_bits(&[
        ("frame being sent", 8 * sent),
        ("PFC frame", PFC_FRAME_BITS),
        ("cable, both ways", cable_bits(link)),
        ("response", response),
        ("frame begun", 8 * link.mtu),
    ]))
}

/// Cisco ("Congestion Management in Ethernet Storage Networks", pause threshold for long distance links): the largest frame of any class ahead of the
/// PFC frame, the PFC frame, the interface, the cable both ways, the response, the largest frame of the lossless class.
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
        ("response", response),
        ("largest lossless frame", 8 * link.mtu + GAP_BITS),
    ]))
}

/// Linux, `mlx5/core/en/port_buffer.c`: (301 + 2.16 len) Gb/s + 2.72 MTU in whole bytes, at least as for 40 Gb/s.
fn mlx5(link: &Link) -> Headroom {
    let speed = megabits(link.rate).max(40_000);
    let way = (301 + 216 * u64::from(link.cable) / 100) * speed / 1000;
    let frames = 272 * link.mtu / 100;
    Headroom { bytes: way + frames, parts: vec![("speed and cable", way), ("frames", frames)] }
}

/// Linux, `mlxsw/spectrum_buffers.c`: twice the delay that DCB was told, since in the worst case every frame is a byte longer than a
/// cell, and a frame of the port. What DCB is to be told is up to the administrator: here the delay
/// value of 802.1Q between lossless frames, since the driver adds the largest frame of the port by itself.
/// The driver then rounds to its cells.
fn mlxsw(link: &Link) -> Result<Headroom, String> {
    let delay = mlxsw_delay(link)?;
    let parts = vec![("delay, in cells of a byte too much", 2 * delay), ("frame", link.port_mtu)];
    Ok(Headroom { bytes: 2 * delay + link.port_mtu, parts })
}

/// What DCB is to be told of the delay, in bytes.
///
/// # Errors
/// If no response time is published for the rate.
pub fn mlxsw_delay(link: &Link) -> Result<u64, String> {
    Ok(delay_value(link, link.mtu)?.bytes)
}

/// SONiC, `buffer_headroom_mellanox.lua`: the lossless frame, and what comes in the meantime as small frames fill cells; rounded up to 1024 bytes. The
/// cable's bytes are divided by 1024 there, too, where a megabit has 1000 kilobits.
fn sonic(link: &Link) -> Result<Headroom, String> {
    let Cells { size, small_percent, mac_phy, .. } = link.cells;
    // Light has 198000 km/s in the cable: 1000/198 = 500/99 of 10^-9 s for a metre.
    let nanobits = 2 * u128::from(link.cable) * u128::from(megabits(link.rate)) * 500 / 99;
    let on_cable = u64::try_from(nanobits / (8 * 1024)).unwrap_or(u64::MAX);
    let waiting = link.port_mtu + on_cable + mac_phy + response_bits(link)? / 8;
    // What a frame takes of its cells at the worst, as a quotient.
    let (above, below) = if size > 128 { (size, 64) } else { (2 * size, 1 + size) };
    let filled = waiting * ((100 - small_percent) * below + small_percent * above);
    let stored = filled.div_ceil(100 * below);
    let bytes = (link.mtu + stored).next_multiple_of(1024);
    let parts = vec![
        ("lossless frame", link.mtu),
        ("largest frame", link.port_mtu),
        ("cable, both ways", on_cable),
        ("MAC and PHY", mac_phy),
        ("response", response_bits(link)? / 8),
        ("cells and rounding", bytes - link.mtu - waiting),
    ];
    Ok(Headroom { bytes, parts })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(gigabits: u64, cable: u32, mtu: u64) -> Link {
        let rate = LineRate::new(gigabits * 1_000_000_000);
        Link { rate, cable, mtu, port_mtu: 9216, response_quanta: None, cells: Cells::default() }
    }

    fn bytes(formula: Formula, link: &Link) -> u64 {
        formula.headroom(link).unwrap().bytes
    }

    #[test]
    fn mlx5_at_100g_over_100_m_is_63_1_kb() {
        assert_eq!(bytes(Formula::Mlx5, &link(100, 100, 4200)), 63_124);
        // Slower links are planned as 40 Gb/s.
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
    fn ieee_adds_up_what_is_under_way() {
        // 9216 + 4200 + 84 + 12500 + 394 x 64.
        assert_eq!(bytes(Formula::Ieee, &link(100, 100, 4200)), 51_216);
        // A metre more is 10 ns, 125 bytes at 100 Gb/s.
        assert_eq!(bytes(Formula::Ieee, &link(100, 101, 4200)), 51_341);
    }

    /// The published parts: 9216 bytes are 73888 bit times, 2300 bytes 18560, the PFC frame 672.
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
        // Per 64 bytes a cell of 144: 2.25 x (9216 + 12330 + 819 + 25216) + 4200, rounded up.
        assert_eq!(bytes(Formula::Sonic, &link(100, 100, 4200)), 111_616);
        let cells = Cells { size: 96, small_percent: 0, ..Cells::default() };
        let plain = Link { cells, ..link(100, 100, 4200) };
        assert_eq!(
            bytes(Formula::Sonic, &plain),
            (4200 + 9216 + 12_330 + 819 + 25_216_u64).next_multiple_of(1024)
        );
    }

    #[test]
    fn no_formula_overflows_over_the_longest_cable() {
        let far = Link { response_quanta: Some(65_535), ..link(400, 100_000, 4200) };
        // 100 km there and back at 400 Gb/s are 50 MB, and SONiC divides by 1024 where 1000 is meant.
        for formula in [Formula::Ieee, Formula::Mlx5, Formula::Mlxsw, Formula::Sonic] {
            let bytes = bytes(formula, &far);
            assert!((50_000_000..300_000_000).contains(&bytes), "{formula:?}: {bytes}");
        }
        // On both sides of where 64 bits used to end, a metre is a metre.
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
    fn parts_add_up() {
        for formula in
            [Formula::Ieee, Formula::Cisco, Formula::Mlx5, Formula::Mlxsw, Formula::Sonic]
        {
            let headroom = formula.headroom(&link(100, 37, 1500)).unwrap();
            let sum: u64 = headroom.parts.iter().map(|(_, bytes)| bytes).sum();
            assert!(sum.abs_diff(headroom.bytes) < 8, "{formula:?}: {sum} {}", headroom.bytes);
        }
    }
}
