//! Flow size distributions: points of a cumulative distribution with linear interpolation.
//!
//! `websearch` is the web search workload of DCTCP (Alizadeh et al., SIGCOMM 2010), and `hadoop`
//! that of Facebook's Hadoop clusters (Roy et al., SIGCOMM 2015). Both use the points of HPCC's
//! public simulator (alibaba-edu/High-Precision-Congestion-Control, `traffic_gen`).

use std::path::Path;

/// Points: a size, and the share of flows that are no larger, in thousandths of a percent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Distribution {
    points: Vec<(u64, u64)>,
}

/// 100 %, in thousandths of a percent.
const WHOLE: u64 = 100_000;

const WEB_SEARCH: &str = "\
    0 0 10000 15 20000 20 30000 30 50000 40 80000 53 200000 60 1000000 70 2000000 80 5000000 \
    90 10000000 97 30000000 100";
const HADOOP: &str = "\
    0 0 100 1 200 2 300 5 350 15 400 20 500 30 600 40 700 50 1000 60 2000 67 7000 70 30000 \
    72 50000 82 80000 87 120000 90 300000 95 1000000 97.5 2000000 99 10000000 100";

impl Distribution {
    /// The distribution `websearch`, `hadoop`, or that of the file `name` in `folder`, with a size
    /// in bytes and a percentage on each line.
    ///
    /// # Errors
    /// A description of the expected value.
    pub fn named(name: &str, folder: &Path) -> Result<Self, String> {
        match name {
            "websearch" => Self::parse(WEB_SEARCH),
            "hadoop" => Self::parse(HADOOP),
            file => {
                let text = std::fs::read_to_string(folder.join(file));
                let text = text
                    .map_err(|e| format!("\"websearch\", \"hadoop\" or a readable file ({e})"))?;
                Self::parse(&text)
            }
        }
    }

    /// Parses a distribution: pairs of a size and a percentage, both increasing, the last
    /// percentage 100.
    ///
    /// # Errors
    /// A description of the expected text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let expected = || "pairs of bytes and percentages, both increasing, up to 100".to_owned();
        let words: Vec<&str> = text.split_whitespace().collect();
        let mut points = Vec::new();
        for pair in words.chunks(2) {
            let [size, percent] = pair else { return Err(expected()) };
            let part = thousandths(percent).ok_or_else(expected)?;
            points.push((size.parse().map_err(|_| expected())?, part));
        }
        let rises = points.windows(2).all(|two| two[0].0 <= two[1].0 && two[0].1 < two[1].1);
        let ends =
            points.first().is_some_and(|p| p.1 == 0) && points.last().is_some_and(|p| p.1 == WHOLE);
        if rises && ends { Ok(Self { points }) } else { Err(expected()) }
    }

    /// The mean size in bytes.
    pub fn mean(&self) -> u64 {
        let area = |two: &[(u64, u64)]| {
            (u128::from(two[0].0) + u128::from(two[1].0)) * u128::from(two[1].1 - two[0].1)
        };
        let sum: u128 = self.points.windows(2).map(area).sum();
        u64::try_from(sum / u128::from(2 * WHOLE)).unwrap_or(u64::MAX)
    }

    /// The largest size.
    pub fn largest(&self) -> u64 {
        self.points.last().map_or(0, |point| point.0)
    }

    /// Draws a flow size of at least one byte.
    pub fn draw(&self, random: u32) -> u64 {
        // Thousandths of a percent in units of 2^-32.
        let wanted = u64::from(random) * WHOLE;
        let after = self.points.partition_point(|&(_, part)| part << 32 <= wanted).max(1);
        let (low, high) = (self.points[after - 1], self.points[after.min(self.points.len() - 1)]);
        let span = u128::from((high.1 - low.1) << 32).max(1);
        let more = u128::from(high.0 - low.0) * u128::from(wanted - (low.1 << 32)) / span;
        (low.0 + u64::try_from(more).unwrap_or(0)).max(1)
    }
}

/// Parses a percentage with up to three decimals, in thousandths.
fn thousandths(text: &str) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let decimals = format!("{part:0<3}");
    let whole: u64 = whole.parse().ok()?;
    (decimals.len() == 3).then(|| Some(whole * 1000 + decimals.parse::<u64>().ok()?))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drawn_sizes_follow_the_distribution() {
        let sizes = Distribution::named("websearch", Path::new("")).unwrap();
        assert_eq!(sizes.draw(0), 1);
        assert_eq!(sizes.draw(u32::MAX), 29_999_999);
        // 15 % of the flows are no larger than 10 KB, 53 % no larger than 80 KB.
        assert_eq!(sizes.draw(644_245_095), 10_000);
        assert_eq!(sizes.draw(2_276_332_667), 80_000);
        assert_eq!(sizes.mean(), 1_711_250);
        assert_eq!(Distribution::named("hadoop", Path::new("")).unwrap().mean(), 120_420);
    }

    #[test]
    fn invalid_distributions_are_refused() {
        for text in [
            "",
            "0 0",
            "0 0 10 50",
            "0 0 10",
            "0 0 10 50 5 100",
            "0 0 x 100",
            "0 0 9 1.2345 10 100",
        ] {
            assert!(Distribution::parse(text).is_err(), "{text:?}");
        }
    }
}
